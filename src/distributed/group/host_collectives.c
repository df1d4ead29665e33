/* Waits for remaining messages at the end of a call; posting a message waits for the last one of its lane. */
#include "distributed/group/host_collectives.h"

#include <string.h>

#include "base/mem.h"
#include "integers.h"

enum {
  LANES = 2,         /* one segment is sent while another one is summed */
  NOTICE = LANES,    /* the lane of notify_next's messages */
  SEGMENT = 1 << 20, /* most bytes of a segment; smaller ones fit caches better, but ranks wait more often */
  LEAST = 64 << 10,  /* least bytes of a segment in a ring, unless the whole block is smaller */
  WHOLE = 16 << 10,  /* bytes up to which reduce_by_bits exchanges whole tensors, since latency dominates */
  SMALL = 256 << 10, /* bytes up to which all_reduce uses reduce_small rather than the ring; or WHOLE * size if more */
  SCRATCH = 2 * LANES * SEGMENT
};

struct lm_host {
  lm_group *g;
  const lm_host_messages *by;
  char *scratch; /* SCRATCH bytes, two segments for each lane; NULL before the first reduction */
  char *sum;     /* the part that host_reduce sums on this rank, if it is not the root; freed with a failed group */
  lm_request *under_way[][2][LM_HOST_LANES]; /* [size]: receives, sends */
};

lm_status lm_host_new(lm_group *g, const lm_host_messages *by, lm_host **out) {
  lm_host *h = *out = lm_calloc(1, sizeof *h + (size_t)g->size * sizeof *h->under_way);
  if (!h) return LM_E_OOM;
  h->g = g;
  h->by = by;
  return LM_OK;
}

void lm_host_free(lm_host *h) {
  if (!h) return;
  lm_free(h->scratch);
  lm_free(h->sum);
  lm_free(h);
}

static int rank_after(const lm_group *g, int steps) { return (g->rank + steps) % g->size; }
static int rank_before(const lm_group *g, int steps) { return (g->rank + g->size - steps) % g->size; }

/* ---- messages of a collective */

static void drop(lm_host *h, bool sending, int peer, int lane) {
  lm_request **r = &h->under_way[peer][sending][lane];
  if (*r) h->by->forget(h->g, *r);
  *r = NULL;
}

static lm_status settle(lm_host *h, bool sending, int peer, int lane) {
  lm_request *r = h->under_way[peer][sending][lane];
  lm_status status = r ? h->by->wait(h->g, r) : LM_OK;
  drop(h, sending, peer, lane);
  return status;
}

static lm_status post(lm_host *h, bool sending, int peer, int lane, char *data, size_t bytes) {
  NEED(settle(h, sending, peer, lane));
  return h->by->post(h->g, sending, peer, lane, data, bytes, &h->under_way[peer][sending][lane]);
}

static lm_status post_send(lm_host *h, int peer, int lane, char *data, size_t bytes) {
  return post(h, true, peer, lane, data, bytes);
}

static lm_status post_recv(lm_host *h, int peer, int lane, char *data, size_t bytes) {
  return post(h, false, peer, lane, data, bytes);
}

/* Waits for a call's remaining messages; after an error, drops them. */
static lm_status settle_all(lm_host *h, lm_status status) {
  for (int i = 0; i < h->g->size * 2 * LM_HOST_LANES; i++) {
    int peer = i / (2 * LM_HOST_LANES), sending = i / LM_HOST_LANES % 2, lane = i % LM_HOST_LANES;
    if (status == LM_OK) status = settle(h, sending, peer, lane);
    drop(h, sending, peer, lane);
  }
  return status;
}

/* Sends an empty message with the call's ticket to the next rank, and receives the previous rank's. A root that only
 * sends would otherwise not notice that another rank has a different root. */
static lm_status notify_next(lm_host *h) {
  if (h->g->size == 1 || !h->by->tell_tickets) return LM_OK;
  NEED(post_send(h, rank_after(h->g, 1), NOTICE, NULL, 0));
  return post_recv(h, rank_before(h->g, 1), NOTICE, NULL, 0);
}

/* ---- reductions, and the ring */

typedef struct fold { /* a reduction */
  lm_dtype dtype;
  lm_reduce_op op;
} fold;

static void fold_into(fold f, char *out, const char *a, const char *b, size_t bytes) {
  lm_reduce_into(f.dtype, f.op, out, a, b, bytes / lm_dtype_size(f.dtype));
}

static lm_status make_scratch(lm_host *h) {
  if (!h->scratch) h->scratch = lm_malloc(SCRATCH);
  return h->scratch ? LM_OK : LM_E_OOM;
}

typedef struct span {
  char *data;
  size_t bytes;
} span;

/* One block for each rank: the tensors of a list, or nearly equal parts of one tensor. */
typedef struct blocks {
  lm_tensor *const *list;
  span whole;  /* the one tensor, if list is NULL */
  size_t part; /* bytes of its part for each rank; the last ones may have less */
} blocks;

static blocks parts_of(const lm_group *g, const lm_tensor *t) {
  size_t bytes = lm_nbytes(t);
  return (blocks){NULL, {t->data, bytes}, (size_t)lm_round_up(lm_ceil_div((int64_t)bytes, g->size), 64)};
}

static span stretch_of(span s, size_t at, size_t most) {
  size_t left = s.bytes > at ? s.bytes - at : 0;
  return (span){s.data + at, left < most ? left : most};
}

static span block_of(const blocks *b, int rank) {
  return b->list ? (span){b->list[rank]->data, lm_nbytes(b->list[rank])}
                 : stretch_of(b->whole, (size_t)rank * b->part, b->part);
}

/* Sends blocks once around the ring, LANES segments at a time. Without f (all_gather) each rank receives all other
 * ranks' blocks. With f (reduce_scatter) block r starts at the rank after r, each rank adds its own block r to the
 * received one, and rank r gets the reduction in `out`, which may be its block r; other blocks are only read. */
static lm_status go_around(lm_host *h, const blocks *b, const fold *f, char *out) {
  const lm_group *g = h->g;
  struct {
    span own;            /* this rank's segment of the block received last */
    char *came, *result; /* address it is received at; address of the sum */
  } lane[LANES] = {0};
  if (f && g->size == 1) memmove(out, block_of(b, 0).data, block_of(b, 0).bytes);
  if (g->size == 1) return LM_OK;
  if (f) NEED(make_scratch(h));
  int next = rank_after(g, 1), before = rank_before(g, 1);
  int64_t longest = (int64_t)block_of(b, 0).bytes, share = lm_round_up(lm_ceil_div(longest, LANES), 64);
  size_t segment = (size_t)lm_max(LEAST, lm_min(share, SEGMENT)), rounds = (size_t)g->size - 1;
  size_t steps = (size_t)lm_round_up(lm_ceil_div(longest, (int64_t)segment), LANES) * rounds;
  for (size_t i = 0; i < steps + LANES; i++) {
    int l = (int)(i % LANES);
    size_t round = i / LANES % rounds, at = (i / (LANES * rounds) * LANES + i % LANES) * segment;
    NEED(settle(h, false, before, l));
    if (f && lane[l].own.bytes) fold_into(*f, lane[l].result, lane[l].came, lane[l].own.data, lane[l].own.bytes);
    NEED(settle(h, true, next, l));
    if (i >= steps) continue;
    int coming = rank_before(g, 1 + (int)round) + (f ? g->size - 1 : 0);
    span own = stretch_of(block_of(b, coming % g->size), at, segment);
    span sent = stretch_of(block_of(b, (coming + 1) % g->size), at, segment);
    if (f && round) sent.data = lane[l].result;
    lane[l].own = own;
    lane[l].came = f ? h->scratch + (round % 2 * LANES + i % LANES) * SEGMENT : own.data;
    lane[l].result = f && round == rounds - 1 ? out + at : lane[l].came;
    if (own.bytes) NEED(post_recv(h, before, l, lane[l].came, own.bytes));
    if (sent.bytes) NEED(post_send(h, next, l, sent.data, sent.bytes));
  }
  return LM_OK;
}

static lm_status swap(lm_host *h, int peer, char *out, size_t out_bytes, char *in, size_t in_bytes) {
  NEED(post_recv(h, peer, 0, in, in_bytes));
  NEED(post_send(h, peer, 0, out, out_bytes));
  NEED(settle(h, false, peer, 0));
  return settle(h, true, peer, 0);
}

/* Reduces s over ranks that differ in `bit` and lower bits (recursive halving): two ranks exchange halves, sum one
 * each, recurse and exchange the results. Up to WHOLE bytes both exchange and sum all of s, in the same order. */
static lm_status reduce_by_bits(lm_host *h, span s, fold f, int bit) {
  if (bit == 0) return LM_OK;
  int peer = h->g->rank ^ bit;
  bool upper = h->g->rank & bit;
  if (s.bytes <= WHOLE) {
    NEED(swap(h, peer, s.data, s.bytes, h->scratch, s.bytes));
    fold_into(f, s.data, upper ? h->scratch : s.data, upper ? s.data : h->scratch, s.bytes);
    return reduce_by_bits(h, s, f, bit / 2);
  }
  size_t half = s.bytes / 128 * 64;
  span low = {s.data, half}, high = {s.data + half, s.bytes - half}, own = upper ? high : low,
       other = upper ? low : high;
  NEED(swap(h, peer, other.data, other.bytes, h->scratch, own.bytes));
  fold_into(f, own.data, own.data, h->scratch, own.bytes);
  NEED(reduce_by_bits(h, own, f, bit / 2));
  return swap(h, peer, own.data, own.bytes, other.data, other.bytes);
}

/* Reduces s by recursive halving over 2^k ranks; each rank above that sends s to one below and gets the result back. */
static lm_status reduce_small(lm_host *h, span s, fold f) {
  const lm_group *g = h->g;
  int ranks = 1;
  while (2 * ranks <= g->size) ranks *= 2;
  NEED(make_scratch(h));
  if (g->rank >= ranks) return swap(h, g->rank - ranks, s.data, s.bytes, s.data, s.bytes);
  int extra = g->rank + ranks;
  if (extra < g->size) {
    NEED(post_recv(h, extra, 0, h->scratch, s.bytes));
    NEED(settle(h, false, extra, 0));
    fold_into(f, s.data, s.data, h->scratch, s.bytes);
  }
  NEED(reduce_by_bits(h, s, f, ranks / 2));
  return extra < g->size ? post_send(h, extra, 0, s.data, s.bytes) : LM_OK;
}

static lm_status all_reduce(lm_host *h, lm_tensor *t, fold f) {
  blocks parts = parts_of(h->g, t);
  int64_t small = lm_max(SMALL, (int64_t)h->g->size * WHOLE);
  if ((int64_t)parts.whole.bytes <= lm_min(small, SCRATCH)) return reduce_small(h, parts.whole, f);
  NEED(go_around(h, &parts, &f, block_of(&parts, h->g->rank).data));
  return go_around(h, &parts, NULL, NULL);
}

/* Reduces one part at each rank, then sends all parts to the root; the other ranks' tensors are only read. */
static lm_status reduce(lm_host *h, lm_tensor *t, int root, fold f) {
  int rank = h->g->rank;
  blocks parts = parts_of(h->g, t);
  lm_free(h->sum);
  h->sum = rank == root ? NULL : lm_malloc(parts.part);
  if (rank != root && !h->sum) return LM_E_OOM;
  char *sum = rank == root ? block_of(&parts, root).data : h->sum;
  NEED(go_around(h, &parts, &f, sum));
  for (int r = 0; r < h->g->size; r++) {
    span part = block_of(&parts, r);
    if (part.bytes == 0 || r == root) continue;
    if (rank == root) NEED(post_recv(h, r, 0, part.data, part.bytes));
    if (rank == r) NEED(post_send(h, root, 0, sum, part.bytes));
  }
  NEED(settle_all(h, LM_OK));
  lm_free(h->sum);
  h->sum = NULL;
  return LM_OK;
}

/* ---- from and to a root, between pairs */

/* Broadcasts t along a binomial tree, numbered from the root: a rank's parent lacks its number's lowest set bit. */
static lm_status pass_down(lm_host *h, lm_tensor *t, int root) {
  int size = h->g->size, number = (h->g->rank + size - root) % size, parent = ((number & (number - 1)) + root) % size;
  int lowest = 1;
  while (lowest < size && !(number & lowest)) lowest *= 2;
  NEED(notify_next(h));
  if (number) NEED(post_recv(h, parent, 0, t->data, lm_nbytes(t)));
  if (number) NEED(settle(h, false, parent, 0));
  for (int bit = lowest / 2; bit > 0; bit /= 2)
    if (number + bit < size) NEED(post_send(h, (number + bit + root) % size, 0, t->data, lm_nbytes(t)));
  return LM_OK;
}

/* Sends in[r] to each rank r, and receives out[r] from it. A gather has only the root's `out`, to which the others send
 * t, and a scatter only its `in`, from which they receive t. */
static lm_status exchange(lm_host *h, const lm_group_call *c) {
  const lm_group *g = h->g;
  const lm_tensor *from = c->in ? c->in[g->rank] : c->t;
  lm_tensor *to = c->out ? c->out[g->rank] : c->t;
  if ((c->in || c->out) && from->numel > 0) memmove(to->data, from->data, lm_nbytes(from));
  for (int i = 1; i < g->size; i++) {
    int r = rank_before(g, i);
    lm_tensor *t = c->out ? c->out[r] : c->kind == LM_SCATTER && r == c->root ? c->t : NULL;
    if (t) NEED(post_recv(h, r, 0, t->data, lm_nbytes(t)));
  }
  for (int i = 1; i < g->size; i++) {
    int r = rank_after(g, i);
    lm_tensor *t = c->in ? c->in[r] : c->kind == LM_GATHER && r == c->root ? c->t : NULL;
    if (t) NEED(post_send(h, r, 0, t->data, lm_nbytes(t)));
  }
  return LM_OK;
}

/* Runs a dissemination barrier: after round k a rank has heard from the 2^k ranks before it. */
static lm_status meet(lm_host *h) {
  for (int steps = 1; steps < h->g->size; steps *= 2) {
    int before = rank_before(h->g, steps);
    NEED(post_send(h, rank_after(h->g, steps), 0, NULL, 0));
    NEED(post_recv(h, before, 0, NULL, 0));
    NEED(settle(h, false, before, 0));
  }
  return LM_OK;
}

static lm_status run(lm_host *h, const lm_group_call *c) {
  lm_tensor *t = c->t;
  switch (c->kind) {
    case LM_ALL_REDUCE: return all_reduce(h, t, (fold){t->dtype, c->op});
    case LM_BROADCAST: return pass_down(h, t, c->root);
    case LM_REDUCE: return reduce(h, t, c->root, (fold){t->dtype, c->op});
    case LM_ALL_GATHER:
      memmove(c->out[h->g->rank]->data, t->data, lm_nbytes(t));
      return go_around(h, &(blocks){.list = c->out}, NULL, NULL);
    case LM_REDUCE_SCATTER: return go_around(h, &(blocks){.list = c->in}, &(fold){t->dtype, c->op}, t->data);
    case LM_SCATTER: NEED(notify_next(h)); return exchange(h, c);
    case LM_BARRIER: return meet(h);
    default: return exchange(h, c); /* gather, all_to_all */
  }
}

lm_status lm_host_run(lm_host *h, const lm_group_call *c) {
  NEED(settle_all(h, run(h, c)));
  bool reduces =
      c->kind == LM_ALL_REDUCE || c->kind == LM_REDUCE_SCATTER || (c->kind == LM_REDUCE && h->g->rank == c->root);
  if (reduces) lm_reduce_mean(h->g, c->t, c->op);
  return LM_OK;
}
