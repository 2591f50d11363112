// Products by the tensor cores, in TF32: of the operands' mantissas the first 10 bits count, sums are float32. P says what is multiplied and what
// becomes of it: M x K by K x N, BATCH times, strides by row, column and batch of x, y and out; see Product.
//
// A block makes BM x BN results, its warps share them, 32 of k at a time, while the copies of the next ones are under way. S blocks, a cluster,
// make the same results, a part of k each; then each of them adds up some of what all have, in order, from the others' shared memory. So one
// kernel is enough, and the same order of sums comes every time.

// Panel is R rows of x, or columns of y, and 32 of k in shared memory: the way they lie in memory, K saying which of the two is next to each
// other, with gaps by which the reads of a warp come from different banks. SR and SK are strides in memory, ROWS how many there are, EVEN
// whether four at a time lie on 16-byte boundaries, FULL whether k always ends with a panel.
template <int R, bool K, u64 SR, u64 SK, int ROWS, bool EVEN, bool FULL> struct Panel {
    static const int pitch = K ? 32 + 4 : R + 8, size = K ? R * pitch : 32 * pitch;
    static const bool along = K, full = FULL && ROWS % R == 0;
    static __device__ __forceinline__ int at(int r, int k) { return K ? r * pitch + k : k * pitch + r; }
    // load starts copying those from row r0 and from k0 to end, by T threads.
    template <int T> static __device__ __forceinline__ void load(float *to, const float *from, int r0, int k0, int end) {
        const int V = EVEN ? 4 : 1, inner = K ? 32 : R, all = R * 32 / V;
#pragma unroll
        for (int i = 0; i < (all + T - 1) / T; i++) {
            const int e = i * T + (int)threadIdx.x;
            if (all % T != 0 && e >= all) break;
            const int in = e % (inner / V) * V, out = e / (inner / V);
            const int r = K ? out : in, k = K ? in : out;
            int n = V;
            if (!full) {
                const int left = K ? end - k0 - k : ROWS - r0 - r; // of neighbours
                const bool valid = (K ? r0 + r < ROWS : k0 + k < end) && left > 0;
                n = valid ? (left < V ? left : V) : 0;
            }
            fetch<4 * V>(to + at(r, k), n > 0 ? from + (u64)(r0 + r) * SR + (u64)(k0 + k) * SK : from, 4 * n);
        }
    }
};

// Product says everything of a product. Strides of x, y and out by row, column and batch, of mask by row and column; out's by column is 1.
template <int BATCH_, int M_, int N_, int K_, u64 AR_, u64 AC_, u64 AB_, u64 BR_, u64 BC_, u64 BB_, u64 CR_, u64 CB_, u64 MR_, u64 MC_,
          bool EVENA_, bool EVENB_, bool EVENC_, bool EVENM_, bool BIAS_, bool RELU_, bool MASK_, bool SUMS_>
struct Product {
    static const int BATCH = BATCH_, M = M_, N = N_, K = K_;
    static const u64 AR = AR_, AC = AC_, AB = AB_, BR = BR_, BC = BC_, BB = BB_, CR = CR_, CB = CB_, MR = MR_, MC = MC_;
    static const bool EVENA = EVENA_, EVENB = EVENB_, EVENC = EVENC_, EVENM = EVENM_, BIAS = BIAS_, RELU = RELU_, MASK = MASK_, SUMS = SUMS_;
    const float *x, *y, *bias, *mask;
    float *out, *sums;
    __device__ __forceinline__ float finish(float v, int n, float by) const {
        if (BIAS) v += bias[n];
        if (RELU) v = relu(v);
        if (MASK) v = by <= 0.f ? 0.f : v;
        return v;
    }
    template <int V> __device__ __forceinline__ Vec<V> masks(int m, int n) const {
        const float *at = mask + m * MR + n * MC;
        if constexpr (EVENM) return loadv<V>(at);
        else return load<V, MC>(at);
    }
};

// Results are BM x BN of a block of T threads, which lie in its shared memory, and behind them LANES sums of each row of x. Of S blocks of a cluster each
// adds up some of what all have, in order, and stores it.
template <class P, int BM, int BN, int S, int LANES, int T> struct Results {
    static const int pitch = BN + 4, rows = BM * pitch;
    static const int V = P::EVENC ? 4 : 1, all = BM * BN / V, mine = (all + S - 1) / S, each = (mine + T - 1) / T; // fours, or ones
    typedef Vec<V> Masks[P::MASK ? each : 1];
    static __device__ __forceinline__ int at(int m, int n) { return m * pitch + n; }
    // place is where the thread's i-th results lie; false if there are none.
    static __device__ __forceinline__ bool place(int i, int rank, int m0, int n0, int &m, int &n) {
        const int first = i * T + threadIdx.x, e = rank * mine + first;
        m = e / (BN / V), n = e % (BN / V) * V;
        return first < mine && e < all && m0 + m < P::M && n0 + n < P::N;
    }
    // masks reads those of the thread's results, long before they are there.
    static __device__ __forceinline__ void masks(const P &p, Masks &by, int rank, int m0, int n0) {
        if constexpr (P::MASK) {
#pragma unroll
            for (int i = 0, m, n; i < each; i++)
                if (place(i, rank, m0, n0, m, n)) by[i] = p.template masks<V>(m0 + m, n0 + n);
        }
    }
    static __device__ __forceinline__ void store(const P &p, const float *shared, const Masks &by, int rank, int z, int m0, int n0) {
        const int t = threadIdx.x;
        if constexpr (S > 1) meet();
        else __syncthreads();
#pragma unroll
        for (int i = 0, m, n; i < each; i++) {
            if (!place(i, rank, m0, n0, m, n)) continue;
            Vec<V> v = sum<V>(shared + at(m, n));
#pragma unroll
            for (int j = 0; j < V; j++) v.x[j] = p.finish(v.x[j], n0 + n + j, P::MASK ? by[P::MASK ? i : 0].x[j] : 0.f);
            storev<V>(p.out + z * P::CB + (u64)(m0 + m) * P::CR + n0 + n, v);
        }
        if constexpr (P::SUMS) {
            if (n0 == 0 && rank == 0 && t < BM && m0 + t < P::M) {
                float total = 0.f;
#pragma unroll
                for (int l = 0; l < LANES; l++) total += sum<1>(shared + rows + l * BM + t).x[0];
                p.sums[m0 + t] = total;
            }
        }
        if constexpr (S > 1) meet(); // nobody leaves while others read
    }
    // sum adds up what the blocks of the cluster have at an address.
    template <int V> static __device__ __forceinline__ Vec<V> sum(const float *at) {
        if constexpr (S == 1) return loadv<V>(at);
        Vec<V> v[S];
#pragma unroll
        for (int r = 0; r < S; r++) v[r] = loadFrom<V>(other(at, r));
#pragma unroll
        for (int r = 1; r < S; r++)
#pragma unroll
            for (int j = 0; j < V; j++) v[0].x[j] += v[r].x[j];
        return v[0];
    }
};

// Tile is how a product is cut: BM x BN results a block, S blocks a cluster, D stages of copies.
template <class P, int BM, int BN, int S, int D> struct Tile {
    static const int T = 256, WM = BM / 16 < 4 ? BM / 16 : 4, WN = 8 / WM; // warps below and beside each other
    static const int TM = BM / WM / 16, TN = BN / WN / 8;                  // 16 x 8 results of a warp
    static const int unit = P::K % 32 == 0 ? 32 : 8, part = ((P::K + S - 1) / S + unit - 1) / unit * unit; // of k for a block
    static const bool full = P::K % 32 == 0 && part % 32 == 0;
    typedef Panel<BM, P::AC == 1, P::AR, P::AC, P::M, P::EVENA, full> A;
    typedef Panel<BN, P::BR == 1, P::BC, P::BR, P::N, P::EVENB, full> B;
    static const int stage = A::size + B::size;
    static const int lanes = T / BM > 0 ? T / BM : 1; // threads that sum a row of x
    typedef Results<P, BM, BN, S, lanes, T> Sum;

    static __device__ __forceinline__ void run(const P &p, float *shared) {
        const int tilesN = (P::N + BN - 1) / BN;
        const int rank = S > 1 ? blockIdx.x % S : 0, tile = blockIdx.x / S, z = blockIdx.y;
        const int m0 = tile / tilesN * BM, n0 = tile % tilesN * BN;
        const int begin = rank * part, end = begin + part < P::K ? begin + part : P::K;
        const int stages = end > begin ? (end - begin + 31) / 32 : 0;
        const float *x = p.x + z * P::AB, *y = p.y + z * P::BB;
        const int t = threadIdx.x, lane = t % 32, g = lane / 4, q = lane % 4;
        const int wm = t / 32 % WM * (TM * 16), wn = t / 32 / WM * (TN * 8);
        auto load = [&](int s) {
            if (s < stages) {
                float *to = shared + s % D * stage;
                A::template load<T>(to, x, m0, begin + s * 32, end);
                B::template load<T>(to + A::size, y, n0, begin + s * 32, end);
            }
            fetched();
        };
        typename Sum::Masks by;
        Sum::masks(p, by, rank, m0, n0);
        float acc[TM][TN][4] = {};
        float row = 0.f;
        const bool summing = P::SUMS && n0 == 0 && t < BM * lanes;
#pragma unroll
        for (int s = 0; s < D - 1; s++) load(s);
        for (int s = 0; s < stages; s++) {
            await<D - 2>();
            __syncthreads();
            load(s + D - 1);
            const float *a = shared + s % D * stage, *b = a + A::size;
#pragma unroll
            for (int k = 0; k < 32; k += 8) {
                u32 fa[TM][4], fb[TN][2];
#pragma unroll
                for (int i = 0; i < TM; i++) {
                    const int r = wm + i * 16;
                    if constexpr (A::along) matrices<4>(fa[i], a + A::at(r + lane % 16, k + lane / 16 * 4));
                    else
#pragma unroll
                        for (int j = 0; j < 4; j++) fa[i][j] = __float_as_uint(a[A::at(r + g + j % 2 * 8, k + q + j / 2 * 4)]);
                }
#pragma unroll
                for (int i = 0; i < TN; i++) {
                    const int r = wn + i * 8;
                    if constexpr (B::along) matrices<2>(fb[i], b + B::at(r + lane % 8, k + lane / 8 % 2 * 4));
                    else
#pragma unroll
                        for (int j = 0; j < 2; j++) fb[i][j] = __float_as_uint(b[B::at(r + g, k + q + j * 4)]);
                }
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < TN; j++) mma(acc[i][j], fa[i], fb[j]);
            }
            if constexpr (P::SUMS) {
                if (summing)
                    for (int k = t / BM; k < 32; k += lanes) row += a[A::at(t % BM, k)];
            }
        }
        await<0>();
        __syncthreads();
        // The stages' memory is free: the block's part of the results goes there.
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) {
                float *to = shared + Sum::at(wm + i * 16 + g, wn + j * 8 + q * 2);
                *(float2 *)to = make_float2(acc[i][j][0], acc[i][j][1]);
                *(float2 *)(to + 8 * Sum::pitch) = make_float2(acc[i][j][2], acc[i][j][3]);
            }
        if constexpr (P::SUMS) {
            if (t < BM * lanes) shared[Sum::rows + t] = row;
        }
        Sum::store(p, shared, by, rank, z, m0, n0);
    }
};
