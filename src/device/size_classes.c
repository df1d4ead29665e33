#include "device/size_classes.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "device/driver.h"
#include "device/memory_count.h"

/* Off for AddressSanitizer, which must see every allocation and free. */
#if defined(__SANITIZE_ADDRESS__)
enum { CACHING = 0 };
#else
enum { CACHING = 1 };
#endif

/* Size classes: steps of 64 bytes up to 4 KB, then eight to each power of two (at most an eighth of
 * a block is unused, and pages of it that are never touched cost nothing) up to 2^LARGEST bytes. */
enum { STEP_LOG2 = 6, FINE_LOG2 = 12, LARGEST = 47, FINE = 1 << (FINE_LOG2 - STEP_LOG2) };
enum { CLASSES = FINE + (LARGEST - FINE_LOG2) * 8 };

/* Programs whose sizes keep changing fill every class in turn. Reserved bytes may exceed twice the peak in use by this
 * much; then the cache is emptied. */
static const size_t slack_bytes = (size_t)256 << 20;

/* Large requests whose class is empty take a cached block of up to sixteen times their size instead of fresh pages.
 * Conditions: the peak in use is not exceeded, at least half of the memory is cached, and memory never ran out. The
 * last, smaller batch of an epoch then reuses the memory of the others. (With less cached, the block's next request
 * would need fresh pages itself.) */
enum { OVERSIZE_FROM = 1 << 16, OVERSIZE_CLASSES = 32, MAX_OVERSIZE = 64 };

typedef struct bin { /* freed blocks of one class, as a stack outside the blocks: they may be on a card */
  void **block;
  uint32_t n, capacity;
} bin;

typedef struct oversize_block { /* a block in use for a request of a smaller class */
  void *block;
  int class;
} oversize_block;

typedef struct cache { /* guarded by the lock of the device's lm_memory_count */
  bool ran_out;        /* true once the driver had no memory */
  int noversize;
  oversize_block oversize[MAX_OVERSIZE];
  size_t peak;   /* most bytes in use so far: stats.max_allocated, but never reset */
  size_t cached; /* bytes of the blocks in bins */
  bin bins[CLASSES];
} cache;

static cache caches[LM_DEVICE_KINDS][LM_DEVICE_MAX]; /* 3 MB; only the pages of devices in use are touched */

static cache *cache_of(lm_device device) { return &caches[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)]; }

/* Returns the class of `bytes` (1 to 2^LARGEST); *size is the bytes of its blocks. */
static int class_of(size_t bytes, size_t *size) {
  size_t last = bytes - 1;
  if (bytes <= (size_t)1 << FINE_LOG2) {
    *size = ((last >> STEP_LOG2) + 1) << STEP_LOG2;
    return (int)(last >> STEP_LOG2);
  }
  int exponent = 63 - __builtin_clzll(last), eighth = (int)(last >> (exponent - 3)) & 7;
  *size = (size_t)(8 + eighth + 1) << (exponent - 3);
  return FINE + (exponent - FINE_LOG2) * 8 + eighth;
}

static size_t class_bytes(int class) {
  if (class < FINE) return (size_t)(class + 1) << STEP_LOG2;
  int exponent = FINE_LOG2 + (class - FINE) / 8;
  return (size_t)(8 + (class - FINE) % 8 + 1) << (exponent - 3);
}

static void count_in(cache *p, lm_memory_count *m, size_t size) {
  lm_memory_count_allocated(m, size);
  if (m->stats.allocated > p->peak) p->peak = m->stats.allocated;
}

static void *take_cached(cache *p, lm_memory_count *m, int class, size_t size) {
  void *block = NULL;
  LM_LOCKED(&m->lock);
  bool oversizes = !p->ran_out && size >= OVERSIZE_FROM && p->noversize < MAX_OVERSIZE &&
                   m->stats.allocated + size <= p->peak && 2 * p->cached >= m->stats.reserved;
  int last = oversizes && class + OVERSIZE_CLASSES < CLASSES ? class + OVERSIZE_CLASSES : class;
  for (int c = class; c <= last && !block; c++) {
    bin *b = &p->bins[c];
    if (b->n == 0) continue;
    block = b->block[--b->n];
    p->cached -= class_bytes(c);
    if (c != class) p->oversize[p->noversize++] = (oversize_block){block, c};
    count_in(p, m, size);
  }
  return block;
}

/* Returns the class a freed block was allocated in, and forgets it if oversize. */
static int own_class(cache *p, const void *block, int class) {
  for (int i = 0; i < p->noversize; i++) {
    if (p->oversize[i].block != block) continue;
    class = p->oversize[i].class;
    p->oversize[i] = p->oversize[--p->noversize];
    break;
  }
  return class;
}

static bool holds_too_much(const cache *p, lm_memory_count *m, size_t size) {
  LM_LOCKED(&m->lock);
  return m->stats.reserved > m->stats.allocated && m->stats.reserved + size > 2 * p->peak + slack_bytes;
}

lm_status lm_classes_alloc(const lm_driver *driver, lm_device device, size_t bytes, void **out) {
  if (lm_alloc_must_fail() || bytes > (size_t)1 << LARGEST) return lm_out_of_memory(driver, device, bytes);
  cache *p = cache_of(device);
  lm_memory_count *m = lm_memory_count_of(device);
  size_t size = bytes;
  int class = CACHING ? class_of(bytes, &size) : 0;
  if (CACHING && (*out = take_cached(p, m, class, size))) return LM_OK;

  if (CACHING && holds_too_much(p, m, size)) lm_classes_empty_cache(device);
  lm_status status = driver->alloc(lm_device_physical(device), size, out);
  if (status == LM_E_OOM) {
    pthread_mutex_lock(&m->lock);
    p->ran_out = true;
    pthread_mutex_unlock(&m->lock);
    lm_classes_empty_cache(device);
    status = driver->alloc(lm_device_physical(device), size, out);
  }
  if (status != LM_OK) return status == LM_E_OOM ? lm_out_of_memory(driver, device, bytes) : status;
  pthread_mutex_lock(&m->lock);
  lm_memory_count_reserved(m, size);
  count_in(p, m, size);
  pthread_mutex_unlock(&m->lock);
  lm_log(LM_LOG_ALLOC, "%s: %zu bytes from the driver for %zu", lm_device_name(device), size, bytes);
  return LM_OK;
}

/* Pushes a freed block; false if the bin cannot grow. */
static bool put_cached(bin *b, void *block) {
  if (b->n == b->capacity) {
    uint32_t capacity = b->capacity ? 2 * b->capacity : 8;
    void **grown = lm_realloc(b->block, capacity * sizeof *grown);
    if (!grown) return false;
    b->block = grown;
    b->capacity = capacity;
  }
  b->block[b->n++] = block;
  return true;
}

void lm_classes_free(lm_device device, void *block, size_t bytes) {
  cache *p = cache_of(device);
  lm_memory_count *m = lm_memory_count_of(device);
  size_t size = bytes;
  int class = CACHING ? class_of(bytes, &size) : 0;
  pthread_mutex_lock(&m->lock);
  m->stats.allocated -= size;
  if (CACHING) size = class_bytes(class = own_class(p, block, class));
  bool kept = CACHING && put_cached(&p->bins[class], block);
  if (kept)
    p->cached += size;
  else
    m->stats.reserved -= size;
  pthread_mutex_unlock(&m->lock);
  if (!kept) lm_driver_of(device)->free(lm_device_physical(device), block, size);
}

void lm_classes_empty_cache(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  cache *p = cache_of(device);
  lm_memory_count *m = lm_memory_count_of(device);
  size_t given_back = 0;
  pthread_mutex_lock(&m->lock);
  for (int class = 0; class < CLASSES; class ++) {
    bin *b = &p->bins[class];
    size_t size = class_bytes(class);
    for (uint32_t i = 0; i < b->n; i++) driver->free(lm_device_physical(device), b->block[i], size);
    given_back += b->n * size;
    lm_free(b->block);
    *b = (bin){0};
  }
  m->stats.reserved -= given_back;
  p->cached = 0;
  pthread_mutex_unlock(&m->lock);
  if (given_back) lm_log(LM_LOG_ALLOC, "%s: %zu cached bytes given back", lm_device_name(device), given_back);
}
