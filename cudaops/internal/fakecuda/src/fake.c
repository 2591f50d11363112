// A CUDA driver and NVML without a card, both in one library, for tests.
//
// Cards' memory is the host's. What goes into a stream is kept and done only when somebody waits for it: as late as a card may, so
// that memory that is used again too early is seen. A call that no card would survive (memory outside an allocation, memory freed
// with work on it) ends the process with a message. Kernels run, by blocks.c, when the module is what nvrtc.c has made of their source; else
// they do nothing. The tasks of a graph run in any order that their edges allow, another one each time.
//
// Variables, set by package fakecuda:
//   FAKE_CUDA_CARDS    MiB of each card of the machine, "8192,4096"
//   FAKE_CUDA_SEEN     machine's numbers of the cards that the process sees, "1,0", or "error 100" for what cuInit gives
//   FAKE_CUDA_CONTEXT  MiB that a context takes
//   FAKE_CUDA_OTHER    MiB of each card that another process (4242, "other") holds
//   FAKE_CUDA_SHIFT    what is added to this process's number in NVML, as a container's would be
//   FAKE_CUDA_FAIL     "cuMemAlloc_v2 2 3;...": from its 3rd call on the function gives code 2
//   FAKE_CUDA_MAJOR    of the cards' compute capability
//   FAKE_CUDA_SEED     of the order of graphs' tasks
//   FAKE_CUDA_LOG      file that gets a line for each call but the error texts
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { maxCards = 16, ok = 0, invalidValue = 1, outOfMemory = 2, notInitialized = 3, noDevice = 100, invalidDevice = 101, invalidContext = 201, notFound = 500, notReady = 600,
	captureUnsupported = 900, captureInvalidated = 901, captureUnmatched = 903, captureUnjoined = 904, captureMerge = 905, capturedEvent = 907 };
#define MIB (1ull << 20)
#define PAGE (2 * MIB)

struct card { u64 total, used; int retained; };
struct block { u64 at, size; int card; struct block *next; };
struct op { int kind; u64 dst, src, n; unsigned value; struct event *event; struct launch *launch; struct graph *graph; struct op *next; };
// set is the numbers of nodes of a graph.
struct set { int n, *list; };
struct stream { int card, busy; struct op *first, **last; struct graph *into; struct set front; };
struct event { struct stream *in; unsigned recorded, reached; /* times */ struct graph *of; struct set front; };

// launch is a kernel with its arguments and its grid.
struct launch { unsigned x, y, z, threads, together, shared; void (*call)(void *), (*drop)(void *), *arguments; };
void runBlocks(unsigned x, unsigned y, unsigned z, unsigned threads, unsigned together, unsigned shared, void (*call)(void *), void *arguments); // blocks.c

// graph is what a stream, and others that joined it, captured. A node comes after those in its set.
struct node { struct op op; struct set after; };
struct graph { int n; struct node *nodes; struct stream *origin; int users; };

static struct card cards[maxCards];
static int machine, seen[maxCards], visible, initCode, initialized;
static u64 contextBytes, otherBytes;

static struct block *blocks;
static struct stream *streams[64];
static int nstreams;
static FILE *calls;
static __thread struct card *current;

// lock lets threads in one after the other, as they have come.
static struct { pthread_mutex_t mutex; pthread_cond_t changed; unsigned come, served; } queue = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
static void lock(void) {
	pthread_mutex_lock(&queue.mutex);
	for (unsigned mine = queue.come++; queue.served != mine;) pthread_cond_wait(&queue.changed, &queue.mutex);
	pthread_mutex_unlock(&queue.mutex);
}
static void unlock(void) {
	pthread_mutex_lock(&queue.mutex);
	queue.served++;
	pthread_cond_broadcast(&queue.changed);
	pthread_mutex_unlock(&queue.mutex);
}

static void die(const char *what) {
	fprintf(stderr, "fake CUDA: %s\n", what);
	abort();
}

static void leave(int *entered) { unlock(); }

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
	int entered __attribute__((cleanup(leave))) = 1; \
	lock(); \
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

enum { copyOp, fill8, fill32, record, launchOp, graphOp };

static void include(struct set *s, int x) {
	for (int i = 0; i < s->n; i++) if (s->list[i] == x) return;
	s->list = realloc(s->list, (s->n + 1) * sizeof *s->list);
	s->list[s->n++] = x;
}

static void assign(struct set *s, const struct set *from) {
	s->n = 0;
	for (int i = 0; i < from->n; i++) include(s, from->list[i]);
}

static void releaseLaunch(struct launch *l) {
	l->drop(l->arguments);
	free(l);
}

static void releaseGraph(struct graph *g) {
	if (--g->users) return;
	for (int i = 0; i < g->n; i++) {
		if (g->nodes[i].op.kind == launchOp) releaseLaunch(g->nodes[i].op.launch);
		free(g->nodes[i].after.list);
	}
	free(g->nodes);
	free(g);
}

// add puts a task into a stream, or into the graph that it is capturing.
static void add(struct stream *s, struct op o) {
	if (s->into) {
		struct graph *g = s->into;
		g->nodes = realloc(g->nodes, (g->n + 1) * sizeof *g->nodes);
		g->nodes[g->n] = (struct node){.op = o};
		assign(&g->nodes[g->n].after, &s->front);
		s->front.n = 0;
		include(&s->front, g->n++);
		return;
	}
	struct op *p = malloc(sizeof o);
	*p = o;
	p->next = NULL;
	*s->last = p;
	s->last = &p->next;
}

static void perform(struct op *o);

// runGraph does the tasks of a graph in an order that the edges allow, drawn anew each time.
static void runGraph(struct graph *g) {
	static unsigned seed;
	if (!seed) seed = atoi(variable("FAKE_CUDA_SEED", "1"));
	int *waits = calloc(g->n + 1, sizeof *waits), *ready = calloc(g->n + 1, sizeof *ready), n = 0, done = 0;
	for (int i = 0; i < g->n; i++)
		if (!(waits[i] = g->nodes[i].after.n)) ready[n++] = i;
	while (n) {
		int k = rand_r(&seed) % n, i = ready[k];
		ready[k] = ready[--n];
		perform(&g->nodes[i].op);
		done++;
		for (int j = i + 1; j < g->n; j++)
			for (int a = 0; a < g->nodes[j].after.n; a++)
				if (g->nodes[j].after.list[a] == i && !--waits[j]) ready[n++] = j;
	}
	if (done != g->n) die("a graph with a cycle");
	free(waits);
	free(ready);
}

static void perform(struct op *o) {
	if (o->kind == copyOp) memcpy((void *)o->dst, (void *)o->src, o->n);
	if (o->kind == fill8) memset((void *)o->dst, o->value, o->n);
	if (o->kind == fill32) for (u64 i = 0; i < o->n; i++) ((unsigned *)o->dst)[i] = o->value;
	if (o->kind == record) o->event->reached++;
	if (o->kind == launchOp) runBlocks(o->launch->x, o->launch->y, o->launch->z, o->launch->threads, o->launch->together, o->launch->shared, o->launch->call, o->launch->arguments);
	if (o->kind == graphOp) runGraph(o->graph);
}

// letOthers lets other threads call the driver while a kernel of this one waits.
void letOthers(void) {
	unlock();
	sched_yield();
	lock();
}

// run does what is in the stream, until the event's last record if there is one. While a kernel waits, another thread may want the same.
static void run(struct stream *s, struct event *until) {
	while (s->busy) letOthers();
	while (s->first && !(until && until->reached == until->recorded)) {
		struct op *o = s->first;
		s->busy = 1;
		perform(o);
		s->busy = 0;
		if (o->kind == launchOp) releaseLaunch(o->launch);
		if (o->kind == graphOp) releaseGraph(o->graph);
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
	*v = attribute == 75 ? atoi(variable("FAKE_CUDA_MAJOR", "9")) : attribute == 76 ? 0 : attribute == 16 ? 132 : 1;
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

// Memory is opened by handles in the process that has it only.
int cuIpcGetMemHandle(u64 *handle, u64 p) { WORK(""); memset(handle, 0, 64); *handle = p; return ok; }
struct handle { u64 at, rest[7]; };
int cuIpcOpenMemHandle_v2(u64 *p, struct handle h, unsigned flags) { WORK(""); blockOf(h.at, 1); *p = h.at; return ok; }
int cuIpcCloseMemHandle(u64 p) { WORK(""); return ok; }

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
int cuStreamSynchronize(struct stream *s) { WORK("%d", s->card); if (s->into) return captureUnsupported; run(s, NULL); return ok; }
int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) {
	WORK("");
	if (e->of) { // recorded in a capture, which the stream joins
		if (!e->of->origin) return capturedEvent;
		if (s->into && s->into != e->of) return captureMerge;
		if (!s->into) {
			s->into = e->of;
			s->front.n = 0;
		}
		for (int i = 0; i < e->front.n; i++) include(&s->front, e->front.list[i]);
		return ok;
	}
	if (s->into) return captureInvalidated;
	if (e->in) run(e->in, e);
	return ok;
}

int cuEventCreate(struct event **e, unsigned flags) { WORK(""); *e = calloc(1, sizeof **e); return ok; }
int cuEventDestroy_v2(struct event *e) { WORK(""); free(e); return ok; }
int cuEventRecord(struct event *e, struct stream *s) {
	WORK("");
	e->of = s->into;
	if (s->into) {
		assign(&e->front, &s->front);
		return ok;
	}
	e->in = s;
	e->recorded++;
	add(s, (struct op){.kind = record, .event = e});
	return ok;
}
int cuEventSynchronize(struct event *e) { WORK(""); if (e->of) return capturedEvent; if (e->in) run(e->in, e); return ok; }
int cuEventQuery(struct event *e) { WORK(""); if (e->of) return capturedEvent; if (e->reached == e->recorded) return ok; if (!e->in->busy) run(e->in, e); return notReady; }
int cuEventElapsedTime(float *ms, struct event *a, struct event *b) { WORK(""); *ms = 1; return ok; }


// module is code: of kernels that run, a shared object.
struct module { void *code; };
struct function { void *(*bind)(void **); void (*call)(void *), (*drop)(void *); unsigned together; };

int cuModuleLoadData(struct module **m, const void *image) {
	WORK("");
	*m = calloc(1, sizeof **m);
	if (memcmp(image, ELFMAG, SELFMAG)) return ok;
	const Elf64_Ehdr *h = image;
	size_t n = h->e_shoff + (size_t)h->e_shentsize * h->e_shnum;
	char path[] = "/tmp/fakecudaXXXXXX"; // a name that no library has had: dlopen gives a known name's again
	int file = mkstemp(path);
	if (file < 0 || write(file, image, n) != (ssize_t)n) die("no room for a module");
	(*m)->code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!(*m)->code) die(dlerror());
	close(file);
	unlink(path);
	return ok;
}
int cuModuleUnload(struct module *m) {
	WORK("");
	if (m->code) dlclose(m->code);
	free(m);
	return ok;
}
int cuModuleGetFunction(struct function **f, struct module *m, const char *name) {
	WORK("%s", name);
	*f = calloc(1, sizeof **f); // kept: a module has few, and a process few modules
	if (!m->code) return ok;
	char bind[256];
	snprintf(bind, sizeof bind, "bind_%s", name);
	(*f)->bind = dlsym(m->code, bind);
	(*f)->call = dlsym(m->code, "call");
	(*f)->drop = dlsym(m->code, "drop");
	snprintf(bind, sizeof bind, "cluster_%s", name);
	const unsigned *together = dlsym(m->code, bind);
	if (!(*f)->bind || !together) return notFound;
	(*f)->together = *together;
	return ok;
}
int cuFuncSetAttribute(void *f, int attribute, int value) { WORK("%d %d", attribute, value); return ok; }
static int launchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **params) {
	if (!f->bind) return ok;
	if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || !bx || bx > 1024 || by != 1 || bz != 1) return invalidValue;
	if (shared > 227 << 10 || f->together > 8 || f->together * bx > 4096 || gx % f->together) return invalidValue;
	struct launch *l = malloc(sizeof *l);
	*l = (struct launch){gx, gy, gz, bx, f->together, shared, f->call, f->drop, f->bind(params)};
	add(s, (struct op){.kind = launchOp, .launch = l});
	return ok;
}
int cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream *s, void **params, void **extra) {
	WORK("%u,%u,%u %u,%u,%u", gx, gy, gz, bx, by, bz);
	return launchKernel(f, gx, gy, gz, bx, by, bz, shared, s, params);
}
struct attribute { u64 id, value[8]; };
struct config { unsigned grid[3], block[3], shared; struct stream *stream; struct attribute *attributes; unsigned n; };
// cuLaunchKernelEx launches after what is before, whatever its attribute allows.
int cuLaunchKernelEx(struct config *c, struct function *f, void **params, void **extra) {
	unsigned *g = c->grid, *b = c->block;
	WORK("%u,%u,%u %u,%u,%u, attribute %d %d", g[0], g[1], g[2], b[0], b[1], b[2], (int)c->attributes->id, (int)c->attributes->value[0]);
	return c->n != 1 ? invalidValue : launchKernel(f, g[0], g[1], g[2], b[0], b[1], b[2], c->shared, c->stream, params);
}

int cuStreamBeginCapture_v2(struct stream *s, int mode) {
	WORK("");
	if (s->into) return captureInvalidated;
	s->into = calloc(1, sizeof *s->into);
	s->into->origin = s;
	s->into->users = 1;
	s->front.n = 0;
	return ok;
}
int cuStreamEndCapture(struct stream *s, struct graph **g) {
	WORK("");
	if (!s->into || s->into->origin != s) return captureUnmatched;
	struct graph *made = s->into;
	// What the origin does not come after has not joined it.
	char *joined = calloc(made->n + 1, 1);
	int n = 0;
	for (int i = 0; i < s->front.n; i++) joined[s->front.list[i]] = 1;
	for (int i = made->n - 1; i >= 0; i--) {
		if (!joined[i]) continue;
		n++;
		for (int a = 0; a < made->nodes[i].after.n; a++) joined[made->nodes[i].after.list[a]] = 1;
	}
	free(joined);
	for (int i = 0; i < nstreams; i++) if (streams[i]->into == made) streams[i]->into = NULL;
	made->origin = NULL;
	*g = NULL;
	if (n != made->n) return captureUnjoined; // the graph is kept: events may know it
	*g = made;
	return ok;
}
int cuGraphInstantiateWithFlags(struct graph **e, struct graph *g, u64 flags) { WORK(""); *e = g; g->users++; return ok; }
int cuGraphLaunch(struct graph *e, struct stream *s) {
	WORK("");
	if (s->into) return captureUnsupported;
	e->users++;
	add(s, (struct op){.kind = graphOp, .graph = e});
	return ok;
}
int cuGraphDestroy(struct graph *g) { WORK(""); releaseGraph(g); return ok; }
int cuGraphExecDestroy(struct graph *e) { WORK(""); releaseGraph(e); return ok; }

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
