// Blocks of a kernel's threads, one cluster of blocks after the other, which has one block unless the kernel says otherwise. A thread is a fiber, which runs until it
// waits for others: at a barrier, or where a warp exchanges values. Warps move in step there: all lanes that still run must come by. Where a thread sleeps, its whole
// block may be waiting for another card's: then other threads of the process may go on.
//
// What is here belongs to a thread of the process, since such kernels run at the same time.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct dim3 { unsigned x, y, z; };
__thread struct dim3 fakeThread, fakeBlock, fakeGrid, fakeSize; // as kernel.h has them

void letOthers(void); // fake.c

enum { most = 4096, mostBlocks = 8, stack = 128 << 10, lanes = 32, numbered = 16 };

// switchTo saves the registers and the stack's top at *from, and goes on at to.
void switchTo(void **from, void *to);
__asm__(
	".text\n.globl switchTo\n.hidden switchTo\n.type switchTo,@function\nswitchTo:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

// barrier is where threads wait until all of them that still run have arrived.
struct barrier { int alive, arrived, passed; };

static __thread void *scheduler, *fibers[most];
static __thread char *stacks, *memory;
static __thread size_t memorySize; // of a block
static __thread int ended[most], running, size;
static __thread struct barrier cluster, blocks[mostBlocks], more[mostBlocks][numbered];
static __thread unsigned shown[2][most], shownRows[2][most][4]; // what lanes show each other, in turns
static __thread int turn[most];
static __thread void (*function)(void *);
static __thread void *parameter;

static void pause_(void) {
	int me = running;
	switchTo(&fibers[me], scheduler);
}

static void open_(struct barrier *b) {
	if (b->arrived && b->arrived == b->alive) {
		b->arrived = 0;
		b->passed++;
	}
}

static void leave(struct barrier *b) {
	b->alive--;
	open_(b);
}

static void wait_(struct barrier *b) {
	int before = b->passed;
	b->arrived++;
	open_(b);
	while (b->passed == before) pause_();
}

static void fiber(void) {
	function(parameter);
	ended[running] = 1;
	leave(&cluster);
	leave(&blocks[running / size]);
	switchTo(&fibers[running], scheduler);
	abort();
}

// fakeBarrier is __syncthreads, fakeMeet the same for a cluster's blocks.
void fakeBarrier(void) { wait_(&blocks[running / size]); }
void fakeMeet(void) { wait_(&cluster); }

// fakeTogether makes the thread one of n that wait at one of its block's barriers.
void fakeTogether(int barrier, int n) {
	struct barrier *b = &more[running / size][barrier];
	b->alive = n;
	wait_(b);
}

// fakeRunning is the thread's number in its cluster, fakeMemory the shared memory that the launch gave to a block of that.
int fakeRunning(void) { return running; }
char *fakeMemory(int block) { return memory + block * memorySize; }

// fakeExchange shows a word to the warp's other lanes and gives what they show: 32 words.
const unsigned *fakeExchange(unsigned word) {
	int me = running, t = turn[me];
	turn[me] = !t;
	shown[t][me] = word;
	pause_(); // until the others have shown theirs
	return &shown[t][me / lanes * lanes];
}

// fakeExchangeRow does the same with a row of four words: 32 rows.
const unsigned (*fakeExchangeRow(const unsigned *row))[4] {
	int me = running, t = turn[me];
	turn[me] = !t;
	memcpy(shownRows[t][me], row, sizeof shownRows[t][me]);
	pause_();
	return (const unsigned(*)[4])shownRows[t][me / lanes * lanes];
}

// fakeSleep is __nanosleep.
void fakeSleep(void) {
	letOthers();
	pause_();
}

// runBlocks runs clusters of so many blocks along x, each block with so many bytes of shared memory.
void runBlocks(unsigned x, unsigned y, unsigned z, unsigned threads, unsigned together, unsigned shared, void (*call)(void *), void *arguments) {
	if (!stacks) stacks = mmap(NULL, (size_t)stack * most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	fakeGrid = (struct dim3){x, y, z};
	fakeSize = (struct dim3){threads, 1, 1};
	function = call;
	parameter = arguments;
	size = threads;
	memorySize = (shared + 127) / 128 * 128;
	memory = memorySize ? aligned_alloc(1024, (memorySize * together + 1023) / 1024 * 1024) : NULL;
	const unsigned all = threads * together;
	for (unsigned first = 0; first < x * y * z; first += together) {
		if (memory) memset(memory, 0xff, memorySize * together); // no number
		for (unsigned t = 0; t < all; t++) {
			void **top = (void **)(stacks + (size_t)stack * (t + 1));
			*--top = NULL;
			*--top = (void *)fiber;
			top -= 6; // registers
			fibers[t] = top;
			ended[t] = turn[t] = 0;
			for (int i = 0; i < 2; i++) shown[i][t] = 0, memset(shownRows[i][t], 0, sizeof shownRows[i][t]);
		}
		cluster = (struct barrier){all};
		for (unsigned b = 0; b < together; b++) blocks[b] = (struct barrier){threads};
		memset(more, 0, sizeof more);
		while (cluster.alive)
			for (unsigned t = 0; t < all; t++) {
				if (ended[t]) continue;
				const unsigned b = first + t / threads;
				running = t;
				fakeThread = (struct dim3){t % threads, 0, 0};
				fakeBlock = (struct dim3){b % x, b / x % y, b / x / y};
				switchTo(&scheduler, fibers[t]);
			}
	}
	free(memory);
}
