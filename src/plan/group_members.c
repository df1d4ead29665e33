/* Writes steps as members of groups (op/group.h). */
#include "base/message.h"
#include "op/pointwise.h"
#include "op/run.h"
#include "op_entries.h"
#include "plan/group.h"

/* ---- spaces */

static int64_t product(const lm_ints *sizes) {
  int64_t n = 1;
  for (int i = 0; i < sizes->n; i++) n *= sizes->v[i];
  return n;
}

static bool is_on_device(const lm_segment *g, int v) {
  return v >= 0 && (g->value[v].number || LM_DEVICE_KIND(g->value[v].place.device) != LM_CPU);
}

/* Returns the elements of a row of sums over `dim`: over the last dims, or over the first; 0 for others. */
static int64_t columns_of_sum(const lm_place *x, const lm_ints *dim, bool *of_rows) {
  bool taken[LM_MAX_DIMS] = {false};
  int n = 0;
  int64_t columns = 1;
  for (int i = 0; i < dim->n; i++) taken[dim->v[i] < 0 ? dim->v[i] + x->ndim : dim->v[i]] = true;
  for (int d = 0; d < x->ndim; d++) n += taken[d];
  if (n == 0 || n == x->ndim) return 0;
  *of_rows = taken[0];
  for (int d = 1; d < x->ndim; d++)
    if (taken[d] && !taken[d - 1] && taken[0]) return 0;
  for (int d = x->ndim - 1; d >= 0 && taken[d] == !*of_rows; d--) columns *= x->size[d], n -= taken[d];
  return *of_rows || n == 0 ? columns : 0;
}

/* Returns the elements of a row of a step that reduces; 0 if it has none that a group computes. */
static int64_t columns_of(const lm_segment *g, const lm_segment_step *s, bool *of_rows) {
  const lm_place *x = &g->value[s->in[0]].place;
  int64_t dim = -1;
  *of_rows = false;
  switch (s->op) {
    case LM_OP_sum: return columns_of_sum(x, &((lm_sum_args *)s->args)->dim, of_rows);
    case LM_OP_mean: return columns_of_sum(x, &((lm_mean_args *)s->args)->dim, of_rows);
    case LM_OP_layer_norm: return product(&((lm_layer_norm_args *)s->args)->normalized_shape);
    case LM_OP_layer_norm_backward: return product(&((lm_layer_norm_backward_args *)s->args)->normalized_shape);
    case LM_OP_softmax: dim = ((lm_softmax_args *)s->args)->dim; break;
    case LM_OP_log_softmax: dim = ((lm_log_softmax_args *)s->args)->dim; break;
    case LM_OP_softmax_backward: dim = ((lm_softmax_backward_args *)s->args)->dim; break;
    case LM_OP_log_softmax_backward: dim = ((lm_log_softmax_backward_args *)s->args)->dim; break;
    default: return 0;
  }
  return x->ndim > 0 && (dim == -1 || dim == x->ndim - 1) ? x->size[x->ndim - 1] : 0;
}

static bool is_each(const lm_segment_step *s) {
  if (s->op == LM_OP_dropout) return s->nout > 1 && s->out[1] >= 0;
  return s->op < 0 || s->op == LM_OP_to_copy || s->op == LM_OP_clone || lm_ops[s->op].kind == LM_POINTWISE;
}

bool lm_group_space_of(const lm_segment *g, const lm_segment_step *s, lm_group_space *out) {
  bool of_rows;
  *out = (lm_group_space){.numel = 1};
  if (s->nin == 0 || s->nout == 0 || s->chunks > 0) return false;
  for (int k = 0; k < s->nin; k++)
    if (s->in[k] >= 0 && !is_on_device(g, s->in[k])) return false;
  for (int k = 0; k < s->nout; k++)
    if (s->out[k] >= 0 && (!is_on_device(g, s->out[k]) || g->buffer[g->value[s->out[k]].buffer].origin != LM_FROM_STEP))
      return false;
  if (s->out[0] < 0 || s->in[0] < 0) return false;
  if (!is_each(s) && (g->value[s->in[0]].number || (out->columns = columns_of(g, s, &of_rows)) == 0)) return false;
  const lm_place *p = &g->value[is_each(s) ? s->out[0] : s->in[0]].place;
  out->ndim = p->ndim;
  for (int d = 0; d < p->ndim; d++) out->numel *= out->size[d] = p->size[d];
  return out->numel > 0;
}

/* Divides the dims of `space` where there are `count` elements after a place; false if they cannot be. */
static bool divide(lm_group_space *space, int64_t count) {
  int64_t after = 1;
  for (int d = space->ndim - 1; d >= 0 && after < count; after *= space->size[d--]) {
    if (count % after != 0) return false;
    const int64_t part = count / after, size = space->size[d];
    if (part >= size) continue;
    if (size % part != 0 || space->ndim == LM_MAX_DIMS) return false;
    for (int i = space->ndim++; i > d; i--) space->size[i] = space->size[i - 1];
    space->size[d] = size / part;
    space->size[d + 1] = part;
    return true;
  }
  return true;
}

bool lm_group_space_join(lm_group_space *space, const lm_group_space *with) {
  int64_t after = 1;
  if (with->columns > 0 && space->columns > 0 && with->columns != space->columns) return false;
  if (with->columns > 0) space->columns = with->columns;
  if (space->numel != with->numel && (space->columns == 0 || space->numel != with->numel * space->columns))
    return false;
  if (space->columns > 0 && !divide(space, space->columns)) return false;
  if (space->numel != with->numel) after = space->columns; /* one for each row */
  for (int d = with->ndim - 1; d >= 0; d--) {
    after *= with->size[d];
    if (with->size[d] > 1 && !divide(space, after)) return false;
  }
  return true;
}

/* ---- members */

typedef struct link { /* a value that a step of the group has made */
  int value, member;
  int64_t stride[LM_MAX_DIMS];
} link;

typedef struct writer {
  const lm_segment *g;
  const lm_group_space *space, *of; /* the group's, and the step's */
  lm_group *out;
  int *value;
  int nlinks;
  link link[LM_GROUP_MEMBERS];
  bool failed;
} writer;

/* Returns the number of dims that number rows. */
static int row_dims(const lm_group_space *s) {
  int64_t after = 1;
  int d = s->ndim;
  while (s->columns > 0 && d > 0 && after < s->columns) after *= s->size[--d];
  return s->columns > 0 ? d : 0;
}

/* Sets the strides along the space's dims from `first` to `end` of a tensor of sizes `of`, at a place that may be
 * broadcast to them. */
static bool set_strides(const writer *w, const lm_place *p, const lm_group_space *of, int first, int end,
                        int64_t *stride) {
  int d = of->ndim - 1;
  int64_t left = 1, step = 0;
  memset(stride, 0, LM_MAX_DIMS * sizeof *stride);
  for (int k = end - 1; k >= first; k--) {
    const int64_t size = w->space->size[k];
    while (left == 1 && d >= 0) {
      const int from = d - (of->ndim - p->ndim);
      left = of->size[d--];
      step = from < 0 || (p->size[from] == 1 && left != 1) ? 0 : p->stride[from];
    }
    if (size == 1) continue;
    if (left % size != 0) return false;
    stride[k] = step;
    step *= size;
    left /= size;
  }
  return true;
}

static bool place_strides(const writer *w, const lm_place *p, int64_t *stride) {
  const bool is_row = w->of->numel != w->space->numel;
  return set_strides(w, p, w->of, 0, is_row ? row_dims(w->space) : w->space->ndim, stride);
}

static int add_operand(writer *w, int v, int member, const int64_t *stride) {
  lm_group *g = w->out;
  const lm_segment_value *value = &w->g->value[v];
  const bool is_partial = member >= 0 && g->member[member].kind == LM_GROUP_SUM_OF_ROWS;
  lm_group_operand o = {.dtype = is_partial      ? g->member[member].compute
                                 : value->number ? value->number->dtype
                                                 : value->place.dtype,
                        .is_number = value->number != NULL,
                        .member = member};
  if (stride) memcpy(o.stride, stride, sizeof o.stride);
  for (int k = 0; k < g->noperands; k++)
    if (w->value[k] == v && member < 0 && memcmp(g->operand[k].stride, o.stride, sizeof o.stride) == 0) return ~k;
  if (g->noperands == LM_GROUP_OPERANDS) {
    w->failed = true;
    return ~0;
  }
  w->value[g->noperands] = v;
  g->operand[g->noperands] = o;
  return ~g->noperands++;
}

/* Returns a value that a step reads as an input of members. */
static int read_value(writer *w, int v) {
  const lm_segment_value *value = &w->g->value[v];
  int64_t stride[LM_MAX_DIMS];
  if (value->number) return add_operand(w, v, -1, NULL);
  if (!place_strides(w, &value->place, stride)) w->failed = true;
  for (int i = w->nlinks - 1; i >= 0; i--) {
    const lm_segment_value *made = &w->g->value[w->link[i].value];
    if (made->buffer != value->buffer) continue;
    if (made->place.at != value->place.at || made->place.dtype != value->place.dtype ||
        memcmp(stride, w->link[i].stride, sizeof stride) != 0 ||
        w->out->member[w->link[i].member].kind == LM_GROUP_SUM_OF_ROWS)
      w->failed = true;
    return w->link[i].member;
  }
  return add_operand(w, v, -1, stride);
}

static lm_dtype dtype_of(const writer *w, int v) {
  return w->g->value[v].number ? w->g->value[v].number->dtype : w->g->value[v].place.dtype;
}

static int add_member(writer *w, lm_group_member m) {
  if (w->out->nmembers == LM_GROUP_MEMBERS) w->failed = true;
  if (w->failed) return 0;
  w->out->member[w->out->nmembers] = m;
  return w->out->nmembers++;
}

/* Return members that compute in `num`, whose values are not rounded. */
static int each2(writer *w, lm_op_id op, lm_dtype num, int a, int b) {
  return add_member(w, (lm_group_member){LM_GROUP_EACH, (int)op, num, num, 2, {a, b}, {1}});
}
static int each1(writer *w, lm_op_id op, lm_dtype num, int a) {
  return add_member(w, (lm_group_member){LM_GROUP_EACH, (int)op, num, num, 1, {a}, {0}});
}
static int number(writer *w, lm_dtype num, double v) {
  return add_member(w, (lm_group_member){.kind = LM_GROUP_NUMBER, .compute = num, .dtype = num, .number = {v}});
}
static int reduction(writer *w, lm_group_kind kind, lm_dtype num, lm_dtype dtype, int a) {
  return add_member(w, (lm_group_member){.kind = kind, .compute = num, .dtype = dtype, .nin = 1, .in = {a}});
}
static int converted(writer *w, lm_dtype num, lm_dtype dtype, int a) {
  return reduction(w, LM_GROUP_CONVERTED, num, dtype, a);
}
/* Returns a row's mean of a. */
static int mean_of(writer *w, lm_dtype num, int a) {
  const int sum = reduction(w, LM_GROUP_SUM, num, num, a);
  return each2(w, LM_OP_mul, num, sum, number(w, num, 1.0 / (double)w->space->columns));
}

/* Notes that a member is the step's k-th result: of each element, of each row, or of each column. */
static void result(writer *w, const lm_segment_step *s, int k, lm_dtype num, int member) {
  if (k >= s->nout || s->out[k] < 0 || w->failed) return;
  const lm_place *p = &w->g->value[s->out[k]].place;
  const lm_group_kind kind = w->out->member[member].kind;
  const int nrow = row_dims(w->space);
  const int64_t numel = lm_place_numel(p);
  lm_group_space of = {.ndim = p->ndim};
  link made = {s->out[k], member, {0}};
  memcpy(of.size, p->size, sizeof of.size);
  if (kind == LM_GROUP_SUM_OF_ROWS) {
    w->failed = w->failed || numel != w->space->columns || !lm_place_is_contiguous(p) ||
                (p->dtype != num && (num == LM_I64 || !lm_dtype_is_float(p->dtype))) ||
                !set_strides(w, p, &of, nrow, w->space->ndim, made.stride);
  } else {
    if (w->out->member[member].dtype != p->dtype) made.member = converted(w, num, p->dtype, member);
    w->failed = w->failed || !set_strides(w, p, &of, 0, numel == w->space->numel ? w->space->ndim : nrow, made.stride);
  }
  for (int o = 0; o < w->out->noperands && s->form == LM_RUN_IN_PLACE; o++) /* an element is read where it is written */
    if (w->g->value[w->value[o]].buffer == w->g->value[s->out[k]].buffer)
      w->failed = w->failed || numel != w->space->numel || w->g->value[w->value[o]].place.at != p->at ||
                  memcmp(w->out->operand[o].stride, made.stride, sizeof made.stride) != 0;
  w->link[w->nlinks++] = made;
}

/* Returns true if a later step of the group writes over the values of a link. */
static bool is_overwritten(const writer *w, int i) {
  for (int k = i + 1; k < w->nlinks; k++)
    if (w->g->value[w->link[k].value].buffer == w->g->value[w->link[i].value].buffer) return true;
  return false;
}

static lm_dtype compute_of(lm_dtype a, lm_dtype b) {
  return a == LM_F64 || b == LM_F64 ? LM_F64 : lm_dtype_is_float(a) || lm_dtype_is_float(b) ? LM_F32 : LM_I64;
}

/* Writes an elementwise kernel of an op or a gradient. */
static void write_kernel(writer *w, const lm_segment_step *s) {
  const lm_op *op = s->op < 0 ? NULL : &lm_ops[s->op];
  const bool widened = lm_halves_widen;
  lm_group_member m = {.kind = LM_GROUP_EACH, .kernel = s->op < 0 ? s->kernel : (int)s->op, .nin = s->nin};
  lm_tensor header[LM_POINTWISE_MAX_IN] = {0}, *in[LM_POINTWISE_MAX_IN];
  for (int k = 0; k < s->nin; k++) {
    const lm_segment_value *v = s->in[k] < 0 ? NULL : &w->g->value[s->in[k]];
    if (!v) w->failed = true;
    if (!v) return;
    in[k] = v->number ? v->number : &header[k];
    header[k].dtype = v->place.dtype;
    header[k].ndim = v->place.ndim;
    m.in[k] = read_value(w, s->in[k]);
  }
  for (int i = 0; i < lm_ops[lm_pointwise_op(m.kernel)].nnumber; i++)
    m.number[i] =
        op ? *(const double *)((const char *)s->args + op->arg[op->ntensor + i].offset) : ((const double *)s->args)[i];
  lm_halves_widen = s->widens;
  if (lm_pointwise_dtypes(m.kernel, s->nin, in, m.number, &m.compute, &m.dtype) != LM_OK) w->failed = true;
  lm_halves_widen = widened;
  if (m.compute == LM_I64 && lm_pointwise_divisor(m.kernel) > 0) w->failed = true; /* it reports divisors of 0 */
  result(w, s, 0, m.compute, add_member(w, m));
}

static void write_dropout(writer *w, const lm_segment_step *s, lm_dtype num) {
  w->failed = w->failed || w->of->numel != w->space->numel; /* a number for each row is not drawn */
  const double p = ((lm_dropout_args *)s->args)->p;
  const int kept =
      add_member(w, (lm_group_member){.kind = LM_GROUP_KEPT, .compute = num, .dtype = LM_BOOL, .number = {p}});
  const int scaled = each2(w, LM_OP_mul, num, read_value(w, s->in[0]), number(w, num, p < 1 ? 1 / (1 - p) : 0));
  const lm_group_member y = {LM_GROUP_EACH, LM_OP_where, num, num, 3, {kept, scaled, number(w, num, 0)}, {0}};
  result(w, s, 1, num, kept);
  result(w, s, 0, num, add_member(w, y));
}

static void write_softmax(writer *w, const lm_segment_step *s, lm_dtype num) {
  const int x = read_value(w, s->in[0]);
  const int above = each2(w, LM_OP_sub, num, x, reduction(w, LM_GROUP_MAX, num, num, x));
  const int e = each1(w, LM_OP_exp, num, above), sum = reduction(w, LM_GROUP_SUM, num, num, e);
  result(w, s, 0, num,
         s->op == LM_OP_softmax ? each2(w, LM_OP_div, num, e, sum)
                                : each2(w, LM_OP_sub, num, above, each1(w, LM_OP_log, num, sum)));
}

static void write_softmax_backward(writer *w, const lm_segment_step *s, lm_dtype num) {
  const int g = read_value(w, s->in[0]), y = read_value(w, s->in[1]);
  if (s->op == LM_OP_softmax_backward) {
    const int sum = reduction(w, LM_GROUP_SUM, num, num, each2(w, LM_OP_mul, num, g, y));
    result(w, s, 0, num, each2(w, LM_OP_mul, num, y, each2(w, LM_OP_sub, num, g, sum)));
  } else {
    const int share = each2(w, LM_OP_mul, num, each1(w, LM_OP_exp, num, y), reduction(w, LM_GROUP_SUM, num, num, g));
    result(w, s, 0, num, each2(w, LM_OP_sub, num, g, share));
  }
}

static void write_layer_norm(writer *w, const lm_segment_step *s, lm_dtype num) {
  const lm_layer_norm_args *a = s->args;
  const int x = read_value(w, s->in[0]), m = mean_of(w, num, x), centered = each2(w, LM_OP_sub, num, x, m);
  const int var = mean_of(w, num, each2(w, LM_OP_mul, num, centered, centered));
  const int rstd = each1(w, LM_OP_rsqrt, num, each2(w, LM_OP_add, num, var, number(w, num, a->eps)));
  int y = each2(w, LM_OP_mul, num, centered, rstd);
  if (s->in[1] >= 0) y = each2(w, LM_OP_mul, num, y, read_value(w, s->in[1]));
  if (s->in[2] >= 0) y = each2(w, LM_OP_add, num, y, read_value(w, s->in[2]));
  result(w, s, 0, num, y);
  result(w, s, 1, num, m);
  result(w, s, 2, num, rstd);
}

/* Reads one number for each row. */
static int read_rows(writer *w, int v) {
  const lm_group_space *of = w->of;
  lm_group_space rows = {.numel = w->space->numel / w->space->columns};
  const lm_place *p = &w->g->value[v].place;
  rows.ndim = p->ndim;
  memcpy(rows.size, p->size, sizeof rows.size);
  w->of = &rows;
  const int ref = read_value(w, v);
  w->of = of;
  return ref;
}

static void write_layer_norm_backward(writer *w, const lm_segment_step *s, lm_dtype num) {
  const int g = read_value(w, s->in[0]), x = read_value(w, s->in[1]);
  const int m = read_rows(w, s->in[2]), rstd = read_rows(w, s->in[3]);
  const int normal = each2(w, LM_OP_mul, num, each2(w, LM_OP_sub, num, x, m), rstd);
  const int wg = s->in[4] >= 0 ? each2(w, LM_OP_mul, num, g, read_value(w, s->in[4])) : g;
  const int mean_wg = mean_of(w, num, wg), mean_wgn = mean_of(w, num, each2(w, LM_OP_mul, num, wg, normal));
  const int rest =
      each2(w, LM_OP_sub, num, each2(w, LM_OP_sub, num, wg, mean_wg), each2(w, LM_OP_mul, num, normal, mean_wgn));
  result(w, s, 0, num, each2(w, LM_OP_mul, num, rest, rstd));
  if (s->nout > 1 && s->out[1] >= 0)
    result(w, s, 1, num, reduction(w, LM_GROUP_SUM_OF_ROWS, num, num, each2(w, LM_OP_mul, num, g, normal)));
  if (s->nout > 2 && s->out[2] >= 0) result(w, s, 2, num, reduction(w, LM_GROUP_SUM_OF_ROWS, num, num, g));
}

static void write_sum(writer *w, const lm_segment_step *s, lm_dtype num) {
  bool of_rows;
  const int64_t columns = columns_of(w->g, s, &of_rows);
  const lm_dtype to = s->op == LM_OP_sum ? ((lm_sum_args *)s->args)->dtype : ((lm_mean_args *)s->args)->dtype;
  int x = read_value(w, s->in[0]);
  if (to != LM_NO_DTYPE && to != dtype_of(w, s->in[0])) x = converted(w, num, to, x);
  int sum = reduction(w, of_rows ? LM_GROUP_SUM_OF_ROWS : LM_GROUP_SUM, num, num, x);
  if (s->op == LM_OP_mean && of_rows) w->failed = true;
  if (s->op == LM_OP_mean) sum = each2(w, LM_OP_mul, num, sum, number(w, num, 1.0 / (double)columns));
  result(w, s, 0, num, sum);
}

static void write_step(writer *w, const lm_segment_step *s) {
  const lm_dtype from = dtype_of(w, s->in[0]), to = dtype_of(w, s->out[0]), num = compute_of(from, to);
  if (s->op < 0 || lm_ops[s->op].kind == LM_POINTWISE) {
    write_kernel(w, s);
    return;
  }
  switch (s->op) {
    case LM_OP_to_copy:
    case LM_OP_clone: result(w, s, 0, num, converted(w, num, to, read_value(w, s->in[0]))); break;
    case LM_OP_dropout: write_dropout(w, s, num); break;
    case LM_OP_sum:
    case LM_OP_mean: write_sum(w, s, num); break;
    case LM_OP_softmax:
    case LM_OP_log_softmax: write_softmax(w, s, num); break;
    case LM_OP_layer_norm: write_layer_norm(w, s, num); break;
    case LM_OP_layer_norm_backward: write_layer_norm_backward(w, s, num); break;
    default: write_softmax_backward(w, s, num); break;
  }
}

lm_status lm_group_write(const lm_segment *g, int n, const int *step, const lm_group_space *space, const bool *stores,
                         lm_group_form *out) {
  writer w = {.g = g, .space = space, .out = &out->group, .value = out->value};
  int nresults = 0;
  memset(out, 0, sizeof *out);
  out->group.ndim = space->ndim;
  out->group.nrow = row_dims(space);
  memcpy(out->group.size, space->size, sizeof space->size);
  for (int i = 0; i < n && !w.failed; i++) {
    lm_group_space of;
    lm_group_space_of(g, &g->step[step[i]], &of);
    w.of = &of;
    if (w.nlinks + LM_MAX_OUTS > LM_GROUP_MEMBERS) w.failed = true;
    if (!w.failed) write_step(&w, &g->step[step[i]]);
  }
  for (int i = 0; i < w.nlinks && !w.failed; i++) {
    const bool is_stored =
        stores[g->value[w.link[i].value].buffer] || out->group.member[w.link[i].member].kind == LM_GROUP_KEPT;
    if (!is_stored || is_overwritten(&w, i)) continue;
    add_operand(&w, w.link[i].value, w.link[i].member, w.link[i].stride);
    nresults++;
  }
  return w.failed || nresults == 0 ? LM_E_MISSING : LM_OK;
}
