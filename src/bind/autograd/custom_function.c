/* Records lm.autograd.Function's ops, whose backward is a Lua function. */
#include "base/mem.h"
#include "base/message.h"
#include "bind/autograd/callback.h"

typedef struct custom_callback {
  lm_callback base;
  struct lm_node *node; /* owns the callback */
  int nin, nsaved;
  int saved[]; /* each saved tensor's index among the inputs (from 0), -1 - its index among the results, or OTHER */
} custom_callback;

enum { OTHER = INT32_MAX };

typedef struct custom_call {
  custom_callback *c;
  int ngrad;
  lm_tensor *const *grads;
  lm_tensor **gin;
} custom_call;

/* backward(grads) -> list of gradients, false or nil for none */
static int run_custom(lua_State *L, lm_lua *s, void *arg) {
  const custom_call *p = arg;
  s->in_backward = &p->c->base;
  if (!lm_callback_push(L, p->c)) return lm_raise_text(L, "backward: cannot call a Function of a closed Lua state");
  lua_createtable(L, p->ngrad, 0);
  for (int i = 0; i < p->ngrad; i++) {
    if (p->grads[i]) {
      lm_tensor_handle *handle = lm_tensor_handle_new(L); /* may raise */
      lm_tensor_handle_fill(s, handle, lm_retain(p->grads[i]));
    } else {
      lua_pushboolean(L, 0);
    }
    lua_rawseti(L, -2, i + 1);
  }
  lua_call(L, 1, 1);
  int result = lua_gettop(L);
  if (lua_type(L, result) != LUA_TTABLE)
    return lm_raise_arg(L, result, "backward", "the result", "a list of gradients");
  for (int i = 0; i < p->c->nin; i++) {
    lua_rawgeti(L, result, i + 1);
    lm_tensor *t = NULL;
    if (lua_toboolean(L, -1)) {
      lm_status status = lm_read_tensor(L, s, lua_gettop(L), "backward", "gradient", &t);
      if (status != LM_OK) {
        while (i-- > 0) {
          lm_release(p->gin[i]);
          p->gin[i] = NULL;
        }
        return lm_raise(L, status);
      }
    }
    p->gin[i] = lm_retain(t);
    lua_pop(L, 1);
  }
  return 0;
}

static lm_status call_custom(void *ctx, int ngrad, lm_tensor *const *grads, int nin, lm_tensor **gin) {
  for (int i = 0; i < nin; i++) gin[i] = NULL;
  custom_callback *c = ctx;
  return lm_call_lua(c->base.owner, run_custom, &(custom_call){c, ngrad, grads, gin});
}

static int index_in(const lm_tensor *t, lm_list list) {
  int i = 0;
  while (i < list.n && list.v[i] != t) i++;
  return i < list.n ? i : -1;
}

/* Records the op in the graph; *recorded is NULL if no input requires grad. */
static lm_status record(lua_State *L, lm_lua *s, void *arg) {
  custom_callback **recorded = arg;
  lm_list in = {0}, out = {0}, saved = {0};
  lm_status status;
  const char *fn = lua_tostring(L, 1);
  TRY(LM_READ_ARGS(L, s, 3, fn, {"inputs", LM_ARG_TL, &in}, {"outputs", LM_ARG_TL, &out},
                   {"saved", LM_ARG_TL, &saved}));
  custom_callback *c =
      (custom_callback *)lm_callback_new(s->callbacks, sizeof *c + (size_t)saved.n * sizeof c->saved[0]);
  if (!c) TRY(s->callbacks ? LM_E_OOM : LM_E_STATE);
  c->nsaved = saved.n;
  c->nin = in.n;
  for (int i = 0; i < saved.n; i++) {
    int of_in = index_in(saved.v[i], in), of_out = index_in(saved.v[i], out);
    c->saved[i] = of_in >= 0 ? of_in : of_out >= 0 ? -1 - of_out : OTHER;
  }
  lm_custom custom = {.name = fn,
                      .fn = call_custom,
                      .ctx = c,
                      .release = lm_callback_release,
                      .nin = in.n,
                      .nout = out.n,
                      .nsaved = saved.n,
                      .in = in.v,
                      .out = out.v,
                      .saved = saved.v};
  TRY(lm_custom_record(&custom)); /* releases the callback if it fails */
  c->node = out.n > 0 ? lm_custom_node(out.v[0]) : NULL;
  *recorded = c->node ? c : NULL;
done:
  lm_free(in.v);
  lm_free(out.v);
  lm_free(saved.v);
  return status;
}

/* Ties outputs to inputs; backward(grads) returns a list of gradients of inputs; custom_saved(i) in it is saved[i]. */
LM_FUNCTION(custom_record, (any, name), (any, backward), (any, inputs), (any, outputs), (any, saved)) {
  lm_lua *s = LM_STATE(L);
  lm_callbacks_drain(L, s->callbacks);
  if (lua_type(L, 1) != LUA_TSTRING || lua_type(L, 2) != LUA_TFUNCTION) {
    bool is_text = lua_type(L, 1) == LUA_TSTRING;
    return lm_raise_arg(L, is_text ? 2 : 1, "custom_record", is_text ? "backward" : "name",
                        is_text ? "a function" : "a string");
  }
  if (lm_wants_lines()) lm_note_line(L, s);
  custom_callback *c = NULL;
  lm_need(L, lm_retry_after_gc(L, s, record, &c));
  if (c) lm_callback_keep(L, &c->base, 2);
  return 0;
}

typedef struct fetching {
  const custom_callback *c;
  int i;
  lm_tensor *out;
} fetching;

static lm_status fetch_saved(lua_State *L, lm_lua *s, void *arg) {
  (void)L, (void)s;
  fetching *f = arg;
  int from = f->c->saved[f->i];
  int in = from >= 0 && from != OTHER ? from : -1, out = from < 0 ? -1 - from : -1;
  return lm_custom_saved(f->c->node, f->i, in, out, &f->out);
}

/* custom_saved(i): the i-th saved tensor with its history; only inside a backward of custom_record. */
LM_FUNCTION_AS(custom_saved, "saved_tensors", (int, i)) {
  fetching f = {.c = (custom_callback *)LM_STATE(L)->in_backward};
  if (!f.c || !f.c->node) return lm_raise_text(L, "saved_tensors: cannot be read outside of backward");
  if (i < 1 || i > f.c->nsaved)
    return lm_raise(L, lm_fail_int("saved_tensors", "i", lm_text("from 1 to %d", f.c->nsaved), i));
  f.i = (int)i - 1;
  return lm_return_tensors(L, 1, 1, fetch_saved, &f, &f.out);
}
