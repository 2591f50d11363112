// The gradient of a convolution by its filters on the tensor cores, in TF32, with channels last and strides and dilations of 1: what lies beneath
// dy, pixel by pixel, times dy. As both have their channels together, neither lies along the pixels that are summed over, as a library's
// instructions want it; but fragments of 16 x 8 numbers can be put together from any order. T is a Geometry. S parts are made, which another
// kernel adds up in order.
//
// Sums go over all pixels of all images, so operands are rounded to nearest: cutting off their last bits, as the tensor cores would, adds up.

// Strips is the work of a block: OT x CT channels of all taps, from some of the units, ROWS rows of SEG pixels of one image each. Its first four warps
// take every other row, and its last four the rows between. Rows go through rings of pairs in shared memory: a step has a pair of rows of dy, and of x
// one that lies HALO pairs ahead. A pair of x is used for all rows of dy that it lies beneath.
template <class T, int OT, int CT, int SEG, int ROWS, int S> struct Strips {
    static const int TAPS = T::KH * T::KW, HALO = T::KH / 2, WIDE = SEG + T::KW - 1;
    static const int STRIPS = (T::OW + SEG - 1) / SEG, CHUNKS = (T::OH + ROWS - 1) / ROWS, STEPS = HALO + (ROWS + 1) / 2;
    static const u64 UNITS = (u64)T::N * STRIPS * CHUNKS;
    // How many rows of a pair are loaded at once. One by one they leave less to compute, which is worth it where a row of x keeps three of four threads
    // busy: with 26 pixels an H200 takes 4 to 7 % less time, and with 10, which need another turn, 1 to 6 % more.
    static const int ATONCE = (256 - WIDE * (CT / 4) % 256) % 256 <= 64 ? 1 : 2;
    const int o0 = blockIdx.y % (T::O / OT) * OT, c0 = blockIdx.y / (T::O / OT) * CT;
    const u64 begin = blockIdx.x * UNITS / S;
    const int total = (int)((blockIdx.x + 1) * UNITS / S - begin) * STEPS;

    // load starts copying what a step has: a pair of rows of x, XP numbers a pixel in shared memory, and one of dy, YP numbers a pixel.
    template <int XP, int YP> __device__ __forceinline__ void load(int step, const float *x, const float *dy, float *xs, float *ys) const {
        if (step < total) {
            const u64 unit = begin + step / STEPS;
            const int s = step % STEPS, n = unit / (STRIPS * CHUNKS);
            const int i0 = unit / STRIPS % CHUNKS * ROWS, j0 = unit % STRIPS * SEG;
            const int last = i0 + ROWS < T::OH ? i0 + ROWS : T::OH;
#pragma unroll
            for (int k = 0; k < 2; k += ATONCE)
                for (int e = threadIdx.x; e < ATONCE * WIDE * (CT / 4); e += 256) {
                    const int at = e / (CT / 4), c = e % (CT / 4) * 4, row = ATONCE == 1 ? 0 : at / WIDE;
                    const int h = T::h(i0, 0) + 2 * s + k + row, w = T::w(j0, 0) + at - row * WIDE;
                    const bool valid = h >= 0 && h < T::H && w >= 0 && w < T::W;
                    fetch<16>(xs + (k * WIDE + at) * XP + c, valid ? x + T::x(n, 0, c0 + c, h, w) : x, valid ? 16 : 0);
                }
#pragma unroll
            for (int k = 0; k < 2; k += ATONCE)
                for (int e = threadIdx.x; e < ATONCE * SEG * (OT / 4) && s >= HALO; e += 256) {
                    const int at = e / (OT / 4), o = e % (OT / 4) * 4, row = ATONCE == 1 ? 0 : at / SEG;
                    const int i = i0 + 2 * (s - HALO) + k + row, j = j0 + at - row * SEG;
                    const bool valid = i < last && j < T::OW;
                    fetch<16>(ys + (k * SEG + at) * YP + o, valid ? dy + T::y(n, 0, o0 + o, i, j) : dy, valid ? 16 : 0);
                }
        }
        fetched();
    }
    // gather adds the N sums of each thread of the last four warps to those of the first four. It is true for these.
    template <int N> static __device__ __forceinline__ bool gather(float *sums, float *shared) {
        const bool first = threadIdx.x < 128;
        await<0>();
        __syncthreads();
        if (!first)
#pragma unroll
            for (int i = 0; i < N; i++) shared[i * 128 + threadIdx.x % 128] = sums[i];
        __syncthreads();
        if (first)
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += shared[i * 128 + threadIdx.x];
        return first;
    }
    // part is where the block's sums go.
    static __device__ __forceinline__ float *part(float *parts) { return parts + (u64)blockIdx.x * T::O * TAPS * T::C; }
};

// Each of four warps has a quarter of CT. D pairs of rows are under way.
template <class T, int MT, int SEG, int ROWS, int S, int D> struct FilterGradient {
    static const int OT = MT * 16, CT = 32, OP = OT + 8, CP = CT + 8; // a pixel's numbers, with gaps by which the reads of a warp come from different banks
    using Work = Strips<T, OT, CT, SEG, ROWS, S>;
    static const int TAPS = Work::TAPS, HALO = Work::HALO, WIDE = Work::WIDE, STEPS = Work::STEPS, XPAIR = 2 * WIDE * CP, YPAIR = 2 * SEG * OP;

    static __device__ __forceinline__ void run(const float *x, const float *dy, float *parts, float *shared) {
        float *xs = shared, *ys = shared + (HALO + D) * XPAIR;
        const Work work;
        const int t = threadIdx.x, lane = t % 32, g = lane / 4, q = lane % 4, half = t / 128, slice = t / 32 % 4 * 8;
        auto load = [&](int step) { work.template load<CP, OP>(step, x, dy, xs + step % (HALO + D) * XPAIR, ys + step % D * YPAIR); };
        float acc[T::KH][T::KW][MT][4] = {};
#pragma unroll
        for (int s = 0; s < D - 1; s++) load(s);
        for (int step = 0; step < work.total; step++) {
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
        if (!Work::template gather<TAPS * MT * 4>(&acc[0][0][0][0], shared)) return;
        float *out = Work::part(parts);
#pragma unroll
        for (int p = 0; p < T::KH; p++)
#pragma unroll
            for (int r = 0; r < T::KW; r++)
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < 4; j += 2)
                        *(float2 *)(out + T::k(0, work.o0 + m * 16 + j / 2 * 8 + g, work.c0 + slice + q * 2, p, r)) = make_float2(acc[p][r][m][j], acc[p][r][m][j + 1]);
    }
};
