/* Allocates pinned host memory. It is expensive to obtain, so freed blocks are cached, in powers of two. A block that a
 * stream may still use when it is freed is reused after an event recorded behind that use completes. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/alloc.h"
#include "device/graph.h"
#include "device/stream_core.h"

enum { SMALLEST_LOG2 = 9, LARGEST_LOG2 = 47, CLASSES = LARGEST_LOG2 + 1, USES = 16 };

typedef struct use {
  lm_stream *stream;
  uint64_t given; /* the stream's `given` count after this use */
  void *event;    /* recorded behind the use; NULL: not yet */
} use;

typedef struct block {
  char *p;
  int log2; /* log2 of its bytes */
  bool live;
  bool stuck; /* never reused: it has more users than `uses` holds, or a graph that may be replayed */
  int nuses;
  use uses[USES];
  struct block *next; /* next in the idle list of its size, or in `waiting` */
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block **all; /* sorted by address */
static size_t count, capacity;
static block *idle[CLASSES], *waiting;

static const lm_driver *pinning_driver(void) {
  for (int kind = LM_CPU + 1; kind < LM_DEVICE_KINDS; kind++) {
    int count = lm_device_count(kind); /* loads the plug-in */
    const lm_driver *driver = lm_driver_of(LM_DEVICE(kind, 0));
    if (driver && driver->host_alloc && count > 0) return driver;
  }
  return NULL;
}

/* Returns the index of the last block that starts at p or before; -1 if there is none. */
static ptrdiff_t index_of(const void *p) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if ((uintptr_t)all[middle]->p <= (uintptr_t)p) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return (ptrdiff_t)low - 1;
}

/* Returns the block that contains p, or NULL. Requires the lock. */
static block *block_of(const void *p) {
  ptrdiff_t i = index_of(p);
  if (i < 0) return NULL;
  return (uintptr_t)p - (uintptr_t)all[i]->p < (uintptr_t)1 << all[i]->log2 ? all[i] : NULL;
}

/* Sets *over if the stream has completed the use. */
static lm_status is_use_over(use *u, bool *over) {
  lm_device device = u->stream->device;
  *over = lm_stream_is_done(u->stream, u->given);
  if (!u->event && !*over) NEED(lm_stream_mark(u->stream, &u->event));
  if (u->event && !*over) NEED(lm_driver_of(device)->event_query(lm_device_physical(device), u->event, over));
  if (*over && u->event) lm_event_put(device, false, u->event);
  return LM_OK;
}

/* Moves waiting blocks whose uses are over to `idle`; a capture forbids the queries. Requires the lock. */
static lm_status reclaim(void) {
  if (lm_graph_capturing()) return LM_OK;
  for (block **at = &waiting; *at;) {
    block *b = *at;
    for (int i = 0; i < b->nuses;) {
      bool over;
      NEED(is_use_over(&b->uses[i], &over));
      if (over) {
        b->uses[i] = b->uses[--b->nuses];
      } else {
        i++;
      }
    }
    if (b->nuses > 0 || b->stuck) {
      at = &b->next;
      continue;
    }
    *at = b->next;
    b->next = idle[b->log2];
    idle[b->log2] = b;
  }
  return LM_OK;
}

/* Allocates a block and inserts it into `all`. Requires the lock. */
static lm_status make_block(const lm_driver *driver, int log2, block **out) {
  LM_FREED block *b = lm_calloc(1, sizeof *b);
  *out = NULL;
  if (!b) return LM_E_OOM;
  if (!lm_list_grow(&all, &capacity, count + 1, sizeof *all)) return LM_E_OOM;
  NEED(driver->host_alloc((size_t)1 << log2, (void **)&b->p));
  b->log2 = log2;
  size_t at = (size_t)(index_of(b->p) + 1);
  memmove(all + at + 1, all + at, (count - at) * sizeof *all);
  all[at] = b;
  count++;
  *out = b;
  b = NULL;
  return LM_OK;
}

lm_status lm_pinned_alloc(size_t bytes, void **out) {
  lm_status status = LM_OK;
  const lm_driver *driver = pinning_driver();
  *out = NULL;
  if (!driver)
    return lm_fail(LM_E_MISSING, "pin_memory: cannot pin without a CUDA device: %s", lm_device_why_none(LM_CPU + 1));
  int log2 = SMALLEST_LOG2;
  while (log2 < LARGEST_LOG2 && (size_t)1 << log2 < bytes) log2++;
  if (lm_alloc_must_fail() || (size_t)1 << log2 < bytes) return lm_fail_memory("%zu bytes of pinned memory", bytes);
  LM_LOCKED(&lock);
  status = reclaim();
  block *b = idle[log2];
  if (status == LM_OK && b) {
    idle[log2] = b->next;
  } else if (status == LM_OK) {
    status = make_block(driver, log2, &b);
  }
  if (status == LM_OK) {
    b->live = true;
    *out = b->p;
  }
  return status;
}

void lm_pinned_free(void *p) {
  LM_LOCKED(&lock);
  block *b = p ? block_of(p) : NULL;
  if (b && b->live && b->p == p) {
    block **list = b->nuses > 0 || b->stuck ? &waiting : &idle[b->log2];
    b->live = false;
    b->next = *list;
    *list = b;
  }
}

bool lm_is_pinned(const void *p) {
  LM_LOCKED(&lock);
  return block_of(p) != NULL;
}

void lm_pinned_use(const void *p, lm_stream *s) {
  LM_LOCKED(&lock);
  block *b = s->native ? block_of(p) : NULL;
  int i = 0;
  while (b && i < b->nuses && b->uses[i].stream != s) i++;
  if (b && (i == USES || lm_stream_capture(s))) {
    b->stuck = true;
  } else if (b) {
    if (i == b->nuses) b->uses[b->nuses++] = (use){.stream = s};
    b->uses[i].given = lm_stream_given(s) + 1; /* counts the work being given now */
  }
}

void lm_pinned_empty_cache(void) {
  LM_LOCKED(&lock);
  reclaim();
  bool alone = lm_graph_block();
  const lm_driver *driver = alone && count > 0 ? pinning_driver() : NULL;
  for (int c = 0; c < CLASSES && driver; c++) {
    for (block *b; (b = idle[c]);) {
      size_t at = (size_t)index_of(b->p);
      idle[c] = b->next;
      memmove(all + at, all + at + 1, (count - at - 1) * sizeof *all);
      count--;
      driver->host_free(b->p);
      lm_free(b);
    }
  }
  if (alone) lm_graph_unblock();
}
