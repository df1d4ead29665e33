/* Computes a linear layer with cross entropy, and the gradients of both, by chunks of rows, so that the scores of all
 * classes are never whole: a chunk's gradient is written over its scores. The gradients of the weight and the bias are
 * sums in another order than that of eager ops. */
#include "autograd/expr.h"
#include "op/matmul_call.h"
#include "op/run.h"
#include "plan/passes.h"
#include "tensor/prepack.h"

/* Bytes of a column of a chunk at most: each chunk reads and writes the sum of the weight's gradients. */
enum { CPU_COLUMN = 1 << 11, GPU_COLUMN = 1 << 12 };
/* Bytes of scores from which on they are computed by chunks. */
enum { CPU_LEAST = 8 << 20, GPU_LEAST = 256 << 20 };

static bool is_on_cpu(const lm_place *p) { return LM_DEVICE_KIND(p->device) == LM_CPU; }

/* Returns the rows of a chunk of scores [rows, classes], so that all chunks have about as many. */
static int64_t chunk_rows(const lm_place *scores, int64_t rows) {
  const int64_t most = (is_on_cpu(scores) ? CPU_COLUMN : GPU_COLUMN) / (int64_t)lm_dtype_size(scores->dtype);
  const int64_t count = (rows + most - 1) / most;
  return rows > most ? (rows + count - 1) / count : rows;
}

static bool has_sizes(const lm_place *p, int64_t rows, int64_t columns) {
  return p->ndim == 2 && p->size[0] == rows && p->size[1] == columns;
}

static bool is_transposed(const lm_place *p, const lm_place *of) {
  return has_sizes(p, of->size[1], of->size[0]) && p->stride[0] == of->stride[1] && p->stride[1] == of->stride[0] &&
         p->at == of->at;
}

/* Returns true if two values are the same elements of a buffer, in the same order. */
static bool are_same(const lm_segment *g, int a, int b) {
  const lm_place *p = lm_place_of(g, a), *q = lm_place_of(g, b);
  return lm_buffer_of(g, a) >= 0 && lm_buffer_of(g, a) == lm_buffer_of(g, b) &&
         (lm_place_equals(p, q) || (p->at == q->at && lm_place_numel(p) == lm_place_numel(q) &&
                                    lm_place_is_contiguous(p) && lm_place_is_contiguous(q)));
}

/* Finds the steps that make and read the scores, and those that read their gradient, which step i makes. */
static bool find_steps(const lm_segment *g, int i, lm_score_chunks *c) {
  const lm_segment_step *s = &g->step[i];
  if (s->op != LM_OP_cross_entropy_rows_backward || s->out[0] < 0) return false;
  const int scores = lm_buffer_of(g, s->in[1]), grad = lm_buffer_of(g, s->out[0]);
  *c = (lm_score_chunks){.scores = lm_segment_maker(g, i, scores),
                         .forward = lm_segment_maker(g, i, lm_buffer_of(g, s->in[4])),
                         .backward = i,
                         .dx = -1,
                         .dw = -1,
                         .db = -1};
  for (int k = c->scores + 1; k < g->nsteps; k++) {
    const lm_segment_step *reader = &g->step[k];
    if (lm_step_is_view(reader)) continue;
    if (lm_step_reads(g, reader, scores) && k != c->forward && k != i) return false;
    if (!lm_step_reads(g, reader, grad)) continue;
    int *at = reader->op == LM_OP_linear ? &c->dx
              : reader->op == LM_OP_mm   ? &c->dw
              : reader->op == LM_OP_sum  ? &c->db
                                         : NULL;
    if (!at || *at >= 0) return false;
    *at = k;
    c->end = k + 1;
  }
  return c->scores >= 0 && c->scores < c->forward && c->dx >= 0 && c->dw >= 0 &&
         g->step[c->scores].op == LM_OP_linear && g->step[c->forward].op == LM_OP_cross_entropy_rows;
}

static bool sums_rows(const lm_segment *g, const lm_segment_step *s, int64_t columns) {
  const lm_place *from = lm_place_of(g, s->in[0]);
  const lm_ints *dims = &((const lm_sum_args *)s->args)->dim;
  bool is_of_rows = from->ndim == dims->n + 1 && from->size[from->ndim - 1] == columns;
  for (int d = 0; d < dims->n; d++) is_of_rows = is_of_rows && dims->v[d] >= 0 && dims->v[d] != from->ndim - 1;
  return is_of_rows && s->out[0] >= 0;
}

/* Returns true if the steps are those of one layer and its loss, a mean or sum over rows, and if the scores but a
 * chunk are larger than what is kept for all chunks: the weight in panels, twice, or the sum of its gradients. */
static bool is_one_layer(const lm_segment *g, const lm_score_chunks *c) {
  const lm_segment_step *linear = &g->step[c->scores], *forward = &g->step[c->forward], *dw = &g->step[c->dw];
  const lm_segment_step *backward = &g->step[c->backward], *dx = &g->step[c->dx];
  const lm_cross_entropy_rows_backward_args *a = backward->args;
  const lm_place *w = lm_place_of(g, linear->in[1]), *h = lm_place_of(g, dw->in[1]);
  const lm_place *scores = lm_place_of(g, linear->out[0]), *target = lm_place_of(g, backward->in[2]);
  const lm_dtype stat = lm_place_of(g, forward->out[1])->dtype;
  const int given = backward->in[3];
  const int read[] = {linear->in[0], linear->in[1], linear->in[2], backward->in[2], given};
  for (int k = 0; k < 5; k++)
    if (read[k] >= 0 && (g->value[read[k]].number || lm_segment_maker(g, c->end, lm_buffer_of(g, read[k])) > c->scores))
      return false;
  if (backward->in[0] < 0 || g->value[backward->in[0]].number || w->ndim != 2 || forward->out[0] < 0) return false;
  const int64_t classes = w->size[0], rows = lm_place_numel(target), bytes = classes * lm_dtype_size(scores->dtype);
  const bool is_loss =
      a->reduction != LM_NONE && (given < 0 || a->reduction == LM_SUM) &&
      lm_place_of(g, backward->in[0])->dtype == stat && target->dtype == LM_I64 && lm_place_is_contiguous(target) &&
      backward->in[5] == forward->out[2] &&
      (given < 0 || (lm_place_of(g, given)->dtype == stat && lm_place_is_contiguous(lm_place_of(g, given))));
  const bool is_layer = are_same(g, linear->out[0], forward->in[0]) && are_same(g, linear->in[0], dw->in[1]) &&
                        are_same(g, backward->in[1], forward->in[0]) && has_sizes(h, rows, w->size[1]) &&
                        has_sizes(lm_place_of(g, backward->in[1]), rows, classes) && dw->out[0] >= 0;
  const bool is_dx = are_same(g, dx->in[0], backward->out[0]) && dx->in[2] < 0 && dx->out[0] >= 0 &&
                     lm_buffer_of(g, dx->in[1]) == lm_buffer_of(g, linear->in[1]) &&
                     is_transposed(lm_place_of(g, dx->in[1]), w);
  const bool is_dw = is_transposed(lm_place_of(g, dw->in[0]), lm_place_of(g, backward->out[0])) &&
                     lm_buffer_of(g, dw->in[0]) == lm_buffer_of(g, backward->out[0]);
  return is_loss && is_layer && is_dx && is_dw && (c->db < 0 || sums_rows(g, &g->step[c->db], classes)) &&
         rows * bytes >= (is_on_cpu(scores) ? CPU_LEAST : GPU_LEAST) &&
         rows - chunk_rows(scores, rows) > 2 * w->size[1];
}

static bool is_member(const lm_score_chunks *c, int i) {
  return i == c->scores || i == c->forward || i == c->backward || i == c->dx || i == c->dw || i == c->db;
}

/* Returns true if a step can run before the chunks: it reads no values but those from outside of the segment, and of
 * other such steps. */
static bool is_early(const lm_segment *g, const lm_score_chunks *c, int i) {
  const lm_segment_step *s = &g->step[i];
  if (i > c->backward || !(lm_step_is_elementwise(s) || s->op == LM_OP_to_copy || s->op == LM_OP_ones)) return false;
  for (int k = 0; k < s->nin; k++) {
    const int buffer = lm_buffer_of(g, s->in[k]);
    if (buffer < 0 || g->buffer[buffer].origin == LM_FROM_EVENT) continue;
    const int maker = lm_segment_maker(g, i, buffer);
    if (maker < c->scores || g->step[maker].chunks != LM_BEFORE_CHUNKS) return false;
  }
  return true;
}

/* Sorts the steps between those of the chunks; false if one may not run before or after them. */
static bool sort_others(lm_segment *g, const lm_score_chunks *c) {
  for (int i = c->scores; i < c->end; i++) {
    lm_segment_step *s = &g->step[i];
    if (lm_step_is_view(s)) continue;
    for (int k = 0; k < s->nin; k++)
      if (lm_step_writes(s, k)) return false;
    if (s->group > 0 || s->is_chained) return false;
    if (!is_member(c, i)) s->chunks = is_early(g, c, i) ? LM_BEFORE_CHUNKS : LM_AFTER_CHUNKS;
  }
  const int maker = lm_segment_maker(g, c->backward, lm_buffer_of(g, g->step[c->backward].in[0]));
  return maker < c->scores || g->step[maker].chunks == LM_BEFORE_CHUNKS;
}

/* Makes ones_like, as of the loss where backward begins, a step that does not wait for its input. */
static lm_status free_from_input(lm_segment *g, int i) {
  const lm_segment_step *s = &g->step[i];
  const lm_place *p = s->op == LM_OP_ones_like && s->out[0] >= 0 ? lm_place_of(g, s->out[0]) : NULL;
  if (!p || !lm_place_is_contiguous(p)) return LM_OK;
  lm_ones_args args = {.size = {.n = p->ndim}, .dtype = p->dtype, .device = p->device};
  memcpy(args.size.v, p->size, p->ndim * sizeof *p->size);
  return lm_segment_replace_step(g, i, LM_OP_ones, &args, 0, s->in, 1, (int[]){s->out[0]});
}

lm_status lm_segment_mark_chunks(lm_segment *g) {
  lm_score_chunks c;
  for (int i = 0; i < g->nsteps; i++) {
    if (!find_steps(g, i, &c) || !is_one_layer(g, &c)) continue;
    for (int k = c.scores; k < c.end; k++) {
      if (is_member(&c, k)) g->step[k].chunks = LM_BY_CHUNKS;
      NEED(free_from_input(g, k));
    }
  }
  return LM_OK;
}

lm_status lm_segment_add_chunks(lm_segment *g) {
  lm_score_chunks c;
  for (int i = 0; i < g->nsteps; i++) {
    if (g->step[i].chunks != LM_BY_CHUNKS || !find_steps(g, i, &c) || !is_one_layer(g, &c)) continue;
    if (sort_others(g, &c) && !LM_APPEND(g->chunks, g->nchunks, g->chunks_capacity, c)) return LM_E_OOM;
  }
  return LM_OK;
}

/* ---- running */

typedef struct computed {
  const lm_cross_entropy_rows_backward_args *args;
  lm_tensor *h, *w, *bias, *target, *weight, *grad, *total; /* total: of the rows' weights */
  lm_tensor *scores, *stats, *losses, *dx, *dw, *db;        /* scores: of a chunk */
} computed;

static lm_status take_rows(lm_tensor *t, int64_t first, int64_t n, lm_tensor **out) {
  const int64_t size[] = {n, t->ndim > 1 ? t->size[1] : 1};
  return lm_tensor_view(t, t->ndim, size, t->stride, first * t->stride[0], out);
}

/* Adds a product to `sum`, or sets `sum` to it. */
static lm_status add_product(lm_tensor *x, lm_tensor *other, bool adds, lm_tensor *sum) {
  const lm_product_args p = {.x = x, .other = other, .input = adds ? sum : NULL, .beta = adds, .alpha = 1};
  return lm_dispatch(LM_OP_product, sum->device, &p, &sum);
}

static lm_status add_sums(lm_tensor *x, bool adds, lm_tensor *sum) {
  LM_OWNED *part = NULL;
  const lm_sum_args a = {.x = x, .dim = {1, {0}}, .dtype = sum->dtype};
  NEED(lm_op_run(LM_OP_sum, &a, &part));
  return adds ? lm_product_add(part, sum) : lm_copy(part, sum);
}

static lm_status compute_chunk(const computed *j, int64_t first, int64_t n) {
  LM_OWNED *h = NULL, *target = NULL, *losses = NULL, *dx = NULL, *scores = NULL, *stats = NULL, *t = NULL,
           *count = NULL;
  const lm_cross_entropy_rows_backward_args *a = j->args;
  const lm_device device = j->h->device;
  NEED(take_rows(j->h, first, n, &h));
  NEED(take_rows(j->target, first, n, &target));
  NEED(take_rows(j->losses, first, n, &losses));
  NEED(take_rows(j->dx, first, n, &dx));
  NEED(take_rows(j->scores, 0, n, &scores));
  NEED(take_rows(j->stats, 0, n, &stats));
  NEED(lm_tensor_empty(stats->dtype, device, 0, NULL, LM_CONTIGUOUS, &count));
  NEED(lm_tensor_view(scores, 2, (int64_t[]){scores->size[1], n}, (int64_t[]){1, scores->size[1]}, 0, &t));
  const lm_product_args linear = {
      .x = h, .other = j->w, .input = j->bias, .transposed = true, .beta = j->bias != NULL, .alpha = 1};
  NEED(lm_dispatch(LM_OP_product, device, &linear, &scores));
  const lm_cross_entropy_rows_args forward = {scores, target, j->weight, a->ignore_index, a->label_smoothing, LM_NONE};
  NEED(lm_dispatch(LM_OP_cross_entropy_rows, device, &forward, (lm_tensor *[]){losses, stats, count}));
  const lm_cross_entropy_rows_backward_args backward = {
      j->grad, scores, target, j->weight, stats, j->total, a->ignore_index, a->label_smoothing, a->reduction};
  NEED(lm_dispatch(LM_OP_cross_entropy_rows_backward, device, &backward, &scores));
  const lm_product_args input = {.x = scores, .other = j->w, .alpha = 1};
  NEED(lm_dispatch(LM_OP_product, device, &input, &dx));
  NEED(add_product(t, h, first > 0, j->dw));
  return j->db ? add_sums(scores, first > 0, j->db) : LM_OK;
}

/* Returns in *out the number of rows that count. */
static lm_status count_rows(lm_tensor *target, int64_t ignored, lm_dtype dtype, lm_tensor **out) {
  lm_expr e;
  lm_expr_begin(&e);
  lm_tensor *counts = lm_e_ne(&e, target, lm_e_number(&e, (double)ignored));
  return lm_expr_finish(&e, lm_e_sum(&e, counts, (lm_ints){1, {0}}, false, dtype), out);
}

static lm_status set_loss(const computed *j, lm_tensor *loss) {
  lm_expr e;
  LM_OWNED *sum = NULL;
  lm_expr_begin(&e);
  lm_tensor *total = lm_e_sum(&e, j->losses, (lm_ints){1, {0}}, false, LM_NO_DTYPE);
  if (j->args->reduction == LM_MEAN) total = lm_e_div(&e, total, j->total, 0);
  NEED(lm_expr_finish(&e, total, &sum));
  return lm_copy(sum, loss);
}

/* Returns in *out the header of a result, whose values the steps make. */
static lm_status result(lm_segment *g, int v, lm_tensor **out) {
  NEED(lm_segment_header(g, v, true, out));
  g->buffer[g->value[v].buffer].was_made = true;
  return LM_OK;
}

/* Returns in *out the tensor itself, or one like it in another dtype. */
static lm_status in_dtype(lm_tensor *t, lm_dtype dtype, lm_tensor **out) {
  if (t->dtype != dtype) return lm_tensor_empty(dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS, out);
  *out = lm_retain(t);
  return LM_OK;
}

const lm_score_chunks *lm_segment_chunks_at(lm_segment *g, int i, int n) {
  for (int k = 0; k < g->nchunks; k++) {
    const lm_score_chunks *c = &g->chunks[k];
    if (c->scores == i && c->end <= n && !g->buffer[lm_buffer_of(g, g->step[i].out[0])].is_kept &&
        !g->buffer[lm_buffer_of(g, g->step[c->backward].out[0])].is_kept)
      return c;
  }
  return NULL;
}

bool lm_segment_holds_scores(const lm_segment *g) {
  for (int i = 0; i < g->ninstances && g->nchunks > 0; i++) {
    const lm_segment_instance *n = &g->instance[i];
    if (!n->t || n->is_outside || atomic_load_explicit(&n->t->rc, memory_order_acquire) < 2) continue;
    for (int k = 0; k < g->nchunks; k++)
      if (lm_buffer_of(g, n->value) == lm_buffer_of(g, g->step[g->chunks[k].scores].out[0])) return true;
  }
  return false;
}

lm_status lm_segment_compute_chunks(lm_segment *g, const lm_score_chunks *c) {
  const lm_segment_step *linear = &g->step[c->scores], *forward = &g->step[c->forward];
  const lm_segment_step *backward = &g->step[c->backward];
  computed j = {.args = backward->args};
  lm_tensor *loss, *dx, *dw, *db = NULL;
  LM_OWNED *total = NULL, *scores = NULL, *stats = NULL, *losses = NULL, *rows_dx = NULL, *sum_dw = NULL,
           *sum_db = NULL;
  NEED(lm_segment_header(g, g->step[c->dw].in[1], false, &j.h));
  NEED(lm_segment_header(g, linear->in[1], false, &j.w));
  NEED(lm_segment_header(g, linear->in[2], false, &j.bias));
  NEED(lm_segment_header(g, backward->in[0], false, &j.grad));
  NEED(lm_segment_header(g, backward->in[2], false, &j.target));
  NEED(lm_segment_header(g, backward->in[3], false, &j.weight));
  NEED(result(g, forward->out[0], &loss));
  NEED(result(g, g->step[c->dx].out[0], &dx));
  NEED(result(g, g->step[c->dw].out[0], &dw));
  if (c->db >= 0) NEED(result(g, g->step[c->db].out[0], &db));
  const lm_dtype stat = loss->dtype;
  const int64_t rows = j.h->size[0], classes = j.w->size[0];
  const int64_t each = chunk_rows(lm_place_of(g, linear->out[0]), rows);
  NEED(count_rows(j.target, j.args->ignore_index, stat, &total));
  NEED(lm_tensor_empty(j.h->dtype, j.h->device, 2, (int64_t[]){each, classes}, LM_CONTIGUOUS, &scores));
  NEED(lm_tensor_empty(stat, j.h->device, 2, (int64_t[]){each, 2}, LM_CONTIGUOUS, &stats));
  NEED(lm_tensor_empty(stat, j.h->device, 1, &rows, LM_CONTIGUOUS, &losses));
  NEED(lm_tensor_view(dx, 2, (int64_t[]){rows, j.w->size[1]}, (int64_t[]){j.w->size[1], 1}, 0, &rows_dx));
  NEED(in_dtype(dw, stat, &sum_dw));
  if (db) NEED(in_dtype(db, stat, &sum_db));
  j.total = total, j.scores = scores, j.stats = stats, j.losses = losses;
  j.dx = rows_dx, j.dw = sum_dw, j.db = sum_db;
  lm_status status = LM_OK;
  lm_prepack_keep(j.w->storage); /* in panels, for all chunks */
  for (int64_t first = 0; first < rows && status == LM_OK; first += each)
    status = compute_chunk(&j, first, first + each < rows ? each : rows - first);
  lm_prepack_drop(j.w->storage);
  NEED(status);
  if (dw != sum_dw) NEED(lm_copy(sum_dw, dw));
  if (db && db != sum_db) NEED(lm_copy(sum_db, db));
  return set_loss(&j, loss);
}
