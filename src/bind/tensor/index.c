/* Runs x[key] and x[key] = value. A key is an integer, a tensor, or a list with one entry for each dim:
 *   2 or -1      one index; removes the dim     {}           all of the dim
 *   {2}, {2, 5}  a range, ends included         {1, 9, 2}    with a step
 *   int64 tensor indices from 1                 bool tensor  a mask over as many dims as it has
 *   "..."        all remaining dims             "newaxis"    a new dim of size 1 (lm.newaxis)
 * Basic entries become views; all index tensors are passed to one index_get or index_put_. */
#include "base/message.h"
#include "bind/bind.h"
#include "op/check.h"
#include "op_entries.h"

typedef enum entry_kind { AT, RANGE, WHOLE, REST, INDICES, MASK, NEW } entry_kind;
typedef struct entry {
  entry_kind kind;
  int64_t first, last, step;
  lm_tensor *t;
} entry;

enum { MAX_ENTRIES = 2 * LM_MAX_DIMS + 1, MAX_OWNED = 4 * LM_MAX_DIMS };

static lm_status read_range(lua_State *L, const lm_lua *s, int i, entry *e) {
  lm_ints v = {0};
  NEED(lm_read_ints(L, s, i, "x[…]", "range", false, &v));
  if (v.n == 0) {
    e->kind = WHOLE;
    return LM_OK;
  }
  if (v.n > 3)
    return lm_fail_value("x[…]", "a range", "{first, last} or {first, last, step}", lm_text("%d numbers", v.n));
  *e = (entry){.kind = RANGE, .first = v.v[0], .last = v.n > 1 ? v.v[1] : v.v[0], .step = v.n > 2 ? v.v[2] : 1};
  return LM_OK;
}

static lm_status fail_bad_index(lua_State *L, const lm_lua *s, int i) {
  return lm_fail_value("x[…]", "an index", "an integer, a range, a tensor, \"...\" or lm.newaxis",
                       lm_text("%s%s", lm_describe_arg(L, s, i), lm_equality_hint(lua_type(L, i))));
}

static lm_status read_entry(lua_State *L, const lm_lua *s, int i, entry *e) {
  *e = (entry){.kind = AT};
  switch (lua_type(L, i)) {
    case LUA_TTABLE: return read_range(L, s, i, e);
    case LUA_TUSERDATA:
      NEED(lm_read_tensor(L, s, i, "x[…]", "index", &e->t));
      e->kind = e->t->dtype == LM_BOOL ? MASK : INDICES;
      break;
    case LUA_TSTRING:
      if (!lm_to_text(L, i)) return fail_bad_index(L, s, i);
      if (strcmp(lua_tostring(L, i), "...") == 0) {
        e->kind = REST;
      } else if (strcmp(lua_tostring(L, i), "newaxis") == 0) {
        e->kind = NEW;
      } else {
        return fail_bad_index(L, s, i);
      }
      break;
    default:
      if (lm_read_int(L, s, i, "x[…]", "index", &e->first) != LM_OK) return fail_bad_index(L, s, i);
  }
  return LM_OK;
}

/* Reads the key at stack index 2 into n entries. */
static lm_status read_key(lua_State *L, const lm_lua *s, int *n, entry *e) {
  lm_status status = LM_OK;
  *n = 1;
  if (lua_type(L, 2) != LUA_TTABLE) return read_entry(L, s, 2, &e[0]);
  size_t count = lua_objlen(L, 2);
  if (count > MAX_ENTRIES)
    return lm_fail_value("x[…]", "the number of indices", lm_text("at most %d", LM_MAX_DIMS), lm_text("%zu", count));
  if (count > 0) status = lm_check_start(L, 2, "x[…]", "key");
  for (size_t k = 0; k < count && status == LM_OK; k++) {
    lua_rawgeti(L, 2, (int)k + 1);
    status = read_entry(L, s, lua_gettop(L), &e[k]);
    lua_pop(L, 1);
  }
  *n = (int)count;
  if (status != LM_OK) return status;
  if (count > 0) { /* x[{}] is all of x, but {first = 1} and {2, first = 1} are mistakes */
    lua_pushinteger(L, (lua_Integer)count);
  } else {
    lua_pushnil(L);
  }
  if (lua_next(L, 2)) {
    if (count == 0 || lua_type(L, -2) != LUA_TNUMBER) {
      status = lm_fail_value("x[…]", "the index", "a list",
                             lm_text("a table with key %s", lm_describe_arg(L, s, lua_gettop(L) - 1)));
    }
    lua_pop(L, 2);
    return status;
  }
  return count == 0 ? lm_check_empty(L, 2, "x[…]", "key") : LM_OK;
}

/* A key applied to x: a view by the key's basic entries, and index tensors for the view's dims. */
typedef struct picked {
  lm_tensor *view;
  int nindices; /* 0: the view is the result */
  lm_tensor *indices[LM_MAX_DIMS];
  int nowned;
  lm_tensor *owned[MAX_OWNED];
} picked;

static lm_tensor *own_tensor(picked *p, lm_tensor *t) { return p->owned[p->nowned++] = t; }

static void release_picked(picked *p) {
  while (p->nowned > 0) lm_release(p->owned[--p->nowned]);
}

/* Checks an integer or a range against x's dim: the view at hand has other dims, which a message must not name. */
static lm_status check_entry(const lm_tensor *x, int dim, const entry *e) {
  int64_t size = x->size[dim], first = e->first < 0 ? e->first + size + 1 : e->first;
  if (e->first == 0) return lm_fail_index("x[…]", 0, dim + 1, size);
  if (e->kind == AT) {
    if (first >= 1 && first <= size) return LM_OK;
    return lm_fail_index("x[…]", e->first, dim + 1, size);
  }
  int64_t last = e->last < 0 ? e->last + size + 1 : e->last; /* first - 1 makes an empty range */
  if (first >= 1 && first <= size + 1 && last >= 0 && last <= size) return LM_OK;
  return lm_fail_index("x[…]", first < 1 || first > size + 1 ? e->first : e->last, dim + 1, size);
}

/* Returns the number of x's dims that an entry takes; `rest`: the number that "..." takes. */
static int dims_of(const entry *e, int rest) {
  if (e->kind == REST) return rest;
  return e->kind == NEW ? 0 : e->kind == MASK ? e->t->ndim : 1;
}

static lm_status pick_entries(lm_tensor *x, int n, const entry *e, picked *p) {
  lm_tensor *out[LM_MAX_OUTS];
  int used = 0, dim = 0, source = 0; /* dim: current dim of the view; source: of x */
  int at = 0;                        /* position in p->indices, where a mask of several dims is one entry */
  bool rest = false;
  for (int i = 0; i < n; i++) {
    if (e[i].kind == REST && rest) return lm_fail(LM_E_ARG, "x[…]: \"...\" must appear at most once");
    rest |= e[i].kind == REST;
    used += dims_of(&e[i], 0);
  }
  if (used > x->ndim) {
    if (x->ndim == 0) return lm_fail(LM_E_SHAPE, "x[…]: a 0-d tensor cannot be indexed; x:item() is its value");
    return lm_fail_int("x[…]", "the number of indices",
                       lm_text("at most %d for x of shape %s", x->ndim, lm_shape_of(x)), used);
  }
  p->view = x;
  for (int i = 0; i < n; i++) {
    switch (e[i].kind) {
      case AT: {
        NEED(check_entry(x, source, &e[i]));
        lm_select_args a = {.x = p->view, .dim = dim, .index = e[i].first};
        NEED(lm_call_by_script(LM_OP_select, &a, false, out));
        p->view = own_tensor(p, out[0]);
        break;
      }
      case RANGE: {
        NEED(check_entry(x, source, &e[i]));
        lm_slice_args a = {.x = p->view, .dim = dim, .first = e[i].first, .last = e[i].last, .step = e[i].step};
        NEED(lm_call_by_script(LM_OP_slice, &a, false, out));
        p->view = own_tensor(p, out[0]);
        dim++, at++;
        break;
      }
      case NEW: {
        lm_unsqueeze_args a = {.x = p->view, .dim = dim++};
        NEED(lm_call_by_script(LM_OP_unsqueeze, &a, false, out));
        p->view = own_tensor(p, out[0]);
        at++;
        break;
      }
      case WHOLE: dim++, at++; break;
      case REST: dim += x->ndim - used, at += x->ndim - used; break;
      case INDICES:
      case MASK:
        p->indices[at++] = e[i].t;
        p->nindices = at;
        dim += dims_of(&e[i], 0);
        break;
    }
    source += dims_of(&e[i], x->ndim - used);
  }
  return LM_OK;
}

/* ---- reading */

/* Pushes an element as a Lua value without making a view, if the key is all integers and t is a CPU tensor that records
 * no gradient; else returns false. */
static bool push_one(lua_State *L, const lm_lua *s, lm_tensor *t, int n, const entry *e) {
  if (n != t->ndim || LM_DEVICE_KIND(t->device) != LM_CPU || (lm_grad_enabled() && lm_requires_grad(t))) return false;
  int64_t offset = 0;
  for (int d = 0; d < n; d++) {
    if (e[d].kind != AT) return false;
    int64_t i = e[d].first > 0 ? e[d].first - 1 : e[d].first + t->size[d];
    if (e[d].first == 0 || i < 0 || i >= t->size[d]) return false; /* select then words the error */
    offset += i * t->stride[d];
  }
  lm_note_read(L, s, t, "an index");
  lm_push_element(L, t->dtype, t->data + offset * (int64_t)lm_dtype_size(t->dtype));
  return true;
}

typedef struct reading {
  lm_tensor *out;
  bool one; /* every dim was indexed by an integer */
} reading;

static lm_status attempt_get(lua_State *L, lm_lua *s, void *arg) {
  reading *r = arg;
  entry e[MAX_ENTRIES];
  picked p __attribute__((cleanup(release_picked))) = {0};
  lm_tensor *x, *out[LM_MAX_OUTS];
  int n;
  NEED(lm_read_tensor(L, s, 1, "x[…]", "x", &x));
  NEED(read_key(L, s, &n, e));
  NEED(pick_entries(x, n, e, &p));
  r->one = p.nindices == 0 && p.view->ndim == 0;
  for (int i = 0; i < n; i++) r->one &= e[i].kind == AT || e[i].kind == REST;
  if (p.nindices > 0) {
    lm_index_get_args a = {.x = p.view, .indices = {p.nindices, p.indices}};
    NEED(lm_call_by_script(LM_OP_index_get, &a, false, out));
    r->out = out[0];
  } else {
    r->out = lm_retain(p.view);
  }
  return LM_OK;
}

int lm_index_get(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 2);
  lm_tensor *t = s->follows ? NULL : lm_to_tensor(L, s, 1);
  entry e[MAX_ENTRIES];
  int n;
  if (t && read_key(L, s, &n, e) == LM_OK && push_one(L, s, t, n, e)) return 1;
  lm_gc_step_if_due(L, s);
  lm_tensor_handle *b = lm_tensor_handle_new(L);
  reading r = {0};
  s->reads_for_op = true;
  lm_status status = lm_retry_after_gc(L, s, attempt_get, &r);
  t = lm_to_tensor(L, s, 1);
  s->reads_for_op = false;
  lm_need(L, status);
  if (r.out == t) { /* x[{}] */
    lm_release(r.out);
    lua_settop(L, 1);
    return 1;
  }
  lm_tensor_handle_fill(s, b, r.out);
  if (!t || r.out->storage != t->storage) lm_gc_step_count(s, r.out);
  if (r.one) lm_need(L, lm_settle());
  if (!r.one || (lm_grad_enabled() && lm_requires_grad(r.out))) return 1;
  double number;
  int64_t whole = 0;
  lm_note_read(L, s, r.out, "an index");
  bool is_float = lm_dtype_is_float(r.out->dtype);
  lm_need(L, is_float ? lm_tensor_item_f64(r.out, &number) : lm_tensor_item_i64(r.out, &whole));
  if (is_float) {
    lua_pushnumber(L, number);
  } else {
    uint8_t truth = whole != 0;
    lm_push_element(L, r.out->dtype == LM_BOOL ? LM_BOOL : LM_I64, r.out->dtype == LM_BOOL ? (void *)&truth : &whole);
  }
  lm_tensor_handle_drop(s, b, "was read as a number");
  return 1;
}

/* ---- writing */

/* Returns a view of value without its leading dims of size 1, as PyTorch assigns it: x[2] = f(batch of one). */
static lm_status without_leading_ones(lm_tensor *value, lm_tensor **out) {
  lm_view_args a = {.x = value};
  int ones = 0;
  while (ones < value->ndim && value->size[ones] == 1) ones++;
  if (ones == 0) {
    *out = lm_retain(value);
    return LM_OK;
  }
  a.size.n = value->ndim - ones;
  memcpy(a.size.v, value->size + ones, sizeof(int64_t) * (size_t)a.size.n);
  return lm_call_by_script(LM_OP_view, &a, false, out);
}

static lm_status attempt_set(lua_State *L, lm_lua *s, void *arg) {
  (void)arg;
  entry e[MAX_ENTRIES];
  picked p __attribute__((cleanup(release_picked))) = {0};
  lm_tensor *x, *value, *out[LM_MAX_OUTS];
  LM_OWNED *owned = NULL, *trimmed = NULL;
  int n;
  NEED(lm_read_tensor(L, s, 1, "x[…] = value", "x", &x));
  NEED(read_key(L, s, &n, e));
  if (lua_type(L, 3) == LUA_TTABLE) {
    NEED(lm_from_table(L, s, 3, x->dtype, x->device, &owned));
    value = owned;
  } else {
    NEED(lm_read_scalar(L, s, 3, "x[…] = value", "value", &value, &owned));
    NEED(lm_check_fits("x[…] = value", x->dtype, value));
  }
  NEED(without_leading_ones(value, &trimmed));
  value = trimmed;
  if (n == 1 && e[0].kind == MASK && value->ndim == 0 && lm_same_shape(e[0].t, x)) {
    lm_masked_fill_args a = {.x = x, .mask = e[0].t, .value = value};
    NEED(lm_call_by_script(LM_OP_masked_fill, &a, true, out));
  } else {
    NEED(pick_entries(x, n, e, &p));
    if (p.nindices > 0) {
      lm_index_put__args a = {.x = p.view, .indices = {p.nindices, p.indices}, .values = value};
      NEED(lm_call_by_script(LM_OP_index_put_, &a, false, out));
    } else {
      lm_copy__args a = {.x = p.view, .src = value};
      NEED(lm_call_by_script(LM_OP_copy_, &a, false, out));
    }
  }
  lm_release(out[0]);
  return LM_OK;
}

int lm_index_set(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 3);
  lm_gc_step_if_due(L, s);
  s->reads_for_op = true;
  lm_status status = lm_retry_after_gc(L, s, attempt_set, NULL);
  s->reads_for_op = false;
  return lm_return(L, status, 0);
}
