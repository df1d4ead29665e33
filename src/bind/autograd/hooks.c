/* Lua functions that the core calls: gradient hooks and the backward of lm.autograd.Function.
 *
 * The core holds a `callback`; the Lua function lives in tables of this state by the callback's
 * address. A hook's function belongs to its tensor's handle (in the userdata's environment, so that
 * a hook that captures its own tensor is collected with it); when the handle is collected while the
 * graph may still run the hook, the function moves to the table of strong references. When the core
 * lets a callback go, on whatever thread, it lands in a list that this state's thread drains. */
#include <pthread.h>

#include "base/mem.h"
#include "bind/bind.h"

typedef struct lm_home { /* outlives the state: callbacks count on it */
  pthread_mutex_t lock;
  int rc;
  lm_lua *s; /* NULL once the state has closed */
  pthread_t thread;
  struct callback *gone;
  _Atomic bool any_gone;
} home;

typedef struct callback {
  home *home;
  struct callback *next;
  /* Of a custom function: its node (which owns the callback), how many inputs, and for each saved
   * tensor the input it is (0..), or result -1 - k, or OTHER. */
  struct lm_node *node;
  int nin, nsaved;
  int saved[];
} callback;

enum { OTHER = INT32_MAX };

/* ---- lifetimes */
lm_status lm_home_new(lm_lua *s, home **out) {
  home *h = lm_calloc(1, sizeof *h);
  if (!h) return LM_E_OOM;
  pthread_mutex_init(&h->lock, NULL);
  h->rc = 1;
  h->s = s;
  h->thread = pthread_self();
  *out = h;
  return LM_OK;
}

static void unref(home *h) { /* with the lock held; releases it */
  bool last = --h->rc == 0;
  pthread_mutex_unlock(&h->lock);
  if (!last) return;
  pthread_mutex_destroy(&h->lock);
  lm_free(h);
}

static void release(void *ctx) {
  callback *c = ctx;
  home *h = c->home;
  pthread_mutex_lock(&h->lock);
  if (h->s) {
    c->next = h->gone;
    h->gone = c;
    atomic_store(&h->any_gone, true);
    pthread_mutex_unlock(&h->lock);
    return;
  }
  lm_free(c);
  unref(h);
}

bool lm_home_waiting(const home *h) { return h && atomic_load_explicit(&h->any_gone, memory_order_relaxed); }

static callback *take_gone(home *h) {
  pthread_mutex_lock(&h->lock);
  callback *c = h->gone;
  h->gone = NULL;
  atomic_store(&h->any_gone, false);
  pthread_mutex_unlock(&h->lock);
  return c;
}

static void free_callback(callback *c) {
  home *h = c->home;
  lm_free(c);
  pthread_mutex_lock(&h->lock);
  unref(h);
}

void lm_home_drain(lua_State *L, home *h) {
  if (!lm_home_waiting(h) || !lua_checkstack(L, 8)) return;
  lm_reg_get(L, &lm_reg_weak);
  lm_reg_get(L, &lm_reg_strong);
  for (callback *c = take_gone(h), *next; c; c = next) {
    next = c->next;
    for (int table = -2; table <= -1; table++) { /* existing keys: assigning nil allocates nothing */
      lua_pushlightuserdata(L, c);
      lua_rawget(L, table - 1);
      bool there = !lua_isnil(L, -1);
      lua_pop(L, 1);
      if (!there) continue;
      lua_pushlightuserdata(L, c);
      lua_pushnil(L);
      lua_rawset(L, table - 2);
    }
    free_callback(c);
  }
  lua_pop(L, 2);
}

void lm_home_close(home *h) {
  if (!h) return;
  pthread_mutex_lock(&h->lock);
  h->s = NULL;
  pthread_mutex_unlock(&h->lock);
  for (callback *c = take_gone(h), *next; c; c = next) {
    next = c->next;
    free_callback(c);
  }
  pthread_mutex_lock(&h->lock);
  unref(h);
}

static callback *new_callback(home *h, int nsaved) {
  if (!h) {
    lm_fail(LM_E_STATE, "hooks: the Lua state is closing");
    return NULL;
  }
  callback *c = lm_calloc(1, sizeof *c + (size_t)nsaved * sizeof c->saved[0]);
  if (!c) return NULL;
  c->nsaved = nsaved;
  c->home = h;
  pthread_mutex_lock(&h->lock);
  h->rc++;
  pthread_mutex_unlock(&h->lock);
  return c;
}

void lm_hooks_orphan(lua_State *L, lm_lua *s) {
  lm_home_drain(L, s->home);
  lua_settop(L, 1);
  lm_reg_get(L, &lm_reg_weak);   /* 2 */
  lm_reg_get(L, &lm_reg_strong); /* 3 */
  lua_getfenv(L, 1);             /* 4 */
  lua_pushnil(L);
  while (lua_next(L, 4)) { /* 5: address, 6: function */
    lua_pushvalue(L, 5);
    lua_rawget(L, 2);
    bool alive = lua_rawequal(L, -1, 6); /* else the core let it go before */
    lua_pop(L, 1);
    if (alive) {
      lua_pushvalue(L, 5);
      lua_pushvalue(L, 6);
      lua_rawset(L, 3);
    }
    lua_settop(L, 5);
  }
}

/* ---- calling Lua from the core */
typedef struct call {
  callback *c;
  /* hooks */
  lm_tensor *grad, **replacement;
  /* custom functions */
  int ngrad;
  lm_tensor *const *grads;
  lm_tensor **gin;
} call;

static void push_tensor(lua_State *L, lm_lua *s, lm_tensor *t) {
  lm_box *b = lm_box_new(L);
  lm_box_fill(s, b, lm_retain(t));
}

static int run_hook(lua_State *L, lm_lua *s, call *p) {
  if (p->grad) push_tensor(L, s, p->grad);
  lua_call(L, p->grad ? 1 : 0, 1);
  if (lua_isnil(L, -1)) return 0;
  lm_tensor *t;
  lm_status status = lm_read_tensor(L, s, lua_gettop(L), "hook", "result", &t);
  if (status != LM_OK) return lm_raise(L, status);
  *p->replacement = lm_retain(t);
  return 0;
}

/* backward(grads) -> list of gradients, false or nil for none */
static int run_custom(lua_State *L, lm_lua *s, call *p) {
  lua_createtable(L, p->ngrad, 0);
  for (int i = 0; i < p->ngrad; i++) {
    if (p->grads[i]) {
      push_tensor(L, s, p->grads[i]);
    } else {
      lua_pushboolean(L, 0);
    }
    lua_rawseti(L, -2, i + 1);
  }
  lua_call(L, 1, 1);
  int result = lua_gettop(L);
  if (lua_type(L, result) != LUA_TTABLE) return lm_raise_text(L, "backward: a list of gradients expected");
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

static int run(lua_State *L, lm_lua *s, void *arg) {
  call *p = arg;
  s->in_backward = p->c;
  lm_reg_get(L, &lm_reg_weak);
  lua_pushlightuserdata(L, p->c);
  lua_rawget(L, -2);
  if (lua_type(L, -1) != LUA_TFUNCTION) { /* a hook was removed meanwhile */
    return p->gin ? lm_raise_text(L, "backward: its function is gone") : 0;
  }
  return p->gin ? run_custom(L, s, p) : run_hook(L, s, p);
}

typedef struct protected_call {
  lm_lua_body body;
  void *arg;
} protected_call;

/* Light userdata of the call at 1. Its upvalues are those of every closure. */
int lm_bind_protected(lua_State *L) {
  const protected_call *p = lua_touserdata(L, 1);
  return p->body(L, LM_STATE(L), p->arg);
}

lm_status lm_call_lua(home *h, lm_lua_body body, void *arg) {
  pthread_mutex_lock(&h->lock);
  lm_lua *s = h->s;
  bool here = s && pthread_equal(h->thread, pthread_self());
  pthread_mutex_unlock(&h->lock);
  if (!s) return LM_OK; /* the state has closed: nobody is left to call */
  lua_State *L = here ? s->running : NULL;
  if (!L) return lm_fail(LM_E_STATE, "backward: a hook of this graph belongs to another thread's Lua state");
  int top = lua_gettop(L); /* whoever began has made room: doing it here could raise through the core */
  callback *outer = s->in_backward;
  protected_call p = {body, arg};
  lm_reg_get(L, &lm_reg_protected);
  lua_pushlightuserdata(L, &p);
  int failed = lm_pcall(L, 1, 0);
  s->in_backward = outer;
  s->running = L; /* a nested backward may have left another */
  if (failed) {   /* kept as it is until the binding raises it again; the text is for other ranks */
    char text[1024] = "a Lua function raised";
    if (lua_type(L, -1) == LUA_TSTRING) lm_write_bytes(text, sizeof text, lua_tostring(L, -1), lua_objlen(L, -1));
    lm_fail(LM_E_LUA, "%s", text);
    lm_reg_get(L, &lm_reg_error);
    lua_insert(L, -2);
    lua_rawseti(L, -2, 1);
    lua_settop(L, top);
    return LM_E_LUA;
  }
  lua_settop(L, top);
  return LM_OK;
}

static lm_status call_hook(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  callback *c = ctx;
  lm_retain(grad); /* .grad itself after accumulation: a finalizer may set that to nil */
  lm_status status = lm_call_lua(c->home, run, &(call){.c = c, .grad = grad, .replacement = replacement});
  lm_release(grad);
  return status;
}

static lm_status call_custom(void *ctx, int ngrad, lm_tensor *const *grads, int nin, lm_tensor **gin) {
  for (int i = 0; i < nin; i++) gin[i] = NULL;
  callback *c = ctx;
  return lm_call_lua(c->home, run, &(call){.c = c, .ngrad = ngrad, .grads = grads, .gin = gin});
}

lua_State *lm_running_begin(lua_State *L, lm_lua *s) {
  lua_State *before = s->running;
  s->running = L;
  if (s->home) s->home->thread = pthread_self();
  return before;
}

lm_status lm_backward_in(lua_State *L, lm_lua *s, const lm_backward_args *a, lm_tensor **out) {
  if (!s->home) return lm_fail(LM_E_STATE, "backward: the Lua state is closing");
  lua_State *before = lm_running_begin(L, s);
  lm_status status = lm_backward(a, out);
  s->running = before;
  return status;
}

/* ---- registering */

/* _register_hook(x, f, accumulate) -> id */
static int bind_register(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 3);
  bool accumulate = lua_toboolean(L, 3);
  const char *fn = accumulate ? "register_post_accumulate_grad_hook" : "register_hook";
  lm_home_drain(L, s->home);
  lm_tensor *t = NULL;
  lm_status status = lm_read_tensor(L, s, 1, fn, "x", &t);
  if (status == LM_OK && lua_type(L, 2) != LUA_TFUNCTION) {
    status = lm_fail(LM_E_ARG, "%s: a function of the gradient expected, got %s", fn, lm_got(L, s, 2));
  }
  if (status != LM_OK) return lm_raise(L, status);
  lm_box *b = lm_to_box(L, s, 1);
  if (!b->hooked) {
    lua_newtable(L);
    lua_setfenv(L, 1);
    b->hooked = true;
  }
  lua_getfenv(L, 1);
  lm_reg_get(L, &lm_reg_weak);
  callback *c = new_callback(s->home, 0);
  if (!c) return lm_raise(L, LM_E_STATE);
  for (int table = -2; table <= -1; table++) {
    lua_pushlightuserdata(L, c);
    lua_pushvalue(L, 2);
    lua_rawset(L, table - 2);
  }
  int64_t id = 0;
  lm_hook hook = {call_hook, c, release};
  t = lm_to_tensor(L, s, 1); /* a finalizer may have run */
  if (!t) {
    release(c);
    return lm_raise_text(L, "%s: x: this tensor was freed meanwhile", fn);
  }
  status = accumulate ? lm_register_accumulate_hook(t, hook, &id) : lm_register_hook(t, hook, &id);
  if (status != LM_OK) return lm_raise(L, status); /* which has released the callback */
  lua_pushnumber(L, (double)id);
  lua_pushlightuserdata(L, c);
  return 2;
}

/* _remove_hook(x, id, callback) */
static int bind_remove(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_box *b = lm_to_box(L, s, 1);
  if (!b) return 0;
  if (b->t) lm_remove_hook(b->t, (int64_t)lua_tonumber(L, 2));
  if (b->hooked && lua_type(L, 3) == LUA_TLIGHTUSERDATA) {
    lua_getfenv(L, 1);
    lua_pushvalue(L, 3);
    lua_pushnil(L);
    lua_rawset(L, -3);
  }
  return 0;
}

typedef struct lists {
  lm_tensor **in, **out, **saved;
  int nin, nout, nsaved;
} lists;

static void drop_lists(lists *l) {
  lm_free(l->in);
  lm_free(l->out);
  lm_free(l->saved);
}

static int find(const lm_tensor *t, int n, lm_tensor *const *list) {
  int i = 0;
  while (i < n && list[i] != t) i++;
  return i < n ? i : -1;
}

/* *recorded is NULL where no input asks for a gradient. */
static lm_status record(lua_State *L, lm_lua *s, callback **recorded) {
  lists l = {0};
  lm_status status;
  const char *fn = lua_tostring(L, 1);
  TRY(lm_read_list(L, s, 3, fn, "inputs", false, &l.nin, &l.in));
  TRY(lm_read_list(L, s, 4, fn, "outputs", false, &l.nout, &l.out));
  TRY(lm_read_list(L, s, 5, fn, "saved", false, &l.nsaved, &l.saved));
  callback *c = new_callback(s->home, l.nsaved);
  if (!c) {
    status = s->home ? LM_E_OOM : LM_E_STATE;
    goto done;
  }
  c->nin = l.nin;
  for (int i = 0; i < l.nsaved; i++) {
    int in = find(l.saved[i], l.nin, l.in), out = find(l.saved[i], l.nout, l.out);
    c->saved[i] = in >= 0 ? in : out >= 0 ? -1 - out : OTHER;
  }
  lm_custom custom = {.name = fn,
                      .fn = call_custom,
                      .ctx = c,
                      .release = release,
                      .nin = l.nin,
                      .nout = l.nout,
                      .nsaved = l.nsaved,
                      .in = l.in,
                      .out = l.out,
                      .saved = l.saved};
  TRY(lm_custom_record(&custom)); /* releases the callback where it fails */
  c->node = l.nout > 0 ? lm_custom_node(l.out[0]) : NULL;
  *recorded = c->node ? c : NULL;
done:
  drop_lists(&l);
  return status;
}

/* custom_record(name, backward, inputs, outputs, saved) */
static int bind_custom_record(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 5);
  lm_home_drain(L, s->home);
  if (lua_type(L, 1) != LUA_TSTRING || lua_type(L, 2) != LUA_TFUNCTION) {
    return lm_raise_text(L, "custom_record: a name, a function and three lists of tensors expected");
  }
  if (lm_anomaly()) lm_note_anomaly(L);
  callback *c = NULL;
  lm_status status = record(L, s, &c);
  if (status == LM_E_OOM) {
    lua_gc(L, LUA_GCCOLLECT, 0);
    status = record(L, s, &c);
  }
  if (status != LM_OK) return lm_raise(L, status);
  if (!c) return 0;
  lm_reg_get(L, &lm_reg_weak);   /* 6 */
  lm_reg_get(L, &lm_reg_strong); /* 7 */
  for (int table = 6; table <= 7; table++) {
    lua_pushlightuserdata(L, c);
    lua_pushvalue(L, 2);
    lua_rawset(L, table);
  }
  return 0;
}

typedef struct fetching {
  callback *c;
  int i;
  lm_tensor *out;
} fetching;

static lm_status fetch(lua_State *L, lm_lua *s, void *arg) {
  (void)L, (void)s;
  fetching *f = arg;
  int from = f->c->saved[f->i];
  int in = from >= 0 && from != OTHER ? from : -1, out = from < 0 ? -1 - from : -1;
  return lm_custom_saved(f->c->node, f->i, in, out, &f->out);
}

/* custom_saved(i): inside a backward of custom_record, the i-th saved tensor with its history. */
static int bind_custom_saved(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  int64_t i = 0;
  lm_box *b = lm_box_new(L);
  lm_status status;
  fetching f = {.c = s->in_backward};
  TRY(lm_read_int(L, s, 1, "saved_tensors", "i", &i));
  if (!f.c || !f.c->node) return lm_raise_text(L, "saved_tensors: only inside backward");
  if (i < 1 || i > f.c->nsaved) return lm_raise_text(L, "saved_tensors: %d were saved", f.c->nsaved);
  f.i = (int)i - 1;
  TRY(lm_attempt_twice(L, s, fetch, &f));
  lm_box_fill(s, b, f.out);
  return 1;
done:
  return lm_raise(L, status);
}

/* checkpoint(f, again, ...) -> f(...), recorded without saving anything; again() computes it once more. */
static int bind_checkpoint(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  if (lua_type(L, 1) != LUA_TFUNCTION || lua_type(L, 2) != LUA_TFUNCTION) {
    return lm_raise_text(L, "checkpoint: two functions expected");
  }
  luaL_checkstack(L, 10, "checkpoint");
  lm_home_drain(L, s->home);
  callback *c = new_callback(s->home, 0);
  if (!c) return lm_raise(L, s->home ? LM_E_OOM : LM_E_STATE);
  int top = lua_gettop(L);
  lm_reg_get(L, &lm_reg_weak);
  lm_reg_get(L, &lm_reg_strong);
  for (int table = top + 1; table <= top + 2; table++) {
    lua_pushlightuserdata(L, c);
    lua_pushvalue(L, 2);
    lua_rawset(L, table);
  }
  lm_push_where(L);
  char where[96];
  snprintf(where, sizeof where, "%s", lua_tostring(L, -1));
  size_t n = strlen(where);
  if (n >= 2 && strcmp(where + n - 2, ": ") == 0) where[n - 2] = '\0';
  lua_settop(L, top);
  lua_remove(L, 2);
  lm_recipe *r;
  lm_status status = lm_recipe_begin((lm_hook){call_hook, c, release}, where, &r);
  if (status != LM_OK) return lm_raise(L, status);
  int failed = lm_pcall(L, top - 2, LUA_MULTRET);
  lm_recipe_end(r);
  return failed ? lua_error(L) : lua_gettop(L);
}

const luaL_Reg lm_hook_functions[] = {
    {"checkpoint", bind_checkpoint},       {"_register_hook", bind_register},   {"_remove_hook", bind_remove},
    {"custom_record", bind_custom_record}, {"custom_saved", bind_custom_saved}, {NULL, NULL},
};
