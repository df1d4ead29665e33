/* Formulas over tensors in C: `mul(g, sub(1, y))`. What composites in C, and functions that entries call, are written
 * in; the entries' formulas are calls of lm_e_<op> (op_calls.h).
 *
 * Every op is a macro of its own name (op_names.h, made from ops.lua) that takes the op's arguments in
 * its order, options included; what is left out has its default. It expects an lm_expr *e_ in scope.
 * Numbers may stand for tensors. Results belong to the expression and go with lm_expr_end. Errors stick:
 * after one, every op gives NULL and does nothing. NULL where an op needs a tensor gives NULL too, an
 * undefined (zero) value.
 *
 * Include this last, after <math.h>: exp(x) is the op from here on. */
#ifndef LM_AUTOGRAD_EXPR_H
#define LM_AUTOGRAD_EXPR_H

#include "op_calls.h"

struct lm_expr {
  lm_status status;
  int n, room;
  lm_tensor **owned;
  lm_tensor *last[LM_MAX_OUTS]; /* all results of the latest op, borrowed */
  lm_tensor *first_owned[24];
};

typedef struct lm_e_value {
  enum { LM_E_TENSOR, LM_E_NUMBER, LM_E_PAIR, LM_E_INTS, LM_E_LIST } kind;
  union {
    lm_tensor *tensor;
    double number;
    int64_t pair[2];
    lm_ints ints;
    lm_list list;
  };
} lm_e_value;

void lm_expr_begin(lm_expr *e);
/* Releases everything. */
void lm_expr_end(lm_expr *e);
/* Hands over a new reference to `result` and ends e. LM_E_STATE if it is undefined. */
lm_status lm_expr_finish(lm_expr *e, lm_tensor *result, lm_tensor **out);
/* The same for n results. */
lm_status lm_expr_results(lm_expr *e, int n, lm_tensor *const *result, lm_tensor **out);
/* t, which is yours, becomes the expression's. */
lm_tensor *lm_e_own(lm_expr *e, lm_tensor *t);
/* Records the status of a call that is no op; true if it went well. */
bool lm_e_ok(lm_expr *e, lm_status status);
lm_tensor *lm_e_call(lm_expr *e, lm_op_id op, int n, const lm_e_value *v);
/* The op on its argument struct. */
lm_tensor *lm_e_run(lm_expr *e, lm_op_id op, const void *args);
/* The same for the last op of a form, which may be asked for in place. */
lm_tensor *lm_e_run_form(lm_expr *e, lm_op_id op, const void *args, bool in_place);
/* A number as a tensor. */
lm_tensor *lm_e_number(lm_expr *e, double value);

/* Entry i of sizes or dims, from 1, or negative from the end; 0 where there is none. */
static inline int64_t lm_e_entry(lm_ints v, int64_t i) {
  if (i < 0) i += v.n + 1;
  return i < 1 || i > v.n ? 0 : v.v[i - 1];
}

static inline lm_e_value lm_e_of_tensor(lm_tensor *t) { return (lm_e_value){.kind = LM_E_TENSOR, .tensor = t}; }
static inline lm_e_value lm_e_of_none(void *none) {
  (void)none;
  return lm_e_of_tensor(NULL);
}
static inline lm_e_value lm_e_of_number(double v) { return (lm_e_value){.kind = LM_E_NUMBER, .number = v}; }
static inline lm_e_value lm_e_of_pair(const int64_t *v) {
  return (lm_e_value){.kind = LM_E_PAIR, .pair = {v[0], v[1]}};
}
static inline lm_e_value lm_e_of_ints(lm_ints v) { return (lm_e_value){.kind = LM_E_INTS, .ints = v}; }
static inline lm_e_value lm_e_of_list(lm_list v) { return (lm_e_value){.kind = LM_E_LIST, .list = v}; }

#define LM_E_VALUE(a)                \
  ({                                 \
    __auto_type value_ = (a);        \
    _Generic(value_,               \
        lm_tensor *: lm_e_of_tensor, \
        void *: lm_e_of_none,      \
        int64_t *: lm_e_of_pair,   \
        const int64_t *: lm_e_of_pair, \
        lm_ints: lm_e_of_ints,     \
        lm_list: lm_e_of_list,     \
        default: lm_e_of_number)(value_); \
  })

#define LM_E_COUNT(...) LM_E_COUNT_(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, )
#define LM_E_COUNT_(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, n, ...) n
#define LM_E_JOIN(a, b) LM_E_JOIN_(a, b)
#define LM_E_JOIN_(a, b) a##b
#define LM_E_ALL(...) LM_E_JOIN(LM_E_ALL, LM_E_COUNT(__VA_ARGS__))(__VA_ARGS__)
#define LM_E_ALL1(a) LM_E_VALUE(a)
#define LM_E_ALL2(a, ...) LM_E_VALUE(a), LM_E_ALL1(__VA_ARGS__)
#define LM_E_ALL3(a, ...) LM_E_VALUE(a), LM_E_ALL2(__VA_ARGS__)
#define LM_E_ALL4(a, ...) LM_E_VALUE(a), LM_E_ALL3(__VA_ARGS__)
#define LM_E_ALL5(a, ...) LM_E_VALUE(a), LM_E_ALL4(__VA_ARGS__)
#define LM_E_ALL6(a, ...) LM_E_VALUE(a), LM_E_ALL5(__VA_ARGS__)
#define LM_E_ALL7(a, ...) LM_E_VALUE(a), LM_E_ALL6(__VA_ARGS__)
#define LM_E_ALL8(a, ...) LM_E_VALUE(a), LM_E_ALL7(__VA_ARGS__)
#define LM_E_ALL9(a, ...) LM_E_VALUE(a), LM_E_ALL8(__VA_ARGS__)
#define LM_E_ALL10(a, ...) LM_E_VALUE(a), LM_E_ALL9(__VA_ARGS__)
#define LM_E_ALL11(a, ...) LM_E_VALUE(a), LM_E_ALL10(__VA_ARGS__)
#define LM_E_ALL12(a, ...) LM_E_VALUE(a), LM_E_ALL11(__VA_ARGS__)

#define LM_NAMED(name, ...) \
  lm_e_call(e_, LM_OP_##name, LM_E_COUNT(__VA_ARGS__), (const lm_e_value[]){LM_E_ALL(__VA_ARGS__)})

#include "op_names.h"

#endif
