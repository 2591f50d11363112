// The gradient of a convolution by its filters on Hopper's tensor cores: what FilterGradient of filters.cuh does, faster. A group of four warps multiplies
// dy, from its registers, by x, which for that has to lie along the pixels: so each pair of rows is turned when it has come, once for each column of
// the taps, since a tap must begin with four pixels that lie together. A block makes 64 x 32 channels of all taps; each group takes every other row.
template <class T, int SEG, int ROWS, int S, int D> struct TurnedGradient {
    static const int OT = 64, CT = 32, TAPS = T::KH * T::KW, HALO = T::KH / 2, WIDE = SEG + T::KW - 1, QUADS = SEG / 4;
    static const int OP = OT + 8; // a pixel's numbers, with a gap by which the reads of a warp come from different banks
    static const int XPAIR = 2 * WIDE * CT, YPAIR = 2 * SEG * OP, COLUMN = CT + 4, ROW = T::KW * QUADS * COLUMN * 4, TD = HALO + 2;
    static const int STRIPS = (T::OW + SEG - 1) / SEG, CHUNKS = (T::OH + ROWS - 1) / ROWS, STEPS = HALO + (ROWS + 1) / 2;

    static __device__ __forceinline__ void run(const float *x, const float *dy, float *parts, float *shared) {
        float *xs = shared, *ys = xs + D * XPAIR, *turned = ys + D * YPAIR;
        const int o0 = blockIdx.y % (T::O / OT) * OT, c0 = blockIdx.y / (T::O / OT) * CT;
        const u64 units = (u64)T::N * STRIPS * CHUNKS;
        const u64 begin = blockIdx.x * units / S, end = (blockIdx.x + 1) * units / S;
        const int total = (int)(end - begin) * STEPS;
        const int t = threadIdx.x, g = t % 32 / 4, q = t % 4, half = __shfl_sync(warp, t / 128, 0), slice = t % 128 / 32 * 16;
        auto load = [&](int step) {
            if (step < total) {
                const u64 unit = begin + step / STEPS;
                const int s = step % STEPS, n = unit / (STRIPS * CHUNKS);
                const int i0 = unit / STRIPS % CHUNKS * ROWS, j0 = unit % STRIPS * SEG;
                const int last = i0 + ROWS < T::OH ? i0 + ROWS : T::OH;
                float *to = xs + step % D * XPAIR;
                for (int e = t; e < 2 * WIDE * (CT / 4); e += 256) {
                    const int at = e / (CT / 4), c = e % (CT / 4) * 4, h = T::h(i0, 0) + 2 * s + at / WIDE, w = T::w(j0, 0) + at % WIDE;
                    const bool valid = h >= 0 && h < T::H && w >= 0 && w < T::W;
                    fetch<16>(to + at * CT + c, valid ? x + T::x(n, 0, c0 + c, h, w) : x, valid ? 16 : 0);
                }
                to = ys + step % D * YPAIR;
                for (int e = t; e < 2 * SEG * (OT / 4) && s >= HALO; e += 256) {
                    const int at = e / (OT / 4), o = e % (OT / 4) * 4, i = i0 + 2 * (s - HALO) + at / SEG, j = j0 + at % SEG;
                    const bool valid = i < last && j < T::OW;
                    fetch<16>(to + at * OP + o, valid ? dy + T::y(n, 0, o0 + o, i, j) : dy, valid ? 16 : 0);
                }
            }
            fetched();
        };
        // turn brings a pair of rows of x into the order [tap's column][4 pixels][channel], which is that of matrices.
        auto turn = [&](int step) {
            const float *from = xs + step % D * XPAIR;
            float *to = turned + step % TD * (2 * ROW);
            for (int e = t; e < 2 * QUADS * CT; e += 256) {
                const int c = e % CT, quad = e / CT % QUADS, row = e / (CT * QUADS);
                float v[T::KW + 3];
#pragma unroll
                for (int i = 0; i < T::KW + 3; i++) v[i] = __uint_as_float(tf32(from[(row * WIDE + quad * 4 + i) * CT + c]));
#pragma unroll
                for (int r = 0; r < T::KW; r++) *(float4 *)(to + row * ROW + ((r * QUADS + quad) * COLUMN + c) * 4) = make_float4(v[r], v[r + 1], v[r + 2], v[r + 3]);
            }
        };
        float acc[TAPS][16] = {};
#pragma unroll
        for (int s = 0; s < D - 1; s++) load(s);
        for (int step = 0; step < total; step++) {
            await<D - 2>();
            __syncthreads();
            turn(step);
            written();
            __syncthreads();
            load(step + D - 1);
            if (step % STEPS < HALO) continue;
            multiplied(); // of the step before
            const float *y = ys + step % D * YPAIR + half * SEG * OP + q * OP + slice + g;
            u32 a[SEG / 8][4];
#pragma unroll
            for (int k = 0; k < SEG / 8; k++)
#pragma unroll
                for (int j = 0; j < 4; j++) a[k][j] = tf32(y[(k * 8 + j / 2 * 4) * OP + j % 2 * 8]);
            multiplying();
#pragma unroll
            for (int p = 0; p < T::KH; p++) {
                const int row = 2 * (step - HALO) + half + p;
                const u64 b = described<COLUMN * 16>(turned + row / 2 % TD * (2 * ROW) + row % 2 * ROW);
#pragma unroll
                for (int k = 0; k < SEG / 8; k++)
#pragma unroll
                    for (int r = 0; r < T::KW; r++) multiply(acc[p * T::KW + r], a[k], b + (r * QUADS + k * 2) * COLUMN);
            }
            committed();
        }
        multiplied();
        await<0>();
        __syncthreads();
        // The second group's sums go to the first one.
        float *sums = &acc[0][0];
        if (half == 1)
#pragma unroll
            for (int i = 0; i < TAPS * 16; i++) shared[i * 128 + t % 128] = sums[i];
        __syncthreads();
        if (half == 1) return;
#pragma unroll
        for (int i = 0; i < TAPS * 16; i++) sums[i] += shared[i * 128 + t];
        float *out = parts + (u64)blockIdx.x * T::O * TAPS * T::C;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int j = 0; j < 16; j += 2)
                *(float2 *)(out + T::k(0, o0 + slice + j / 2 % 2 * 8 + g, c0 + j / 4 * 8 + q * 2, tap / T::KW, tap % T::KW)) =
                    make_float2(acc[tap][j], acc[tap][j + 1]);
    }
};
