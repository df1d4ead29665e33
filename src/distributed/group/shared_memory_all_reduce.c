/* Runs all_reduce through shared memory, with one barrier ("meeting") for each small tensor or chunk.
 *
 * A rank's region holds two small slots and two chunks. Meetings are numbered (turns): a rank posts the turn's number
 * when its part is done, and continues when all ranks have posted it. A rank past turn k knows that every rank has
 * finished its work before its post of k, so memory used in one turn is free again two turns later.
 *
 * Small: each rank copies its tensor into the slot of the turn's parity, meets the others, and sums all slots in the
 * order of the ranks.
 *
 * Large: the tensor has a part for each rank, or for each of the first ranks, and a chunk has a slice of each part,
 * which the part's rank sums. In step k a rank
 *   stages   chunk k: copies the other ranks' slices of its tensor into its region;
 *   reduces  chunk k - 1: sums its own slice over all regions, in the order of the ranks, into its tensor and into its
 *            region, at its own slice's offset, where nothing was staged;
 *   collects chunk k - 2: copies the other ranks' slices out of their regions;
 * and meets the others once. With several hosts (host_collectives.c), parts are summed over the hosts in between:
 * lm_shared_reduce stages and reduces all chunks, and in lm_shared_spread ranks publish slices of their parts, in as
 * many chunks again, meet and collect them. Chunks are counted over all calls, and two buffers are enough: data that
 * step k writes (staged k; reduced k - 1, at another offset) is not read before step k + 1, and data that is read in
 * step k (staged k - 1, reduced k - 2) is not written in it. The last collecting needs no meeting, since the next call
 * starts with the other buffer. */
#include "distributed/group/shared_memory_all_reduce.h"

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
  int rank, size; /* this rank's number on its host, and the number of its ranks */
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
  const lm_host_layout *at = lm_shared_layout(shared);
  *l = (lm_shared_all_reduce){.shared = shared, .rank = at->index, .size = at->n};
  shared = NULL;
  *out = l;
done:
  lm_shared_release(shared);
  return status;
}

const lm_host_layout *lm_shared_all_reduce_layout(const lm_shared_all_reduce *l) { return lm_shared_layout(l->shared); }

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

static lm_status wait_for_ranks(lm_shared_all_reduce *l) {
  lm_status status = LM_OK;
  l->turn++;
  lm_shared_post(l->shared, FLAG, l->turn);
  for (int r = 0; r < l->size && status == LM_OK; r++)
    if (r != l->rank) status = lm_shared_wait(l->shared, r, FLAG, l->turn);
  return status;
}

lm_status lm_shared_meet(lm_shared_all_reduce *l, lm_group *g) {
  int which = (l->turn + 1) & 1;
  const lm_ticket *mine = lm_group_ticket(g);
  *lm_shared_ticket(l->shared, l->rank, which) = *mine;
  lm_status status = wait_for_ranks(l);
  for (int r = 0; r < l->size && status == LM_OK; r++) {
    const lm_ticket *theirs = lm_shared_ticket(l->shared, r, which);
    if (!lm_tickets_agree(theirs, mine))
      status = lm_group_mismatch(g, lm_shared_all_reduce_layout(l)->local[r], (lm_ticket[]){*theirs});
  }
  return status;
}

static lm_status reduce_small(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op, size_t bytes) {
  lm_dtype dtype = t->dtype;
  size_t n = (size_t)t->numel;
  memcpy(small_of(l, l->rank, l->turn + 1), t->data, bytes);
  NEED(lm_shared_meet(l, g));
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
  int parts;
  size_t part, slice; /* bytes of a part and of its slice in a chunk; the last ones may have less */
  uint64_t base;      /* the number of this call's first chunk */
} job;

typedef struct span { /* bytes of the tensor */
  size_t begin, end;
} span;

static job make_job(lm_shared_all_reduce *l, lm_dtype dtype, lm_reduce_op op, char *data, size_t bytes, int parts) {
  size_t part = lm_shared_part(bytes, parts), most = (size_t)CHUNK / (size_t)parts / LINE * LINE;
  return (job){.l = l,
               .data = data,
               .bytes = bytes,
               .element = lm_dtype_size(dtype),
               .dtype = dtype,
               .op = op,
               .parts = parts,
               .part = part,
               .slice = part < most ? part : most,
               .base = l->chunk};
}

static uint64_t chunks_of(const job *j) { return lm_ceil_div(j->part, j->slice); }

/* Returns part `p`'s slice of chunk k; possibly empty in the last parts and chunks. */
static span slice_of(const job *j, uint64_t k, int p) {
  size_t first = (size_t)p * j->part, last = first + j->part, begin = first + (size_t)k * j->slice;
  last = last < j->bytes ? last : j->bytes;
  begin = begin < last ? begin : last;
  return (span){begin, begin + j->slice < last ? begin + j->slice : last};
}

/* Returns where part p's slice of chunk k is in a rank's region. */
static char *place_of(const job *j, uint64_t k, int rank, int p) {
  return chunk_of(j->l, rank, j->base + k) + (size_t)p * j->slice;
}

static void stage(const job *j, uint64_t k) {
  for (int p = 0; p < j->parts; p++) {
    span s = slice_of(j, k, p);
    if (p != j->l->rank) memcpy(place_of(j, k, j->l->rank, p), j->data + s.begin, s.end - s.begin);
  }
}

static void reduce_slice(const job *j, uint64_t k) {
  const lm_shared_all_reduce *l = j->l;
  if (l->rank >= j->parts) return;
  span mine = slice_of(j, k, l->rank);
  for (size_t at = mine.begin; at < mine.end; at += BLOCK) {
    size_t bytes = mine.end - at < BLOCK ? mine.end - at : BLOCK, n = bytes / j->element, offset = at - mine.begin;
    char *result = place_of(j, k, l->rank, l->rank) + offset;
    const char *sum = NULL;
    for (int r = 0; r < l->size; r++) {
      const char *x = r == l->rank ? j->data + at : place_of(j, k, r, l->rank) + offset;
      if (r > 0) lm_reduce_into(j->dtype, j->op, result, sum, x, n);
      sum = r > 0 ? result : x;
    }
    if (j->op == LM_REDUCE_MEAN) lm_reduce_scale(j->dtype, result, n, 1.0 / l->size);
    memcpy(j->data + at, result, bytes);
  }
}

static void publish(const job *j, uint64_t k) {
  span s = slice_of(j, k, j->l->rank);
  if (j->l->rank < j->parts) memcpy(place_of(j, k, j->l->rank, j->l->rank), j->data + s.begin, s.end - s.begin);
}

static void collect(const job *j, uint64_t k) {
  for (int p = 0; p < j->parts; p++) {
    span s = slice_of(j, k, p);
    if (p != j->l->rank) memcpy(j->data + s.begin, place_of(j, k, p, p), s.end - s.begin);
  }
}

static lm_status reduce_large(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op, size_t bytes) {
  const job j = make_job(l, t->dtype, op, t->data, bytes, l->size);
  uint64_t chunks = chunks_of(&j);
  l->chunk += chunks;
  for (uint64_t k = 0; k < chunks + 2; k++) {
    if (k < chunks) stage(&j, k);
    if (k >= 1 && k <= chunks) reduce_slice(&j, k - 1);
    if (k >= 2) collect(&j, k - 2);
    if (k > chunks) break; /* the last collecting needs no meeting */
    NEED(k == 0 ? lm_shared_meet(l, g) : wait_for_ranks(l));
  }
  return LM_OK;
}

lm_status lm_shared_all_reduce_run(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op) {
  size_t bytes = lm_nbytes(t);
  return bytes <= SMALL ? reduce_small(l, g, t, op, bytes) : reduce_large(l, g, t, op, bytes);
}

/* ---- halves of it */

size_t lm_shared_part(size_t bytes, int parts) { return lm_round_up(lm_ceil_div(bytes, (size_t)parts), LINE); }

/* Waits until all ranks have posted l->turn; without `wait` only tests it. */
static lm_status all_are_here(lm_shared_all_reduce *l, bool wait, bool *here) {
  lm_status status = LM_OK;
  *here = true;
  for (int r = 0; r < l->size && status == LM_OK && *here; r++) {
    if (wait)
      status = lm_shared_wait(l->shared, r, FLAG, l->turn);
    else
      *here = lm_shared_reached(l->shared, r, FLAG, l->turn);
  }
  return status;
}

/* Runs up to *steps steps of h, all if *steps < 0; *complete: none is left. */
static lm_status run_half(lm_shared_all_reduce *l, lm_shared_half *h, int *steps, bool *complete) {
  job j = make_job(l, h->dtype, h->op, h->data, h->bytes, h->parts);
  uint64_t chunks = l->size > 1 && h->bytes > 0 ? chunks_of(&j) : 0; /* a rank alone on its host has its sums */
  for (; chunks > 0 && h->done <= chunks && *steps != 0; --*steps) {
    uint64_t k = h->done;
    bool here = true;
    if (k > 0) NEED(all_are_here(l, *steps < 0, &here));
    if (!here) break;
    if (k == 0) { /* a half's chunks are numbered when the one before it is complete */
      h->base = l->chunk;
      l->chunk += chunks;
    }
    j.base = h->base;
    if (k < chunks) (h->spreads ? publish : stage)(&j, k);
    if (k > 0) (h->spreads ? collect : reduce_slice)(&j, k - 1);
    h->done++;
    if (k < chunks) lm_shared_post(l->shared, FLAG, ++l->turn);
  }
  *complete = chunks == 0 || h->done > chunks;
  return LM_OK;
}

lm_status lm_shared_run_halves(lm_shared_all_reduce *l, int n, lm_shared_half *halves, int steps) {
  bool complete = true;
  for (int i = 0; i < n && complete; i++) NEED(run_half(l, &halves[i], &steps, &complete));
  return LM_OK;
}
