// Max pooling with channels last and without padding, and its gradient by the places of what is largest: a byte a window, four channels a word.
// A thread takes four channels. T is a Pool; EVEN says whether all operands lie so that four neighbours can be read and written at once.

template <class I_, int C_, int H_, int W_, int OH_, int OW_, int KH_, int KW_, class AH_, class AW_, bool EVEN_> struct Pool {
    typedef I_ I;
    typedef AH_ AH;
    typedef AW_ AW;
    static const int Q = C_ / 4, C = C_, H = H_, W = W_, OH = OH_, OW = OW_, KH = KH_, KW = KW_;
    static const bool EVEN = EVEN_;
    template <class X> static __device__ __forceinline__ Vec<4> read(const X *p) {
        if constexpr (EVEN) return loadv<4>(p);
        else return load<4, 1>(p);
    }
    template <class X> static __device__ __forceinline__ void write(X *p, const Vec<4> &v) {
        if constexpr (EVEN) storev<4>(p, v);
        else
#pragma unroll
            for (int k = 0; k < 4; k++) p[k] = X(v.x[k]);
    }
};

// maxPlaces writes the largest of each window to y, if VALUES, and where it is to places, if PLACES. N windows of four channels.
template <class T, typename T::I N, bool VALUES, bool PLACES, class X, class Y>
__device__ __forceinline__ void maxPlaces(const X *x, Y *y, int *places) {
    typedef typename T::I I;
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= N) return;
    const int o = n / T::Q % (T::OH * T::OW);
    const X *from = x + n / (T::Q * T::OH * T::OW) * (T::C * T::H * T::W) + n % T::Q * 4;
    Vec<4> best;
    u32 word = 0;
#pragma unroll
    for (int p = 0; p < T::KH; p++) {
#pragma unroll
        for (int q = 0; q < T::KW; q++) {
            const Vec<4> v = T::read(from + (T::AH::at(o / T::OW, p) * T::W + T::AW::at(o % T::OW, q)) * T::C);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (p + q == 0 || v.x[k] > best.x[k] || (v.x[k] != v.x[k] && best.x[k] == best.x[k])) {
                    best.x[k] = v.x[k];
                    word = (word & ~(255u << 8 * k)) | (u32)(p * T::KW + q) << 8 * k;
                }
        }
    }
    if constexpr (VALUES) T::write(y + n * 4, best);
    if constexpr (PLACES) places[n] = (int)word;
}

// placedGrad is dx of windows that may overlap: a thread makes a pixel from the windows that it lies in. N pixels.
template <class T, typename T::I N, class X, class Y> __device__ __forceinline__ void placedGrad(const int *places, const Y *dy, X *dx) {
    typedef typename T::I I;
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= N) return;
    const I window = n / (T::Q * T::H * T::W) * (T::Q * T::OH * T::OW) + n % T::Q; // the image's first
    const int h = n / T::Q % (T::H * T::W) / T::W, w = n / T::Q % (T::H * T::W) % T::W;
    Vec<4> sum = {};
    for (int i = T::AH::first(h); i <= T::AH::last(h, T::OH); i++) {
        const int p = T::AH::tap(i, h);
        for (int j = T::AW::first(w); j <= T::AW::last(w, T::OW); j++) {
            const int q = T::AW::tap(j, w);
            if (p < 0 || q < 0) continue;
            const I at = window + (i * T::OW + j) * T::Q;
            const u32 word = (u32)places[at];
            const Vec<4> v = T::read(dy + at * 4);
#pragma unroll
            for (int k = 0; k < 4; k++) sum.x[k] += (word >> 8 * k & 255) == p * T::KW + q ? v.x[k] : 0.f;
        }
    }
    T::write(dx + n * 4, sum);
}

// placedGradBeside is dx of windows that lie side by side: a thread writes one. Beyond the last windows dx is 0. N windows, with those beyond.
template <class T, typename T::I N, class X, class Y> __device__ __forceinline__ void placedGradBeside(const int *places, const Y *dy, X *dx) {
    typedef typename T::I I;
    const int CH = (T::H + T::KH - 1) / T::KH, CW = (T::W + T::KW - 1) / T::KW;
    const I n = (I)blockIdx.x * 256 + threadIdx.x;
    if (n >= N) return;
    const I image = n / (T::Q * CH * CW), c = n % T::Q;
    const int i = n / T::Q % (CH * CW) / CW, j = n / T::Q % (CH * CW) % CW;
    Vec<4> v = {};
    u32 word = 0;
    if (i < T::OH && j < T::OW) {
        const I at = (image * (T::OH * T::OW) + i * T::OW + j) * T::Q + c;
        word = (u32)places[at];
        v = T::read(dy + at * 4);
    }
    X *to = dx + (image * (T::H * T::W) * T::Q + c) * 4;
#pragma unroll
    for (int p = 0; p < T::KH; p++) {
#pragma unroll
        for (int q = 0; q < T::KW; q++) {
            const int h = i * T::KH + p, w = j * T::KW + q;
            Vec<4> one;
#pragma unroll
            for (int k = 0; k < 4; k++) one.x[k] = (word >> 8 * k & 255) == p * T::KW + q ? v.x[k] : 0.f;
            if (h < T::H && w < T::W) T::write(to + (h * T::W + w) * T::C, one);
        }
    }
}
