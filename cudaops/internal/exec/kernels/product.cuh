// Products in float32 by tiles, for where cuBLASLt or cuDNN cannot be had, or does not take the case. P says what is multiplied: M x K
// by K x N, BATCH times; a(z, m, k) and b(z, k, n) read, store(z, m, n, x) writes what epilogue has made of a result. A block makes 64 x 64
// results, 16 of k at a time, a thread 4 x 4 of them.
//
// Where there are few results and K is long, S blocks take a part of k each and put it into parts, [S, BATCH, M, N]; a second kernel, finish,
// adds them up in order.

template <class P, int S> __device__ __forceinline__ void product(const P &p, float *parts) {
    __shared__ float as[16][64 + 4], bs[16][64 + 4];
    const int tilesN = (P::N + 63) / 64;
    const int m0 = (blockIdx.x / tilesN) * 64, n0 = (blockIdx.x % tilesN) * 64;
    const int z = blockIdx.y / S, s = blockIdx.y % S;
    const int part = ((P::K + S - 1) / S + 15) / 16 * 16;
    const int end = (s + 1) * part < P::K ? (s + 1) * part : P::K;
    const int t = threadIdx.x, tm = t / 16 * 4, tn = t % 16 * 4;
    float acc[4][4] = {};
    for (int k0 = s * part; k0 < end; k0 += 16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Neighbouring threads read what lies together.
            const int e = t + i * 256;
            const int ak = P::alongK ? e % 16 : e / 64, am = P::alongK ? e / 16 : e % 64;
            as[ak][am] = m0 + am < P::M && k0 + ak < end ? p.a(z, m0 + am, k0 + ak) : 0.f;
            const int bk = P::alongN ? e / 64 : e % 16, bn = P::alongN ? e % 64 : e / 16;
            bs[bk][bn] = n0 + bn < P::N && k0 + bk < end ? p.b(z, k0 + bk, n0 + bn) : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            float a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = as[k][tm + i], b[i] = bs[k][tn + i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int m = m0 + tm + i, n = n0 + tn + j;
            if (m >= P::M || n >= P::N) continue;
            if constexpr (S > 1) parts[(((u64)s * P::BATCH + z) * P::M + m) * P::N + n] = acc[i][j];
            else p.store(z, m, n, p.epilogue(acc[i][j], z, m, n));
        }
    }
}

template <class P, int S> __device__ __forceinline__ void finish(const P &p, const float *parts) {
    const u64 all = (u64)P::BATCH * P::M * P::N, i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= all) return;
    float sum = 0.f;
#pragma unroll 8
    for (int s = 0; s < S; s++) sum += parts[s * all + i];
    const int z = i / ((u64)P::M * P::N), m = i / P::N % P::M, n = i % P::N;
    p.store(z, m, n, p.epilogue(sum, z, m, n));
}

// MatMul: strides of a, b and c by row, column and batch. BIAS: a vector along n.
template <int BATCH_, int M_, int N_, int K_, int AR, int AC, u64 AB, int BR, int BC, u64 BB, int CR, int CC, u64 CB, bool BIAS, bool RELU, class X, class Y, class V, class O>
struct MatMul {
    static const int BATCH = BATCH_, M = M_, N = N_, K = K_;
    static const bool alongK = AC == 1, alongN = BC == 1;
    const X *x;
    const Y *y;
    const V *bias;
    O *out;
    __device__ __forceinline__ float a(int z, int m, int k) const { return x[z * AB + (u64)m * AR + (u64)k * AC]; }
    __device__ __forceinline__ float b(int z, int k, int n) const { return y[z * BB + (u64)k * BR + (u64)n * BC]; }
    __device__ __forceinline__ void store(int z, int m, int n, float v) const { out[z * CB + (u64)m * CR + (u64)n * CC] = O(v); }
    __device__ __forceinline__ float epilogue(float v, int, int, int n) const {
        if (BIAS) v += bias[n];
        return RELU ? relu(v) : v;
    }
};

// Geometry of a convolution: images, channels and extents of input and output, groups, kernel, stride, padding, dilation; LAST: the channels
// lie last.
template <int N_, int C_, int H_, int W_, int O_, int OH_, int OW_, int G_, int KH_, int KW_, int SH_, int SW_, int PH_, int PW_, int DH_, int DW_, bool LAST_>
struct Geometry {
    static const int N = N_, C = C_, H = H_, W = W_, O = O_, OH = OH_, OW = OW_, G = G_, KH = KH_, KW = KW_;
    static const int CG = C / G, OG = O / G;
    static const int SW = SW_, DW = DW_, PH = PH_, PW = PW_;
    static const bool LAST = LAST_;
    static __device__ __forceinline__ u64 x(int n, int g, int c, int h, int w) {
        return LAST ? (((u64)n * H + h) * W + w) * C + g * CG + c : (((u64)n * C + g * CG + c) * H + h) * W + w;
    }
    static __device__ __forceinline__ u64 y(int n, int g, int o, int i, int j) {
        return LAST ? (((u64)n * OH + i) * OW + j) * O + g * OG + o : (((u64)n * O + g * OG + o) * OH + i) * OW + j;
    }
    static __device__ __forceinline__ u64 k(int g, int o, int c, int p, int q) {
        return LAST ? ((((u64)g * OG + o) * KH + p) * KW + q) * CG + c : ((((u64)g * OG + o) * CG + c) * KH + p) * KW + q;
    }
    // tap is where the r-th of a filter's numbers lies that is of channel r / (KH*KW), and so on.
    static __device__ __forceinline__ u64 tap(int g, int o, int r) { return k(g, o, r / (KH * KW), r / KW % KH, r % KW); }
    static __device__ __forceinline__ int h(int i, int p) { return i * SH_ + p * DH_ - PH_; }
    static __device__ __forceinline__ int w(int j, int q) { return j * SW_ + q * DW_ - PW_; }
    // in reads the input under tap (p, q) of output (i, j), 0 from the padding.
    template <class E> static __device__ __forceinline__ float in(const E *from, int n, int g, int c, int i, int j, int p, int q) {
        const int at = h(i, p), along = w(j, q);
        return at >= 0 && at < H && along >= 0 && along < W ? (float)from[x(n, g, c, at, along)] : 0.f;
    }
    // out reads the output whose tap (p, q) is input (at, along), 0 where there is none.
    template <class E> static __device__ __forceinline__ float out(const E *from, int n, int g, int o, int at, int along, int p, int q) {
        const int i = at + PH_ - p * DH_, j = along + PW_ - q * DW_;
        if (i < 0 || j < 0 || i % SH_ != 0 || j % SW_ != 0 || i / SH_ >= OH || j / SW_ >= OW) return 0.f;
        return from[y(n, g, o, i / SH_, j / SW_)];
    }
};

// y: filters by what lies under them.
template <class T, bool BIAS, bool RELU, class X, class Y, class V, class O> struct Conv {
    static const int BATCH = T::G, M = T::OG, N = T::N * T::OH * T::OW, K = T::CG * T::KH * T::KW;
    static const bool alongK = true, alongN = true;
    const X *x;
    const Y *w;
    const V *bias;
    O *y;
    __device__ __forceinline__ float a(int g, int m, int k) const { return w[T::tap(g, m, k)]; }
    __device__ __forceinline__ float b(int g, int k, int n) const {
        return T::in(x, n / (T::OH * T::OW), g, k / (T::KH * T::KW), n / T::OW % T::OH, n % T::OW, k / T::KW % T::KH, k % T::KW);
    }
    __device__ __forceinline__ void store(int g, int m, int n, float v) const { y[T::y(n / (T::OH * T::OW), g, m, n / T::OW % T::OH, n % T::OW)] = O(v); }
    __device__ __forceinline__ float epilogue(float v, int g, int m, int) const {
        if (BIAS) v += bias[g * M + m];
        return RELU ? relu(v) : v;
    }
};

// dx: filters, transposed, by the dy that each input had a part in.
template <class T, class X, class Y, class O> struct ConvGradX {
    static const int BATCH = T::G, M = T::CG, N = T::N * T::H * T::W, K = T::OG * T::KH * T::KW;
    static const bool alongK = false, alongN = true;
    const X *w;
    const Y *dy;
    O *dx;
    __device__ __forceinline__ float a(int g, int m, int k) const {
        return w[T::k(g, k / (T::KH * T::KW), m, k / T::KW % T::KH, k % T::KW)];
    }
    __device__ __forceinline__ float b(int g, int k, int n) const {
        return T::out(dy, n / (T::H * T::W), g, k / (T::KH * T::KW), n / T::W % T::H, n % T::W, k / T::KW % T::KH, k % T::KW);
    }
    __device__ __forceinline__ void store(int g, int m, int n, float v) const { dx[T::x(n / (T::H * T::W), g, m, n / T::W % T::H, n % T::W)] = O(v); }
    __device__ __forceinline__ float epilogue(float v, int, int, int) const { return v; }
};

// dw: dy by what lies under it.
template <class T, class X, class Y, class O> struct ConvGradW {
    static const int BATCH = T::G, M = T::OG, N = T::CG * T::KH * T::KW, K = T::N * T::OH * T::OW;
    static const bool alongK = true, alongN = false;
    const X *x;
    const Y *dy;
    O *dw;
    __device__ __forceinline__ float a(int g, int m, int k) const { return dy[T::y(k / (T::OH * T::OW), g, m, k / T::OW % T::OH, k % T::OW)]; }
    __device__ __forceinline__ float b(int g, int k, int n) const {
        return T::in(x, k / (T::OH * T::OW), g, n / (T::KH * T::KW), k / T::OW % T::OH, k % T::OW, n / T::KW % T::KH, n % T::KW);
    }
    __device__ __forceinline__ void store(int g, int m, int n, float v) const { dw[T::tap(g, m, n)] = O(v); }
    __device__ __forceinline__ float epilogue(float v, int, int, int) const { return v; }
};

// addParts adds up S parts in order, N numbers of each for out and then M for more. A block has X of the numbers; neighbours lie together.
template <int X, int S, u64 N, u64 M> __device__ __forceinline__ void addParts(const float *parts, float *out, float *more) {
    const int Y = 256 / X;
    __shared__ float rows[Y][X];
    const int x = threadIdx.x % X, y = threadIdx.x / X;
    const u64 i = (u64)blockIdx.x * X + x;
    float sum = 0.f;
    if (i < N + M)
#pragma unroll 8
        for (int s = y; s < S; s += Y) sum += parts[s * (N + M) + i];
    rows[y][x] = sum;
    __syncthreads();
    if (y > 0 || i >= N + M) return;
#pragma unroll
    for (int r = 1; r < Y; r++) sum += rows[r][x];
    if (M == 0 || i < N) out[i] = sum;
    else more[i - N] = sum;
}
