/* Implements the backend "gloo": collectives of CPU tensors between processes, on one or several hosts, over sockets
 * (message_transport.c); all_reduce within a host uses shared memory (shared_memory_all_reduce.c).
 *
 * Each peer has lanes. A lane has at most one send and one receive in progress; posting the next one waits for the
 * last. Remaining messages are waited for at the end of a call. */
#include <string.h>

#include "base/mem.h"
#include "distributed/gloo/message_transport.h"
#include "distributed/gloo/shared_memory_all_reduce.h"
#include "distributed/gloo/wire.h"
#include "distributed/group/group_core.h"
#include "integers.h"

enum {
  LANES = 2, /* one segment is sent while another one is summed */
  NOTICE,    /* the lane of notify_next's messages */
  ALL_LANES,
  SEGMENT = 1 << 20, /* most bytes of a segment; smaller ones fit caches better, but ranks wait more often */
  WHOLE = 16 << 10,  /* bytes up to which reduce_by_bits exchanges whole tensors, since latency dominates */
  SMALL = 256 << 10, /* bytes up to which all_reduce uses reduce_small rather than the ring; or WHOLE * size if more */
  SCRATCH = 2 * LANES * SEGMENT
};

typedef struct state {
  lm_transport *transport;
  lm_local *local;  /* shared memory for all_reduce; NULL: sockets */
  bool local_known; /* true once all ranks have tried to share memory */
  char *scratch;    /* SCRATCH bytes, two segments for each lane; NULL before the first reduction */
  lm_request *under_way[][2][ALL_LANES]; /* [size]: receives, sends */
} state;

static state *state_of(const lm_group *g) { return g->state; }
static lm_transport *transport_of(const lm_group *g) { return state_of(g)->transport; }
static int rank_after(const lm_group *g, int steps) { return (g->rank + steps) % g->size; }
static int rank_before(const lm_group *g, int steps) { return (g->rank + g->size - steps) % g->size; }

/* ---- messages of a collective */

static void drop(lm_group *g, bool sending, int peer, int lane) {
  lm_request **r = &state_of(g)->under_way[peer][sending][lane];
  lm_transport_forget(transport_of(g), *r);
  *r = NULL;
}

static lm_status settle(lm_group *g, bool sending, int peer, int lane) {
  lm_request *r = state_of(g)->under_way[peer][sending][lane];
  lm_status status = r ? lm_transport_wait(transport_of(g), r) : LM_OK;
  drop(g, sending, peer, lane);
  return status;
}

static lm_status post(lm_group *g, bool sending, int peer, int lane, char *data, size_t bytes) {
  NEED(settle(g, sending, peer, lane));
  return lm_transport_post(transport_of(g), sending, peer, (uint64_t)lane, data, bytes,
                           &state_of(g)->under_way[peer][sending][lane]);
}

static lm_status post_send(lm_group *g, int peer, int lane, char *data, size_t bytes) {
  return post(g, true, peer, lane, data, bytes);
}

static lm_status post_recv(lm_group *g, int peer, int lane, char *data, size_t bytes) {
  return post(g, false, peer, lane, data, bytes);
}

/* Waits for a call's remaining messages (after an error, drops them) and ends it. Follows each successful begin. */
static lm_status end_call(lm_group *g, lm_status status) {
  for (int i = 0; i < g->size * 2 * ALL_LANES; i++) {
    int peer = i / (2 * ALL_LANES), sending = i / ALL_LANES % 2, lane = i % ALL_LANES;
    if (status == LM_OK) status = settle(g, sending, peer, lane);
    drop(g, sending, peer, lane);
  }
  lm_transport_end(transport_of(g));
  return status;
}

/* Sends an empty message with the call's ticket to the next rank, and receives the previous rank's. A root that only
 * sends would otherwise not notice that another rank has a different root. */
static lm_status notify_next(lm_group *g) {
  if (g->size == 1) return LM_OK;
  NEED(post_send(g, rank_after(g, 1), NOTICE, NULL, 0));
  return post_recv(g, rank_before(g, 1), NOTICE, NULL, 0);
}

/* ---- reductions, and the ring */

typedef struct fold { /* a reduction */
  lm_dtype dtype;
  lm_reduce_op op;
} fold;

static void fold_into(fold f, char *out, const char *a, const char *b, size_t bytes) {
  lm_reduce_into(f.dtype, f.op, out, a, b, bytes / lm_dtype_size(f.dtype));
}

static lm_status make_scratch(state *s) {
  if (!s->scratch) s->scratch = lm_malloc(SCRATCH);
  return s->scratch ? LM_OK : LM_E_OOM;
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
static lm_status go_around(lm_group *g, const blocks *b, const fold *f, char *out) {
  struct {
    span own;            /* this rank's segment of the block received last */
    char *came, *result; /* address it is received at; address of the sum */
  } lane[LANES] = {0};
  if (f && g->size == 1) memmove(out, block_of(b, 0).data, block_of(b, 0).bytes);
  if (g->size == 1) return LM_OK;
  if (f) NEED(make_scratch(g->state));
  int next = rank_after(g, 1), before = rank_before(g, 1);
  int64_t longest = (int64_t)block_of(b, 0).bytes, share = lm_round_up(lm_ceil_div(longest, LANES), 64);
  size_t segment = (size_t)lm_max(LM_EAGER_MAX, lm_min(share, SEGMENT)), rounds = (size_t)g->size - 1;
  size_t steps = (size_t)lm_round_up(lm_ceil_div(longest, (int64_t)segment), LANES) * rounds;
  for (size_t i = 0; i < steps + LANES; i++) {
    int l = (int)(i % LANES);
    size_t round = i / LANES % rounds, at = (i / (LANES * rounds) * LANES + i % LANES) * segment;
    NEED(settle(g, false, before, l));
    if (f && lane[l].own.bytes) fold_into(*f, lane[l].result, lane[l].came, lane[l].own.data, lane[l].own.bytes);
    NEED(settle(g, true, next, l));
    if (i >= steps) continue;
    int coming = rank_before(g, 1 + (int)round) + (f ? g->size - 1 : 0);
    span own = stretch_of(block_of(b, coming % g->size), at, segment);
    span sent = stretch_of(block_of(b, (coming + 1) % g->size), at, segment);
    if (f && round) sent.data = lane[l].result;
    lane[l].own = own;
    lane[l].came = f ? state_of(g)->scratch + (round % 2 * LANES + i % LANES) * SEGMENT : own.data;
    lane[l].result = f && round == rounds - 1 ? out + at : lane[l].came;
    if (own.bytes) NEED(post_recv(g, before, l, lane[l].came, own.bytes));
    if (sent.bytes) NEED(post_send(g, next, l, sent.data, sent.bytes));
  }
  return LM_OK;
}

static lm_status swap(lm_group *g, int peer, char *out, size_t out_bytes, char *in, size_t in_bytes) {
  NEED(post_recv(g, peer, 0, in, in_bytes));
  NEED(post_send(g, peer, 0, out, out_bytes));
  NEED(settle(g, false, peer, 0));
  return settle(g, true, peer, 0);
}

/* Reduces s over ranks that differ in `bit` and lower bits (recursive halving): two ranks exchange halves, sum one
 * each, recurse and exchange the results. Up to WHOLE bytes both exchange and sum all of s, in the same order. */
static lm_status reduce_by_bits(lm_group *g, span s, fold f, int bit) {
  if (bit == 0) return LM_OK;
  char *scratch = state_of(g)->scratch;
  int peer = g->rank ^ bit;
  bool upper = g->rank & bit;
  if (s.bytes <= WHOLE) {
    NEED(swap(g, peer, s.data, s.bytes, scratch, s.bytes));
    fold_into(f, s.data, upper ? scratch : s.data, upper ? s.data : scratch, s.bytes);
    return reduce_by_bits(g, s, f, bit / 2);
  }
  size_t half = s.bytes / 128 * 64;
  span low = {s.data, half}, high = {s.data + half, s.bytes - half}, own = upper ? high : low,
       other = upper ? low : high;
  NEED(swap(g, peer, other.data, other.bytes, scratch, own.bytes));
  fold_into(f, own.data, own.data, scratch, own.bytes);
  NEED(reduce_by_bits(g, own, f, bit / 2));
  return swap(g, peer, own.data, own.bytes, other.data, other.bytes);
}

/* Reduces s by recursive halving over 2^k ranks; each rank above that sends s to one below and gets the result back. */
static lm_status reduce_small(lm_group *g, span s, fold f) {
  int ranks = 1;
  while (2 * ranks <= g->size) ranks *= 2;
  NEED(make_scratch(g->state));
  if (g->rank >= ranks) return swap(g, g->rank - ranks, s.data, s.bytes, s.data, s.bytes);
  int extra = g->rank + ranks;
  if (extra < g->size) {
    NEED(post_recv(g, extra, 0, state_of(g)->scratch, s.bytes));
    NEED(settle(g, false, extra, 0));
    fold_into(f, s.data, s.data, state_of(g)->scratch, s.bytes);
  }
  NEED(reduce_by_bits(g, s, f, ranks / 2));
  return extra < g->size ? post_send(g, extra, 0, s.data, s.bytes) : LM_OK;
}

static lm_status reduce_everywhere(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  fold f = {t->dtype, op};
  blocks parts = parts_of(g, t);
  int64_t small = lm_max(SMALL, (int64_t)g->size * WHOLE);
  if ((int64_t)parts.whole.bytes <= lm_min(small, SCRATCH)) return reduce_small(g, parts.whole, f);
  NEED(go_around(g, &parts, &f, block_of(&parts, g->rank).data));
  return go_around(g, &parts, NULL, NULL);
}

static lm_status gloo_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  state *s = g->state;
  if (g->one_host && !s->local_known) {
    NEED(lm_local_open(g, &s->local));
    s->local_known = true;
  }
  if (s->local) return lm_local_all_reduce(s->local, g, t, op);
  NEED(lm_transport_begin(s->transport));
  NEED(end_call(g, reduce_everywhere(g, t, op)));
  lm_reduce_mean(g, t, op);
  return LM_OK;
}

/* Reduces one part at each rank into `sum`, then sends all parts to the root. */
static lm_status reduce_at_root(lm_group *g, const blocks *parts, int root, fold f, char *sum) {
  NEED(go_around(g, parts, &f, sum));
  for (int r = 0; r < g->size; r++) {
    span part = block_of(parts, r);
    if (part.bytes == 0 || r == root) continue;
    if (g->rank == root) NEED(post_recv(g, r, 0, part.data, part.bytes));
    if (g->rank == r) NEED(post_send(g, root, 0, sum, part.bytes));
  }
  return LM_OK;
}

static lm_status gloo_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op) {
  blocks parts = parts_of(g, t);
  bool here = g->rank == root; /* the other ranks' tensors are only read */
  char *sum = here ? block_of(&parts, root).data : lm_malloc(parts.part);
  if (!sum) return LM_E_OOM;
  lm_status status = lm_transport_begin(transport_of(g));
  if (status == LM_OK) status = end_call(g, reduce_at_root(g, &parts, root, (fold){t->dtype, op}, sum));
  if (!here) lm_free(sum);
  if (here && status == LM_OK) lm_reduce_mean(g, t, op);
  return status;
}

static lm_status gloo_reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  fold f = {t->dtype, op};
  NEED(lm_transport_begin(transport_of(g)));
  NEED(end_call(g, go_around(g, &(blocks){.list = in}, &f, t->data)));
  lm_reduce_mean(g, t, op);
  return LM_OK;
}

static lm_status gloo_all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  NEED(lm_transport_begin(transport_of(g)));
  memmove(out[g->rank]->data, t->data, lm_nbytes(t));
  return end_call(g, go_around(g, &(blocks){.list = out}, NULL, NULL));
}

/* ---- from and to a root, between pairs */

/* Broadcasts t along a binomial tree, numbered from the root: a rank's parent lacks its number's lowest set bit. */
static lm_status pass_down(lm_group *g, lm_tensor *t, int root) {
  int number = (g->rank + g->size - root) % g->size, parent = ((number & (number - 1)) + root) % g->size, lowest = 1;
  while (lowest < g->size && !(number & lowest)) lowest *= 2;
  NEED(notify_next(g));
  if (number) NEED(post_recv(g, parent, 0, t->data, lm_nbytes(t)));
  if (number) NEED(settle(g, false, parent, 0));
  for (int bit = lowest / 2; bit > 0; bit /= 2)
    if (number + bit < g->size) NEED(post_send(g, (number + bit + root) % g->size, 0, t->data, lm_nbytes(t)));
  return LM_OK;
}

static lm_status gloo_broadcast(lm_group *g, lm_tensor *t, int root) {
  NEED(lm_transport_begin(transport_of(g)));
  return end_call(g, pass_down(g, t, root));
}

/* Sends in[r] to each other rank r and receives out[r] from it; in NULL: sends nothing, out NULL: receives nothing. */
static lm_status exchange(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  for (int i = 1; i < g->size && out; i++) {
    int r = rank_before(g, i);
    NEED(post_recv(g, r, 0, out[r]->data, lm_nbytes(out[r])));
  }
  for (int i = 1; i < g->size && in; i++) {
    int r = rank_after(g, i);
    NEED(post_send(g, r, 0, in[r]->data, lm_nbytes(in[r])));
  }
  return LM_OK;
}

static lm_status gloo_gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  NEED(lm_transport_begin(transport_of(g)));
  if (out) memmove(out[root]->data, t->data, lm_nbytes(t));
  return end_call(g, out ? exchange(g, NULL, out) : post_send(g, root, 0, t->data, lm_nbytes(t)));
}

static lm_status scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  NEED(notify_next(g));
  if (!in) return post_recv(g, root, 0, t->data, lm_nbytes(t));
  memmove(t->data, in[root]->data, lm_nbytes(t));
  return exchange(g, in, NULL);
}

static lm_status gloo_scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  NEED(lm_transport_begin(transport_of(g)));
  return end_call(g, scatter(g, t, root, in));
}

static lm_status gloo_all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  NEED(lm_transport_begin(transport_of(g)));
  if (in[g->rank]->numel > 0) memmove(out[g->rank]->data, in[g->rank]->data, lm_nbytes(in[g->rank]));
  return end_call(g, exchange(g, in, out));
}

/* Runs a dissemination barrier: after round k a rank has heard from the 2^k ranks before it. */
static lm_status meet(lm_group *g) {
  for (int steps = 1; steps < g->size; steps *= 2) {
    int before = rank_before(g, steps);
    NEED(post_send(g, rank_after(g, steps), 0, NULL, 0));
    NEED(post_recv(g, before, 0, NULL, 0));
    NEED(settle(g, false, before, 0));
  }
  return LM_OK;
}

static lm_status gloo_barrier(lm_group *g) {
  NEED(lm_transport_begin(transport_of(g)));
  return end_call(g, meet(g));
}

/* ---- send and receive */

static lm_status gloo_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  return lm_transport_post(transport_of(g), sending, peer, (uint64_t)tag, t->data, lm_nbytes(t), out);
}

static lm_status gloo_finish(lm_group *g, lm_request *request, bool wait, bool *done, int *peer) {
  lm_transport *e = transport_of(g);
  *done = true;
  lm_status status = wait ? lm_transport_wait(e, request) : lm_transport_test(e, request, done);
  if (status != LM_OK) *done = false;
  if (*done) *peer = lm_transport_peer(request);
  return status;
}

static void gloo_forget(lm_group *g, lm_request *request) { lm_transport_forget(transport_of(g), request); }

/* ---- opening and closing */

static void gloo_close_group(lm_group *g) {
  state *s = g->state;
  if (!s) return;
  lm_local_close(s->local);
  lm_transport_close(s->transport);
  lm_free(s->scratch);
  lm_free(s);
  g->state = NULL;
}

static lm_status gloo_open_group(lm_group *g) {
  state *s = g->state = lm_calloc(1, sizeof *s + (size_t)g->size * sizeof *s->under_way);
  if (!s) return LM_E_OOM;
  lm_status status = lm_transport_open(g, &s->transport);
  if (status != LM_OK) gloo_close_group(g);
  return status;
}

static lm_status gloo_test(lm_group *g) { return lm_transport_peek(transport_of(g)); }

const lm_group_table lm_group_gloo_table = {
    .abi = LM_GROUP_ABI,
    .name = "gloo",
    .kinds = 1u << LM_CPU,
    .may_share = true,
    .open = gloo_open_group,
    .close = gloo_close_group,
    .all_reduce = gloo_all_reduce,
    .broadcast = gloo_broadcast,
    .reduce = gloo_reduce,
    .all_gather = gloo_all_gather,
    .gather = gloo_gather,
    .scatter = gloo_scatter,
    .reduce_scatter = gloo_reduce_scatter,
    .all_to_all = gloo_all_to_all,
    .barrier = gloo_barrier,
    .post = gloo_post,
    .finish = gloo_finish,
    .forget = gloo_forget,
    .test = gloo_test,
};
