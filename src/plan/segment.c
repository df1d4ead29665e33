/* Adds to segments and frees them; compares positions and arguments. */
#include <stdarg.h>
#include <stdio.h>

#include "autograd/tape.h"
#include "base/mem.h"
#include "plan/follow.h"
#include "plan/group.h"
#include "tensor/prepack.h"

void lm_segment_refuse(lm_segment *g, const char *format, ...) {
  g->runs_as_is = true;
  if (g->reason[0]) return;
  va_list list;
  va_start(list, format);
  vsnprintf(g->reason, sizeof g->reason, format, list);
  va_end(list);
}

void lm_segment_drop_buffer(lm_segment *g, lm_segment_buffer *b) {
  for (int v = b->first; v >= 0; v = g->value[v].next) lm_release(lm_tensor_take(&g->value[v].t));
  lm_storage_release(b->storage);
  b->storage = NULL;
  b->has_parts = false;
}

void lm_segment_reset(lm_segment *g) {
  for (int b = 0; b < g->nbuffers; b++) {
    if (g->buffer[b].origin == LM_CONSTANT) continue;
    if (g->buffer[b].storage) lm_segment_drop_buffer(g, &g->buffer[b]);
    g->buffer[b].was_made = false;
    g->buffer[b].shift = 0;
    lm_storage *pending = g->buffer[b].pending;
    if (!pending) continue;
    atomic_store_explicit(&pending->writer, LM_BY_COMPILED, memory_order_relaxed); /* it will get no values */
    lm_storage_release(pending);
    g->buffer[b].pending = NULL;
  }
  while (g->nundo > 0) lm_release(g->undo[--g->nundo].before);
  while (g->nsums > 0) lm_release(g->sum[--g->nsums].parts);
  g->done = g->nparts = 0;
  for (int i = 0; i < g->ninstances; i++) {
    lm_release(lm_tensor_take(&g->instance[i].t));
    g->instance[i].is_kept = false;
  }
}

static void free_step(lm_segment_step *s) {
  if (s->op >= 0)
    lm_args_free(s->op, s->args);
  else
    lm_free(s->args);
  lm_free(s->in);
}

void lm_group_form_free(lm_group_form *form) {
  if (form) lm_free(form->group.prepared);
  lm_free(form);
}

void lm_segment_free(lm_segment *g) {
  if (!g) return;
  lm_segment_reset(g);
  for (int b = 0; b < g->nbuffers; b++) { /* constants are left */
    if (g->buffer[b].is_packed) lm_prepack_drop(g->buffer[b].storage);
    lm_segment_drop_buffer(g, &g->buffer[b]);
  }
  for (int i = 0; i < g->nvalues; i++) lm_release(g->value[i].number);
  for (int i = 0; i < g->nsteps; i++) free_step(&g->step[i]);
  for (int i = 0; i < g->nevents; i++) {
    if (!g->event[i].is_backward) lm_args_free(g->event[i].op, g->event[i].args);
    lm_free(g->event[i].in);
  }
  for (int i = 0; i < 2 * g->ngroups; i++) lm_group_form_free(g->group[i / 2].form[i % 2]);
  lm_free(g->group);
  lm_free(g->value);
  lm_free(g->buffer);
  lm_free(g->instance);
  lm_free(g->step);
  lm_free(g->event);
  lm_free(g->leaf);
  lm_free(g->undo);
  lm_free(g->sum);
  lm_free(g->part);
  lm_free(g->fold);
  lm_free(g->chunks);
  lm_free(g->reached);
  lm_bytes_free(&g->recorded);
  lm_free(g->chain);
  lm_free(g);
}

/* ---- memory */

lm_status lm_segment_need_storage(lm_segment_buffer *b, bool is_result) {
  LM_OWNED *t = NULL;
  if (b->storage) return LM_OK;
  if (b->origin != LM_UNWRITTEN && !is_result)
    return lm_fail(LM_E_STATE, "compile: a step reads memory that no step made");
  NEED(lm_tensor_empty(LM_U8, b->device, 1, (int64_t[]){(int64_t)b->bytes}, LM_CONTIGUOUS, &t));
  lm_storage_retain(b->storage = t->storage);
  return LM_OK;
}

lm_status lm_segment_header(lm_segment *g, int v, bool is_result, lm_tensor **out) {
  *out = NULL;
  if (v < 0) return LM_OK;
  lm_segment_value *value = &g->value[v];
  *out = value->number ? value->number : value->t;
  if (*out) return LM_OK;
  lm_segment_buffer *b = &g->buffer[value->buffer];
  const lm_place *p = &value->place;
  NEED(lm_segment_need_storage(b, is_result));
  NEED(lm_tensor_at(b->storage, p->dtype, p->device, p->ndim, p->size, p->stride, p->at + b->shift, &value->t));
  *out = value->t;
  return LM_OK;
}

/* ---- positions */

static void describe_place(const lm_tensor *t, lm_place *out) {
  memset(out, 0, sizeof *out);
  out->dtype = t->dtype;
  out->device = t->device;
  out->ndim = t->ndim;
  out->at = t->numel == 0 ? 0 : t->data - (char *)t->storage->data;
  memcpy(out->size, t->size, t->ndim * sizeof *t->size);
  memcpy(out->stride, t->stride, t->ndim * sizeof *t->stride);
}

bool lm_place_equals(const lm_place *a, const lm_place *b) {
  return a->dtype == b->dtype && a->device == b->device && a->ndim == b->ndim && a->at == b->at &&
         memcmp(a->size, b->size, a->ndim * sizeof *a->size) == 0 &&
         memcmp(a->stride, b->stride, a->ndim * sizeof *a->stride) == 0;
}

bool lm_place_is_contiguous(const lm_place *p) {
  int64_t step = 1;
  for (int d = p->ndim - 1; d >= 0; step *= p->size[d--])
    if (p->size[d] != 1 && p->stride[d] != step) return false;
  return true;
}

int64_t lm_place_numel(const lm_place *p) {
  int64_t n = 1;
  for (int d = 0; d < p->ndim; d++) n *= p->size[d];
  return n;
}

bool lm_place_fits(const lm_place *p, int64_t shift, const lm_tensor *t) {
  return p->dtype == t->dtype && p->device == t->device && p->ndim == t->ndim &&
         (t->numel == 0 || p->at + shift == t->data - (char *)t->storage->data) &&
         memcmp(p->size, t->size, p->ndim * sizeof *p->size) == 0 && lm_has_strides(t, p->stride);
}

bool lm_place_is(const lm_place *p, int64_t shift, const lm_tensor *t) {
  return lm_place_fits(p, shift, t) && memcmp(p->stride, t->stride, p->ndim * sizeof *p->stride) == 0;
}

lm_status lm_segment_place(lm_segment *g, int buffer, const lm_place *place, int *out) {
  for (int v = g->buffer[buffer].first; v >= 0; v = g->value[v].next) {
    *out = v;
    if (lm_place_equals(&g->value[v].place, place)) return LM_OK;
  }
  const lm_segment_value value = {.buffer = buffer, .next = g->buffer[buffer].first, .place = *place};
  if (!LM_APPEND(g->value, g->nvalues, g->value_capacity, value)) return LM_E_OOM;
  *out = g->buffer[buffer].first = g->nvalues - 1;
  return LM_OK;
}

lm_status lm_segment_reshape(lm_segment *g, int v, int ndim, const int64_t *size, int *out) {
  lm_place p = g->value[v].place;
  p.ndim = (uint8_t)ndim;
  memcpy(p.size, size, (size_t)ndim * sizeof *size);
  lm_dense_strides(ndim, size, p.stride);
  return lm_segment_place(g, g->value[v].buffer, &p, out);
}

lm_status lm_segment_value_at(lm_segment *g, int buffer, const lm_tensor *t, int *out) {
  lm_place place;
  describe_place(t, &place);
  return lm_segment_place(g, buffer, &place, out);
}

void lm_segment_set_constant(lm_segment *g, int v, lm_tensor *t) {
  lm_segment_buffer *b = &g->buffer[g->value[v].buffer];
  if (!g->value[v].t) g->value[v].t = lm_retain(t);
  if (b->storage) return;
  lm_storage_retain(b->storage = t->storage);
  b->version = lm_version(t);
}

lm_status lm_segment_add_number(lm_segment *g, lm_tensor *number, int *out) {
  const lm_segment_value value = {.number = number, .buffer = -1, .next = -1};
  if (!LM_APPEND(g->value, g->nvalues, g->value_capacity, value)) return LM_E_OOM;
  lm_retain(number);
  *out = g->nvalues - 1;
  return LM_OK;
}

lm_status lm_segment_new_buffer(lm_segment *g, lm_buffer_origin origin, const lm_storage *s, int *out) {
  const lm_segment_buffer buffer = {
      .origin = origin, .first = -1, .last_use = -1, .bytes = s->bytes, .device = s->device};
  if (!LM_APPEND(g->buffer, g->nbuffers, g->buffer_capacity, buffer)) return LM_E_OOM;
  *out = g->nbuffers - 1;
  return LM_OK;
}

/* ---- arguments */

static bool ints_equal(const lm_ints *a, const lm_ints *b) {
  return a->n == b->n && (a->n <= 0 || memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v) == 0);
}

static bool arg_is_equal(const lm_arg *a, const void *p, const void *q) {
  switch (a->kind) {
    case LM_ARG_F:
    case LM_ARG_F_REQ:
    case LM_ARG_F_OPT: return memcmp(p, q, sizeof(double)) == 0;
    case LM_ARG_I:
    case LM_ARG_I_REQ:
    case LM_ARG_I_OPT:
    case LM_ARG_DIM:
    case LM_ARG_DIM_OPT: return *(const int64_t *)p == *(const int64_t *)q;
    case LM_ARG_B: return *(const bool *)p == *(const bool *)q;
    case LM_ARG_I2:
    case LM_ARG_PAD2: return memcmp(p, q, 2 * sizeof(int64_t)) == 0;
    case LM_ARG_DIMS_OPT:
    case LM_ARG_SIZE:
    case LM_ARG_SIZE_OPT: return ints_equal(p, q);
    case LM_ARG_PADS: {
      const lm_pads *x = p, *y = q;
      return x->n == y->n && (x->n <= 0 || memcmp(x->v, y->v, (size_t)x->n * sizeof *x->v) == 0);
    }
    case LM_ARG_DTYPE: return *(const lm_dtype *)p == *(const lm_dtype *)q;
    case LM_ARG_DEVICE: return *(const lm_device *)p == *(const lm_device *)q;
    case LM_ARG_GENERATOR: return *(void *const *)p == *(void *const *)q;
    case LM_ARG_E: return *(const int *)p == *(const int *)q;
    case LM_ARG_TL:
    case LM_ARG_TL_HOLES: return ((const lm_list *)p)->n == ((const lm_list *)q)->n;
    default: return true; /* tensors */
  }
}

int lm_args_difference(lm_op_id id, const void *a, const void *b, int from) {
  const lm_op *op = &lm_ops[id];
  for (int i = from; i < op->nargs; i++) {
    const size_t offset = op->arg[i].offset;
    if (!arg_is_equal(&op->arg[i], (const char *)a + offset, (const char *)b + offset)) return i;
  }
  return -1;
}

bool lm_numbers_equal(const lm_tensor *a, const lm_tensor *b) {
  return a->number && b->number && a->dtype == b->dtype && memcmp(a->data, b->data, lm_dtype_size(a->dtype)) == 0;
}

/* ---- steps and events */

lm_status lm_segment_replace_step(lm_segment *g, int i, lm_op_id op, const void *args, int nin, const int *in, int nout,
                                  const int *out) {
  lm_segment_step made = {.op = op, .form = LM_RUN_ALL, .overwrites = -1, .nin = nin, .nout = nout};
  made.args = lm_args_copy(op, args);
  made.in = made.args ? lm_malloc((size_t)nin * sizeof *in) : NULL;
  if (!made.in) {
    lm_args_free(op, made.args);
    return LM_E_OOM;
  }
  memcpy(made.in, in, (size_t)nin * sizeof *in);
  memcpy(made.out, out, (size_t)nout * sizeof *out);
  free_step(&g->step[i]);
  g->step[i] = made;
  return LM_OK;
}

void lm_segment_drop_removed(lm_segment *g) {
  int n = 0, e = 0;
  for (int i = 0; i < g->nsteps; i++) {
    for (; e < g->nevents && g->event[e].nsteps == i; e++) g->event[e].nsteps = n;
    for (int k = 0; k < g->nevents && g->step[i].is_removed; k++)
      if (g->event[k].step_args == g->step[i].args) g->event[k].step_args = NULL;
    if (g->step[i].is_removed)
      free_step(&g->step[i]);
    else
      g->step[n++] = g->step[i];
  }
  for (; e < g->nevents; e++) g->event[e].nsteps = n;
  g->nsteps = n;
}

void lm_segment_remove_step(lm_segment *g, int step) {
  g->step[step].is_removed = true;
  lm_segment_drop_removed(g);
}

lm_segment_value *lm_segment_number(const lm_segment *g, int in) { return &g->value[~(in + 1)]; }

bool lm_segment_has_backward(const lm_segment *g, int n) {
  for (int i = 0; i < n; i++)
    if (g->event[i].is_backward) return true;
  return false;
}

int lm_segment_count_instances(const lm_segment *g, int n) {
  int most = 0;
  for (int i = 0; i < n; i++) {
    const lm_segment_event *e = &g->event[i];
    for (int k = 0; k < e->nin; k++) most = e->in[k] >= most ? e->in[k] + 1 : most;
    for (int k = 0; k < e->nout && !e->is_backward; k++) most = e->out[k] >= most ? e->out[k] + 1 : most;
  }
  return most;
}

int lm_segment_steps_after(const lm_segment *g, int event) {
  return event + 1 < g->nevents ? g->event[event + 1].nsteps : g->nsteps;
}

int lm_segment_part_end(const lm_segment *g, int begin) {
  int end = g->nsteps;
  for (int i = 0; i < g->nevents; i++) {
    const lm_segment_event *e = &g->event[i];
    const int at = e->is_pause || e->delivers ? e->nsteps : lm_segment_steps_after(g, i);
    if ((e->is_pause || e->delivers || e->may_fail) && at > begin && at < end) end = at;
  }
  return end;
}

/* ---- headers */

bool lm_is_without_values(const lm_tensor *t) {
  return t->numel > 0 && !t->storage->data && !t->storage->source && !t->number;
}

bool lm_is_lost(const lm_tensor *t) {
  return lm_is_without_values(t) && atomic_load_explicit(&t->storage->writer, memory_order_relaxed) == LM_BY_COMPILED;
}
