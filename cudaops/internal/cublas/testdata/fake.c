// A cuBLASLt that computes nothing: it writes down what it is asked, one line a call, and offers three algorithms, the first with too large a
// workspace. An algorithm's first word is its number; algorithm 9 is one that it does not have.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char written[1 << 16];
static size_t length;
static uintptr_t objects; // live
static uintptr_t next = 0x100;
static int refuse; // heuristics
static int clusters; // the shape of algorithm 2's

static void note(const char *format, ...) {
	va_list args;
	va_start(args, format);
	length += vsnprintf(written + length, sizeof written - length, format, args);
	va_end(args);
}

const char *fakeLog(void) { length = 0; return written; }
uint64_t fakeLive(void) { return objects; }
void fakeRefuse(int32_t on) { refuse = on; }
void fakeClusters(int32_t shape) { clusters = shape; }

typedef struct { uint64_t data[8]; } algorithm;
typedef struct { algorithm algo; size_t workspace; int state; float waves; int reserved[4]; } result;

static int make(void **at) { *at = (void *)(next += 0x10); objects++; return 0; }
static int end(void *p) { if (!p) return 7; objects--; return 0; }

size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasLtGetStatusName(int code) { return code == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER"; }
const char *cublasLtGetStatusString(int code) { return code == 15 ? "not supported" : "something else"; }
int cublasLtCreate(void **h) { return make(h); }
int cublasLtDestroy(void *h) { return end(h); }

int cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
	make(l);
	note("layout type %d %llux%llu ld %lld\n", type, (unsigned long long)rows, (unsigned long long)cols, (long long)ld);
	return 0;
}
int cublasLtMatrixLayoutDestroy(void *l) { return end(l); }
int cublasLtMatmulDescCreate(void **d, int compute, int scale) { note("desc %d %d\n", compute, scale); return make(d); }
int cublasLtMatmulDescDestroy(void *d) { return end(d); }
int cublasLtMatmulPreferenceCreate(void **p) { return make(p); }
int cublasLtMatmulPreferenceDestroy(void *p) { return end(p); }

static int set(const char *what, int attribute, const void *value, size_t size) {
	uint64_t v = 0;
	memcpy(&v, value, size);
	note("%s %d = %llu (%zu)\n", what, attribute, (unsigned long long)v, size);
	return 0;
}
int cublasLtMatrixLayoutSetAttribute(void *l, int attribute, const void *value, size_t size) { return set("layout", attribute, value, size); }
int cublasLtMatmulDescSetAttribute(void *d, int attribute, const void *value, size_t size) { return set("desc", attribute, value, size); }
int cublasLtMatmulPreferenceSetAttribute(void *p, int attribute, const void *value, size_t size) { return set("pref", attribute, value, size); }

int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *out, void *pref, int requested, result *results, int *returned) {
	note("heuristic of %d, a before b %d, c is out %d\n", requested, a < b, c == out);
	*returned = 0;
	if (refuse) return 15;
	for (int i = 0; i < 3; i++) {
		result r = {.algo = {{i}}, .workspace = i ? 1000 * i : (size_t)1 << 40, .waves = 1};
		results[(*returned)++] = r;
	}
	return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const algorithm *algo, int attribute, void *value, size_t size, size_t *written) {
	if (attribute != 8 || size != 2) return 7;
	*(uint16_t *)value = algo->data[2] ? algo->data[2] : algo->data[0] == 2 ? clusters : 0;
	*written = 2;
	return 0;
}
int cublasLtMatmulAlgoConfigSetAttribute(algorithm *algo, int attribute, const void *value, size_t size) {
	if (attribute == 8 && size == 2) {
		algo->data[2] = *(const uint16_t *)value;
		return 0;
	}
	if (algo->data[0] > 1 || attribute != 4 || size != 4) return 7; // only the first that has a place can have its tiles in another order
	algo->data[1] = *(const unsigned *)value;
	return 0;
}
int cublasLtMatmulAlgoCheck(void *h, void *d, void *a, void *b, void *c, void *out, const algorithm *algo, result *r) {
	if (algo->data[0] > 2) return 15;
	r->workspace = 1000 * algo->data[0] + algo->data[2];
	r->state = 0;
	return 0;
}
int cublasLtMatmul(void *h, void *d, const float *alpha, const void *a, void *aLayout, const void *b, void *bLayout, const float *beta, const void *c, void *cLayout,
                   void *out, void *outLayout, const algorithm *algo, void *workspace, size_t bytes, void *stream) {
	note("matmul %g a %p b %p %g c %p d %p algo %llu%s%s workspace %p (%zu) stream %p layouts %d%d\n", *alpha, a, b, *beta, c, out,
	     (unsigned long long)algo->data[0], algo->data[1] ? " swizzled" : "", algo->data[2] == 3 ? " below" : algo->data[2] == 5 ? " beside" : "", workspace, bytes, stream, aLayout > bLayout, cLayout == outLayout);
	return 0;
}
