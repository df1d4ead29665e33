/* Adds the tensor methods that are no ops: properties, conversions, the handle, recording. */
#include "base/message.h"
#include "bind/bind.h"
#include "op_entries.h"

static int sizes_or_one(lua_State *L, const char *fn, const lm_tensor *t, const int64_t *v) {
  if (lua_isnoneornil(L, 2)) {
    lm_push_sizes(L, t->ndim, v);
    return 1;
  }
  int d = 0;
  int64_t dim;
  lm_need(L, lm_read_dim(L, LM_STATE(L), 2, fn, "dim", &dim));
  lm_need(L, lm_dim(fn, dim, t->ndim, &d));
  if (t->ndim == 0) return lm_raise(L, lm_fail_value(fn, "x", "at least 1-d with a dim", "a 0-d tensor"));
  return lm_return_number(L, (double)v[d]);
}

LM_METHOD(size, (shaped, x), (any, dim)) { return sizes_or_one(L, "size", x, x->size); }

LM_METHOD(stride, (shaped, x), (any, dim)) { return sizes_or_one(L, "stride", x, x->stride); }

LM_METHOD(dim, (shaped, x)) { return lm_return_int(L, x->ndim); }

LM_METHOD(numel, (shaped, x)) { return lm_return_number(L, (double)x->numel); }

LM_METHOD(element_size, (shaped, x)) { return lm_return_int(L, (lua_Integer)lm_dtype_size(x->dtype)); }

LM_METHOD(storage_offset, (shaped, x)) {
  return lm_return_number(L, (double)((x->data - (char *)x->storage->data) / (ptrdiff_t)lm_dtype_size(x->dtype)));
}

LM_METHOD(storage_size, (tensor, x)) {
  return lm_return_number(L, (double)(x->storage->bytes / lm_dtype_size(x->dtype)));
}

/* Returns a CUDA device's ordinal, or -1 for the CPU. */
LM_METHOD(get_device, (shaped, x)) {
  return lm_return_int(L, LM_DEVICE_KIND(x->device) == LM_CPU ? -1 : LM_DEVICE_ORDINAL(x->device));
}

static bool has_format(const lm_tensor *t, lm_format format) {
  return format == LM_PRESERVE || (format == LM_CONTIGUOUS ? lm_is_contiguous(t) : lm_is_channels_last(t));
}

LM_METHOD(is_contiguous, (shaped, x), (any, options)) {
  int format = LM_CONTIGUOUS;
  lm_need(L, LM_READ_OPTIONS(L, LM_STATE(L), 2, "is_contiguous", {"memory_format", LM_ARG_FORMAT, &format}));
  return lm_return_bool(L, has_format(x, (lm_format)format));
}

/* ---- to */
typedef struct conversion {
  lm_to_copy_args args;
  bool copy;
} conversion;

/* Reads a target of x:to at i: a dtype's or device's name, an ordinal, or a tensor whose dtype and device to use. */
static lm_status read_target(lua_State *L, const lm_lua *s, int i, conversion *c) {
  lm_tensor *like;
  lm_status status;
  switch (lua_type(L, i)) {
    case LUA_TNUMBER: return lm_read_device(L, s, i, "to", "device", &c->args.device);
    case LUA_TSTRING: {
      lm_dtype dtype;
      lm_device device;
      const char *name; /* a name that does not look like a device counts as a misspelt dtype */
      TRY(lm_read_text(L, s, i, "to", "device or dtype", &name));
      if (lm_dtype_parse(name, &dtype) == LM_OK) {
        c->args.dtype = dtype;
        return LM_OK;
      }
      if (strncmp(name, "cpu", 3) == 0 || strncmp(name, "cuda", 4) == 0 || strchr(name, ':') ||
          lm_device_parse(name, &device) == LM_OK) {
        return lm_read_device(L, s, i, "to", "device", &c->args.device);
      }
      status = lm_dtype_parse(name, &dtype); /* "unknown dtype 'x'; ..." */
      return lm_fail(status, "to: unknown device or dtype%s", lm_error() + strlen("unknown dtype"));
    }
    case LUA_TUSERDATA:
      TRY(lm_read_tensor(L, s, i, "to", "other", &like));
      c->args.dtype = like->dtype;
      c->args.device = like->device;
      return LM_OK;
    default: break;
  }
  status = lm_fail_value("to", lm_text("argument %d", i - 1), "a dtype, a device, a tensor or options",
                         lm_describe_arg(L, s, i));
done:
  return status;
}

static lm_status read_conversion_options(lua_State *L, const lm_lua *s, int i, conversion *c) {
  return LM_READ_OPTIONS(L, s, i, "to", {"dtype", LM_ARG_DTYPE, &c->args.dtype},
                         {"device", LM_ARG_DEVICE, &c->args.device}, {"copy", LM_ARG_B, &c->copy},
                         {"memory_format", LM_ARG_FORMAT, &c->args.memory_format},
                         {"non_blocking", LM_ARG_B, &c->args.non_blocking});
}

/* Reads the arguments of x:to, at 1..top. */
static lm_status read_conversion(lua_State *L, const lm_lua *s, int top, conversion *c) {
  int options = 0;
  c->args = (lm_to_copy_args){.dtype = LM_NO_DTYPE, .device = LM_NO_DEVICE, .memory_format = LM_PRESERVE};
  NEED(lm_read_tensor(L, s, 1, "to", "x", &c->args.x));
  while (top > 1 && lua_isnil(L, top)) top--;
  if (top > 1 && lua_type(L, top) == LUA_TTABLE) options = top--;
  if (top > 3)
    return lm_remedy(lm_fail_too_many("to", 3, "argument", top - 1),
                     "pass a device, a dtype and options, as in x:to(\"cpu\", \"float64\")");
  if (top == 1 && !options) return lm_fail_absent("to", "argument 1", "a dtype, a device, a tensor or options");
  for (int i = 2; i <= top; i++) NEED(read_target(L, s, i, c));
  if (options) NEED(read_conversion_options(L, s, options, c));
  return LM_OK;
}

typedef struct converting {
  int top;
  lm_tensor *out[LM_MAX_OUTS];
} converting;

static lm_status attempt_to(lua_State *L, lm_lua *s, void *arg) {
  converting *to = arg;
  conversion c = {0};
  s->reads_for_op = true;
  lm_status status = read_conversion(L, s, to->top, &c);
  s->reads_for_op = false;
  return status == LM_OK ? lm_call_by_script(LM_OP_to_copy, &c.args, false, to->out) : status;
}

LM_METHOD(to) {
  lm_lua *s = LM_STATE(L);
  luaL_checkstack(L, 12, "to");
  conversion c = {0};
  converting to = {.top = lua_gettop(L)};
  s->reads_for_op = true;
  lm_status status = read_conversion(L, s, to.top, &c);
  s->reads_for_op = false;
  lm_need(L, status);
  const lm_tensor *x = c.args.x;
  bool same = (c.args.dtype == LM_NO_DTYPE || c.args.dtype == x->dtype) &&
              (c.args.device == LM_NO_DEVICE || c.args.device == x->device) &&
              has_format(x, (lm_format)c.args.memory_format);
  if (same && !c.copy) {
    lua_pushvalue(L, 1);
    return 1;
  }
  return lm_return_tensors(L, to.top, 1, attempt_to, &to, to.out);
}

/* ---- the handle */
LM_METHOD(data_ptr, (tensor, x)) {
  lm_note_read(L, LM_STATE(L), x, "data_ptr");
  lm_reg_get(L, &lm_reg_pointer);
  lua_pushlightuserdata(L, x->data);
  if (lua_type(L, -2) == LUA_TFUNCTION) lua_call(L, 1, 1);
  return 1;
}

/* x:free() releases the handle's memory now; views and graphs keep what they share. */
LM_METHOD(free) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, 1);
  if (!b) return lm_raise_arg(L, 1, "free", "x", "a tensor");
  if (b->t) lm_tensor_handle_drop(s, b, "was freed by x:free()");
  return 0;
}

LM_FUNCTION(is_tensor) { return lm_return_bool(L, lm_to_tensor_handle(L, LM_STATE(L), 1) != NULL); }

LM_FUNCTION(is_alive) { return lm_return_bool(L, lm_to_shaped(L, LM_STATE(L), 1) != NULL); }

lm_status lm_set_data(const char *fn, lm_tensor *t, lm_tensor *from) {
  NEED(lm_leave());
  if (t == from) return LM_OK;
  if (lm_tape_current()) lm_tape_refuse(lm_tape_current(), "%s replaces the memory of a tensor", fn);
  bool asks = lm_requires_grad(t);
  if (asks && !lm_dtype_is_float(from->dtype)) {
    return lm_fail_dtype(fn, "the value for x, which requires grad,", "floating point", lm_dtype_name(from->dtype));
  }
  if (asks && !lm_is_leaf(t)) {
    return lm_fail_value(fn, "x", "a leaf", lm_text("a result of %s", lm_grad_fn_name(t)));
  }
  if (asks) NEED(lm_set_requires_grad(t, false)); /* the leaf's graph node is made again below */
  lm_tensor_set_data(t, from);
  if (asks) NEED(lm_set_requires_grad(t, true));
  return LM_OK;
}

LM_FUNCTION(set_data, (tensor, x), (tensor, from)) {
  lm_need(L, lm_set_data("set_data", x, from));
  lua_settop(L, 1);
  return 1;
}

static lm_status attempt_part(lua_State *L, lm_lua *s, void *out) {
  lm_tensor *x;
  int64_t at, n;
  NEED(lm_read_tensor(L, s, 1, "part", "x", &x));
  NEED(lm_read_int(L, s, 2, "part", "at", &at));
  NEED(lm_read_int(L, s, 3, "part", "n", &n));
  if (at < 0 || n < 0 || at + n > x->numel || !lm_is_contiguous(x))
    return lm_fail_value("part", "at", "within x, which is contiguous", lm_text("%lld", (long long)at));
  return lm_tensor_part(x, x->dtype, 1, &n, (size_t)at * lm_dtype_size(x->dtype), out);
}

/* part(x, at, n) -> n elements of x's memory after the first `at`, 1-d, with a version of their own */
LM_FUNCTION(part) { return lm_return_tensor(L, 3, attempt_part); }

/* ---- recording */
LM_METHOD(requires_grad_, (tensor, x), (boolean, on, true)) {
  lm_need(L, lm_set_requires_grad(x, on));
  lua_settop(L, 1);
  return 1;
}

LM_METHOD(retain_grad, (tensor, x)) { return lm_return(L, lm_retain_grad(x), 0); }

/* Replaces the handle's tensor by one on the same memory outside the graph. */
LM_METHOD(detach_, (tensor, x)) {
  lm_detach_args a = {.x = x};
  lm_tensor *out[LM_MAX_OUTS];
  lm_need(L, lm_call(LM_OP_detach, &a, out));
  lm_tensor_handle *b = lm_to_tensor_handle(L, LM_STATE(L), 1);
  lm_release_safely(LM_STATE(L), b->t);
  b->t = out[0];
  lua_settop(L, 1);
  return 1;
}
