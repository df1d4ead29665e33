/* Runs optimizer steps, gradients' norms and their scaling: tensors of one dtype form tables that are kernel
 * arguments. */
#include "optim.h"

#include <string.h>

#include "backend/cuda/cuda.h"
#include "rescale.h"

static uint32_t chunks_of(const lm_tensor *t, int64_t chunk) { return (uint32_t)lm_ceil_div(t->numel, chunk); }

/* Returns true if a table has room; a grid has fewer than 2^31 blocks. */
static bool has_capacity(int n, int most, uint32_t chunks, uint32_t more) {
  return n < most && (n == 0 || (int64_t)chunks + more < INT32_MAX);
}

/* ---- steps */

typedef struct job {
  const lm_optim_step *step;
  void *stream;
  lm_optim_call call;
} job;

static lm_status launch_step(const job *j, int dtype, const lm_optim_table *table) {
  if (table->n == 0) return LM_OK;
  return LAUNCH(j->step->optimizer->name, lm_optim_update(dtype, table, &j->call, j->stream));
}

static void put_param(lm_optim_table *table, const lm_optim_step *s, int i) {
  int n = table->n++;
  table->first[n + 1] = table->first[n] + chunks_of(s->param[i], LM_OPTIM_CHUNK);
  table->numel[n] = s->param[i]->numel;
  table->param[n] = s->param[i]->data;
  table->grad[n] = s->grad[i]->data;
  for (int k = 0; k < LM_OPTIM_STATES; k++) table->state[k][n] = s->state[k] ? s->state[k][i]->data : NULL;
}

/* Updates all parameters of one dtype, in as few launches as their tables allow. */
static lm_status step_dtype(const job *j, lm_dtype dtype) {
  const lm_optim_step *s = j->step;
  lm_optim_table table = {0};
  for (int i = 0; i < s->n; i++) {
    const lm_tensor *p = s->param[i];
    if (p->dtype != dtype || p->numel == 0) continue;
    if (!has_capacity(table.n, LM_OPTIM_TENSORS, table.first[table.n], chunks_of(p, LM_OPTIM_CHUNK))) {
      NEED(launch_step(j, dtype, &table));
      table.n = 0;
    }
    put_param(&table, s, i);
  }
  return launch_step(j, dtype, &table);
}

lm_status lm_cuda_optim(const lm_optim_step *step) {
  lm_device device = step->param[0]->device;
  LM_CUDA_SCRATCH planned = {0};
  int family = step->optimizer->family, n_carried = step->optimizer->n_carried;
  job j = {.step = step, .call = {.family = family, .modes = step->modes, .coefficients = *step->coefficients}};
  for (int k = 0; k < LM_OPTIM_STATES; k++)
    if (step->state[k]) j.call.states |= 1u << k;
  NEED(lm_cuda_enter(device, &j.stream));
  if (lm_optim_in_graph() && step->optimizer->counts) { /* a graph's replays increment the step's number */
    double first[1 + LM_OPTIM_CARRIED] = {step->numbers.t}, *graph_numbers;
    memcpy(first + 1, step->numbers.carried, (size_t)n_carried * sizeof *first);
    if (!(graph_numbers = lm_optim_graph_numbers_take(first, 1 + n_carried)))
      return lm_fail(LM_E_STATE, "%s: cannot capture more optimizer steps in one graph", step->optimizer->name);
    NEED(lm_cuda_scratch(device, sizeof(lm_optim_f64), &planned));
    NEED(LAUNCH("plan", lm_optim_plan_replay(family, &step->numbers, graph_numbers, n_carried, planned.p, j.stream)));
    j.call.planned = planned.p;
  }
  for (lm_dtype dtype = LM_F16; dtype <= LM_F64; dtype++) NEED(step_dtype(&j, dtype));
  return LM_OK;
}

/* ---- norms and scaling */

/* Fills the table with the next pairs of these dtypes from *at on; false if there are none. */
static bool next_table(lm_tensor_table *table, int n, lm_tensor *const *from, lm_tensor *const *to, lm_dtype x,
                       lm_dtype y, int *at) {
  table->n = 0;
  for (; *at < n; ++*at) {
    const lm_tensor *t = to[*at];
    if (from[*at]->dtype != x || t->dtype != y || t->numel == 0) continue;
    uint32_t chunks = chunks_of(t, LM_TABLE_CHUNK);
    if (!has_capacity(table->n, LM_TABLE_TENSORS, table->first[table->n], chunks)) break;
    table->first[table->n + 1] = table->first[table->n] + chunks;
    table->numel[table->n] = t->numel;
    table->from[table->n] = from[*at]->data;
    table->to[table->n++] = t->data;
  }
  return table->n > 0;
}

lm_status lm_cuda_norms(int n, lm_tensor *const *tensors, double p, lm_tensor *out) {
  lm_device device = tensors[0]->device;
  lm_tensor_table table = {0};
  void *stream;
  LM_CUDA_SCRATCH scratch = {0};
  int64_t chunks = 0;
  for (int i = 0; i < n; i++) chunks += chunks_of(tensors[i], LM_TABLE_CHUNK);
  NEED(lm_cuda_enter(device, &stream));
  NEED(lm_cuda_scratch(device, (size_t)chunks * sizeof(double), &scratch));
  double *part = scratch.p;
  for (lm_dtype dtype = LM_F16; dtype <= LM_F64; dtype++) {
    for (int at = 0; next_table(&table, n, tensors, tensors, dtype, dtype, &at); part += table.first[table.n])
      NEED(LAUNCH("norms", lm_optim_norms(dtype, &table, p, part, stream)));
  }
  return LAUNCH("join", lm_optim_norms_join(scratch.p, chunks, p, (double *)out->data, stream));
}

lm_status lm_cuda_rescale(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found) {
  void *stream;
  lm_tensor_table table = {0};
  float *flag = found ? (float *)found->data : NULL;
  NEED(lm_cuda_enter(to[0]->device, &stream));
  for (lm_dtype x = LM_F16; x <= LM_F64; x++) {
    for (lm_dtype y = LM_F16; y <= LM_F64; y++) {
      for (int at = 0; next_table(&table, n, from, to, x, y, &at);)
        NEED(LAUNCH("rescale", lm_rescale_run(x, y, &table, factor, flag, stream)));
    }
  }
  return LM_OK;
}
