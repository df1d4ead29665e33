/* Declares groups: elementwise kernels and reductions over one iteration space, which a device computes as one kernel.
 *
 * The space has dims from the slowest to the fastest; the first `nrow` number its rows, the others the elements of a
 * row. A member computes a value for each element, or for each row if its inputs do not differ within rows;
 * LM_GROUP_SUM and LM_GROUP_MAX reduce a row to one value, which later members read as any other. */
#pragma once

#include "op/kernels.h"

enum { LM_GROUP_OPERANDS = 32, LM_GROUP_MEMBERS = 64 };

typedef enum lm_group_kind {
  LM_GROUP_EACH,      /* an elementwise kernel */
  LM_GROUP_CONVERTED, /* its input in another dtype */
  LM_GROUP_NUMBER,    /* number[0] */
  LM_GROUP_KEPT,      /* true with probability 1 - number[0], as dropout draws it; stored */
  LM_GROUP_SUM,       /* over a row's elements */
  LM_GROUP_MAX,
  LM_GROUP_SUM_OF_ROWS /* over rows, for each position in a row; only stored, as partial sums */
} lm_group_kind;

typedef struct lm_group_member {
  lm_group_kind kind;
  int kernel;
  lm_dtype compute, dtype;          /* dtypes of the arithmetic, and of the value, which is rounded to it */
  int nin, in[LM_POINTWISE_MAX_IN]; /* members; ~k: operand k */
  double number[LM_POINTWISE_MAX_NUMBERS];
} lm_group_member;

typedef struct lm_group_operand {
  lm_dtype dtype;
  bool is_number;              /* true for a value in host memory, which is passed with the launch */
  int member;                  /* member whose values it gets, [parts, columns] of a sum of rows; -1: an input */
  int64_t stride[LM_MAX_DIMS]; /* in elements; 0 where it does not differ */
} lm_group_operand;

typedef struct lm_group {
  int ndim, nrow, noperands, nmembers;
  int64_t size[LM_MAX_DIMS];
  int64_t parts; /* number of partial sums of rows, set as it is prepared */
  lm_group_operand operand[LM_GROUP_OPERANDS];
  lm_group_member member[LM_GROUP_MEMBERS];
  void *prepared; /* made by the device, or NULL; lm_free frees it */
} lm_group;

static inline bool lm_group_is_reduction(lm_group_kind kind) { return kind >= LM_GROUP_SUM; }

/* Prepares a group for a device; LM_E_MISSING, with a message, if it cannot compute it as one kernel. Orders the dims
 * of a space without reductions by the memory of the first result, and merges dims that are evenly spaced in all
 * operands.
 */
lm_status lm_group_prepare(lm_device device, lm_group *g);
/* Runs a prepared group. operand: its tensors, in order. LM_E_MISSING, and nothing is done, if their memory does not
 * suit the kernel. */
lm_status lm_group_run(lm_device device, const lm_group *g, lm_tensor *const *operand);
/* Sets to[i], [columns], to the sums of partial sums from[i], [parts, columns]; both contiguous. */
lm_status lm_group_sum_parts(lm_device device, int n, lm_tensor *const *from, lm_tensor *const *to);
