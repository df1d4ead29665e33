#include "optim/optim.h"

#include "base/message.h"
#include "device/graph.h"

#include <string.h>

#include "base/mem.h"
#include "op/check.h"
#include "op/stream_order.h"
#include "optim/optim_scope.h"

static _Thread_local double *graph_numbers, *graph_first;
static _Thread_local int graph_left;

void lm_optim_graph_numbers_set(double *numbers, double *first, int n) {
  graph_numbers = numbers;
  graph_first = first;
  graph_left = n;
}
bool lm_optim_in_graph(void) { return graph_numbers != NULL; }
int lm_optim_graph_numbers_at(void) { return graph_left; }

double *lm_optim_graph_numbers_take(const double *first, int n) {
  if (n > graph_left) return NULL;
  graph_left -= n;
  memcpy(graph_first + graph_left, first, (size_t)n * sizeof *first);
  return graph_numbers + graph_left;
}

const lm_optimizer *lm_optimizer_of(const char *name) {
  for (int i = 0; i < lm_optimizer_count; i++)
    if (strcmp(lm_optimizers[i].name, name) == 0) return &lm_optimizers[i];
  return NULL;
}

unsigned lm_optimizer_modes(const lm_optimizer *o, const double *option) {
  unsigned modes = 0;
  for (int i = 0; i < o->n_modes; i++)
    if (option[o->mode[i].option] != 0) modes |= 1u << i;
  for (int i = 0; i < o->n_modes; i++)
    if (o->mode[i].needs & ~modes) modes &= ~(1u << i);
  return modes;
}

bool lm_optimizer_has(const lm_optimizer *o, unsigned modes, int k) {
  return k < o->n_states && (o->state[k].when & ~modes) == 0;
}

enum { PARAM, GRAD, STATE, ROLES = STATE + LM_OPTIM_STATES };

/* The tensors of a step as the kernel gets them: sorted by device, all of a parameter in one layout. Tensors in another
 * layout or dtype are replaced by copies. */
typedef struct bench {
  int n;
  bool used[ROLES];
  lm_tensor **given[ROLES], **ready[ROLES]; /* ready: a reference to the given tensor or its copy */
  lm_tensor **memory;
} bench;

static lm_tensor *const *role_of(const lm_optim_step *s, int role) {
  if (role == PARAM) return s->param;
  if (role == GRAD) return s->grad;
  return lm_optimizer_has(s->optimizer, s->modes, role - STATE) ? s->state[role - STATE] : NULL;
}

static lm_status check_param(const char *name, int i, const lm_tensor *p) {
  if (!lm_dtype_is_float(p->dtype))
    return lm_fail_dtype(name, lm_text("parameter %d", i + 1), "floating point", lm_dtype_name(p->dtype));
  return lm_overlaps_itself(p) ? lm_fail_overlap(name, lm_text("parameter %d", i + 1), lm_shape_of(p)) : LM_OK;
}

/* Returns the dtype of the states of p, in which its step is computed: the squares of most gradients leave float16. */
static lm_dtype step_dtype(const lm_tensor *p) { return p->dtype == LM_F16 ? LM_F32 : (lm_dtype)p->dtype; }

/* Checks the gradient or a state of parameter i. */
static lm_status check_role(const lm_optim_step *s, int i, int role) {
  const lm_tensor *p = s->param[i], *t = role_of(s, role)[i];
  const char *name = s->optimizer->name, *what = role == GRAD ? "gradient" : s->optimizer->state[role - STATE].name;
  const lm_dtype dtype = role == GRAD ? (lm_dtype)p->dtype : step_dtype(p);
  if (!lm_same_shape(p, t))
    return lm_fail_shapes(name, lm_text("parameter %d", i + 1), lm_shape_of(p), lm_text("its %s", what),
                          lm_shape_of(t));
  if (t->dtype != dtype)
    return lm_fail_dtypes(name, lm_text(dtype == p->dtype ? "parameter %d" : "the step of parameter %d", i + 1),
                          lm_dtype_name(dtype), lm_text("its %s", what), lm_dtype_name(t->dtype));
  if (t->device == p->device) return LM_OK;
  return lm_fail_devices(name, lm_text("parameter %d", i + 1), lm_device_name(p->device), lm_text("its %s", what),
                         lm_device_name(t->device));
}

static lm_status check_optim_step(const lm_optim_step *s) {
  const char *name = s->optimizer->name;
  if (s->numbers.t < 1) return lm_fail_number(name, "step", "at least 1", s->numbers.t);
  if (s->numbers.first && lm_graph_capturing())
    return lm_fail(LM_E_STATE,
                   "%s: cannot capture the first step, which makes the states; step once before the capture", name);
  for (int i = 0; i < s->n; i++) {
    NEED(check_param(name, i, s->param[i]));
    for (int role = GRAD; role < ROLES; role++)
      if (role_of(s, role)) NEED(check_role(s, i, role));
  }
  return LM_OK;
}

lm_status lm_optim_layout(lm_tensor *t, const lm_tensor *like, lm_dtype dtype, lm_tensor **out) {
  if (t->dtype == dtype && (t->numel == 0 || (like ? lm_same_layout(t, like) : lm_is_dense(t)))) {
    *out = lm_retain(t);
    return LM_OK;
  }
  NEED(lm_tensor_empty_like(like ? like : t, dtype, t->device, out));
  return lm_copy(t, *out);
}

static void clear(bench *b) {
  for (int role = 0; b->memory && role < ROLES; role++)
    for (int i = 0; i < b->n; i++) lm_release(b->ready[role][i]);
  lm_free(b->memory);
}

static lm_status prepare_optim_step(const lm_optim_step *s, bench *b) {
  int n = s->n;
  *b = (bench){.n = n};
  b->memory = lm_calloc((size_t)n, 2 * ROLES * sizeof *b->memory);
  if (!b->memory) return LM_E_OOM;
  for (int role = 0; role < ROLES; role++) {
    lm_tensor *const *tensors = role_of(s, role);
    b->used[role] = tensors != NULL;
    b->given[role] = b->memory + 2 * role * n;
    b->ready[role] = b->given[role] + n;
    if (tensors) memcpy(b->given[role], tensors, (size_t)n * sizeof *tensors);
  }
  /* Sorts by device, in order of first appearance; nearly always there is one. */
  for (int begin = 0; begin < n;) {
    int end = begin + 1;
    for (int i = end; i < n; i++) {
      if (b->given[PARAM][i]->device != b->given[PARAM][begin]->device) continue;
      for (int role = 0; role < ROLES; role++) {
        lm_tensor *swapped = b->given[role][end];
        b->given[role][end] = b->given[role][i];
        b->given[role][i] = swapped;
      }
      end++;
    }
    begin = end;
  }
  for (int i = 0; i < n; i++) {
    const lm_dtype dtype = step_dtype(b->given[PARAM][i]);
    for (int role = PARAM; role < ROLES; role++) /* ready[PARAM][i] is NULL at first */
      if (b->used[role]) NEED(lm_optim_layout(b->given[role][i], b->ready[PARAM][i], dtype, &b->ready[role][i]));
  }
  return LM_OK;
}

/* Runs the step of parameters begin to end - 1, all on one device. */
static lm_status run_on_device(const lm_backend *backend, const lm_optim_step *s, const bench *b, int begin, int end) {
  lm_stream *stream;
  lm_optim_step part = *s;
  part.n = end - begin;
  part.param = b->ready[PARAM] + begin;
  part.grad = b->ready[GRAD] + begin;
  for (int k = 0; k < LM_OPTIM_STATES; k++) part.state[k] = b->used[STATE + k] ? b->ready[STATE + k] + begin : NULL;
  NEED(lm_stream_order_begin(part.param[0]->device, &stream));
  for (int role = 0; stream && role < ROLES; role++) {
    for (int i = begin; b->used[role] && i < end; i++)
      NEED(role == GRAD ? lm_stream_order_read(stream, b->ready[role][i])
                        : lm_stream_order_write(stream, b->ready[role][i]));
  }
  return lm_stream_order_end(stream, backend->optim(&part));
}

/* Returns the end of the run of tensors on one device that starts at begin. */
static int device_run(int n, lm_tensor *const *tensors, int begin) {
  int end = begin + 1;
  while (end < n && tensors[end]->device == tensors[begin]->device) end++;
  return end;
}

static lm_status backend_for(const char *name, const lm_tensor *t, const lm_backend **out) {
  *out = lm_backend_of(t->device);
  if (!*out) return lm_fail_in(LM_E_MISSING, name);
  if ((*out)->optim) return LM_OK;
  return lm_fail_missing(name, lm_device_name(t->device));
}

static lm_status write_back(const bench *b) {
  for (int role = 0; role < ROLES; role++) {
    for (int i = 0; b->used[role] && role != GRAD && i < b->n; i++)
      if (b->ready[role][i] != b->given[role][i]) NEED(lm_copy(b->ready[role][i], b->given[role][i]));
  }
  return LM_OK;
}

void lm_optim_scope_begin(lm_optim_scope *c, const char *name, lm_device device) {
  c->traced = lm_traces(LM_TRACE_CALLS);
  if (c->traced) lm_span_begin(&c->span, LM_SPAN_OPTIMIZER, name, device);
  c->before = lm_run_begin(name, -1);
}

void lm_optim_scope_end(lm_optim_scope *c) {
  lm_run_end(c->before);
  if (c->traced) lm_span_end(&c->span);
}

lm_status lm_optim_run(const lm_optim_step *given, double *next) {
  const lm_backend *backend;
  bench b __attribute__((cleanup(clear))) = {0};
  lm_optim_step s = *given;
  lm_optim_f64 coefficients;
  const char *name = s.optimizer->name;
  lm_optim_plan(s.optimizer->family, &s.numbers, &coefficients, next);
  s.modes = lm_optimizer_modes(s.optimizer, s.numbers.option);
  s.coefficients = &coefficients;
  if (s.n == 0) return LM_OK;
  LM_OPTIM_SCOPE(name, s.param[0]->device);
  NEED(check_optim_step(&s));
  NEED(prepare_optim_step(&s, &b));
  for (int i = 0; i < s.n; i = device_run(s.n, b.ready[PARAM], i)) NEED(backend_for(name, b.ready[PARAM][i], &backend));
  for (int begin = 0, end; begin < s.n; begin = end) {
    end = device_run(s.n, b.ready[PARAM], begin);
    NEED(backend_for(name, b.ready[PARAM][begin], &backend));
    NEED(run_on_device(backend, &s, &b, begin, end));
  }
  NEED(write_back(&b));
  for (int i = 0; i < s.n; i++) lm_bump(s.param[i], -1);
  return LM_OK;
}
