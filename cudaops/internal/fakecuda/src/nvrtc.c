// An NVRTC that makes shared objects of kernels, with g++ and kernel.h, for the fake driver to run.
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct text { char *at; size_t n; };
struct program { char *source; struct text image, log; };
enum { ok = 0, internal = 11, compilation = 6 };

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return ok; }
const char *nvrtcGetErrorString(int code) { return code == compilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INTERNAL_ERROR"; }
int nvrtcGetNumSupportedArchs(int *n) { *n = 1; return ok; }
int nvrtcGetSupportedArchs(int *archs) { *archs = atoi(getenv("FAKE_CUDA_MAJOR")) * 10; return ok; }
int nvrtcCreateProgram(struct program **p, const char *source, const char *name, int headers, const char **contents, const char **names) {
	*p = calloc(1, sizeof **p);
	(*p)->source = strdup(source);
	return ok;
}
int nvrtcDestroyProgram(struct program **p) {
	free((*p)->source);
	free((*p)->image.at);
	free((*p)->log.at);
	free(*p);
	*p = NULL;
	return ok;
}

static int readAll(const char *path, struct text *t) {
	FILE *f = fopen(path, "rb");
	if (!f) return internal;
	fseek(f, 0, SEEK_END);
	t->n = ftell(f);
	rewind(f);
	t->at = malloc(t->n + 1);
	size_t n = fread(t->at, 1, t->n, f);
	fclose(f);
	return n == t->n ? ok : internal;
}

// binders writes a bind_NAME for every kernel NAME: the first name after __global__ that a parenthesis follows, but attributes; and a cluster_NAME, how many
// blocks that has.
static void binders(FILE *f, const char *s) {
	while ((s = strstr(s, "__global__"))) {
		s += strlen("__global__");
		unsigned together = 1;
		for (;;) {
			while (*s && !isalpha(*s) && *s != '_') s++;
			const char *name = s;
			while (isalnum(*s) || *s == '_') s++;
			if (!*s) return;
			if (*s != '(') continue;
			int n = s - name;
			if (!strncmp(name, "__", 2)) {
				sscanf(name, "__cluster_dims__(%u", &together);
				s = strchr(s, ')');
				continue;
			}
			fprintf(f, "extern \"C\" Bound *bind_%.*s(void **p) { return bind(%.*s, p); }\n", n, name, n, name);
			fprintf(f, "extern \"C\" const unsigned cluster_%.*s = %u;\n", n, name, together);
			break;
		}
	}
}

int nvrtcCompileProgram(struct program *p, int n, const char **options) {
	Dl_info me;
	char folder[512], path[600], command[4096];
	if (!dladdr((void *)nvrtcVersion, &me)) return internal;
	snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(me.dli_fname, '/') - me.dli_fname), me.dli_fname);
	char work[600];
	snprintf(work, sizeof work, "%s/kernelsXXXXXX", folder);
	if (!mkdtemp(work)) return internal;
	snprintf(path, sizeof path, "%.560s/tandem.cu", work);
	FILE *f = fopen(path, "w");
	if (!f) return internal;
	fputs(p->source, f);
	fputc('\n', f);
	binders(f, p->source);
	fclose(f);
	snprintf(command, sizeof command, "cd '%s' && g++ -Werror=invalid-pch -std=c++17 -pedantic-errors -O1 -shared -fPIC -fno-gnu-unique -include ../kernel.h -x c++ tandem.cu -o kernels.so >log 2>&1", work);
	int failed = system(command);
	snprintf(path, sizeof path, "%.560s/%s", work, failed ? "log" : "kernels.so");
	int code = readAll(path, failed ? &p->log : &p->image);
	snprintf(command, sizeof command, "rm -r '%s'", work);
	if (system(command)) return internal;
	return code ? code : failed ? compilation : ok;
}
int nvrtcGetCUBINSize(struct program *p, size_t *n) { *n = p->image.n; return ok; }
int nvrtcGetCUBIN(struct program *p, char *to) { memcpy(to, p->image.at, p->image.n); return ok; }
int nvrtcGetPTXSize(struct program *p, size_t *n) { return internal; }
int nvrtcGetPTX(struct program *p, char *to) { return internal; }
int nvrtcGetProgramLogSize(struct program *p, size_t *n) { *n = p->log.n; return ok; }
int nvrtcGetProgramLog(struct program *p, char *to) { memcpy(to, p->log.at, p->log.n); return ok; }
