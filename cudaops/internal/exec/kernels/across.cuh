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
    typedef Panel<BM, false, 1, P::AC, P::M, P::EVENA, P::K % CK == 0> X;
    typedef Results<P, BM, BN, S, 1, T> Sum;
    static const int OPERANDS = D * X::size + 2 * TURNED, RESULTS = Sum::rows + BM, BARRIERS = OPERANDS > RESULTS ? OPERANDS : RESULTS;

    // Stages are where operands lie, and what part of k goes through there. A warp arrives at a barrier by one of its lanes.
    struct Stages {
        float *x, *y;
        u64 *barriers;
        int begin, end, count;
        __device__ __forceinline__ u64 *full(int s) const { return barriers + s % 2; }
        __device__ __forceinline__ u64 *empty(int s) const { return barriers + 2 + s % 2; }
        static __device__ __forceinline__ void signal(u64 *barrier) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(barrier);
        }
    };

    static __device__ __forceinline__ void run(const P &p, float *shared) {
        const int tilesN = (P::N + BN - 1) / BN;
        const int rank = S > 1 ? blockIdx.x % S : 0, tile = blockIdx.x / S, z = blockIdx.y;
        const int m0 = tile / tilesN * BM, n0 = tile % tilesN * BN;
        const int begin = rank * part, end = begin + part < P::K ? begin + part : P::K;
        const Stages st = {shared, shared + D * X::size, (u64 *)(shared + BARRIERS), begin, end, end > begin ? (end - begin + CK - 1) / CK : 0};
        if (threadIdx.x < 2) prepare(st.full(threadIdx.x), 4), prepare(st.empty(threadIdx.x), 8);
        __syncthreads();
        if (__shfl_sync(warp, threadIdx.x / 128, 0) == 2) make(p.x + z * P::AB, p.y + z * P::BB, st, m0, n0);
        else use(st);
        Sum::store(p, shared, rank, z, m0, n0);
    }

    // make is what the third group does: a warp has eight of k in a stage, and all columns of y, a lane every 32nd.
    static __device__ __forceinline__ void make(const float *x, const float *y, const Stages &st, int m0, int n0) {
        const int t = threadIdx.x % 128, lane = t % 32, first = t / 32 * 8;
        typedef float Columns[2][PIECES][4];
        auto load = [&](int s) {
            if (s < st.count) X::template load<128>(st.x + s % D * X::size, x, m0, st.begin + s * CK, st.end, t);
            fetched();
        };
        auto read = [&](int s, Columns &to) {
            const int k0 = st.begin + s * CK + first;
            const float *from = y + (u64)k0 * P::BR + n0 + lane;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < PIECES; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int k = h * 4 + j, n = i * 32 + lane;
                        const bool valid = (BN % 32 == 0 || n < BN) && (P::N % BN == 0 || n0 + n < P::N) && (P::K % CK == 0 || k0 + k < st.end);
                        to[h][i][j] = s < st.count && valid ? from[k * P::BR + i * 32] : 0.f;
                    }
        };
        auto turn = [&](int s, const Columns &from) {
            float *to = st.y + s % 2 * TURNED + (first / 4 * COLUMN + lane) * 4;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    *(uint4 *)(to + (h * COLUMN + i * 32) * 4) = make_uint4(tf32(from[h][i][0]), tf32(from[h][i][1]), tf32(from[h][i][2]), tf32(from[h][i][3]));
        };
        auto step = [&](int s, Columns &columns) {
            if (s >= 2) await(st.empty(s), s / 2 - 1); // stage s - 2 is done with
            turn(s, columns);
            read(s + 2, columns);
            load(s + D - 2);
            await<D - 2>();
            written();
            st.signal(st.full(s));
        };
#pragma unroll
        for (int s = 0; s < D - 2; s++) load(s);
        Columns even, odd;
        read(0, even);
        read(1, odd);
        for (int s = 0; s < st.count; s += 2) {
            step(s, even);
            if (s + 1 < st.count) step(s + 1, odd);
        }
    }

    // use is what the two other groups do. Their results go to where the stages were.
    static __device__ __forceinline__ void use(const Stages &st) {
        const int t = threadIdx.x, g = t % 32 / 4, q = t % 4, row = t / 32 * 16 + g;
        float acc[PIECES][16] = {};
        float low = 0.f, high = 0.f; // sums of two rows of x
        for (int s = 0; s < st.count; s++) {
            await(st.full(s), s / 2);
            const float *x = st.x + s % D * X::size;
            u32 a[CK / 8][4];
#pragma unroll
            for (int k = 0; k < CK / 8; k++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float v = x[X::at(row + j % 2 * 8, k * 8 + q + j / 2 * 4)];
                    if constexpr (P::SUMS) (j % 2 ? high : low) += v;
                    a[k][j] = tf32(v);
                }
            const u64 b = described<COLUMN * 16>(st.y + s % 2 * TURNED);
            multiplying();
#pragma unroll
            for (int k = 0; k < CK / 8; k++)
#pragma unroll
                for (int i = 0; i < PIECES; i++) multiply(acc[i], a[k], b + k * 2 * COLUMN + i * 32);
            committed();
            multiplied();
            st.signal(st.empty(s));
        }
        together<256>(1);
        float *results = st.x;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const int n = i * 32 + j / 4 * 8 + q * 2;
                if (n < BN) *(float2 *)(results + Sum::at(row + j / 2 % 2 * 8, n)) = make_float2(acc[i][j], acc[i][j + 1]);
            }
        if constexpr (P::SUMS) {
#pragma unroll
            for (int d = 1; d < 4; d *= 2) {
                low += __shfl_xor_sync(warp, low, d);
                high += __shfl_xor_sync(warp, high, d);
            }
            if (q == 0) results[Sum::rows + row] = low, results[Sum::rows + row + 8] = high;
        }
    }
};
