/* Waits for remaining messages at the end of a call; posting a message waits for the last one of its lane. all_reduce
 * uses memory shared by the ranks of each host, if all can share, and messages between hosts. */
#include "distributed/group/host_collectives.h"

#include <string.h>

#include "base/mem.h"
#include "distributed/group/shared_memory_all_reduce.h"
#include "integers.h"

enum {
  LANES = 2,         /* one segment is sent while another one is summed */
  NOTICE = LANES,    /* the lane of notify_next's messages */
  SEGMENT = 1 << 20, /* most bytes of a segment; smaller ones fit caches better, but ranks wait more often */
  LEAST = 64 << 10,  /* least bytes of a segment in a ring, unless the whole block is smaller */
  WHOLE = 16 << 10,  /* bytes up to which reduce_by_bits exchanges whole tensors, since latency dominates */
  SMALL = 256 << 10, /* bytes up to which latency dominates: all_reduce uses reduce_small rather than the ring (or up to
                        WHOLE * size if more), all_gather gather_small */
  BLOCK = 8 << 20,   /* most bytes that all_reduce_by_hosts has on their way at once */
  BESIDE = 4,        /* most steps of shared memory between two messages, so that links stay busy */
  SCRATCH = 2 * LANES * SEGMENT
};

struct lm_host {
  lm_group *g;
  int rank, size;   /* this rank's number among the members, and theirs; the group's, unless `peers` is set */
  const int *peers; /* [size] the members' ranks in the group; NULL: all */
  const lm_host_messages *by;
  lm_shared_all_reduce *shared; /* memory of this host's ranks for all_reduce; NULL: messages alone */
  bool shared_known;            /* true once all ranks have tried to share memory */
  lm_host *across;              /* the ranks with this one's number on its host, of each host; NULL: one host */
  lm_host *within;              /* the host that has this one as `across`, or NULL */
  lm_shared_half half[2];       /* steps to run while messages are on their way */
  char *scratch;                /* SCRATCH bytes, two segments for each lane; NULL before the first reduction */
  char *sum; /* the part that host_reduce sums on this rank, if it is not the root; freed with a failed group */
  lm_request *under_way[][2][LM_HOST_LANES]; /* [size]: receives, sends */
};

static lm_status host_of_members(lm_group *g, const lm_host_messages *by, int size, int rank, const int *peers,
                                 lm_host **out) {
  lm_host *h = *out = lm_calloc(1, sizeof *h + (size_t)size * sizeof *h->under_way);
  if (!h) return LM_E_OOM;
  h->g = g;
  h->by = by;
  h->size = size;
  h->rank = rank;
  h->peers = peers;
  return LM_OK;
}

lm_status lm_host_new(lm_group *g, const lm_host_messages *by, lm_host **out) {
  return host_of_members(g, by, g->size, g->rank, NULL, out);
}

void lm_host_free(lm_host *h) {
  if (!h) return;
  lm_host_free(h->across);
  lm_shared_all_reduce_close(h->shared);
  lm_free(h->scratch);
  lm_free(h->sum);
  lm_free(h);
}

static int rank_after(const lm_host *h, int steps) { return (h->rank + steps) % h->size; }
static int rank_before(const lm_host *h, int steps) { return (h->rank + h->size - steps) % h->size; }

/* ---- messages of a collective */

static void forget_message(lm_host *h, bool sending, int peer, int lane) {
  lm_request **r = &h->under_way[peer][sending][lane];
  if (*r) h->by->forget(h->g, *r);
  *r = NULL;
}

static lm_status wait_for_message(lm_host *h, bool sending, int peer, int lane) {
  lm_request *r = h->under_way[peer][sending][lane];
  lm_status status = r ? h->by->wait(h->g, r) : LM_OK;
  forget_message(h, sending, peer, lane);
  return status;
}

static lm_status post_message(lm_host *h, bool sending, int peer, int lane, char *data, size_t bytes) {
  NEED(wait_for_message(h, sending, peer, lane));
  int rank = h->peers ? h->peers[peer] : peer;
  return h->by->post(h->g, sending, rank, lane, data, bytes, &h->under_way[peer][sending][lane]);
}

static lm_status post_send(lm_host *h, int peer, int lane, char *data, size_t bytes) {
  return post_message(h, true, peer, lane, data, bytes);
}

static lm_status post_recv(lm_host *h, int peer, int lane, char *data, size_t bytes) {
  return post_message(h, false, peer, lane, data, bytes);
}

/* Waits for a call's remaining messages; after an error, drops them. */
static lm_status settle_all(lm_host *h, lm_status status) {
  for (int i = 0; i < h->size * 2 * LM_HOST_LANES; i++) {
    int peer = i / (2 * LM_HOST_LANES), sending = i / LM_HOST_LANES % 2, lane = i % LM_HOST_LANES;
    if (status == LM_OK) status = wait_for_message(h, sending, peer, lane);
    forget_message(h, sending, peer, lane);
  }
  return status;
}

/* Sends an empty message with the call's ticket to the next rank, and receives the previous rank's. A root that only
 * sends would otherwise not notice that another rank has a different root. */
static lm_status notify_next(lm_host *h) {
  if (h->size == 1 || !h->by->tell_tickets) return LM_OK;
  NEED(post_send(h, rank_after(h, 1), NOTICE, NULL, 0));
  return post_recv(h, rank_before(h, 1), NOTICE, NULL, 0);
}

/* ---- reductions, and the ring */

typedef struct fold { /* a reduction */
  lm_dtype dtype;
  lm_reduce_op op;
  double scale; /* multiplies each rank's elements before they are summed; 0: none */
} fold;

/* Returns true if a call's elements are scaled before they are summed, as DistributedDataParallel scales them: a sum of
 * float16 may exceed the dtype's range where the mean does not. */
static bool scales_first(const lm_group_call *c) { return c->op == LM_REDUCE_MEAN && c->t->dtype == LM_F16; }

static fold fold_of(const lm_host *h, const lm_group_call *c) {
  return (fold){c->t->dtype, c->op, scales_first(c) ? 1.0 / h->size : 0};
}

static void copy_scaled(fold f, char *out, const char *from, size_t bytes) {
  memcpy(out, from, bytes);
  lm_reduce_scale(f.dtype, out, bytes / lm_dtype_size(f.dtype), f.scale);
}

/* Computes out = a folded with b, where a is scaled already. */
static void fold_into(fold f, char *out, const char *a, const char *b, size_t bytes) {
  enum { TILE = 4096 };
  char tile[TILE];
  size_t element = lm_dtype_size(f.dtype), most = f.scale != 0 ? TILE : bytes;
  for (size_t at = 0; at < bytes; at += most) {
    size_t part = bytes - at < most ? bytes - at : most;
    if (f.scale != 0) copy_scaled(f, tile, b + at, part);
    lm_reduce_into(f.dtype, f.op, out + at, a + at, f.scale != 0 ? tile : b + at, part / element);
  }
}

static lm_status make_scratch(lm_host *h) {
  if (!h->scratch) h->scratch = lm_malloc(SCRATCH);
  return h->scratch ? LM_OK : LM_E_OOM;
}

typedef struct span {
  char *data;
  size_t bytes;
} span;

static span span_of(const lm_tensor *t) { return (span){t->data, lm_nbytes(t)}; }

/* One block for each rank: the tensors of a list, or nearly equal parts of one tensor. */
typedef struct blocks {
  lm_tensor *const *list;
  span whole;  /* the one tensor, if list is NULL */
  size_t part; /* bytes of its part for each rank; the last ones may have less */
} blocks;

static blocks blocks_of_ranks(const lm_host *h, span s) { return (blocks){NULL, s, lm_shared_part(s.bytes, h->size)}; }

static span stretch_of(span s, size_t at, size_t most) {
  size_t left = s.bytes > at ? s.bytes - at : 0;
  return (span){s.data + at, left < most ? left : most};
}

static span block_of(const blocks *b, int rank) {
  return b->list ? span_of(b->list[rank]) : stretch_of(b->whole, (size_t)rank * b->part, b->part);
}

/* Sends blocks once around the ring, LANES segments at a time. Without f (all_gather) each rank receives all other
 * ranks' blocks. With f (reduce_scatter) block r starts at the rank after r, each rank adds its own block r to the
 * received one, and rank r gets the reduction in `out`, which may be its block r; other blocks are only read. */
static lm_status go_around(lm_host *h, const blocks *b, const fold *f, char *out) {
  struct {
    span own;            /* this rank's segment of the block received last */
    char *came, *result; /* address it is received at; address of the sum */
  } lane[LANES] = {0};
  if (f && h->size == 1) memmove(out, block_of(b, 0).data, block_of(b, 0).bytes);
  if (h->size == 1) return LM_OK;
  if (f) NEED(make_scratch(h));
  int next = rank_after(h, 1), before = rank_before(h, 1);
  int64_t longest = (int64_t)block_of(b, 0).bytes, share = lm_round_up(lm_ceil_div(longest, LANES), 64);
  size_t segment = (size_t)lm_max(LEAST, lm_min(share, SEGMENT)), rounds = (size_t)h->size - 1;
  size_t steps = (size_t)lm_round_up(lm_ceil_div(longest, (int64_t)segment), LANES) * rounds;
  for (size_t i = 0; i < steps + LANES; i++) {
    int l = (int)(i % LANES);
    size_t round = i / LANES % rounds, at = (i / (LANES * rounds) * LANES + i % LANES) * segment;
    NEED(wait_for_message(h, false, before, l));
    if (f && lane[l].own.bytes) fold_into(*f, lane[l].result, lane[l].came, lane[l].own.data, lane[l].own.bytes);
    NEED(wait_for_message(h, true, next, l));
    if (h->within) NEED(lm_shared_run_halves(h->within->shared, 2, h->within->half, BESIDE));
    if (i >= steps) continue;
    int coming = rank_before(h, 1 + (int)round) + (f ? h->size - 1 : 0);
    span own = stretch_of(block_of(b, coming % h->size), at, segment);
    span sent = stretch_of(block_of(b, (coming + 1) % h->size), at, segment);
    if (f && round) {
      sent.data = lane[l].result;
    } else if (f && f->scale != 0) { /* into the segment that round 1 receives, once this one is sent */
      char *scaled = h->scratch + (LANES + i % LANES) * SEGMENT;
      copy_scaled(*f, scaled, sent.data, sent.bytes);
      sent.data = scaled;
    }
    lane[l].own = own;
    lane[l].came = f ? h->scratch + (round % 2 * LANES + i % LANES) * SEGMENT : own.data;
    lane[l].result = f && round == rounds - 1 ? out + at : lane[l].came;
    if (own.bytes) NEED(post_recv(h, before, l, lane[l].came, own.bytes));
    if (sent.bytes) NEED(post_send(h, next, l, sent.data, sent.bytes));
  }
  return LM_OK;
}

/* Gathers small blocks in log2(size) rounds (Bruck's algorithm), where the ring takes size - 1: before the round of
 * `steps` each rank has the blocks of as many ranks, up to its own, and passes them that far ahead. */
static lm_status gather_small(lm_host *h, const blocks *b) {
  size_t bytes = block_of(b, 0).bytes;
  NEED(make_scratch(h));
  for (int steps = 1; steps < h->size; steps *= 2) {
    int count = steps < h->size - steps ? steps : h->size - steps, before = rank_before(h, steps);
    char *came = h->scratch + SCRATCH / 2;
    if (steps > 1) NEED(wait_for_message(h, true, rank_after(h, steps / 2), 0)); /* scratch has been sent */
    for (int i = 0; i < count; i++) memcpy(h->scratch + (size_t)i * bytes, block_of(b, rank_before(h, i)).data, bytes);
    NEED(post_recv(h, before, 0, came, (size_t)count * bytes));
    NEED(post_send(h, rank_after(h, steps), 0, h->scratch, (size_t)count * bytes));
    NEED(wait_for_message(h, false, before, 0));
    for (int i = 0; i < count; i++)
      memcpy(block_of(b, rank_before(h, steps + i)).data, came + (size_t)i * bytes, bytes);
  }
  return LM_OK;
}

static lm_status exchange_with_peer(lm_host *h, int peer, char *out, size_t out_bytes, char *in, size_t in_bytes) {
  NEED(post_recv(h, peer, 0, in, in_bytes));
  NEED(post_send(h, peer, 0, out, out_bytes));
  NEED(wait_for_message(h, false, peer, 0));
  return wait_for_message(h, true, peer, 0);
}

/* Reduces s over ranks that differ in `bit` and lower bits (recursive halving): two ranks exchange halves, sum one
 * each, recurse and exchange the results. Up to WHOLE bytes both exchange and sum all of s, in the same order. */
static lm_status reduce_by_bits(lm_host *h, span s, fold f, int bit) {
  if (bit == 0) return LM_OK;
  int peer = h->rank ^ bit;
  bool upper = h->rank & bit;
  if (s.bytes <= WHOLE) {
    NEED(exchange_with_peer(h, peer, s.data, s.bytes, h->scratch, s.bytes));
    fold_into(f, s.data, upper ? h->scratch : s.data, upper ? s.data : h->scratch, s.bytes);
    return reduce_by_bits(h, s, f, bit / 2);
  }
  size_t half = s.bytes / 128 * 64;
  span low = {s.data, half}, high = {s.data + half, s.bytes - half}, own = upper ? high : low,
       other = upper ? low : high;
  NEED(exchange_with_peer(h, peer, other.data, other.bytes, h->scratch, own.bytes));
  fold_into(f, own.data, own.data, h->scratch, own.bytes);
  NEED(reduce_by_bits(h, own, f, bit / 2));
  return exchange_with_peer(h, peer, own.data, own.bytes, other.data, other.bytes);
}

/* Reduces s by recursive halving over 2^k ranks; each rank above that sends s to one below and gets the result back. */
static lm_status reduce_small(lm_host *h, span s, fold f) {
  int ranks = 1;
  while (2 * ranks <= h->size) ranks *= 2;
  NEED(make_scratch(h));
  if (h->rank >= ranks) return exchange_with_peer(h, h->rank - ranks, s.data, s.bytes, s.data, s.bytes);
  int extra = h->rank + ranks;
  if (extra < h->size) {
    NEED(post_recv(h, extra, 0, h->scratch, s.bytes));
    NEED(wait_for_message(h, false, extra, 0));
    fold_into(f, s.data, s.data, h->scratch, s.bytes);
  }
  NEED(reduce_by_bits(h, s, f, ranks / 2));
  return extra < h->size ? post_send(h, extra, 0, s.data, s.bytes) : LM_OK;
}

/* Reduces s over two ranks, which send it to each other, LANES segments at a time, and both sum: as many bytes as in
 * the ring, in one pass instead of two. */
static lm_status reduce_pair(lm_host *h, span s, fold f) {
  NEED(make_scratch(h));
  int peer = 1 - h->rank;
  size_t segment = (size_t)lm_min(lm_round_up(lm_ceil_div((int64_t)s.bytes, LANES), 64), SEGMENT);
  for (size_t at = 0; at < s.bytes + LANES * segment; at += segment) {
    int l = (int)(at / segment % LANES);
    char *came = h->scratch + l * SEGMENT;
    span next = stretch_of(s, at, segment);
    NEED(wait_for_message(h, false, peer, l));
    NEED(wait_for_message(h, true, peer, l));
    if (at >= LANES * segment) {
      span sum = stretch_of(s, at - LANES * segment, segment);
      fold_into(f, sum.data, h->rank ? came : sum.data, h->rank ? sum.data : came, sum.bytes);
    }
    if (h->within) NEED(lm_shared_run_halves(h->within->shared, 2, h->within->half, BESIDE));
    if (next.bytes) NEED(post_recv(h, peer, l, came, next.bytes));
    if (next.bytes) NEED(post_send(h, peer, l, next.data, next.bytes));
  }
  return LM_OK;
}

static lm_status all_reduce(lm_host *h, span s, fold f) {
  blocks parts = blocks_of_ranks(h, s);
  int64_t small = lm_max(SMALL, (int64_t)h->size * WHOLE);
  if (h->size == 2 && s.bytes > WHOLE) return reduce_pair(h, s, f);
  if ((int64_t)parts.whole.bytes <= lm_min(small, SCRATCH)) return reduce_small(h, parts.whole, f);
  NEED(go_around(h, &parts, &f, block_of(&parts, h->rank).data));
  return go_around(h, &parts, NULL, NULL);
}

/* Reduces one part at each rank, then sends all parts to the root; the other ranks' tensors are only read. */
static lm_status reduce_to_root(lm_host *h, lm_tensor *t, int root, fold f) {
  int rank = h->rank;
  blocks parts = blocks_of_ranks(h, span_of(t));
  lm_free(h->sum);
  h->sum = rank == root ? NULL : lm_malloc(parts.part);
  if (rank != root && !h->sum) return LM_E_OOM;
  char *sum = rank == root ? block_of(&parts, root).data : h->sum;
  NEED(go_around(h, &parts, &f, sum));
  for (int r = 0; r < h->size; r++) {
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
  int size = h->size, number = (h->rank + size - root) % size, parent = ((number & (number - 1)) + root) % size;
  int lowest = 1;
  while (lowest < size && !(number & lowest)) lowest *= 2;
  NEED(notify_next(h));
  if (number) NEED(post_recv(h, parent, 0, t->data, lm_nbytes(t)));
  if (number) NEED(wait_for_message(h, false, parent, 0));
  for (int bit = lowest / 2; bit > 0; bit /= 2)
    if (number + bit < size) NEED(post_send(h, (number + bit + root) % size, 0, t->data, lm_nbytes(t)));
  return LM_OK;
}

/* Sends in[r] to each rank r, and receives out[r] from it. A gather has only the root's `out`, to which the others send
 * t, and a scatter only its `in`, from which they receive t. */
static lm_status exchange_tensors(lm_host *h, const lm_group_call *c) {
  const lm_tensor *from = c->in ? c->in[h->rank] : c->t;
  lm_tensor *to = c->out ? c->out[h->rank] : c->t;
  if ((c->in || c->out) && from->numel > 0) memmove(to->data, from->data, lm_nbytes(from));
  for (int i = 1; i < h->size; i++) {
    int r = rank_before(h, i);
    lm_tensor *t = c->out ? c->out[r] : c->kind == LM_SCATTER && r == c->root ? c->t : NULL;
    if (t) NEED(post_recv(h, r, 0, t->data, lm_nbytes(t)));
  }
  for (int i = 1; i < h->size; i++) {
    int r = rank_after(h, i);
    lm_tensor *t = c->in ? c->in[r] : c->kind == LM_GATHER && r == c->root ? c->t : NULL;
    if (t) NEED(post_send(h, r, 0, t->data, lm_nbytes(t)));
  }
  return LM_OK;
}

/* Runs a dissemination barrier: after round k a rank has heard from the 2^k ranks before it. */
static lm_status run_barrier(lm_host *h) {
  for (int steps = 1; steps < h->size; steps *= 2) {
    int before = rank_before(h, steps);
    NEED(post_send(h, rank_after(h, steps), 0, NULL, 0));
    NEED(post_recv(h, before, 0, NULL, 0));
    NEED(wait_for_message(h, false, before, 0));
  }
  return LM_OK;
}

static lm_status run_call(lm_host *h, const lm_group_call *c) {
  lm_tensor *t = c->t;
  switch (c->kind) {
    case LM_ALL_REDUCE: return all_reduce(h, span_of(t), (fold){t->dtype, c->op, 0});
    case LM_BROADCAST: return pass_down(h, t, c->root);
    case LM_REDUCE: return reduce_to_root(h, t, c->root, fold_of(h, c));
    case LM_ALL_GATHER:
      memmove(c->out[h->rank]->data, t->data, lm_nbytes(t));
      if (lm_nbytes(t) * (size_t)h->size <= SMALL) return gather_small(h, &(blocks){.list = c->out});
      return go_around(h, &(blocks){.list = c->out}, NULL, NULL);
    case LM_REDUCE_SCATTER: return go_around(h, &(blocks){.list = c->in}, (fold[]){fold_of(h, c)}, t->data);
    case LM_SCATTER: NEED(notify_next(h)); return exchange_tensors(h, c);
    case LM_BARRIER: return run_barrier(h);
    default: return exchange_tensors(h, c); /* gather, all_to_all */
  }
}

/* Runs a call's messages; with `part`, sums it over the members of `across` instead. */
static lm_status exchange_messages(lm_host *h, const lm_group_call *c, const span *part) {
  lm_host *members = part ? h->across : h;
  if (h->by->begin) NEED(h->by->begin(h->g));
  lm_status status =
      settle_all(members, part ? all_reduce(members, *part, (fold){c->t->dtype, c->op, 0}) : run_call(h, c));
  if (h->by->end) h->by->end(h->g);
  return status;
}

static lm_status open_shared(lm_host *h) {
  NEED(lm_shared_all_reduce_open(h->g, &h->shared));
  h->shared_known = true;
  if (!h->shared) return LM_OK;
  const lm_host_layout *at = lm_shared_all_reduce_layout(h->shared);
  if (at->hosts == 1) return LM_OK;
  NEED(host_of_members(h->g, h->by, at->hosts, at->host, at->across, &h->across));
  h->across->within = h;
  return LM_OK;
}

/* Sums this rank's part of s over the hosts, if it has one. */
static lm_status reduce_across(lm_host *h, const lm_group_call *c, span s, int parts) {
  int index = lm_shared_all_reduce_layout(h->shared)->index;
  size_t part = lm_shared_part(s.bytes, parts), element = lm_dtype_size(c->t->dtype);
  span mine = index < parts ? stretch_of(s, (size_t)index * part, part) : (span){0};
  if (mine.bytes == 0) return LM_OK;
  NEED(exchange_messages(h, c, &mine));
  if (c->op == LM_REDUCE_MEAN) lm_reduce_scale(c->t->dtype, mine.data, mine.bytes / element, 1.0 / h->size);
  return LM_OK;
}

/* Runs all_reduce within hosts by shared memory and between them by messages: the ranks of each host sum a part each,
 * ranks of the same number on their hosts sum theirs, and share the result with their hosts. A host sends and receives
 * 2 (hosts - 1) / hosts of the tensor's bytes; by the ring, 2 (ranks - 1) / ranks at least. Large tensors go by blocks:
 * while messages of one are on their way, ranks spread the block before it and reduce the one after it. */
static lm_status all_reduce_by_hosts(lm_host *h, const lm_group_call *c) {
  span all = span_of(c->t);
  size_t blocks = (size_t)lm_ceil_div(all.bytes, BLOCK), block = lm_shared_part(all.bytes, (int)blocks);
  int parts = all.bytes <= WHOLE ? 1 : lm_shared_all_reduce_layout(h->shared)->columns;
  NEED(lm_shared_meet(h->shared, h->g));
  for (size_t i = 0; i < blocks + 2; i++) {
    for (int k = 0; k < 2; k++) { /* spread block i - 2, reduce block i */
      span s = k || i >= 2 ? stretch_of(all, (k ? i : i - 2) * block, block) : (span){0};
      h->half[k] = (lm_shared_half){
          .spreads = !k, .dtype = c->t->dtype, .op = c->op, .data = s.data, .bytes = s.bytes, .parts = parts};
      if (h->half[k].op == LM_REDUCE_MEAN) h->half[k].op = LM_REDUCE_SUM;
    }
    if (i >= 1 && i <= blocks) NEED(reduce_across(h, c, stretch_of(all, (i - 1) * block, block), parts));
    NEED(lm_shared_run_halves(h->shared, 2, h->half, -1));
  }
  return LM_OK;
}

lm_status lm_host_run(lm_host *h, const lm_group_call *c) {
  lm_group_call scaled;
  if (c->kind == LM_ALL_REDUCE && scales_first(c)) {
    lm_reduce_scale(c->t->dtype, c->t->data, (size_t)c->t->numel, 1.0 / h->size);
    scaled = *c;
    scaled.op = LM_REDUCE_SUM;
    c = &scaled;
  }
  if (c->kind == LM_ALL_REDUCE && !h->shared_known) NEED(open_shared(h));
  if (c->kind == LM_ALL_REDUCE && h->across) return all_reduce_by_hosts(h, c);
  if (c->kind == LM_ALL_REDUCE && h->shared) return lm_shared_all_reduce_run(h->shared, h->g, c->t, c->op);
  NEED(exchange_messages(h, c, NULL));
  bool reduces =
      c->kind == LM_ALL_REDUCE || c->kind == LM_REDUCE_SCATTER || (c->kind == LM_REDUCE && h->rank == c->root);
  if (reduces && !scales_first(c)) lm_reduce_mean(h->g, c->t, c->op);
  return LM_OK;
}
