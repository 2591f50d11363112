// Convolutions of images of one channel, with channels last, which the speed of memory limits. A thread goes along SEG pixels of a row of output, for
// four of the output's channels; neighbours have the channels beside them. T is a Geometry.
template <class T, int SEG> struct Single {
    static const int QUADS = T::O / 4, ROWS = 256 / QUADS; // segments at a time, of a block
    static const int PARTS = (T::OW + SEG - 1) / SEG;
    static const u64 ALL = (u64)T::N * T::OH * PARTS;
    static const bool SLIDES = T::SW == 1 && T::DW == 1;

    // under moves a window of x to column j of row i, from the one before unless it is the first.
    static __device__ __forceinline__ void under(float (&win)[T::KH][T::KW], const float *x, int n, int i, int j, bool first) {
#pragma unroll
        for (int p = 0; p < T::KH; p++)
#pragma unroll
            for (int q = 0; q < T::KW; q++)
                win[p][q] = SLIDES && q < T::KW - 1 && !first ? win[p][q + 1] : T::in(x, n, 0, 0, i, j, p, q);
    }
    // below adds up what the block's threads have of each channel.
    template <class F> static __device__ __forceinline__ void below(const float (&mine)[4], F put) {
        __shared__ float rows[ROWS][T::O];
        const int first = threadIdx.x / QUADS;
        __syncthreads();
        if (first < ROWS)
#pragma unroll
            for (int k = 0; k < 4; k++) rows[first][threadIdx.x % QUADS * 4 + k] = mine[k];
        __syncthreads();
        for (int o = threadIdx.x; o < T::O; o += 256) {
            float sum = rows[0][o];
#pragma unroll
            for (int i = 1; i < ROWS; i++) sum += rows[i][o];
            put(o, sum);
        }
    }
    template <bool BIAS, bool RELU> static __device__ __forceinline__ void forward(const float *x, const float *w, const float *bias, float *y) {
        const int quad = threadIdx.x % QUADS;
        const u64 at = (u64)blockIdx.x * ROWS + threadIdx.x / QUADS;
        if (threadIdx.x >= QUADS * ROWS || at >= ALL) return;
        const int n = at / (T::OH * PARTS), i = at / PARTS % T::OH, j0 = at % PARTS * SEG;
        float f[T::KH * T::KW][4];
        Vec<4> b = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if constexpr (BIAS) b.x[k] = bias[quad * 4 + k];
#pragma unroll
            for (int r = 0; r < T::KH * T::KW; r++) f[r][k] = w[T::tap(0, quad * 4 + k, r)];
        }
        float win[T::KH][T::KW];
#pragma unroll 4
        for (int j = j0; j < j0 + SEG; j++) {
            if (T::OW % SEG != 0 && j >= T::OW) break;
            under(win, x, n, i, j, j == j0);
            Vec<4> v = b;
#pragma unroll
            for (int r = 0; r < T::KH * T::KW; r++)
#pragma unroll
                for (int k = 0; k < 4; k++) v.x[k] += win[r / T::KW][r % T::KW] * f[r][k];
            if constexpr (RELU)
#pragma unroll
                for (int k = 0; k < 4; k++) v.x[k] = relu(v.x[k]);
            storev<4>(y + T::y(n, 0, quad * 4, i, j), v);
        }
    }
    // gradient makes part blockIdx.x, of S, of dw. MASK: dy is 0 where mask is 0 or less. SUMS: and then of the sums of dy.
    template <int S, bool MASK, bool SUMS> static __device__ __forceinline__ void gradient(const float *x, const float *dy, const float *mask, float *parts) {
        const int quad = threadIdx.x % QUADS, first = threadIdx.x / QUADS;
        float acc[T::KH * T::KW][4] = {};
        Vec<4> sum = {};
        for (u64 at = (u64)blockIdx.x * ROWS + first; first < ROWS && at < ALL; at += S * ROWS) {
            const int n = at / (T::OH * PARTS), i = at / PARTS % T::OH, j0 = at % PARTS * SEG;
            float win[T::KH][T::KW];
#pragma unroll 4
            for (int j = j0; j < j0 + SEG; j++) {
                if (T::OW % SEG != 0 && j >= T::OW) break;
                Vec<4> v = loadv<4>(dy + T::y(n, 0, quad * 4, i, j));
                if constexpr (MASK) {
                    const Vec<4> m = loadv<4>(mask + T::y(n, 0, quad * 4, i, j));
#pragma unroll
                    for (int k = 0; k < 4; k++) v.x[k] = m.x[k] <= 0.f ? 0.f : v.x[k];
                }
#pragma unroll
                for (int k = 0; k < 4; k++) sum.x[k] += v.x[k];
                under(win, x, n, i, j, j == j0);
#pragma unroll
                for (int r = 0; r < T::KH * T::KW; r++)
#pragma unroll
                    for (int k = 0; k < 4; k++) acc[r][k] += win[r / T::KW][r % T::KW] * v.x[k];
            }
        }
        const int N = T::O * T::KH * T::KW;
        float *out = parts + (u64)blockIdx.x * (N + (SUMS ? T::O : 0));
#pragma unroll
        for (int r = 0; r < T::KH * T::KW; r++)
            below(acc[r], [&](int o, float v) { out[T::tap(0, o, r)] = v; });
        if constexpr (SUMS) below(sum.x, [&](int o, float v) { out[N + o] = v; });
    }
};
