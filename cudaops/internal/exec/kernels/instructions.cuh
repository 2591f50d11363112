// Instructions of newer cards that C++ has no words for: asynchronous copies, matrices, clusters of blocks. A host that runs kernels for tests has its own of the same
// names.
#ifdef __CUDA_ARCH__

// blockMemory is the shared memory that a launch asks for.
__device__ __forceinline__ float *blockMemory() {
    extern __shared__ float4 shared[];
    return (float *)shared;
}

// matrices reads N matrices of 8 rows and 4 columns, the address of a row a lane.
template <int N> __device__ __forceinline__ void matrices(u32 *to, const float *row) {
    const u32 at = (u32)__cvta_generic_to_shared(row);
    if constexpr (N == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    else asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void mma(float *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// tf32 rounds to nearest.
__device__ __forceinline__ u32 tf32(float x) {
    u32 r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
// fetch starts copying B bytes, 4 or 16, to shared memory; what is not among the first n becomes 0.
template <int B> __device__ __forceinline__ void fetch(float *to, const float *from, int n) {
    const u32 at = (u32)__cvta_generic_to_shared(to);
    if constexpr (B == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(n) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(n) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void await() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// other is the address of shared memory in another block of the cluster.
__device__ __forceinline__ u32 other(const float *mine, int rank) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((u32)__cvta_generic_to_shared(mine)), "r"(rank));
    return at;
}
template <int V> __device__ __forceinline__ Vec<V> loadFrom(u32 at) {
    Vec<V> v;
    if constexpr (V == 4) asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=f"(v.x[3]) : "r"(at));
    else asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v.x[0]) : "r"(at));
    return v;
}

// Hopper's matrix instructions, wgmma, in TF32: a group of four warps multiplies by what lies in shared memory, while it does something else.

// Matrices in shared memory as wgmma takes them: 8 rows of 4 numbers lie together, the next 8 rows follow, and the next 4 of k are K bytes away.
// Adding to a description moves it, by 4 numbers each. Above its 18 bits an address says which block of a cluster it is.
template <int K> __device__ __forceinline__ u64 described(const float *p) {
    return (u64)(((u32)__cvta_generic_to_shared(p) & 0x3ffff) >> 4) | (u64)(K >> 4) << 16 | (u64)(128 >> 4) << 32;
}
// multiply adds 64 x 8 by 8 x N to c, or sets it, by the four warps of a group.
template <int N> __device__ __forceinline__ void multiply(float *c, u64 a, u64 b, int add) {
    static_assert(N == 32 || N == 64, "columns");
    if constexpr (N == 64)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
            "%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1;\n}"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]),
            "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
            "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
            : "l"(a), "l"(b), "r"(add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1;\n}"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]),
            "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
            : "l"(a), "l"(b), "r"(add));
}
// The same for 32 columns, with a in registers, 16 rows a warp as mma takes them; they stay as they are until it is done.
__device__ __forceinline__ void multiply(float *c, const u32 *a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]),
        "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// Around multiply: what it reads was written by others; its results are its own until it is done.
__device__ __forceinline__ void written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void multiplying() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void committed() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiplied() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// together lets N threads of a block meet at a barrier of a number above 0.
template <int N> __device__ __forceinline__ void together(int barrier) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(N) : "memory"); }

#endif
