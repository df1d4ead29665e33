/* Declares the table of gradients, generated at build time from op/entries/ops.lua: for each op and tensor argument,
 * the formula and the tensors that it uses. */
#pragma once

#include "autograd/expr.h"
#include "autograd/node.h"

typedef enum lm_rule_kind {
  LM_RULE_MISSING,
  LM_RULE_POINTWISE,
  LM_RULE_FORMULA,
  LM_RULE_JOINT,
  LM_RULE_EACH
} lm_rule_kind;

/* The tensors that a formula uses; bit k: the op's k-th tensor argument, the k-th result. */
typedef struct lm_touched {
  uint16_t args;
  uint8_t results;
  bool list;
} lm_touched;

/* Bits of lm_row.reads besides those of the arguments. */
enum { LM_READS_G = 0, LM_READS_Y = 7 };

/* Total size of a list's first n tensors along the joined dim; kept, as gradients are requested in turn. */
typedef struct lm_before {
  int n;
  int64_t size;
} lm_before;

/* A formula being evaluated. */
typedef struct lm_rule {
  lm_expr e;
  lm_op_id op;
  const void *args; /* the op's struct with saved tensors in it */
  const lm_node *node;
  lm_tensor *const *g; /* [LM_MAX_OUTS] gradients of the results */
  lm_tensor *const *y; /* [LM_MAX_OUTS] saved results */
  int at;              /* EACH: index of a tensor in the list, from 0 */
  lm_before before;    /* EACH: total size of the tensors before it */
} lm_rule;

typedef lm_tensor *(*lm_rule_fn)(lm_rule *r);

typedef struct lm_row {
  uint8_t kind;    /* lm_rule_kind */
  bool takes_more; /* true if the formula itself adds a second gradient of the result */
  int8_t part;     /* JOINT: index of the argument's gradient among the results */
  lm_touched touched;
  uint8_t reads; /* POINTWISE: inputs of the kernel in the order of bits; bit k: the k-th tensor argument, from 1 */
  int kernel;    /* POINTWISE: the fused kernel */
  lm_rule_fn fn;
  lm_touched (*touches)(const void *args); /* computes `touched` if it depends on the arguments; else NULL */
} lm_row;

typedef struct lm_rules {
  bool none;          /* true if calls are never recorded */
  bool decompose;     /* true if a composite's ops are recorded instead */
  bool record_as_one; /* true if a composite is recorded as one op */
  bool each;          /* true if each tensor of the list gets a gradient */
  lm_row arg[LM_MAX_TENSOR_ARGS], list;
} lm_rules;

extern const lm_rules lm_rule_table[];

/* Returns the sizes of the op's k-th tensor argument. */
lm_ints lm_rule_size(lm_rule *r, int k);
/* Returns true if the op's k-th tensor argument was a matrix with dense columns. */
bool lm_rule_is_transposed(lm_rule *r, int k);
/* Returns true if the op's k-th tensor argument was not NULL. */
static inline bool lm_rule_given(const lm_rule *r, int k) { return r->node->given >> k & 1; }
