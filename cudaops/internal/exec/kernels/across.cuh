// Products on Hopper's tensor cores whose operands both lie across k, as in the gradient of a linear layer's weights, dy' by x: rows of x lie one after the
// other, and so do columns of y, but wgmma takes from shared memory only what lies along k. So x comes by way of registers, where fragments can be put
// together from any order, and y is turned on its way into shared memory. P is a Product. Sums are long, so operands are rounded to nearest: cutting off
// their last bits, as the tensor cores would, adds up.
//
// A block makes 128 x BN results, two groups of four warps half of the rows each, 32 of k at a time. A warp that multiplies waits for most of the time, so a
// third group does everything else: it starts copies of x, D stages, and turns y: a thread reads four of k, one below the other, two stages before it
// writes them as neighbours. S blocks, a cluster, make the same results, a part of k each.
template <class P, int BN, int S, int D> struct Across {
    static const int BM = 128, T = 384, CK = 32;
    static const int part = ((P::K + S - 1) / S + CK - 1) / CK * CK; // of k for a block
    static const int PIECES = (BN + 31) / 32, COLUMN = PIECES * 32, TURNED = CK * COLUMN;
    static const int FULL = 1, EMPTY = 3, DONE = 5; // barriers; those of the two stages of y are two each
    typedef Panel<BM, false, 1, P::AC, P::M, P::EVENA, P::K % CK == 0> X;
    typedef Results<P, BM, BN, S, 1, T> Sum;

    static __device__ __forceinline__ void run(const P &p, float *shared) {
        const int tilesN = (P::N + BN - 1) / BN;
        const int rank = S > 1 ? blockIdx.x % S : 0, tile = blockIdx.x / S, z = blockIdx.y;
        const int m0 = tile / tilesN * BM, n0 = tile % tilesN * BN;
        const int begin = rank * part, end = begin + part < P::K ? begin + part : P::K;
        const int stages = end > begin ? (end - begin + CK - 1) / CK : 0;
        float *turned = shared + D * X::size;
        if (__shfl_sync(warp, threadIdx.x / 128, 0) == 2) {
            prepare(p.x + z * P::AB, p.y + z * P::BB, shared, turned, m0, n0, begin, end, stages);
            await<0>();
            together<T>(DONE);
        } else multiplyAll(shared, turned, stages);
        Sum::store(p, shared, rank, z, m0, n0);
    }

    // prepare is what the third group does: a warp has eight of k in a stage, and all columns of y, a lane every 32nd.
    static __device__ __forceinline__ void prepare(const float *x, const float *y, float *xs, float *turned, int m0, int n0, int begin, int end, int stages) {
        const int t = threadIdx.x % 128, lane = t % 32, first = t / 32 * 8;
        typedef float Columns[2][PIECES][4];
        auto load = [&](int s) {
            if (s < stages) X::template load<128>(xs + s % D * X::size, x, m0, begin + s * CK, end, t);
            fetched();
        };
        auto read = [&](int s, Columns &to) {
            const int k0 = begin + s * CK + first;
            const float *from = y + (u64)k0 * P::BR + n0 + lane;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < PIECES; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int k = h * 4 + j, n = i * 32 + lane;
                        const bool valid = (BN % 32 == 0 || n < BN) && (P::N % BN == 0 || n0 + n < P::N) && (P::K % CK == 0 || k0 + k < end);
                        to[h][i][j] = s < stages && valid ? from[k * P::BR + i * 32] : 0.f;
                    }
        };
        auto turn = [&](int s, const Columns &from) {
            float *to = turned + s % 2 * TURNED + (first / 4 * COLUMN + lane) * 4;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    *(uint4 *)(to + (h * COLUMN + i * 32) * 4) = make_uint4(tf32(from[h][i][0]), tf32(from[h][i][1]), tf32(from[h][i][2]), tf32(from[h][i][3]));
        };
        auto step = [&](int s, Columns &columns) {
            if (s >= 2) together<T>(EMPTY + s % 2); // what was of stage s - 2 is done with
            turn(s, columns);
            read(s + 2, columns);
            load(s + D - 2);
            await<D - 2>();
            written();
            arrive<T>(FULL + s % 2);
        };
#pragma unroll
        for (int s = 0; s < D - 2; s++) load(s);
        Columns even, odd;
        read(0, even);
        read(1, odd);
        for (int s = 0; s < stages; s += 2) {
            step(s, even);
            if (s + 1 < stages) step(s + 1, odd);
        }
    }

    // multiplyAll is what the two other groups do; their part of the results goes to shared memory, when all is done with the stages.
    static __device__ __forceinline__ void multiplyAll(float *shared, const float *turned, int stages) {
        const int t = threadIdx.x, g = t % 32 / 4, q = t % 4, row = t / 32 * 16 + g;
        float acc[PIECES][16] = {};
        float low = 0.f, high = 0.f; // sums of two rows of x
        for (int s = 0; s < stages; s++) {
            together<T>(FULL + s % 2);
            const float *x = shared + s % D * X::size;
            u32 a[CK / 8][4];
#pragma unroll
            for (int k = 0; k < CK / 8; k++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float v = x[X::at(row + j % 2 * 8, k * 8 + q + j / 2 * 4)];
                    if constexpr (P::SUMS) (j % 2 ? high : low) += v;
                    a[k][j] = tf32(v);
                }
            const u64 b = described<COLUMN * 16>(turned + s % 2 * TURNED);
            multiplying();
#pragma unroll
            for (int k = 0; k < CK / 8; k++)
#pragma unroll
                for (int i = 0; i < PIECES; i++) multiply(acc[i], a[k], b + k * 2 * COLUMN + i * 32);
            committed();
            multiplied();
            if (s + 2 < stages) arrive<T>(EMPTY + s % 2);
        }
        together<T>(DONE);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const int n = i * 32 + j / 4 * 8 + q * 2;
                if (n < BN) *(float2 *)(shared + Sum::at(row + j / 2 % 2 * 8, n)) = make_float2(acc[i][j], acc[i][j + 1]);
            }
        if constexpr (P::SUMS) {
#pragma unroll
            for (int d = 1; d < 4; d *= 2) {
                low += __shfl_xor_sync(warp, low, d);
                high += __shfl_xor_sync(warp, high, d);
            }
            if (q == 0) shared[Sum::rows + row] = low, shared[Sum::rows + row + 8] = high;
        }
    }
};
