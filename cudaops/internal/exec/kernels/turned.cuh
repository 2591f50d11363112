// The gradient of a convolution by its filters on Hopper's tensor cores: what FilterGradient of filters.cuh does, faster. A group of four warps multiplies
// dy, from its registers, by x, which for that has to lie along the pixels: so each pair of rows is turned when it has come, once for each column of
// the taps, since a tap must begin with four pixels that lie together. A block makes 64 x 32 channels of all taps; each group takes every other row.
template <class T, int SEG, int ROWS, int S, int D> struct TurnedGradient {
    static const int OT = 64, CT = 32, QUADS = SEG / 4, OP = OT + 8; // a pixel's numbers, with a gap by which the reads of a warp come from different banks
    using Work = Strips<T, OT, CT, SEG, ROWS, S>;
    static const int TAPS = Work::TAPS, HALO = Work::HALO, WIDE = Work::WIDE, STEPS = Work::STEPS, XPAIR = 2 * WIDE * CT, YPAIR = 2 * SEG * OP;
    static const int COLUMN = CT + 4, ROW = T::KW * QUADS * COLUMN * 4, TD = HALO + 2;

    static __device__ __forceinline__ void run(const float *x, const float *dy, float *parts, float *shared) {
        float *xs = shared, *ys = xs + D * XPAIR, *turned = ys + D * YPAIR;
        const Work work;
        const int t = threadIdx.x, g = t % 32 / 4, q = t % 4, half = __shfl_sync(warp, t / 128, 0), slice = t % 128 / 32 * 16;
        auto load = [&](int step) { work.template load<CT, OP>(step, x, dy, xs + step % D * XPAIR, ys + step % D * YPAIR); };
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
        for (int step = 0; step < work.total; step++) {
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
        if (!Work::template gather<TAPS * 16>(&acc[0][0], shared)) return;
        float *out = Work::part(parts);
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int j = 0; j < 16; j += 2)
                *(float2 *)(out + T::k(0, work.o0 + slice + j / 2 % 2 * 8 + g, work.c0 + j / 4 * 8 + q * 2, tap / T::KW, tap % T::KW)) =
                    make_float2(acc[tap][j], acc[tap][j + 1]);
    }
};
