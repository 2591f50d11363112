// What every kernel builds on: vectors of 1 or 4 numbers a thread, ir's scalar functions where C++ has none that mean the same, and what
// a run writes for its kernels to read.

typedef unsigned int u32;
typedef unsigned long long u64;

// Runtime is what differs from run to run; see control.go, which has the same.
struct Runtime {
    u64 key, first;
};

const u32 warp = 0xffffffff; // all lanes

// Halves: numbers that lie in memory as 16 bits. Whoever computes converts them to float32, and rounds to nearest, ties to even, to store one.
struct bf16 {
    unsigned short bits;
    bf16() = default;
    __device__ __forceinline__ explicit bf16(float x) {
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
        const u32 b = __float_as_uint(x);
        bits = x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
#endif
    }
    __device__ __forceinline__ operator float() const { return __uint_as_float((u32)bits << 16); }
};

struct f16 {
    unsigned short bits;
    f16() = default;
#ifdef __CUDA_ARCH__
    __device__ __forceinline__ explicit f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
    __device__ __forceinline__ operator float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
#else // what the instructions do, for tests without a card
    explicit f16(float x) {
        const u32 sign = __float_as_uint(x) >> 16 & 0x8000, b = __float_as_uint(x) & 0x7fffffff;
        const float size = __uint_as_float(b);
        if (x != x) bits = 0x7fff;
        else if (size >= 65520.f) bits = sign | 0x7c00;
        else if (size < 0x1p-14f) bits = sign | (__float_as_uint(size + 0.5f) - __float_as_uint(0.5f));
        else bits = sign | ((b + 0xfff + (b >> 13 & 1)) >> 13) - (112 << 10);
    }
    operator float() const {
        const u32 e = bits >> 10 & 31, m = bits & 1023, sign = (u32)(bits & 0x8000) << 16;
        if (e == 0) return (sign ? -1.f : 1.f) * m * 0x1p-24f;
        return __uint_as_float(sign | (e == 31 ? 255 : e + 112) << 23 | m << 13);
    }
#endif
};

// Wide is four elements of so many bytes.
template <int SIZE> struct Wide;
template <> struct Wide<4> {
    using type = uint4;
};
template <> struct Wide<2> {
    using type = uint2;
};

// Vec is V numbers of neighbouring elements.
template <int V> struct Vec {
    float x[V];
};

// load reads V elements that lie S apart.
template <int V, int S, class T> __device__ __forceinline__ Vec<V> load(const T *p) {
    Vec<V> v;
#pragma unroll
    for (int j = 0; j < V; j++) v.x[j] = S == 0 && j > 0 ? v.x[0] : (float)p[j * S];
    return v;
}

// Four elements of type T, and what they are read and written as.
template <class T> union Four {
    T x[4];
    typename Wide<sizeof(T)>::type all;
    __device__ __forceinline__ Four() {}
};

// loadv reads V numbers: fours, which lie S apart and at multiples of their size.
template <int V, int S = 4, class T> __device__ __forceinline__ Vec<V> loadv(const T *p) {
    Vec<V> v;
    if constexpr (V % 4 == 0) {
        Four<T> f[V / 4];
#pragma unroll
        for (int k = 0; k < V / 4; k++) f[k].all = ((const Four<T> *)(p + k * S))->all;
#pragma unroll
        for (int j = 0; j < V; j++) v.x[j] = (float)f[j / 4].x[j % 4];
    } else {
        v.x[0] = (float)*p;
    }
    return v;
}

template <int V, int S = 4, class T> __device__ __forceinline__ void storev(T *p, const Vec<V> &v) {
    if constexpr (V % 4 == 0) {
        Four<T> f[V / 4];
#pragma unroll
        for (int j = 0; j < V; j++) f[j / 4].x[j % 4] = T(v.x[j]);
#pragma unroll
        for (int k = 0; k < V / 4; k++) ((Four<T> *)(p + k * S))->all = f[k].all;
    } else {
        *p = T(v.x[0]);
    }
}

// index is at, at+s, ...: the indices along an axis.
template <int V, int S> __device__ __forceinline__ Vec<V> index(u64 at) {
    Vec<V> v;
#pragma unroll
    for (int j = 0; j < V; j++) v.x[j] = (float)(at + j * S);
    return v;
}

// NaN where either is.
__device__ __forceinline__ float largest(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float smallest(float a, float b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float relu(float x) { return x < 0.f ? 0.f : x; }
__device__ __forceinline__ float sign(float x) { return x > 0.f ? 1.f : x < 0.f ? -1.f : x; }
__device__ __forceinline__ float square(float x) { return x * x; }
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

// Turn is when a kernel comes, which may have been launched before what is before it in the stream was done. It waits for that first, and then
// lets the next kernel be launched; or, late, where it needs nothing of the kernels beside which it runs, it waits for them at its end, so that
// whoever waits for it waits for them too.
struct Turn {
    const bool late;
    __device__ __forceinline__ explicit Turn(bool late) : late(late) {
#if __CUDA_ARCH__ >= 900
        if (!late) await();
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    }
#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ ~Turn() {
        if (late) await();
    }
    static __device__ __forceinline__ void await() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif
};

// carry copies N words, of which either side may be the host's memory.
template <u32 N> __device__ __forceinline__ void carry(const u32 *from, u32 *to) {
    for (u32 i = threadIdx.x; i < N; i += 256) to[i] = *(const volatile u32 *)(from + i);
}

// fault notes an index out of range. The word of a step ends with the first such index and its value.
__device__ __forceinline__ void fault(u64 *word, u32 at, int value) {
    atomicMin(word, (u64)at << 32 | (u32)value);
}
