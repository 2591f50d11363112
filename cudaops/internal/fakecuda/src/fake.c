// A CUDA driver and NVML without a card, both in one library, for tests.
//
// Cards' memory is the host's. What goes into a stream is kept and done only when somebody waits for it: as late as a card may, so
// that memory that is used again too early is seen. A call that no card would survive (memory outside an allocation, memory freed
// with work on it) ends the process with a message. Kernels and graphs are handles that do nothing.
//
// Variables, set by package fakecuda:
//   FAKE_CUDA_CARDS    MiB of each card of the machine, "8192,4096"
//   FAKE_CUDA_SEEN     machine's numbers of the cards that the process sees, "1,0", or "error 100" for what cuInit gives
//   FAKE_CUDA_CONTEXT  MiB that a context takes
//   FAKE_CUDA_OTHER    MiB of each card that another process (4242, "other") holds
//   FAKE_CUDA_SHIFT    what is added to this process's number in NVML, as a container's would be
//   FAKE_CUDA_FAIL     "cuMemAlloc_v2 2 3;...": from its 3rd call on the function gives code 2
//   FAKE_CUDA_LOG      file that gets a line for each call but the error texts
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { maxCards = 16, ok = 0, invalidValue = 1, outOfMemory = 2, notInitialized = 3, noDevice = 100, invalidDevice = 101, invalidContext = 201, notFound = 500, notReady = 600 };
#define MIB (1ull << 20)
#define PAGE (2 * MIB)

struct card { u64 total, used; int retained; };
struct block { u64 at, size; int card; struct block *next; };
struct op { int kind; u64 dst, src, n; unsigned value; struct event *event; struct op *next; };
struct stream { int card; struct op *first, **last; };
struct event { struct stream *in; unsigned recorded, reached; }; // times


static struct card cards[maxCards];
static int machine, seen[maxCards], visible, initCode, initialized;
static u64 contextBytes, otherBytes;

static struct block *blocks;
static struct stream *streams[64];
static int nstreams;
static FILE *calls;
static __thread struct card *current;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
	fprintf(stderr, "fake CUDA: %s\n", what);
	abort();
}

static void unlock(pthread_mutex_t **m) { pthread_mutex_unlock(*m); }

static const char *variable(const char *name, const char *otherwise) {
	const char *v = getenv(name);
	return v ? v : otherwise;
}

static int readList(const char *text, long *values) {
	int n = 0;
	while (*text && n < maxCards) {
		char *end;
		values[n++] = strtol(text, &end, 10);
		text = *end ? end + 1 : end;
	}
	return n;
}

static void setup(void) {
	static int done;
	long values[maxCards];
	if (done) return;
	done = 1;
	machine = readList(variable("FAKE_CUDA_CARDS", "1024"), values);
	contextBytes = atol(variable("FAKE_CUDA_CONTEXT", "500")) * MIB;
	otherBytes = atol(variable("FAKE_CUDA_OTHER", "0")) * MIB;
	for (int i = 0; i < machine; i++) {
		cards[i].total = values[i] * MIB;
		cards[i].used = otherBytes;
	}
	const char *s = variable("FAKE_CUDA_SEEN", "0");
	if (!strncmp(s, "error ", 6)) {
		initCode = atoi(s + 6);
	} else {
		visible = readList(s, values);
		for (int i = 0; i < visible; i++) seen[i] = values[i];
	}
	if (getenv("FAKE_CUDA_LOG")) calls = fopen(getenv("FAKE_CUDA_LOG"), "a");
}

// injected is what FAKE_CUDA_FAIL says of this call.
static int injected(const char *name) {
	static struct { char name[64]; int code, from, calls; } fails[16];
	static int n = -1;
	if (n < 0) {
		n = 0;
		for (const char *s = variable("FAKE_CUDA_FAIL", ""); s && *s && n < 16; s = strchr(s, ';') ? strchr(s, ';') + 1 : NULL)
			if (sscanf(s, "%63s %d %d", fails[n].name, &fails[n].code, &fails[n].from) == 3) n++;
	}
	for (int i = 0; i < n; i++)
		if (!strcmp(fails[i].name, name) && ++fails[i].calls >= fails[i].from) return fails[i].code;
	return ok;
}

static int enter(const char *name, const char *format, ...) {
	setup();
	if (calls) {
		va_list args;
		va_start(args, format);
		fputs(name, calls);
		if (*format) fputc(' ', calls);
		vfprintf(calls, format, args);
		fputc('\n', calls);
		fflush(calls);
		va_end(args);
	}
	return injected(name);
}

// CALL begins every function: one at a time, written down, failing when told to.
#define CALL(...) \
	pthread_mutex_t *held __attribute__((cleanup(unlock))) = &mutex; \
	pthread_mutex_lock(held); \
	int fail = enter(__func__, __VA_ARGS__); \
	if (fail) return fail
// WORK is CALL for what needs a context.
#define WORK(...) CALL(__VA_ARGS__); if (!initialized) return notInitialized; if (!current || !current->retained) return invalidContext

// block holds n bytes from at, or the process ends.
static struct block *blockOf(u64 at, u64 n) {
	for (struct block *b = blocks; b; b = b->next)
		if (at >= b->at && at + n <= b->at + b->size) return b;
	die("bytes outside of memory that was allocated");
	return NULL;
}

enum { copyOp, fill8, fill32, record };

static void add(struct stream *s, struct op o) {
	struct op *p = malloc(sizeof o);
	*p = o;
	p->next = NULL;
	*s->last = p;
	s->last = &p->next;
}

// run does what is in the stream, until the event's last record if there is one.
static void run(struct stream *s, struct event *until) {
	while (s->first && !(until && until->reached == until->recorded)) {
		struct op *o = s->first;
		if (o->kind == copyOp) memcpy((void *)o->dst, (void *)o->src, o->n);
		if (o->kind == fill8) memset((void *)o->dst, o->value, o->n);
		if (o->kind == fill32) for (u64 i = 0; i < o->n; i++) ((unsigned *)o->dst)[i] = o->value;
		if (o->kind == record) o->event->reached++;
		if (!(s->first = o->next)) s->last = &s->first;
		free(o);
	}
}

int cuInit(unsigned flags) {
	CALL("");
	initialized = !initCode;
	return initCode;
}
int cuDriverGetVersion(int *v) { CALL(""); *v = 13000; return ok; }

static const struct { int code; const char *name, *text; } errors[] = {
	{invalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{outOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{notInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{noDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{invalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{invalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
};
static int findError(int code, const char **name, const char **text) {
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) {
			*name = errors[i].name;
			*text = errors[i].text;
			return ok;
		}
	return invalidValue;
}
int cuGetErrorName(int code, const char **name) { const char *text; return findError(code, name, &text); }
int cuGetErrorString(int code, const char **text) { const char *name; return findError(code, &name, text); }

int cuDeviceGetCount(int *n) { CALL(""); if (!initialized) return notInitialized; *n = visible; return ok; }
int cuDeviceGet(int *d, int i) { CALL("%d", i); if (i < 0 || i >= visible) return invalidDevice; *d = i; return ok; }
int cuDeviceGetName(char *name, int n, int d) { CALL("%d", d); snprintf(name, n, "Fake Card %d", seen[d]); return ok; }
static void uuid(unsigned char *u, int physical) {
	for (int i = 0; i < 16; i++) u[i] = i ? 17 * i : 0xa0 + physical;
}
int cuDeviceGetUuid_v2(unsigned char *u, int d) { CALL("%d", d); uuid(u, seen[d]); return ok; }
int cuDeviceTotalMem_v2(u64 *n, int d) { CALL("%d", d); *n = cards[seen[d]].total; return ok; }
int cuDeviceGetAttribute(int *v, int attribute, int d) {
	CALL("%d %d", attribute, d);
	*v = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : 1;
	return ok;
}
int cuDeviceCanAccessPeer(int *can, int a, int b) { CALL("%d %d", a, b); *can = a != b; return ok; }

int cuDevicePrimaryCtxRetain(void **ctx, int d) {
	CALL("%d", d);
	struct card *c = &cards[seen[d]];
	if (!c->retained) {
		if (c->total - c->used < contextBytes) return outOfMemory;
		c->used += contextBytes;
	}
	c->retained++;
	*ctx = c;
	return ok;
}
int cuDevicePrimaryCtxRelease_v2(int d) {
	CALL("%d", d);
	struct card *c = &cards[seen[d]];
	if (!c->retained) return invalidContext;
	if (!--c->retained) c->used -= contextBytes;
	return ok;
}
int cuCtxSetCurrent(void *ctx) { CALL("%d", ctx ? (int)((struct card *)ctx - cards) : -1); current = ctx; return ok; }
int cuCtxSynchronize(void) {
	WORK("");
	for (int i = 0; i < nstreams; i++) if (&cards[streams[i]->card] == current) run(streams[i], NULL);
	return ok;
}
int cuCtxEnablePeerAccess(void *peer, unsigned flags) { WORK(""); return ok; }

int cuMemAlloc_v2(u64 *p, u64 n) {
	WORK("%d %llu", (int)(current - cards), n);
	if (!n) return invalidValue;
	u64 size = (n + PAGE - 1) / PAGE * PAGE;
	if (size > current->total - current->used) return outOfMemory;
	void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) die("the host has no memory for a card's");
	struct block *b = malloc(sizeof *b);
	*b = (struct block){(u64)m, size, current - cards, blocks};
	blocks = b;
	current->used += size;
	*p = b->at;
	return ok;
}
int cuMemFree_v2(u64 p) {
	WORK("");
	for (struct block **at = &blocks; *at; at = &(*at)->next) {
		struct block *b = *at;
		if (b->at != p) continue;
		for (int i = 0; i < nstreams; i++)
			for (struct op *o = streams[i]->first; o; o = o->next)
				if ((o->dst >= b->at && o->dst < b->at + b->size) || (o->src >= b->at && o->src < b->at + b->size)) die("memory freed with work on it");
		munmap((void *)b->at, b->size);
		cards[b->card].used -= b->size;
		*at = b->next;
		free(b);
		return ok;
	}
	return invalidValue;
}
int cuMemGetInfo_v2(u64 *free, u64 *total) { WORK("%d", (int)(current - cards)); *free = current->total - current->used; *total = current->total; return ok; }
int cuMemHostAlloc(void **p, u64 n, unsigned flags) { WORK("%llu", n); *p = malloc(n); return ok; }
int cuMemFreeHost(void *p) { WORK(""); free(p); return ok; }

int cuMemcpyHtoDAsync_v2(u64 dst, u64 src, u64 n, struct stream *s) { WORK("%llu", n); blockOf(dst, n); add(s, (struct op){copyOp, dst, src, n}); return ok; }
int cuMemcpyDtoHAsync_v2(u64 dst, u64 src, u64 n, struct stream *s) { WORK("%llu", n); blockOf(src, n); add(s, (struct op){copyOp, dst, src, n}); return ok; }
int cuMemcpyDtoDAsync_v2(u64 dst, u64 src, u64 n, struct stream *s) { WORK("%llu", n); blockOf(dst, n); blockOf(src, n); add(s, (struct op){copyOp, dst, src, n}); return ok; }
int cuMemsetD8Async(u64 dst, unsigned char value, u64 n, struct stream *s) { WORK("%llu", n); blockOf(dst, n); add(s, (struct op){fill8, dst, 0, n, value}); return ok; }
int cuMemsetD32Async(u64 dst, unsigned value, u64 n, struct stream *s) { WORK("%llu", n); blockOf(dst, 4 * n); add(s, (struct op){fill32, dst, 0, n, value}); return ok; }

int cuStreamCreate(struct stream **s, unsigned flags) {
	WORK("%d", (int)(current - cards));
	if (nstreams == 64) return outOfMemory;
	*s = calloc(1, sizeof **s);
	(*s)->card = current - cards;
	(*s)->last = &(*s)->first;
	streams[nstreams++] = *s;
	return ok;
}
int cuStreamDestroy_v2(struct stream *s) {
	WORK("");
	run(s, NULL);
	for (int i = 0; i < nstreams; i++) if (streams[i] == s) streams[i] = streams[--nstreams];
	free(s);
	return ok;
}
int cuStreamSynchronize(struct stream *s) { WORK("%d", s->card); run(s, NULL); return ok; }
int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) { WORK(""); if (e->in) run(e->in, e); return ok; }

int cuEventCreate(struct event **e, unsigned flags) { WORK(""); *e = calloc(1, sizeof **e); return ok; }
int cuEventDestroy_v2(struct event *e) { WORK(""); free(e); return ok; }
int cuEventRecord(struct event *e, struct stream *s) { WORK(""); e->in = s; e->recorded++; add(s, (struct op){.kind = record, .event = e}); return ok; }
int cuEventSynchronize(struct event *e) { WORK(""); if (e->in) run(e->in, e); return ok; }
int cuEventQuery(struct event *e) { WORK(""); if (e->reached == e->recorded) return ok; run(e->in, e); return notReady; }
int cuEventElapsedTime(float *ms, struct event *a, struct event *b) { WORK(""); *ms = 1; return ok; }

static void *something(void) { return calloc(1, 8); }
int cuModuleLoadData(void **m, const void *image) { WORK(""); *m = something(); return ok; }
int cuModuleUnload(void *m) { WORK(""); free(m); return ok; }
int cuModuleGetFunction(void **f, void *m, const char *name) { WORK("%s", name); *f = m; return ok; }
int cuFuncSetAttribute(void *f, int attribute, int value) { WORK("%d %d", attribute, value); return ok; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **params, void **extra) {
	WORK("%u,%u,%u %u,%u,%u", gx, gy, gz, bx, by, bz);
	return ok;
}
int cuStreamBeginCapture_v2(struct stream *s, int mode) { WORK(""); return ok; }
int cuStreamEndCapture(struct stream *s, void **g) { WORK(""); *g = something(); return ok; }
int cuGraphInstantiateWithFlags(void **e, void *g, u64 flags) { WORK(""); *e = something(); return ok; }
int cuGraphLaunch(void *e, struct stream *s) { WORK(""); return ok; }
int cuGraphDestroy(void *g) { WORK(""); free(g); return ok; }
int cuGraphExecDestroy(void *e) { WORK(""); free(e); return ok; }

// NVML, of the same cards.

int nvmlInit_v2(void) { CALL(""); return ok; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Some Error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { CALL(""); *n = machine; return ok; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct card **c) { CALL("%u", i); *c = &cards[i]; return ok; }
int nvmlDeviceGetUUID(struct card *c, char *text, unsigned n) {
	unsigned char u[16];
	CALL("%d", (int)(c - cards));
	uuid(u, c - cards);
	int at = snprintf(text, n, "GPU-");
	for (int i = 0; i < 16; i++) at += snprintf(text + at, n - at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u[i]);
	return ok;
}
int nvmlDeviceGetName(struct card *c, char *text, unsigned n) { CALL(""); snprintf(text, n, "Fake Card %d", (int)(c - cards)); return ok; }
int nvmlDeviceGetCudaComputeCapability(struct card *c, int *major, int *minor) { CALL(""); *major = 9; *minor = 0; return ok; }
int nvmlDeviceGetPciInfo_v3(struct card *c, char *info) { CALL(""); snprintf(info + 36, 32, "00000000:%02X:00.0", (int)(c - cards) + 1); return ok; }
int nvmlDeviceGetMemoryInfo(struct card *c, u64 *info) { CALL(""); info[0] = c->total; info[1] = c->total - c->used; info[2] = c->used; return ok; }
int nvmlDeviceGetUtilizationRates(struct card *c, unsigned *u) { CALL(""); u[0] = 42; u[1] = 7; return ok; }
struct process { unsigned pid; u64 bytes; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct card *c, unsigned *n, struct process *p) {
	CALL("%d", (int)(c - cards));
	unsigned room = *n;
	*n = (otherBytes > 0) + (c->retained > 0);
	if (*n > room) return 7;
	if (otherBytes) *p++ = (struct process){4242, otherBytes};
	if (c->retained) *p++ = (struct process){getpid() + atoi(variable("FAKE_CUDA_SHIFT", "0")), c->used - otherBytes};
	return ok;
}
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned n) {
	CALL("%u", pid);
	if (pid != 4242) return 6;
	snprintf(text, n, "other");
	return ok;
}
