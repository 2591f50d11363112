extern "C" __global__ void __launch_bounds__(256) copy0(const u32 *from, u32 *to, int late) {
    const Turn turn(late);
    const u32 i = ((u32)blockIdx.x * 256 + threadIdx.x) * 4;
    if (i < 32) movev<4>(to + (i % 8 + i / 8 * 12), from + (i));
}

extern "C" __global__ void __launch_bounds__(256) copy1(const u32 *from, u32 *to, int late) {
    const Turn turn(late);
    const u32 i = ((u32)blockIdx.x * 256 + threadIdx.x) * 1;
    if (i < 16) movev<1>(to + (i % 4 + i / 4 * 12), from + (i % 4 * 4 + i / 4));
}

extern "C" __global__ void __launch_bounds__(256) gather2(const u32 *table, const int *indices, u32 *out, u64 *word, int late) {
    const Turn turn(late);
    gather<6, 8, 20, 4>(table, indices, out, word);
}

struct transpose3Planes {
    __device__ __forceinline__ u32 from(u32 z) const { return z * 2000; }
    __device__ __forceinline__ u32 to(u32 z) const { return z * 2000; }
};
extern "C" __global__ void __launch_bounds__(256) transpose3(const u32 *from, u32 *to, int late) {
    const Turn turn(late);
    transpose<u32, 50, 40, 50, 40>(transpose3Planes(), to, from);
}

extern "C" __global__ void __launch_bounds__(256) copy4(const u32 *from, u32 *to, int late) {
    const Turn turn(late);
    const u32 i = ((u32)blockIdx.x * 256 + threadIdx.x) * 4;
    if (i < 64) movev<4>(to + (i), from + (i % 8 + i / 8 * 16));
}

extern "C" __global__ void __launch_bounds__(256) carry5(const u32 *from, u32 *to, int late) {
    const Turn turn(late);
    carry<6>(from, to);
}

extern "C" __global__ void __launch_bounds__(256) carry6(const u32 *from, u32 *to, int late) {
    const Turn turn(late);
    carry<2>(from, to);
}

// step 0: carry5 on 1x1 pinned+0 control+0
// step 0: copy0 on 1x1 input+6144 output+6080
// step 0: copy1 on 1x1 input+6208 output+6088
// step 1: gather2 on 1x1 input+6272 input+6464 output+6144 control+4
// step 2: transpose3 on 4x3 input+0 output+0
// step 3: copy4 on 1x1 input+6020 output+6016
// step 3: carry6 on 1x1 control+4 pinned+4
// end
