/* Negative log-likelihood and its gradient. The forward pass picks one number a label, so what it reads is small:
 * dtypes are distinguished at run time and sums are double. */
#include "loss.h"

#include "reduce.cuh"
#include "vectors.cuh"

/* The class of position i from 0, or -1 if it counts for nothing. `report`: one thread for each position reports. */
LM_DEVICE int64_t lm_nll_class(const lm_nll_job &job, int64_t i, bool report) {
  int64_t label = job.label[i];
  if (label == job.ignore) return -1;
  if (label >= 1 && label <= job.classes) return label - 1;
  if (report) lm_report_bad(job.bad, job.bad_kind, i + 1, label, job.classes);
  return -1;
}

LM_DEVICE double lm_nll_weight(const lm_nll_job &job, int64_t c) {
  return job.weight ? lm_number_at(job.weight, job.weight_dtype, c) : 1;
}

/* ---- forward */

typedef struct lm_nll_sum {
  double loss, weight;
} lm_nll_sum;

struct lm_nll_add {
  LM_DEVICE lm_nll_sum operator()(lm_nll_sum a, lm_nll_sum b) const { return {a.loss + b.loss, a.weight + b.weight}; }
};

LM_DEVICE void lm_nll_put(const lm_nll_job &job, lm_nll_sum sum) {
  if (job.reduction != LM_NLL_NONE) {
    lm_put_number(job.out, job.dtype, 0, job.reduction == LM_NLL_MEAN ? sum.loss / sum.weight : sum.loss);
  }
  lm_put_number(job.total, job.total_dtype, 0, job.reduction == LM_NLL_NONE ? 0 : sum.weight);
}

LM_KERNEL void lm_nll_forward_kernel(lm_nll_job job, lm_long_divider inner) {
  __shared__ lm_nll_sum shared[LM_WARP];
  lm_nll_sum sum = {0, 0};
  for (int64_t i = lm_thread(); i < job.images * job.inner; i += lm_threads()) {
    int64_t n = lm_long_divide(i, inner), s = i - n * job.inner, c = lm_nll_class(job, i, true);
    double loss = 0;
    if (c >= 0) {
      double weight = lm_nll_weight(job, c);
      loss = -weight * lm_number_at(job.x, job.dtype, n * job.stride[0] + c * job.stride[1] + s * job.stride[2]);
      sum.loss += loss;
      sum.weight += weight;
    }
    if (job.reduction == LM_NLL_NONE) lm_put_number(job.out, job.dtype, i, loss);
  }
  sum = lm_block_reduce(sum, lm_nll_add(), shared);
  if (threadIdx.x != 0) return;
  if (job.parts == 1) {
    lm_nll_put(job, sum);
  } else {
    ((lm_nll_sum *)job.partial)[blockIdx.x] = sum;
  }
}

/* One block. */
LM_KERNEL void lm_nll_parts_kernel(lm_nll_job job) {
  __shared__ lm_nll_sum shared[LM_WARP];
  lm_nll_sum sum = {0, 0};
  for (int i = (int)threadIdx.x; i < job.parts; i += LM_NLL_BLOCK) {
    sum = lm_nll_add()(sum, ((const lm_nll_sum *)job.partial)[i]);
  }
  sum = lm_block_reduce(sum, lm_nll_add(), shared);
  if (threadIdx.x == 0) lm_nll_put(job, sum);
}

int lm_nll_forward(const lm_nll_job *job, void *stream) {
  lm_long_divider inner = lm_long_divider_make(job->inner > 0 ? job->inner : 1);
  int status = lm_launch(lm_nll_forward_kernel, (unsigned)job->parts, LM_NLL_BLOCK, 0, stream, *job, inner);
  if (status != 0 || job->parts == 1) return status;
  return lm_launch(lm_nll_parts_kernel, 1, LM_NLL_BLOCK, 0, stream, *job);
}

/* ---- backward: every element is written, all but one of a position with 0 */

/* The gradient at position i and its class c. */
LM_DEVICE double lm_nll_gradient(const lm_nll_job &job, int64_t i, int64_t c) {
  double total = job.reduction == LM_NLL_MEAN ? lm_number_at(job.total, job.total_dtype, 0) : 1;
  double grad = lm_number_at(job.grad, job.dtype, job.reduction == LM_NLL_NONE ? i : 0);
  return -lm_nll_weight(job, c) * grad / total;
}

/* [images, inner, classes] in memory, a pack a thread. */
template <class T, int V>
LM_KERNEL void lm_nll_by_class(lm_nll_job job, lm_long_divider classes) {
  int64_t count = job.images * job.inner * job.classes;
  T *dx = (T *)job.dx;
  for (int64_t m = lm_thread() * V; m < count; m += lm_threads() * V) {
    int64_t i = lm_long_divide(m, classes), c = m - i * job.classes;
    int64_t hit = lm_nll_class(job, i, c == 0);
    lm_pack<T, V> pack;
    LM_UNROLL
    for (int v = 0; v < V; v++) {
      pack.v[v] = lm_put<T>(c == hit ? lm_nll_gradient(job, i, c) : 0.0);
      if (++c == job.classes && m + v + 1 < count) {
        c = 0;
        if (v + 1 < V) hit = lm_nll_class(job, ++i, true);
      }
    }
    if (m + V <= count) {
      lm_store<V>(dx + m, pack);
    } else {
      LM_UNROLL
      for (int v = 0; v < V; v++) {
        if (m + v < count) dx[m + v] = pack.v[v];
      }
    }
  }
}

/* [images, classes, inner] in memory: a position a thread, which writes the classes of its part (blockIdx.y). */
template <class T>
LM_KERNEL void lm_nll_by_position(lm_nll_job job, lm_long_divider inner, int64_t each) {
  int64_t begin = (int64_t)blockIdx.y * each, end = begin + each < job.classes ? begin + each : job.classes;
  for (int64_t i = lm_thread(); i < job.images * job.inner; i += lm_threads()) {
    int64_t n = lm_long_divide(i, inner), s = i - n * job.inner, hit = lm_nll_class(job, i, begin == 0);
    T *dx = (T *)job.dx + n * job.classes * job.inner + s;
    for (int64_t c = begin; c < end; c++) dx[c * job.inner] = lm_put<T>(c == hit ? lm_nll_gradient(job, i, c) : 0.0);
  }
}

struct lm_nll_writer {
  const lm_nll_job *job;
  void *stream;
  template <class T>
  int operator()(T) const {
    enum { LIMIT = 1 << 20, MAX_PARTS = 65535 };
    int64_t positions = job->images * job->inner, each = job->classes / MAX_PARTS + 1;
    if (job->inner == 1 || job->stride[1] == 1) {
      int width = lm_is_packed(job->dx) ? lm_full_pack<T>::V : 1;
      unsigned grid = lm_blocks(positions * job->classes, LM_NLL_BLOCK * width, LIMIT);
      return lm_launch(width > 1 ? lm_nll_by_class<T, lm_full_pack<T>::V> : lm_nll_by_class<T, 1>, grid, LM_NLL_BLOCK,
                       0, stream, *job, lm_long_divider_make(job->classes));
    }
    if (each < 32) each = 32; /* classes a thread writes */
    dim3 grid(lm_blocks(positions, LM_NLL_BLOCK, LIMIT), lm_blocks(job->classes, each, MAX_PARTS));
    return lm_launch(lm_nll_by_position<T>, grid, LM_NLL_BLOCK, 0, stream, *job, lm_long_divider_make(job->inner),
                     each);
  }
};

int lm_nll_backward(const lm_nll_job *job, void *stream) {
  return lm_for_float(job->dtype, lm_nll_writer{job, stream});
}
