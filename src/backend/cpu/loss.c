/* Negative log-likelihood. x and its gradient come as [N, C, S] with any strides, target as int64 [N, S]. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/scalar_access.h"
#include "op/index_checks.h"

enum { MAX_PARTS = 32, PART = 16384 };

static lm_status bad_label(lm_op_id op, const lm_tensor *target, int64_t position, int64_t classes) {
  return lm_bad_label(op, "target", target, position, ((const int64_t *)target->data)[position], classes);
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

lm_status lm_cpu_nll_loss(const void *args, lm_tensor *const *out) {
  const lm_nll_loss_args *a = args;
  int64_t count = a->x->size[0] * a->x->size[2];
  /* Cut by the count alone, summed in order: the same sum for any number of threads. */
  int64_t parts = count / PART < 1 ? 1 : count / PART > MAX_PARTS ? MAX_PARTS : count / PART;
  loss_job job = {.a = a, .out = out, .parts = parts, .count = count};
  lm_parallel(parts, (double)count * 4, 0, sum_parts, &job);
  double sum = 0, total = 0;
  for (int64_t p = 0; p < parts; p++) {
    if (job.bad[p] >= 0) return bad_label(LM_OP_nll_loss, a->target, job.bad[p], a->x->size[1]);
    sum += job.sums[p];
    total += job.totals[p];
  }
  if (a->reduction != LM_NONE) lm_scalar_store(out[0], 0, a->reduction == LM_MEAN ? sum / total : sum);
  lm_scalar_store(out[1], 0, a->reduction == LM_NONE ? 0 : total);
  return LM_OK;
}

typedef struct backward_job {
  const lm_nll_loss_backward_args *a;
  lm_tensor *dx;
  _Atomic int64_t bad; /* a position without a class */
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

lm_status lm_cpu_nll_loss_backward(const void *args, lm_tensor *const *out) {
  const lm_nll_loss_backward_args *a = args;
  backward_job job = {.a = a, .dx = out[0], .bad = INT64_MAX};
  lm_parallel(out[0]->size[0], (double)out[0]->numel * 0.2, 0, write_images, &job);
  if (job.bad == INT64_MAX) return LM_OK;
  return bad_label(LM_OP_nll_loss_backward, a->target, job.bad, out[0]->size[1]);
}
