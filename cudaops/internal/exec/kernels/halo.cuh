// Convolutions on Hopper's tensor cores, in TF32, with channels last and strides and dilations of 1; and gradients by x, which are convolutions of dy
// by the filters turned round. T is the Geometry of the convolution, GRADX says which of the two.
//
// A block keeps all of BN channels' filters in shared memory. Each half of it, a group of four warps, goes from tile to tile by itself, so that one
// multiplies while the other one writes: ROWS x SEG pixels of output, whose input comes CK channels at a time, D stages under way. In a stage the
// pixels that lie next to each other in a row, WIDE of them with the margin, and the rows after each other, are one sequence, 4 channels of each: so
// what lies under tap (p, q) of all pixels is the same sequence from p*WIDE + q on, and a tap is no more than another address for the tensor cores.
// Between two rows some results are of no use and are left out.

template <class T, bool GRADX, int BN, int ROWS, int SEG, int CK, int D, int BLOCKS, bool BIAS, bool RELU> struct Halo {
    static const int C = GRADX ? T::O : T::C, H = GRADX ? T::OH : T::H, W = GRADX ? T::OW : T::W;   // of the input
    static const int O = GRADX ? T::C : T::O, OH = GRADX ? T::H : T::OH, OW = GRADX ? T::W : T::OW; // of the output
    static const int PH = GRADX ? T::KH - 1 - T::PH : T::PH, PW = GRADX ? T::KW - 1 - T::PW : T::PW;
    static const int TAPS = T::KH * T::KW, WIDE = SEG + T::KW - 1, LINES = ROWS + T::KH - 1;
    static const int TURNS = (ROWS * WIDE - T::KW + 1 + 63) / 64;             // 64 results of each channel
    static const int LAST = TURNS * 64 + (T::KH - 1) * WIDE + T::KW - 1;      // behind the last pixel that is read
    // Four channels of a stage, and of the filters: the next four lie half of the banks further.
    static const int PLANE = ((LAST > LINES * WIDE ? LAST : LINES * WIDE) + 3) / 8 * 8 + 4, PANEL = TAPS * BN + 4;
    static const int STAGE = PLANE * CK, FILTERS = PANEL * C, CHUNKS = C / CK;
    static const int STRIPS = (OW + SEG - 1) / SEG, PARTS = (OH + ROWS - 1) / ROWS;

    static __device__ __forceinline__ u64 in(int n, int c, int h, int w) { return (((u64)n * H + h) * W + w) * C + c; }
    static __device__ __forceinline__ u64 out(int n, int o, int i, int j) { return (((u64)n * OH + i) * OW + j) * O + o; }

    // filters starts copying those of CK channels, by COUNT threads: 4 channels of a tap and of all BN outputs lie together.
    static __device__ __forceinline__ void filters(float *ws, const float *w, int o0, int c0, int first, int count) {
        if constexpr (GRADX) {
            for (int e = first; e < CK * TAPS * BN; e += count) {
                const int o = e % BN, tap = e / BN % TAPS, c = e / (BN * TAPS);
                fetch<4>(ws + (c / 4 * PANEL + tap * BN + o) * 4 + c % 4, w + T::k(0, c0 + c, o0 + o, T::KH - 1 - tap / T::KW, T::KW - 1 - tap % T::KW), 4);
            }
        } else {
            for (int e = first; e < CK / 4 * TAPS * BN; e += count) {
                const int c = e % (CK / 4), tap = e / (CK / 4) % TAPS, o = e / (CK / 4 * TAPS);
                fetch<16>(ws + (c * PANEL + tap * BN + o) * 4, w + T::k(0, o0 + o, c0 + c * 4, tap / T::KW, tap % T::KW), 16);
            }
        }
    }
    static __device__ __forceinline__ void run(const float *x, const float *w, const float *bias, float *y, float *shared) {
        const int group = __shfl_sync(warp, threadIdx.x / 128, 0), t = threadIdx.x % 128, o0 = blockIdx.y * BN;
        float *ws = shared, *xs = shared + FILTERS + group * D * STAGE;
        const u64 tiles = (u64)T::N * PARTS * STRIPS, first = blockIdx.x + group * BLOCKS;
        if (first >= tiles) return;
        const bool both = blockIdx.x + BLOCKS < tiles; // have work: they share that of the filters
        const int total = (int)((tiles - first + 2 * BLOCKS - 1) / (2 * BLOCKS)) * CHUNKS;
        auto load = [&](int step) {
            if (step < total) {
                const u64 tile = first + (u64)(step / CHUNKS) * (2 * BLOCKS);
                const int n = tile / (PARTS * STRIPS), h0 = tile / STRIPS % PARTS * ROWS - PH, w0 = tile % STRIPS * SEG - PW, c0 = step % CHUNKS * CK;
                if (step < CHUNKS) filters(ws + c0 * PANEL, w, o0, c0, both ? threadIdx.x : t, both ? 256 : 128);
                float *to = xs + step % D * STAGE;
                for (int e = t; e < LINES * WIDE * (CK / 4); e += 128) {
                    const int c = e % (CK / 4), at = e / (CK / 4), h = h0 + at / WIDE, j = w0 + at % WIDE;
                    const bool valid = h >= 0 && h < H && j >= 0 && j < W;
                    fetch<16>(to + (c * PLANE + at) * 4, valid ? x + in(n, c0 + c * 4, h, j) : x, valid ? 16 : 0);
                }
            }
            fetched();
        };
        float acc[TURNS][BN / 2];
#pragma unroll
        for (int s = 0; s < D - 1; s++) load(s);
        for (int step = 0; step < total; step++) {
            await<D - 2>();
            written();
            if (both && step < CHUNKS) __syncthreads();
            else together<128>(group + 1);
            const int chunk = step % CHUNKS;
            const u64 a = described<PLANE * 16>(xs + step % D * STAGE), b = described<PANEL * 16>(ws + chunk * CK * PANEL);
            multiplying();
#pragma unroll
            for (int k = 0; k < CK / 4; k += 2)
#pragma unroll
                for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
                    for (int m = 0; m < TURNS; m++)
                        multiply<BN>(acc[m], a + k * PLANE + m * 64 + tap / T::KW * WIDE + tap % T::KW, b + k * PANEL + tap * BN, chunk + k + tap > 0);
            committed();
            load(step + D - 1);
            multiplied();
            if (chunk < CHUNKS - 1) continue;
            const u64 tile = first + (u64)(step / CHUNKS) * (2 * BLOCKS);
            const int n = tile / (PARTS * STRIPS), i0 = tile / STRIPS % PARTS * ROWS, j0 = tile % STRIPS * SEG;
            // A thread has two neighbours of every eight channels. Of sixteen, it swaps with the next one, so that each writes four of the same eight.
            const bool odd = t % 2;
            const int row = t / 32 * 16 + t % 32 / 4, o = o0 + t % 4 / 2 * 4 + (odd ? 8 : 0);
            Vec<4> add[BN / 16] = {};
            if constexpr (BIAS)
#pragma unroll
                for (int k = 0; k < BN / 16; k++) add[k] = loadv<4>(bias + o + k * 16);
#pragma unroll
            for (int m = 0; m < TURNS; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int at = m * 64 + row + half * 8, i = at / WIDE, j = at % WIDE;
                    const bool valid = i < ROWS && j < SEG && i0 + i < OH && j0 + j < OW;
                    float *to = y + out(n, o, i0 + i, j0 + j);
#pragma unroll
                    for (int k = 0; k < BN / 16; k++) {
                        const float l0 = acc[m][k * 8 + half * 2], l1 = acc[m][k * 8 + half * 2 + 1]; // of the lower eight, and of the upper
                        const float u0 = acc[m][k * 8 + half * 2 + 4], u1 = acc[m][k * 8 + half * 2 + 5];
                        const float a = __shfl_xor_sync(warp, odd ? l0 : u0, 1), b = __shfl_xor_sync(warp, odd ? l1 : u1, 1);
                        Vec<4> v = {odd ? a : l0, odd ? b : l1, odd ? u0 : a, odd ? u1 : b};
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            if constexpr (BIAS) v.x[e] += add[k].x[e];
                            if constexpr (RELU) v.x[e] = relu(v.x[e]);
                        }
                        if (valid) storev<4>(to + k * 16, v);
                    }
                }
        }
        await<0>();
    }
};
