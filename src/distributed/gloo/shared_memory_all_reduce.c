/* Runs all_reduce through shared memory, with one barrier ("meeting") for each small tensor or chunk.
 *
 * A rank's region holds two small slots and two chunks. Meetings are numbered (turns): a rank posts the turn's number
 * when its part is done, and continues when all ranks have posted it. A rank past turn k knows that every rank has
 * finished its work before its post of k, so memory used in one turn is free again two turns later.
 *
 * Small: each rank copies its tensor into the slot of the turn's parity, meets the others, and sums all slots in the
 * order of the ranks.
 *
 * Large: each rank sums one slice of each chunk. In step k a rank
 *   stages   chunk k: copies the other ranks' slices of its tensor into its region;
 *   reduces  chunk k - 1: sums its own slice over all regions, in the order of the ranks, into its tensor and into its
 *            region, at its own slice's offset, where nothing was staged;
 *   collects chunk k - 2: copies the other ranks' slices out of their regions;
 * and meets the others once. Chunks are counted over all calls, and two buffers are enough: data that step k writes
 * (staged k; reduced k - 1, at another offset) is not read before step k + 1, and data that is read in step k (staged
 * k - 1, reduced k - 2) is not written in it. The last collecting needs no meeting, since the next call starts with the
 * other buffer. */
#include "distributed/gloo/shared_memory_all_reduce.h"

#include <string.h>

#include "base/mem.h"
#include "distributed/group/shared_memory.h"

enum {
  SMALL = 16 << 10,
  CHUNK = 512 << 10,
  BLOCK = 16 << 10, /* bytes reduced and then copied while still in the L1 cache */
  LINE = 64,
  FLAG = 0
};

struct lm_shared_all_reduce {
  lm_shared *shared;
  int rank, size;
  uint32_t turn;  /* number of the last meeting */
  uint64_t chunk; /* number of chunks so far */
};

lm_status lm_shared_all_reduce_open(lm_group *g, lm_shared_all_reduce **out) {
  lm_status status;
  lm_shared_all_reduce *l = NULL;
  lm_shared *shared = NULL;
  *out = NULL;
  TRY(lm_shared_open(g, 2 * SMALL + 2 * CHUNK, &shared));
  if (!shared) goto done;
  l = lm_malloc(sizeof *l);
  if (!l) TRY(LM_E_OOM);
  *l = (lm_shared_all_reduce){.shared = shared, .rank = g->rank, .size = g->size};
  shared = NULL;
  *out = l;
done:
  lm_shared_release(shared);
  return status;
}

void lm_shared_all_reduce_close(lm_shared_all_reduce *l) {
  if (l) lm_shared_release(l->shared);
  lm_free(l);
}

static char *small_of(const lm_shared_all_reduce *l, int rank, uint32_t turn) {
  return lm_shared_region(l->shared, rank) + (turn & 1) * SMALL;
}

static char *chunk_of(const lm_shared_all_reduce *l, int rank, uint64_t chunk) {
  return lm_shared_region(l->shared, rank) + 2 * SMALL + (chunk & 1) * CHUNK;
}

static lm_status meet(lm_shared_all_reduce *l) {
  lm_status status = LM_OK;
  l->turn++;
  lm_shared_post(l->shared, FLAG, l->turn);
  for (int r = 0; r < l->size && status == LM_OK; r++)
    if (r != l->rank) status = lm_shared_wait(l->shared, r, FLAG, l->turn);
  return status;
}

/* Runs a call's first meeting and compares the ranks' tickets; fails if they are not in the same call. */
static lm_status meet_with_ticket(lm_shared_all_reduce *l, lm_group *g) {
  int which = (l->turn + 1) & 1;
  const lm_ticket *own_ticket = lm_group_ticket(g);
  *lm_shared_ticket(l->shared, l->rank, which) = *own_ticket;
  lm_status status = meet(l);
  for (int r = 0; r < l->size && status == LM_OK; r++) {
    const lm_ticket *theirs = lm_shared_ticket(l->shared, r, which);
    if (!lm_tickets_agree(theirs, own_ticket)) status = lm_group_mismatch(g, r, (lm_ticket[]){*theirs});
  }
  return status;
}

static lm_status reduce_small(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op, size_t bytes) {
  lm_dtype dtype = t->dtype;
  size_t n = (size_t)t->numel;
  memcpy(small_of(l, l->rank, l->turn + 1), t->data, bytes);
  NEED(meet_with_ticket(l, g));
  const char *sum = small_of(l, 0, l->turn);
  for (int r = 1; r < l->size; r++, sum = t->data) lm_reduce_into(dtype, op, t->data, sum, small_of(l, r, l->turn), n);
  lm_reduce_mean(g, t, op);
  return LM_OK;
}

/* ---- large tensors */

typedef struct job {
  lm_shared_all_reduce *l;
  char *data;
  size_t bytes, element;
  lm_dtype dtype;
  lm_reduce_op op;
  uint64_t base; /* the number of this call's first chunk */
} job;

typedef struct span { /* bytes of a chunk */
  size_t begin, end;
} span;

static size_t chunk_bytes(const job *j, uint64_t k) {
  size_t left = j->bytes - (size_t)k * CHUNK;
  return left < CHUNK ? left : CHUNK;
}

/* Returns a rank's slice of chunk k, at the same offsets in all chunks; possibly empty in the last one. */
static span slice_of(const job *j, uint64_t k, int rank) {
  size_t bytes = chunk_bytes(j, k), ranks = (size_t)j->l->size;
  size_t part = lm_round_up(lm_ceil_div(chunk_bytes(j, 0), ranks), LINE), begin = part * (size_t)rank;
  return (span){begin < bytes ? begin : bytes, begin + part < bytes ? begin + part : bytes};
}

static void stage(const job *j, uint64_t k) {
  char *to = chunk_of(j->l, j->l->rank, j->base + k), *from = j->data + k * CHUNK;
  span own_slice = slice_of(j, k, j->l->rank);
  memcpy(to, from, own_slice.begin);
  memcpy(to + own_slice.end, from + own_slice.end, chunk_bytes(j, k) - own_slice.end);
}

static void reduce_slice(const job *j, uint64_t k) {
  const lm_shared_all_reduce *l = j->l;
  span own_slice = slice_of(j, k, l->rank);
  char *data = j->data + k * CHUNK, *result = chunk_of(l, l->rank, j->base + k);
  for (size_t at = own_slice.begin; at < own_slice.end; at += BLOCK) {
    size_t bytes = own_slice.end - at < BLOCK ? own_slice.end - at : BLOCK, n = bytes / j->element;
    const char *sum = NULL;
    for (int r = 0; r < l->size; r++) {
      const char *x = r == l->rank ? data + at : chunk_of(l, r, j->base + k) + at;
      if (r > 0) lm_reduce_into(j->dtype, j->op, result + at, sum, x, n);
      sum = r > 0 ? result + at : x;
    }
    if (j->op == LM_REDUCE_MEAN) lm_reduce_scale(j->dtype, result + at, n, 1.0 / l->size);
    memcpy(data + at, result + at, bytes);
  }
}

static void collect(const job *j, uint64_t k) {
  char *to = j->data + k * CHUNK;
  for (int i = 1; i < j->l->size; i++) {
    int r = (j->l->rank + i) % j->l->size;
    span theirs = slice_of(j, k, r);
    memcpy(to + theirs.begin, chunk_of(j->l, r, j->base + k) + theirs.begin, theirs.end - theirs.begin);
  }
}

static lm_status reduce_large(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op, size_t bytes) {
  lm_dtype dtype = t->dtype;
  const job j = {l, t->data, bytes, lm_dtype_size(dtype), dtype, op, l->chunk};
  uint64_t chunks = lm_ceil_div(bytes, CHUNK);
  l->chunk += chunks;
  for (uint64_t k = 0; k < chunks + 2; k++) {
    if (k < chunks) stage(&j, k);
    if (k >= 1 && k <= chunks) reduce_slice(&j, k - 1);
    if (k >= 2) collect(&j, k - 2);
    if (k > chunks) break; /* the last collecting needs no meeting */
    NEED(k == 0 ? meet_with_ticket(l, g) : meet(l));
  }
  return LM_OK;
}

lm_status lm_shared_all_reduce_run(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op) {
  size_t bytes = lm_nbytes(t);
  return bytes <= SMALL ? reduce_small(l, g, t, op, bytes) : reduce_large(l, g, t, op, bytes);
}
