/* Declares what the files of bind/ share: all code that uses Lua's C API, one file for each subject.
 *
 * `require "luminary.core"` returns these functions (lua/ builds `require "luminary"` from them). Tensors are
 * userdata; `opts` is a trailing table with string keys; unknown options are errors that name the
 * nearest known one; errors are Lua errors at the first line outside luminary's own Lua files.
 * Other functions are described at the head of the file that adds them.
 *
 *   ops              table: every op by name, and `name_` of each pointwise op
 *   methods          table: the methods of tensors, ops included; Lua code may add to it
 *   sizes            the metatable of lists of sizes, x.shape and the like (size_lists.lua fills it)
 *   op_list()        list of op names
 *   nearest(s, list) the nearest of a list of strings to s, or nil if none is close (for messages)
 *   error_at_caller(message[, cause])   raise at the first line outside luminary's own Lua files;
 *     cause: a number of lm_status, or the error that this one explains, whose status it keeps
 *
 *   tensor(v, {dtype, device, requires_grad})     from nested lists, a number, a boolean or a tensor
 *   is_tensor(v)     true for a live or dropped tensor handle; is_alive(v) for a live one
 *   set_data(t, from)  t takes over from's storage, sizes, dtype, device in place (module:to, load)
 *   max(x [, dim | other] [, opts])  min likewise: as x:max() and x:min()
 */
#pragma once

#include <lauxlib.h>
#include <lua.h>
#include <string.h>

#include "autograd/autograd.h"
#include "autograd/follow.h"
#include "autograd/tape.h"
#include "backend/known/device_kinds.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/interned.h"
#include "base/log.h"
#include "base/nearest_word.h"

/* A tensor handle: the userdata Lua holds. t is NULL once freed or dropped, and `why` is the reason. */
typedef struct lm_tensor_handle {
  const struct lm_lua *state; /* the Lua state that made it; distinguishes handles from other userdata */
  lm_tensor *t;
  union {
    struct lm_tensor_handle *next; /* next in its scope's list, if pprev is set */
    const char *why; /* once t is NULL: text after "this tensor", kept alive by the state's table of sites */
  };
  struct lm_tensor_handle **pprev;
  bool is_result;    /* true if it may be the result of a compiled function, without values */
  bool hooked;       /* true if it has its own environment table, with hooks and fields */
  bool intermediate; /* true if it is in the list of a scope that is a module's call */
} lm_tensor_handle;

typedef struct lm_scope {
  struct lm_scope *outer;
  lm_tensor_handle *handles;
  bool is_call; /* true for a call of one of the library's modules, whose code keeps no result that it does not spare */
} lm_scope;

typedef struct lm_callbacks lm_callbacks;

/* The index at which the tensors' metatable holds the metatable of lists of sizes. */
enum { LM_SIZES = 1 };

/* The library's data of one Lua state: upvalue 1 of each of its closures; upvalue 2 is the tensors' metatable. */
typedef struct lm_lua {
  int worlds, worlds_before; /* dist's worlds: number open, number ever opened */
  bool follows;              /* true while a compiled function runs (autograd/follow.c) */
  bool reads_for_op;         /* true while a call reads tensors that it passes to ops alone */
  bool settle_failed;        /* true if the last error is that of giving results their values */
  lua_State *running;        /* the coroutine inside lm_backward, for hooks */
  lm_callbacks *callbacks;
  struct lm_callback *in_backward; /* the custom function whose backward runs */
  lm_scope *scope;
  /* While a reader runs Lua code (lm_to_int64), the call may hold tensors it read before without a reference. Tensors
   * that handles release meanwhile are deferred until the next call's lm_gc_step. */
  int reader_depth, ndeferred; /* number of such readers that run; of deferred tensors */
  size_t deferred_capacity;
  lm_tensor **deferred;
  /* The paced collector, in bytes: results since the last step, next step, a cycle's budget, largest cached result. */
  size_t fresh, step_at, budget, uncached;
  size_t result_bytes; /* bytes of results of all steps since the last backward pass */
  size_t collect_at;   /* step_at, unless that is 0 because each call has other work in lm_gc_step */
  double cycle_start, cycle_collecting;
  int cycle_steps;
  bool elsewhere;                 /* true if some of the cycle's results are not on the CPU */
  bool at_once;                   /* true if the budget was set for a heap that one step collects */
  bool hastened;                  /* true if the next collection comes before the budget is used */
  uint8_t scale[LM_DEVICE_KINDS]; /* a byte on such a device counts as 2^(1 - scale); 0: not known yet */
  /* Names as this state interned them: equal names have equal pointers. */
  const char *key_requires_grad, *dtype_name[LM_DTYPE_COUNT], *device_cpu;
  struct lm_op_reading *ops; /* one for each op, then their default argument structs */
} lm_lua;

/* Facts about an op for reading a call. */
typedef struct lm_op_reading {
  const char *key[LM_MAX_ARGS]; /* names of arguments, interned */
  uint32_t required;            /* bit i: argument i has no default */
  bool variadic;                /* true if the last positional argument takes all numbers that follow: x:view(2, 3) */
  int replacement;              /* the registry's reference of the function that replace_op set, or 0 */
  const void *defaults;         /* the argument struct as lm_op_defaults leaves it */
} lm_op_reading;

/* Registry keys (light userdata of their addresses); each holds a table or a function. */
extern const char lm_reg_sites, lm_reg_weak, lm_reg_strong, lm_reg_error, lm_reg_protected, lm_reg_int64,
    lm_reg_pointer, lm_reg_is_int64, lm_reg_own_files, lm_reg_too_deep, lm_reg_warned, lm_reg_noting, lm_reg_traceback,
    lm_reg_catchers, lm_reg_module, lm_reg_ported;

#define LM_STATE(L) ((lm_lua *)lua_touserdata(L, lua_upvalueindex(1)))

static inline void lm_reg_get(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}
/* Sets registry[key] to the value on top, and pops it. */
static inline void lm_reg_set(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
/* Loads helpers that need LuaJIT's FFI into the registry (int64_cdata.c). */
void lm_load_int64_cdata(lua_State *L);

/* Push a call's only result, and return 1. */
static inline int lm_return_bool(lua_State *L, bool value) {
  lua_pushboolean(L, value);
  return 1;
}
static inline int lm_return_number(lua_State *L, double value) {
  lua_pushnumber(L, value);
  return 1;
}
static inline int lm_return_int(lua_State *L, lua_Integer value) {
  lua_pushinteger(L, value);
  return 1;
}
static inline int lm_return_text(lua_State *L, const char *value) { /* NULL: nil */
  lua_pushstring(L, value);
  return 1;
}

/* Set a field of the table on top. */
static inline void lm_set_flag(lua_State *L, const char *key, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, key);
}
static inline void lm_set_number(lua_State *L, const char *key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}
static inline void lm_set_text(lua_State *L, const char *key, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

/* ---- tensor/handle.c */
/* Returns the handle at i; NULL for other values. */
static inline lm_tensor_handle *lm_to_tensor_handle(lua_State *L, const lm_lua *s, int i) {
  lm_tensor_handle *b = (lm_tensor_handle *)lua_touserdata(L, i);
  return b && lua_objlen(L, i) == sizeof *b && b->state == s ? b : NULL;
}
/* Returns a handle's tensor, after the results of a compiled function got their values; NULL if they cannot. */
lm_tensor *lm_settled_tensor(const lm_lua *s, lm_tensor_handle *b);
static inline lm_tensor *lm_tensor_of(const lm_lua *s, lm_tensor_handle *b) {
  return __builtin_expect(s->follows || b->is_result, 0) ? lm_settled_tensor(s, b) : b->t;
}
/* Returns true, once, if the last error is that of lm_settled_tensor. */
static inline bool lm_settling_failed(const lm_lua *s) {
  const bool failed = s->settle_failed;
  ((lm_lua *)s)->settle_failed = false;
  return failed;
}
/* Returns the tensor at i, borrowed; NULL for other values and dead handles. */
static inline lm_tensor *lm_to_tensor(lua_State *L, const lm_lua *s, int i) {
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  return b ? lm_tensor_of(s, b) : NULL;
}
/* Returns the tensor at i, which may be without values; NULL as lm_to_tensor. */
static inline lm_tensor *lm_to_shaped(lua_State *L, lm_lua *s, int i) {
  s->reads_for_op = true;
  lm_tensor *t = lm_to_tensor(L, s, i);
  s->reads_for_op = false;
  return t;
}
/* Pushes an empty handle. Call it before arguments are read, since it may collect. */
lm_tensor_handle *lm_tensor_handle_new(lua_State *L);
/* Adds a handle to a scope's list. */
static inline void lm_tensor_handle_link(lm_scope *scope, lm_tensor_handle *b) {
  b->next = scope->handles;
  b->pprev = &scope->handles;
  b->intermediate = scope->is_call;
  if (b->next) b->next->pprev = &b->next;
  scope->handles = b;
}
/* Moves the caller's reference to t into the handle, which joins the current scope. */
static inline void lm_tensor_handle_fill(lm_lua *s, lm_tensor_handle *b, lm_tensor *t) {
  b->t = t;
  b->is_result = s->follows;
  if (s->scope) lm_tensor_handle_link(s->scope, b);
}
/* Takes the handle out of its scope, which then will not drop it. */
void lm_tensor_handle_unlink(lm_tensor_handle *b);
/* Releases the tensor; `why` ends the sentence "this tensor …". */
void lm_tensor_handle_drop(lm_lua *s, lm_tensor_handle *b, const char *why);
/* Releases a handle's reference: at once, or later (lm_release_deferred) while a reader runs Lua code. */
void lm_release_safely(lm_lua *s, lm_tensor *t);
/* Releases the references kept meanwhile, unless a reader still runs Lua code. */
void lm_release_deferred(lm_lua *s);

/* ---- userdata.c: userdata of types other than tensors */
typedef struct lm_object_type {
  const char *name; /* "luminary.event": names the type's metatable in each state's registry */
  size_t bytes;
  void (*close)(void *object);           /* called when it is collected; must allow a second call */
  const char *noun;                      /* "an event", for messages */
  const luaL_Reg *methods, *methods_end; /* NULL: none */
} lm_object_type;
/* Pushes an object, all zeros. Only for the library's closures, whose upvalues the type's methods get. */
void *lm_object_new(lua_State *L, const lm_object_type *type);
/* Returns the object at i; NULL for values of other types. */
void *lm_to_object(lua_State *L, int i, const lm_object_type *type);
/* Returns the object at i; raises for values of other types. */
void *lm_need_object(lua_State *L, int i, const lm_object_type *type, const char *fn);
/* Returns the pointer with which the type's objects begin; raises if it is NULL, as in closed objects. */
void *lm_need_held(lua_State *L, int i, const lm_object_type *type, const char *fn);
/* Closes the object at 1 now; a Lua function without results. */
int lm_object_close(lua_State *L, const lm_object_type *type, const char *fn);
#define LM_UNUSED __attribute__((unused))
/* Defines or declares the reader lm_need_KIND of arguments that LM_FUNCTION declares: of the one at i, `arg` of fn. It
 * raises for others, and leaves the stack as it was. */
#define LM_READER(type, kind)                                                                   \
  LM_UNUSED static type lm_need_##kind(LM_UNUSED lua_State *L, int i, LM_UNUSED const char *fn, \
                                       LM_UNUSED const char *arg)
/* Defines kind##_type, whose objects hold one `held *`, NULL once closed, which `release` frees, and the reader of open
 * ones for LM_FUNCTION. */
#define LM_HELD_TYPE(kind, held, release, name, noun, ...)                                           \
  static void close_##kind(void *object) {                                                           \
    held **at = object;                                                                              \
    release(*at);                                                                                    \
    *at = NULL;                                                                                      \
  }                                                                                                  \
  static const lm_object_type kind##_type = {name, sizeof(held *), close_##kind, noun, __VA_ARGS__}; \
  LM_READER(held *, kind) { return lm_need_held(L, i, &kind##_type, fn); }
/* Declares the start and the end of a linker section with rows of LM_ADD. */
#define LM_LIST(name) extern const luaL_Reg __start_##name[], __stop_##name[] __attribute__((visibility("hidden")))
/* Defines a method of a type's objects in Lua, with arguments as LM_FUNCTION has, the object first. The linker joins
 * them to the list lm_methods_of_KIND, which LM_METHODS_OF names for the type. */
#define LM_OBJECT_METHOD(kind, name, who, ...)                         \
  static int kind##_##name(lua_State *L);                              \
  LM_ADD_TO(lm_methods_of_##kind, kind##_##name, #name, kind##_##name) \
  LM_READS(1, kind##_##name, who, ##__VA_ARGS__)
#define LM_METHODS_OF(kind) __start_lm_methods_of_##kind, __stop_lm_methods_of_##kind
/* Pushes an empty buffer, which is freed when it is collected. */
lm_bytes *lm_buffer_new(lua_State *L);
/* Makes the object on top keep the value at i alive. */
void lm_object_keeps(lua_State *L, int i);

/* ---- gc_step.c: paces Lua's collector by bytes of tensors, which it cannot see */
void lm_gc_step(lua_State *L, lm_lua *s);
/* Makes a collection due before a backward pass, since unreachable handles hold results that the pass would free. */
void lm_gc_step_hasten(lm_lua *s);
/* Steps the collector if due. Every call that makes tensors begins with it, while its C frame owns nothing, since a
 * finalizer's error may pass through. */
static inline void lm_gc_step_if_due(lua_State *L, lm_lua *s) {
  if (s->fresh >= s->step_at) lm_gc_step(L, s);
}
/* Computes deferred ops and collects all garbage, after an allocation failed. */
void lm_collect_all(lua_State *L);
/* Sets and returns scale[] of the device's kind. */
int lm_gc_step_scale(lm_lua *s, lm_device device);
/* Returns whether t and its storage have no other owner. */
static inline bool lm_is_only_owner(const lm_tensor *t) {
  return atomic_load_explicit(&t->rc, memory_order_relaxed) == 1 &&
         atomic_load_explicit(&t->storage->rc, memory_order_relaxed) == 1;
}
/* Returns the bytes that a result's memory counts for. */
static inline size_t lm_gc_step_weight(lm_lua *s, const lm_tensor *t) {
  int scale = s->scale[LM_DEVICE_KIND(t->device)];
  if (scale == 0) scale = lm_gc_step_scale(s, t->device);
  size_t bytes = (t->storage->data ? t->storage->bytes : lm_nbytes(t)) >> (scale - 1);
  bool cached = bytes <= s->uncached && LM_DEVICE_KIND(t->device) == LM_CPU;
  return cached || s->uncached == SIZE_MAX ? bytes : bytes / 4;
}
/* Counts a result's memory towards the next step. */
static inline void lm_gc_step_count(lm_lua *s, const lm_tensor *t) {
  if (LM_DEVICE_KIND(t->device) != LM_CPU) s->elsewhere = true;
  s->fresh += lm_gc_step_weight(s, t) + 512;
}
/* Bytes that a file descriptor counts as: a process may have some 1,000, so 256 in the usual budget. */
enum { LM_GC_STEP_DESCRIPTOR = 256 << 10 };
typedef lm_status (*lm_retried_call)(lua_State *L, lm_lua *s, void *arg);
/* Runs f with the arguments at 1 to nargs, once more if memory runs out; returns the tensors in `result`, nil for NULL,
 * as the call's n results. arg may be `result`. */
int lm_return_tensors(lua_State *L, int nargs, int n, lm_retried_call f, void *arg, lm_tensor **result);
/* Runs f as lm_return_tensors does, for one result; f's arg is a lm_tensor **. */
int lm_return_tensor(lua_State *L, int nargs, lm_retried_call f);
/* Runs f; if it ran out of memory, collects all garbage and runs it once more. f must not raise, and must own nothing
 * when it returns an error. The stack has the same height for each run. f reads its tensors itself, since finalizers
 * that run in between may free them. */
lm_status lm_retry_after_gc(lua_State *L, lm_lua *s, lm_retried_call f, void *arg);

/* ---- values.c: functions that neither raise nor allocate in Lua */
/* Returns the value at index i in the words of messages: "a tensor [2, 3]", "0.5", "string 'x'",
 * "nil", "a table". Thread-local text. */
const char *lm_describe_arg(lua_State *L, const lm_lua *s, int i);
/* Returns whether the object at i is a module: its metatable has is_module (nn/module.lua). */
bool lm_is_module(lua_State *L, int i);
/* Fails with "FN: ARG must be BOUND, got VALUE" for the value at i, or "FN: ARG is missing" without one. LM_E_ARG. */
lm_status lm_fail_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char *bound);
/* Returns the string at i; NULL for other values, and for a string with a NUL byte, at which C would end it
 * (lm_describe_arg distinguishes them). The value keeps it alive. */
const char *lm_to_text(lua_State *L, int i);
/* Returns a message's hint for a method called with a dot: x.item() passes nothing as x, x.view(4, -1) a number,
 * x.add(y) nothing as other. "" for other calls. */
const char *lm_dot_hint(lua_State *L, const char *fn, const char *arg, int type);
/* Returns the hint for a boolean instead of a tensor: x == y, which PyTorch compares by elements; else "". */
const char *lm_equality_hint(int type);
/* Reads an int64 or uint64 cdata; returns false for other values. */
bool lm_to_int64(lua_State *L, const lm_lua *s, int i, int64_t *out);
/* Pushes field `name` of the table at i, raw, and returns true; pushes nothing and returns false if it is nil. */
bool lm_field(lua_State *L, int i, const char *name);

/* ---- error.c */
/* Raises the last message at the first line outside our own Lua files; never returns. Only where the
 * C frame owns nothing. */
int lm_raise(lua_State *L, lm_status status);
/* Raises for more than n arguments after `self`, 1 for methods, and adds nil up to n. */
void lm_need_no_more(lua_State *L, int n, int self, const char *fn);
/* Raises, like lm_raise, a message made from format. */
int lm_raise_text(lua_State *L, const char *format, ...) LM_PRINTF(2, 3);
/* Pushes "train.lua:12: " of the first level outside our own Lua files, or "". */
void lm_push_where(lua_State *L);
/* Pushes "train.lua:12", or "". */
void lm_push_site(lua_State *L);
/* Calls a script's function like lua_pcall, but fails if the C stack is nearly full, since the function may call the
 * library again. Allocates nothing in Lua unless the function raises. */
int lm_pcall(lua_State *L, int nargs, int nresults);
int lm_note_traceback(lua_State *L); /* lm_pcall's error handler */
/* Returns whether an op has an in-place method, x:OP_(…). where has none: it would write to its condition. */
static inline bool lm_has_in_place(const lm_op *op) { return op->kind == LM_POINTWISE && !(op->masks & 1); }
/* The functions that call ops, which messages distinguish from others; module.c sets them at load. */
typedef struct lm_call_functions {
  lua_CFunction index, newindex, op, op_in_place, overload;
} lm_call_functions;
extern lm_call_functions lm_calls;
/* Passes the script's line (the first level outside our own Lua files) to the core: to lm_set_where if this state has
 * an open world, to lm_set_script_line if lm_wants_lines. For calls that may wait for other ranks and, by lm_gc_step,
 * calls that make tensors. Makes no garbage. */
void lm_note_line(lua_State *L, const lm_lua *s);
/* Returns whether anomaly detection, a tape, a compiled step, a profiler or the memory history needs the script's
 * lines. */
static inline bool lm_wants_lines(void) {
  const lm_follower *f = lm_compiled_call_runs() ? lm_follower_current() : NULL;
  return lm_anomaly() || lm_tape_current() || (f && f->wants_lines) || lm_traces(LM_TRACE_LINES | LM_TRACE_LIVE_MEMORY);
}
/* Notes on this thread's tape, if any, that the script, or a line of the library, reads t's values by the method `how`.
 */
void lm_note_read(lua_State *L, const lm_lua *s, lm_tensor *t, const char *how);
/* Makes the state's next call note its line, after a change of lm_wants_lines. */
static inline void lm_lines_changed(lm_lua *s) {
  s->step_at = 0;
  lm_set_script_line(NULL);
}
/* Raises lm_fail_arg's error; only where the C frame owns nothing. */
int lm_raise_arg(lua_State *L, int i, const char *fn, const char *arg, const char *bound);
/* Prints the pending message of lm_warn, once for each line of the caller. */
void lm_show_warning(lua_State *L);
/* Prints the pending message of lm_warn, once for each line of the caller and name, such as a function's. */
void lm_show_warning_of(lua_State *L, const char *name);
/* Returns whether warnings of silent mistakes in code ported from PyTorch are requested (ported_code.c). */
bool lm_is_porting(void);
/* Returns whether each line with a dim of 1 is to be reported. */
bool lm_is_porting_lines(void);
/* Warns of such mistakes in a call of an op, after showing a pending warning of the call. Bit i of given: argument i
 * was given; out: the first result, or NULL. */
void lm_check_ported(lua_State *L, lm_op_id id, const void *args, uint32_t given, const lm_tensor *out);
/* Reports reads of the globals True, False and None, which Lua does not define, while such warnings are requested,
 * unless the script's globals already have a metatable. */
void lm_watch_python_names(lua_State *L);
/* Returns whether the script itself called the function `name` at that level. A function that called it by a tail call
 * has no frame: the line at the next level then calls something else, a function of the library or of the script.
 * `function`: the stack index of the function that the script called, if that one made a tail call of the function at
 * that level; else 0. */
bool lm_is_scripts_call(lua_State *L, int level, const char *name, int function);

/* ---- arguments.c: readers of one value; none raises or allocates in Lua. Messages name fn and arg. */
/* Tensors are borrowed from their handles: valid until something allocates in Lua or runs Lua code, since a finalizer
 * or a debug hook may free them. So a call first makes its results' handles, then reads, then uses the tensors. */
lm_status lm_read_tensor(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out);
/* Reads a tensor, or a number or boolean as a new 0-d tensor; the caller releases *owned, which may be NULL. */
lm_status lm_read_scalar(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out,
                         lm_tensor **owned);
lm_status lm_read_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, double *out);
lm_status lm_read_int(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_text(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out);
/* Reads a string that may contain NUL bytes. */
lm_status lm_read_string(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out,
                         size_t *n);
lm_status lm_read_boolean(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool *out);
/* Reads a dim. Dims from 1 become dims from 0; negative dims, from the end, stay unchanged; 0 is an error. */
lm_status lm_read_dim(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_dtype(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype *out);
/* Reads a device: a string, or an integer as a CUDA ordinal. */
lm_status lm_read_device(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_device *out);
struct lm_generator;
extern const lm_object_type lm_generator_type;
lm_status lm_read_generator(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg,
                            struct lm_generator **out);
/* Reads sizes (dims false) or dims (true) from a number or a list. */
lm_status lm_read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, lm_ints *out);
/* Reads a contiguous tensor on the CPU of that dtype. */
lm_status lm_read_plain(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype dtype,
                        lm_tensor **out);
/* Reads a list of tensors into an array, which the caller frees by lm_free; `holes`: false entries become NULL. */
lm_status lm_read_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                       lm_tensor ***out);
/* Reads a tensor or a list of them. The caller releases each, and frees the array. */
lm_status lm_read_tensor_or_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes,
                                 lm_list *out);
/* Fails if the table at i, in which nothing was found, has a metatable with __index or __len. */
lm_status lm_check_empty(lua_State *L, int i, const char *fn, const char *arg);
/* Fails if the list at i has an entry at [0], which no reader of lists looks at. */
lm_status lm_check_start(lua_State *L, int i, const char *fn, const char *arg);
/* Reads the value of argument `a` (op/op.h) at i, of any kind except LM_ARG_S. The caller frees a list's array. */
lm_status lm_read_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_arg *a, void *out);

/* Words for each kind of argument of ops: its type in help, and the bound in the error for a missing one, NULL for
 * kinds that may be left out. */
typedef struct lm_arg_word {
  const char *type, *required;
} lm_arg_word;
extern const lm_arg_word lm_arg_words[];

/* An argument of a C function, and the address for its value. */
typedef struct lm_param {
  const char *name;
  int kind; /* lm_arg_kind, plus LM_OR_NIL if nil leaves *out unchanged */
  void *out;
} lm_param;
enum { LM_OR_NIL = 1 << 8 };
#define LM_PARAMS(...) \
  sizeof((lm_param[]){__VA_ARGS__}) / sizeof(lm_param), (lm_param[]) { __VA_ARGS__ }
/* Reads n arguments by position, from `first` on. */
lm_status lm_read_args(lua_State *L, const lm_lua *s, int first, const char *fn, int n, const lm_param *params);
#define LM_READ_ARGS(L, s, first, fn, ...) lm_read_args(L, s, first, fn, LM_PARAMS(__VA_ARGS__))
/* Reads arguments by name from the table at i, which may be nil; values not given stay unchanged. Any other name is an
 * error that suggests the nearest one. */
lm_status lm_read_options(lua_State *L, const lm_lua *s, int i, const char *fn, int n, const lm_param *params);
#define LM_READ_OPTIONS(L, s, i, fn, ...) lm_read_options(L, s, i, fn, LM_PARAMS(__VA_ARGS__))
/* Reads n arguments from `count` values at `first` on: the first `limit` by position, any by name in a last table. Bit
 * k of *given: params[k] has a value. */
lm_status lm_read_call(lua_State *L, const lm_lua *s, int first, int count, const char *fn, int limit, int n,
                       const lm_param *params, uint32_t *given);
/* Fails for an unknown option, whose key is at i; suggests the nearest of n names. */
lm_status lm_fail_key(lua_State *L, int i, const char *fn, int n, const char *const *names);

/* Read arguments and raise errors, so the caller's C frame must own nothing. */
static inline void lm_need(lua_State *L, lm_status status) {
  if (status != LM_OK) lm_raise(L, status);
}
/* Returns n, the number of the calling function's results; `who` begins the message of an error. */
static inline int lm_return(lua_State *L, lm_status status, int n) { return status == LM_OK ? n : lm_raise(L, status); }
static inline int lm_return_as(lua_State *L, const char *who, lm_status status, int n) {
  return status == LM_OK ? n : lm_raise(L, lm_fail_in(status, who));
}
static inline lm_tensor *lm_need_tensor(lua_State *L, int i, const char *fn, const char *arg) {
  lm_tensor *t = lm_to_tensor(L, LM_STATE(L), i);
  if (!t && lm_settling_failed(LM_STATE(L))) lm_raise(L, LM_E_STATE);
  if (!t) lm_need(L, lm_read_tensor(L, LM_STATE(L), i, fn, arg, &t));
  return t;
}
/* Reads declared arguments by position. */
#define LM_NEED_ARGS(L, first, fn, ...) lm_need(L, LM_READ_ARGS(L, LM_STATE(L), first, fn, __VA_ARGS__))
double lm_need_number(lua_State *L, int i, const char *fn, const char *arg);
int64_t lm_need_int(lua_State *L, int i, const char *fn, const char *arg);
const char *lm_need_text(lua_State *L, int i, const char *fn, const char *arg);
typedef struct lm_lua_string { /* n bytes, NUL bytes included */
  const char *text;
  size_t n;
} lm_lua_string;
lm_lua_string lm_need_string(lua_State *L, int i, const char *fn, const char *arg);
int lm_need_table(lua_State *L, int i, const char *fn, const char *arg); /* returns i */
/* Return the position of a value that the function reads itself, and the truth of one that may be absent. */
LM_READER(lm_tensor *, shaped) {
  lm_tensor *t = lm_to_shaped(L, LM_STATE(L), i);
  return t ? t : lm_need_tensor(L, i, fn, arg);
}
LM_READER(int, any) { return i; }
LM_READER(bool, flag) { return lua_toboolean(L, i); }
bool lm_need_boolean(lua_State *L, int i, const char *fn, const char *arg);
lm_dtype lm_need_dtype(lua_State *L, int i, const char *fn, const char *arg);
lm_device lm_need_device(lua_State *L, int i, const char *fn, const char *arg);
/* Raises unless the value at i is a function. `before` precedes it in the call that the message shows: "{…}, ", "". */
void lm_need_function(lua_State *L, int i, const char *fn, const char *before);
/* Pushes a userdata with `before` free slots, the *n strings of the list at i, and NULL; returns its array. The list
 * keeps the strings alive. */
const char **lm_need_strings(lua_State *L, int i, const char *fn, const char *name, int before, int *n);
/* Pushes a userdata with the *n numbers of the list at i; returns its array. */
double *lm_need_numbers(lua_State *L, int i, const char *fn, const char *name, int *n);

/* ---- device/stream.c: returns the stream of the device at i with the number at i + 1; raises if there is none */
lm_stream *lm_need_stream(lua_State *L, int i, const char *fn, const char *arg);

/* ---- tensor/op_call.c: calls of ops */
int lm_run_op(lua_State *L, lm_op_id id, bool in_place);
int lm_bind_op(lua_State *L); /* upvalue 3: the descriptor */
int lm_bind_op_in_place(lua_State *L);
int lm_bind_arith(lua_State *L); /* a + b and the like */

/* ---- tensor/op_variants.c: names that stand for several ops */
int lm_bind_overload(lua_State *L); /* upvalue 3: the lm_overload */
int lm_bind_nonzero(lua_State *L);
int lm_bind_where(lua_State *L);

/* ---- tensor/fields.c: metamethods, such as those of x.name and x.name = v */
int lm_bind_index(lua_State *L); /* upvalue 3: methods, 4: getters */
int lm_bind_newindex(lua_State *L);
void lm_push_getters(lua_State *L);
/* Pushes a list of n sizes. Only for the library's closures: reads upvalue 2. */
void lm_push_sizes(lua_State *L, int n, const int64_t *v);

/* ---- tensor/scope.c */
int lm_bind_scope(lua_State *L); /* upvalue 3: its body */
int lm_bind_scope_body(lua_State *L);
int lm_bind_call_own(lua_State *L); /* upvalue 3: the scopes' body */

/* ---- tensor/index.c: x[key] and x[key] = value; key at 2, value at 3 */
int lm_index_get(lua_State *L);
int lm_index_set(lua_State *L);

/* ---- tensor/methods.c: makes t share from's memory, sizes, dtype and device; a leaf that requires grad still does */
lm_status lm_set_data(const char *fn, lm_tensor *t, lm_tensor *from);

/* ---- tensor/nested_lists.c: nested tables */
/* Pushes the element at p in CPU memory: a Lua number, a boolean for bool, cdata for integers beyond 2^53. */
void lm_push_element(lua_State *L, lm_dtype dtype, const void *p);
/* Returns in *out a new tensor on `device` (none: the CPU) from the nested lists, number or boolean at i. */
lm_status lm_from_table(lua_State *L, const lm_lua *s, int i, lm_dtype dtype, lm_device device, lm_tensor **out);

/* ---- mp/lua_thread.c */
/* Makes exit() on this thread, if it is the process's first, end the threads before it destroys objects they use. */
void lm_lua_threads_at_exit(void);

/* ---- functions that a file adds to the module, and to the methods of tensors */

/* Defines a function of the module by its name in Lua. The linker joins the rows of all files to one list, which
 * module.c reads. Its arguments are declared as (KIND, NAME) or (KIND, NAME, VALUE FOR NIL), and read in that order:
 *   LM_FUNCTION(mp_poll, (handle, h), (number, seconds)) { … }
 * reads lm_need_handle(L, 1, "mp_poll", "h") and lm_need_number(L, 2, "mp_poll", "seconds"). The body has them as
 * parameters of the readers' types. A function that declares none reads its arguments itself. */
#define LM_FUNCTION(name, ...) LM_FUNCTION_AS(name, #name, ##__VA_ARGS__)
/* Defines one whose messages have another name, that of the function which scripts call. */
#define LM_FUNCTION_AS(name, who, ...) LM_DEFINE(lm_functions, name, 0, who, ##__VA_ARGS__)
#define LM_METHOD(name, ...) LM_DEFINE(lm_methods, name, 1, #name, ##__VA_ARGS__)
#define LM_METAMETHOD(name) LM_DEFINE(lm_metamethods, name, 1, NULL)
#define LM_DEFINE(list, name, self, ...) \
  static int bind_##name(lua_State *L);  \
  LM_ADD(list, name, bind_##name)        \
  LM_READS(self, bind_##name, __VA_ARGS__)
#define LM_ADD(list, name, function) LM_ADD_TO(list, name, #name, function)
#define LM_ADD_TO(list, row, name, function) \
  static const luaL_Reg row_of_##row __attribute__((used, section(#list), aligned(16))) = {name, function};
/* Defines a C function for Lua with such arguments. */
#define LM_READS(self, function, who, ...)                                                      \
  static inline int function##_body(LM_UNUSED lua_State *L LM_EACH(LM_PARAMETER, __VA_ARGS__)); \
  static int function(lua_State *L) {                                                           \
    __VA_OPT__(const char *const lm_who = who; int lm_at = 0;)                                  \
    LM_EACH(LM_READ_PARAMETER, __VA_ARGS__)                                                     \
    __VA_OPT__(lm_need_no_more(L, lm_at, self, lm_who);)                                        \
    return function##_body(L LM_EACH(LM_PASS_PARAMETER, __VA_ARGS__));                          \
  }                                                                                             \
  static inline int function##_body(LM_UNUSED lua_State *L LM_EACH(LM_PARAMETER, __VA_ARGS__))
#define LM_PARAMETER(kind, name, ...) , LM_UNUSED __typeof__(lm_need_##kind(NULL, 0, NULL, NULL)) name
#define LM_READ_PARAMETER(kind, name, ...)               \
  __typeof__(lm_need_##kind(NULL, 0, NULL, NULL)) name = \
      (++lm_at, __VA_OPT__(lua_isnoneornil(L, lm_at) ? (__VA_ARGS__) :) lm_need_##kind(L, lm_at, lm_who, #name));
#define LM_PASS_PARAMETER(kind, name, ...) , name
/* Expands to `f x` for each x, at most 12: every scan expands the next LM_EACH_AGAIN. */
#define LM_EACH(f, ...) __VA_OPT__(LM_SCAN_4(LM_SCAN_4(LM_SCAN_4(LM_EACH_STEP(f, __VA_ARGS__)))))
#define LM_EACH_STEP(f, x, ...) f x __VA_OPT__(LM_EACH_AGAIN LM_NOTHING()()(f, __VA_ARGS__))
#define LM_EACH_AGAIN() LM_EACH_STEP
#define LM_NOTHING()
#define LM_SCAN_4(...) LM_SCAN(LM_SCAN(LM_SCAN(LM_SCAN(__VA_ARGS__))))
#define LM_SCAN(...) __VA_ARGS__
_Static_assert(sizeof(luaL_Reg) == 16, "rows lie side by side");

/* ---- autograd/callbacks.c: Lua functions that the core calls */
lm_status lm_callbacks_new(lm_lua *s, lm_callbacks **out);
void lm_callbacks_close(lm_callbacks *h);
/* Forgets the functions of callbacks that the core has released. */
void lm_callbacks_drain(lua_State *L, lm_callbacks *h);
/* Keeps the hooks of the handle at index 1 alive, which is collected while the graph may still call them. */
void lm_hooks_orphan(lua_State *L, lm_lua *s);
/* Sets s->running to L for a call that may run hooks; returns its value before, which the caller restores after the
 * call. The Lua stack must have room for LM_HOOK_SLOTS more. */
enum { LM_HOOK_SLOTS = 16 };
lua_State *lm_running_begin(lua_State *L, lm_lua *s);
lm_status lm_backward_in(lua_State *L, lm_lua *s, const lm_backward_args *a, lm_tensor **out);
/* Runs body, protected, on the coroutine that called the core (s->running). Returns LM_E_LUA if it raises, and keeps
 * the error value until the binding raises it again. */
typedef int (*lm_lua_body)(lua_State *L, lm_lua *s, void *arg);
lm_status lm_call_lua(lm_callbacks *h, lm_lua_body body, void *arg);
int lm_bind_protected(lua_State *L);
