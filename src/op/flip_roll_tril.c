/* Flips and rolls tensors, and extracts triangles. */
#include <string.h>

#include "base/message.h"
#include "op/frame.h"

/* ---- flip */

/* Creates a view of x reversed along the flipped dims. It has negative strides, which callers' tensors never have. */
static lm_status reversed(lm_tensor *x, const bool *flipped, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *v = NULL;
  TRY(lm_tensor_view(x, x->ndim, x->size, x->stride, 0, &v));
  for (int d = 0; d < x->ndim; d++) {
    if (!flipped[d] || x->size[d] < 2) continue;
    v->data += (x->size[d] - 1) * x->stride[d] * (int64_t)lm_dtype_size(x->dtype);
    v->stride[d] = -x->stride[d];
  }
  *out = v;
done:
  return status;
}

lm_status lm_op_flip(const lm_flip_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_frame f;
  lm_tensor *from = NULL;
  bool flipped[LM_MAX_DIMS] = {false};
  lm_ints dims;
  lm_frame_begin(&f, LM_OP_flip);
  TRY(lm_dims(LM_OP_flip, &a->dims, a->x->ndim, &dims));
  if (a->dims.n == 0) dims.n = 0;
  for (int i = 0; i < dims.n; i++) flipped[dims.v[i]] = true;
  TRY(lm_frame_result_like(&f, 0, a->x->dtype, a->x));
  if (a->x->numel > 0) {
    TRY(reversed(a->x, flipped, &from));
    TRY(lm_copy(lm_frame_hold(&f, from), f.result[0]));
  }
done:
  return lm_frame_end(&f, status, out);
}

/* ---- roll */

typedef struct rolling {
  lm_tensor *x, *out;
  int n;
  int dim[LM_MAX_DIMS];
  int64_t shift[LM_MAX_DIMS]; /* 0 to size - 1 */
} rolling;

/* Rolls the dims of the list from i on: copies the part that stays, then the part that wraps to the beginning. */
static lm_status roll_parts(const rolling *r, int i, lm_tensor *from, lm_tensor *to) {
  lm_status status = LM_OK;
  lm_tensor *part[2] = {NULL, NULL};
  if (i == r->n) return lm_copy(from, to);
  int64_t n = from->size[r->dim[i]], shift = r->shift[i];
  for (int last = 0; last < 2; last++) {
    int64_t first = last ? n - shift : 0, length = last ? shift : n - shift;
    lm_narrow_args read = {.x = from, .dim = r->dim[i], .start = first + 1, .length = length};
    lm_narrow_args write = {.x = to, .dim = r->dim[i], .start = (last ? 0 : shift) + 1, .length = length};
    if (length == 0) continue;
    TRY(lm_op_narrow(&read, &part[0]));
    TRY(lm_op_narrow(&write, &part[1]));
    TRY(roll_parts(r, i + 1, part[0], part[1]));
    for (int k = 0; k < 2; k++) {
      lm_release(part[k]);
      part[k] = NULL;
    }
  }
done:
  lm_release(part[0]);
  lm_release(part[1]);
  return status;
}

/* Rolls one dim, as a concatenation of its end and the rest. */
static lm_status roll_dim(const rolling *r, lm_tensor *from, lm_tensor *to) {
  lm_status status = LM_OK;
  lm_tensor *part[2] = {NULL, NULL};
  int64_t n = from->size[r->dim[0]], shift = r->shift[0];
  lm_narrow_args end = {.x = from, .dim = r->dim[0], .start = n - shift + 1, .length = shift};
  lm_narrow_args rest = {.x = from, .dim = r->dim[0], .start = 1, .length = n - shift};
  TRY(lm_op_narrow(&end, &part[0]));
  TRY(lm_op_narrow(&rest, &part[1]));
  lm_cat_args args = {.tensors = {2, part}, .dim = r->dim[0]};
  TRY(lm_dispatch(LM_OP_cat, to->device, &args, &to));
done:
  lm_release(part[0]);
  lm_release(part[1]);
  return status;
}

/* Adds a shift of dim, modulo n; shifts of a repeated dim add up. */
static void add_shift(rolling *r, int dim, int64_t n, int64_t shift) {
  int at = 0;
  while (at < r->n && r->dim[at] != dim) at++;
  if (at == r->n) {
    r->dim[r->n] = dim;
    r->shift[r->n++] = 0;
  }
  shift %= n;
  r->shift[at] = (r->shift[at] + (shift < 0 ? shift + n : shift)) % n;
}

lm_status lm_op_roll(const lm_roll_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_roll_args run = *a;
  lm_frame f;
  rolling r = {.n = 0};
  bool whole = a->dims.n <= 0;
  lm_frame_begin(&f, LM_OP_roll);
  if (whole ? a->shifts.n != 1 : a->shifts.n != a->dims.n) {
    TRY(lm_fail_value("roll", "shifts",
                      whole ? "1 shift without dims" : lm_text("%d shifts for %d dims", a->dims.n, a->dims.n),
                      lm_text("%d", a->shifts.n < 0 ? 0 : a->shifts.n)));
  }
  if (whole) TRY(lm_frame_layout(&f, &run.x, LM_CONTIGUOUS));
  TRY(lm_frame_result(&f, 0, run.x->dtype, run.x->device, run.x->ndim, run.x->size, LM_CONTIGUOUS));
  const int64_t n = run.x->numel;
  for (int i = 0; i < (whole ? 0 : a->dims.n); i++) {
    int dim;
    TRY(lm_dim("roll", a->dims.v[i], run.x->ndim, &dim));
    if (n > 0 && run.x->ndim > 0) add_shift(&r, dim, run.x->size[dim], a->shifts.v[i]);
  }
  if (whole && n > 0) {
    add_shift(&r, 0, n, a->shifts.v[0]);
    TRY(lm_frame_reshape(&f, &run.x, 1, &n));
    TRY(lm_frame_reshape(&f, &f.slot[0], 1, &n));
  }
  if (n > 0) TRY(r.n == 1 && r.shift[0] > 0 ? roll_dim(&r, run.x, f.slot[0]) : roll_parts(&r, 0, run.x, f.slot[0]));
done:
  return lm_frame_end(&f, status, out);
}

/* ---- tril, triu: the kernel gets contiguous x, which may be the result, and a diagonal from -rows to columns */

static lm_status triangle(lm_tensor *x, int64_t k, bool upper, lm_tensor *result) {
  int64_t rows = x->size[x->ndim - 2], columns = x->size[x->ndim - 1];
  lm_triangle_args args = {.x = x, .diagonal = k < -rows ? -rows : k > columns ? columns : k, .upper = upper};
  return x->numel == 0 ? LM_OK : lm_dispatch(LM_OP_triangle, x->device, &args, &result);
}

static lm_status check_matrices(const char *name, const lm_tensor *x) {
  if (x->ndim >= 2) return LM_OK;
  return lm_fail_shape(name, "x", "[*, rows, columns]", lm_shape_of(x));
}

lm_status lm_op_triangle(const lm_triangle_args *a, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_triangle_args run = *a;
  lm_frame f;
  lm_frame_begin(&f, LM_OP_triangle);
  TRY(check_matrices(a->upper ? "triu" : "tril", a->x));
  TRY(lm_frame_layout(&f, &run.x, LM_CONTIGUOUS));
  TRY(lm_frame_result_like(&f, 0, run.x->dtype, run.x));
  TRY(triangle(run.x, a->diagonal, a->upper, f.result[0]));
done:
  return lm_frame_end(&f, status, out);
}

static lm_status triangle_here(const char *name, lm_tensor *x, int64_t diagonal, bool upper, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *line = NULL;
  TRY(check_matrices(name, x));
  TRY(lm_to_layout(x, LM_CONTIGUOUS, &line));
  TRY(triangle(line, diagonal, upper, line));
  if (line != x) TRY(lm_copy(line, x));
  *out = lm_retain(x);
done:
  lm_release(line);
  return status;
}

lm_status lm_op_tril_(const lm_tril__args *a, lm_tensor **out) {
  return triangle_here("tril_", a->x, a->diagonal, false, out);
}

lm_status lm_op_triu_(const lm_triu__args *a, lm_tensor **out) {
  return triangle_here("triu_", a->x, a->diagonal, true, out);
}
