/* lm_ops[]: every row of op.def as a descriptor, its defaults and a typed trampoline to its function.
 *
 * T(x), F(alpha, 1), … here become comma-led tuples (class, kind, field, number, names, initializer);
 * EACH applies a macro to every tuple of a row together with the op's name, which offsetof needs. */
#include "op/op.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "op/check.h"
#include "op/order.h"

const char *const lm_names_reduction[] = {"none", "mean", "sum", NULL};
const char *const lm_names_memory_format[] = {"preserve", "contiguous", "channels_last", NULL};
const char *const lm_names_rounding_mode[] = {"none", "floor", "trunc", NULL};
const char *const lm_names_pad_mode[] = {"constant", "reflect", "replicate", "circular", NULL};
const char *const lm_names_padding[] = {"valid", "same", NULL};

#define PICK(op, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, name, ...) name
#define EACH(M, ...)                                                                                                  \
  PICK(__VA_ARGS__, EACH16, EACH15, EACH14, EACH13, EACH12, EACH11, EACH10, EACH9, EACH8, EACH7, EACH6, EACH5, EACH4, \
       EACH3, EACH2, EACH1, EACH0, )                                                                                  \
  (M, __VA_ARGS__)
#define EACH0(M, op)
#define EACH1(M, op, t) APPLY(M, op, UNPACK t)
#define EACH2(M, op, t, ...) APPLY(M, op, UNPACK t) EACH1(M, op, __VA_ARGS__)
#define EACH3(M, op, t, ...) APPLY(M, op, UNPACK t) EACH2(M, op, __VA_ARGS__)
#define EACH4(M, op, t, ...) APPLY(M, op, UNPACK t) EACH3(M, op, __VA_ARGS__)
#define EACH5(M, op, t, ...) APPLY(M, op, UNPACK t) EACH4(M, op, __VA_ARGS__)
#define EACH6(M, op, t, ...) APPLY(M, op, UNPACK t) EACH5(M, op, __VA_ARGS__)
#define EACH7(M, op, t, ...) APPLY(M, op, UNPACK t) EACH6(M, op, __VA_ARGS__)
#define EACH8(M, op, t, ...) APPLY(M, op, UNPACK t) EACH7(M, op, __VA_ARGS__)
#define EACH9(M, op, t, ...) APPLY(M, op, UNPACK t) EACH8(M, op, __VA_ARGS__)
#define EACH10(M, op, t, ...) APPLY(M, op, UNPACK t) EACH9(M, op, __VA_ARGS__)
#define EACH11(M, op, t, ...) APPLY(M, op, UNPACK t) EACH10(M, op, __VA_ARGS__)
#define EACH12(M, op, t, ...) APPLY(M, op, UNPACK t) EACH11(M, op, __VA_ARGS__)
#define EACH13(M, op, t, ...) APPLY(M, op, UNPACK t) EACH12(M, op, __VA_ARGS__)
#define EACH14(M, op, t, ...) APPLY(M, op, UNPACK t) EACH13(M, op, __VA_ARGS__)
#define EACH15(M, op, t, ...) APPLY(M, op, UNPACK t) EACH14(M, op, __VA_ARGS__)
#define EACH16(M, op, t, ...) APPLY(M, op, UNPACK t) EACH15(M, op, __VA_ARGS__)
#define UNPACK(...) __VA_ARGS__
#define APPLY(M, ...) M(__VA_ARGS__)

#define T(f) , (TENSOR, LM_ARG_T, f, 0, NULL, NULL)
#define T_OPT(f) , (TENSOR, LM_ARG_T_OPT, f, 0, NULL, NULL)
#define S(f) , (TENSOR, LM_ARG_S, f, 0, NULL, NULL)
#define S_OPT(f) , (TENSOR, LM_ARG_S_OPT, f, 0, NULL, NULL)
#define TL(f) , (LIST, LM_ARG_TL, f, 0, NULL, {0, NULL})
#define F(f, d) , (NUMBER, LM_ARG_F, f, d, NULL, d)
#define F_REQ(f) , (NUMBER, LM_ARG_F_REQ, f, 0, NULL, 0)
#define I(f, d) , (OTHER, LM_ARG_I, f, d, NULL, d)
#define I_REQ(f) , (OTHER, LM_ARG_I_REQ, f, 0, NULL, 0)
#define I_OPT(f) , (OTHER, LM_ARG_I_OPT, f, 0, NULL, LM_NO_INT)
#define B(f, d) , (OTHER, LM_ARG_B, f, d, NULL, d)
#define I2(f, d) , (OTHER, LM_ARG_I2, f, d, NULL, {d, d})
#define PAD2(f, d) , (OTHER, LM_ARG_PAD2, f, d, lm_names_padding, {d, d})
#define DIM(f) , (OTHER, LM_ARG_DIM, f, LM_NO_DIM, NULL, LM_NO_DIM)
#define DIM_OPT(f) , (OTHER, LM_ARG_DIM_OPT, f, LM_NO_DIM, NULL, LM_NO_DIM)
#define DIMS_OPT(f) , (OTHER, LM_ARG_DIMS_OPT, f, -1, NULL, {.n = -1})
#define SIZE(f) , (OTHER, LM_ARG_SIZE, f, 0, NULL, {.n = -1})
#define SIZE_OPT(f) , (OTHER, LM_ARG_SIZE_OPT, f, -1, NULL, {.n = -1})
#define DTYPE(f) , (OTHER, LM_ARG_DTYPE, f, LM_NO_DTYPE, NULL, LM_NO_DTYPE)
#define DEVICE(f) , (OTHER, LM_ARG_DEVICE, f, LM_NO_DEVICE, NULL, LM_NO_DEVICE)
#define E(f, names, d) , (OTHER, LM_ARG_E, f, d, lm_names_##names, d)

#define ARG(op, class, kind, f, number, names, ...) {kind, offsetof(lm_##op##_args, f), #f, number, names},
#define DEFAULT(op, class, kind, f, number, names, ...) .f = __VA_ARGS__,
#define ONE(op, class, ...) +1
#define TENSORS(op, class, kind, f, ...) TENSORS_##class(op, f)
#define TENSORS_TENSOR(op, f) offsetof(lm_##op##_args, f),
#define TENSORS_LIST(op, f)
#define TENSORS_NUMBER(op, f)
#define TENSORS_OTHER(op, f)
#define NTENSORS(op, class, ...) NTENSORS_##class
#define NTENSORS_TENSOR +1
#define NTENSORS_LIST
#define NTENSORS_NUMBER
#define NTENSORS_OTHER
#define NNUMBERS(op, class, ...) NNUMBERS_##class
#define NNUMBERS_TENSOR
#define NNUMBERS_LIST
#define NNUMBERS_NUMBER +1
#define NNUMBERS_OTHER
#define LISTS(op, class, kind, f, ...) LISTS_##class(op, f)
#define LISTS_TENSOR(op, f)
#define LISTS_LIST(op, f) +1 + (int)offsetof(lm_##op##_args, f)
#define LISTS_NUMBER(op, f)
#define LISTS_OTHER(op, f)

/* ---- what runs each kind */

static lm_status run_point(lm_op_id id, const void *args, lm_tensor *into, lm_tensor **out) {
  const lm_op *op = &lm_ops[id];
  lm_tensor *in[LM_POINT_MAX_IN];
  double number[LM_POINT_MAX_NUMBERS];
  for (int i = 0; i < op->ntensor; i++) in[i] = LM_ARG_TENSOR(args, op->tensor[i]);
  for (int i = 0; i < op->nnumber; i++) {
    number[i] = *(const double *)((const char *)args + op->arg[op->ntensor + i].offset);
  }
  return lm_point_run((int)id, op->ntensor, in, op->nnumber ? number : NULL, into, out);
}

static lm_status run_write(lm_op_id id, const void *args, lm_op_fn fn, lm_tensor **out) {
  lm_tensor *x = LM_ARG_TENSOR(args, lm_ops[id].tensor[0]);
  lm_status status = lm_check_writable(id, x);
  if (status == LM_OK) status = fn(args, out);
  if (status == LM_OK) lm_bump(x, (int)id);
  return status;
}

#define RUN_POINT(op) \
  static lm_status run_##op(const void *args, lm_tensor **out) { return run_point(LM_OP_##op, args, NULL, out); }
#define RUN_PRIM(op) \
  static lm_status run_##op(const void *args, lm_tensor **out) { return lm_op_##op(args, out); }
#define RUN_VIEW RUN_PRIM
#define RUN_NEW RUN_PRIM
#define RUN_WRITE(op)                                                                              \
  static lm_status write_##op(const void *args, lm_tensor **out) { return lm_op_##op(args, out); } \
  static lm_status run_##op(const void *args, lm_tensor **out) { return run_write(LM_OP_##op, args, write_##op, out); }
#define RUN_COMP(op)
#define OP(name, kind, ...) RUN_##kind(name)
#include "op/op.def"
#undef OP

/* ---- the tables */

#define FN_POINT(op) run_##op
#define FN_PRIM FN_POINT
#define FN_VIEW FN_POINT
#define FN_NEW FN_POINT
#define FN_WRITE FN_POINT
#define FN_COMP(op) NULL

#define OP(name, kind, outs, aux, args, opts, cast, help) \
  static const lm_arg arg_table_##name[] = {EACH(ARG, name args opts)};
#include "op/op.def"
#undef OP

const lm_op lm_ops[LM_OP_COUNT] = {
#define OP(name_, kind_, outs_, aux_, args_, opts_, cast_, help_)    \
  [LM_OP_##name_] = {.name = #name_,                                 \
                     .help = help_,                                  \
                     .kind = LM_##kind_,                             \
                     .cast = LM_##cast_,                             \
                     .size = sizeof(lm_##name_##_args),              \
                     .outs = outs_,                                  \
                     .aux = aux_,                                    \
                     .nargs = 0 EACH(ONE, name_ args_ opts_),        \
                     .npositional = 0 EACH(ONE, name_ args_),        \
                     .ntensor = 0 EACH(NTENSORS, name_ args_ opts_), \
                     .tensor = {EACH(TENSORS, name_ args_ opts_)},   \
                     .nnumber = 0 EACH(NNUMBERS, name_ args_ opts_), \
                     .list = -1 EACH(LISTS, name_ args_ opts_),      \
                     .arg = arg_table_##name_,                       \
                     .run = FN_##kind_(name_)},
#include "op/op.def"
#undef OP
};

#define OP(name, kind, outs, aux, args, opts, cast, help) \
  static const lm_##name##_args default_##name = {EACH(DEFAULT, name args opts)};
#include "op/op.def"
#undef OP

static const void *const defaults[LM_OP_COUNT] = {
#define OP(name, ...) &default_##name,
#include "op/op.def"
#undef OP
};

/* The elementwise rows have tensors, then numbers, then what only autograd/forms.c reads: run_point relies on it. */
#define POINT_ROW_POINT(...) __VA_ARGS__
#define POINT_ROW_VIEW(...)
#define POINT_ROW_PRIM(...)
#define POINT_ROW_WRITE(...)
#define POINT_ROW_NEW(...)
#define POINT_ROW_COMP(...)
#define RANK(op, class, kind, ...) <= RANK_##class &&RANK_##class
#define RANK_TENSOR 1
#define RANK_NUMBER 2
#define RANK_LIST 0 /* none */
#define RANK_OTHER 3
#define OP(name, kind, outs, aux, args, opts, cast, help)       \
  POINT_ROW_##kind(_Static_assert(1 EACH(RANK, name args opts), \
                                  #name ": an elementwise op takes tensors, then numbers, then other options");)
#include "op/op.def"
#undef OP

void lm_op_defaults(lm_op_id op, void *args) { memcpy(args, defaults[op], lm_ops[op].size); }

int lm_op_find(const char *name) {
  for (int i = 0; i < LM_OP_COUNT; i++) {
    if (strcmp(lm_ops[i].name, name) == 0) return i;
  }
  return -1;
}

/* ---- running */

/* "add float32 [2, 3], number": the op and its tensors. */
static void trace(const lm_op *op, const void *args, const char *suffix) {
  char text[512];
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < op->ntensor && used < sizeof text; i++) {
    const lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[i]);
    const char *comma = i ? "," : "";
    int n = t == NULL   ? snprintf(text + used, sizeof text - used, "%s nil", comma)
            : t->number ? snprintf(text + used, sizeof text - used, "%s number", comma)
                        : snprintf(text + used, sizeof text - used, "%s %s%s%s %s", comma, lm_dtype_name(t->dtype),
                                   t->device ? " " : "", t->device ? lm_device_name(t->device) : "", lm_shape_of(t));
    used += n > 0 ? (size_t)n : 0;
  }
  if (op->list >= 0 && used < sizeof text) {
    const lm_list *list = (const lm_list *)((const char *)args + op->list);
    snprintf(text + used, sizeof text - used, " {%d tensors}", list->n);
  }
  lm_log(LM_LOG_OP, "%s%s%s", op->name, suffix, text);
}

lm_status lm_op_run(lm_op_id id, const void *args, lm_tensor **out) {
  const lm_op *op = &lm_ops[id];
  if (__builtin_expect(lm_log_on(LM_LOG_OP), 0)) trace(op, args, "");
  if (!op->run) return lm_fail(LM_E_STATE, "%s: is made of other ops and runs through lm_call", op->name);
  lm_running before = lm_run_begin(op->name, (int)id);
  lm_status status = op->kind == LM_POINT ? run_point(id, args, NULL, out) : op->run(args, out);
  lm_run_end(before);
  return status;
}

lm_status lm_op_run_inplace(lm_op_id id, const void *args, lm_tensor **out) {
  lm_status status = LM_OK;
  const lm_op *op = &lm_ops[id];
  if (op->kind != LM_POINT) return lm_fail(LM_E_ARG, "%s: has no in-place form", op->name);
  if (lm_log_on(LM_LOG_OP)) trace(op, args, "_");
  lm_tensor *x = LM_ARG_TENSOR(args, op->tensor[0]), *result = NULL;
  if (x->number) return lm_fail(LM_E_ARG, "%s_: a number cannot be written to", op->name);
  lm_running before = lm_run_begin(op->name, (int)id);
  TRY(lm_check_writable(id, x));
  TRY(run_point(id, args, x, &result));
  lm_bump(x, (int)id);
  *out = result;
done:
  lm_run_end(before);
  return status;
}

/* ---- defaults of this thread */

static _Thread_local lm_dtype default_dtype = LM_F32;
static _Thread_local lm_device default_device = LM_DEVICE(LM_CPU, 0);

lm_dtype lm_default_dtype(void) { return default_dtype; }
void lm_set_default_dtype(lm_dtype dtype) { default_dtype = dtype; }
lm_device lm_default_device(void) { return default_device; }
void lm_set_default_device(lm_device device) { default_device = device; }
