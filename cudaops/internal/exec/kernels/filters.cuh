// Convolutions with channels last for which libraries are slow: the gradient by the filters on tensor cores, and images of a single channel.
// T is a Geometry with LAST. Parts of sums, S of them, are added up by another kernel, in order.

// FilterGradient is dw by the tensor cores, in TF32, for strides and dilations of 1: what lies beneath dy, pixel by pixel, times dy. As both have their
// channels together, neither lies along the pixels that are summed over, as a library's instructions want it; but fragments of 16 x 8 numbers can be
// put together from any order.
//
// A block makes OT x CT channels of all taps, from some of the units: ROWS rows of SEG pixels of one image. Its first four warps take every
// other row, and its last four the rows between; each of them has a quarter of CT. Rows go through rings of pairs in shared memory: a step has a
// pair of rows of dy, and of x one that lies HALO pairs ahead, D pairs under way. A pair of x is used for all rows of dy that it lies beneath.
template <class T, int MT, int SEG, int ROWS, int S, int D> struct FilterGradient {
    static const int OT = MT * 16, CT = 32, TAPS = T::KH * T::KW, HALO = T::KH / 2, WIDE = SEG + T::KW - 1;
    static const int OP = OT + 8, CP = CT + 8; // a pixel's numbers, with gaps by which the reads of a warp come from different banks
    static const int XPAIR = 2 * WIDE * CP, YPAIR = 2 * SEG * OP;
    static const int STRIPS = (T::OW + SEG - 1) / SEG, CHUNKS = (T::OH + ROWS - 1) / ROWS, STEPS = HALO + (ROWS + 1) / 2;

    static __device__ __forceinline__ void run(const float *x, const float *dy, float *parts, float *shared) {
        float *xs = shared, *ys = shared + (HALO + D) * XPAIR;
        const int o0 = blockIdx.y % (T::O / OT) * OT, c0 = blockIdx.y / (T::O / OT) * CT;
        const u64 units = (u64)T::N * STRIPS * CHUNKS;
        const u64 begin = blockIdx.x * units / S, end = (blockIdx.x + 1) * units / S;
        const int total = (int)(end - begin) * STEPS;
        const int t = threadIdx.x, lane = t % 32, g = lane / 4, q = lane % 4, half = t / 128, slice = t / 32 % 4 * 8;
        auto load = [&](int step) {
            if (step < total) {
                const u64 unit = begin + step / STEPS;
                const int s = step % STEPS, n = unit / (STRIPS * CHUNKS);
                const int i0 = unit / STRIPS % CHUNKS * ROWS, j0 = unit % STRIPS * SEG;
                const int last = i0 + ROWS < T::OH ? i0 + ROWS : T::OH;
                float *to = xs + step % (HALO + D) * XPAIR;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int h = T::h(i0, 0) + 2 * s + k;
                    for (int e = t; e < WIDE * (CT / 4); e += 256) {
                        const int at = e / (CT / 4), c = e % (CT / 4) * 4, w = T::w(j0, 0) + at;
                        const bool valid = h >= 0 && h < T::H && w >= 0 && w < T::W;
                        fetch<16>(to + (k * WIDE + at) * CP + c, valid ? x + T::x(n, 0, c0 + c, h, w) : x, valid ? 16 : 0);
                    }
                }
                to = ys + step % D * YPAIR;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int i = i0 + 2 * (s - HALO) + k;
                    for (int e = t; e < SEG * (OT / 4) && s >= HALO; e += 256) {
                        const int at = e / (OT / 4), o = e % (OT / 4) * 4, j = j0 + at;
                        const bool valid = i < last && j < T::OW;
                        fetch<16>(to + (k * SEG + at) * OP + o, valid ? dy + T::y(n, 0, o0 + o, i, j) : dy, valid ? 16 : 0);
                    }
                }
            }
            fetched();
        };
        float acc[T::KH][T::KW][MT][4] = {};
#pragma unroll
        for (int s = 0; s < D - 1; s++) load(s);
        for (int step = 0; step < total; step++) {
            await<D - 2>();
            __syncthreads();
            load(step + D - 1);
            if (step % STEPS < HALO) continue;
            const float *y = ys + step % D * YPAIR + half * SEG * OP + q * OP + g;
            const float *under[T::KH];
#pragma unroll
            for (int p = 0; p < T::KH; p++) {
                const int row = 2 * (step - HALO) + half + p;
                under[p] = xs + row / 2 % (HALO + D) * XPAIR + row % 2 * WIDE * CP + q * CP + slice + g;
            }
#pragma unroll 1
            for (int k = 0; k < SEG; k += 8) {
                u32 a[MT][4];
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < 4; j++) a[m][j] = tf32(y[(k + j / 2 * 4) * OP + m * 16 + j % 2 * 8]);
#pragma unroll
                for (int p = 0; p < T::KH; p++)
#pragma unroll
                    for (int r = 0; r < T::KW; r++) {
                        const u32 b[2] = {tf32(under[p][(k + r) * CP]), tf32(under[p][(k + r + 4) * CP])};
#pragma unroll
                        for (int m = 0; m < MT; m++) mma(acc[p][r][m], a[m], b);
                    }
            }
        }
        await<0>();
        __syncthreads();
        // The last four warps' sums go to the first four.
        float *sums = &acc[0][0][0][0];
        if (half == 1)
#pragma unroll
            for (int i = 0; i < TAPS * MT * 4; i++) shared[i * 128 + t % 128] = sums[i];
        __syncthreads();
        if (half == 1) return;
#pragma unroll
        for (int i = 0; i < TAPS * MT * 4; i++) sums[i] += shared[i * 128 + t];
        float *out = parts + (u64)blockIdx.x * T::O * TAPS * T::C;
#pragma unroll
        for (int p = 0; p < T::KH; p++)
#pragma unroll
            for (int r = 0; r < T::KW; r++)
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < 4; j += 2)
                        *(float2 *)(out + T::k(0, o0 + m * 16 + j / 2 * 8 + g, c0 + slice + q * 2, p, r)) = make_float2(acc[p][r][m][j], acc[p][r][m][j + 1]);
    }
};

// Single is convolutions of images of one channel, which memory's speed limits. A thread goes along rows of output, for four of the output's
// channels; neighbours have the channels beside them.
template <class T> struct Single {
    static const int QUADS = T::O / 4, ROWS = 256 / QUADS; // rows at a time, of a block
    static const bool SLIDES = T::SW == 1 && T::DW == 1;

    // under moves a window of x to column j of row i.
    static __device__ __forceinline__ void under(float (&win)[T::KH][T::KW], const float *x, int n, int i, int j) {
#pragma unroll
        for (int p = 0; p < T::KH; p++)
#pragma unroll
            for (int q = 0; q < T::KW; q++)
                win[p][q] = SLIDES && q < T::KW - 1 && j > 0 ? win[p][q + 1] : T::in(x, n, 0, 0, i, j, p, q);
    }
    template <bool BIAS, bool RELU> static __device__ __forceinline__ void forward(const float *x, const float *w, const float *bias, float *y) {
        const int quad = threadIdx.x % QUADS;
        const u64 row = (u64)blockIdx.x * ROWS + threadIdx.x / QUADS;
        if (threadIdx.x >= QUADS * ROWS || row >= (u64)T::N * T::OH) return;
        const int n = row / T::OH, i = row % T::OH;
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
        for (int j = 0; j < T::OW; j++) {
            under(win, x, n, i, j);
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
    // gradient makes part blockIdx.x, of S, of dw.
    template <int S> static __device__ __forceinline__ void gradient(const float *x, const float *dy, float *parts) {
        const int quad = threadIdx.x % QUADS, first = threadIdx.x / QUADS;
        float acc[T::KH * T::KW][4] = {};
        for (u64 row = (u64)blockIdx.x * ROWS + first; first < ROWS && row < (u64)T::N * T::OH; row += S * ROWS) {
            const int n = row / T::OH, i = row % T::OH;
            float win[T::KH][T::KW];
#pragma unroll 4
            for (int j = 0; j < T::OW; j++) {
                const Vec<4> v = loadv<4>(dy + T::y(n, 0, quad * 4, i, j));
                under(win, x, n, i, j);
#pragma unroll
                for (int r = 0; r < T::KH * T::KW; r++)
#pragma unroll
                    for (int k = 0; k < 4; k++) acc[r][k] += win[r / T::KW][r % T::KW] * v.x[k];
            }
        }
        __shared__ float below[ROWS][T::O];
        float *out = parts + (u64)blockIdx.x * T::O * T::KH * T::KW;
#pragma unroll
        for (int r = 0; r < T::KH * T::KW; r++) {
            __syncthreads();
            if (first < ROWS)
#pragma unroll
                for (int k = 0; k < 4; k++) below[first][quad * 4 + k] = acc[r][k];
            __syncthreads();
            for (int o = threadIdx.x; o < T::O; o += 256) {
                float sum = below[0][o];
#pragma unroll
                for (int i = 1; i < ROWS; i++) sum += below[i][o];
                out[T::tap(0, o, r)] = sum;
            }
        }
    }
};
