/* Computes negative log-likelihood, cross entropy, and their gradients. The forward pass of the first reads one number
 * for each label, which is little: dtypes are distinguished at run time and sums are double. */
#include "loss.h"

#include "softmax.cuh"
#include "vectors.cuh"

/* Returns position i's class from 0, or -1 if it does not count. `report`: one thread for each position reports. */
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

/* Adds up the parts of a forward pass, in one block. */
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

/* ---- backward: writes every element, and all but one of a position are 0 */

/* Returns the gradient at position i and its class c. */
LM_DEVICE double lm_nll_gradient(const lm_nll_job &job, int64_t i, int64_t c) {
  double total = job.reduction == LM_NLL_MEAN ? lm_number_at(job.total, job.total_dtype, 0) : 1;
  double grad = lm_number_at(job.grad, job.dtype, job.reduction == LM_NLL_NONE ? i : 0);
  return -lm_nll_weight(job, c) * grad / total;
}

/* Writes dx [images, inner, classes] (order in memory), a pack a thread. */
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

/* Writes dx [images, classes, inner], in memory's order; a thread writes a position's classes in part blockIdx.y. */
template <class T>
LM_KERNEL void lm_nll_by_position(lm_nll_job job, lm_long_divider inner, int64_t each) {
  int64_t begin = (int64_t)blockIdx.y * each, end = begin + each < job.classes ? begin + each : job.classes;
  for (int64_t i = lm_thread(); i < job.images * job.inner; i += lm_threads()) {
    int64_t n = lm_long_divide(i, inner), s = i - n * job.inner, hit = lm_nll_class(job, i, begin == 0);
    T *dx = (T *)job.dx + n * job.classes * job.inner + s;
    for (int64_t c = begin; c < end; c++) dx[c * job.inner] = lm_put<T>(c == hit ? lm_nll_gradient(job, i, c) : 0.0);
  }
}

int lm_nll_backward(const lm_nll_job *job, void *stream) {
  return lm_for_float(job->dtype, [=](auto element) {
    typedef decltype(element) T;
    enum { LIMIT = 1 << 20, MAX_PARTS = 65535 };
    int64_t positions = job->images * job->inner, each = job->classes / MAX_PARTS + 1;
    if (job->inner == 1 || job->stride[1] == 1) {
      int width = lm_is_packed(job->dx) ? lm_full_pack<T>::V : 1;
      unsigned grid = lm_blocks(positions * job->classes, LM_NLL_BLOCK * width, LIMIT);
      return lm_launch(width > 1 ? lm_nll_by_class<T, lm_full_pack<T>::V> : lm_nll_by_class<T, 1>, grid, LM_NLL_BLOCK,
                       0, stream, *job, lm_long_divider_make(job->classes));
    }
    if (each < 32) each = 32; /* classes that a thread writes */
    dim3 grid(lm_blocks(positions, LM_NLL_BLOCK, LIMIT), lm_blocks(job->classes, each, MAX_PARTS));
    return lm_launch(lm_nll_by_position<T>, grid, LM_NLL_BLOCK, 0, stream, *job, lm_long_divider_make(job->inner),
                     each);
  });
}

/* ---- cross entropy: a row's logits are read once forward, and read and written once backward */

/* The rows of a block: teams of `lanes` threads take one at a time. Every thread takes part in every iteration. */
struct lm_entropy_rows {
  int lane, team, teams;
  LM_DEVICE lm_entropy_rows(int lanes)
      : lane((int)threadIdx.x & (lanes - 1)), team((int)threadIdx.x / lanes), teams((int)blockDim.x / lanes) {}
};

LM_DEVICE double lm_entropy_sum_of_weights(const lm_entropy_job &job, double *shared) {
  if (job.smoothing == 0 || !job.nll.weight) return (double)job.nll.classes;
  double sum = 0;
  for (int64_t c = (int)threadIdx.x; c < job.nll.classes; c += (int)blockDim.x) sum += lm_nll_weight(job.nll, c);
  return lm_block_reduce(sum, lm_add_of(), shared);
}

template <class L>
LM_KERNEL void __launch_bounds__(LM_ENTROPY_BLOCK) lm_entropy_forward_kernel(lm_entropy_job job, L loader) {
  typedef typename L::stored stored;
  typedef typename L::num num;
  __shared__ lm_softmax_total<double> shared[LM_WARP];
  const lm_nll_job &nll = job.nll;
  lm_entropy_rows rows(job.lanes);
  lm_softmax_row_team team = {job.lanes, shared};
  lm_softmax_join<num> join;
  bool smooth = job.smoothing > 0;
  double weights = lm_entropy_sum_of_weights(job, (double *)shared);
  lm_nll_sum sum = {0, 0};
  for (int64_t first = (int64_t)blockIdx.x * rows.teams; first < nll.images; first += (int64_t)gridDim.x * rows.teams) {
    int64_t i = first + rows.team, hit = i < nll.images ? lm_nll_class(nll, i, rows.lane == 0) : -1;
    const stored *x = (const stored *)nll.x + (hit >= 0 ? i : 0) * nll.stride[0];
    lm_softmax_long<L, false> line(x, x, x, nll.stride[1], nll.stride[1], nll.stride[1], hit >= 0 ? nll.classes : 0);
    lm_softmax_total<num> t = {0, -INFINITY};
    double below = 0;
    line.each(rows.lane, job.lanes, [&](int64_t at, const auto &px, const auto &) {
      enum { N = sizeof px / sizeof(stored) };
      num v[N], part[N];
      LM_UNROLL
      for (int k = 0; k < N; k++) part[k] = v[k] = loader(px.v[k]);
      num most = lm_reduce_tree<N>(part, lm_max_of());
      LM_UNROLL
      for (int k = 0; k < N; k++) part[k] = join.term(v[k], most);
      t = join(t, {(double)lm_reduce_tree<N>(part, lm_add_of()), most});
      for (int k = 0; smooth && k < N; k++) below += lm_nll_weight(nll, at + k) * (double)v[k];
    });
    t = team(t, join);
    if (isinf(t.most)) t.sum = NAN; /* infinity - infinity */
    if (smooth) below = team(below, lm_add_of());
    if (rows.lane != 0 || i >= nll.images) continue;
    double loss = 0;
    if (hit >= 0) {
      double weight = lm_nll_weight(nll, hit), rest = log(t.sum), most = (double)t.most;
      double own = (double)loader(x[hit * nll.stride[1]]);
      loss = (1 - job.smoothing) * weight * (rest - (own - most));
      if (smooth) loss += job.smoothing / (double)nll.classes * (weights * (rest + most) - below);
      sum.loss += loss;
      sum.weight += weight;
    }
    lm_put_number(job.stats, nll.dtype, 2 * i, hit >= 0 ? (double)t.most : 0.0);
    lm_put_number(job.stats, nll.dtype, 2 * i + 1, hit >= 0 ? t.sum : 0.0);
    if (nll.reduction == LM_NLL_NONE) lm_put_number(nll.out, nll.dtype, i, loss);
  }
  sum = lm_block_reduce(sum, lm_nll_add(), (lm_nll_sum *)shared);
  if (threadIdx.x != 0) return;
  if (nll.parts == 1) {
    lm_nll_put(nll, sum);
  } else {
    ((lm_nll_sum *)nll.partial)[blockIdx.x] = sum;
  }
}

template <class L>
LM_KERNEL void __launch_bounds__(LM_ENTROPY_BLOCK) lm_entropy_backward_kernel(lm_entropy_job job, L loader) {
  typedef typename L::stored stored;
  typedef typename L::num num;
  __shared__ double shared[LM_WARP];
  const lm_nll_job &nll = job.nll;
  lm_entropy_rows rows(job.lanes);
  double weights = lm_entropy_sum_of_weights(job, shared);
  double total = nll.reduction == LM_NLL_MEAN ? lm_number_at(nll.total, nll.total_dtype, 0) : 1;
  for (int64_t first = (int64_t)blockIdx.x * rows.teams; first < nll.images; first += (int64_t)gridDim.x * rows.teams) {
    int64_t i = first + rows.team;
    if (i >= nll.images) continue;
    int64_t hit = lm_nll_class(nll, i, rows.lane == 0);
    double g = lm_number_at(nll.grad, nll.dtype, nll.reduction == LM_NLL_NONE ? i : 0) / total;
    double own = hit >= 0 ? g * (1 - job.smoothing) * lm_nll_weight(nll, hit) : 0;
    double even = g * job.smoothing / (double)nll.classes;
    num most = (num)lm_number_at(job.stats, nll.dtype, 2 * i), at_hit = (num)own, spread = (num)even;
    num scale = (num)((own + even * weights) / lm_number_at(job.stats, nll.dtype, 2 * i + 1));
    bool weighted = nll.weight && job.smoothing > 0;
    const stored *x = (const stored *)nll.x + i * nll.stride[0];
    stored *dx = (stored *)nll.dx + i * nll.classes;
    lm_softmax_long<L, false> line(x, x, dx, nll.stride[1], nll.stride[1], 1, nll.classes);
    line.each(rows.lane, job.lanes, [&](int64_t at, const auto &px, const auto &) {
      enum { N = sizeof px / sizeof(stored) };
      lm_pack<stored, N> pack;
      LM_UNROLL
      for (int k = 0; k < N; k++) {
        num v = lm_exp((num)loader(px.v[k]) - most) * scale -
                (weighted ? spread * (num)lm_nll_weight(nll, at + k) : spread);
        if (at + k == hit) v -= at_hit;
        pack.v[k] = lm_put_loaded<stored>(hit >= 0 ? v : (num)0, loader.dtype);
      }
      lm_store<N>(dx + at, pack);
    });
  }
}

int lm_entropy_forward(const lm_entropy_job *job, void *stream) {
  int status = lm_for_float_loader(job->x_dtype, [=](auto loader) {
    return lm_launch(lm_entropy_forward_kernel<decltype(loader)>, (unsigned)job->nll.parts, (unsigned)job->threads, 0,
                     stream, *job, loader);
  });
  if (status != 0 || job->nll.parts == 1) return status;
  return lm_launch(lm_nll_parts_kernel, 1, LM_NLL_BLOCK, 0, stream, job->nll);
}

int lm_entropy_backward(const lm_entropy_job *job, void *stream) {
  return lm_for_float_loader(job->x_dtype, [=](auto loader) {
    return lm_launch(lm_entropy_backward_kernel<decltype(loader)>, (unsigned)job->nll.parts, (unsigned)job->threads, 0,
                     stream, *job, loader);
  });
}
