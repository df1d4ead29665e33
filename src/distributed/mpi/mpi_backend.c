/* Implements the backend "mpi": collectives of CPU tensors between processes that mpirun started. The ranks compare
 * their tickets before each call and all see the same result, so MPI itself never runs mismatched calls. */
#include "distributed/mpi/mpi_backend.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "distributed/mpi/rank_mapping.h"

static const double MEET_SPIN = 100e-6;            /* seconds of busy waiting; later peers may be much later */
enum { SMALL = 64 << 10, SMALL_A_RANK = 4 << 10 }; /* bytes up to which few rounds matter more than few bytes */

/* ---- comparison of tickets */

static lm_status name_the_other(lm_group *g, const lm_ticket *mine) {
  lm_status status;
  lm_mpi_state *s = g->state;
  MPI_Request request;
  lm_ticket *all = lm_malloc((size_t)(g->size + 1) * sizeof *all); /* leaks if the call is abandoned */
  if (!all) return LM_E_OOM;
  all[g->size] = *mine;
  TRY(LM_MPI(g, MPI_Iallgather(&all[g->size], sizeof *all, MPI_BYTE, all, sizeof *all, MPI_BYTE, s->calls, &request)));
  TRY(lm_mpi_wait(g, 1, &request, lm_mpi_spin(sizeof *all)));
  int peer = 0;
  while (peer < g->size - 1 && lm_tickets_agree(&all[peer], mine)) peer++;
  status = lm_group_mismatch(g, peer, &all[peer]);
done:
  if (!lm_mpi_is_lost()) lm_free(all);
  return status;
}

static lm_status mpi_meet(lm_group *g) {
  lm_status status;
  lm_mpi_state *s = g->state;
  MPI_Request request;
  const lm_ticket *mine = lm_group_ticket(g);
  uint64_t print = lm_hash_number(mine->hash, mine->seq);
  s->meeting[0] = print;
  s->meeting[1] = ~print; /* the maximum of the complements is the complement of the minimum */
  TRY(LM_MPI(g, MPI_Iallreduce(MPI_IN_PLACE, s->meeting, 2, MPI_UINT64_T, MPI_MAX, s->calls, &request)));
  TRY(lm_mpi_wait(g, 1, &request, MEET_SPIN));
  if (s->meeting[0] != print || s->meeting[1] != ~print) status = name_the_other(g, mine);
done:
  return status;
}

/* ---- tensors */

/* Leaks the n tensors of an abandoned call, since MPI may still access them. Returns status. */
static lm_status mpi_keep_tensors(lm_status status, int n, lm_tensor *const *list) {
  for (int i = 0; status != LM_OK && lm_mpi_is_lost() && list && i < n; i++) lm_retain(list[i]);
  return status;
}

/* The data and sizes of a list of tensors; free_spans frees them. */
typedef struct spans {
  char **data; /* [size] */
  size_t *n;   /* [2 * size]: elements of each tensor, then zeros for the caller's use */
} spans;

static lm_status spans_of(const lm_group *g, lm_tensor *const *list, spans *out) {
  out->data = lm_calloc((size_t)g->size, sizeof *out->data);
  out->n = lm_calloc(2 * (size_t)g->size, sizeof *out->n);
  if (!out->data || !out->n) return LM_E_OOM;
  for (int r = 0; list && r < g->size; r++) {
    out->data[r] = list[r]->data;
    out->n[r] = (size_t)list[r]->numel;
  }
  return LM_OK;
}

static void free_spans(spans *s) {
  lm_free(s->data);
  lm_free(s->n);
}

/* ---- collectives */

static lm_status mpi_reduce_small(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  lm_mpi_state *s = g->state;
  MPI_Request request;
  NEED(LM_MPI(g, MPI_Iallreduce(MPI_IN_PLACE, t->data, (int)t->numel, lm_mpi_type(t->dtype), lm_mpi_op(op), s->calls,
                                &request)));
  return lm_mpi_wait(g, 1, &request, lm_mpi_spin(lm_nbytes(t)));
}

/* Reduces and gathers t around the ring, a stretch with one piece for each rank at a time. */
static lm_status mpi_reduce_large(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  lm_status status;
  spans blocks = {0};
  lm_dtype dtype = t->dtype;
  size_t element = lm_dtype_size(dtype), n = (size_t)t->numel, size = (size_t)g->size;
  size_t stretch = LM_MPI_PIECE / element * size;
  TRY(spans_of(g, NULL, &blocks));
  for (size_t at = 0; at < n; at += stretch) {
    size_t here = n - at < stretch ? n - at : stretch, block = lm_ceil_div(here, size);
    for (size_t r = 0, from = 0; r < size; r++, from += blocks.n[r - 1]) {
      blocks.data[r] = t->data + (at + from) * element;
      blocks.n[r] = here - from < block ? here - from : block;
    }
    lm_mpi_blocks b = {blocks.data, blocks.n};
    TRY(lm_mpi_ring_reduce(g, dtype, op, b, blocks.data[g->rank]));
    TRY(lm_mpi_ring_gather(g, dtype, b));
  }
done:
  free_spans(&blocks);
  return status;
}

static lm_status mpi_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  lm_status status;
  size_t bytes = lm_nbytes(t), small = (size_t)g->size * SMALL_A_RANK;
  TRY(mpi_meet(g));
  if (g->size == 1) return LM_OK;
  TRY(bytes <= (small > SMALL ? small : SMALL) ? mpi_reduce_small(g, t, op) : mpi_reduce_large(g, t, op));
  lm_reduce_mean(g, t, op);
done:
  return mpi_keep_tensors(status, 1, &t);
}

static lm_status mpi_broadcast(lm_group *g, lm_tensor *t, int root) {
  lm_status status;
  lm_mpi_state *s = g->state;
  MPI_Request request;
  TRY(mpi_meet(g));
  for (size_t at = 0, bytes = lm_nbytes(t), n; at < bytes; at += n) {
    n = bytes - at < LM_MPI_PIECE ? bytes - at : LM_MPI_PIECE;
    TRY(LM_MPI(g, MPI_Ibcast(t->data + at, (int)n, MPI_BYTE, root, s->calls, &request)));
    TRY(lm_mpi_wait(g, 1, &request, lm_mpi_spin(n)));
  }
done:
  return mpi_keep_tensors(status, 1, &t);
}

static lm_status mpi_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op) {
  lm_status status;
  lm_mpi_state *s = g->state;
  MPI_Request request;
  lm_dtype dtype = t->dtype;
  size_t element = lm_dtype_size(dtype), most = LM_MPI_PIECE / element;
  bool here = g->rank == root;
  TRY(mpi_meet(g));
  for (size_t at = 0, all = (size_t)t->numel, n; at < all; at += n) {
    n = all - at < most ? all - at : most;
    char *data = t->data + at * element;
    TRY(LM_MPI(g, MPI_Ireduce(here ? MPI_IN_PLACE : data, here ? data : NULL, (int)n, lm_mpi_type(dtype), lm_mpi_op(op),
                              root, s->calls, &request)));
    TRY(lm_mpi_wait(g, 1, &request, lm_mpi_spin(n * element)));
  }
  if (here) lm_reduce_mean(g, t, op);
done:
  return mpi_keep_tensors(status, 1, &t);
}

static lm_status mpi_all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  lm_status status;
  spans to = {0};
  TRY(mpi_meet(g));
  TRY(spans_of(g, out, &to));
  memmove(to.data[g->rank], t->data, lm_nbytes(t));
  TRY(lm_mpi_ring_gather(g, t->dtype, (lm_mpi_blocks){to.data, to.n}));
done:
  free_spans(&to);
  return mpi_keep_tensors(status, g->size, out);
}

/* Sends each rank's `one` to the root's `list` (to_root: gather), or the list's entries to each `one` (scatter). */
static lm_status with_root(lm_group *g, lm_tensor *one, int root, lm_tensor *const *list, bool to_root) {
  lm_status status;
  spans all = {0}, mine = {0};
  TRY(mpi_meet(g));
  TRY(spans_of(g, list, &all));
  TRY(spans_of(g, NULL, &mine));
  mine.data[root] = one->data;
  size_t *leaving = mine.n, *coming = mine.n + g->size;
  (to_root ? leaving : coming)[root] = lm_nbytes(one);
  for (int r = 0; list && r < g->size; r++) (to_root ? coming : leaving)[r] = lm_nbytes(one);
  TRY(lm_mpi_exchange(g, to_root ? mine.data : all.data, to_root ? all.data : mine.data, mine.n));
done:
  free_spans(&all);
  free_spans(&mine);
  return mpi_keep_tensors(mpi_keep_tensors(status, 1, &one), g->size, list);
}

static lm_status mpi_gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  return with_root(g, (lm_tensor *)t, root, out, true);
}

static lm_status mpi_scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  return with_root(g, t, root, in, false);
}

static lm_status mpi_reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  lm_status status;
  spans from = {0};
  TRY(mpi_meet(g));
  TRY(spans_of(g, in, &from));
  TRY(lm_mpi_ring_reduce(g, t->dtype, op, (lm_mpi_blocks){from.data, from.n}, t->data));
  lm_reduce_mean(g, t, op);
done:
  free_spans(&from);
  return mpi_keep_tensors(mpi_keep_tensors(status, 1, &t), g->size, in);
}

/* Compares all_to_all's sizes between each pair of ranks, since the ticket's hash does not cover them. */
static lm_status compare_sizes(lm_group *g, const size_t *bytes) {
  lm_mpi_state *s = g->state;
  MPI_Request request;
  int size = g->size;
  if (!s->sizes) s->sizes = lm_malloc(2 * (size_t)size * sizeof *s->sizes);
  if (!s->sizes) return LM_E_OOM;
  for (int r = 0; r < size; r++) s->sizes[r] = bytes[r];
  NEED(LM_MPI(g, MPI_Ialltoall(s->sizes, 1, MPI_UINT64_T, s->sizes + size, 1, MPI_UINT64_T, s->calls, &request)));
  NEED(lm_mpi_wait(g, 1, &request, lm_mpi_spin(0)));
  for (int r = 0; r < size; r++) {
    unsigned long long theirs = s->sizes[size + r], wanted = bytes[size + r];
    if (theirs == wanted) continue;
    lm_ticket other = *lm_group_ticket(g);
    snprintf(other.what, sizeof other.what, "all_to_all of %llu bytes instead of %llu", theirs, wanted);
    other.where[0] = 0;
    return lm_group_mismatch(g, r, &other);
  }
  return LM_OK;
}

static lm_status mpi_all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  lm_status status;
  spans from = {0}, to = {0};
  TRY(mpi_meet(g));
  TRY(spans_of(g, in, &from));
  TRY(spans_of(g, out, &to));
  for (int r = 0; r < g->size; r++) {
    from.n[r] = lm_nbytes(in[r]);
    from.n[g->size + r] = lm_nbytes(out[r]);
  }
  TRY(compare_sizes(g, from.n));
  TRY(lm_mpi_exchange(g, from.data, to.data, from.n));
done:
  free_spans(&from);
  free_spans(&to);
  return mpi_keep_tensors(mpi_keep_tensors(status, g->size, in), g->size, out);
}

/* ---- opening and closing */

typedef struct open_job {
  lm_mpi_job job;
  MPI_Comm calls, messages;
  int n;
  int ranks[]; /* [n] ranks in MPI_COMM_WORLD */
} open_job;

static int make_communicators(lm_mpi_job *job) {
  open_job *o = (open_job *)job;
  MPI_Group world, members;
  int code = MPI_Comm_group(MPI_COMM_WORLD, &world);
  if (code == MPI_SUCCESS) code = MPI_Group_incl(world, o->n, o->ranks, &members);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &o->calls);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(o->calls, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_dup(o->calls, &o->messages); /* the error handler is copied too */
  if (code == MPI_SUCCESS) code = MPI_Group_free(&members);
  if (code == MPI_SUCCESS) code = MPI_Group_free(&world);
  return code;
}

static lm_status connect(lm_group *g, const lm_mpi_rank_place *positions) {
  lm_mpi_state *s = g->state;
  open_job *o = lm_calloc(1, sizeof *o + (size_t)g->size * sizeof *o->ranks);
  if (!o) return LM_E_OOM;
  o->job.run = make_communicators;
  o->n = g->size;
  for (int r = 0; r < g->size; r++) o->ranks[r] = positions[r].rank;
  NEED(lm_mpi_run(g, &o->job));
  s->calls = o->calls;
  s->messages = o->messages;
  lm_free(o);
  return LM_OK;
}

/* Frees the group's state, unless MPI is lost and may still use it. */
static void mpi_close_group(lm_group *g) {
  lm_mpi_state *s = g->state;
  g->state = NULL;
  if (!s) return;
  lm_mpi_closed(&s->open);
  if (lm_group_failed(g) && lm_mpi_has_begun()) lm_mpi_give_up();
  if (!lm_mpi_enter()) return;
  if (s->calls != MPI_COMM_NULL) MPI_Comm_free(&s->calls);
  if (s->messages != MPI_COMM_NULL) MPI_Comm_free(&s->messages);
  lm_mpi_leave();
  lm_mpi_messages_close(s->posted);
  lm_free(s->sizes);
  lm_free(s->scratch);
  lm_free(s->rounds);
  lm_free(s);
}

static lm_status mpi_open_group(lm_group *g) {
  lm_status status;
  lm_mpi_rank_place *positions = NULL;
  lm_mpi_state *s = g->state = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->calls = s->messages = MPI_COMM_NULL;
  s->open.g = g;
  lm_mpi_opened(&s->open);
  s->rounds = lm_malloc(2 * (size_t)g->size * sizeof *s->rounds);
  if (!s->rounds) TRY(LM_E_OOM);
  TRY(lm_mpi_messages_open(g, &s->posted));
  TRY(lm_mpi_rank_mapping(g, &positions));
  TRY(lm_mpi_begin(g, positions[g->rank].rank, positions[g->rank].size));
  TRY(connect(g, positions));
done:
  lm_free(positions);
  if (status != LM_OK) {
    lm_saved_error saved;
    lm_error_save(status, &saved);
    mpi_close_group(g);
    lm_error_restore(&saved);
  }
  return status;
}

static const lm_group_table table = {
    .abi = LM_GROUP_ABI,
    .name = "mpi",
    .kinds = 1u << LM_CPU,
    .open = mpi_open_group,
    .close = mpi_close_group,
    .all_reduce = mpi_all_reduce,
    .broadcast = mpi_broadcast,
    .reduce = mpi_reduce,
    .all_gather = mpi_all_gather,
    .gather = mpi_gather,
    .scatter = mpi_scatter,
    .reduce_scatter = mpi_reduce_scatter,
    .all_to_all = mpi_all_to_all,
    .barrier = mpi_meet,
    .post = lm_mpi_post,
    .finish = lm_mpi_finish,
    .forget = lm_mpi_forget,
};

const lm_group_table *lm_group_plugin(void) { return &table; }
