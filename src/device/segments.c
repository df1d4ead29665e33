#include "device/segments.h"
#include "base/thread.h"
#include "device/graph.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/environment_variable.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "device/block_tree.h"
#include "device/memory_count.h"
#include "device/stream_core.h"
#include "integers.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

static const lm_segment_rules usual = {.round = 512,
                                       .small_limit = 1 << 20,
                                       .small_segment = 2 << 20,
                                       .large_segment = 20 << 20,
                                       .large_limit = 10 << 20,
                                       .large_round = 2 << 20};
static const lm_segment_rules one_each = {.round = 16, .large_round = 16};

typedef lm_block block;

struct lm_arena {
  lm_device device;
  block *tree[2][LM_STREAM_MAX]; /* free blocks by size, then address: [small][stream] */
};

typedef struct heap {     /* the memory of one device */
  lm_memory_count *count; /* counts, whose lock guards the heap */
  lm_device device;
  const lm_driver *driver;
  lm_segment_rules rules;
  lm_arena shared;
  block **bucket; /* blocks in use, hashed by address */
  size_t nbuckets, nused;
  block *spare; /* unused nodes */
  int nspare;
} heap;

static _Atomic(heap *) heaps[LM_DEVICE_KINDS][LM_DEVICE_MAX];
static pthread_mutex_t making_heap = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local lm_arena *own; /* arena of this thread's capture */

bool lm_is_segmented(const lm_driver *driver) { return driver->rules.round > 0 || lm_has_streams(driver); }

/* ---- guarded blocks */

/* Returns true if LM_GUARD_BLOCKS=1 asks for out-of-bounds accesses of kernels to be detected. */
static bool guards(void) {
  static _Atomic int wanted; /* 0: not read yet, 1: no, 2: yes */
  if (wanted == 0) wanted = lm_variable_is_on(LM_VAR_GUARD_BLOCKS, false) ? 2 : 1;
  return wanted == 2;
}

#if defined(__SANITIZE_ADDRESS__)
/* Unpoisons the first `bytes` of a block, for kernels that run on the host (spec/support/cuda). Correct only if all
 * work is synchronous. A graph's blocks stay accessible for its replays. */
static void open_to(const heap *h, const block *b, size_t bytes) {
  if (!guards()) return;
  if (b->arena != &h->shared) bytes = b->size;
  ASAN_UNPOISON_MEMORY_REGION(b->p, bytes);
  ASAN_POISON_MEMORY_REGION(b->p + bytes, b->size - bytes);
}
static bool is_one_each(void) { return false; }
#else
static void open_to(const heap *h, const block *b, size_t bytes) { (void)h, (void)b, (void)bytes; }

/* Returns true if each block is its own segment, for a checker of driver allocations (compute-sanitizer). */
static bool is_one_each(void) { return guards(); }
#endif

/* ---- heaps */

static heap *find_heap(lm_device device) {
  return atomic_load_explicit(&heaps[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)], memory_order_acquire);
}

static lm_status find_or_make_heap(lm_device device, heap **out) {
  enum { BUCKETS = 1024 };
  if ((*out = find_heap(device))) return LM_OK;
  LM_LOCKED(&making_heap);
  if (!(*out = find_heap(device))) {
    heap *h = lm_calloc(1, sizeof *h);
    block **bucket = h ? lm_calloc(BUCKETS, sizeof *bucket) : NULL;
    if (!bucket) {
      lm_free(h);
      return LM_E_OOM;
    }
    h->device = h->shared.device = device;
    h->driver = lm_driver_of(device);
    h->rules = is_one_each() ? one_each : h->driver->rules.round ? h->driver->rules : usual;
    h->bucket = bucket;
    h->nbuckets = BUCKETS;
    h->count = lm_memory_count_of(device);
    atomic_store_explicit(&heaps[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)], h, memory_order_release);
    *out = h;
  }
  return LM_OK;
}

/* ---- free blocks */

static block **tree_of(const block *b) { return &b->arena->tree[b->small][b->stream]; }

static void put_free(block *b) {
  b->free = true;
  lm_block_tree_add(tree_of(b), b);
}

static void take_free(block *b) {
  lm_block_tree_remove(tree_of(b), b);
  b->free = false;
}

/* ---- nodes, and blocks in use by address */

static bool have_spares(heap *h, int n) {
  while (h->nspare < n) {
    block *b = lm_malloc(sizeof *b);
    if (!b) return false;
    b->next = h->spare;
    h->spare = b;
    h->nspare++;
  }
  return true;
}

static block *take_spare(heap *h) {
  block *b = h->spare;
  h->spare = b->next;
  h->nspare--;
  *b = (block){0};
  return b;
}

static void give_spare(heap *h, block *b) {
  b->next = h->spare;
  h->spare = b;
  h->nspare++;
}

static block **bucket_of(heap *h, const void *p) { return &h->bucket[lm_address_hash(p) & (h->nbuckets - 1)]; }

/* Doubles the buckets; without memory for that, chains just grow longer. */
static void grow_buckets(heap *h) {
  size_t n = h->nbuckets;
  block **old = h->bucket, **grown = lm_calloc(2 * n, sizeof *grown);
  if (!grown) return;
  h->bucket = grown;
  h->nbuckets = 2 * n;
  for (size_t i = 0; i < n; i++) {
    for (block *b = old[i], *next; b; b = next) {
      block **at = bucket_of(h, b->p);
      next = b->next;
      b->next = *at;
      *at = b;
    }
  }
  lm_free(old);
}

static void note_used(heap *h, block *b) {
  if (h->nused++ > 2 * h->nbuckets) grow_buckets(h);
  block **at = bucket_of(h, b->p);
  b->next = *at;
  *at = b;
}

static block *forget_used(heap *h, const void *p) {
  block **at = bucket_of(h, p);
  while (*at && (*at)->p != p) at = &(*at)->next;
  block *b = *at;
  if (b) *at = b->next;
  h->nused -= b != NULL;
  return b;
}

/* ---- taking */

/* Takes the first `size` bytes of a free block and leaves the rest free. Needs a spare node. */
static block *cut_block(heap *h, block *b, size_t size) {
  size_t rest = b->size - size;
  take_free(b);
  if (b->small ? rest >= h->rules.round : rest > h->rules.small_limit && !is_one_each()) {
    block *r = take_spare(h);
    *r = (block){.p = b->p + size,
                 .size = rest,
                 .pending = b->pending,
                 .arena = b->arena,
                 .stream = b->stream,
                 .small = b->small,
                 .before = b,
                 .after = b->after};
    if (r->after) r->after->before = r;
    b->after = r;
    b->size = size;
    put_free(r);
  }
  return b;
}

/* Returns the smallest fitting free block of any stream. */
static block *fit_anywhere(lm_arena *a, bool small, size_t size) {
  block *best = NULL;
  for (int id = 0; id < LM_STREAM_MAX; id++) {
    block *b = lm_block_tree_fit(a->tree[small][id], size);
    if (b && (!best || b->size < best->size)) best = b;
  }
  return best;
}

static size_t segment_size(const lm_segment_rules *r, size_t size) {
  return size <= r->small_limit  ? r->small_segment
         : size < r->large_limit ? r->large_segment
                                 : (size_t)lm_round_up(size, r->large_round);
}

/* Allocates a segment as one free block and leaves a spare node. Requires the lock; unlocks for the driver's call. */
static lm_status new_segment(heap *h, lm_arena *a, int stream, size_t size, block **out) {
  lm_status status;
  size_t bytes = segment_size(&h->rules, size);
  void *p = NULL;
  *out = NULL;
  if (h->count->limit && h->count->stats.reserved + bytes > h->count->limit) return lm_fail_memory("%zu bytes", bytes);
  pthread_mutex_unlock(&h->count->lock);
  status = h->driver->alloc(lm_device_physical(h->device), bytes, &p);
  pthread_mutex_lock(&h->count->lock);
  if (status == LM_OK && !have_spares(h, 2)) { /* other threads may have used the spares meanwhile */
    h->driver->free(lm_device_physical(h->device), p, bytes);
    status = LM_E_OOM;
  }
  if (status != LM_OK) return status;
  block *b = take_spare(h);
  *b = (block){.p = p, .size = bytes, .arena = a, .stream = (uint8_t)stream, .small = size <= h->rules.small_limit};
  put_free(b);
  lm_memory_count_reserved(h->count, bytes);
  lm_log(LM_LOG_ALLOC, "%s: a segment of %zu bytes for %zu", lm_device_name(h->device), bytes, size);
  *out = b;
  return LM_OK;
}

static block *find_whole(block *t) {
  if (!t || (!t->before && !t->after)) return t;
  block *b = find_whole(t->left);
  return b ? b : find_whole(t->right);
}

/* Returns every entirely free segment to the driver; does nothing during a capture. Requires the lock. Releases it for
 * driver calls, and before blocking captures, since a thread that blocks them may wait for this lock. */
static void drop_segments(heap *h) {
  pthread_mutex_unlock(&h->count->lock);
  bool alone = lm_graph_block();
  pthread_mutex_lock(&h->count->lock);
  if (!alone) return;
  for (int i = 0; i < 2 * LM_STREAM_MAX; i++) {
    for (block *b; (b = find_whole(h->shared.tree[i % 2][i / 2]));) {
      void *p = b->p;
      size_t size = b->size;
      take_free(b);
      open_to(h, b, size);
      give_spare(h, b);
      h->count->stats.reserved -= size;
      pthread_mutex_unlock(&h->count->lock);
      h->driver->free(lm_device_physical(h->device), p, size);
      pthread_mutex_lock(&h->count->lock);
    }
  }
  lm_graph_unblock();
}

/* Finds a free block of at least `size`: the stream's, new memory, then other streams'. Requires the lock. */
static lm_status find_block(heap *h, lm_arena *a, int stream, size_t size, block **out) {
  bool small = size <= h->rules.small_limit;
  if (!have_spares(h, 2)) return LM_E_OOM;
  if ((*out = lm_block_tree_fit(a->tree[small][stream], size))) return LM_OK;
  lm_status status = new_segment(h, a, stream, size, out);
  if (status != LM_E_OOM) return status;
  if (!have_spares(h, 2)) return LM_E_OOM;
  if ((*out = fit_anywhere(a, small, size))) return LM_OK;
  drop_segments(h);
  return new_segment(h, a, stream, size, out);
}

lm_status lm_segments_alloc(lm_device device, size_t bytes, lm_stream *s, void **out) {
  heap *h;
  block *b;
  *out = NULL;
  NEED(find_or_make_heap(device, &h));
  lm_arena *a = own && own->device == device ? own : &h->shared;
  if (lm_alloc_must_fail() || bytes > SIZE_MAX / 2) return lm_out_of_memory(h->driver, device, bytes);
  size_t size = lm_round_up(bytes, h->rules.round);
  pthread_mutex_lock(&h->count->lock);
  lm_status status = find_block(h, a, s->id, size, &b);
  if (status != LM_OK) {
    pthread_mutex_unlock(&h->count->lock);
    return status == LM_E_OOM ? lm_out_of_memory(h->driver, device, bytes) : status;
  }
  b = cut_block(h, b, size);
  uint64_t pending = b->pending | LM_USED_BIT(b->stream);
  b->pending = 0;
  b->stream = s->id;
  note_used(h, b);
  lm_memory_count_allocated(h->count, b->size);
  void *p = b->p;
  open_to(h, b, bytes);
  pthread_mutex_unlock(&h->count->lock);
  status = lm_stream_wait_mask(s, pending);
  if (status != LM_OK) {
    lm_segments_free(device, p, pending);
    return status;
  }
  *out = p;
  return status;
}

/* Merges `n`, the free neighbor behind b and of the same arena, into b. */
static void take_in(heap *h, block *b, block *n) {
  b->size += n->size;
  b->pending |= n->pending | LM_USED_BIT(n->stream);
  b->after = n->after;
  if (b->after) b->after->before = b;
  give_spare(h, n);
}

static bool may_join(const block *b, const block *n) { return n && n->free && n->arena == b->arena; }

void lm_segments_free(lm_device device, void *p, uint64_t used) {
  heap *h = find_heap(device);
  lm_stream *launched = used & LM_USED_GRAPH ? lm_stream_launched(device) : NULL;
  LM_LOCKED(&h->count->lock);
  block *b = forget_used(h, p);
  if (b) {
    h->count->stats.allocated -= b->size;
    b->pending = used & LM_USED_BITS;
    if (launched) b->pending |= LM_USED_BIT(launched->id);
    open_to(h, b, 0);
    if (may_join(b, b->after)) {
      take_free(b->after);
      take_in(h, b, b->after);
    }
    if (may_join(b, b->before)) {
      block *n = b->before;
      take_free(n);
      take_in(h, n, b);
      b = n;
    }
    b->pending &= ~LM_USED_BIT(b->stream);
    put_free(b);
    if (is_one_each() && !own) drop_segments(h);
  }
}

void *lm_segments_base(lm_device device, const void *p, bool *of_graph) {
  heap *h = find_heap(device);
  *of_graph = false;
  if (!h) return NULL;
  LM_LOCKED(&h->count->lock);
  block *b = *bucket_of(h, p);
  while (b && b->p != p) b = b->next;
  if (b) *of_graph = b->arena != &h->shared;
  while (b && b->before) b = b->before;
  return b ? b->p : NULL;
}

/* ---- arenas */

lm_status lm_arena_new(lm_device device, lm_arena **out) {
  heap *h;
  *out = NULL;
  NEED(find_or_make_heap(device, &h));
  *out = lm_calloc(1, sizeof **out);
  if (!*out) return LM_E_OOM;
  (*out)->device = device;
  return LM_OK;
}

void lm_arena_use(lm_arena *a) { own = a; }

void lm_arena_retire(lm_arena *a, uint64_t pending) {
  if (!a) return;
  heap *h = find_heap(a->device);
  pthread_mutex_lock(&h->count->lock);
  for (size_t i = 0; i < h->nbuckets; i++)
    for (block *b = h->bucket[i]; b; b = b->next)
      if (b->arena == a) b->arena = &h->shared;
  for (int i = 0; i < 2 * LM_STREAM_MAX; i++) {
    for (block *b; (b = a->tree[i % 2][i / 2]);) {
      take_free(b);
      b->arena = &h->shared;
      b->pending = (b->pending | (pending & LM_USED_BITS)) & ~LM_USED_BIT(b->stream);
      put_free(b);
    }
  }
  pthread_mutex_unlock(&h->count->lock);
  lm_free(a);
}

void lm_segments_empty_cache(lm_device device) {
  heap *h = find_heap(device);
  if (!h) return;
  LM_LOCKED(&h->count->lock);
  drop_segments(h);
}
