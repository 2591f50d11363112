// Pooling of PLANES of pixels that lie S apart: 1, or with channels last as many as there are channels. Gradients gather: a thread makes one element
// of dx from the windows that it lies in, so that nothing is added by two at once.

// pixel is which of a plane's PIXELS element n is, and base where that plane begins in a tensor of OTHER pixels a plane.
template <int S, int PIXELS, class I> __device__ __forceinline__ int pixel(I n) { return (int)(n / S % PIXELS); }
template <int S, int PIXELS, int OTHER, class I> __device__ __forceinline__ I base(I n) { return n / (S * PIXELS) * (S * OTHER) + n % S; }

template <int K, int S, int P, int D> struct Axis {
    // Window of output i: in = i*S + k*D - P for k in 0..K-1.
    static __device__ __forceinline__ int at(int i, int k) { return i * S + k * D - P; }
    // tap is the k for which output i has h in its window, or -1.
    static __device__ __forceinline__ int tap(int i, int h) {
        const int d = h + P - i * S;
        return d >= 0 && d % D == 0 && d / D < K ? d / D : -1;
    }
    // first and last are a range of outputs outside of which no window has h.
    static __device__ __forceinline__ int first(int h) {
        const int d = h + P - (K - 1) * D;
        return d <= 0 ? 0 : (d + S - 1) / S;
    }
    static __device__ __forceinline__ int last(int h, int out) {
        const int i = (h + P) / S;
        return i < out - 1 ? i : out - 1;
    }
};

// place of the first largest in the window of output (i, j) of a plane, or of its first NaN; -1 for a window over padding only.
template <int S, class AH, class AW, int KH, int KW, int H, int W, class T>
__device__ __forceinline__ int largestIn(const T *x, int i, int j) {
    int place = -1;
    float best = 0.f;
#pragma unroll
    for (int p = 0; p < KH; p++) {
        const int h = AH::at(i, p);
#pragma unroll
        for (int q = 0; q < KW; q++) {
            const int w = AW::at(j, q);
            if (h < 0 || h >= H || w < 0 || w >= W) continue;
            const float v = (float)x[(h * W + w) * S];
            if (place < 0 || v > best || (v != v && best == best)) best = v, place = h * W + w;
        }
    }
    return place;
}

template <class I, I PLANES, int S, int H, int W, int OH, int OW, int KH, int KW, class AH, class AW, class X, class Y>
__device__ __forceinline__ void maxPool(const X *x, Y *y) {
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= PLANES * OH * OW) return;
    const X *plane = x + base<S, OH * OW, H * W>(n);
    const int o = pixel<S, OH * OW>(n);
    const int at = largestIn<S, AH, AW, KH, KW, H, W>(plane, o / OW, o % OW);
    y[n] = Y(at < 0 ? -__int_as_float(0x7f800000) : (float)plane[at * S]);
}

template <class I, I PLANES, int S, int H, int W, int OH, int OW, int KH, int KW, class AH, class AW, class X, class D, class Y>
__device__ __forceinline__ void maxPoolGrad(const X *x, const D *dy, Y *dx) {
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= PLANES * H * W) return;
    const X *plane = x + base<S, H * W, H * W>(n);
    const D *grad = dy + base<S, H * W, OH * OW>(n);
    const int h = pixel<S, H * W>(n) / W, w = pixel<S, H * W>(n) % W;
    float sum = 0.f;
    for (int i = AH::first(h); i <= AH::last(h, OH); i++) {
        if (AH::tap(i, h) < 0) continue;
        for (int j = AW::first(w); j <= AW::last(w, OW); j++)
            if (AW::tap(j, w) >= 0 && largestIn<S, AH, AW, KH, KW, H, W>(plane, i, j) == h * W + w) sum += grad[(i * OW + j) * S];
    }
    dx[n] = Y(sum);
}

// maxPoolGrad of windows that lie side by side: a thread reads a window and writes it. Beyond the last windows dx is 0.
template <class I, I PLANES, int S, int H, int W, int OH, int OW, int KH, int KW, class X, class D, class Y>
__device__ __forceinline__ void maxPoolGradBeside(const X *x, const D *dy, Y *dx) {
    const int CH = (H + KH - 1) / KH, CW = (W + KW - 1) / KW;
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= PLANES * CH * CW) return;
    const int i = pixel<S, CH * CW>(n) / CW, j = pixel<S, CH * CW>(n) % CW;
    const I plane = base<S, CH * CW, H * W>(n);
    int place = -1;
    float grad = 0.f;
    if (i < OH && j < OW) {
        place = largestIn<S, Axis<KH, KH, 0, 1>, Axis<KW, KW, 0, 1>, KH, KW, H, W>(x + plane, i, j);
        grad = dy[base<S, CH * CW, OH * OW>(n) + (i * OW + j) * S];
    }
#pragma unroll
    for (int p = 0; p < KH; p++) {
#pragma unroll
        for (int q = 0; q < KW; q++) {
            const int h = i * KH + p, w = j * KW + q;
            if (h < H && w < W) dx[plane + (h * W + w) * S] = Y(h * W + w == place ? grad : 0.f);
        }
    }
}

// real is how many of a window's elements along an axis are no padding.
template <class A, int K> __device__ __forceinline__ int real(int i, int in) {
    int n = 0;
#pragma unroll
    for (int k = 0; k < K; k++) n += A::at(i, k) >= 0 && A::at(i, k) < in;
    return n;
}

// divisor of the window of output (i, j): all elements, or those that are no padding.
template <bool PAD, class AH, class AW, int KH, int KW, int H, int W> __device__ __forceinline__ float divisor(int i, int j) {
    return PAD ? (float)(KH * KW) : (float)(real<AH, KH>(i, H) * real<AW, KW>(j, W));
}

template <class I, I PLANES, int S, int H, int W, int OH, int OW, int KH, int KW, class AH, class AW, bool PAD, class X, class Y>
__device__ __forceinline__ void avgPool(const X *x, Y *y) {
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= PLANES * OH * OW) return;
    const X *plane = x + base<S, OH * OW, H * W>(n);
    const int i = pixel<S, OH * OW>(n) / OW, j = pixel<S, OH * OW>(n) % OW;
    float sum = 0.f;
#pragma unroll
    for (int p = 0; p < KH; p++) {
        const int h = AH::at(i, p);
#pragma unroll
        for (int q = 0; q < KW; q++) {
            const int w = AW::at(j, q);
            if (h >= 0 && h < H && w >= 0 && w < W) sum += plane[(h * W + w) * S];
        }
    }
    y[n] = Y(sum / divisor<PAD, AH, AW, KH, KW, H, W>(i, j));
}

template <class I, I PLANES, int S, int H, int W, int OH, int OW, int KH, int KW, class AH, class AW, bool PAD, class D, class Y>
__device__ __forceinline__ void avgPoolGrad(const D *dy, Y *dx) {
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= PLANES * H * W) return;
    const D *grad = dy + base<S, H * W, OH * OW>(n);
    const int h = pixel<S, H * W>(n) / W, w = pixel<S, H * W>(n) % W;
    float sum = 0.f;
    for (int i = AH::first(h); i <= AH::last(h, OH); i++) {
        if (AH::tap(i, h) < 0) continue;
        for (int j = AW::first(w); j <= AW::last(w, OW); j++)
            if (AW::tap(j, w) >= 0) sum += grad[(i * OW + j) * S] / divisor<PAD, AH, AW, KH, KW, H, W>(i, j);
    }
    dx[n] = Y(sum);
}

// The window of output i, adaptive: floor(i*in/out) up to ceil((i+1)*in/out).
__device__ __forceinline__ int from(int i, int in, int out) { return (int)((long long)i * in / out); }
__device__ __forceinline__ int upTo(int i, int in, int out) { return (int)(((long long)(i + 1) * in + out - 1) / out); }

// adaptivePool: G threads of a warp make an output.
template <class I, I PLANES, int S, int H, int W, int OH, int OW, int G, class X, class Y> __device__ __forceinline__ void adaptivePool(const X *x, Y *y) {
    const I n = (I)blockIdx.x * (256 / G) + threadIdx.x / G;
    float sum = 0.f;
    int count = 1;
    if (n < PLANES * OH * OW) {
        const X *plane = x + base<S, OH * OW, H * W>(n);
        const int i = pixel<S, OH * OW>(n) / OW, j = pixel<S, OH * OW>(n) % OW;
        const int h = from(i, H, OH), w = from(j, W, OW), wide = upTo(j, W, OW) - w;
        count = (upTo(i, H, OH) - h) * wide;
        for (int e = threadIdx.x % G; e < count; e += G) sum += plane[((h + e / wide) * W + w + e % wide) * S];
    }
#pragma unroll
    for (int d = G / 2; d > 0; d /= 2) sum += __shfl_xor_sync(warp, sum, d);
    if (n < PLANES * OH * OW && threadIdx.x % G == 0) y[n] = Y(sum / (float)count);
}

template <class I, I PLANES, int S, int H, int W, int OH, int OW, class D, class Y> __device__ __forceinline__ void adaptivePoolGrad(const D *dy, Y *dx) {
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= PLANES * H * W) return;
    const D *grad = dy + base<S, H * W, OH * OW>(n);
    const int h = pixel<S, H * W>(n) / W, w = pixel<S, H * W>(n) % W;
    float sum = 0.f;
    for (int i = from(h, OH, H); i < upTo(h, OH, H); i++) {
        const int h0 = from(i, H, OH), h1 = upTo(i, H, OH);
        if (h < h0 || h >= h1) continue;
        for (int j = from(w, OW, W); j < upTo(w, OW, W); j++) {
            const int w0 = from(j, W, OW), w1 = upTo(j, W, OW);
            if (w >= w0 && w < w1) sum += grad[(i * OW + j) * S] / (float)((h1 - h0) * (w1 - w0));
        }
    }
    dx[n] = Y(sum);
}
