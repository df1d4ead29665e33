/* Computes negative log-likelihood and cross entropy. The former takes x, and writes its gradient, as [N, C, S] with
 * any strides; target is int64 [N, S]. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/isa/softmax.h"
#include "backend/cpu/scalar_access.h"
#include "device/alloc.h"
#include "op/index_checks.h"
#include "op/operand_checks.h"
#include "op_args_losses.h"
#include "op_ids.h"

enum { MAX_PARTS = 32, PART = 16384 };

static lm_status fail_bad_label(lm_op_id op, const lm_tensor *target, int64_t position, int64_t classes) {
  return lm_fail_bad_label(op, "target", target, position, ((const int64_t *)target->data)[position], classes);
}

/* Stores the loss and the total of weights from those of parts, added in order. With LM_NONE the loss is stored
 * already, and there is no total. */
static void store_sums(int64_t parts, const double *sums, const double *totals, lm_reduction reduction, lm_tensor *loss,
                       lm_tensor *total_weight) {
  double sum = 0, total = 0;
  for (int64_t p = 0; p < parts; p++) sum += sums[p], total += totals[p];
  if (reduction != LM_NONE) lm_scalar_store(loss, 0, reduction == LM_MEAN ? sum / total : sum);
  lm_scalar_store(total_weight, 0, reduction == LM_NONE ? 0 : total);
}

typedef struct loss_job {
  const lm_nll_loss_args *a;
  lm_tensor *const *out;
  int64_t parts, count;
  double sums[MAX_PARTS], totals[MAX_PARTS];
  int64_t bad[MAX_PARTS];
} loss_job;

static void sum_parts(void *ctx, int64_t first, int64_t last) {
  loss_job *j = ctx;
  const lm_nll_loss_args *a = j->a;
  const lm_tensor *x = a->x;
  const int64_t *label = (const int64_t *)a->target->data, classes = x->size[1], inner = x->size[2];
  for (int64_t p = first; p < last; p++) {
    j->sums[p] = j->totals[p] = 0;
    j->bad[p] = -1;
    for (int64_t i = j->count * p / j->parts; i < j->count * (p + 1) / j->parts; i++) {
      double loss = 0;
      if (label[i] != a->ignore_index) {
        if (label[i] < 1 || label[i] > classes) {
          j->bad[p] = i;
          break;
        }
        double weight = a->weight ? lm_scalar_load(a->weight, label[i] - 1) : 1;
        loss = -weight *
               lm_scalar_load(x, i / inner * x->stride[0] + (label[i] - 1) * x->stride[1] + i % inner * x->stride[2]);
        j->sums[p] += loss;
        j->totals[p] += weight;
      }
      if (a->reduction == LM_NONE) lm_scalar_store(j->out[0], i, loss);
    }
  }
}

lm_status lm_cpu_nll_loss(const lm_nll_loss_args *a, lm_tensor *const *out) {
  int64_t count = a->x->size[0] * a->x->size[2];
  /* The count alone sets the parts, which are added in order: the same sum for any number of threads. */
  int64_t parts = count / PART < 1 ? 1 : count / PART > MAX_PARTS ? MAX_PARTS : count / PART;
  loss_job job = {.a = a, .out = out, .parts = parts, .count = count};
  lm_parallel(parts, (double)count * 4, 0, sum_parts, &job);
  for (int64_t p = 0; p < parts; p++)
    if (job.bad[p] >= 0) return fail_bad_label(LM_OP_nll_loss, a->target, job.bad[p], a->x->size[1]);
  store_sums(parts, job.sums, job.totals, a->reduction, out[0], out[1]);
  return LM_OK;
}

typedef struct backward_job {
  const lm_nll_loss_backward_args *a;
  lm_tensor *dx;
  _Atomic int64_t bad; /* smallest position with an invalid class */
} backward_job;

static void write_images(void *ctx, int64_t first, int64_t last) {
  backward_job *j = ctx;
  const lm_nll_loss_backward_args *a = j->a;
  lm_tensor *dx = j->dx;
  const int64_t *label = (const int64_t *)a->target->data, classes = dx->size[1], inner = dx->size[2];
  size_t image = (size_t)(classes * inner) * lm_dtype_size(dx->dtype);
  double total = a->reduction == LM_MEAN ? lm_scalar_load(a->total, 0) : 1;
  for (int64_t n = first; n < last; n++) {
    memset(dx->data + (size_t)n * image, 0, image); /* N is outermost in every layout */
    for (int64_t s = 0; s < inner; s++) {
      int64_t i = n * inner + s;
      if (label[i] == a->ignore_index) continue;
      if (label[i] < 1 || label[i] > classes) {
        lm_note_least(&j->bad, i);
        continue;
      }
      double weight = a->weight ? lm_scalar_load(a->weight, label[i] - 1) : 1;
      double g = lm_scalar_load(a->grad, a->reduction == LM_NONE ? i : 0);
      lm_scalar_store(dx, n * dx->stride[0] + (label[i] - 1) * dx->stride[1] + s * dx->stride[2], -weight * g / total);
    }
  }
}

lm_status lm_cpu_nll_loss_backward(const lm_nll_loss_backward_args *a, lm_tensor *const *out) {
  backward_job job = {.a = a, .dx = out[0], .bad = INT64_MAX};
  lm_parallel(out[0]->size[0], (double)out[0]->numel * 0.2, 0, write_images, &job);
  if (job.bad == INT64_MAX) return LM_OK;
  return fail_bad_label(LM_OP_nll_loss_backward, a->target, job.bad, out[0]->size[1]);
}

/* ---- cross entropy of rows: x [N, C] of any strides, weight contiguous in the dtype of x's statistics */

/* Elements of x for each part of the forward pass, and the most parts. */
enum { ROWS_PART = 1 << 15, MAX_ROWS_PARTS = 256 };

typedef struct rows_job {
  const lm_tensor *x, *target, *weight;
  int64_t ignore;
  double smoothing, weights; /* weights: sum of the classes' weights */
  lm_reduction reduction;
  const struct lm_softmax_loops *loops;
  const struct lm_pointwise_loops *moves;
  lm_dtype compute;
  bool direct;         /* true if rows of x are read, and those of dx written, in place */
  _Atomic int64_t bad; /* smallest row with an invalid class */
  /* Forward pass only: */
  lm_tensor *const *out;
  int64_t parts;
  double sums[MAX_ROWS_PARTS], totals[MAX_ROWS_PARTS];
  /* Backward pass only: */
  const lm_tensor *grad, *stats, *total;
  lm_tensor *dx;
} rows_job;

static rows_job rows_job_of(const lm_tensor *x, const lm_tensor *target, const lm_tensor *weight, int64_t ignore,
                            double smoothing, lm_reduction reduction) {
  rows_job j = {.x = x, .target = target, .weight = weight, .ignore = ignore, .smoothing = smoothing};
  j.weights = (double)x->size[1];
  if (weight && smoothing > 0) {
    j.weights = 0;
    for (int64_t c = 0; c < x->size[1]; c++) j.weights += lm_scalar_load(weight, c);
  }
  j.reduction = reduction;
  j.compute = lm_stat_dtype(x);
  j.direct = (x->stride[1] == 1 || x->size[1] == 1) && x->dtype != LM_F16;
  j.loops = lm_softmax_loops_of(j.direct ? (lm_dtype)x->dtype : j.compute);
  j.moves = lm_pointwise_loops_of(j.compute);
  j.bad = INT64_MAX;
  return j;
}

/* Returns the bytes of a row in the compute type, which bfloat16 loops and converted rows need; 0 for others. */
static size_t row_bytes(const rows_job *j) {
  bool none = j->direct && (lm_dtype)j->x->dtype == j->compute;
  return none ? 0 : lm_round_up((size_t)j->x->size[1] * lm_dtype_size(j->compute), 64);
}

/* Returns the class of row i, from 0, or -1 if the row does not count; notes an invalid label in j->bad. */
static int64_t class_of(rows_job *j, int64_t i) {
  int64_t label = ((const int64_t *)j->target->data)[i];
  if (label == j->ignore) return -1;
  if (label >= 1 && label <= j->x->size[1]) return label - 1;
  lm_note_least(&j->bad, i);
  return -1;
}

/* Returns row i as the loops read it: in place if direct, else converted in `buffer`. */
static const void *row_of(const rows_job *j, int64_t i, char *buffer) {
  const lm_tensor *x = j->x;
  const char *row = x->data + i * x->stride[0] * (int64_t)lm_dtype_size(x->dtype);
  if (j->direct) return row;
  lm_load_long(j->moves, x->dtype, lm_dtype_size(j->compute), buffer, row, x->stride[1], x->size[1]);
  return buffer;
}

/* Returns row i's loss before the division by the weights; stores its maximum and sum of exponentials for backward. */
static double loss_of_row(const rows_job *j, int64_t i, int64_t c, double weight, char *buffer) {
  const void *given = j->weight ? j->weight->data : NULL;
  double stats[2];
  double below = j->loops->stats(row_of(j, i, buffer), j->x->size[1], given, j->smoothing > 0, buffer, stats);
  double rest = log(stats[1]), own = lm_scalar_load(j->x, i * j->x->stride[0] + c * j->x->stride[1]);
  double loss = (1 - j->smoothing) * weight * (rest - (own - stats[0]));
  lm_scalar_store(j->out[1], 2 * i, stats[0]);
  lm_scalar_store(j->out[1], 2 * i + 1, stats[1]);
  return j->smoothing > 0 ? loss + j->smoothing / (double)j->x->size[1] * (j->weights * rest - below) : loss;
}

static void sum_rows(void *ctx, int64_t first, int64_t last) {
  rows_job *j = ctx;
  char *buffer = lm_scratch();
  for (int64_t p = first; p < last; p++) {
    j->sums[p] = j->totals[p] = 0;
    for (int64_t i = lm_part_begin(j->x->size[0], p, j->parts); i < lm_part_begin(j->x->size[0], p + 1, j->parts);
         i++) {
      int64_t c = class_of(j, i);
      double loss = 0;
      if (c >= 0) {
        double weight = j->weight ? lm_scalar_load(j->weight, c) : 1;
        loss = loss_of_row(j, i, c, weight, buffer);
        j->sums[p] += loss;
        j->totals[p] += weight;
      } else {
        for (int k = 0; k < 2; k++) lm_scalar_store(j->out[1], 2 * i + k, 0);
      }
      if (j->reduction == LM_NONE) lm_scalar_store(j->out[0], i, loss);
    }
  }
}

lm_status lm_cpu_cross_entropy_rows(const lm_cross_entropy_rows_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x;
  rows_job job = rows_job_of(x, a->target, a->weight, a->ignore_index, a->label_smoothing, a->reduction);
  /* Sizes alone set the parts, which are added in order: the same sum for any number of threads. */
  int64_t parts = lm_ceil_div(x->numel, ROWS_PART);
  parts = parts < MAX_ROWS_PARTS ? parts : MAX_ROWS_PARTS;
  job.parts = parts < 1 ? 1 : parts < x->size[0] ? parts : x->size[0];
  job.out = out;
  NEED(lm_parallel(job.parts, (double)x->numel * 0.7 + (double)x->size[0] * 20, row_bytes(&job), sum_rows, &job));
  if (job.bad != INT64_MAX) return fail_bad_label(LM_OP_cross_entropy, a->target, job.bad, x->size[1]);
  store_sums(job.parts, job.sums, job.totals, a->reduction, out[0], out[2]);
  return LM_OK;
}

static void write_rows(void *ctx, int64_t first, int64_t last) {
  rows_job *j = ctx;
  const lm_tensor *x = j->x;
  lm_tensor *dx = j->dx;
  char *buffer = lm_scratch();
  const int64_t n = x->size[1];
  const size_t bytes = (size_t)n * lm_dtype_size(dx->dtype);
  const double total = j->reduction == LM_MEAN ? lm_scalar_load(j->total, 0) : 1;
  for (int64_t i = first; i < last; i++) {
    char *to = dx->data + (size_t)i * bytes;
    int64_t c = class_of(j, i);
    if (c < 0) {
      memset(to, 0, bytes);
      continue;
    }
    double g = lm_scalar_load(j->grad, j->reduction == LM_NONE ? i : 0) / total, own = 1;
    double largest = lm_scalar_load(j->stats, 2 * i), sum = lm_scalar_load(j->stats, 2 * i + 1);
    if (j->weight) own = lm_scalar_load(j->weight, c);
    double hit = g * (1 - j->smoothing) * own, spread = g * j->smoothing / (double)n;
    double scale = (hit + spread * j->weights) / sum;
    const void *row = row_of(j, i, buffer), *weight = j->weight && j->smoothing > 0 ? j->weight->data : NULL;
    const double x_own = lm_scalar_load(x, i * x->stride[0] + c * x->stride[1]); /* before dx, which may be x */
    j->loops->shares(j->direct ? to : buffer, row, n, largest, scale, weight, spread);
    if (!j->direct) lm_store_long(j->moves, dx->dtype, lm_dtype_size(j->compute), buffer, to, 1, n);
    lm_scalar_store(dx, i * n + c, exp(x_own - largest) * scale - spread * (weight ? own : 1) - hit);
  }
}

lm_status lm_cpu_cross_entropy_rows_backward(const lm_cross_entropy_rows_backward_args *a, lm_tensor *const *out) {
  rows_job job = rows_job_of(a->x, a->target, a->weight, a->ignore_index, a->label_smoothing, a->reduction);
  job.grad = a->grad;
  job.stats = a->stats;
  job.total = a->total;
  job.dx = out[0];
  double work = (double)a->x->numel * 0.7 + (double)a->x->size[0] * 20;
  NEED(lm_parallel(a->x->size[0], work, row_bytes(&job), write_rows, &job));
  if (job.bad == INT64_MAX) return LM_OK;
  return fail_bad_label(LM_OP_cross_entropy, a->target, job.bad, a->x->size[1]);
}
