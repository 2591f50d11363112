// What every kernel builds on: vectors of 1 or 4 numbers a thread, ir's scalar functions where C++ has none that mean the same, and what
// a run writes for its kernels to read.

typedef unsigned int u32;
typedef unsigned long long u64;

// Runtime is what differs from run to run; see control.go, which has the same.
struct Runtime {
    u64 key, first;
};

const u32 warp = 0xffffffff; // all lanes

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

// loadv reads V neighbours at an address that is a multiple of their size.
template <int V> __device__ __forceinline__ Vec<V> loadv(const float *p) {
    Vec<V> v;
    if constexpr (V == 4) {
        const float4 f = *(const float4 *)p;
        v.x[0] = f.x, v.x[1] = f.y, v.x[2] = f.z, v.x[3] = f.w;
    } else {
        v.x[0] = *p;
    }
    return v;
}

template <int V> __device__ __forceinline__ Vec<V> loadv(const int *p) {
    Vec<V> v;
    if constexpr (V == 4) {
        const int4 f = *(const int4 *)p;
        v.x[0] = (float)f.x, v.x[1] = (float)f.y, v.x[2] = (float)f.z, v.x[3] = (float)f.w;
    } else {
        v.x[0] = (float)*p;
    }
    return v;
}

template <int V> __device__ __forceinline__ void storev(float *p, const Vec<V> &v) {
    if constexpr (V == 4) {
        *(float4 *)p = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
    } else {
        *p = v.x[0];
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

// fault notes an index out of range. The word of a step ends with the first such index and its value.
__device__ __forceinline__ void fault(u64 *word, u32 at, int value) {
    atomicMin(word, (u64)at << 32 | (u32)value);
}
