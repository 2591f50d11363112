extern "C" __global__ void __launch_bounds__(256) conv0(const float *x, const float *w, const float *bias, float *out, int late) {
    const Turn turn(late);
    product<Conv<Geometry<8, 3, 16, 16, 4, 16, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, false>, true, true, float, float, float, float>, 1>({x, w, bias, out}, nullptr);
}

extern "C" __global__ void __launch_bounds__(256) pool1(const float *x, float *y, int late) {
    const Turn turn(late);
    maxPool<u32, 32, 1, 16, 16, 8, 8, 2, 2, Axis<2, 2, 0, 1>, Axis<2, 2, 0, 1>>(x, y);
}

extern "C" __global__ void __launch_bounds__(256) convGradW2(const float *x, const float *dy, float *out, float *parts, int late) {
    const Turn turn(late);
    product<ConvGradW<Geometry<8, 3, 16, 16, 4, 16, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, false>, float, float, float>, 8>({x, dy, out}, parts);
}

extern "C" __global__ void __launch_bounds__(256) finish3(const float *x, const float *dy, float *out, float *parts, int late) {
    const Turn turn(late);
    finish<ConvGradW<Geometry<8, 3, 16, 16, 4, 16, 16, 1, 3, 3, 1, 1, 1, 1, 1, 1, false>, float, float, float>, 8>({x, dy, out}, parts);
}

// step 0: conv0 on 32x1 input+0 input+6144 input+6272 work+0
// step 1: pool1 on 8x1 work+0 output+0
// step 2: convGradW2 on 1x8 input+0 input+6336 output+2048 scratch+0
// step 2: finish3 on 1x1 input+0 input+6336 output+2048 scratch+0
// end
