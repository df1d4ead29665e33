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

lm_status lm_cpu_nll_loss(const void *args, lm_tensor *const *out) {
  const lm_nll_loss_args *a = args;
  const lm_tensor *x = a->x;
  const int64_t *label = (const int64_t *)a->target->data;
  int64_t classes = x->size[1], inner = x->size[2], count = x->size[0] * inner;
  /* Cut by the count alone, summed in order: the same sum for any number of threads. */
  int64_t parts = count / PART < 1 ? 1 : count / PART > MAX_PARTS ? MAX_PARTS : count / PART;
  double sums[MAX_PARTS], totals[MAX_PARTS];
  int64_t bad[MAX_PARTS];
#pragma omp parallel for num_threads(lm_cpu_share((double)count * 4))
  for (int64_t p = 0; p < parts; p++) {
    sums[p] = totals[p] = 0;
    bad[p] = -1;
    for (int64_t i = count * p / parts; i < count * (p + 1) / parts; i++) {
      double loss = 0;
      if (label[i] != a->ignore_index) {
        if (label[i] < 1 || label[i] > classes) {
          bad[p] = i;
          break;
        }
        double weight = a->weight ? lm_scalar_load(a->weight, label[i] - 1) : 1;
        loss = -weight *
               lm_scalar_load(x, i / inner * x->stride[0] + (label[i] - 1) * x->stride[1] + i % inner * x->stride[2]);
        sums[p] += loss;
        totals[p] += weight;
      }
      if (a->reduction == LM_NONE) lm_scalar_store(out[0], i, loss);
    }
  }
  double sum = 0, total = 0;
  for (int64_t p = 0; p < parts; p++) {
    if (bad[p] >= 0) return bad_label(LM_OP_nll_loss, a->target, bad[p], classes);
    sum += sums[p];
    total += totals[p];
  }
  if (a->reduction != LM_NONE) lm_scalar_store(out[0], 0, a->reduction == LM_MEAN ? sum / total : sum);
  lm_scalar_store(out[1], 0, a->reduction == LM_NONE ? 0 : total);
  return LM_OK;
}

lm_status lm_cpu_nll_loss_backward(const void *args, lm_tensor *const *out) {
  const lm_nll_loss_backward_args *a = args;
  lm_tensor *dx = out[0];
  const int64_t *label = (const int64_t *)a->target->data;
  int64_t images = dx->size[0], classes = dx->size[1], inner = dx->size[2], bad = INT64_MAX;
  size_t image = (size_t)(classes * inner) * lm_dtype_size(dx->dtype);
  double total = a->reduction == LM_MEAN ? lm_scalar_load(a->total, 0) : 1;
#pragma omp parallel for num_threads(lm_cpu_share((double)dx->numel * 0.2)) reduction(min : bad)
  for (int64_t n = 0; n < images; n++) {
    memset(dx->data + (size_t)n * image, 0, image); /* N is outermost in every layout */
    for (int64_t s = 0; s < inner; s++) {
      int64_t i = n * inner + s;
      if (label[i] == a->ignore_index) continue;
      if (label[i] < 1 || label[i] > classes) {
        bad = i < bad ? i : bad;
        continue;
      }
      double weight = a->weight ? lm_scalar_load(a->weight, label[i] - 1) : 1;
      double g = lm_scalar_load(a->grad, a->reduction == LM_NONE ? i : 0);
      lm_scalar_store(dx, n * dx->stride[0] + (label[i] - 1) * dx->stride[1] + s * dx->stride[2], -weight * g / total);
    }
  }
  return bad < INT64_MAX ? bad_label(LM_OP_nll_loss_backward, a->target, bad, classes) : LM_OK;
}
