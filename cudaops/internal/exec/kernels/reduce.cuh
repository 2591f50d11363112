// Reductions of the elements (k, r) that a loop F makes, and stores perhaps: NK results of NR elements each. There are no atomics: the order of every sum
// follows from the shape. Where there are few results, S blocks make a part each, and a second kernel reduces the parts.

struct Sum {
    static __device__ __forceinline__ float start() { return 0.f; }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct MaxOf {
    static __device__ __forceinline__ float start() { return -__int_as_float(0x7f800000); }
    static __device__ __forceinline__ float of(float a, float b) { return largest(a, b); }
};
struct MinOf {
    static __device__ __forceinline__ float start() { return __int_as_float(0x7f800000); }
    static __device__ __forceinline__ float of(float a, float b) { return smallest(a, b); }
};

// across combines x over groups of G neighbouring lanes. Every lane of the warp takes part.
template <class R, int G> __device__ __forceinline__ float across(float x) {
#pragma unroll
    for (int d = G / 2; d > 0; d /= 2) x = R::of(x, __shfl_xor_sync(warp, x, d));
    return x;
}

// rows: neighbours in r lie together. G threads, up to a block of 256, make a result; V elements a load.
// Result k of part s goes to out[k*S + s].
template <class R, int G, int V, class I, I NK, I NR, I S, class F> __device__ __forceinline__ void rows(const F &f, float *out) {
    const I part = ((NR + S - 1) / S + V - 1) / V * V;
    const I item = (I)blockIdx.x * (256 / G) + threadIdx.x / G;
    const I k = item / S, s = item % S;
    const u32 lane = threadIdx.x % G;
    float acc[V];
#pragma unroll
    for (int j = 0; j < V; j++) acc[j] = R::start();
    if (k < NK) {
        const I end = s * part + part < NR ? s * part + part : NR;
#pragma unroll 4
        for (I r = s * part + lane * V; r < end; r += G * V) {
            const Vec<V> v = f.template at<V>(k, r);
            f.store(k, r, v);
#pragma unroll
            for (int j = 0; j < V; j++) acc[j] = R::of(acc[j], v.x[j]);
        }
    }
    float x = acc[0];
#pragma unroll
    for (int j = 1; j < V; j++) x = R::of(x, acc[j]);
    x = across<R, (G < 32 ? G : 32)>(x);
    if constexpr (G > 32) {
        __shared__ float warps[G / 32];
        if (lane % 32 == 0) warps[lane / 32] = x;
        __syncthreads();
        x = warps[0];
#pragma unroll
        for (int w = 1; w < G / 32; w++) x = R::of(x, warps[w]);
    }
    if (k < NK && lane == 0) out[item] = x;
}

// columns: neighbours in k lie together. X threads side by side make V results each, Y threads below one another take turns at r.
// Result k of part s goes to out[s*NK + k].
template <class R, int X, int V, class I, I NK, I NR, I S, class F> __device__ __forceinline__ void columns(const F &f, float *out) {
    const int Y = 256 / X;
    const I part = (NR + S - 1) / S;
    const u32 x = threadIdx.x % X, y = threadIdx.x / X;
    const I k = ((I)blockIdx.x * X + x) * V, s = blockIdx.y;
    float acc[V];
#pragma unroll
    for (int j = 0; j < V; j++) acc[j] = R::start();
    if (k < NK) {
        const I end = s * part + part < NR ? s * part + part : NR;
        I r = s * part + y;
        // What is stored may lie where more is to be loaded, for all that a compiler knows.
        for (; F::stores && r + 3 * Y < end; r += 4 * Y) {
            Vec<V> v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = f.template at<V>(k, r + i * Y);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                f.store(k, r + i * Y, v[i]);
#pragma unroll
                for (int j = 0; j < V; j++) acc[j] = R::of(acc[j], v[i].x[j]);
            }
        }
#pragma unroll 4
        for (; r < end; r += Y) {
            const Vec<V> v = f.template at<V>(k, r);
            f.store(k, r, v);
#pragma unroll
            for (int j = 0; j < V; j++) acc[j] = R::of(acc[j], v.x[j]);
        }
    }
    __shared__ float below[Y][X * V];
#pragma unroll
    for (int j = 0; j < V; j++) below[y][x * V + j] = acc[j];
    __syncthreads();
    for (u32 c = threadIdx.x; c < X * V; c += 256) {
        float sum = below[0][c];
#pragma unroll
        for (int i = 1; i < Y; i++) sum = R::of(sum, below[i][c]);
        const I at = (I)blockIdx.x * X * V + c;
        if (at < NK) out[s * NK + at] = sum;
    }
}
