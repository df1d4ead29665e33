/* Compiles op/rules.def: every row becomes a function, and runs once at load without computing anything, to
 * see what it touches. */
#include "autograd/rules.h"

#include <string.h>

#include "autograd/formulas.h"
#include "op/pointwise.h"

lm_rules lm_rule_table[LM_OP_COUNT];

/* The argument structs once more, with names that formulas' macros cannot reach: lm_add_at, … */
#define T(f) lm_tensor *at_##f;
#define T_OPT(f) lm_tensor *at_##f;
#define S(f) lm_tensor *at_##f;
#define S_OPT(f) lm_tensor *at_##f;
#define TL(f) lm_list at_##f;
#define F(f, d) double at_##f;
#define F_REQ(f) double at_##f;
#define I(f, d) int64_t at_##f;
#define I_REQ(f) int64_t at_##f;
#define I_OPT(f) int64_t at_##f;
#define B(f, d) bool at_##f;
#define I2(f, d) int64_t at_##f[2];
#define PAD2(f, d) int64_t at_##f[2];
#define DIM(f) int64_t at_##f;
#define DIM_OPT(f) int64_t at_##f;
#define DIMS_OPT(f) lm_ints at_##f;
#define SIZE(f) lm_ints at_##f;
#define SIZE_OPT(f) lm_ints at_##f;
#define DTYPE(f) lm_dtype at_##f;
#define DEVICE(f) lm_device at_##f;
#define E(f, names, d) int at_##f;
#define OP(name, kind, outs, aux, args, opts, cast, help) \
  typedef struct lm_##name##_at {                         \
    args opts                                             \
  } lm_##name##_at;                                       \
  _Static_assert(sizeof(lm_##name##_at) == sizeof(lm_##name##_args), #name);
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

/* ---- what a formula reads */

static int index_of(const lm_op *op, size_t offset) {
  int k = 0;
  while (k < op->ntensor && op->tensor[k] != offset) k++;
  return k;
}

static lm_tensor *use(lm_rule *r, size_t offset) {
  if (r->e.probe) r->touched.args |= (uint8_t)(1 << index_of(&lm_ops[r->op], offset));
  return LM_ARG_TENSOR(r->args, offset);
}

static lm_list use_list(lm_rule *r, const lm_list *list) {
  r->touched.list = true;
  return *list;
}

static lm_tensor *use_result(lm_rule *r, int k) {
  if (r->e.probe) r->touched.results |= (uint8_t)(1 << k);
  return r->y[k];
}

static lm_ints use_size(lm_rule *r, size_t offset) {
  lm_ints size = {.n = 0};
  if (!r->node) return size;
  int k = index_of(&lm_ops[r->op], offset);
  lm_edge e = k < r->node->nedge ? r->node->edge[k] : (lm_edge){NULL, 0};
  if (!e.node) {
    lm_e_ok(&r->e, lm_fail(LM_E_STATE, "%s: its gradient asks for sizes that were not kept", lm_ops[r->op].name));
    return size;
  }
  const lm_meta *meta = lm_edge_meta(e);
  size.n = meta->ndim;
  memcpy(size.v, meta->size, sizeof size.v);
  return size;
}

static double use_number(const lm_rule *r, int i) {
  const lm_op *op = &lm_ops[r->op]; /* elementwise: tensors, then numbers */
  return *(const double *)((const char *)r->args + op->arg[op->ntensor + i].offset);
}

/* ---- the rows as functions */

#define A(name) use(r_, offsetof(at_, at_##name))
#define O(name) (((const at_ *)r_->args)->at_##name)
#define SIZE_OF(name) use_size(r_, offsetof(at_, at_##name))
#define P(i) use_number(r_, i)
#define SIZES (r_->node ? r_->node->list_size : NULL)
#define AT (r_->at)
#define BEFORE (&r_->before)

#define g (r_->g[0])
#define g1 (r_->g[1])
#define y use_result(r_, 0)
#define y1 use_result(r_, 1)
#define y2 use_result(r_, 2)
#define x A(x)
#define other A(other)
#define exponent A(exponent)
#define condition A(condition)
#define mask A(mask)
#define input A(input)
#define weight A(weight)
#define min A(min)
#define max A(max)
#define index A(index)
#define target A(target)
#define grad A(grad)
#define places A(places)
#define running_mean A(running_mean)
#define running_var A(running_var)
#define indices use_list(r_, &O(indices))

#define FORMULA(op, in, formula)                      \
  static lm_tensor *row_##op##_##in(lm_rule *r_) {    \
    typedef lm_##op##_at at_ __attribute__((unused)); \
    lm_expr *e_ = &r_->e;                             \
    (void)e_;                                         \
    return formula;                                   \
  }
#define POINT FORMULA
#define RULE FORMULA
#define EACH FORMULA
#define JOINT(op, formula, ...) FORMULA(op, joint, formula)
#define NONE(op)
#define DECOMPOSE(op)
#include "op/rules.def"
#undef POINT
#undef RULE
#undef EACH
#undef JOINT
#undef NONE
#undef DECOMPOSE

#undef g
#undef g1
#undef y
#undef y1
#undef y2
#undef x
#undef other
#undef exponent
#undef condition
#undef mask
#undef input
#undef weight
#undef min
#undef max
#undef index
#undef target
#undef grad
#undef places
#undef running_mean
#undef running_var
#undef indices

/* ---- the table */

enum { ROW_NONE = LM_RULE_EACH + 1, ROW_DECOMPOSE };

typedef struct row_text {
  int kind, op, kernel;
  const char *in; /* "x", or "x, weight, bias" */
  lm_rule_fn fn;
} row_text;

static const row_text texts[] = {
#define POINT(op, in, formula) {LM_RULE_POINT, LM_OP_##op, LM_GRAD_##op##_##in, #in, row_##op##_##in},
#define RULE(op, in, formula) {LM_RULE_FORMULA, LM_OP_##op, 0, #in, row_##op##_##in},
#define EACH(op, in, formula) {LM_RULE_EACH, LM_OP_##op, 0, #in, row_##op##_##in},
#define JOINT(op, formula, ...) {LM_RULE_JOINT, LM_OP_##op, 0, #__VA_ARGS__, row_##op##_joint},
#define NONE(op) {ROW_NONE, LM_OP_##op, 0, "", NULL},
#define DECOMPOSE(op) {ROW_DECOMPOSE, LM_OP_##op, 0, "", NULL},
#include "op/rules.def"
#undef POINT
#undef RULE
#undef EACH
#undef JOINT
#undef NONE
#undef DECOMPOSE
};

lm_touched lm_rule_probe(lm_op_id op, const void *args, lm_rule_fn fn) {
  static lm_tensor *const nothing[LM_MAX_OUTS];
  lm_rule r = {.op = op, .args = args, .g = nothing, .y = nothing};
  lm_expr_begin(&r.e);
  r.e.probe = true;
  fn(&r);
  return r.touched;
}

/* Whether names, separated by ", ", begins with `name`; the rest is put there. */
static bool takes(const char **names, const char *name) {
  size_t n = strlen(name);
  if (strncmp(*names, name, n) != 0 || ((*names)[n] && (*names)[n] != ',')) return false;
  *names += n + strspn(*names + n, ", ");
  return true;
}

static void put_row(const row_text *text, lm_rules *rules) {
  static const lm_args_room no_args;
  const lm_op *op = &lm_ops[text->op];
  lm_row row = {.kind = (uint8_t)text->kind, .kernel = text->kernel, .fn = text->fn};
  row.touched = lm_rule_probe((lm_op_id)text->op, &no_args, text->fn);
  if (text->kind == LM_RULE_POINT) row.reads = (uint8_t)lm_point_uses(text->kernel);
  if (text->kind == LM_RULE_EACH) {
    rules->each = true;
    rules->list = row;
    return;
  }
  const char *names = text->in;
  for (int i = 0; i < op->nargs && *names; i++) {
    if (op->arg[i].kind > LM_ARG_S || !takes(&names, op->arg[i].name)) continue;
    rules->arg[index_of(op, op->arg[i].offset)] = row;
    row.part++;
  }
}

/* Ops that make tensors from none, and composites, need no row. */
__attribute__((constructor)) static void make_table(void) {
  for (int i = 0; i < LM_OP_COUNT; i++) lm_rule_table[i].none = lm_ops[i].ntensor == 0 && lm_ops[i].list < 0;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    lm_rules *rules = &lm_rule_table[texts[i].op];
    switch (texts[i].kind) {
      case ROW_NONE: rules->none = true; break;
      case ROW_DECOMPOSE: rules->decompose = true; break;
      default: put_row(&texts[i], rules);
    }
  }
}
