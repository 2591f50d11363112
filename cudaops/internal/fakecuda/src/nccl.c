// An NCCL whose ranks are threads of one process and whose cards are those of fake.c, for tests.
//
// A collective is done when it is called, not when its stream comes to it: the call waits for the work that is in the stream, for the
// other ranks, and until all are done. Abort ends that wait. Sums are taken in rank order.
//
// Variables:
//   FAKE_NCCL_CORRUPT  when set, an all-gather brings one word that is wrong
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { maxRanks = 16, idBytes = 128, ok = 0, invalidArgument = 4, invalidUsage = 5 };
typedef struct { char bytes[idBytes]; } id;

struct group {
	id id;
	int world, joined, left, arrived, turn;
	const float *from[maxRanks];
	struct group *next;
};
struct comm { struct group *group; int rank, aborted; };
struct op { struct comm *comm; int kind, root; const float *from; float *to; uint64_t n; void *stream; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct group *groups;
static int ids;
static __thread int depth, queued;
static __thread struct op queue[64];

int ncclGetVersion(int *v) { *v = 22800; return ok; }
const char *ncclGetErrorString(int code) { return code == invalidArgument ? "invalid argument" : code == invalidUsage ? "invalid usage" : "some error"; }
const char *ncclGetLastError(void *comm) { return comm ? "" : "the fake has its limits"; }
int ncclGetUniqueId(id *i) {
	pthread_mutex_lock(&mutex);
	memset(i, 'x', sizeof *i);
	snprintf(i->bytes + 100, 20, "group %d", ++ids);
	pthread_mutex_unlock(&mutex);
	return ok;
}

int ncclCommInitRank(struct comm **c, int world, id i, int rank) {
	if (rank < 0 || rank >= world || world > maxRanks) return invalidArgument;
	pthread_mutex_lock(&mutex);
	struct group *g = groups;
	while (g && memcmp(&g->id, &i, sizeof i)) g = g->next;
	if (!g) {
		g = calloc(1, sizeof *g);
		*g = (struct group){.id = i, .world = world, .next = groups};
		groups = g;
	}
	g->joined++;
	pthread_cond_broadcast(&changed);
	while (g->joined < world) pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
	*c = malloc(sizeof **c);
	**c = (struct comm){g, rank, 0};
	return ok;
}
static int leave(struct comm *c) {
	struct group *g = c->group;
	if (++g->left == g->world) {
		struct group **at = &groups;
		while (*at != g) at = &(*at)->next;
		*at = g->next;
		free(g);
	}
	free(c);
	return ok;
}
int ncclCommDestroy(struct comm *c) {
	pthread_mutex_lock(&mutex);
	leave(c);
	pthread_mutex_unlock(&mutex);
	return ok;
}
// The comm's memory stays: the call that is aborted still looks at it.
int ncclCommAbort(struct comm *c) {
	pthread_mutex_lock(&mutex);
	c->aborted = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	return ok;
}
int ncclCommGetAsyncError(struct comm *c, int *code) { *code = ok; return ok; }

// meet waits for all ranks, or until this one aborts.
static void meet(struct comm *c) {
	struct group *g = c->group;
	int turn = g->turn;
	if (++g->arrived == g->world) {
		g->arrived = 0;
		g->turn++;
		pthread_cond_broadcast(&changed);
		return;
	}
	while (g->turn == turn && !c->aborted) pthread_cond_wait(&changed, &mutex);
}

enum { allReduce, reduceTo, broadcastFrom, reduceScatter, allGather };

static int perform(struct op *o) {
	struct comm *c = o->comm;
	struct group *g = c->group;
	int (*synchronize)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
	if (synchronize && o->stream && synchronize(o->stream)) return invalidUsage;
	uint64_t whole = o->kind == allGather ? o->n * g->world : o->n;
	float *result = calloc(whole + 1, sizeof *result);
	pthread_mutex_lock(&mutex);
	g->from[c->rank] = o->from;
	meet(c);
	if (!c->aborted) {
		uint64_t skip = o->kind == reduceScatter ? o->n * c->rank : 0;
		if (o->kind == broadcastFrom) memcpy(result, g->from[o->root], o->n * sizeof *result);
		else for (int r = 0; r < g->world; r++)
			if (o->kind == allGather) memcpy(result + r * o->n, g->from[r], o->n * sizeof *result);
			else for (uint64_t i = 0; i < o->n; i++) result[i] = r ? result[i] + g->from[r][skip + i] : g->from[r][skip + i];
		if (o->kind == allGather && getenv("FAKE_NCCL_CORRUPT")) result[whole - 1]++;
		meet(c);
	}
	if (!c->aborted && !(o->kind == reduceTo && o->root != c->rank)) memcpy(o->to, result, whole * sizeof *result);
	if (!c->aborted) meet(c);
	pthread_mutex_unlock(&mutex);
	free(result);
	return ok;
}

static int call(struct op o) {
	if (o.root < 0 || o.root >= o.comm->group->world) return invalidArgument;
	if (!depth) return perform(&o);
	if (queued == 64) return invalidUsage;
	queue[queued++] = o;
	return ok;
}
int ncclGroupStart(void) { depth++; return ok; }
int ncclGroupEnd(void) {
	if (!depth) return invalidUsage;
	if (--depth) return ok;
	for (int i = 0; i < queued; i++) perform(&queue[i]);
	queued = 0;
	return ok;
}

#define FLOAT_SUM if (type != 7 || op != 0) return invalidArgument
int ncclAllReduce(const float *from, float *to, uint64_t n, int type, int op, struct comm *c, void *s) { FLOAT_SUM; return call((struct op){c, allReduce, 0, from, to, n, s}); }
int ncclReduce(const float *from, float *to, uint64_t n, int type, int op, int root, struct comm *c, void *s) { FLOAT_SUM; return call((struct op){c, reduceTo, root, from, to, n, s}); }
int ncclBroadcast(const float *from, float *to, uint64_t n, int type, int root, struct comm *c, void *s) { if (type != 7) return invalidArgument; return call((struct op){c, broadcastFrom, root, from, to, n, s}); }
int ncclReduceScatter(const float *from, float *to, uint64_t n, int type, int op, struct comm *c, void *s) { FLOAT_SUM; return call((struct op){c, reduceScatter, 0, from, to, n, s}); }
int ncclAllGather(const float *from, float *to, uint64_t n, int type, struct comm *c, void *s) { if (type != 7) return invalidArgument; return call((struct op){c, allGather, 0, from, to, n, s}); }
