// A cuDNN that computes nothing: it writes down what it is asked, one line a call. It offers, for every kind, algorithm 6, which it does not support;
// 5, which is not deterministic; 7, which needs 256 MiB of workspace a sample; 1 (1000 bytes); and 0 (none). fakeRefuse makes it refuse calls that are fused.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static char written[1 << 16];
static size_t length;
static uint64_t objects; // live
static uintptr_t next = 0x100;
static int refuse;
static int samples[1 << 16]; // by descriptor

static void note(const char *format, ...) {
	va_list args;
	va_start(args, format);
	length += vsnprintf(written + length, sizeof written - length, format, args);
	va_end(args);
}

const char *fakeLog(void) { length = 0; return written; }
uint64_t fakeLive(void) { return objects; }
void fakeRefuse(int32_t on) { refuse = on; }

typedef struct { int algo, status; float time; size_t memory; int determinism, math, reserved[3]; } performance;

static int make(void **at) { *at = (void *)(next += 0x10); objects++; return 0; }
static int end(void *p) { if (!p) return 2000; objects--; return 0; }

size_t cudnnGetVersion(void) { return 91501; }
const char *cudnnGetErrorString(int code) { return code == 3000 ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_OTHER"; }
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "because"); }
int cudnnCreate(void **h) { return make(h); }
int cudnnDestroy(void *h) { return end(h); }
int cudnnSetStream(void *h, void *s) { note("stream %p\n", s); return 0; }

int cudnnCreateTensorDescriptor(void **d) { return make(d); }
int cudnnDestroyTensorDescriptor(void *d) { return end(d); }
int cudnnSetTensor4dDescriptor(void *d, int format, int type, int n, int c, int h, int w) { samples[(uintptr_t)d >> 4] = n; note("tensor %p format %d type %d %d %d %d %d\n", d, format, type, n, c, h, w); return 0; }
int cudnnCreateFilterDescriptor(void **d) { return make(d); }
int cudnnDestroyFilterDescriptor(void *d) { return end(d); }
int cudnnSetFilter4dDescriptor(void *d, int type, int format, int o, int c, int h, int w) { note("filter %p format %d type %d %d %d %d %d\n", d, format, type, o, c, h, w); return 0; }
int cudnnCreateConvolutionDescriptor(void **d) { return make(d); }
int cudnnDestroyConvolutionDescriptor(void *d) { return end(d); }
int cudnnSetConvolution2dDescriptor(void *d, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int type) {
	note("convolution %p padding %d %d stride %d %d dilation %d %d mode %d type %d\n", d, ph, pw, sh, sw, dh, dw, mode, type);
	return 0;
}
int cudnnSetConvolutionMathType(void *d, int math) { note("math %d\n", math); return 0; }
int cudnnSetConvolutionGroupCount(void *d, int n) { note("groups %d\n", n); return 0; }
int cudnnCreateActivationDescriptor(void **d) { return make(d); }
int cudnnDestroyActivationDescriptor(void *d) { return end(d); }
int cudnnSetActivationDescriptor(void *d, int mode, int nan, double coefficient) { note("activation %d nan %d %g\n", mode, nan, coefficient); return 0; }

static int offer(const char *kind, void *a, void *b, void *conv, void *out, int requested, int *returned, performance *results) {
	const int algos[] = {6, 5, 7, 1, 0};
	note("%s offers for %p %p %p %p, %d at most\n", kind, a, b, conv, out, requested);
	for (int i = 0; i < 5; i++) {
		performance p = {.algo = algos[i], .status = i == 0 ? 3000 : 0, .determinism = i != 1, .math = 1};
		results[i] = p;
	}
	*returned = 5;
	return 0;
}
static int size(void *a, void *b, int algo, size_t *bytes) {
	int n = samples[(uintptr_t)a >> 4];
	if (n == 0) n = samples[(uintptr_t)b >> 4]; // the first is a filter
	*bytes = algo == 7 ? (size_t)n << 28 : 1000 * algo;
	return 0;
}
static int run(const char *kind, const float *alpha, void *aDesc, void *a, void *bDesc, void *b, void *conv, int algo, void *workspace, size_t bytes, const float *beta, void *outDesc, void *out) {
	note("%s %g %p:%p %p:%p %p algo %d workspace %p (%zu) %g %p:%p\n", kind, *alpha, aDesc, a, bDesc, b, conv, algo, workspace, bytes, *beta, outDesc, out);
	return 0;
}

#define KIND(name) \
	int cudnnGetConvolution##name##Algorithm_v7(void *h, void *a, void *b, void *c, void *o, int n, int *m, performance *r) { return offer(#name, a, b, c, o, n, m, r); } \
	int cudnnGetConvolution##name##WorkspaceSize(void *h, void *a, void *b, void *c, void *o, int algo, size_t *bytes) { return size(a, b, algo, bytes); } \
	int cudnnConvolution##name(void *h, const float *alpha, void *aDesc, void *a, void *bDesc, void *b, void *c, int algo, void *w, size_t n, const float *beta, void *oDesc, void *o) { \
		return run(#name, alpha, aDesc, a, bDesc, b, c, algo, w, n, beta, oDesc, o); \
	}
KIND(Forward)
KIND(BackwardData)
KIND(BackwardFilter)

int cudnnConvolutionBiasActivationForward(void *h, const float *alpha1, void *xDesc, void *x, void *wDesc, void *w, void *conv, int algo, void *workspace, size_t bytes,
                                          const float *alpha2, void *zDesc, void *z, void *biasDesc, void *bias, void *activation, void *yDesc, void *y) {
	if (refuse) return 3000;
	note("fused %g %p:%p %p:%p %p algo %d workspace %p (%zu) %g z %p:%p bias %p:%p %p:%p\n", *alpha1, xDesc, x, wDesc, w, conv, algo, workspace, bytes, *alpha2, zDesc, z, biasDesc, bias, yDesc, y);
	return 0;
}
int cudnnAddTensor(void *h, const float *alpha, void *aDesc, void *a, const float *beta, void *cDesc, void *c) { note("add %g %p:%p %g %p:%p\n", *alpha, aDesc, a, *beta, cDesc, c); return 0; }
int cudnnActivationForward(void *h, void *d, const float *alpha, void *xDesc, void *x, const float *beta, void *yDesc, void *y) { note("activate %g %p:%p %g %p:%p\n", *alpha, xDesc, x, *beta, yDesc, y); return 0; }
