/* The gradients of op/entries/ops.lua as a table, written when it is built: for each op and tensor argument, the
 * formula and what that touches. */
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

/* Which tensors a formula uses; bit k: the op's k-th tensor argument, the k-th result. */
typedef struct lm_touched {
  uint16_t args;
  uint8_t results;
  bool list;
} lm_touched;

/* Bits of lm_row.reads beside those of the arguments. */
enum { LM_READS_G = 0, LM_READS_Y = 7 };

/* How much the first n tensors of a list take along the joined dim: their gradients are asked for in turn. */
typedef struct lm_before {
  int n;
  int64_t size;
} lm_before;

/* A formula being evaluated. */
typedef struct lm_rule {
  lm_expr e;
  lm_op_id op;
  const void *args; /* the op's struct with saved tensors in place */
  const lm_node *node;
  lm_tensor *const *g; /* [LM_MAX_OUTS] gradients of the results */
  lm_tensor *const *y; /* [LM_MAX_OUTS] saved results */
  int at;              /* EACH: which tensor of the list */
  lm_before before;    /* EACH: those before it */
} lm_rule;

typedef lm_tensor *(*lm_rule_fn)(lm_rule *r);

typedef struct lm_row {
  uint8_t kind;    /* lm_rule_kind */
  bool takes_more; /* it adds a second gradient of the result by itself */
  int8_t part;     /* JOINT: the place of the argument's gradient among the results */
  lm_touched touched;
  uint8_t reads; /* POINT: what the kernel reads, in the order of the bits; bit k: the k-th tensor argument, from 1 */
  int kernel;    /* POINT: the fused form */
  lm_rule_fn fn;
  lm_touched (*touches)(const void *args); /* where the choice depends on the arguments; NULL: `touched` */
} lm_row;

typedef struct lm_rules {
  bool none;          /* nothing to record, ever */
  bool decompose;     /* recorded as the composite's ops */
  bool record_as_one; /* a composite that is recorded as one op */
  bool each;          /* list rows */
  lm_row arg[LM_MAX_TENSOR_ARGS], list;
} lm_rules;

extern const lm_rules lm_rule_table[LM_OP_COUNT];

/* The sizes of the op's k-th tensor argument. */
lm_ints lm_rule_size(lm_rule *r, int k);
/* Whether it was a transposed matrix. */
bool lm_rule_is_transposed(lm_rule *r, int k);
/* Whether it was there. */
static inline bool lm_rule_given(const lm_rule *r, int k) { return r->node->given >> k & 1; }
