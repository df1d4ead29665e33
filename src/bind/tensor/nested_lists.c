/* Converts nested Lua lists to tensors and back. */
#include <stdio.h>

#include "base/mapping_guard.h"
#include "base/message.h"
#include "bind/bind.h"
#include "op_entries.h"

static const double exact = 9007199254740992.0; /* 2^53 */
static const int64_t MAX_ELEMENTS = (int64_t)1 << 31;

static void push_int(lua_State *L, int64_t v) {
  if (v >= -(int64_t)exact && v <= (int64_t)exact) {
    lua_pushnumber(L, (double)v);
    return;
  }
  lm_reg_get(L, &lm_reg_int64);
  if (lua_type(L, -1) != LUA_TFUNCTION) { /* a LuaJIT without FFI */
    lua_pop(L, 1);
    lua_pushnumber(L, (double)v);
    return;
  }
  lua_pushnumber(L, (double)(v >> 32));
  lua_pushnumber(L, (double)(uint32_t)v);
  lua_call(L, 2, 1);
}

void lm_push_element(lua_State *L, lm_dtype dtype, const void *p) {
  if (dtype == LM_BOOL) {
    lua_pushboolean(L, *(const uint8_t *)p);
  } else if (lm_dtype_is_int(dtype)) {
    push_int(L, lm_integer_at(dtype, p, 0));
  } else {
    lua_pushnumber(L, lm_real_at(dtype, p, 0));
  }
  lm_need(L, lm_truncation_check());
}

/* ---- from Lua */
typedef struct shape {
  int ndim;
  int64_t size[LM_MAX_DIMS], numel;
} shape;

/* A position in nested lists, for messages: "[2][1]". */
typedef struct position {
  int depth;
  int64_t at[LM_MAX_DIMS];
} position;

static const char *position_text(const position *at) {
  static _Thread_local char text[128];
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < at->depth && used < sizeof text; i++) {
    used += (size_t)snprintf(text + used, sizeof text - used, "[%lld]", (long long)at->at[i]);
  }
  return text;
}

/* Measures the sizes along the first elements; fill_list checks that all rows agree. */
static lm_status measure(lua_State *L, const lm_lua *s, int i, shape *out) {
  int top = lua_gettop(L);
  lm_status status = LM_OK;
  out->ndim = 0;
  out->numel = 1;
  lua_pushvalue(L, i);
  while (lua_type(L, -1) == LUA_TTABLE) {
    if (out->ndim == LM_MAX_DIMS)
      TRY(lm_fail_value("tensor", "nested lists", lm_text("at most %d deep", LM_MAX_DIMS), "more"));
    size_t n = lua_objlen(L, -1);
    if (n == 0) {
      lua_pushnil(L);
      if (lua_next(L, -2))
        TRY(lm_fail_value("tensor", "a nested table", "a list",
                          lm_text("a table with key %s", lm_describe_arg(L, s, lua_gettop(L) - 1))));
      TRY(lm_check_empty(L, lua_gettop(L), "tensor", "x"));
    }
    out->size[out->ndim++] = (int64_t)n;
    if (__builtin_mul_overflow(out->numel, (int64_t)n, &out->numel) || out->numel > MAX_ELEMENTS)
      TRY(lm_fail_value("tensor", "nested lists", lm_text("of at most %lld elements", (long long)MAX_ELEMENTS),
                        "more"));
    if (n == 0) break;
    lua_rawgeti(L, -1, 1);
  }
done:
  lua_settop(L, top);
  return status;
}

/* Returns the dtype for nested lists: bool if all elements are booleans, int64 if one is an int64 cdata and none a Lua
 * number, else the default. A row that is not as measured ends the search, since fill_list will reject it: the search
 * must not walk tables that hold one another many times over. */
static lm_dtype find_dtype(lua_State *L, const lm_lua *s, int i, const shape *sh, int depth) {
  int64_t whole;
  if (depth < sh->ndim) {
    if (lua_type(L, i) != LUA_TTABLE || (int64_t)lua_objlen(L, i) != sh->size[depth]) return lm_default_dtype();
  } else {
    if (lua_type(L, i) == LUA_TBOOLEAN) return LM_BOOL;
    return lm_to_int64(L, s, i, &whole) ? LM_I64 : lm_default_dtype();
  }
  lm_dtype found = LM_NO_DTYPE;
  for (int64_t k = 1; k <= sh->size[depth]; k++) {
    lua_rawgeti(L, i, (int)k);
    lm_dtype d = find_dtype(L, s, lua_gettop(L), sh, depth + 1);
    lua_pop(L, 1);
    if (d == lm_default_dtype()) return d;
    if (d != LM_NO_DTYPE && (found == LM_NO_DTYPE || d == LM_I64)) found = d;
  }
  return found == LM_NO_DTYPE && depth == 0 ? lm_default_dtype() : found;
}

/* Rejects entries after a list's n: list entries after a gap, or options, which belong in a separate table. */
static lm_status check_end(lua_State *L, const lm_lua *s, int i, int64_t n, const char *name) {
  int top = lua_gettop(L);
  lm_status status = LM_OK;
  lua_pushnumber(L, (double)n);
  if (n > 0 && lua_next(L, i)) {
    bool is_number = lua_type(L, top + 1) == LUA_TNUMBER;
    double key = is_number ? lua_tonumber(L, top + 1) : 0;
    if (!is_number) {
      status = lm_fail_value("tensor", name, "a list",
                             lm_text("a list of %lld with key %s", (long long)n, lm_describe_arg(L, s, top + 1)));
      lm_remedy(status, "put options into a second table");
    } else if (!(key >= 1 && key <= (double)n && key == (double)(int64_t)key)) {
      status = lm_fail_value("tensor", name, "a list without gaps",
                             lm_text("a list of %lld with an entry at %.14g", (long long)n, key));
    }
  }
  lua_settop(L, top);
  return status;
}

static lm_status store_element(lua_State *L, const lm_lua *s, int i, lm_dtype dtype, void *p, const position *at) {
  double v = 0;
  int64_t whole = 0;
  bool is_whole = false;
  switch (lua_type(L, i)) {
    case LUA_TNUMBER: v = lua_tonumber(L, i); break;
    case LUA_TBOOLEAN: v = lua_toboolean(L, i); break;
    default:
      is_whole = lm_to_int64(L, s, i, &whole);
      if (!is_whole) {
        lm_status status =
            lm_fail_arg(L, s, i, "tensor", at->depth ? position_text(at) : "argument 1", "a number or a boolean");
        return lm_to_tensor(L, s, i) ? lm_remedy(status, "lm.stack joins tensors") : status;
      }
      v = (double)whole;
  }
  if (lm_dtype_is_int(dtype)) {
    bool fits = is_whole || (v >= -9223372036854775808.0 && v < 9223372036854775808.0);
    if (fits && !is_whole) whole = (int64_t)v;
    if (!fits || !lm_dtype_holds(dtype, whole, whole)) {
      return lm_fail_number("tensor", at->depth ? position_text(at) : "argument 1",
                            lm_text("within the range of %s", lm_dtype_name(dtype)), v);
    }
  }
  switch (dtype) {
    case LM_BOOL: *(uint8_t *)p = v != 0; break;
#define X(id, name, type, ...) \
  case LM_##id: *(type *)p = (type)whole; break;
      LM_INTEGER_DTYPES(X)
#undef X
    case LM_F16: *(uint16_t *)p = lm_float_to_half((float)v); break;
    case LM_BF16: *(uint16_t *)p = lm_float_to_bf16((float)v); break;
    case LM_F32: *(float *)p = (float)v; break;
    case LM_F64: *(double *)p = v; break;
    default: return lm_fail_missing("tensor", lm_dtype_name(dtype));
  }
  return LM_OK;
}

/* Writes the list at stack index i to *p, and advances *p past it. */
static lm_status fill_list(lua_State *L, const lm_lua *s, int i, const shape *sh, lm_dtype dtype, char **p,
                           position *at) {
  lm_status status;
  int depth = at->depth;
  if (depth == sh->ndim) {
    if (lua_type(L, i) == LUA_TTABLE) {
      return lm_fail_value("tensor", position_text(at), "a number as in the first row", "a list");
    }
    TRY(store_element(L, s, i, dtype, *p, at));
    *p += lm_dtype_size(dtype);
    return LM_OK;
  }
  if (lua_type(L, i) != LUA_TTABLE) {
    return lm_fail_value("tensor", position_text(at),
                         lm_text("a list of %lld as in the first row", (long long)sh->size[depth]),
                         lm_describe_arg(L, s, i));
  }
  char name[136];
  snprintf(name, sizeof name, "x%s", position_text(at));
  TRY(lm_check_start(L, i, "tensor", name));
  int64_t n = (int64_t)lua_objlen(L, i);
  if (n != sh->size[depth]) {
    return lm_fail_value("tensor", position_text(at),
                         lm_text("a list of %lld as in the first row", (long long)sh->size[depth]),
                         lm_text("%lld elements", (long long)n));
  }
  TRY(check_end(L, s, i, n, name));
  at->depth++;
  for (int64_t k = 1; k <= n; k++) {
    at->at[depth] = k;
    lua_rawgeti(L, i, (int)k);
    status = fill_list(L, s, lua_gettop(L), sh, dtype, p, at);
    lua_pop(L, 1);
    if (status != LM_OK) return status;
  }
  at->depth--;
  return LM_OK;
done:
  return status;
}

lm_status lm_from_table(lua_State *L, const lm_lua *s, int i, lm_dtype dtype, lm_device device, lm_tensor **out) {
  LM_OWNED *t = NULL;
  shape sh;
  position at = {0};
  if (!lua_checkstack(L, 4 * LM_MAX_DIMS)) return lm_fail_memory("Lua's stack");
  NEED(measure(L, s, i, &sh));
  if (dtype == LM_NO_DTYPE) dtype = find_dtype(L, s, i, &sh, 0);
  NEED(lm_tensor_empty(dtype, LM_DEVICE(LM_CPU, 0), sh.ndim, sh.size, LM_CONTIGUOUS, &t));
  char *p = t->data;
  NEED(fill_list(L, s, i, &sh, dtype, &p, &at));
  if (device != LM_NO_DEVICE && device != t->device) {
    lm_to_copy_args a = {.x = t, .dtype = LM_NO_DTYPE, .device = device, .memory_format = LM_PRESERVE};
    NEED(lm_op_run(LM_OP_to_copy, &a, out));
  } else {
    *out = lm_retain(t);
  }
  return LM_OK;
}

static lm_status attempt_tensor(lua_State *L, lm_lua *s, void *arg) {
  static const char *const names[] = {"dtype", "device", "requires_grad"};
  lm_tensor **out = arg;
  LM_OWNED *t = NULL;
  lm_dtype dtype = LM_NO_DTYPE;
  lm_device device = LM_NO_DEVICE;
  bool requires_grad = false;
  for (int i = 0; i < 3 && lua_type(L, 1) == LUA_TTABLE; i++) {
    if (!lm_field(L, 1, names[i])) continue;
    return lm_fail(LM_E_ARG, "tensor: %s is an option; pass it in a table at the end, lm.tensor({…}, {%s = …})",
                   names[i], names[i]);
  }
  NEED(LM_READ_OPTIONS(L, s, 2, "tensor", {names[0], LM_ARG_DTYPE, &dtype}, {names[1], LM_ARG_DEVICE, &device},
                       {names[2], LM_ARG_B, &requires_grad}));
  if (lm_to_tensor_handle(L, s, 1)) { /* a copy, outside the graph */
    lm_to_copy_args a = {.dtype = dtype, .device = device, .memory_format = LM_PRESERVE};
    NEED(lm_read_tensor(L, s, 1, "tensor", "x", &a.x));
    lm_note_read(L, s, a.x, "tensor");
    NEED(lm_op_run(LM_OP_to_copy, &a, &t));
  } else {
    NEED(lm_from_table(L, s, 1, dtype, device == LM_NO_DEVICE ? lm_default_device() : device, &t));
  }
  if (requires_grad) NEED(lm_set_requires_grad(t, true));
  *out = lm_retain(t);
  return LM_OK;
}

LM_FUNCTION(tensor) {
  int given = lua_gettop(L);
  while (given > 2 && lua_isnil(L, given)) given--;
  if (given > 2) {
    return lm_raise(L,
                    lm_remedy(lm_fail_too_many("tensor", 2, "argument", given), "write lists as lm.tensor({1, 2, 3})"));
  }
  return lm_return_tensor(L, 2, attempt_tensor);
}

/* ---- to Lua */
static void push_nested(lua_State *L, const lm_tensor *t, int dim, const char *p) {
  if (dim == t->ndim) {
    lm_push_element(L, t->dtype, p);
    return;
  }
  int64_t n = t->size[dim];
  lua_createtable(L, n > INT32_MAX / 2 ? 0 : (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    push_nested(L, t, dim + 1, p + i * t->stride[dim] * (int64_t)lm_dtype_size(t->dtype));
    lua_rawseti(L, -2, (int)i + 1);
  }
}

/* Rejects tensors with too many elements or rows: sizes [n, 0] have n rows. */
static lm_status check_extent(const lm_tensor *t) {
  int64_t entries = 1;
  for (int d = 0; d < t->ndim; d++) {
    if (t->size[d] > 0 && __builtin_mul_overflow(entries, t->size[d], &entries)) entries = INT64_MAX;
    if (entries > MAX_ELEMENTS) {
      return lm_fail_value("totable", "x", lm_text("at most %lld elements", (long long)MAX_ELEMENTS), lm_shape_of(t));
    }
  }
  return LM_OK;
}

/* Returns x's values on the CPU in a new tensor: finalizers may free x, or give it other memory. */
static lm_status attempt_host(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor *t, **out = arg;
  NEED(lm_read_tensor(L, s, 1, "totable", "x", &t));
  NEED(check_extent(t));
  lm_note_read(L, s, t, "totable");
  if (LM_DEVICE_KIND(t->device) == LM_CPU) {
    NEED(lm_tensor_view(t, t->ndim, t->size, t->stride, 0, out));
  } else {
    lm_to_copy_args a = {.x = t, .dtype = LM_NO_DTYPE, .device = LM_DEVICE(LM_CPU, 0), .memory_format = LM_PRESERVE};
    NEED(lm_op_run(LM_OP_to_copy, &a, out));
  }
  return LM_OK;
}

/* x:totable(): nested lists; a number for a 0-d tensor. */
LM_METHOD(totable) {
  lm_lua *s = LM_STATE(L);
  if (lua_gettop(L) == 0) lm_need_tensor(L, 1, "totable", "x");
  lua_settop(L, 1);
  luaL_checkstack(L, 4 * LM_MAX_DIMS, "totable");
  lm_tensor_handle *host = lm_tensor_handle_new(L);
  lm_tensor *t = NULL;
  lm_need(L, lm_retry_after_gc(L, s, attempt_host, &t));
  lm_tensor_handle_fill(s, host, t); /* the handle releases t if pushing raises */
  push_nested(L, t, 0, t->data);
  lm_tensor_handle_drop(s, host, "was used by totable");
  return 1;
}

typedef struct picking {
  lm_dtype dtype;
  double number;
  int64_t whole;
} picking;

static lm_status attempt_item(lua_State *L, lm_lua *s, void *arg) {
  picking *p = arg;
  lm_tensor *t;
  NEED(lm_read_tensor(L, s, 1, "item", "x", &t));
  if (t->numel != 1) NEED(lm_fail_value("item", "x", "a tensor of one element", lm_shape_of(t)));
  p->dtype = t->dtype;
  lm_note_read(L, s, t, "item");
  return lm_dtype_is_float(p->dtype) ? lm_tensor_item_f64(t, &p->number) : lm_tensor_item_i64(t, &p->whole);
}

LM_METHOD(item) {
  picking p = {0};
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), attempt_item, &p));
  if (p.dtype == LM_BOOL) {
    lua_pushboolean(L, p.whole != 0);
  } else if (lm_dtype_is_float(p.dtype)) {
    lua_pushnumber(L, p.number);
  } else {
    push_int(L, p.whole);
  }
  return 1;
}

LM_ADD(lm_methods, tolist, bind_totable)
