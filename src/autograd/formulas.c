#include "autograd/formulas.h"

#include <math.h>
#include <string.h>

#include "autograd/rules.h"

static lm_ints size_of(const lm_tensor *t) {
  lm_ints s = {.n = t->ndim};
  memcpy(s.v, t->size, sizeof s.v);
  return s;
}

static int normal_dim(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + ndim : dim); }

/* size with 1 at the reduced dims; all of them where none are given. */
static lm_ints kept_size(lm_ints dims, lm_ints size) {
  lm_ints kept = size;
  for (int d = 0; d < size.n && dims.n <= 0; d++) kept.v[d] = 1;
  for (int i = 0; i < dims.n && size.n > 0; i++) kept.v[normal_dim(dims.v[i], size.n)] = 1;
  return kept;
}

static lm_tensor *kept_form(lm_expr *e_, lm_tensor *t, lm_ints dims, bool keepdim, lm_ints size) {
  if (!t || keepdim || t->ndim == size.n) return t;
  return reshape(t, kept_size(dims, size));
}

lm_tensor *lm_f_scaled(lm_expr *e_, lm_tensor *g, double factor) {
  if (!g || factor == 1) return g;
  return factor == -1 ? neg(g) : mul(g, factor);
}

lm_tensor *lm_f_zeros_of(lm_expr *e_, lm_tensor *g, lm_ints size) {
  return g ? zeros(size, g->dtype, g->device) : NULL;
}

lm_tensor *lm_f_spread(lm_expr *e_, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size) {
  if (!g) return NULL;
  if (g->ndim != 0) g = kept_form(e_, g, dims, keepdim, size);
  return expand(g, size);
}

double lm_f_count(lm_expr *e, lm_ints dims, lm_ints size) {
  (void)e;
  double n = 1;
  lm_ints kept = kept_size(dims, size);
  for (int d = 0; d < size.n; d++) {
    if (kept.v[d] != size.v[d]) n *= (double)size.v[d];
  }
  return n;
}

lm_tensor *lm_f_var_grad(lm_expr *e_, lm_tensor *g, lm_tensor *x, lm_ints dims, int64_t correction, bool keepdim) {
  if (!g) return NULL;
  lm_ints size = size_of(x);
  double n = lm_f_count(e_, dims, size) - (double)correction;
  lm_tensor *factor = mul(g, 2 / fmax(0, n));
  return mul(kept_form(e_, factor, dims, keepdim, size), sub(x, mean(x, dims, 1)));
}

lm_tensor *lm_f_norm_grad(lm_expr *e_, lm_tensor *g, lm_tensor *x, lm_tensor *y, double p, lm_ints dims, bool keepdim) {
  if (!g) return NULL;
  lm_ints size = size_of(x);
  g = kept_form(e_, g, dims, keepdim, size);
  y = kept_form(e_, y, dims, keepdim, size);
  if (p == 0) return zeros_like(x);
  if (p == 1) return mul(sign(x), g);
  if (p == 2) return mul(x, masked_fill(div(g, y), eq(y, 0), 0));
  if (isinf(p)) { /* the largest (or smallest) share */
    lm_tensor *hit = eq(abs(x), y);
    return mul(where(hit, sign(x), 0), div(g, sum(hit, dims, 1)));
  }
  /* g sign(x) (|x| / y)^(p - 1), 0 where it is undefined */
  lm_tensor *power = pow(abs(x), p - 1);
  if (p < 1) power = masked_fill(power, eq(x, 0), 0);
  return mul(mul(sign(x), power), masked_fill(div(g, pow(y, p - 1)), eq(y, 0), 0));
}

lm_tensor *lm_f_extreme_grad(lm_expr *e_, lm_tensor *g, lm_tensor *x, lm_tensor *y, lm_ints dims, bool keepdim) {
  if (!g) return NULL;
  lm_ints size = size_of(x);
  lm_tensor *hit = eq(x, kept_form(e_, y, dims, keepdim, size));
  return where(hit, div(kept_form(e_, g, dims, keepdim, size), sum(hit, dims, 1)), 0);
}

lm_tensor *lm_f_place_grad(lm_expr *e_, lm_tensor *g, lm_tensor *index, int64_t dim, bool keepdim, lm_ints size) {
  if (!g) return NULL;
  if (size.n == 0) return reshape(g, size);
  if (dim == LM_NO_DIM) dim = -1;
  if (!keepdim) {
    g = unsqueeze(g, normal_dim(dim, size.n));
    index = unsqueeze(index, normal_dim(dim, size.n));
  }
  return scatter_add(zeros_of(g, size), dim, index, g);
}

lm_tensor *lm_f_rows(lm_expr *e_, lm_tensor *g) {
  if (!g || g->ndim == 2) return g;
  lm_ints size = {.n = 2, .v = {1, g->size[g->ndim - 1]}};
  for (int d = 0; d < g->ndim - 1; d++) size.v[0] *= g->size[d];
  return reshape(g, size);
}

lm_tensor *lm_f_cat_grad(lm_expr *e_, lm_tensor *g, int64_t dim, const lm_ints *sizes, int at, lm_before *before) {
  if (!g) return NULL;
  const lm_ints *own = &sizes[at];
  if (own->n == 1 && own->v[0] == 0 && g->ndim != 1) return NULL; /* the empty tensor cat ignores */
  int d = normal_dim(dim == LM_NO_DIM ? 0 : dim, g->ndim);
  for (; before->n < at; before->n++) {
    if (sizes[before->n].n == g->ndim) before->size += sizes[before->n].v[d];
  }
  return narrow(g, d, before->size + 1, own->v[d]);
}

lm_tensor *lm_f_scattered_grad(lm_expr *e_, lm_tensor *g, int64_t dim, lm_tensor *index, lm_ints size) {
  if (!g) return NULL;
  lm_tensor *r = gather(g, dim, index);
  for (int d = 0; r && d < size.n && d < r->ndim; d++) {
    if (r->size[d] == size.v[d]) continue;
    lm_ints wider = size_of(r);
    wider.v[d] = size.v[d];
    r = r->size[d] == 0 ? zeros_of(g, wider) : slice_backward(r, wider, d, 1, 1);
  }
  return r;
}

lm_tensor *lm_f_index_put_grad(lm_expr *e_, lm_tensor *g, lm_list indices, bool accumulate) {
  return !g || accumulate ? g : index_put(g, indices, 0);
}

lm_tensor *lm_f_embedding_grad_grad(lm_expr *e_, lm_tensor *g, lm_tensor *index, int64_t padding) {
  if (!g) return NULL;
  lm_tensor *r = embedding(index, g);
  return padding > 0 ? masked_fill(r, unsqueeze(eq(index, padding), -1), 0) : r;
}

lm_tensor *lm_f_channel_sum(lm_expr *e_, lm_tensor *g) {
  if (!g) return NULL;
  return g->ndim == 3 ? sum(g, ((lm_ints){2, {1, 2}})) : sum(g, ((lm_ints){3, {0, 2, 3}}));
}

static lm_tensor *flat_plane(lm_expr *e_, lm_tensor *g) {
  lm_ints size = {.n = g->ndim - 1};
  memcpy(size.v, g->size, sizeof(int64_t) * (size_t)size.n);
  size.v[size.n - 1] *= g->size[g->ndim - 1];
  return reshape(g, size);
}

lm_tensor *lm_f_pooled_places(lm_expr *e_, lm_tensor *g, lm_tensor *places) {
  if (!g) return NULL;
  return reshape(gather(flat_plane(e_, g), g->ndim - 2, flat_plane(e_, places)), size_of(places));
}

lm_tensor *lm_f_adaptive_pooled(lm_expr *e_, lm_tensor *g, lm_ints size) {
  if (!g) return NULL;
  const int64_t out[2] = {size.v[size.n - 2], size.v[size.n - 1]};
  return adaptive_avg_pool2d(g, out);
}

lm_tensor *lm_f_dropout_grad(lm_expr *e_, lm_tensor *g, lm_tensor *mask, double p, bool training) {
  if (!g || !training || !mask) return g;
  return mul(mul(g, mask), p < 1 ? 1 / (1 - p) : 0);
}

lm_tensor *lm_f_unpermuted(lm_expr *e_, lm_tensor *g, lm_ints dims) {
  if (!g) return NULL;
  lm_ints back = {.n = g->ndim};
  for (int i = 0; i < g->ndim; i++) { back.v[dims.n < 0 ? g->ndim - 1 - i : normal_dim(dims.v[i], g->ndim)] = i; }
  return permute(g, back);
}

/* Entries count from 1, or from -1 at the end. */
static int64_t normal_entry(int64_t entry, int64_t n) { return entry < 0 ? entry + n + 1 : entry; }

lm_tensor *lm_f_select_grad(lm_expr *e_, lm_tensor *g, int64_t dim, int64_t index, lm_ints size) {
  int d = normal_dim(dim, size.n);
  return slice_backward(unsqueeze(g, d), size, d, normal_entry(index, size.v[d]), 1);
}

lm_tensor *lm_f_slice_grad(lm_expr *e_, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size) {
  if (!g) return NULL;
  int d = normal_dim(dim, size.n);
  if (g->size[d] == 0) return zeros_of(g, size);
  first = normal_entry(first, size.v[d]);
  return slice_backward(g, size, d, first < 1 ? 1 : first, step);
}

lm_tensor *lm_f_slice_grad_grad(lm_expr *e_, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size) {
  if (!g) return NULL;
  int d = normal_dim(dim, size.n);
  int64_t n = size.v[d];
  if (n == 0) return narrow(g, d, 1, 0);
  first = normal_entry(first, g->size[d]);
  return slice(g, d, first, first + (n - 1) * step, step);
}
