/* Maps memory shared by the ranks of a host, and waits for their flags by futex.
 *
 * The first rank of each host makes a memory file and publishes its process id and descriptor in the store; the host's
 * other ranks open /proc/<pid>/fd/<fd>, if the system permits. A nonce in the file shows that it is the right one (with
 * several pid namespaces it may not be), and seals that it cannot shrink. Then the group's ranks, those of all hosts,
 * agree if all have mapped theirs. The files have no names and the descriptors are closed, so the end of a host's last
 * rank frees the memory. */
#include "distributed/group/shared_memory.h"
#include "base/descriptor.h"
#include "distributed/group/call_timeouts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/environment_variable.h"
#include "base/file_size_limit.h"
#include "base/log.h"
#include "base/mem.h"
#include "distributed/group/group_core.h"
#include "distributed/net/auth.h"

enum { PAGE = 4096, NONCE = 32 };
static const double busy = 50e-6;             /* seconds of busy waiting: a few times the cost of waking a thread */
static const long sleep_time = 20 * 1000000l; /* nanoseconds between checks of the world's health */

typedef struct flag { /* a flag: one cache line, so that one transfer moves all of it */
  _Alignas(64) _Atomic uint32_t value;
  _Atomic uint32_t waiters; /* ranks in FUTEX_WAIT; a dead one stays counted: then each post is a system call */
} flag;

typedef struct rank_block {
  flag flag[LM_SHARED_FLAGS];
  lm_ticket ticket[2];
} rank_block;

typedef struct head {
  char nonce[2 * NONCE + 1];
} head;

struct lm_shared {
  _Atomic int rc;
  lm_group *g;
  lm_host_layout *at;
  char *map;         /* head | blocks | regions, each starting on a new page */
  size_t bytes;      /* size of map */
  rank_block *block; /* [at->n] */
  char *region;      /* the first rank's region */
  size_t stride;     /* bytes between regions */
};

static size_t blocks_size(int n) { return lm_round_up((size_t)n * sizeof(rank_block), PAGE); }
static size_t whole_size(int n, size_t bytes) { return PAGE + blocks_size(n) + (size_t)n * lm_round_up(bytes, PAGE); }

/* ---- opening */

static lm_shared *map_file(int n, int fd, size_t bytes) {
  size_t blocks = blocks_size(n), stride = lm_round_up(bytes, PAGE), total = whole_size(n, bytes);
  struct stat info;
  if (fstat(fd, &info) != 0 || (size_t)info.st_size != total) return NULL;
  lm_shared *s = lm_calloc(1, sizeof *s);
  if (!s) return NULL;
  void *map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) {
    lm_free(s);
    return NULL;
  }
  atomic_init(&s->rc, 1);
  s->map = map;
  s->bytes = total;
  s->block = (rank_block *)(s->map + PAGE);
  s->region = s->map + PAGE + blocks;
  s->stride = stride;
  return s;
}

static bool is_shm_allowed(void) { return lm_variable_is_on(LM_VAR_SHM, true); }

static int shared_make_file(int n, size_t bytes) {
  int fd = lm_fd_above_stdio(memfd_create("luminary", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return -1;
  lm_file_limit limit;
  lm_file_limit_begin(&limit);
  bool sized = ftruncate(fd, (off_t)whole_size(n, bytes)) == 0;
  lm_file_limit_end(&limit);
  if (sized && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) return fd;
  close(fd);
  return -1;
}

static lm_shared *join_file(int n, const char *offer, size_t bytes) {
  long pid;
  int its_fd, seals, fd;
  char nonce[2 * NONCE + 1], path[64];
  if (!is_shm_allowed() || sscanf(offer, "%ld %d %64[0-9a-f]", &pid, &its_fd, nonce) != 3) return NULL;
  snprintf(path, sizeof path, "/proc/%ld/fd/%d", pid, its_fd);
  fd = lm_fd_above_stdio(open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (fd < 0) return NULL;
  seals = fcntl(fd, F_GET_SEALS);
  lm_shared *s = seals >= 0 && (seals & F_SEAL_SHRINK) ? map_file(n, fd, bytes) : NULL;
  close(fd);
  if (s && memcmp(((head *)s->map)->nonce, nonce, sizeof nonce) != 0) {
    lm_shared_release(s);
    s = NULL;
  }
  return s;
}

typedef struct key {
  char text[48];
} key;

static key key_of(const lm_ticket *ticket, const char *what, int rank) {
  key k;
  snprintf(k.text, sizeof k.text, "shared/%" PRIu64 "/%s/%d", ticket->seq, what, rank);
  return k;
}

static lm_status get_answer(lm_group *g, key k, bool *yes) {
  char answer = '0';
  lm_status status = lm_group_read(g, k.text, &answer, 1);
  *yes = answer == '1';
  return status;
}

/* The message of a host's first rank to its others: its ticket, and "pid fd nonce" of the file ("": none). */
typedef struct offer {
  lm_ticket ticket;
  char text[128];
} offer;

/* Makes and maps the file and publishes the offer. The caller closes *fd once all ranks have answered. */
static lm_status make_offer(lm_group *g, const lm_host_layout *at, const lm_ticket *ticket, size_t bytes, int *fd,
                            lm_shared **segment) {
  offer o = {.ticket = *ticket};
  if (is_shm_allowed()) *fd = shared_make_file(at->n, bytes);
  if (*fd >= 0) *segment = map_file(at->n, *fd, bytes);
  if (*segment) {
    head *h = (head *)(*segment)->map;
    lm_random_hex(h->nonce, NONCE);
    snprintf(o.text, sizeof o.text, "%ld %d %s", (long)getpid(), *fd, h->nonce);
  }
  return lm_group_set(g, key_of(ticket, "offer", g->rank).text, &o, sizeof o);
}

static lm_status take_offer(lm_group *g, const lm_host_layout *at, const lm_ticket *ticket, size_t bytes,
                            lm_shared **segment) {
  offer o;
  NEED(lm_group_read(g, key_of(ticket, "offer", at->local[0]).text, &o, sizeof o));
  if (o.ticket.hash != ticket->hash) return lm_group_mismatch(g, at->local[0], &o.ticket);
  o.text[sizeof o.text - 1] = 0;
  *segment = join_file(at->n, o.text, bytes);
  return LM_OK;
}

static lm_status shared_agree(lm_group *g, const lm_host_layout *at, const lm_ticket *ticket, size_t bytes,
                              lm_shared **out) {
  lm_status status;
  lm_shared *segment = NULL;
  int fd = -1;
  bool all, one;
  TRY(at->index == 0 ? make_offer(g, at, ticket, bytes, &fd, &segment) : take_offer(g, at, ticket, bytes, &segment));
  if (g->rank == 0) {
    all = segment;
    for (int r = 1; r < g->size; r++) {
      TRY(get_answer(g, key_of(ticket, "has", r), &one));
      all &= one;
    }
    TRY(lm_group_set(g, key_of(ticket, "all", 0).text, all ? "1" : "0", 1));
  } else {
    TRY(lm_group_set(g, key_of(ticket, "has", g->rank).text, segment ? "1" : "0", 1));
    TRY(get_answer(g, key_of(ticket, "all", 0), &all));
  }
  if (all) {
    *out = segment;
    segment = NULL;
  }
done:
  if (fd >= 0) close(fd);
  lm_shared_release(segment);
  return status;
}

/* Runs shared_agree as a numbered call of its own (LM_SETUP). */
static lm_status agree_alone(lm_group *g, const lm_host_layout *at, size_t bytes, lm_shared **out) {
  lm_waiting waiting;
  lm_ticket ticket = {
      .seq = atomic_fetch_add(&g->core->seq, 1) + 1, .kind = LM_SETUP, .hash = lm_hash_number(LM_NO_HASH, bytes)};
  snprintf(ticket.what, sizeof ticket.what, "sharing %zu bytes of memory", bytes);
  snprintf(ticket.where, sizeof ticket.where, "%.47s", lm_where());
  lm_waiting_begin(&waiting, LM_WAITING_UNTIL_DONE, g->core, &ticket, g->core->timeout);
  lm_status status = shared_agree(g, at, &ticket, bytes, out);
  lm_waiting_end(&waiting, status == LM_OK);
  return status;
}

lm_status lm_shared_open(lm_group *g, size_t bytes, lm_shared **out) {
  LM_FREED lm_host_layout *at = NULL;
  *out = NULL;
  if (g->size == 1) return LM_OK;
  NEED(lm_host_layout_get(g, &at));
  if (at->hosts == g->size) return LM_OK;
  /* Within a collective, perhaps on the queue's thread, sharing is part of that call. */
  const lm_ticket *call = lm_group_ticket(g);
  NEED(call->seq > 0 ? shared_agree(g, at, call, bytes, out) : agree_alone(g, at, bytes, out));
  if (lm_log_on(LM_LOG_DIST))
    lm_log(LM_LOG_DIST, "group %u: %zu bytes a rank %s by the ranks of each of %d host%s", g->core->id, bytes,
           *out ? "shared" : "cannot be shared", at->hosts, at->hosts > 1 ? "s" : "");
  if (!*out) return LM_OK;
  (*out)->g = g;
  (*out)->at = at;
  at = NULL;
  return LM_OK;
}

void lm_shared_retain(lm_shared *s) { atomic_fetch_add_explicit(&s->rc, 1, memory_order_relaxed); }

void lm_shared_release(lm_shared *s) {
  if (!s || atomic_fetch_sub_explicit(&s->rc, 1, memory_order_acq_rel) != 1) return;
  munmap(s->map, s->bytes);
  lm_free(s->at);
  lm_free(s);
}

const lm_host_layout *lm_shared_layout(const lm_shared *s) { return s->at; }
char *lm_shared_region(const lm_shared *s, int rank) { return s->region + (size_t)rank * s->stride; }
lm_ticket *lm_shared_ticket(const lm_shared *s, int rank, int which) { return &s->block[rank].ticket[which]; }

/* ---- flags */

static bool is_at_least(uint32_t now, uint32_t value) { return (int32_t)(now - value) >= 0; }

static bool has_reached(const struct flag *f, uint32_t value) {
  return is_at_least(atomic_load_explicit(&f->value, memory_order_acquire), value);
}

bool lm_shared_reached(const lm_shared *s, int rank, int flag, uint32_t value) {
  return has_reached(&s->block[rank].flag[flag], value);
}

/* Writes the value, then reads waiters; lm_shared_wait writes waiters, then reads the value. All four are sequentially
 * consistent, so either the poster sees the waiter or the waiter sees the value. */
void lm_shared_post(lm_shared *s, int flag, uint32_t value) {
  struct flag *f = &s->block[s->at->index].flag[flag];
  atomic_store(&f->value, value);
  if (atomic_load(&f->waiters) > 0) syscall(SYS_futex, &f->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void shared_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

lm_status lm_shared_wait(lm_shared *s, int rank, int flag, uint32_t value) {
  struct flag *f = &s->block[rank].flag[flag];
  if (has_reached(f, value)) return LM_OK;
  if (lm_group_may_spin(s->g)) {
    double until = lm_seconds() + busy;
    do {
      for (int i = 0; i < 32; i++) {
        if (has_reached(f, value)) return LM_OK;
        shared_relax();
      }
      sched_yield(); /* both ranks may share a core, and the scheduler is slow to notice */
    } while (lm_seconds() < until);
  }
  for (;;) {
    lm_status status = lm_group_check_and_test(s->g);
    if (status != LM_OK) return has_reached(f, value) ? LM_OK : status; /* a value that came before it counts */
    atomic_fetch_add(&f->waiters, 1);
    uint32_t now = atomic_load(&f->value);
    struct timespec time = {.tv_nsec = sleep_time};
    if (!is_at_least(now, value)) syscall(SYS_futex, &f->value, FUTEX_WAIT, now, &time, NULL, 0);
    atomic_fetch_sub(&f->waiters, 1);
    if (has_reached(f, value)) return LM_OK;
  }
}
