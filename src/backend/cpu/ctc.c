/* Computes the CTC loss and its gradient by the forward and backward recursions over alignments in logarithms, by
 * Graves et al., "Connectionist Temporal Classification", 2006, section 4.1. Threads share the samples. An even state
 * is a blank, an odd one a class of the target. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "base/message.h"
#include "op/index_checks.h"

typedef struct ctc {
  int64_t times, samples, classes, blank, states; /* states: those of the longest target */
  const int64_t *target, *starts, *input_lengths, *target_lengths;
  const void *args;
  lm_tensor *const *out;
} ctc;

static lm_status ctc_of(lm_op_id op, const lm_tensor *x, const lm_tensor *target, const lm_tensor *starts,
                        const lm_tensor *input_lengths, const lm_tensor *target_lengths, int64_t blank, int64_t states,
                        ctc *s) {
  *s = (ctc){.times = x->size[0],
             .samples = x->size[1],
             .classes = x->size[2],
             .blank = blank - 1,
             .states = states,
             .target = (const int64_t *)target->data,
             .starts = (const int64_t *)starts->data,
             .input_lengths = (const int64_t *)input_lengths->data,
             .target_lengths = (const int64_t *)target_lengths->data};
  const char *name = lm_ops[op].name;
  for (int64_t n = 0; n < s->samples; n++) {
    int64_t long_is = s->target_lengths[n], start = s->starts[n];
    if (s->input_lengths[n] < 0 || s->input_lengths[n] > s->times)
      return lm_fail_int(name, "input_lengths", lm_text("from 0 to %lld", (long long)s->times), s->input_lengths[n]);
    if (long_is < 0 || 2 * long_is + 1 > states || start < 0 || start > target->size[0] - long_is)
      return lm_fail_int(name, "target_lengths", "at most the size of target", long_is);
    for (int64_t i = start; i < start + long_is; i++)
      if (s->target[i] < 1 || s->target[i] > s->classes)
        return lm_bad_label(op, "target", target, i, s->target[i], s->classes);
  }
  return LM_OK;
}

/* class_of returns the class of a state, from 0; skips_to, true if a path may come to it from two states before. */
static int64_t class_of(const ctc *s, int64_t n, int64_t state) {
  return state % 2 ? s->target[s->starts[n] + state / 2] - 1 : s->blank;
}
static bool skips_to(const ctc *s, int64_t n, int64_t state) {
  return state % 2 && state > 1 && class_of(s, n, state) != class_of(s, n, state - 2);
}

#define LM_E F32
#define EXP expf
#define LOG logf
#include "backend/cpu/isa/templates/ctc.inc"
#undef LM_E
#undef EXP
#undef LOG
#define LM_E F64
#define EXP exp
#define LOG log
#include "backend/cpu/isa/templates/ctc.inc"

static double work_of(const ctc *s) {
  return (double)s->samples * (double)s->times * ((double)s->states * 16 + (double)s->classes);
}

static void forward_samples(void *ctx, int64_t first, int64_t last) {
  const ctc *s = ctx;
  const lm_tensor *x = ((const lm_ctc_nll_args *)s->args)->x;
  for (int64_t n = first; n < last; n++) {
    if (x->dtype == LM_F64) {
      forward_F64(s, n, (const double *)x->data, (double *)s->out[0]->data, (double *)s->out[1]->data);
    } else {
      forward_F32(s, n, (const float *)x->data, (float *)s->out[0]->data, (float *)s->out[1]->data);
    }
  }
}

static void backward_samples(void *ctx, int64_t first, int64_t last) {
  const ctc *s = ctx;
  const lm_ctc_nll_backward_args *a = s->args;
  for (int64_t n = first; n < last; n++) {
    if (a->x->dtype == LM_F64) {
      backward_F64(s, n, (const double *)a->x->data, ((const double *)a->grad->data)[n],
                   ((const double *)a->loss->data)[n], (const double *)a->log_alpha->data, lm_scratch(),
                   (double *)s->out[0]->data);
    } else {
      backward_F32(s, n, (const float *)a->x->data, ((const float *)a->grad->data)[n],
                   ((const float *)a->loss->data)[n], (const float *)a->log_alpha->data, lm_scratch(),
                   (float *)s->out[0]->data);
    }
  }
}

lm_status lm_cpu_ctc_nll(const void *args, lm_tensor *const *out) {
  const lm_ctc_nll_args *a = args;
  ctc s;
  NEED(ctc_of(LM_OP_ctc_nll, a->x, a->target, a->starts, a->input_lengths, a->target_lengths, a->blank, out[1]->size[2],
              &s));
  s.args = args, s.out = out;
  return lm_parallel(s.samples, work_of(&s), 0, forward_samples, &s);
}

lm_status lm_cpu_ctc_nll_backward(const void *args, lm_tensor *const *out) {
  const lm_ctc_nll_backward_args *a = args;
  ctc s;
  NEED(ctc_of(LM_OP_ctc_nll_backward, a->x, a->target, a->starts, a->input_lengths, a->target_lengths, a->blank,
              a->log_alpha->size[2], &s));
  s.args = args, s.out = out;
  return lm_parallel(s.samples, work_of(&s), (size_t)(2 * s.states) * sizeof(double), backward_samples, &s);
}
