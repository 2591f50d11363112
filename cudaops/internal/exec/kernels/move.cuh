// Moving elements, whatever they are: 32 bits in the guise of a u32, or 16 in that of a u16.

typedef unsigned short u16;

template <int V, class T> __device__ __forceinline__ void movev(T *to, const T *from) {
    if constexpr (V == 4) ((Four<T> *)to)->all = ((const Four<T> *)from)->all;
    else *to = *from;
}

// Between types it converts.
template <int V, class T, class F> __device__ __forceinline__ void movev(T *to, const F *from) { storev<V>(to, loadv<V>(from)); }

// Transposer is what a block does to transpose: a tile of 32 x 32*L is read along one dimension and written along another, both in whole lines. Element (a, b) is read
// at a + b*SB and written at a*SA + b.
template <int L, class T, class I, I NA, I NB, I SB, I SA> struct Transposer {
    static const I tiles = (NB + 32 * L - 1) / (32 * L);
    T tile[32 * L][33];
    static __device__ __forceinline__ I a0() { return (I)blockIdx.x / tiles * 32; }
    static __device__ __forceinline__ I b0() { return (I)blockIdx.x % tiles * (32 * L); }
    // read gives a thread its 4*L, of which all are under way at once.
    static __device__ __forceinline__ void read(T *v, const T *from) {
        const u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
        const I a = a0() + x, b = b0() + y;
#pragma unroll
        for (int i = 0; i < 4 * L; i++) v[i] = a < NA && b + i * 8 < NB ? from[a + (b + i * 8) * SB] : T(0);
    }
    __device__ __forceinline__ void write(T *to, const T *v) {
        const u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < 4 * L; i++) tile[y + i * 8][x] = v[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 32; i += 8)
#pragma unroll
            for (int j = 0; j < 32 * L; j += 32)
                if (b0() + x + j < NB && a0() + y + i < NA) to[(a0() + y + i) * SA + b0() + x + j] = tile[x + j][y + i];
    }
};

// transpose does that for planes: f.from(z) and f.to(z) are where plane z lies.
template <class I, I NA, I NB, I SB, I SA, class F, class T> __device__ __forceinline__ void transpose(const F &f, T *to, const T *from) {
    __shared__ Transposer<1, T, I, NA, NB, SB, SA> square;
    T v[4];
    square.read(v, from + f.from(blockIdx.y));
    square.write(to + f.to(blockIdx.y), v);
}

// transposeSum does it for a matrix of numbers that is written without gaps, and sums what is in a tile over b: that of tile t goes to sums[t*NA + a]. Where the
// mask is 0 or less, at a + b*SM, a number counts as 0.
template <int L, bool MASK, class I, I NA, I NB, I SB, I SM>
__device__ __forceinline__ void transposeSum(const float *from, const float *mask, float *to, float *sums) {
    typedef Transposer<L, float, I, NA, NB, SB, NB> Tile;
    __shared__ Tile square;
    __shared__ float below[8][32];
    const u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    float v[4 * L], sum = 0.f;
    square.read(v, from);
    if constexpr (MASK) {
        float by[4 * L];
        Transposer<L, float, I, NA, NB, SM, NB>::read(by, mask);
#pragma unroll
        for (int i = 0; i < 4 * L; i++) v[i] = by[i] <= 0.f ? 0.f : v[i];
    }
#pragma unroll
    for (int i = 0; i < 4 * L; i++) sum += v[i];
    below[y][x] = sum;
    square.write(to, v);
    if (y > 0 || Tile::a0() + x >= NA) return;
#pragma unroll
    for (int i = 1; i < 8; i++) sum += below[i][x];
    sums[(I)blockIdx.x % Tile::tiles * NA + Tile::a0() + x] = sum;
}

// gather takes N rows of W elements; an index out of range is noted and gives zeros.
template <u64 N, u64 W, int ROWS, int V, class T, class O>
__device__ __forceinline__ void gather(const T *table, const int *indices, O *out, u64 *word) {
    const u64 i = ((u64)blockIdx.x * 256 + threadIdx.x) * V;
    if (i >= N * W) return;
    const u64 n = i / W, c = i % W;
    const int v = indices[n];
    if ((u32)v < (u32)ROWS) {
        movev<V>(out + i, table + (u64)v * W + c);
        return;
    }
    if (c == 0) fault(word, (u32)n, v);
#pragma unroll
    for (int j = 0; j < V; j++) out[i + j] = O(0);
}

// scatterAdd: a block makes 32*K columns of TILE rows of the result. Its threads go through all N indices together, 1024 at a time, and list
// in order those that are of its rows; when the list is long, and at the end, every warp adds up what is listed for its rows.
template <u64 N, u64 W, int ROWS, int TILE, int K, class T>
__device__ __forceinline__ void scatterAdd(const int *indices, const T *rows, float *out, u64 *word) {
    const int most = 3072;
    __shared__ u32 places[most];
    __shared__ unsigned char whose[most];
    __shared__ u32 found[8];
    const u64 chunks = (W + 32 * K - 1) / (32 * K);
    const int own = blockIdx.x / chunks * TILE;
    const u64 column = blockIdx.x % chunks * 32 * K + threadIdx.x % 32;
    const u32 lane = threadIdx.x % 32, w = threadIdx.x / 32;
    u32 listed = 0;
    bool first = true;
    for (u64 base = 0; base < N || first; base += 1024) {
        int row[4];
        u32 mine = 0;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const u64 n = base + threadIdx.x * 4 + q;
            const int v = n < N ? indices[n] : -1;
            if (blockIdx.x == 0 && n < N && (u32)v >= (u32)ROWS) fault(word, (u32)n, v);
            row[q] = v >= own && v < own + TILE && v < ROWS ? v - own : -1;
            mine += row[q] >= 0;
        }
        // Where in the list this thread's are: after those of the threads before it.
        u32 before = mine;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const u32 x = __shfl_up_sync(warp, before, d);
            if (lane >= d) before += x;
        }
        if (lane == 31) found[w] = before;
        __syncthreads();
        u32 at = listed + before - mine;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            at += i < w ? found[i] : 0;
            listed += found[i];
        }
#pragma unroll
        for (int q = 0; q < 4; q++)
            if (row[q] >= 0) {
                places[at] = (u32)(base + threadIdx.x * 4 + q);
                whose[at++] = row[q];
            }
        __syncthreads();
        if (listed + 1024 <= most && base + 1024 < N) continue;
        for (int r = w; r < TILE && own + r < ROWS; r += 8) {
            float *to = out + (u64)(own + r) * W + column;
            float sum[K];
#pragma unroll
            for (int k = 0; k < K; k++) sum[k] = !first && column + k * 32 < W ? to[k * 32] : 0.f;
            for (u32 i = 0; i < listed; i += 32) {
                for (u32 m = __ballot_sync(warp, i + lane < listed && whose[i + lane] == r); m != 0; m &= m - 1) {
                    const T *from = rows + places[i + __ffs(m) - 1] * W + column;
#pragma unroll
                    for (int k = 0; k < K; k++)
                        if (column + k * 32 < W) sum[k] += (float)from[k * 32];
                }
            }
#pragma unroll
            for (int k = 0; k < K; k++)
                if (column + k * 32 < W) to[k * 32] = sum[k];
        }
        __syncthreads();
        listed = 0;
        first = false;
    }
}

// check passes N indices on; one that is not in 0..bound-1 and not to be ignored is noted.
template <u64 N> __device__ __forceinline__ void check(const int *in, int *out, u64 *word, int bound, int ignore) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= N) return;
    const int v = in[i];
    out[i] = v;
    if ((v < 0 || v >= bound) && v != ignore) fault(word, (u32)i, v);
}
