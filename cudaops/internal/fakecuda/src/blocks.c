// Blocks of a kernel's threads, one block after the other. A thread is a fiber, which runs until it waits for others: at a barrier of its
// block, or where a warp exchanges values. Warps move in step there: all lanes that still run must come by. Where a thread sleeps, its whole
// block may be waiting for another card's: then other threads of the process may go on.
//
// What is here belongs to a thread of the process, since such kernels run at the same time.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct dim3 { unsigned x, y, z; };
__thread struct dim3 fakeThread, fakeBlock, fakeGrid, fakeSize; // as kernel.h has them

void letOthers(void); // fake.c

enum { most = 1024, stack = 128 << 10, lanes = 32 };

// switchTo saves the registers and the stack's top at *from, and goes on at to.
void switchTo(void **from, void *to);
__asm__(
	".text\n.globl switchTo\n.hidden switchTo\n.type switchTo,@function\nswitchTo:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static __thread void *scheduler, *fibers[most];
static __thread char *stacks;
static __thread int ended[most], running, alive, arrived, passed;
static __thread unsigned shown[2][most]; // what lanes show each other, in turns
static __thread int turn[most];
static __thread void (*function)(void *);
static __thread void *parameter;

static void pause_(void) {
	int me = running;
	switchTo(&fibers[me], scheduler);
}

static void fiber(void) {
	function(parameter);
	ended[running] = 1;
	alive--;
	switchTo(&fibers[running], scheduler);
	abort();
}

static void meet(void) {
	if (arrived && arrived == alive) {
		arrived = 0;
		passed++;
	}
}

// fakeBarrier is __syncthreads.
void fakeBarrier(void) {
	int before = passed;
	arrived++;
	meet();
	while (passed == before) pause_();
}

// fakeExchange shows a word to the warp's other lanes and gives what they show: 32 words.
const unsigned *fakeExchange(unsigned word) {
	int me = running, t = turn[me];
	turn[me] = !t;
	shown[t][me] = word;
	pause_(); // until the others have shown theirs
	return &shown[t][me / lanes * lanes];
}

// fakeSleep is __nanosleep.
void fakeSleep(void) {
	letOthers();
	pause_();
}

void runBlocks(unsigned x, unsigned y, unsigned z, unsigned threads, void (*call)(void *), void *arguments) {
	if (!stacks) stacks = mmap(NULL, (size_t)stack * most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	fakeGrid = (struct dim3){x, y, z};
	fakeSize = (struct dim3){threads, 1, 1};
	function = call;
	parameter = arguments;
	for (unsigned b = 0; b < x * y * z; b++) {
		fakeBlock = (struct dim3){b % x, b / x % y, b / x / y};
		for (unsigned t = 0; t < threads; t++) {
			void **top = (void **)(stacks + (size_t)stack * (t + 1));
			*--top = NULL;
			*--top = (void *)fiber;
			top -= 6; // registers
			fibers[t] = top;
			ended[t] = turn[t] = 0;
			for (int i = 0; i < 2; i++) shown[i][t] = 0;
		}
		alive = threads;
		arrived = 0;
		while (alive)
			for (unsigned t = 0; t < threads; t++) {
				if (ended[t]) continue;
				running = t;
				fakeThread = (struct dim3){t, 0, 0};
				switchTo(&scheduler, fibers[t]);
				meet();
			}
	}
}
