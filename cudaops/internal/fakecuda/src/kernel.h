// CUDA C++ as g++ takes it: what kernels of one-dimensional blocks use. Every kernel NAME gets a bind_NAME, which nvrtc.c writes.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <tuple>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct dim3 { unsigned x, y, z; };
extern "C" {
extern __thread dim3 fakeThread, fakeBlock, fakeGrid, fakeSize;
void fakeBarrier();
void fakeSleep();
const unsigned *fakeExchange(unsigned word);
}
#define threadIdx fakeThread
#define blockIdx fakeBlock
#define gridDim fakeGrid
#define blockDim fakeSize

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class To, class From> static inline To bits(From x) {
	static_assert(sizeof(To) == sizeof(From), "bits of another size");
	To y;
	memcpy(&y, &x, sizeof y);
	return y;
}
static inline float __int_as_float(int x) { return bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return bits<float>(x); }
static inline int __float_as_int(float x) { return bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
template <class T> static inline T __ldg(const T *p) { return *p; }

static inline void __syncthreads() { fakeBarrier(); }
static inline void __nanosleep(unsigned) { fakeSleep(); }
static inline int fakeLane() { return fakeThread.x % 32; }
template <class T> static inline T fakeShuffle(T v, int lane) { return bits<T>(fakeExchange(bits<unsigned>(v))[lane & 31]); }
template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return fakeShuffle(v, lane); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask) { return fakeShuffle(v, fakeLane() ^ mask); }
template <class T> static inline T __shfl_up_sync(unsigned, T v, int d) { int l = fakeLane(); return fakeShuffle(v, l >= d ? l - d : l); }
template <class T> static inline T __shfl_down_sync(unsigned, T v, int d) { int l = fakeLane(); return fakeShuffle(v, l + d < 32 ? l + d : l); }
static inline unsigned __ballot_sync(unsigned, bool p) {
	const unsigned *all = fakeExchange(p);
	unsigned set = 0;
	for (int i = 0; i < 32; i++) set |= all[i] << i;
	return set;
}
static inline void __syncwarp(unsigned = ~0u) { fakeExchange(0); }
template <class T> static inline T atomicMin(T *p, T v) { T old = *p; if (v < old) *p = v; return old; }
template <class T> static inline T atomicAdd(T *p, T v) { T old = *p; *p = old + v; return old; }

#include "instructions.h"

// Bound is a kernel with its arguments, whatever their types are.
struct Bound {
	virtual void call() = 0;
	virtual ~Bound() {}
};
template <class... A> struct Call : Bound {
	void (*kernel)(A...);
	std::tuple<A...> args;
	void call() override { std::apply(kernel, args); }
};
template <class... A, size_t... I> static Bound *bind(void (*kernel)(A...), void **p, std::index_sequence<I...>) {
	auto *c = new Call<A...>;
	c->kernel = kernel;
	c->args = std::tuple<A...>(*(A *)p[I]...);
	return c;
}
template <class... A> static Bound *bind(void (*kernel)(A...), void **p) { return bind(kernel, p, std::index_sequence_for<A...>()); }
extern "C" void call(Bound *b) { b->call(); }
extern "C" void drop(Bound *b) { delete b; }
