/* Declares ops' descriptors, and runs ops. Ids and argument structs are in op_entries.h, written from entries/ops.lua,
 * which only files that name an op include: others need no compiling after a new op. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensor/tensor.h"

#define LM_NO_INT INT64_MIN
#define LM_PAD_SAME INT64_MIN
enum { LM_NO_DIM = INT32_MAX, LM_MAX_OUTS = 6, LM_MAX_ARGS = 16, LM_MAX_TENSOR_ARGS = 12 };
typedef int lm_op_id; /* LM_OP_…, of op_ids.h */

/* Room for every op's argument struct. */
typedef union lm_args_union {
  char bytes[512];
  int64_t whole;
  double number;
  void *pointer;
} lm_args_union;

typedef enum lm_op_kind { LM_POINTWISE, LM_VIEW, LM_PRIM, LM_WRITE, LM_NEW, LM_COMP } lm_op_kind;
typedef enum lm_cast_rule {
  LM_LOWER,
  LM_KEEP,
  LM_KEEP_RESULT,
  LM_KEEP_GPU,
  LM_BANNED_GPU,
  LM_WIDENED, /* no op's own: half precision to float32 without autocast, for `widens` */
  LM_SUMMED,  /* likewise: only what `reuses` names and requires grad, so that the gradient's sum is rounded once */
  LM_WIDEST,
  LM_ASIS
} lm_cast_rule;
/* Rules for an elementwise op's result dtype: the inputs' common dtype; that, or floating for integers; bool; that, or
 * int64 for bool; an argument's dtype. */
typedef enum lm_result_dtype_rule {
  LM_RESULT_DTYPE_SAME,
  LM_RESULT_DTYPE_FLOAT,
  LM_RESULT_DTYPE_BOOL,
  LM_RESULT_DTYPE_NUMBER,
  LM_RESULT_DTYPE_ARGUMENT,
} lm_result_dtype_rule;

typedef enum lm_arg_kind {
  LM_ARG_T,
  LM_ARG_T_OPT,
  LM_ARG_S_OPT,
  LM_ARG_S,
  LM_ARG_TL,
  LM_ARG_TL_HOLES,
  LM_ARG_F,
  LM_ARG_F_REQ,
  LM_ARG_F_OPT,
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
  LM_ARG_PADS,
  LM_ARG_DTYPE,
  LM_ARG_DEVICE,
  LM_ARG_GENERATOR,
  LM_ARG_E,
  /* for functions that are not ops (bind/bind.h) */
  LM_ARG_FORMAT, /* an int, an index of lm_names_memory_format */
  LM_ARG_TEXT,
  LM_ARG_BYTES,  /* a contiguous uint8 tensor on the CPU */
  LM_ARG_INT64S, /* a contiguous int64 tensor on the CPU */
  LM_ARG_SOME,   /* a tensor or a list of them with holes, each retained */
  LM_ARG_OTHER,  /* a value that the caller reads */
} lm_arg_kind;

typedef struct lm_arg {
  lm_arg_kind kind;
  uint16_t offset; /* bytes from the start of the op's argument struct */
  const char *name;
  double number;            /* default of F, I, B, I2, PAD2 and E arguments */
  const char *const *names; /* option names of E and PAD2, NULL-terminated */
} lm_arg;

enum { LM_DRAWS = 255 }; /* an op draws random numbers in each call */

/* Runs an op. out: room for outs + aux tensors; on success each is a new reference of the caller's (an aux may be
 * NULL), except for WRITE, whose out[0] is the first tensor, retained. */
typedef lm_status (*lm_op_fn)(const void *args, lm_tensor **out);

/* Names what values of tensors decide beside the results' values: nothing, a result's shape, that if a mask is in the
 * list, whether the op fails. */
typedef enum lm_values_role { LM_VALUES_NONE, LM_VALUES_SHAPE, LM_VALUES_MASK, LM_VALUES_FAIL } lm_values_role;

typedef struct lm_op {
  const char *name, *help;
  const char
      *grads; /* tensors that have a gradient, "x, weight"; "" for none; NULL: those of the ops it is composed of */
  const char *not_bool; /* advice in the error for bool; NULL: it takes bool */
  lm_op_kind kind;
  lm_cast_rule cast;
  uint16_t size; /* bytes of the argument struct */
  uint8_t outs, aux, nargs, npositional;
  uint8_t ntensor;                        /* number of T, T_OPT, S and S_OPT arguments (TL not counted) */
  uint8_t nnumber;                        /* number of F and F_OPT arguments; for POINTWISE they follow the tensors */
  uint16_t tensor[LM_MAX_TENSOR_ARGS];    /* offsets of these arguments in the struct, bytes */
  int16_t list;                           /* offset of the TL argument, or -1 */
  uint8_t result_dtype, result_dtype_arg; /* a lm_result_dtype_rule; index of the tensor whose dtype is the result's */
  bool integers;                          /* true if x must be an integer or bool */
  int8_t integral_arg;                    /* index of the F argument that must be integral for integers, or -1 */
  uint8_t divisor_arg;                    /* tensor, from 1, that must not be 0 for integers; 0: none */
  uint8_t writes;                         /* bit k: the k-th tensor is written as well */
  uint8_t masks;                          /* bit k: the k-th tensor must be bool */
  bool has_precheck;                      /* true if `needs` or `forms` apply (autograd/composite.h) */
  int16_t writes_when;                    /* offset of the B argument that enables `writes`, or -1 */
  uint16_t widens;                        /* half precision runs in float32; bit k: tensor k decides the dtype */
  uint16_t reuses;                        /* bit k: several ops of its formula read tensor k */
  uint8_t values;                         /* a lm_values_role */
  uint8_t index, index_of, index_dim;     /* index: tensor, from 1, of numbers up to that size; 0: not known */
  uint8_t draws; /* LM_DRAWS, or from 1 the B or F argument that makes it; 0: it draws nothing */
  bool internal; /* true if only other ops use it: lists of ops leave it out */
  uint16_t slot; /* index into the backend's kernels: its own, or its family's */
  const lm_arg *arg;
  const void *defaults; /* an argument struct; tensors NULL */
  lm_op_fn run;         /* runs without recording; NULL for COMP, which only lm_call runs */
  /* Returns the floating-point operations of a call with these results; NULL: none are counted. */
  double (*flops)(const void *args, lm_tensor *const *out);
} lm_op;

LM_API extern const lm_op lm_ops[]; /* LM_SLOT_COUNT: ops, then families, which have no run */

/* A name for several ops, chosen by the kind of the second argument (or {dim = number}), or by an option. */
typedef struct lm_overload {
  const char *name, *option; /* option: may be NULL */
  lm_op_id op, number, tensor, with;
} lm_overload;
LM_API extern const lm_overload lm_overloads[]; /* ends with a NULL name */

/* True while this thread runs a formula that rounds once: elementwise ops and reductions of half precision then have
 * float32 results. */
extern _Thread_local bool lm_halves_widen;
static inline lm_dtype lm_widened(lm_dtype d) { return lm_halves_widen && lm_dtype_is_half(d) ? LM_F32 : d; }

/* Fills an argument struct with the defaults. */
static inline void lm_op_defaults(lm_op_id op, void *args) { memcpy(args, lm_ops[op].defaults, lm_ops[op].size); }
/* Returns the op's id, or -1. */
LM_API int lm_op_find(const char *name);

#define LM_ARG_TENSOR(args, offset) (*(lm_tensor **)((char *)(args) + (offset)))

/* Runs an op without recording: checks, allocates, computes. Not for COMP. */
LM_API lm_status lm_op_run(lm_op_id op, const void *args, lm_tensor **out);
/* Runs an op as lm_op_run, but returns no auxiliary results. */
LM_API lm_status lm_op_run_visible(lm_op_id op, const void *args, lm_tensor **out);
/* Runs a POINTWISE op in place, into its first tensor, whose dtype, shape and memory stay. */
LM_API lm_status lm_op_run_inplace(lm_op_id op, const void *args, lm_tensor **out);

/* Copies src's values to dst (any dtypes, devices, strides; equal sizes). */
LM_API lm_status lm_copy(const lm_tensor *src, lm_tensor *dst);
/* Copies src to dst; with `later`, a copy between a device and pinned host memory may finish after the return. */
LM_API lm_status lm_copy_later(const lm_tensor *src, lm_tensor *dst, bool later);

/* Returns the dtype that an op on these tensors computes in, by PyTorch's rule: dimensioned tensors before 0-d ones
 * before Lua numbers. Skips NULL entries. */
LM_API lm_dtype lm_result_type(int n, lm_tensor *const *tensors);
/* Return and set this thread's default dtype of new floating tensors (initially float32) and default device. */
LM_API lm_dtype lm_default_dtype(void);
LM_API void lm_set_default_dtype(lm_dtype dtype);
LM_API lm_device lm_default_device(void);
LM_API void lm_set_default_device(lm_device device);
