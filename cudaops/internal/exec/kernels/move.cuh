// Moving elements, whatever they are: 32 bits in the guise of a u32.

template <int V> __device__ __forceinline__ void movev(u32 *to, const u32 *from) {
    if constexpr (V == 4) *(uint4 *)to = *(const uint4 *)from;
    else *to = *from;
}

// transpose goes through tiles of 32 x 32: read along one dimension, written along another, both in whole lines. f.from(z) and f.to(z)
// are where the plane z of the other dimensions lies; in a plane element (a, b) is read at a + b*SB and written at a*SA + b.
template <class I, I NA, I NB, I SB, I SA, class F> __device__ __forceinline__ void transpose(const F &f, u32 *to, const u32 *from) {
    __shared__ u32 tile[32][33];
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
template <u64 N, u64 W, int ROWS, int V> __device__ __forceinline__ void gather(const u32 *table, const int *indices, u32 *out, u64 *word) {
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
    for (int j = 0; j < V; j++) out[i + j] = 0;
}

// scatterAdd: a warp makes 32*K columns of a row of the result. It goes through all N indices in order, 128 at a time, and adds the rows
// that are its own.
template <u64 N, u64 W, int ROWS, int K> __device__ __forceinline__ void scatterAdd(const int *indices, const float *rows, float *out, u64 *word) {
    const u64 chunks = (W + 32 * K - 1) / (32 * K);
    const u64 item = (u64)blockIdx.x * 8 + threadIdx.x / 32;
    if (item >= ROWS * chunks) return;
    const int own = item / chunks;
    const u64 column = item % chunks * 32 * K + threadIdx.x % 32;
    const u32 lane = threadIdx.x % 32;
    float sum[K];
#pragma unroll
    for (int k = 0; k < K; k++) sum[k] = 0.f;
    for (u64 base = 0; base < N; base += 128) {
        u32 hits[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const u64 n = base + q * 32 + lane;
            const int v = n < N ? indices[n] : own - 1;
            if (item == 0 && n < N && (u32)v >= (u32)ROWS) fault(word, (u32)n, v);
            hits[q] = __ballot_sync(warp, n < N && v == own);
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            for (u32 m = hits[q]; m != 0; m &= m - 1) {
                const float *row = rows + (base + q * 32 + __ffs(m) - 1) * W + column;
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (column + k * 32 < W) sum[k] += row[k * 32];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++)
        if (column + k * 32 < W) out[own * W + column + k * 32] = sum[k];
}

// check passes N indices on; one that is not in 0..bound-1 and not to be ignored is noted.
template <u64 N> __device__ __forceinline__ void check(const int *in, int *out, u64 *word, int bound, int ignore) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= N) return;
    const int v = in[i];
    out[i] = v;
    if ((v < 0 || v >= bound) && v != ignore) fault(word, (u32)i, v);
}
