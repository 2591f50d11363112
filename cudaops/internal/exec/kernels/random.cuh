// Philox4x32-10, with the bits of package philox.

struct Words {
    u32 x[4];
};

__device__ __forceinline__ Words philox(u64 key, u64 stream, u64 block) {
    u32 a = (u32)block, b = (u32)(block >> 32), c = (u32)stream, d = (u32)(stream >> 32);
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
    for (int i = 0; i < 10; i++) {
        const u64 p = (u64)0xD2511F53u * a, q = (u64)0xCD9E8D57u * c;
        a = (u32)(q >> 32) ^ b ^ k0;
        b = (u32)q;
        c = (u32)(p >> 32) ^ d ^ k1;
        d = (u32)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{a, b, c, d}};
}

__device__ __forceinline__ float unit(u32 word) { return (float)(word >> 8) * 0x1p-24f; }

// uniform makes words at, at+S, ... of the rank's part of a stream, of which a sample has perSample.
template <int V, int S> __device__ __forceinline__ Vec<V> uniform(const Runtime *rt, u64 stream, u64 perSample, u64 at) {
    const u64 key = rt->key, word = rt->first * perSample + at;
    Vec<V> v;
    if constexpr (V == 4 && S == 1) {
        const u32 skip = (u32)word & 3;
        const Words lo = philox(key, stream, word >> 2);
        if (skip == 0) {
#pragma unroll
            for (int j = 0; j < 4; j++) v.x[j] = unit(lo.x[j]);
            return v;
        }
        const Words hi = philox(key, stream, (word >> 2) + 1);
        const u32 w[7] = {lo.x[1], lo.x[2], lo.x[3], hi.x[0], hi.x[1], hi.x[2], 0};
#pragma unroll
        for (int j = 0; j < 4; j++) v.x[j] = unit(skip == 1 ? w[j] : skip == 2 ? w[j + 1] : w[j + 2]);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) {
            const u64 n = word + (u64)j * S;
            const Words w = philox(key, stream, n >> 2);
            const u32 k = (u32)n & 3;
            v.x[j] = unit(k == 0 ? w.x[0] : k == 1 ? w.x[1] : k == 2 ? w.x[2] : w.x[3]);
        }
    }
    return v;
}

// Square is 4 x 4 numbers of a stream: words at, at+1, at+2, at+3, and so on from at+S, at+2*S and at+3*S. All four places are multiples of 4.
struct Square {
    Words rows[4];
    __device__ __forceinline__ Vec<4> column(int p) const {
        Vec<4> v;
#pragma unroll
        for (int j = 0; j < 4; j++) v.x[j] = unit(rows[j].x[p]);
        return v;
    }
};
template <int S> __device__ __forceinline__ Square uniforms(const Runtime *rt, u64 stream, u64 perSample, u64 at) {
    const u64 word = rt->first * perSample + at;
    Square s;
#pragma unroll
    for (int j = 0; j < 4; j++) s.rows[j] = philox(rt->key, stream, (word + (u64)j * S) >> 2);
    return s;
}
