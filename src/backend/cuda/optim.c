/* Optimizer steps and gradient norms: tensors gathered by dtype into tables that travel with the launch. */
#include "optim.h"

#include <math.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "optim_update.h"

static uint32_t chunks_of(const lm_tensor *t, int64_t chunk) { return (uint32_t)((t->numel + chunk - 1) / chunk); }

/* A grid has fewer than 2^31 blocks. */
static bool has_room(int n, int most, uint32_t chunks, uint32_t more) {
  return n < most && (n == 0 || (int64_t)chunks + more < INT32_MAX);
}

/* ---- steps */

typedef struct job {
  const lm_optim_step *step;
  void *stream;
  lm_sgd_step sgd;
  lm_adam_step adam;
} job;

static lm_sgd_step plan_sgd(const lm_optim_step *s) {
  return (lm_sgd_step){
      .sign = s->maximize ? -1 : 1,
      .lr = s->lr,
      .weight_decay = s->weight_decay,
      .momentum = s->momentum,
      .dampening = s->dampening,
      .mode = s->momentum == 0 ? LM_SGD_PLAIN
              : s->nesterov    ? (s->first ? LM_SGD_NESTEROV_FIRST : LM_SGD_NESTEROV)
                               : (s->first ? LM_SGD_FIRST : LM_SGD_MOMENTUM),
  };
}

static lm_adam_step plan_adam(const lm_optim_step *s) {
  return (lm_adam_step){
      .sign = s->maximize ? -1 : 1,
      .lr = s->lr,
      .weight_decay = s->weight_decay,
      .beta1 = s->beta1,
      .beta2 = s->beta2,
      .eps = s->eps,
      .decay = s->weight_decay == 0 ? LM_ADAM_NO_DECAY
               : s->decoupled       ? LM_ADAM_DECOUPLED
                                    : LM_ADAM_L2,
      .amsgrad = s->amsgrad,
      .step_size = s->lr / (1 - pow(s->beta1, (double)s->step)),
      .inverse_correction2 = 1 / sqrt(1 - pow(s->beta2, (double)s->step)),
  };
}

static lm_status launch(const job *j, int dtype, const lm_optim_table *table) {
  if (table->n == 0) return LM_OK;
  if (j->step->kind == LM_SGD) return LAUNCH("sgd", lm_optim_sgd(dtype, table, &j->sgd, j->stream));
  return LAUNCH("adam", lm_optim_adam(dtype, table, &j->adam, j->stream));
}

static void put(lm_optim_table *table, const lm_optim_step *s, int i) {
  int n = table->n++;
  table->first[n + 1] = table->first[n] + chunks_of(s->param[i], LM_OPTIM_CHUNK);
  table->numel[n] = s->param[i]->numel;
  table->param[n] = s->param[i]->data;
  table->grad[n] = s->grad[i]->data;
  table->state0[n] = s->state0 ? s->state0[i]->data : NULL;
  table->state1[n] = s->state1 ? s->state1[i]->data : NULL;
  table->state2[n] = s->state2 ? s->state2[i]->data : NULL;
}

/* All parameters of one dtype, in as few launches as their tables take. */
static lm_status step_dtype(const job *j, lm_dtype dtype) {
  const lm_optim_step *s = j->step;
  lm_status status = LM_OK;
  lm_optim_table table = {0};
  for (int i = 0; i < s->n; i++) {
    const lm_tensor *p = s->param[i];
    if (p->dtype != (int8_t)dtype || p->numel == 0) continue;
    if (!has_room(table.n, LM_OPTIM_TENSORS, table.first[table.n], chunks_of(p, LM_OPTIM_CHUNK))) {
      TRY(launch(j, dtype, &table));
      table.n = 0;
    }
    put(&table, s, i);
  }
  TRY(launch(j, dtype, &table));
done:
  return status;
}

lm_status lm_cuda_optim(const lm_optim_step *step) {
  lm_status status = LM_OK;
  lm_device device = step->param[0]->device;
  const int64_t *replayed = lm_optim_replayed();
  void *corrections = NULL;
  enum { CORRECTIONS = 2 * sizeof(double) };
  job j = {.step = step, .sgd = plan_sgd(step), .adam = plan_adam(step)};
  TRY(lm_cuda_enter(device, &j.stream));
  if (step->kind == LM_ADAM && replayed) { /* the step's number grows with each replay */
    TRY(lm_cuda_scratch(device, CORRECTIONS, &corrections));
    TRY(LAUNCH("corrections",
               lm_optim_corrections(step->lr, step->beta1, step->beta2, step->step, replayed, corrections, j.stream)));
    j.adam.corrections = corrections;
  }
  for (lm_dtype dtype = LM_F16; dtype <= LM_F64; dtype++) TRY(step_dtype(&j, dtype));
done:
  if (corrections) lm_cuda_scratch_done(device, corrections, CORRECTIONS);
  return status;
}

/* ---- norms */

static lm_status norms_dtype(int n, lm_tensor *const *tensors, lm_dtype dtype, double p, double **part, void *stream) {
  lm_status status = LM_OK;
  lm_norm_table table = {0};
  for (int i = 0; i <= n; i++) {
    const lm_tensor *t = i < n ? tensors[i] : NULL;
    if (t && (t->dtype != (int8_t)dtype || t->numel == 0)) continue;
    if (table.n > 0 &&
        (!t || !has_room(table.n, LM_NORM_TENSORS, table.first[table.n], chunks_of(t, LM_NORMS_CHUNK)))) {
      TRY(LAUNCH("norms", lm_optim_norms(dtype, &table, p, *part, stream)));
      *part += table.first[table.n];
      table.n = 0;
    }
    if (!t) break;
    table.first[table.n + 1] = table.first[table.n] + chunks_of(t, LM_NORMS_CHUNK);
    table.numel[table.n] = t->numel;
    table.data[table.n++] = t->data;
  }
done:
  return status;
}

lm_status lm_cuda_norms(int n, lm_tensor *const *tensors, double p, lm_tensor *out) {
  lm_status status = LM_OK;
  lm_device device = tensors[0]->device;
  void *stream, *scratch = NULL;
  int64_t chunks = 0;
  for (int i = 0; i < n; i++) chunks += chunks_of(tensors[i], LM_NORMS_CHUNK);
  size_t bytes = (size_t)chunks * sizeof(double);
  TRY(lm_cuda_enter(device, &stream));
  TRY(lm_cuda_scratch(device, bytes, &scratch));
  double *part = scratch;
  for (lm_dtype dtype = LM_F16; dtype <= LM_F64; dtype++) TRY(norms_dtype(n, tensors, dtype, p, &part, stream));
  TRY(LAUNCH("join", lm_optim_norms_join(scratch, chunks, p, (double *)out->data, stream)));
done:
  if (scratch) lm_cuda_scratch_done(device, scratch, bytes);
  return status;
}
