// The gradient of a convolution by its filters on the tensor cores, in TF32, with channels last and strides and dilations of 1: what lies beneath
// dy, pixel by pixel, times dy. As both have their channels together, neither lies along the pixels that are summed over, as a library's
// instructions want it; but fragments of 16 x 8 numbers can be put together from any order. T is a Geometry. S parts are made, which another
// kernel adds up in order.
//
// Sums go over all pixels of all images, so operands are rounded to nearest: cutting off their last bits, as the tensor cores would, adds up.

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
