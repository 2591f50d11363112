// The functions of instructions.cuh on a host. What is asynchronous is done as late as it may be: copies when they are awaited, products by a group of
// warps when their end is. So what is used or overwritten too early shows.
#include <deque>
#include <vector>

extern "C" {
void fakeMeet();
void fakeTogether(int barrier, int n);
int fakeRunning();
char *fakeMemory(int block);
const unsigned (*fakeExchangeRow(const unsigned *row))[4];
}
typedef unsigned long long fakeWord;
template <int V> struct Vec;

static inline int fakeRank() { return fakeRunning() / (int)fakeSize.x; }
static inline float *blockMemory() { return (float *)fakeMemory(fakeRank()); }

// A card's tensor cores take the first 10 bits of a mantissa.
static inline float fakeTF32(unsigned x) { return bits<float>(x & ~0x1fffu); }
static inline unsigned tf32(float x) { return (bits<unsigned>(x) + 0x1000) & ~0x1fffu; }

// Pending is what a thread has started: copies, in groups, and products.
struct Pending {
	struct Copy { float *to; const float *from; int bytes, valid; };
	struct Product { float *c; unsigned a[4]; fakeWord x, y; int columns; bool fromMemory, add; };
	std::deque<std::vector<Copy>> copies{1};
	std::vector<Product> products;
};
static inline Pending &fakePending() {
	static thread_local Pending all[4096];
	return all[fakeRunning()];
}

template <int B> static inline void fetch(float *to, const float *from, int n) {
	if ((uintptr_t)to % B || (n && (uintptr_t)from % B)) abort();
	fakePending().copies.back().push_back({to, from, B, n});
}
static inline void fetched() { fakePending().copies.emplace_back(); }
template <int N> static inline void await() {
	for (auto &all = fakePending().copies; (int)all.size() > N + 1; all.pop_front())
		for (auto &c : all.front()) {
			memset(c.to, 0, c.bytes);
			memcpy(c.to, c.from, c.valid);
		}
}

static inline void meet() { fakeMeet(); }
static inline fakeWord other(const float *mine, int rank) { return (fakeWord)(fakeMemory(rank) + ((char *)mine - fakeMemory(fakeRank()))); }
template <int V> static inline Vec<V> loadFrom(fakeWord at) {
	Vec<V> v;
	memcpy(&v, (void *)at, sizeof v);
	return v;
}

// fakeRows are four words of each of a warp's lanes.
typedef const unsigned (*fakeRows)[4];
// fakeA is the number of row and k of a matrix of 16 x 8 that the lanes have, as fragments, together.
static inline float fakeA(fakeRows a, int row, int k) { return fakeTF32(a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]); }

template <int N> static inline void matrices(unsigned *to, const float *row) {
	const fakeWord at = (fakeWord)row;
	const unsigned halves[4] = {(unsigned)at, (unsigned)(at >> 32)};
	const fakeRows all = fakeExchangeRow(halves);
	const int lane = fakeLane();
	for (int i = 0; i < N; i++) {
		const unsigned *from = all[i * 8 + lane / 4];
		memcpy(to + i, (const float *)(from[0] | (fakeWord)from[1] << 32) + lane % 4, 4);
	}
}
static inline void mma(float *c, const unsigned *a, const unsigned *b) {
	const unsigned column[4] = {b[0], b[1]};
	unsigned x[32][4]; // a copy, as what is shown lasts until the exchange after the next
	memcpy(x, fakeExchangeRow(a), sizeof x);
	const fakeRows y = fakeExchangeRow(column);
	const int lane = fakeLane();
	for (int j = 0; j < 4; j++)
		for (int k = 0; k < 8; k++) c[j] += fakeA(x, lane / 4 + j / 2 * 8, k) * fakeTF32(y[(lane % 4 * 2 + j % 2) * 4 + k % 4][k / 4]);
}

// Descriptions are as the card has them, of places in the block's shared memory. fakeAt is the number of row and k of a matrix.
template <int K> static inline fakeWord described(const float *p) {
	const fakeWord at = (char *)p - fakeMemory(fakeRank());
	if (at % 16) abort();
	return at >> 4 | (fakeWord)(K >> 4) << 16 | (fakeWord)(128 >> 4) << 32;
}
static inline float fakeAt(fakeWord d, int row, int k) {
	const fakeWord at = (d & 0x3fff) + k / 4 * (d >> 16 & 0x3fff) + row / 8 * (d >> 32 & 0x3fff) + row % 8;
	unsigned x;
	memcpy(&x, fakeMemory(fakeRank()) + at * 16 + k % 4 * 4, 4);
	return fakeTF32(x);
}
template <int N> static inline void multiply(float *c, fakeWord a, fakeWord b, int add) { fakePending().products.push_back({c, {}, a, b, N, true, add != 0}); }
static inline void multiply(float *c, const unsigned *a, fakeWord b) { fakePending().products.push_back({c, {a[0], a[1], a[2], a[3]}, 0, b, 32, false, true}); }
static inline void written() {}
static inline void multiplying() {}
static inline void committed() {}
static inline void multiplied() {
	const int lane = fakeLane(), slice = fakeThread.x % 128 / 32 * 16;
	for (const auto &p : fakePending().products) {
		const fakeRows a = fakeExchangeRow(p.a);
		for (int j = 0; j < p.columns / 2; j++) {
			const int row = lane / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
			float sum = p.add ? p.c[j] : 0.f;
			for (int k = 0; k < 8; k++) sum += (p.fromMemory ? fakeAt(p.x, slice + row, k) : fakeA(a, row, k)) * fakeAt(p.y, column, k);
			p.c[j] = sum;
		}
	}
	fakePending().products.clear();
}
template <int N> static inline void together(int barrier) { fakeTogether(barrier, N); }
