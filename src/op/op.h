/* Every op's argument struct, id, descriptor and run function, all from op.def. */
#ifndef LM_OP_OP_H
#define LM_OP_OP_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

#define LM_NO_INT INT64_MIN
#define LM_PAD_SAME INT64_MIN
enum { LM_NO_DIM = INT32_MAX, LM_MAX_OUTS = 4, LM_MAX_ARGS = 16, LM_MAX_TENSOR_ARGS = 8 };
typedef enum lm_reduction { LM_NONE, LM_MEAN, LM_SUM } lm_reduction;
typedef enum lm_rounding_mode { LM_EXACT, LM_FLOOR, LM_TRUNC } lm_rounding_mode;
typedef enum lm_pad_mode { LM_PAD_CONSTANT, LM_PAD_REFLECT, LM_PAD_REPLICATE, LM_PAD_CIRCULAR } lm_pad_mode;

/* Strings an E() argument takes, in the order of its values; NULL-terminated. */
LM_API extern const char *const lm_names_reduction[];     /* "none", "mean", "sum" */
LM_API extern const char *const lm_names_memory_format[]; /* "preserve", "contiguous", "channels_last" */
LM_API extern const char *const lm_names_rounding_mode[]; /* "none", "floor", "trunc" */
LM_API extern const char *const lm_names_pad_mode[];      /* "constant", "reflect", "replicate", "circular" */
LM_API extern const char *const lm_names_padding[];       /* what PAD2() takes: "valid", "same" */

/* Argument structs: lm_add_args, … */
#define T(f) lm_tensor *f;
#define T_OPT(f) lm_tensor *f;
#define S(f) lm_tensor *f;
#define S_OPT(f) lm_tensor *f;
#define TL(f) lm_list f;
#define F(f, d) double f;
#define F_REQ(f) double f;
#define I(f, d) int64_t f;
#define I_REQ(f) int64_t f;
#define I_OPT(f) int64_t f;
#define B(f, d) bool f;
#define I2(f, d) int64_t f[2];
#define PAD2(f, d) int64_t f[2];
#define DIM(f) int64_t f;
#define DIM_OPT(f) int64_t f;
#define DIMS_OPT(f) lm_ints f;
#define SIZE(f) lm_ints f;
#define SIZE_OPT(f) lm_ints f;
#define DTYPE(f) lm_dtype f;
#define DEVICE(f) lm_device f;
#define E(f, names, d) int f;
#define OP(name, kind, outs, aux, args, opts, cast, help) \
  typedef struct lm_##name##_args {                       \
    args opts                                             \
  } lm_##name##_args;
#include "op/op.def"
#undef OP
#undef T
#undef T_OPT
#undef S
#undef S_OPT
#undef TL
#undef F
#undef F_REQ
#undef I
#undef I_REQ
#undef I_OPT
#undef B
#undef I2
#undef PAD2
#undef DIM
#undef DIM_OPT
#undef DIMS_OPT
#undef SIZE
#undef SIZE_OPT
#undef DTYPE
#undef DEVICE
#undef E

typedef enum lm_op_id {
#define OP(name, ...) LM_OP_##name,
#include "op/op.def"
#undef OP
  LM_OP_COUNT
} lm_op_id;

typedef enum lm_op_kind { LM_POINT, LM_VIEW, LM_PRIM, LM_WRITE, LM_NEW, LM_COMP } lm_op_kind;
typedef enum lm_cast_rule { LM_LOWER, LM_KEEP, LM_KEEP_GPU, LM_BANNED_GPU, LM_WIDEST, LM_ASIS } lm_cast_rule;

typedef enum lm_arg_kind {
  LM_ARG_T,
  LM_ARG_T_OPT,
  LM_ARG_S_OPT,
  LM_ARG_S,
  LM_ARG_TL,
  LM_ARG_F,
  LM_ARG_F_REQ,
  LM_ARG_I,
  LM_ARG_I_REQ,
  LM_ARG_I_OPT,
  LM_ARG_B,
  LM_ARG_I2,
  LM_ARG_PAD2,
  LM_ARG_DIM,
  LM_ARG_DIM_OPT,
  LM_ARG_DIMS_OPT,
  LM_ARG_SIZE,
  LM_ARG_SIZE_OPT,
  LM_ARG_DTYPE,
  LM_ARG_DEVICE,
  LM_ARG_E,
} lm_arg_kind;

typedef struct lm_arg {
  lm_arg_kind kind;
  uint16_t offset; /* in the op's argument struct */
  const char *name;
  double number;            /* default of F, I, B, I2, PAD2, E */
  const char *const *names; /* of E and PAD2 */
} lm_arg;

/* args: the op's struct. out: room for outs + aux tensors; on success each is new and yours (an
 * aux may be NULL), except for WRITE, whose out[0] is the first tensor with one more reference. */
typedef lm_status (*lm_op_fn)(const void *args, lm_tensor **out);

typedef struct lm_op {
  const char *name, *help;
  lm_op_kind kind;
  lm_cast_rule cast;
  uint16_t size; /* of the argument struct */
  uint8_t outs, aux, nargs, npositional;
  uint8_t ntensor;                     /* T, T_OPT, S and S_OPT arguments (TL not counted) */
  uint8_t nnumber;                     /* F arguments; of POINT ops they follow the tensors */
  uint16_t tensor[LM_MAX_TENSOR_ARGS]; /* their offsets */
  int16_t list;                        /* offset of the TL argument, or -1 */
  const lm_arg *arg;
  lm_op_fn run; /* without recording; NULL for COMP, which only lm_call knows */
} lm_op;

LM_API extern const lm_op lm_ops[LM_OP_COUNT];
/* Fill an argument struct with the defaults (tensors NULL). */
LM_API void lm_op_defaults(lm_op_id op, void *args);
/* -1 if there is none. */
LM_API int lm_op_find(const char *name);

#define LM_ARG_TENSOR(args, offset) (*(lm_tensor **)((char *)(args) + (offset)))

/* Run without recording a graph: check, allocate, compute. Not for COMP. */
LM_API lm_status lm_op_run(lm_op_id op, const void *args, lm_tensor **out);
/* POINT ops into an existing first argument: x keeps dtype, shape and place. */
LM_API lm_status lm_op_run_inplace(lm_op_id op, const void *args, lm_tensor **out);

/* The run functions, written in op/<family>.c; POINT ops share one, COMP ops have none here. */
#define LM_RUN_PRIM(name) lm_status lm_op_##name(const lm_##name##_args *a, lm_tensor **out);
#define LM_RUN_VIEW LM_RUN_PRIM
#define LM_RUN_WRITE LM_RUN_PRIM
#define LM_RUN_NEW LM_RUN_PRIM
#define LM_RUN_POINT(name)
#define LM_RUN_COMP(name)
#define OP(name, kind, ...) LM_RUN_##kind(name)
#include "op/op.def"
#undef OP

/* The dtype an op on these tensors computes in, by PyTorch's rule: dimensioned tensors before 0-d
 * ones before Lua numbers. NULL entries are skipped. */
LM_API lm_dtype lm_result_type(int n, lm_tensor *const *tensors);
/* Default dtype of new floating tensors (float32) and default device, per thread. */
LM_API lm_dtype lm_default_dtype(void);
LM_API void lm_set_default_dtype(lm_dtype dtype);
LM_API lm_device lm_default_device(void);
LM_API void lm_set_default_device(lm_device device);

#endif
