// Functions of rows of C numbers. G threads do a row: a part of a warp, or a block of 256. A row of up to 16 numbers a thread stays in
// registers; a longer one is read again, from the cache.

template <int G> struct Team {
    // all combines x over the threads of a row; each gets the result.
    template <class R> static __device__ __forceinline__ float all(float x) {
        x = across<R, (G < 32 ? G : 32)>(x);
        if constexpr (G > 32) {
            __shared__ float warps[G / 32];
            __syncthreads();
            if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
            __syncthreads();
            x = warps[0];
#pragma unroll
            for (int w = 1; w < G / 32; w++) x = R::of(x, warps[w]);
        }
        return x;
    }
    static __device__ __forceinline__ u64 row() { return (u64)blockIdx.x * (256 / G) + threadIdx.x / G; }
    static __device__ __forceinline__ int lane() { return threadIdx.x % G; }
};

template <int C, int G, class T> struct Row {
    static const int items = (C + G - 1) / G;
    static const bool kept = items <= 16;
    const T *x;
    bool valid;
    float v[kept ? items : 1];

    __device__ __forceinline__ Row(const T *all, u64 row, bool valid) : x(all + row * C), valid(valid) {
        if constexpr (kept) {
#pragma unroll
            for (int i = 0; i < items; i++) {
                const int c = i * G + Team<G>::lane();
                v[i] = valid && c < C ? (float)x[c] : 0.f;
            }
        }
    }
    // each calls f with every index of this thread and the number there.
    template <class F> __device__ __forceinline__ void each(F f) const {
        if (!valid) return;
        if constexpr (kept) {
#pragma unroll
            for (int i = 0; i < items; i++) {
                const int c = i * G + Team<G>::lane();
                if (c < C) f(c, v[i]);
            }
        } else {
            // Four loads under way at a time, whatever f writes.
            for (int c = Team<G>::lane(); c < C; c += 4 * G) {
                float z[4];
                four(c, z);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (c + j * G < C) f(c + j * G, z[j]);
            }
        }
    }
    // four reads the numbers at c, c+G, c+2G, c+3G; past the row's end they are -inf.
    __device__ __forceinline__ void four(int c, float *z) const {
#pragma unroll
        for (int j = 0; j < 4; j++) z[j] = c + j * G < C ? (float)x[c + j * G] : MaxOf::start();
    }
    // total is the largest number m and the sum of exp(z - m), without that of index skip.
    __device__ __forceinline__ void total(int skip, float &m, float &sum) const {
        float top = MaxOf::start(), s = 0.f;
        if constexpr (kept) {
            each([&](int, float z) { top = largest(top, z); });
            m = Team<G>::template all<MaxOf>(top);
            each([&](int c, float z) { s += c == skip ? 0.f : expf(z - m); });
        } else {
            // In one pass: what was summed before a larger number came is made smaller then.
            for (int c = Team<G>::lane(); valid && c < C; c += 4 * G) {
                float z[4];
                four(c, z);
                const float most = largest(largest(z[0], z[1]), largest(z[2], z[3]));
                if (most > top) {
                    s *= expf(top - most);
                    top = most;
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (c + j * G != skip) s += z[j] == top ? 1.f : expf(z[j] - top); // -inf is equal to -inf
            }
            m = Team<G>::template all<MaxOf>(top);
            s = top == m ? s : s * expf(top - m);
        }
        sum = Team<G>::template all<Sum>(s);
    }
};

template <u64 N, int C, int G, bool LOG, class X, class Y> __device__ __forceinline__ void softmax(const X *x, Y *y) {
    const u64 n = Team<G>::row();
    const Row<C, G, X> row(x, n, n < N);
    float m, sum;
    row.total(-1, m, sum);
    const float scale = LOG ? logf(sum) : 1.f / sum;
    row.each([&](int c, float z) { y[n * C + c] = Y(LOG ? z - m - scale : expf(z - m) * scale); });
}

// From y = softmax(x), dx = y (dy - sum(y dy)); from y = log softmax(x), dx = dy - exp(y) sum(dy).
template <u64 N, int C, int G, bool LOG, class Y, class D, class X>
__device__ __forceinline__ void softmaxGrad(const Y *y, const D *dy, X *dx) {
    const u64 n = Team<G>::row();
    const Row<C, G, Y> row(y, n, n < N);
    const D *d = dy + n * C;
    float sum = 0.f;
    row.each([&](int c, float p) { sum += LOG ? (float)d[c] : p * (float)d[c]; });
    sum = Team<G>::template all<Sum>(sum);
    row.each([&](int c, float p) { dx[n * C + c] = X(LOG ? (float)d[c] - expf(p) * sum : p * ((float)d[c] - sum)); });
}

// Loss is what the cross entropy of row n and its gradient share. rest is the sum of exp(z - m) without the label's, so that 1 - p is
// precise where p is nearly 1.
template <u64 N, int C, int G, class X> struct Loss {
    u64 n;
    Row<C, G, X> row;
    int label;
    bool counts; // a class, not to be ignored
    float m, at, rest;

    __device__ __forceinline__ Loss(const X *logits, const int *labels, int ignore, u64 *word)
        : n(Team<G>::row()), row(logits, n, n < N) {
        label = n < N ? labels[n] : ignore;
        const bool in = (u32)label < (u32)C;
        if (label != ignore && !in && Team<G>::lane() == 0) fault(word, (u32)n, label);
        counts = label != ignore && in;
        row.total(label, m, rest);
        at = counts ? expf((float)logits[n * C + label] - m) : 0.f;
    }
    // put writes the loss. hit is 1 - smoothing, SMOOTH whether there is any, spread = smoothing / C.
    template <bool SMOOTH, class W, class Y>
    __device__ __forceinline__ void put(Y *out, const X *logits, const W *weights, float hit, float spread) const {
        float sum = 0.f;
        const float norm = logf(at + rest);
        if constexpr (SMOOTH) {
            row.each([&](int c, float z) { sum += (float)weights[c] * (m - z + norm); });
            sum = Team<G>::template all<Sum>(sum);
        }
        if (n >= N || Team<G>::lane() != 0) return;
        float loss = 0.f;
        if (counts) {
            const float own = at > 0.25f ? log1pf(rest / at) : m - (float)logits[n * C + label] + norm;
            loss = hit * (float)weights[label] * own + spread * sum;
        }
        out[n] = Y(loss);
    }
};

template <u64 N, int C, int G, bool SMOOTH, class X, class W, class Y>
__device__ __forceinline__ void crossEntropy(const X *logits, const int *labels, const W *weights, Y *out, u64 *word, int ignore,
                                             float hit, float spread) {
    const Loss<N, C, G, X> l(logits, labels, ignore, word);
    l.template put<SMOOTH>(out, logits, weights, hit, spread);
}

// With p = softmax(z), logit k of a row has the gradient, times the row's dloss,
// p[k] (hit w[y] + spread sum_c w[c]) - hit w[y] [k=y] - spread w[k]. Losses are written as well if they are wanted.
template <u64 N, int C, int G, bool SMOOTH, bool LOSSES, class X, class W, class L, class Y, class Z>
__device__ __forceinline__ void crossEntropyGrad(const X *logits, const int *labels, const W *weights, const L *dloss, Y *dx, Z *losses,
                                                 u64 *word, int ignore, float hit, float spread) {
    const Loss<N, C, G, X> l(logits, labels, ignore, word);
    if constexpr (LOSSES) l.template put<SMOOTH>(losses, logits, weights, hit, spread);
    float total = 0.f;
    if constexpr (SMOOTH) {
        l.row.each([&](int c, float) { total += (float)weights[c]; });
        total = Team<G>::template all<Sum>(total);
    }
    const float g = l.counts ? (float)dloss[l.n] : 0.f, own = l.counts ? hit * (float)weights[l.label] : 0.f;
    const float inv = 1.f / (l.at + l.rest);
    l.row.each([&](int c, float z) {
        float d;
        if (!l.counts) d = 0.f;
        else if (c == l.label) d = spread * (l.at * inv * total - (float)weights[c]) - own * (l.rest * inv);
        else d = expf(z - l.m) * inv * (own + spread * total) - spread * (float)weights[c];
        dx[l.n * C + c] = Y(g * d);
    });
}

// argmax of the K numbers that lie INNER apart: the first largest; a NaN never is.
template <u64 N, int K, u64 INNER, int G, class T> __device__ __forceinline__ void argMax(const T *x, int *out) {
    const u64 n = Team<G>::row();
    int best = 0;
    float most = MaxOf::start();
    if (n < N) {
        const T *at = x + n / INNER * K * INNER + n % INNER;
        for (int k = Team<G>::lane(); k < K; k += G) {
            const float v = (float)at[k * INNER];
            if (v > most) best = k, most = v;
        }
    }
#pragma unroll
    for (int d = G / 2; d > 0; d /= 2) {
        const int k = __shfl_xor_sync(warp, best, d);
        const float v = __shfl_xor_sync(warp, most, d);
        if (v > most || (v == most && k < best)) best = k, most = v;
    }
    if (n < N && Team<G>::lane() == 0) out[n] = best;
}
