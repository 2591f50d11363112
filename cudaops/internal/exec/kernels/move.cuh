// Moving elements, whatever they are: 32 bits in the guise of a u32, or 16 in that of a u16.

typedef unsigned short u16;

template <int V, class T> __device__ __forceinline__ void movev(T *to, const T *from) {
    if constexpr (V == 4) ((Four<T> *)to)->all = ((const Four<T> *)from)->all;
    else *to = *from;
}

// Between types it converts.
template <int V, class T, class F> __device__ __forceinline__ void movev(T *to, const F *from) { storev<V>(to, loadv<V>(from)); }

// transpose goes through tiles of 32 x 32: read along one dimension, written along another, both in whole lines. f.from(z) and f.to(z)
// are where the plane z of the other dimensions lies; in a plane element (a, b) is read at a + b*SB and written at a*SA + b.
template <class I, I NA, I NB, I SB, I SA, class F, class T> __device__ __forceinline__ void transpose(const F &f, T *to, const T *from) {
    __shared__ T tile[32][33];
    const I tiles = (NB + 31) / 32;
    const I a0 = (I)blockIdx.x / tiles * 32, b0 = (I)blockIdx.x % tiles * 32;
    const u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    from += f.from(blockIdx.y);
    to += f.to(blockIdx.y);
#pragma unroll
    for (int i = 0; i < 32; i += 8)
        if (a0 + x < NA && b0 + y + i < NB) tile[y + i][x] = from[a0 + x + (b0 + y + i) * SB];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i += 8)
        if (b0 + x < NB && a0 + y + i < NA) to[(a0 + y + i) * SA + b0 + x] = tile[x][y + i];
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
