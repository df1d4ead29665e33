/* Computes the CTC loss and its gradient (src/backend/cpu/ctc.c): a block for each sample, a thread for each state. */
#include "ctc.h"

#include "types.cuh"

enum { LM_CTC_BLOCK = 256 };

/* A sample. A length that is out of range is reported and taken as 0. */
struct lm_ctc_sample {
  int64_t n, states, times, row;
  const int64_t *target;
};
LM_DEVICE lm_ctc_sample lm_ctc_sample_of(const lm_ctc_job &s) {
  int64_t n = blockIdx.x, length = s.target_lengths[n], times = s.input_lengths[n], start = s.starts[n];
  bool fits = length >= 0 && 2 * length + 1 <= s.states && start >= 0 && start <= s.labels - length;
  if (threadIdx.x == 0 && !fits) lm_report_bad(s.bad, s.bad_length, n + 1, length, s.states / 2);
  if (threadIdx.x == 0 && (times < 0 || times > s.times)) lm_report_bad(s.bad, s.bad_length, n + 1, times, s.times);
  return {n, fits ? 2 * length + 1 : 1, times < 0 || times > s.times ? 0 : times, s.samples * s.classes,
          s.target + (fits ? start : 0)};
}

/* Returns the class of a state, from 0. A label out of range is reported and taken as the blank. */
LM_DEVICE int64_t lm_ctc_class(const lm_ctc_job &s, const lm_ctc_sample &o, int64_t state) {
  if (state % 2 == 0) return s.blank;
  int64_t label = o.target[state / 2];
  if (label >= 1 && label <= s.classes) return label - 1;
  lm_report_bad(s.bad, s.bad_label, o.target + state / 2 - s.target + 1, label, s.classes);
  return s.blank;
}
LM_DEVICE bool lm_ctc_skips(const lm_ctc_sample &o, int64_t state) {
  return state % 2 != 0 && state > 1 && o.target[state / 2] != o.target[state / 2 - 1];
}

template <class A>
LM_DEVICE A lm_ctc_log_sum(A a, A b, A c) {
  A most = a > b ? a : b, least = a > b ? b : a, middle = c > most ? most : c;
  most = c > most ? c : most;
  if (most == -(A)INFINITY) return most;
  return most + log(1 + exp(least - most) + exp(middle - most));
}

/* Returns the log probability of reaching state i from the previous row, in the direction of step (1 or -1). */
template <class A>
LM_DEVICE A lm_ctc_step(const lm_ctc_sample &o, const A *from, int64_t i, int64_t step) {
  int64_t one = i - step, two = one - step;
  bool skip = step > 0 ? lm_ctc_skips(o, i) : two < o.states && lm_ctc_skips(o, two);
  return lm_ctc_log_sum<A>(from[i], one >= 0 && one < o.states ? from[one] : -(A)INFINITY,
                           skip ? from[two] : -(A)INFINITY);
}

template <class A>
LM_KERNEL void lm_ctc_forward_kernel(lm_ctc_job s) {
  lm_ctc_sample o = lm_ctc_sample_of(s);
  const A *x = (const A *)s.x + o.n * s.classes;
  A *alpha = (A *)s.alpha + o.n * s.times * s.states;
  for (int64_t t = 0; t < s.times; t++) {
    for (int64_t i = threadIdx.x; i < s.states; i += LM_CTC_BLOCK) {
      A v = -(A)INFINITY;
      if (i < o.states && t < o.times) {
        if (t > 0) v = lm_ctc_step<A>(o, alpha + (t - 1) * s.states, i, 1);
        if (t > 0 || i < 2) v = (t > 0 ? v : (A)0) + x[t * o.row + lm_ctc_class(s, o, i)];
      }
      alpha[t * s.states + i] = v;
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const A *last = alpha + (o.times - 1) * s.states + o.states - 1;
  ((A *)s.loss)[o.n] = o.times == 0 ? (o.states == 1 ? (A)0 : (A)INFINITY)
                                    : -lm_ctc_log_sum<A>(last[0], o.states > 1 ? last[-1] : -(A)INFINITY, -(A)INFINITY);
}

template <class A>
LM_KERNEL void lm_ctc_backward_kernel(lm_ctc_job s) {
  lm_ctc_sample o = lm_ctc_sample_of(s);
  const A *x = (const A *)s.x + o.n * s.classes, *alpha = (const A *)s.alpha + o.n * s.times * s.states;
  A *dx = (A *)s.dx + o.n * s.classes, *rows = (A *)s.beta + o.n * 2 * s.states;
  A g = ((const A *)s.grad)[o.n], loss = ((const A *)s.loss)[o.n];
  for (int64_t e = threadIdx.x; e < s.times * s.classes; e += LM_CTC_BLOCK) {
    int64_t t = e / s.classes, at = t * o.row + e % s.classes;
    dx[at] = t >= o.times ? (A)0 : loss == (A)INFINITY ? (g == 0 ? (A)0 : (A)NAN) : exp(x[at]) * g;
  }
  __syncthreads();
  for (int64_t t = o.times - 1; t >= 0; t--) {
    A *now = rows + t % 2 * s.states, *later = rows + (t + 1) % 2 * s.states;
    for (int64_t i = threadIdx.x; i < o.states; i += LM_CTC_BLOCK) {
      int64_t at = t * o.row + lm_ctc_class(s, o, i);
      A v = t == o.times - 1 ? (i + 2 < o.states ? -(A)INFINITY : (A)0) : lm_ctc_step<A>(o, later, i, -1);
      A a = alpha[t * s.states + i];
      now[i] = v + x[at];
      if (a > -(A)INFINITY && v > -(A)INFINITY) atomicAdd(&dx[at], -exp(a + v + loss) * g);
    }
    __syncthreads();
  }
}

int lm_k_ctc_forward(const lm_ctc_job *job, void *stream) {
  auto kernel = job->dtype == LM_F64 ? lm_ctc_forward_kernel<double> : lm_ctc_forward_kernel<float>;
  return lm_launch(kernel, (unsigned)job->samples, LM_CTC_BLOCK, 0, stream, *job);
}

int lm_k_ctc_backward(const lm_ctc_job *job, void *stream) {
  auto kernel = job->dtype == LM_F64 ? lm_ctc_backward_kernel<double> : lm_ctc_backward_kernel<float>;
  return lm_launch(kernel, (unsigned)job->samples, LM_CTC_BLOCK, 0, stream, *job);
}
