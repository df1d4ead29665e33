/* Computes weighted sums of elements: a thread for each element of y, neighbors along i or p. */
#include "gather_weighted.h"

#include "merged_dims.cuh"
#include "rounded_sums.cuh"

enum { LM_GATHER_WEIGHTED_BLOCK = 256 };

/* Coordinates of an element of y; plane: n c + channel. */
struct lm_gather_weighted_item {
  int64_t i, p, plane, n;
};
struct lm_gather_weighted_dividers {
  lm_divider i, p, c, j;
};
template <bool WIDE>
LM_DEVICE lm_gather_weighted_item lm_gather_weighted_item_of(const lm_gather_weighted_job &s,
                                                             const lm_gather_weighted_dividers &by, int64_t e) {
  lm_gather_weighted_item at;
  int64_t channel;
  e = lm_split<WIDE>(e, s.i, by.i, &at.i);
  at.plane = lm_split<WIDE>(e, s.p, by.p, &at.p);
  at.n = lm_split<WIDE>(at.plane, s.c, by.c, &channel);
  return at;
}

template <class T, bool WIDE>
LM_KERNEL void lm_gather_weighted_forward_kernel(lm_gather_weighted_job s, lm_gather_weighted_dividers by,
                                                 int64_t count) {
  typedef lm_compute<T> A;
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    lm_gather_weighted_item at = lm_gather_weighted_item_of<WIDE>(s, by, e);
    const T *x = (const T *)s.x + at.plane * s.m * s.i + at.i;
    const int64_t *indices = s.indices + at.n * s.indices_step + at.p;
    const A *weight = s.weight ? (const A *)s.weight + at.n * s.weight_step + at.p : NULL;
    A sum = 0;
    for (int64_t j = 0; j < s.j; j++) {
      uint64_t position = (uint64_t)indices[j * s.p] - 1;
      if (position < (uint64_t)s.m) sum += (weight ? weight[j * s.p] : (A)1) * lm_get<A>(x[(int64_t)position * s.i]);
    }
    ((T *)s.y)[e] = lm_put<T>(sum);
  }
}

/* Computes the gradient of x by atomics; sums must be 0. */
template <class T, bool WIDE>
LM_KERNEL void lm_gather_weighted_input_kernel(lm_gather_weighted_job s, lm_gather_weighted_dividers by, int64_t count,
                                               lm_compute<T> *sums) {
  typedef lm_compute<T> A;
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    lm_gather_weighted_item at = lm_gather_weighted_item_of<WIDE>(s, by, e);
    A *sum = sums + at.plane * s.m * s.i + at.i, g = lm_get<A>(((const T *)s.y)[e]);
    const int64_t *indices = s.indices + at.n * s.indices_step + at.p;
    const A *weight = s.weight ? (const A *)s.weight + at.n * s.weight_step + at.p : NULL;
    for (int64_t j = 0; j < s.j; j++) {
      uint64_t position = (uint64_t)indices[j * s.p] - 1;
      if (position < (uint64_t)s.m) atomicAdd(&sum[(int64_t)position * s.i], (weight ? weight[j * s.p] : (A)1) * g);
    }
  }
}

/* Computes the gradient of weight [n, j, p]; a thread for each element. */
template <class T, bool WIDE>
LM_KERNEL void lm_gather_weighted_weight_kernel(lm_gather_weighted_job s, lm_gather_weighted_dividers by,
                                                int64_t count) {
  typedef lm_compute<T> A;
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    int64_t p, j, n = lm_split<WIDE>(lm_split<WIDE>(e, s.p, by.p, &p), s.j, by.j, &j);
    uint64_t position = (uint64_t)s.indices[n * s.indices_step + j * s.p + p] - 1;
    A sum = 0;
    for (int64_t c = 0; position < (uint64_t)s.m && c < s.c; c++) {
      const T *x = (const T *)s.x + ((n * s.c + c) * s.m + (int64_t)position) * s.i;
      const T *y = (const T *)s.y + ((n * s.c + c) * s.p + p) * s.i;
      for (int64_t i = 0; i < s.i; i++) sum += lm_get<A>(x[i]) * lm_get<A>(y[i]);
    }
    ((A *)s.weight)[e] = sum;
  }
}

/* Launches the narrow kernel for fewer elements than LM_NARROW, else the wide one. */
template <class... P, class... A>
static int launch(void (*narrow)(lm_gather_weighted_job, lm_gather_weighted_dividers, int64_t, P...),
                  void (*wide)(lm_gather_weighted_job, lm_gather_weighted_dividers, int64_t, P...), void *stream,
                  const lm_gather_weighted_job *job, int64_t count, A... more) {
  lm_gather_weighted_dividers by = {lm_split_divider(job->i), lm_split_divider(job->p), lm_split_divider(job->c),
                                    lm_split_divider(job->j)};
  return lm_launch_each(count < LM_NARROW ? narrow : wide, count, LM_GATHER_WEIGHTED_BLOCK, stream, *job, by, count,
                        more...);
}

int lm_k_gather_weighted_forward(const lm_gather_weighted_job *job, void *stream) {
  int64_t count = job->n * job->c * job->p * job->i;
  return lm_for_float(job->dtype, [=](auto t) {
    typedef decltype(t) T;
    return launch(lm_gather_weighted_forward_kernel<T, false>, lm_gather_weighted_forward_kernel<T, true>, stream, job,
                  count);
  });
}

int lm_k_gather_weighted_input(const lm_gather_weighted_job *job, float *sums, void *stream) {
  int64_t count = job->n * job->c * job->p * job->i, all = job->n * job->c * job->m * job->i;
  return lm_for_float(job->dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_sum_into<T>(job->x, sums, all, stream, [&](lm_compute<T> *sum) {
      return launch(lm_gather_weighted_input_kernel<T, false>, lm_gather_weighted_input_kernel<T, true>, stream, job,
                    count, sum);
    });
  });
}

int lm_k_gather_weighted_weight(const lm_gather_weighted_job *job, void *stream) {
  int64_t count = job->n * job->j * job->p;
  return lm_for_float(job->dtype, [=](auto t) {
    typedef decltype(t) T;
    return launch(lm_gather_weighted_weight_kernel<T, false>, lm_gather_weighted_weight_kernel<T, true>, stream, job,
                  count);
  });
}
