/* Raises a status as a Lua error at the script's line, and words its message. */
#include <ctype.h>
#include <stdio.h>

#include "base/interned.h"
#include "base/message.h"
#include "bind/bind.h"
#include "bind/host_call.h"
#include "distributed/group/world.h"
#include "op/kernels.h"

lm_call_functions lm_calls;

/* Returns true if the function's chunk is of the library or a package: its name begins with a line of `prefixes`. */
static bool is_own(const lua_Debug *ar, const char *prefixes) {
  for (const char *end; (end = strchr(prefixes, '\n')); prefixes = end + 1) {
    if (strncmp(ar->source, prefixes, (size_t)(end - prefixes)) == 0) return true;
  }
  return false;
}

/* Pushes and returns the names' beginnings, one a line, of chunks of the library and of packages. */
static const char *push_own_files(lua_State *L) {
  lm_reg_get(L, &lm_reg_own_files);
  return lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
}

/* Finds the first level outside our own Lua files. Looks at LEVELS at most, since each look walks the stack from its
 * top. *at: the level before it, which the script called. */
static bool find_caller(lua_State *L, lua_Debug *ar, int *at) {
  enum { LEVELS = 400 }; /* nested tables, 100 deep, take 300 */
  const char *prefixes = push_own_files(L);
  bool found = false;
  for (int level = 1; !found && level <= LEVELS && lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    found = ar->currentline > 0 && !is_own(ar, prefixes);
    if (!found && at) *at = level;
  }
  lua_pop(L, 1);
  return found;
}

static void push_where(lua_State *L, int *at) {
  lua_Debug ar;
  if (find_caller(L, &ar, at)) {
    lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
  } else {
    lua_pushliteral(L, "");
  }
}

void lm_push_where(lua_State *L) { push_where(L, NULL); }

void lm_push_site(lua_State *L) {
  push_where(L, NULL);
  size_t n = lua_objlen(L, -1);
  lua_pushlstring(L, lua_tostring(L, -1), n >= 2 ? n - 2 : 0);
  lua_remove(L, -2);
}

typedef enum standing { ANOTHER, PERHAPS, ITSELF } standing;

/* Compares the function below the top with the field `name` of the table at the top, and pops the table. PERHAPS: the
 * field is a class or a Lua function, which may have called the function last and so has no frame (a tail call). */
static standing stands_as(lua_State *L, const char *name) {
  lua_pushstring(L, name);
  lua_rawget(L, -2);
  standing as = ANOTHER;
  if (lua_type(L, -1) == LUA_TFUNCTION) {
    as = lua_rawequal(L, -1, -3) ? ITSELF : lua_iscfunction(L, -1) ? ANOTHER : PERHAPS;
  } else if (lua_type(L, -1) == LUA_TTABLE && lm_field(L, lua_gettop(L), "__name")) {
    as = PERHAPS;
    lua_pop(L, 1);
  }
  lua_pop(L, 2);
  return as;
}

/* Compares the function at the top, which stays, with the methods or the functions of that name of the loaded libraries
 * (base/options.lua: strict). *renames: whether the library has names of its own for ops (metafield __renames). */
static standing stands_in(lua_State *L, const char *name, bool method, bool *renames) {
  standing as = ANOTHER;
  int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  for (lua_pushnil(L); as != ITSELF && lua_next(L, top + 1); lua_settop(L, top + 2)) {
    const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    if (strncmp(key, "luminary", 8) != 0 || lua_type(L, -1) != LUA_TTABLE) continue;
    if (method) {
      if (!lm_field(L, top + 3, "methods")) continue;
      if (lua_type(L, -1) != LUA_TTABLE) continue;
    } else {
      if (!luaL_getmetafield(L, -1, "__library")) continue;
      lua_pop(L, 1);
    }
    const bool here_renames = luaL_getmetafield(L, -1, "__renames");
    if (here_renames) lua_pop(L, 1);
    lua_pushvalue(L, top);
    lua_insert(L, -2);
    standing here = stands_as(L, name);
    if (here > as) {
      as = here;
      *renames = here_renames;
    }
  }
  lua_settop(L, top);
  return as;
}

void lm_note_line(lua_State *L, const lm_lua *s) {
  const bool wanted = lm_wants_lines();
  if (s->worlds == 0 && !wanted) return;
  lua_Debug ar;
  char line[LUA_IDSIZE + 16] = "";
  luaL_checkstack(L, 4, "line");
  if (find_caller(L, &ar, NULL)) snprintf(line, sizeof line, "%s:%d", ar.short_src, ar.currentline);
  if (s->worlds > 0) lm_set_where(line);
  if (wanted) lm_set_script_line(*line ? lm_interned(line) : NULL);
}

void lm_note_read(lua_State *L, const lm_lua *s, lm_tensor *t, const char *how) {
  if (!lm_tape_current()) return;
  lm_note_line(L, s);
  lua_Debug ar;
  const bool is_known = lua_getstack(L, 1, &ar) && lua_getinfo(L, "Sl", &ar) && ar.currentline > 0;
  const char *file = is_known && is_own(&ar, push_own_files(L)) ? strstr(ar.source, "luminary/") : NULL;
  for (const char *next; file && (next = strstr(file + 1, "luminary/"));) file = next;
  if (is_known) lua_pop(L, 1);
  lm_tape_note_read(t, file ? lm_text("%s (called by %s:%d)", how, file, ar.currentline) : how);
}

/* Returns whether `given` is the op's name, or that with an underscore: squeeze, squeeze_. */
static bool names_op(const char *given, const char *op) {
  size_t n = strlen(op);
  return strncmp(given, op, n) == 0 && (given[n] == '\0' || strcmp(given + n, "_") == 0);
}

/* Returns to Lua the function that calling argument 1 runs: a module's forward, or a function itself; nothing for other
 * values. Runs in a protected call, since reading a missing field may raise. */
static int bind_called_function(lua_State *L) {
  if (lua_type(L, 1) == LUA_TTABLE || lua_type(L, 1) == LUA_TUSERDATA) {
    lua_getfield(L, 1, "forward");
    return 1;
  }
  lua_settop(L, 1);
  return lua_type(L, 1) == LUA_TFUNCTION;
}

static int bind_field(lua_State *L) {
  lua_gettable(L, 1);
  return 1;
}

/* Arguments of the search for the function that the calling line names. */
typedef struct lookup {
  const char *prefixes; /* for is_own */
  int op;               /* stack index of the function that runs; 0 if the library's line may name it */
} lookup;

/* Pops the Lua function at the top; returns whether it is the script's, or one that at most `most` functions wrap. */
static bool pop_is_scripts_function(lua_State *L, const lookup *u, int most) {
  lua_Debug ar;
  lua_pushvalue(L, -1);
  lua_getinfo(L, ">S", &ar);
  bool is = !is_own(&ar, u->prefixes);
  for (int i = 1; most > 0 && !is && lua_getupvalue(L, -1, i); i++) {
    if (lua_type(L, -1) == LUA_TFUNCTION && !lua_iscfunction(L, -1)) {
      is = pop_is_scripts_function(L, u, most - 1);
    } else {
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  return is;
}

/* Pops the value at the top. Returns ITSELF for the running function or the script's, ANOTHER for another function of
 * the library, PERHAPS for a value that is no function. */
static standing whose_function(lua_State *L, const lookup *u) {
  standing as = PERHAPS;
  lua_pushcfunction(L, bind_called_function);
  lua_insert(L, -2);
  if (lua_pcall(L, 1, 1, 0) == 0 && lua_type(L, -1) == LUA_TFUNCTION) {
    if (u->op > 0 && lua_rawequal(L, -1, u->op)) {
      as = ITSELF;
    } else if (lua_iscfunction(L, -1)) {
      as = ANOTHER;
    } else {
      lua_pushvalue(L, -1);
      as = pop_is_scripts_function(L, u, 1) ? ITSELF : ANOTHER;
    }
  }
  lua_pop(L, 1);
  return as;
}

/* Returns whose function the field `name` of the value at the top is, and pops the value; PERHAPS if absent. */
static standing whose_field(lua_State *L, const char *name, const lookup *u) {
  standing as = PERHAPS;
  if (lua_type(L, -1) == LUA_TTABLE || lua_type(L, -1) == LUA_TUSERDATA) {
    lua_pushcfunction(L, bind_field);
    lua_pushvalue(L, -2);
    lua_pushstring(L, name);
    if (lua_pcall(L, 2, 1, 0) == 0) {
      as = whose_function(L, u);
    } else {
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  return as;
}

/* Returns whose function the caller's line names: a variable of the caller, or a field of one. The function that the
 * line called may have no frame (tail calls), so it is looked up by that name. */
static standing whose_call(lua_State *L, lua_Debug *caller, const lua_Debug *called, const lookup *u) {
  const bool in_field = strcmp(called->namewhat, "method") == 0 || strcmp(called->namewhat, "field") == 0;
  standing as = PERHAPS;
  const char *name;
  for (int i = 1; (name = lua_getlocal(L, caller, i)); i++) {
    standing here = in_field                          ? whose_field(L, called->name, u)
                    : strcmp(name, called->name) == 0 ? whose_function(L, u)
                                                      : (lua_pop(L, 1), PERHAPS);
    if (here != PERHAPS) as = here; /* the last of a name is the one in scope */
  }
  lua_getinfo(L, "f", caller);
  int f = lua_gettop(L);
  for (int i = 1; as == PERHAPS && (name = lua_getupvalue(L, f, i)); i++) {
    as = in_field                          ? whose_field(L, called->name, u)
         : strcmp(name, called->name) == 0 ? whose_function(L, u)
                                           : (lua_pop(L, 1), PERHAPS);
  }
  if (as == PERHAPS && strcmp(called->namewhat, "global") == 0) {
    lua_getfenv(L, f);
    as = whose_field(L, called->name, u);
  }
  lua_settop(L, f - 1);
  return as;
}

bool lm_is_scripts_call(lua_State *L, int level, const char *name, int function) {
  lua_Debug called, ar;
  if (!lua_getstack(L, level, &called)) return false;
  luaL_checkstack(L, 16, "caller");
  const char *prefixes = push_own_files(L);
  int up = level + 1;
  while (lua_getstack(L, up, &ar) && lua_getinfo(L, "Sl", &ar) && ar.currentline <= 0) up++; /* C: pcall, no_grad */
  bool found = lua_getstack(L, up, &ar), own = found && is_own(&ar, prefixes);
  lua_getinfo(L, "nf", &called);
  if (function) {
    lua_pushvalue(L, function);
    lua_replace(L, -2);
  }
  bool method = strcmp(called.namewhat, "method") == 0, field = strcmp(called.namewhat, "field") == 0;
  bool by_name = called.name && names_op(called.name, name);
  bool renames = false;
  standing as = called.name && (method || field) ? stands_in(L, called.name, method, &renames) : ANOTHER;
  standing whose = PERHAPS;
  if (found && up == level + 1 && called.name && (own ? !by_name : !method) && as == ANOTHER) {
    const lookup u = {prefixes, own ? 0 : lua_gettop(L)};
    whose = whose_call(L, &ar, &called, &u);
  }
  lua_pop(L, 2);
  return own ? whose == ITSELF : found && whose != ANOTHER && (by_name || as != PERHAPS);
}

/* Returns the op of that name, or of that name without its last underscore; NULL if there is none. */
static const lm_op *op_named(const char *begin, const char *end) {
  char name[64] = "";
  if (end - begin >= (long)sizeof name) return NULL;
  memcpy(name, begin, (size_t)(end - begin));
  int id = lm_op_find(name);
  if (id < 0 && end > begin && end[-1] == '_') {
    name[end - begin - 1] = '\0';
    id = lm_op_find(name);
  }
  return id < 0 ? NULL : &lm_ops[id];
}

/* Returns the op whose name begins the message, or NULL. *rest: the text after the first ": ". */
static const lm_op *leading_op(const char *message, const char **rest) {
  const char *end = strstr(message, ": ");
  *rest = end ? end + 2 : message;
  return end ? op_named(message, end) : NULL;
}

static bool mentions(const char *text, const char *word) {
  size_t n = strlen(word);
  for (const char *at = text; (at = strstr(at, word)); at += n) {
    bool begins = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
    if (begins && !(isalnum((unsigned char)at[n]) || at[n] == '_')) return true;
  }
  return false;
}

static bool has_arg(const lm_op *op, const char *name) {
  for (int i = 0; op && i < op->nargs; i++)
    if (strcmp(op->arg[i].name, name) == 0) return true;
  return false;
}

/* Returns whether `rest`, a message of the op `inner`, stays true under its caller's name: it names no argument that
 * the caller lacks, and no factor, which may mean something else there. Names of internal ops tell users nothing. */
static bool holds_for(const char *outer, const char *outer_end, const lm_op *inner, const char *rest) {
  static const char prefix[] = "linalg_";
  size_t n = sizeof prefix - 1;
  bool same = strncmp(inner->name, prefix, n) == 0 && strlen(inner->name + n) == (size_t)(outer_end - outer) &&
              strncmp(inner->name + n, outer, (size_t)(outer_end - outer)) == 0;
  if (inner->internal || same) return true;
  const lm_op *caller = op_named(outer, outer_end);
  for (int i = 0; i < inner->nargs; i++) {
    const lm_arg *a = &inner->arg[i];
    bool factor = a->kind == LM_ARG_F || a->kind == LM_ARG_F_REQ || a->kind == LM_ARG_F_OPT;
    if (mentions(rest, a->name) && (factor || !has_arg(caller, a->name))) return false;
  }
  return true;
}

/* Removes inner ops' names from the message, "matmul: mm: dtype mismatch: ...", where that loses nothing. Looks only
 * after an op's name: a name after another function's, as in "Queue:put: t: ...", may be an argument's. */
static void drop_inner_ops(char *message) {
  char *end = strstr(message, ": ");
  if (!end || !op_named(message, end)) return;
  const char *rest;
  const lm_op *inner = leading_op(end + 2, &rest);
  if (!inner) return;
  drop_inner_ops(end + 2);
  leading_op(end + 2, &rest);
  if (holds_for(message, end, inner, rest)) memmove(end + 2, rest, strlen(rest) + 1);
}

/* Returns the library's name by which the function at that level was called, as a method or from a loaded library;
 * NULL for other functions. *op: whether the function is itself an op, or has a library's own name for one. */
static const char *called_name(lua_State *L, int level, const char *message, bool *op) {
  lua_Debug ar;
  if (!lua_getstack(L, level, &ar) || !lua_getinfo(L, "nf", &ar)) return NULL;
  const bool reads = lua_tocfunction(L, -1) == lm_calls.index, writes = lua_tocfunction(L, -1) == lm_calls.newindex;
  if ((reads || writes) && strncmp(message, "index_", 6) == 0) {
    lua_pop(L, 1);
    *op = true;
    return reads ? "x[…]" : "x[…] = value";
  }
  bool method = strcmp(ar.namewhat, "method") == 0, field = strcmp(ar.namewhat, "field") == 0;
  bool renames = false;
  standing as = ar.name && (method || field) ? stands_in(L, ar.name, method, &renames) : ANOTHER;
  lua_CFunction f = lua_tocfunction(L, -1);
  *op = renames || (as == ITSELF && (f == lm_calls.op || f == lm_calls.op_in_place || f == lm_calls.overload));
  lua_pop(L, 1);
  const char *end = strstr(message, ": ");
  if (as == ITSELF && f && !*op && end && op_named(message, end)) return NULL; /* item(), backward(): an op's failure */
  return as == ANOTHER ? NULL : ar.name;
}

/* Returns whether one of the words from `begin` to `end`, which dots and colons separate, is `name`. */
static bool has_name(const char *begin, const char *end, const char *name) {
  size_t n = strlen(name);
  for (const char *at = begin; at < end; at += strcspn(at, ".:") + 1) {
    if (strcspn(at, ".:") == n && strncmp(at, name, n) == 0) return true;
  }
  return false;
}

/* Pushes the message, made to begin with the name that the script called: an op has several names, and a function that
 * calls others passes their errors on. */
static void push_message(lua_State *L, char *message, int level) {
  bool op = false;
  drop_inner_ops(message);
  const char *name = called_name(L, level, message, &op), *end = strstr(message, ": ");
  const size_t n = strlen(LM_EARLIER_CALL);
  if (name && end && strncmp(message, LM_EARLIER_CALL, n) == 0 && has_name(message + n, end, name)) message += n;
  bool words = end && strcspn(message, " \"'[(") > (size_t)(end - message);
  if (!name || (words && has_name(message, end, name))) {
    lua_pushstring(L, message);
  } else {
    const char *rest;
    const lm_op *inner = words ? leading_op(message, &rest) : NULL;
    bool replace = inner && (op || holds_for(name, name + strlen(name), inner, rest));
    lua_pushfstring(L, "%s: %s", name, replace ? rest : message);
  }
}

static int do_nothing(lua_State *L) {
  (void)L;
  return 0;
}

/* Calls a hook that raises at the next call, set by a signal while C ran (luajit's for Ctrl-C, lua_thread.c's). Here it
 * raises before the error at hand; in that error's handler it would be an "error in error handling". */
static void call_hook(lua_State *L) {
  if (!(lua_gethookmask(L) & LUA_MASKCALL)) return;
  lua_pushcfunction(L, do_nothing);
  if (lua_pcall(L, 0, 0, 0) == 0) return;
  push_where(L, NULL); /* the hook saw only C functions, which have no line */
  lua_insert(L, -2);
  if (lua_type(L, -1) == LUA_TSTRING) lua_concat(L, 2);
  lua_error(L);
}

static _Thread_local struct {
  const char *text; /* equal strings of a state have equal addresses */
  lm_status status;
} raised; /* this thread's last error */

static int raise_message(lua_State *L, lm_status status, char *message) {
  luaL_checkstack(L, 16, "error");
  call_hook(L);
  int at = 0;
  push_where(L, &at);
  push_message(L, message, at);
  lua_concat(L, 2);
  raised.text = lua_tostring(L, -1);
  raised.status = status;
  return lua_error(L);
}

lm_status lm_raised_status(lua_State *L, int i) {
  return lua_type(L, i) == LUA_TSTRING && lua_tostring(L, i) == raised.text ? raised.status : LM_E_LUA;
}

int lm_raise(lua_State *L, lm_status status) {
  if (status == LM_E_LUA) { /* a callback's own error passes through unchanged */
    lm_reg_get(L, &lm_reg_error);
    lua_rawgeti(L, -1, 1);
    lua_pushnil(L);
    lua_rawseti(L, -3, 1);
    return lua_error(L);
  }
  char message[1024];
  snprintf(message, sizeof message, "%s", lm_error());
  return raise_message(L, status, message);
}

int lm_raise_arg(lua_State *L, int i, const char *fn, const char *arg, const char *bound) {
  return lm_raise(L, lm_fail_arg(L, LM_STATE(L), i, fn, arg, bound));
}

int lm_raise_text(lua_State *L, const char *format, ...) {
  char message[1024];
  LM_WRITE_ARGS(message, sizeof message, format);
  return raise_message(L, LM_E_ARG, message);
}

void lm_need_no_more(lua_State *L, int n, int self, const char *fn) {
  int given = lua_gettop(L);
  while (given > n && lua_isnil(L, given)) given--;
  if (given > n) lm_raise(L, lm_fail_too_many(fn, n - self, "argument", given - self));
  lua_settop(L, n);
}

/* own_files(prefix): treats chunks whose names begin so as the library's; errors are raised at their callers */
LM_FUNCTION(own_files) {
  if (!lm_to_text(L, 1)) return lm_raise_arg(L, 1, "own_files", "prefix", "a string");
  lua_pushfstring(L, "%s%s\n", push_own_files(L), lua_tostring(L, 1));
  lm_reg_set(L, &lm_reg_own_files);
  return 0;
}

/* Returns a copy of the text at 1, which may have names from files, with '?' in place of characters that a terminal
 * must not get. The copy is on the stack. */
static char *printable(lua_State *L) {
  size_t n;
  const char *text = lua_tolstring(L, 1, &n);
  char *copy = memcpy(lua_newuserdata(L, n + 1), text, n + 1);
  lm_make_printable(copy);
  return copy;
}

LM_FUNCTION(printable) {
  luaL_checkstring(L, 1);
  return lm_return_text(L, printable(L));
}

LM_FUNCTION(error_at_caller) {
  if (lua_isnoneornil(L, 1)) return lm_raise_arg(L, 1, "error_at_caller", "message", "a string");
  if (lua_type(L, 1) != LUA_TSTRING) { /* an error value that is no text is raised unchanged */
    lua_settop(L, 1);
    return lua_error(L);
  }
  char *copy = printable(L);
  const lm_status status = lua_type(L, 2) == LUA_TNUMBER ? (lm_status)lua_tointeger(L, 2) : lm_raised_status(L, 2);
  return raise_message(L, status > LM_OK && status < LM_E_LUA ? status : LM_E_ARG, copy);
}
