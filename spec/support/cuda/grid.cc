/* The emulated grid. Blocks run one after another. A block's threads run as plain calls, one after another on one
 * stack, until one meets a barrier or a warp operation: it keeps that stack and waits, and the rest continue with
 * another.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "counts.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
dim3 lm_fake_grid_dim, lm_fake_block_dim;
uint3 lm_fake_block, lm_fake_thread;
/* Saves the callee-saved registers and the stack pointer, loads others. */
void lm_fake_switch(void **save, void *load);
}
asm(R"(
.text
.globl lm_fake_switch
.hidden lm_fake_switch
.type lm_fake_switch, @function
lm_fake_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lm_fake_switch, .-lm_fake_switch
)");

enum { STACK = 512 << 10, GUARD = 4096, SHARED_MAX = 232448, SHARED_GUARD = 1024, GUARD_BYTE = 0xa5 };

/* A suspended stack: where it continues, and its lowest address. */
typedef struct context {
  void *sp;
  char *low;
} context;

enum thread_state { NOT_STARTED, RUNNING, AT_BARRIER, AT_WARP, RESUMABLE, EXITED };

typedef struct lane {
  context at;
  uint3 index;
  enum thread_state state;
  int operation, source, result;
  unsigned mask;
  unsigned long long bits, answer, *all;
} lane;

static struct {
  /* The grid. */
  const lm_fake_kernel *kernel;
  void (*call)(const void *, void *const *);
  void *const *args;
  const std::function<void()> *work; /* instead of a kernel */
  const char *name;
  bool reverse;
  uint64_t seed; /* seed of a random order; 0: none */
  size_t shared;
  /* The block. */
  int threads, next, exited, arrived, votes;
  lane thread[LM_MAX_BLOCK];
  int ready[LM_MAX_BLOCK], ready_first, ready_count;
  int self;
  /* Stacks. */
  context main, idle[LM_MAX_BLOCK + 1];
  char *stack[LM_MAX_BLOCK + 1], *low; /* low: of the stack in use */
  int stacks, idle_count;
  /* The run. */
  volatile bool active;
  pthread_t owner;
  int code;
  bool left_main; /* true until the main stack has been entered again */
} g;

alignas(16) static unsigned char dynamic_shared[SHARED_MAX + SHARED_GUARD];

extern "C" void *lm_fake_dynamic_shared(void) { return dynamic_shared; }
extern "C" int lm_fake_lane(void) { return g.self % LM_WARP; }

/* ---- stacks ---- */

#ifdef __SANITIZE_ADDRESS__
/* The sanitizer has to know each stack; the context that we come from is the thread's own. */
static struct {
  const void *low;
  size_t bytes;
} own_stack;

static void landed(void *fake) {
  const void *low;
  size_t bytes;
  __sanitizer_finish_switch_fiber(fake, &low, &bytes);
  if (g.left_main) own_stack.low = low, own_stack.bytes = bytes;
  g.left_main = false;
}
#endif

static void switch_to(context *save, context to) {
  save->low = g.low;
  g.low = to.low;
#ifdef __SANITIZE_ADDRESS__
  void *fake = NULL;
  __sanitizer_start_switch_fiber(&fake, to.low ? to.low : own_stack.low, to.low ? (size_t)STACK : own_stack.bytes);
  lm_fake_switch(&save->sp, to.sp);
  landed(fake);
#else
  lm_fake_switch(&save->sp, to.sp);
#endif
}

static void stack_main(void);

/* Returns a stack that begins with stack_main. */
static context stack_fresh(char *low) {
  void **top = (void **)(low + STACK);
  top[-2] = (void *)stack_main; /* lm_fake_switch returns there; its caller's stack was 16-byte aligned */
  for (int i = 3; i <= 8; i++) top[-i] = NULL;
  context c = {top - 8, low};
  return c;
}

static context stack_take(void) {
  if (g.idle_count > 0) return g.idle[--g.idle_count];
  char *p =
      (char *)mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE) != 0) {
    fprintf(stderr, "fake cuda: no memory for the stack of a kernel's thread\n");
    abort();
  }
  g.stack[g.stacks++] = p + GUARD;
  return stack_fresh(p + GUARD);
}

/* ---- the end of a run that went wrong ---- */

/* Fails the grid. Not marked noreturn: the sanitizer would take the whole stack for done with. */
static void __attribute__((format(printf, 2, 3))) fail(int code, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  fprintf(stderr, "fake cuda: %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n", g.name, lm_fake_block.x,
          lm_fake_block.y, lm_fake_block.z, lm_fake_thread.x, lm_fake_thread.y, lm_fake_thread.z, text);
  g.code = code;
  context dropped;
  switch_to(&dropped, g.main);
  abort(); /* nobody resumes it */
}

static const char *const WAITS[] = {"not started",         "running", "in __syncthreads",
                                    "in a warp operation", "resumed", "returned"};

/* ---- orders ---- */

static uint64_t mixed(uint64_t x) { /* splitmix64 */
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Returns the i-th of n in the order that is requested: a random one is a walk by steps that meet all. */
static uint64_t in_order(uint64_t i, uint64_t n) {
  if (g.reverse) return n - 1 - i;
  if (g.seed == 0 || n < 3) return g.seed == 0 ? i : n - 1 - i;
  uint64_t step = mixed(g.seed) % (n - 1) + 1;
  while (common_divisor(step, n) != 1) step++;
  return (uint64_t)(((unsigned __int128)step * i + mixed(g.seed + 1)) % n);
}

/* Fails as some threads wait and none is left to run. */
static void fail_stuck(void) {
  int first[6] = {-1, -1, -1, -1, -1, -1}, count[6] = {0};
  for (int i = 0; i < g.threads; i++) {
    if (count[g.thread[i].state]++ == 0) first[g.thread[i].state] = i;
  }
  char text[400];
  int at = 0;
  for (int s = AT_BARRIER; s <= EXITED; s++) {
    if (count[s] == 0) continue;
    int n = snprintf(text + at, sizeof text - (size_t)at, "%s%d %s (first: %d)", at ? ", " : "", count[s], WAITS[s],
                     first[s]);
    at += n;
  }
  for (int i = 0; i < g.threads; i++) {
    if (g.thread[i].state != AT_WARP) continue;
    snprintf(text + at, sizeof text - (size_t)at, "; thread %d waits for lanes %08x", i, g.thread[i].mask);
    break;
  }
  fail(cudaErrorLaunchFailure, "a barrier that not all of %d threads reach: %s", g.threads, text);
}

/* ---- who runs next ---- */

static void make_ready(int t) {
  g.thread[t].state = RESUMABLE;
  g.ready[(g.ready_first + g.ready_count++) % LM_MAX_BLOCK] = t;
}

static context pick(void) {
  if (g.ready_count > 0) {
    int t = g.ready[g.ready_first];
    g.ready_first = (g.ready_first + 1) % LM_MAX_BLOCK;
    g.ready_count--;
    g.thread[t].state = RUNNING;
    g.self = t;
    lm_fake_thread = g.thread[t].index;
    return g.thread[t].at;
  }
  if (g.next < g.threads) return stack_take();
  if (g.exited < g.threads) fail_stuck();
  return g.main;
}

static void stack_main(void) {
#ifdef __SANITIZE_ADDRESS__
  landed(NULL);
#endif
  for (;;) {
    if (g.work) {
      const std::function<void()> *work = g.work;
      g.work = NULL;
      (*work)();
    }
    while (g.next < g.threads) {
      int t = (int)in_order((uint64_t)g.next, (uint64_t)g.threads);
      g.next++;
      unsigned x = lm_fake_block_dim.x, y = lm_fake_block_dim.y, n = (unsigned)t;
      g.self = t;
      g.thread[t].state = RUNNING;
      g.thread[t].index = lm_fake_thread = make_uint3(n % x, n / x % y, n / x / y);
      g.call(g.kernel->body, g.args);
      g.thread[g.self].state = EXITED; /* self is t again: whoever is resumed sets it */
      g.exited++;
    }
    context to = pick();
    switch_to(&g.idle[g.idle_count++], to);
  }
}

static void wait_here(enum thread_state state) {
  lane *me = &g.thread[g.self];
  me->state = state;
  context to = pick();
  switch_to(&me->at, to);
}

/* ---- what a thread may wait for ---- */

extern "C" int lm_fake_barrier(int predicate) {
  int me = g.self;
  g.votes += predicate != 0;
  if (++g.arrived < g.threads) {
    wait_here(AT_BARRIER);
    return g.thread[me].result;
  }
  int votes = g.votes;
  g.arrived = g.votes = 0;
  for (int i = 0; i < g.threads; i++) {
    int t = (int)in_order((uint64_t)i, (uint64_t)g.threads);
    g.thread[t].result = votes;
    if (t != me) make_ready(t);
  }
  return votes;
}

extern "C" unsigned long long lm_fake_meet(int operation, unsigned mask, unsigned long long bits, int source,
                                           unsigned long long *all) {
  int own = g.self % LM_WARP, base = g.self - own;
  lane *me = &g.thread[g.self], *warp = g.thread + base;
  if (!(mask >> own & 1))
    fail(cudaErrorLaunchFailure, "a warp operation whose mask %08x lacks its own lane %d", mask, own);
  int lanes = g.threads - base < LM_WARP ? g.threads - base : LM_WARP;
  me->operation = operation, me->mask = mask, me->bits = bits, me->source = source, me->all = all;
  for (int n = 1; n < lanes; n++) { /* from the next lane on: it is the one that most often has yet to come */
    int i = (own + n) % lanes;
    lane *other = warp + i;
    if (!(mask >> i & 1)) continue;
    if (other->state == EXITED) {
      fail(cudaErrorLaunchFailure, "a warp operation with mask %08x, whose lane %d has returned", mask, i);
    }
    if (other->state == AT_WARP && other->operation == operation && other->mask == mask) continue;
    wait_here(AT_WARP);
    return me->answer;
  }
  unsigned ballot = 0;
  for (int i = 0; i < lanes; i++) {
    if (mask >> i & 1 && warp[i].bits != 0) ballot |= 1u << i;
  }
  for (int i = 0; i < lanes; i++) {
    lane *other = warp + i;
    if (!(mask >> i & 1)) continue;
    /* A lane that takes no part has all bits set: not a number, in any type. */
    bool there = other->source >= 0 && other->source < lanes && mask >> other->source & 1;
    other->answer = operation == LM_FAKE_BALLOT ? ballot : there ? warp[other->source].bits : ~0ull;
    for (int j = 0; operation == LM_FAKE_GATHER && j < LM_WARP; j++) {
      other->all[j] = j < lanes && mask >> j & 1 ? warp[j].bits : 0;
    }
    if (i != own) make_ready(base + i);
  }
  return me->answer;
}

typedef struct copy {
  char *to;
  const void *from;
} copy;
static std::vector<copy> copies[LM_MAX_BLOCK]; /* copies of each thread */

extern "C" void lm_fake_copy_begin(void *to, const void *from) {
  memset(to, 0xff, 16);
  copies[g.self].push_back({(char *)to, from});
}

extern "C" void lm_fake_copies_wait(void) {
  for (const copy &c : copies[g.self]) {
    if (c.from) {
      memcpy(c.to, c.from, 16);
    } else {
      memset(c.to, 0, 16);
    }
  }
  copies[g.self].clear();
}

/* ---- faults ---- */

bool lm_fake_is_in_kernel() { return g.active && g.kernel && pthread_equal(pthread_self(), g.owner); }

void lm_fake_kernel_fault(int code, const char *text) { fail(code, "%s", text); }

static struct sigaction earlier[2]; /* SIGSEGV's, SIGBUS's */

static void on_fault(int number, siginfo_t *info, void *ucontext) {
  if (g.active && pthread_equal(pthread_self(), g.owner)) {
    fail(cudaErrorIllegalAddress, "illegal access to %p", info->si_addr);
  }
  int device = lm_fake_range_of(info->si_addr);
  if (device >= 0) {
    char text[120];
    int n =
        snprintf(text, sizeof text, "fake cuda: host code touched %p, memory of device %d\n", info->si_addr, device);
    if (write(STDERR_FILENO, text, (size_t)n) < 0) number = SIGSEGV;
  }
  const struct sigaction *next = &earlier[number == SIGBUS];
  if (next->sa_flags & SA_SIGINFO) {
    next->sa_sigaction(number, info, ucontext);
  } else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN) {
    next->sa_handler(number);
  } else {
    signal(number, SIG_DFL); /* the fault repeats on return, and ends the process */
  }
}

void lm_fake_catch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER; /* left by switching stacks */
  sigaction(SIGSEGV, &action, &earlier[0]);
  sigaction(SIGBUS, &action, &earlier[1]);
}

/* ---- running ---- */

/* Switches to a stack until it comes back; after a failure all stacks begin again. */
static void enter(void) {
  context to = stack_take();
  g.active = g.left_main = true;
  switch_to(&g.main, to);
  g.active = false;
  if (g.code == 0) return;
  g.idle_count = 0;
  for (int i = 0; i < g.stacks; i++) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(g.stack[i], STACK); /* frames on this stack never returned */
#endif
    g.idle[g.idle_count++] = stack_fresh(g.stack[i]);
  }
}

static void start(const char *name) {
  g.owner = pthread_self();
  g.name = name;
  g.code = 0;
  g.threads = g.next = g.exited = g.arrived = g.votes = g.ready_count = 0;
  static const bool reverse = lm_fake_setting("LM_FAKE_CUDA_REVERSE", 0) != 0;
  static uint64_t seed = (uint64_t)lm_fake_setting("LM_FAKE_CUDA_RANDOM", 0);
  g.reverse = reverse;
  g.seed = seed;
  if (seed) seed = mixed(seed);
}

int lm_fake_run_work(const std::function<void()> &work, const char *name) {
  uint64_t began = lm_fake_nanoseconds();
  start(name);
  lm_fake_block = lm_fake_thread = make_uint3(0, 0, 0);
  g.kernel = NULL;
  g.work = &work;
  enter();
  lm_fake_record_activity(name, began);
  return g.code;
}

static void run_block(void) {
  for (auto &variable : g.kernel->shared) memset(variable.first, 0xff, variable.second);
  memset(dynamic_shared, 0xff, g.shared);
  memset(dynamic_shared + g.shared, GUARD_BYTE, SHARED_GUARD);
  g.next = g.exited = g.arrived = g.votes = g.ready_count = 0;
  for (int i = 0; i < g.threads; i++) {
    g.thread[i].state = NOT_STARTED;
    copies[i].clear();
  }
  enter();
  for (int i = 0; i < SHARED_GUARD && g.code == 0; i++) {
    if (dynamic_shared[g.shared + (size_t)i] == GUARD_BYTE) continue;
    fprintf(stderr, "fake cuda: %s, block (%u, %u, %u): wrote byte %d behind its %zu bytes of dynamic shared memory\n",
            g.name, lm_fake_block.x, lm_fake_block.y, lm_fake_block.z, i, g.shared);
    g.code = cudaErrorIllegalAddress;
  }
}

int lm_fake_run_grid(const lm_fake_kernel &kernel, void (*call)(const void *, void *const *), void *const *args,
                     dim3 grid, dim3 block, size_t shared) {
  uint64_t began = lm_fake_nanoseconds();
  start(kernel.name.c_str());
  g.kernel = &kernel, g.call = call, g.args = args, g.shared = shared, g.work = NULL;
  g.threads = (int)(block.x * block.y * block.z);
  lm_fake_grid_dim = grid, lm_fake_block_dim = block;
  uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  uint64_t most = (uint64_t)lm_fake_counted_blocks(), ran = most > 0 && blocks > most ? most : blocks;
  lm_fake_check_launch();
  if (lm_fake_is_counting()) lm_fake_count_launch();
  for (uint64_t i = 0; i < ran && g.code == 0; i++) {
    uint64_t b = ran < blocks ? (2 * i + 1) * blocks / (2 * ran) : in_order(i, blocks); /* the middle of each share */
    lm_fake_check_block((uint32_t)b);
    lm_fake_count_block((unsigned)i);
    lm_fake_block =
        make_uint3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y));
    run_block();
  }
  lm_fake_record_activity(kernel.name.c_str(), began);
  if (!lm_fake_is_counting()) return g.code;
  lm_fake_record_launch(kernel.name.c_str(), blocks, ran);
  return 0; /* garbage may lead a body astray */
}
