/* Computes the CTC loss and its gradient by the forward and backward recursions over alignments in logarithms, by
 * Graves et al., "Connectionist Temporal Classification", 2006, section 4.1. Threads share the samples. An even state
 * is a blank, an odd one a class of the target. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "base/message.h"
#include "op/index_checks.h"
#include "op_args_losses.h"
#include "op_ids.h"

typedef struct ctc {
  int64_t times, samples, classes, blank, states; /* states: those of the longest target */
  const int64_t *target, *starts, *input_lengths, *target_lengths;
  const void *args;
  lm_tensor *const *out;
} ctc;

static lm_status prepare_ctc(lm_op_id op, const lm_tensor *x, const lm_tensor *target, const lm_tensor *starts,
                             const lm_tensor *input_lengths, const lm_tensor *target_lengths, int64_t blank,
                             int64_t states, ctc *s) {
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
        return lm_fail_bad_label(op, "target", target, i, s->target[i], s->classes);
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

#define EXP(x) LM_FN(EXP)(x)
#define EXP_F32 expf
#define EXP_F64 exp
#define LOG(x) LM_FN(LOG)(x)
#define LOG_F32 logf
#define LOG_F64 log
#define LM_TEMPLATE "backend/cpu/isa/templates/ctc.inc"
#include "backend/cpu/isa/templates/each_real.inc"

static double ctc_ns(const ctc *s) {
  return (double)s->samples * (double)s->times * ((double)s->states * 16 + (double)s->classes);
}

lm_status lm_cpu_ctc_nll(const lm_ctc_nll_args *a, lm_tensor *const *out) {
  ctc s;
  NEED(prepare_ctc(LM_OP_ctc_nll, a->x, a->target, a->starts, a->input_lengths, a->target_lengths, a->blank,
                   out[1]->size[2], &s));
  s.args = a, s.out = out;
  return lm_parallel(s.samples, ctc_ns(&s), 0, a->x->dtype == LM_F64 ? forward_samples_F64 : forward_samples_F32, &s);
}

lm_status lm_cpu_ctc_nll_backward(const lm_ctc_nll_backward_args *a, lm_tensor *const *out) {
  ctc s;
  NEED(prepare_ctc(LM_OP_ctc_nll_backward, a->x, a->target, a->starts, a->input_lengths, a->target_lengths, a->blank,
                   a->log_alpha->size[2], &s));
  s.args = a, s.out = out;
  return lm_parallel(s.samples, ctc_ns(&s), (size_t)(2 * s.states) * sizeof(double),
                     a->x->dtype == LM_F64 ? backward_samples_F64 : backward_samples_F32, &s);
}
