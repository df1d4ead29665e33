/* Fills tensors with random numbers, and creates random tensors. Kernels take their draws from the device's generator
 * (tensor/generator.h). */
#include "base/message.h"
#include "op/frame.h"
#include "tensor/generator.h"

/* Fills x by the kernel `slot`, whose struct is args. g: NULL is the default generator of x's device. */
static lm_status fill_randomly(lm_op_id op, lm_op_id slot, lm_tensor *x, const void *args, const lm_generator *g) {
  if (g && g->device != x->device) {
    return lm_fail_devices(lm_ops[op].name, "x", lm_device_name(x->device), "generator", lm_device_name(g->device));
  }
  if (g && !g->is_default && lm_generator_extra()) {
    return lm_fail(LM_E_STATE, "%s: a graph draws from the default generator only; leave generator out",
                   lm_ops[op].name);
  }
  return x->numel ? lm_dispatch(slot, x->device, args, &x) : LM_OK;
}

static lm_status draw_from(lm_op_id op, lm_fill_random_args args) {
  return fill_randomly(op, LM_OP_fill_random, args.x, &args, args.generator);
}

/* ---- in place */

/* Moves the ends of [*from, *to) so that floats drawn there and rounded to dtype are below *to. For 16 bits *to becomes
 * the midpoint between the dtype's largest number below and the next one. If rounding *from reaches the end, both
 * become the largest number below. */
static void end_below(lm_dtype dtype, double *from, double *to) {
  double below = (float)*to, end = *to;
  if (dtype == LM_F64 || *from == *to) return;
  if (dtype == LM_F32) {
    if (below >= *to) below = nextafterf((float)below, -INFINITY);
  } else {
    int exponent, bits = dtype == LM_F16 ? 11 : 8, min_exponent = dtype == LM_F16 ? -24 : -133;
    frexp(nextafter(*to, -INFINITY), &exponent);
    double step = ldexp(1, exponent - bits > min_exponent ? exponent - bits : min_exponent);
    below = (ceil(*to / step) - 1) * step;
    end = below + step / 2;
  }
  if ((float)*from >= end) *from = end = below;
  *to = end;
}

static lm_status check_ends(const lm_fill_random_args *a) {
  lm_dtype dtype = a->x->dtype;
  if (!(a->a <= a->b) || !isfinite(a->b - a->a)) {
    return lm_fail_number("uniform_", "from", lm_text("at most to (%g), and both finite", a->b), a->a);
  }
  if (lm_dtype_is_float(dtype) &&
      !(lm_dtype_has(dtype, a->a) && lm_dtype_has(dtype, a->b) && lm_dtype_has(dtype, a->b - a->a))) {
    return lm_fail_value("uniform_", "from, to and to - from",
                         lm_text("at most %g in magnitude for %s", lm_dtype_largest(dtype), lm_dtype_name(dtype)),
                         lm_text("from %g to %g", a->a, a->b));
  }
  return LM_OK;
}

/* Checks that op's [from, to) is non-empty and exact in x's dtype. */
static lm_status check_range(lm_op_id op, const char *from_name, const char *to_name, int64_t from, int64_t to,
                             lm_dtype dtype) {
  int64_t low, high;
  if (from >= to) {
    return lm_fail_int(lm_ops[op].name, from_name, lm_text("less than %s (%lld)", to_name, (long long)to), from);
  }
  lm_dtype_integers(dtype, &low, &high);
  if (from < low || to - 1 > high) {
    return lm_fail_value(lm_ops[op].name, lm_text("%s and %s", from_name, to_name),
                         lm_text("from %lld to %lld for %s", (long long)low, (long long)high, lm_dtype_name(dtype)),
                         lm_text("%lld and %lld", (long long)from, (long long)to));
  }
  return LM_OK;
}

/* Completes random_'s range: from 0, to the largest number that the dtype has or represents exactly. */
static void complete_range(lm_fill_random_args *a) {
  int64_t low, high;
  if (a->to != LM_NO_INT) {
    if (a->from == LM_NO_INT) a->from = 0;
    return;
  }
  a->to = a->from;
  if (a->from == LM_NO_INT) {
    lm_dtype_integers(a->x->dtype, &low, &high);
    a->to = high < INT64_MAX ? high + 1 : high;
  }
  a->from = 0;
}

lm_status lm_op_fill_random(lm_op_id op, const lm_fill_random_args *a, lm_tensor **out) {
  const char *name = lm_ops[op].name;
  lm_fill_random_args args = *a;
  switch (a->distribution) {
    case LM_DRAW_UNIFORM:
      NEED(check_ends(a));
      if (a->a != 0 || a->b != 1) end_below(a->x->dtype, &args.a, &args.b); /* draws from [0, 1) are exact */
      break;
    case LM_DRAW_NORMAL:
      if (!(a->b >= 0)) return lm_fail_number(name, "std", "at least 0", a->b);
      break;
    case LM_DRAW_LOG_NORMAL:
      if (!(a->b > 0)) return lm_fail_number(name, "std", "above 0", a->b);
      break;
    case LM_DRAW_EXPONENTIAL:
      if (!(a->a > 0)) return lm_fail_number(name, "lambd", "above 0", a->a);
      break;
    case LM_DRAW_CAUCHY:
      if (!(a->b > 0)) return lm_fail_number(name, "sigma", "above 0", a->b);
      break;
    case LM_DRAW_GEOMETRIC:
      if (!(a->a > 0 && a->a < 1)) return lm_fail_number(name, "p", "above 0 and below 1", a->a);
      if (a->x->dtype == LM_BOOL)
        return lm_fail(LM_E_DTYPE, "geometric_: x must not be bool; the result is a number of trials");
      break;
    default: complete_range(&args); NEED(check_range(op, "from", "to", args.from, args.to, a->x->dtype));
  }
  if (a->distribution < LM_DRAW_GEOMETRIC) NEED(lm_check_float(op, "x", a->x));
  NEED(draw_from(op, args));
  *out = lm_retain(a->x);
  return LM_OK;
}

static lm_status check_probability(lm_op_id op, double p) {
  if (p >= 0 && p <= 1) return LM_OK;
  return lm_fail_number(lm_ops[op].name, "p", "from 0 to 1", p);
}

/* Finds the smallest or largest element of x; 0 if there is none, or in a graph's capture, which cannot read it. */
static lm_status find_extreme(lm_tensor *x, lm_statistic which, double *value) {
  LM_OWNED *end = NULL;
  *value = 0;
  if (x->numel == 0 || lm_generator_extra()) return LM_OK;
  NEED(lm_op_reduce(which == LM_STATISTIC_AMIN ? LM_OP_amin : LM_OP_amax,
                    &(lm_reduce_args){.x = x, .dim = {.n = -1}, .statistic = which, .dtype = LM_NO_DTYPE}, &end));
  return lm_tensor_item_f64(end, value);
}

/* Sets x, in the layout of `like`, to 1 where uniform numbers are below p, else 0. */
static lm_status draw_below(lm_frame *f, lm_tensor *like, lm_tensor *p, lm_generator *g, lm_tensor *x) {
  lm_tensor *u = NULL, *same = NULL;
  double smallest, largest;
  NEED(lm_check_float(f->op, "p", p));
  NEED(find_extreme(p, LM_STATISTIC_AMIN, &smallest));
  NEED(find_extreme(p, LM_STATISTIC_AMAX, &largest));
  NEED(check_probability(f->op, smallest));
  NEED(check_probability(f->op, largest));
  NEED(lm_tensor_empty_like(like, p->dtype == LM_F64 ? LM_F64 : LM_F32, like->device, &u));
  lm_frame_hold(f, u);
  NEED(draw_from(f->op, (lm_fill_random_args){.x = u, .distribution = LM_DRAW_UNIFORM, .b = 1, .generator = g}));
  NEED(lm_pointwise_run(LM_OP_lt, 2, (lm_tensor *[]){u, p}, NULL, x, &same));
  lm_release(same);
  return LM_OK;
}

lm_status lm_op_bernoulli_of(lm_op_id op, const lm_bernoulli_of_args *a, lm_tensor **out) {
  lm_tensor *p = a->p;
  double number = 0.5;
  LM_FRAME(f, op);
  if (a->into) {
    f.result[0] = lm_retain(a->into);
  } else {
    NEED(lm_frame_result_like(&f, 0, a->like->dtype, a->like));
    if (!p) p = a->like;
  }
  if (p && p->number) NEED(lm_tensor_item_f64(p, &number));
  if (!p || p->number) {
    NEED(check_probability(op, number));
    NEED(draw_from(op,
                   (lm_fill_random_args){
                       .x = f.result[0], .distribution = LM_DRAW_BERNOULLI, .a = number, .generator = a->generator}));
  } else {
    NEED(draw_below(&f, a->like, p, a->generator, f.result[0]));
  }
  return lm_frame_end(&f, out);
}

/* ---- new tensors */

static lm_status check_drawn(lm_op_id op, lm_dtype dtype) {
  if (lm_dtype_is_float(dtype)) return LM_OK;
  return lm_remedy(lm_fail_dtype(lm_ops[op].name, "dtype", "floating point", lm_dtype_name(dtype)),
                   "use lm.randint for integers");
}

lm_status lm_op_new_random(lm_op_id op, const lm_new_random_args *a, lm_tensor **out) {
  const bool integers = a->distribution == LM_DRAW_INTEGERS;
  lm_dtype dtype = a->dtype;
  if (dtype == LM_NO_DTYPE) dtype = a->like ? a->like->dtype : integers ? LM_I64 : lm_default_dtype();
  lm_fill_random_args args = {
      .distribution = a->distribution, .b = 1, .from = a->from, .to = a->to, .generator = a->generator};
  if (a->to == LM_NO_INT) args.from = 0, args.to = a->from; /* randint_like passes high second */
  NEED(integers ? check_range(op, "low", "high", args.from, args.to, dtype) : check_drawn(op, dtype));
  LM_FRAME(f, op);
  NEED(lm_new_tensor(op, &a->size, a->like, dtype, a->device, &f.result[0]));
  args.x = f.result[0];
  NEED(draw_from(op, args));
  return lm_frame_end(&f, out);
}

lm_status lm_op_randperm(const lm_randperm_args *a, lm_tensor **out) {
  lm_randperm_args args = *a;
  if (args.dtype == LM_NO_DTYPE) args.dtype = LM_I64;
  if (args.device == LM_NO_DEVICE) args.device = lm_default_device();
  if (a->n < 0) return lm_fail_int("randperm", "n", "at least 0", a->n);
  if (a->n > 0) NEED(check_range(LM_OP_randperm, "1", "n + 1", 1, a->n + 1, args.dtype));
  LM_FRAME(f, LM_OP_randperm);
  NEED(lm_frame_result(&f, 0, args.dtype, args.device, 1, &a->n, LM_CONTIGUOUS));
  NEED(fill_randomly(f.op, f.op, f.result[0], &args, a->generator));
  return lm_frame_end(&f, out);
}

/* ---- distributions with tensors as parameters */

/* Draws normal numbers. `size` is required for numbers alone; tensors broadcast. */
lm_status lm_op_normal(const lm_normal_args *a, lm_tensor **out) {
  lm_tensor *const given[] = {a->mean, a->std}, *x, *same;
  bool numbers = a->mean->number && (!a->std || a->std->number);
  double smallest = 0;
  lm_dtype dtype = a->dtype;
  lm_device device = a->device;
  lm_ints size = a->size;
  if (numbers ? a->size.n < 0 : a->size.n > 0) {
    return numbers ? lm_remedy(lm_fail_absent("normal", "size", "sizes, since mean and std are numbers"),
                               "for example lm.normal(0, 1, {2, 3})")
                   : lm_remedy(lm_fail_value("normal", "size", "nil for tensors", lm_shape_text(a->size.n, a->size.v)),
                               "the result has their shape");
  }
  LM_FRAME(f, LM_OP_normal);
  if (!numbers) {
    NEED(lm_check_same_device(LM_OP_normal, a->std ? 2 : 1, given));
    NEED(lm_broadcast("normal", a->mean->ndim, a->mean->size, a->std ? a->std->ndim : 0, a->std ? a->std->size : NULL,
                      &size.n, size.v));
    if (dtype == LM_NO_DTYPE) dtype = lm_result_type(2, given);
    if (device == LM_NO_DEVICE) device = a->std && a->mean->ndim == 0 ? a->std->device : a->mean->device;
  }
  if (dtype == LM_NO_DTYPE) dtype = lm_default_dtype();
  NEED(check_drawn(LM_OP_normal, dtype));
  if (a->std) NEED(find_extreme(a->std, LM_STATISTIC_AMIN, &smallest));
  if (a->std && !(smallest >= 0)) return lm_fail_number("normal", "std", "at least 0", smallest);
  NEED(lm_new_tensor(LM_OP_normal, &size, NULL, dtype, device, &f.result[0]));
  x = f.result[0];
  NEED(draw_from(LM_OP_normal,
                 (lm_fill_random_args){.x = x, .distribution = LM_DRAW_NORMAL, .b = 1, .generator = a->generator}));
  if (a->std) {
    NEED(lm_pointwise_run(LM_OP_mul, 2, (lm_tensor *[]){x, a->std}, NULL, x, &same));
    lm_frame_hold(&f, same);
  }
  NEED(lm_pointwise_run(LM_OP_add, 2, (lm_tensor *[]){x, a->mean}, (double[]){1}, x, &same));
  lm_frame_hold(&f, same);
  return lm_frame_end(&f, out);
}

lm_status lm_op_poisson(const lm_poisson_args *a, lm_tensor **out) {
  lm_poisson_args args = *a;
  double smallest;
  LM_FRAME(f, LM_OP_poisson);
  NEED(lm_check_float(f.op, "x", a->x));
  NEED(find_extreme(a->x, LM_STATISTIC_AMIN, &smallest));
  if (!(smallest >= 0)) return lm_fail_number("poisson", "x", "at least 0", smallest);
  NEED(lm_frame_layout(&f, &args.x, LM_CONTIGUOUS));
  NEED(lm_frame_result(&f, 0, a->x->dtype, a->x->device, a->x->ndim, a->x->size, LM_CONTIGUOUS));
  NEED(fill_randomly(f.op, f.op, f.result[0], &args, a->generator));
  return lm_frame_end(&f, out);
}

lm_status lm_op_binomial(const lm_binomial_args *a, lm_tensor **out) {
  lm_tensor *const given[] = {a->count, a->prob};
  lm_binomial_args args = *a;
  lm_ints size;
  double smallest, largest;
  LM_FRAME(f, LM_OP_binomial);
  NEED(lm_check_same_device(f.op, 2, given));
  NEED(lm_check_float(f.op, "count", a->count));
  NEED(lm_check_float(f.op, "prob", a->prob));
  NEED(find_extreme(a->count, LM_STATISTIC_AMIN, &smallest));
  if (smallest < 0) return lm_fail_number("binomial", "count", "at least 0", smallest);
  NEED(find_extreme(a->prob, LM_STATISTIC_AMIN, &smallest));
  NEED(find_extreme(a->prob, LM_STATISTIC_AMAX, &largest));
  if (smallest < 0 || largest > 1) {
    return lm_fail_number("binomial", "prob", "from 0 to 1", smallest < 0 ? smallest : largest);
  }
  NEED(lm_broadcast("binomial", a->count->ndim, a->count->size, a->prob->ndim, a->prob->size, &size.n, size.v));
  const lm_dtype dtype = lm_result_type(2, given);
  lm_tensor **const both[] = {&args.count, &args.prob};
  for (int i = 0; i < 2; i++) {
    NEED(lm_frame_convert(&f, both[i], dtype));
    NEED(lm_frame_expand(&f, both[i], &size, 0));
    NEED(lm_frame_layout(&f, both[i], LM_CONTIGUOUS));
  }
  NEED(lm_frame_result(&f, 0, dtype, a->count->device, size.n, size.v, LM_CONTIGUOUS));
  NEED(fill_randomly(f.op, f.op, f.result[0], &args, a->generator));
  return lm_frame_end(&f, out);
}

/* ---- multinomial */

/* Checks that elements are finite and at least 0, and that each row has one above 0, or one for each sample without
 * replacement; skipped during capture of a graph. */
static lm_status check_weights(lm_tensor *x, const lm_multinomial_args *a) {
  LM_OWNED *above = NULL;
  double smallest, largest, fewest;
  if (x->numel == 0 || lm_generator_extra()) return LM_OK;
  NEED(find_extreme(x, LM_STATISTIC_AMIN, &smallest));
  NEED(find_extreme(x, LM_STATISTIC_AMAX, &largest));
  NEED(lm_op_reduce(
      LM_OP_count_nonzero,
      &(lm_reduce_args){
          .x = x, .dim = {.n = 1, .v = {1}}, .statistic = LM_STATISTIC_COUNT_NONZERO, .dtype = LM_NO_DTYPE},
      &above));
  NEED(find_extreme(above, LM_STATISTIC_AMIN, &fewest));
  if (!(smallest >= 0) || !isfinite(largest)) {
    return lm_fail_number("multinomial", "x", "at least 0 and finite", smallest >= 0 ? largest : smallest);
  }
  if (fewest < 1) return lm_fail_value("multinomial", "the sum of each row of x", "above 0", "0");
  if (a->replacement || fewest >= (double)a->num_samples) return LM_OK;
  return lm_fail(LM_E_ARG,
                 "multinomial: cannot draw %lld samples without replacement from a row with %.0f weights above 0; pass "
                 "{replacement = true}",
                 (long long)a->num_samples, fewest);
}

/* Draws k distinct indices per row of x [rows, n]: those of the largest x / e, with e exponentially distributed. They
 * are the first of n events that arrive at rates x (Efraimidis and Spirakis 2006). */
static lm_status pick_distinct(lm_frame *f, lm_tensor *x, int64_t k, lm_generator *g) {
  lm_tensor *e = NULL, *same = NULL, *top[2] = {NULL, NULL};
  NEED(lm_tensor_empty(x->dtype == LM_F64 ? LM_F64 : LM_F32, x->device, 2, x->size, LM_CONTIGUOUS, &e));
  lm_frame_hold(f, e);
  NEED(draw_from(f->op, (lm_fill_random_args){.x = e, .distribution = LM_DRAW_EXPONENTIAL, .a = 1, .generator = g}));
  NEED(lm_pointwise_run(LM_OP_div, 2, (lm_tensor *[]){x, e}, NULL, e, &same));
  lm_frame_hold(f, same);
  if (k == 1)
    return lm_op_extreme_along(LM_OP_argmax,
                               &(lm_extreme_along_args){.x = e, .dim = 1, .keepdim = true, .largest = true}, f->result);
  NEED(lm_op_topk(&(lm_topk_args){.x = e, .k = k, .dim = 1, .largest = true, .sorted = true}, top));
  lm_frame_hold(f, top[0]);
  f->result[0] = top[1];
  return LM_OK;
}

static lm_status pick_again(lm_frame *f, lm_tensor *x, const lm_multinomial_args *a) {
  lm_multinomial_args args = *a;
  args.x = x;
  NEED(lm_frame_layout(f, &args.x, LM_CONTIGUOUS));
  NEED(lm_frame_result(f, 0, LM_I64, x->device, 2, (int64_t[]){x->size[0], a->num_samples}, LM_CONTIGUOUS));
  return fill_randomly(f->op, f->op, f->result[0], &args, a->generator);
}

lm_status lm_op_multinomial(const lm_multinomial_args *a, lm_tensor **out) {
  lm_tensor *x = a->x;
  int ndim = a->x->ndim;
  if (ndim != 1 && ndim != 2) { return lm_fail_shape("multinomial", "x", "[n] or [rows, n]", lm_shape_of(a->x)); }
  int64_t n = a->x->size[ndim - 1], k = a->num_samples;
  NEED(lm_check_float(LM_OP_multinomial, "x", a->x));
  if (k < 1) return lm_fail_int("multinomial", "num_samples", "at least 1", k);
  if (n == 0) return lm_fail_shape("multinomial", "x", "[n] or [rows, n] with n above 0", lm_shape_of(a->x));
  if (!a->replacement && k > n) {
    return lm_fail(
        LM_E_ARG,
        "multinomial: cannot draw %lld samples without replacement from %lld categories; pass {replacement = true}",
        (long long)k, (long long)n);
  }
  LM_FRAME(f, LM_OP_multinomial);
  NEED(lm_frame_batch(&f, &x, 2));
  NEED(check_weights(x, a));
  NEED(x->size[0] > 0 && (k == 1 || !a->replacement) ? pick_distinct(&f, x, k, a->generator) : pick_again(&f, x, a));
  lm_frame_unbatch(&f, 0);
  return lm_frame_end(&f, out);
}
