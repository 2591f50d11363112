// Collectives of float32 between cards that write into each other's memory. Go puts the constants world, channels and threads
// before this; the package's doc says how ranks keep in step.

typedef unsigned int u32;
typedef unsigned long long u64;

// Post begins the memory of a rank that others write to. Behind it are the letters, by the last bit of their numbers, sender and channel.
struct Post {
    u32 come[channels][32]; // by channel and sender: the number of the last letter that has come
    u32 turns[channels];    // of the last letter that was sent; only its own rank looks
};

// Work is a collective on n numbers. Of those every rank owns a range: all the same one, one rank everything, or each a share.
struct Work {
    float *x;
    u64 n, share;
    int owner;  // a rank, or one of the below
    u32 piece;  // how many numbers of a range a letter has
    int sum;    // whether owners sum what all ranks have
    int spread; // and whether they tell the others
    u32 blocks; // how many do it
};
enum { everyone = -1, shares = -2 };

// Piece is neighbouring numbers.
struct Piece {
    u64 at;
    u32 n;
};

__device__ __forceinline__ u64 least(u64 a, u64 b) { return a < b ? a : b; }

// owned is piece i of what a rank owns.
__device__ __forceinline__ Piece owned(const Work &w, int r, u64 i) {
    u64 lo = 0, hi = w.n;
    if (w.owner == shares) {
        lo = least(r * w.share, w.n);
        hi = least(lo + w.share, w.n);
    } else if (w.owner != everyone && w.owner != r) {
        hi = 0;
    }
    lo = least(lo + i * w.piece, hi);
    return {lo, (u32)least(hi - lo, w.piece)};
}

__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// several is how many numbers or vectors of each rank a thread has on their way at once.
const int several = world <= 2 ? 4 : world <= 4 ? 2 : 1;

// copies writes n numbers, or vectors, to some places, of which none may be 0.
template <class T, int N> __device__ __forceinline__ void copies(float *const (&to)[N], const float *from, u32 n) {
    for (u32 first = threadIdx.x; first < n; first += several * threads) {
        T v[several];
#pragma unroll
        for (int k = 0; k < several; k++)
            if (first + k * threads < n) v[k] = ((const T *)from)[first + k * threads];
#pragma unroll
        for (int k = 0; k < several; k++) {
            if (first + k * threads >= n) break;
#pragma unroll
            for (int p = 0; p < N; p++)
                if (to[p]) ((T *)to[p])[first + k * threads] = v[k];
        }
    }
}

// sums writes to x the sum of what lies at some places, in their order.
template <class T> __device__ __forceinline__ void sums(float *x, const float *const (&from)[world], u32 n) {
    for (u32 first = threadIdx.x; first < n; first += several * threads) {
        T v[several][world];
#pragma unroll
        for (int k = 0; k < several; k++) {
            if (first + k * threads >= n) break;
#pragma unroll
            for (int r = 0; r < world; r++) v[k][r] = ((const T *)from[r])[first + k * threads];
        }
#pragma unroll
        for (int k = 0; k < several; k++) {
            if (first + k * threads >= n) break;
#pragma unroll
            for (int r = 1; r < world; r++) v[k][0] = plus(v[k][0], v[k][r]);
            ((T *)x)[first + k * threads] = v[k][0];
        }
    }
}

// Channel is a block's way to the same block on the other cards.
struct Channel {
    int rank;
    Post *posts[world];
    const volatile u32 *stop; // 1 ends what waits; in the host's memory, which is far
    u64 room;                 // of a letter
    bool aligned;             // letters may be moved as vectors
    u32 turn;                 // the number of the letters that are on their way
    int *stopped;             // shared by the block

    __device__ __forceinline__ float *letter(int to, int from) const {
        return (float *)(posts[to] + 1) + (((turn & 1) * world + from) * channels + blockIdx.x) * room;
    }

    // copy writes a piece of x to some places.
    template <int N> __device__ __forceinline__ void copy(float *const (&to)[N], const float *from, u32 n) const {
        const u32 whole = aligned ? n / 4 * 4 : 0;
        if (whole) copies<float4>(to, from, whole / 4);
        float *rest[N];
#pragma unroll
        for (int p = 0; p < N; p++) rest[p] = to[p] ? to[p] + whole : 0;
        copies<float>(rest, from + whole, n - whole);
    }

    // post writes to each other rank what it owns, or to all of them what this one owns.
    __device__ __forceinline__ void post(const Work &w, u64 i, bool own) const {
        if (own || w.owner == everyone) {
            const Piece mine = owned(w, rank, i);
            float *to[world];
#pragma unroll
            for (int p = 0; p < world; p++) to[p] = p == rank ? 0 : letter(p, rank);
            copy(to, w.x + mine.at, mine.n);
            return;
        }
#pragma unroll
        for (int p = 0; p < world; p++) {
            if (p == rank) continue;
            const Piece its = owned(w, p, i);
            float *const to[1] = {letter(p, rank)};
            copy(to, w.x + its.at, its.n);
        }
    }

    // meet tells the others that their letters have come, and waits for theirs. It is false when that was stopped.
    __device__ __forceinline__ bool meet() {
        __syncthreads(); // all of the block's letters are written, by which the signal below says so for all
#pragma unroll
        for (int p = 0; p < world; p++) {
            if (p == rank || threadIdx.x != p) continue;
            release(&posts[p]->come[blockIdx.x][rank], turn);
            if (!await(&posts[rank]->come[blockIdx.x][p])) *stopped = 1;
        }
        __syncthreads();
        return !*stopped;
    }

    // await returns when this turn's letter, or a later one, has come.
    __device__ __forceinline__ bool await(const u32 *come) const {
        // To look at stop takes so long for all blocks that the other cards, if they had to wait for that, would have to look too.
        for (u32 looks = 1; (int)(acquire(come) - turn) < 0; looks++) {
            if (looks % 4096) continue;
            if (*stop) return false;
            __nanosleep(100);
        }
        return true;
    }

    __device__ static __forceinline__ void release(u32 *p, u32 x) {
#ifdef __CUDA_ARCH__
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
#else // for tests without a card
        __atomic_store_n(p, x, __ATOMIC_RELEASE);
#endif
    }

    __device__ static __forceinline__ u32 acquire(const u32 *p) {
#ifdef __CUDA_ARCH__
        u32 x;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
        return x;
#else
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
    }
};

// exchange is what the block that is number b of those that do w has to do.
__device__ __forceinline__ void exchange(const Work &w, u32 b, Channel &c) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory"); // it may have been launched early
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    __shared__ int stopped;
    if (threadIdx.x == 0) stopped = 0;
    c.stopped = &stopped;
    c.aligned = (u64)w.x % 16 == 0 && (w.owner != shares || w.share % 4 == 0);
    u32 *const turns = &c.posts[c.rank]->turns[blockIdx.x];
    c.turn = *turns;
    const u64 most = w.owner == shares ? w.share : w.n;
    for (u64 i = b; i * w.piece < most; i += w.blocks) {
        if (w.sum) {
            c.turn++;
            c.post(w, i, false);
            if (!c.meet()) return;
            const Piece mine = owned(w, c.rank, i);
            const float *from[world];
#pragma unroll
            for (int r = 0; r < world; r++) from[r] = r == c.rank ? w.x + mine.at : c.letter(c.rank, r);
            const u32 whole = c.aligned ? mine.n / 4 * 4 : 0;
            if (whole) sums<float4>(w.x + mine.at, from, whole / 4);
#pragma unroll
            for (int r = 0; r < world; r++) from[r] += whole;
            sums<float>(w.x + mine.at + whole, from, mine.n - whole);
        }
        if (w.spread) {
            c.turn++;
            c.post(w, i, true); // each thread has summed what it sends
            if (!c.meet()) return;
#pragma unroll
            for (int r = 0; r < world; r++) {
                if (r == c.rank) continue;
                const Piece its = owned(w, r, i);
                float *const to[1] = {w.x + its.at};
                c.copy(to, c.letter(c.rank, r), its.n);
            }
        }
    }
    __syncthreads(); // all threads have read where the turns began
    if (threadIdx.x == 0) *turns = c.turn;
}
