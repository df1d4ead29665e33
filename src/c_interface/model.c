/* Loads, runs, trains and saves models, and holds conversations, for C programs, by the functions of
 * lua/luminary/c_interface.lua. */
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "c_interface/session.h"

enum { MOST = 1024 }; /* inputs or outputs of a call */

struct lum_model {
  lum_session *session;
  int reference; /* the registry's, to the model that c_interface.load returned; LUA_NOREF: nil */
};

/* A call of a function of luminary.c_interface: function(model, text..., names..., tensors). */
typedef struct model_call {
  lm_host_call host;
  lum_model *model;
  const char *function;
  int texts, lists;
  const char *text[3]; /* NULL: nil */
  struct {
    size_t n;
    const char *const *name;
  } names[2];
  void (*then)(lua_State *L, struct model_call *c); /* uses the results, from index 2; NULL: they are tensors */
  int i, count;                                     /* for then_info: the value, from 1; the number of values */
  lum_value_info *info;
  lum_on_text on_text; /* NULL, or passed after the texts as a function */
  void *user;
} model_call;

/* The function on_text(piece) of Lua; its upvalue is the call. Returns false to end the answer. */
static int pass_text(lua_State *L) {
  const model_call *c = lua_touserdata(L, lua_upvalueindex(1));
  lua_pushboolean(L, c->on_text(c->user, lua_tostring(L, 1)) == 0);
  return 1;
}

static int call_body(lua_State *L) {
  model_call *c = lua_touserdata(L, 1);
  luaL_checkstack(L, 16, "call");
  lua_getfield(L, LUA_REGISTRYINDEX, LM_HOST_CALL);
  lua_pushlightuserdata(L, &c->host);
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->model->session->functions);
  lua_getfield(L, -1, c->function);
  lua_remove(L, -2);
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->model->reference);
  for (int i = 0; i < c->texts; i++) lua_pushstring(L, c->text[i]);
  for (int k = 0; k < c->lists; k++) {
    lua_createtable(L, (int)c->names[k].n, 0);
    for (size_t i = 0; i < c->names[k].n; i++) {
      lua_pushstring(L, c->names[k].name[i]);
      lua_rawseti(L, -2, (int)i + 1);
    }
  }
  if (c->on_text) {
    lua_pushlightuserdata(L, c);
    lua_pushcclosure(L, pass_text, 1);
  }
  lua_call(L, 3 + c->texts + c->lists + (c->on_text != NULL), LUA_MULTRET);
  if (c->then && c->host.status == LM_OK) c->then(L, c);
  return 0;
}

static lum_session *session_of(const lum_model *m) { return m ? m->session : NULL; }

static lum_status call_model(lum_model *m, model_call *c) {
  c->model = m;
  return lm_session_call(session_of(m), call_body, c, &c->host);
}

static void then_keep(lua_State *L, model_call *c) {
  lua_settop(L, 2);
  c->model->reference = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* Makes a model of the result of c, whose first text is a path. */
static lum_status open_model(lum_session *session, model_call c, lum_model **out) {
  if (out) *out = NULL;
  if (!c.text[0] || !out) return lm_noted(session, lm_given(c.text[0] ? "out" : "path", NULL));
  lum_model *m = lm_malloc(sizeof *m);
  if (!m) return lm_note(session, LM_E_OOM, "out of memory");
  *m = (lum_model){session, LUA_NOREF};
  c.then = then_keep;
  lum_status status = call_model(m, &c);
  if (status == LUM_OK) {
    atomic_fetch_add(&session->references, 1);
    *out = m;
  } else {
    lm_free(m);
  }
  return status;
}

lum_status lum_model_load(lum_session *session, const char *path, const lum_model_options *options, lum_model **out) {
  if (out) *out = NULL;
  if (options && options->size == 0) {
    return lm_noted(session, lm_fail_int("model", "options->size", "set by LUM_MODEL_OPTIONS", 0));
  }
  const char *weights = LM_OPTION(options, weights), *device = LM_OPTION(options, device);
  return open_model(session, (model_call){.function = "load", .texts = 3, .text = {path, weights, device}}, out);
}

static int forget(lua_State *L) {
  const lum_model *m = lua_touserdata(L, 1);
  luaL_unref(L, LUA_REGISTRYINDEX, m->reference);
  return 0;
}

void lum_model_free(lum_model *model) {
  if (!model) return;
  lm_session_call(model->session, forget, model, NULL);
  lm_session_release(model->session);
  lm_free(model);
}

/* ---- running */

static bool has_null(size_t n, void *const *list) {
  for (size_t i = 0; i < n; i++)
    if (!list || !list[i]) return true;
  return false;
}

static lm_status check_call(const model_call *c, size_t n, lum_tensor *const *inputs, size_t capacity,
                            lum_tensor **outputs) {
  if (n > MOST || capacity > MOST) {
    return lm_fail_int("model", "the number of inputs and outputs", "at most 1024", (int64_t)(n > MOST ? n : capacity));
  }
  if (capacity > 0 && !outputs) return lm_fail(LM_E_ARG, "model: outputs must not be NULL");
  if (has_null(n, (void *const *)inputs)) return lm_fail(LM_E_ARG, "model: an input is NULL");
  for (int k = 0; k < c->lists; k++)
    if (has_null(c->names[k].n, (void *const *)c->names[k].name)) return lm_fail(LM_E_ARG, "model: a name is NULL");
  return LM_OK;
}

static lum_status call_with(lum_model *m, model_call c, size_t n, lum_tensor *const *inputs, size_t capacity,
                            lum_tensor **outputs, size_t *count) {
  lm_tensor *none;
  if (count) *count = 0;
  for (size_t i = 0; outputs && i < capacity; i++) outputs[i] = NULL;
  lm_status status = check_call(&c, n, inputs, capacity, outputs);
  if (status != LM_OK) return lm_noted(session_of(m), status);
  c.host.n = (int)n;
  c.host.in = (lm_tensor *const *)inputs;
  c.host.capacity = (int)capacity;
  c.host.out = outputs ? (lm_tensor **)outputs : &none;
  lum_status result = call_model(m, &c);
  if (count) *count = (size_t)c.host.count;
  return result;
}

lum_status lum_model_run(lum_model *model, size_t n, lum_tensor *const *inputs, size_t capacity, lum_tensor **outputs,
                         size_t *count) {
  return call_with(model, (model_call){.function = "run"}, n, inputs, capacity, outputs, count);
}

lum_status lum_model_call(lum_model *model, const char *function, size_t n, lum_tensor *const *inputs, size_t capacity,
                          lum_tensor **outputs, size_t *count) {
  model_call c = {.function = "call", .texts = 1, .text = {function ? function : ""}};
  return call_with(model, c, n, inputs, capacity, outputs, count);
}

lum_status lum_model_run_named(lum_model *model, size_t n, const char *const *input_names, lum_tensor *const *inputs,
                               size_t n_outputs, const char *const *output_names, lum_tensor **outputs) {
  model_call c = {.function = "run_named", .lists = 2, .names = {{n, input_names}, {n_outputs, output_names}}};
  return call_with(model, c, n, inputs, n_outputs, outputs, NULL);
}

/* ---- what a model declares: c_interface.info returns the list of tables {name, dtype, dims} */

static void then_info(lua_State *L, model_call *c) {
  lum_value_info info = LUM_VALUE_INFO;
  lm_dtype dtype;
  c->count = (int)lua_objlen(L, 2);
  if (!c->info || c->i < 1 || c->i > c->count) return;
  lua_rawgeti(L, 2, c->i); /* 3 */
  lua_getfield(L, 3, "name");
  lua_getfield(L, 3, "dtype"); /* 5 */
  lua_getfield(L, 3, "dims");
  info.name = lua_tostring(L, 4); /* kept alive by the model */
  if (lua_isstring(L, 5) && lm_dtype_parse(lua_tostring(L, 5), &dtype) == LM_OK) info.dtype = (lum_dtype)dtype;
  if (lua_istable(L, 6) && lua_objlen(L, 6) <= LUM_MAX_DIMS) info.ndim = (int)lua_objlen(L, 6);
  for (int d = 0; d < info.ndim; d++) {
    lua_rawgeti(L, 6, d + 1);
    const double size = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -1;
    info.shape[d] = size >= 0 && size <= 0x1p53 ? (int64_t)size : -1;
  }
  info.size = c->info->size;
  memcpy(c->info, &info, info.size < sizeof info ? info.size : sizeof info);
}

static lum_status get_info(const lum_model *m, const char *which, int i, lum_value_info *info, int *count) {
  model_call c = {.function = "info", .then = then_info, .texts = 1, .text = {which}, .i = i + 1, .info = info};
  lum_status status = call_model((lum_model *)m, &c);
  *count = c.count;
  if (status != LUM_OK || (i >= 0 && i < c.count)) return status;
  return lm_noted(m->session, lm_fail_int("model", "i", lm_text("from 0 to %d", c.count - 1), i));
}

static lum_status describe_value(const lum_model *m, const char *which, int i, lum_value_info *info) {
  if (!info) return lm_noted(session_of(m), lm_given("info", info));
  if (info->size == 0) {
    return lm_noted(session_of(m), lm_fail_int("model", "info->size", "set by LUM_VALUE_INFO", 0));
  }
  return get_info(m, which, i, info, &(int){0});
}

static int get_count(const lum_model *m, const char *which) {
  int n;
  get_info(m, which, 0, NULL, &n);
  return n;
}
int lum_model_input_count(const lum_model *model) { return get_count(model, "inputs"); }
int lum_model_output_count(const lum_model *model) { return get_count(model, "outputs"); }
lum_status lum_model_input(const lum_model *model, int i, lum_value_info *info) {
  return describe_value(model, "inputs", i, info);
}
lum_status lum_model_output(const lum_model *model, int i, lum_value_info *info) {
  return describe_value(model, "outputs", i, info);
}

static lum_status call_with_text(lum_model *m, const char *function, const char *text, lum_tensor **out) {
  if (out) *out = NULL;
  if (!text) return lm_noted(session_of(m), lm_fail(LM_E_ARG, "%s: the name or path must not be NULL", function));
  return call_with(m, (model_call){.function = function, .texts = 1, .text = {text}}, 0, NULL, out != NULL, out, NULL);
}

lum_status lum_model_tensor(lum_model *model, const char *name, lum_tensor **out) {
  return call_with_text(model, "tensor", name, out);
}
lum_status lum_model_to(lum_model *model, const char *device) { return call_with_text(model, "to", device, NULL); }
lum_status lum_model_load_weights(lum_model *model, const char *path) {
  return call_with_text(model, "load_weights", path, NULL);
}
lum_status lum_model_save(lum_model *model, const char *path) { return call_with_text(model, "save", path, NULL); }

/* ---- conversations, which are kept as models are */

struct lum_chat {
  lum_model model;
};

static lum_status call_chat(lum_chat *chat, model_call c) { return call_model(chat ? &chat->model : NULL, &c); }

lum_status lum_chat_open(lum_session *session, const char *path, const char *options, lum_chat **out) {
  model_call c = {.function = "chat", .texts = 2, .text = {path, options}};
  return open_model(session, c, (lum_model **)out);
}
lum_status lum_chat_say(lum_chat *chat, const char *message, lum_on_text on_text, void *user) {
  model_call c = {.function = "say", .texts = 1, .text = {message}, .on_text = on_text, .user = user};
  return call_chat(chat, c);
}
lum_status lum_chat_add(lum_chat *chat, const char *message) {
  return call_chat(chat, (model_call){.function = "add", .texts = 1, .text = {message}});
}
lum_status lum_chat_reset(lum_chat *chat) { return call_chat(chat, (model_call){.function = "reset"}); }
void lum_chat_free(lum_chat *chat) { lum_model_free((lum_model *)chat); }
