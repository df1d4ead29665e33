/* The Lua C API: everything that sees a lua_State. One file a subject, in rooms; this header is what they share.
 *
 * What `require "luminary.core"` holds (lua/ builds `require "luminary"` from it). Tensors are
 * userdata; `opts` is a trailing table with string keys; unknown options are errors that name the
 * nearest known one; errors are Lua errors at the first line outside luminary's own Lua files.
 * What is not named here stands at the head of the file that adds it.
 *
 *   ops              table: every op by name, and `name_` of each POINT op
 *   methods          table: the methods of tensors, ops included; Lua code may add to it
 *   sizes            the metatable of lists of sizes, x.shape and the like (size_lists.lua fills it)
 *   op_list()        list of op names
 *   nearest(s, list) the nearest of a list of strings to s, or nil if none is close (for messages)
 *   error_at_caller(message)   raise at the first line outside luminary's own Lua files
 *
 *   tensor(v, {dtype, device, requires_grad})     from nested lists, a number, a boolean or a tensor
 *   is_tensor(v)     true for a live or dropped tensor handle; is_alive(v) for a live one
 *   set_data(t, from)  t takes over from's storage, sizes, dtype, device in place (module:to, load)
 *   max(x [, dim | other] [, opts])  min likewise: what x:max() and x:min() do
 *
 *   no_grad(f, ...)  enable_grad(f, ...)          return what f returns; restore on error
 *   is_grad_enabled()  set_grad_enabled(on)       the second returns the mode before
 *   detect_anomaly(f, ...)   set_detect_anomaly(on)   is_anomaly_enabled()
 *   autocast({device, dtype, enabled, cache_enabled}, f, ...)    is_autocast_enabled([device])
 *   get_autocast_dtype([device])
 *
 *   backward(tensors, {gradient = t | list, retain_graph, create_graph})
 *   grad(outputs, inputs, {grad_outputs, retain_graph, create_graph, allow_unused})   list
 *   checkpoint(f, again, ...)  f(...), recorded without saving anything; backward calls again() for it
 *   is_checkpointing()         inside of such a function
 *   custom_record(name, backward, inputs, outputs, saved)   ties outputs to inputs; backward(grads)
 *                    returns a list of gradients for inputs; in it custom_saved(i) is saved[i]
 *                    (autograd/init.lua uses it)
 *
 *   optim_step{kind = an optimizer's name, options = list of its numbers in its entry's order, params = list,
 *              grads = list or nil (each param's .grad; params without one are skipped), states = lists by name
 *              parallel to params, carried = list of the numbers that it keeps, nil at first, step, from 1, first =
 *              whether the states were made for this step}
 *              returns how many parameters were stepped, and what is carried to the next step
 *   total_norm(list, p, of_grads)                 of the tensors, or of their gradients: a tensor
 *   clip_with_norm(params, max_norm, total)  clip_value(params, most)   change the gradients in place
 *   zero_grad(params [, set_to_none = true])      for lists of tensors
 *   has_grad(param)  whether it has a .grad
 *
 *   image_header(bytes, name, max_pixels, apply_exif_orientation, allow_corrupt) -> height, width, channels, format
 *   image_decode(the same, mode from 0, {top, left, height, width} | nil, {height, width} | nil) -> uint8 [C, H, W]
 *   decode_gif(the first five, channels) -> uint8 [N, C, H, W]
 *   encode_jpeg(image, quality)  encode_png(image, level)  encode_webp(image, quality) -> uint8 tensor of bytes
 *   gather_rows(x, index, {scale, bias, dtype})    rows of x by a 1-d int64 index from 1, converted
 *   permutation(n, seed)  int64 tensor: 1 to n in an order that depends on seed alone
 *   image_transform(name, x, numbers [, out])     a transform of image/transform.h, into `out` if it is given
 *   uniform_number() the CPU's next random number, from 0 to less than 1
 *   draws(n, seed, count) int64 tensor: `count` numbers from 1 to n, with replacement, that depend on seed alone
 *   setting(name [, value])       a boolean of backend/known/setting.h, as it was before
 *   cuda_version(library)         of "cuda", "cudnn", "cublaslt": a number, or nil where it is not there
 */
#pragma once

#include <lauxlib.h>
#include <lua.h>
#include <string.h>

#include "autograd/autograd.h"
#include "backend/known/device_kinds.h"
#include "backend/known/elementwise_chain.h"
#include "base/clock.h"
#include "base/interned.h"
#include "base/log.h"
#include "base/nearest_word.h"

/* A tensor handle: the userdata Lua holds. t is NULL once freed or dropped, and `why` says by whom. */
typedef struct lm_tensor_handle {
  const struct lm_lua *state; /* the Lua state that made it, by which it is known among userdata */
  lm_tensor *t;
  union {
    struct lm_tensor_handle *next; /* in the list of its scope, if pprev */
    const char *why; /* once t is NULL: text after "this tensor", kept alive by the state's table of sites */
  };
  struct lm_tensor_handle **pprev;
  bool hooked; /* has an environment of its own, with hooks */
} lm_tensor_handle;

typedef struct lm_scope {
  struct lm_scope *outer;
  lm_tensor_handle *handles;
} lm_scope;

/* A call of a function of lm.fuse: the ops that it has put off, and the handles of their results. */
typedef struct lm_fusion {
  lm_chain *chain;
  lm_tensor_handle *handle[LM_CHAIN_LINKS]; /* NULL once collected */
  bool reading;                             /* an op reads its arguments, whose values it may not need */
  bool waits;                               /* the last op was put off */
} lm_fusion;

typedef struct lm_callbacks lm_callbacks;

/* Where the tensors' metatable holds that of lists of sizes. */
enum { LM_SIZES = 1 };

/* One for each Lua state: upvalue 1 of every closure of ours; upvalue 2 is the tensors' metatable. */
typedef struct lm_lua {
  int worlds, worlds_before; /* of dist: open, and opened in all */
  lua_State *running;        /* the coroutine inside lm_backward, for hooks */
  lm_callbacks *callbacks;
  struct lm_callback *in_backward; /* the custom function that runs */
  lm_scope *scope;
  lm_fusion *fusion; /* NULL: ops compute at once */
  /* While a reader has Lua code run (lm_to_int64), the call may hold tensors it read before without a reference. What
   * handles let go of meanwhile is kept until the next call makes a step of the collector. */
  int asking, nkept;
  size_t kept_capacity;
  lm_tensor **kept;
  /* The paced collector: bytes of results since the last step, when to step, the budget of a cycle. */
  size_t fresh, step_at, budget, uncached;
  size_t made;       /* those of all steps since the last backward pass */
  size_t collect_at; /* as step_at, which is 0 where each call has something else to do in lm_gc_step */
  double cycle_start, cycle_collecting;
  int cycle_steps;
  bool elsewhere;                 /* some of the cycle's results are not on the CPU */
  bool at_once;                   /* the budget is of a heap that one step collects */
  bool hastened;                  /* the next collection comes before the budget is used */
  uint8_t scale[LM_DEVICE_KINDS]; /* a byte of such a device counts for 2^(1 - scale); 0: not known yet */
  /* Names as this state interned them: equal names have equal pointers. */
  const char *key[LM_OP_COUNT][LM_MAX_ARGS];
  const char *key_requires_grad, *dtype_name[LM_DTYPE_COUNT], *device_cpu;
  uint32_t required[LM_OP_COUNT]; /* bit i: argument i has no default */
  uint16_t default_at[LM_OP_COUNT];
  char *defaults;             /* every op's argument struct as lm_op_defaults leaves it */
  bool variadic[LM_OP_COUNT]; /* the last positional argument takes what follows too: x:view(2, 3) */
} lm_lua;

/* Registry keys (light userdata of their addresses); each holds a table or a function. */
extern const char lm_reg_sites, lm_reg_weak, lm_reg_strong, lm_reg_error, lm_reg_protected, lm_reg_int64,
    lm_reg_pointer, lm_reg_is_int64, lm_reg_own_files, lm_reg_too_deep, lm_reg_warned, lm_reg_noting, lm_reg_traceback,
    lm_reg_catchers, lm_reg_module, lm_reg_ported;

#define LM_STATE(L) ((lm_lua *)lua_touserdata(L, lua_upvalueindex(1)))

static inline void lm_reg_get(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}
/* registry[key] = the value on top, popped */
static inline void lm_reg_set(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
/* int64_cdata.c: what only LuaJIT's FFI can do, into the registry. */
void lm_load_int64_cdata(lua_State *L);

/* The one result of a call. */
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

/* A field of the table on top. */
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
/* fuse.c. Computes what was put off. */
void lm_fusion_settle(const lm_lua *s);
/* Without a look at its tensor's values, which may not be there yet. */
static inline lm_tensor_handle *lm_peek_tensor_handle(lua_State *L, const lm_lua *s, int i) {
  lm_tensor_handle *b = (lm_tensor_handle *)lua_touserdata(L, i);
  return b && lua_objlen(L, i) == sizeof *b && b->state == s ? b : NULL;
}
static inline lm_tensor_handle *lm_to_tensor_handle(lua_State *L, const lm_lua *s, int i) {
  if (__builtin_expect(s->fusion != NULL, 0)) lm_fusion_settle(s);
  return lm_peek_tensor_handle(L, s, i);
}
/* NULL if it is no tensor or a dead handle. */
static inline lm_tensor *lm_to_tensor(lua_State *L, const lm_lua *s, int i) {
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  return b ? b->t : NULL;
}
/* An empty handle on the stack. Made before arguments are read, since it may collect. */
lm_tensor_handle *lm_tensor_handle_new(lua_State *L);
/* The handle takes the reference over. */
static inline void lm_tensor_handle_fill(lm_lua *s, lm_tensor_handle *b, lm_tensor *t) {
  b->t = t;
  if (s->scope) {
    b->next = s->scope->handles;
    b->pprev = &s->scope->handles;
    if (b->next) b->next->pprev = &b->next;
    s->scope->handles = b;
  }
}
/* No scope will drop it. */
void lm_tensor_handle_unlink(lm_tensor_handle *b);
/* Releases the tensor; `why` ends the sentence "this tensor …". */
void lm_tensor_handle_drop(lm_lua *s, lm_tensor_handle *b, const char *why);
/* A reference that a handle had; at once, except the while that a reader has Lua code run. */
void lm_let_go(lm_lua *s, lm_tensor *t);
/* What was kept for that while. Where no call is reading. */
void lm_let_go_kept(lm_lua *s);
int lm_tensor_handle_gc(lua_State *L);

/* ---- userdata.c: userdata of other types */
typedef struct lm_object_type {
  const char *name; /* "luminary.event": of the process's one metatable of the type in each state */
  size_t bytes;
  void (*close)(void *object); /* when it is collected; closing it twice is fine */
  const char *noun;            /* "an event", for messages */
  const luaL_Reg *methods;     /* NULL: none */
} lm_object_type;
/* On the stack, all zeros. From a closure of ours alone: methods get its upvalues. */
void *lm_object_new(lua_State *L, const lm_object_type *type);
/* NULL if the value at i is none of the type. */
void *lm_to_object(lua_State *L, int i, const lm_object_type *type);
/* Raises if it is none. */
void *lm_need_object(lua_State *L, int i, const lm_object_type *type, const char *fn);
/* Of a type whose objects begin with a pointer, which is NULL once they are closed: the pointer. */
void *lm_need_held(lua_State *L, int i, const lm_object_type *type, const char *fn);
/* The object on top keeps the value at i alive. */
void lm_object_keeps(lua_State *L, int i);

/* ---- gc_step.c: Lua's collector cannot see memory off its heap, so we drive it by bytes */
void lm_gc_step(lua_State *L, lm_lua *s);
/* After a backward pass that freed its graph: its results are held by handles that nobody has any more. */
void lm_gc_step_hasten(lm_lua *s);
/* First thing in every call that makes tensors; the caller's frame owns nothing yet, since a
 * finalizer's error may pass through. */
static inline void lm_gc_step_if_due(lua_State *L, lm_lua *s) {
  if (s->fresh >= s->step_at) lm_gc_step(L, s);
}
/* After an allocation failed. */
void lm_collect_all(lua_State *L, const lm_lua *s);
/* Finds scale[] of the device's kind. */
int lm_gc_step_scale(lm_lua *s, lm_device device);
/* A result's memory counts towards the next step. */
static inline void lm_gc_step_count(lm_lua *s, const lm_tensor *t) {
  int scale = s->scale[LM_DEVICE_KIND(t->device)];
  if (scale == 0) scale = lm_gc_step_scale(s, t->device);
  size_t bytes = t->storage->bytes >> (scale - 1);
  bool on_cpu = LM_DEVICE_KIND(t->device) == LM_CPU, cached = bytes <= s->uncached && on_cpu;
  if (!on_cpu) s->elsewhere = true;
  s->fresh += (cached || s->uncached == SIZE_MAX ? bytes : bytes / 4) + 512;
}
/* So does a descriptor, of which a process may have some 1,000: a collection for every 256. */
enum { LM_GC_STEP_DESCRIPTOR = 256 << 10 };
typedef lm_status (*lm_retried_call)(lua_State *L, lm_lua *s, void *arg);
/* Runs f by lm_retry_after_gc with the arguments at 1 to nargs; the tensors it makes become the call's n results, nil
 * where it leaves NULL. arg may be `made`. */
int lm_return_tensors(lua_State *L, int nargs, int n, lm_retried_call f, void *arg, lm_tensor **made);
/* The same for one, whose f takes a lm_tensor ** to put it at. */
int lm_return_tensor(lua_State *L, int nargs, lm_retried_call f);
/* Runs f; if it was out of memory, collects everything and runs it once more. f owns nothing when
 * it returns an error and never raises. The stack is as high as before for each run. f reads its tensors
 * itself, since finalizers that run between may free them. */
lm_status lm_retry_after_gc(lua_State *L, lm_lua *s, lm_retried_call f, void *arg);

/* ---- values.c: none raises or allocates in Lua */
/* The value at index i in the words of messages: "a tensor [2, 3]", "0.5", "string 'x'",
 * "nil", "a table". Thread-local text. */
const char *lm_describe_arg(lua_State *L, const lm_lua *s, int i);
/* Whether the object at i is a module: its record has is_module (nn/module.lua). */
bool lm_is_module(lua_State *L, int i);
/* FN: ARG must be BOUND, got VALUE, of the value at i, or FN: ARG is missing where there is none. LM_E_ARG. */
lm_status lm_fail_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char *bound);
/* The string at i as C reads it; NULL if there is none, or if it holds a zero byte, which would cut it. lm_describe_arg
 * says which. The value keeps it alive. */
const char *lm_to_text(lua_State *L, int i);
/* The hint of messages for a method called with a dot: x.item() passes nothing as x, x.view(4, -1) a number, x.add(y)
 * nothing as other. "" for other calls. */
const char *lm_dot_hint(lua_State *L, const char *fn, const char *arg, int type);
/* The same of a boolean where a tensor was expected: x == y, which PyTorch compares by elements. */
const char *lm_equality_hint(int type);
/* An int64 or uint64 cdata's value. */
bool lm_to_int64(lua_State *L, const lm_lua *s, int i, int64_t *out);
/* Field `name` of the table at i on the stack; true if it is not nil. Raw. */
bool lm_field(lua_State *L, int i, const char *name);

/* ---- error.c */
/* Raises the last message at the first line outside our own Lua files; never returns. Only where the
 * C frame owns nothing. */
int lm_raise(lua_State *L, lm_status status);
/* The same with a message made here. */
int lm_raise_text(lua_State *L, const char *format, ...) LM_PRINTF(2, 3);
/* Pushes "train.lua:12: " of that level, or "". */
void lm_push_where(lua_State *L);
/* lua_pcall for functions of the script's, which may come back here: an error instead where the C stack is about to
 * end. Allocates nothing of its own in Lua. */
int lm_pcall(lua_State *L, int nargs, int nresults);
int lm_note_traceback(lua_State *L); /* its handler */
/* Whether an op has a method that writes in place, x:OP_(…). where would write into its condition. */
static inline bool lm_has_in_place(const lm_op *op) { return op->kind == LM_POINTWISE && !(op->masks & 1); }
/* module.c: the functions that call ops, which messages tell from others. */
typedef struct lm_call_functions {
  lua_CFunction index, newindex, op, op_in_place, overload;
} lm_call_functions;
extern const lm_call_functions lm_calls;
/* Says the line of the first level outside our own Lua files to the core: where ranks wait (lm_set_where), if this
 * state has an open world, and what the thread runs (lm_set_script_line), if somebody wants to know it. For calls that
 * may wait for other ranks, and, by lm_gc_step, those that make tensors; makes no garbage. */
void lm_note_line(lua_State *L, const lm_lua *s);
/* For messages of autograd, profilers and the history of memory. */
static inline bool lm_wants_lines(void) { return lm_anomaly() || lm_traces(LM_TRACE_LINES | LM_TRACE_LIVE_MEMORY); }
/* After a change of who wants lines: the state's next call notes its own. */
static inline void lm_lines_changed(lm_lua *s) {
  s->step_at = 0;
  lm_set_script_line(NULL);
}
/* lm_fail_arg, raised; for where the C frame owns nothing. */
int lm_raise_arg(lua_State *L, int i, const char *fn, const char *arg, const char *bound);
/* Says what lm_warn was given, once for each line of the caller's. */
void lm_show_warning(lua_State *L);
/* The same, once for each line and name: of a function, for one. */
void lm_show_warning_of(lua_State *L, const char *name);
/* Whether warnings of what code carried over from PyTorch gets wrong are requested too (ported_code.c). */
bool lm_is_porting(void);
/* Looks at a call of an op for these. given: bit i: argument i was given; out: its first result, or NULL. A warning of
 * the call's own that waits is shown first. */
void lm_check_ported(lua_State *L, lm_op_id id, const void *args, uint32_t given, const lm_tensor *out);
/* While these are requested, reads of the globals True, False and None, which Lua does not define, are reported, unless
 * the script's globals have a metatable of its own. */
void lm_watch_python_names(lua_State *L);
/* Whether the script itself called the function `name` at that level. A function that made it its last call has no
 * frame: the line before, of the script or ours, then calls something else, which is either one of the library's
 * functions or a function of the script's. `function`: the stack index of what the script called, which then called the
 * one at that level last; 0: that one itself. */
bool lm_is_scripts_call(lua_State *L, int level, const char *name, int function);

/* ---- arguments.c: readers of one value; none raises or allocates in Lua. fn and arg word the message. */
/* Tensors are borrowed from their handles: good until something allocates in Lua or runs Lua code, since a finalizer or
 * a debug hook may free them. So calls make what they return first, then read, then use. */
lm_status lm_read_tensor(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out);
/* A tensor, or a number or boolean made 0-d; *owned is what the caller has to release, or NULL. */
lm_status lm_read_scalar(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out,
                         lm_tensor **owned);
lm_status lm_read_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, double *out);
lm_status lm_read_int(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_text(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out);
/* Bytes, of which some may be zero. */
lm_status lm_read_string(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out,
                         size_t *n);
lm_status lm_read_bool(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool *out);
/* 1-based, not 0, to 0-based; negative from the end stays. */
lm_status lm_read_dim(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_dtype(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype *out);
/* A string, or an integer: a CUDA ordinal. */
lm_status lm_read_device(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_device *out);
struct lm_generator;
extern const lm_object_type lm_generator_type; /* tensor/random.c */
lm_status lm_read_generator(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg,
                            struct lm_generator **out);
/* Sizes (dims false) or dims (true) from a number or a list. */
lm_status lm_read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, lm_ints *out);
/* A contiguous tensor on the CPU of that dtype. */
lm_status lm_read_plain(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype dtype,
                        lm_tensor **out);
/* A list of tensors into a malloc'ed array of yours; `holes` allows false. */
lm_status lm_read_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                       lm_tensor ***out);
/* A tensor or a list of them, each with a reference of yours. */
lm_status lm_read_some(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, lm_list *out);
/* For a table at i in which nothing was found: an error if it has a metatable with __index or __len. */
lm_status lm_check_empty(lua_State *L, int i, const char *fn, const char *arg);
/* An error where the list at i has an entry at [0], which no reader of lists comes to. */
lm_status lm_check_start(lua_State *L, int i, const char *fn, const char *arg);
/* The value of argument `a` (op/op.h) at i, of any kind except LM_ARG_S. A list is yours to free. */
lm_status lm_read_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_arg *a, void *out);

/* An argument of a C function, and where its value goes. */
typedef struct lm_param {
  const char *name;
  int kind; /* lm_arg_kind, with LM_OR_NIL where nil leaves *out as it is */
  void *out;
} lm_param;
enum { LM_OR_NIL = 1 << 8 };
#define LM_PARAMS(...) \
  sizeof((lm_param[]){__VA_ARGS__}) / sizeof(lm_param), (lm_param[]) { __VA_ARGS__ }
/* Those by position, from `first` on. */
lm_status lm_read_args(lua_State *L, const lm_lua *s, int first, const char *fn, int n, const lm_param *params);
#define LM_READ_ARGS(L, s, first, fn, ...) lm_read_args(L, s, first, fn, LM_PARAMS(__VA_ARGS__))
/* Those by name in the table at i, which may be nil: what is not given stays as it is. Any other name is an error that
 * names the nearest. */
lm_status lm_read_options(lua_State *L, const lm_lua *s, int i, const char *fn, int n, const lm_param *params);
#define LM_READ_OPTIONS(L, s, i, fn, ...) lm_read_options(L, s, i, fn, LM_PARAMS(__VA_ARGS__))
/* Of `count` values from `first` on: the first `limit` of them by position, and any of them by name in a table at the
 * end. Bit k of *given: params[k] has a value. */
lm_status lm_read_call(lua_State *L, const lm_lua *s, int first, int count, const char *fn, int limit, int n,
                       const lm_param *params, uint32_t *given);
/* Fails for the key of a table of options at i, which is none of these names. */
lm_status lm_fail_key(lua_State *L, int i, const char *fn, int n, const char *const *names);

/* The same where the C frame owns nothing: they raise. */
static inline void lm_need(lua_State *L, lm_status status) {
  if (status != LM_OK) lm_raise(L, status);
}
static inline lm_tensor *lm_need_tensor(lua_State *L, int i, const char *fn, const char *arg) {
  lm_tensor *t = lm_to_tensor(L, LM_STATE(L), i);
  if (!t) lm_need(L, lm_read_tensor(L, LM_STATE(L), i, fn, arg, &t));
  return t;
}
/* Declared arguments by position. */
#define LM_NEED_ARGS(L, first, fn, ...) lm_need(L, LM_READ_ARGS(L, LM_STATE(L), first, fn, __VA_ARGS__))
double lm_need_number(lua_State *L, int i, const char *fn, const char *arg);
int64_t lm_need_int(lua_State *L, int i, const char *fn, const char *arg);
const char *lm_need_text(lua_State *L, int i, const char *fn, const char *arg);
const char *lm_need_string(lua_State *L, int i, const char *fn, const char *arg, size_t *n);
void lm_need_table(lua_State *L, int i, const char *fn, const char *arg);
bool lm_need_bool(lua_State *L, int i, const char *fn, const char *arg);
lm_dtype lm_need_dtype(lua_State *L, int i, const char *fn, const char *arg);
lm_device lm_need_device(lua_State *L, int i, const char *fn);
/* `before` precedes the function in the call that the message shows: "{…}, ", or "". */
void lm_need_function(lua_State *L, int i, const char *fn, const char *before);
/* The strings of the list at i, closed by NULL, in a userdata on the stack, after `before` positions; the list keeps
 * them alive. */
const char **lm_need_strings(lua_State *L, int i, const char *fn, const char *name, int before, int *n);

/* ---- defaults.c: the device at i, or the default one; raises */
lm_device lm_device_or_default(lua_State *L, int i, const char *fn);

/* ---- device/stream.c: of the device at i, that of the number at i + 1; raises */
lm_stream *lm_need_stream(lua_State *L, int i, const char *fn);

/* ---- tensor/op_call.c: any op's call */
int lm_run_op(lua_State *L, lm_op_id id, bool in_place);
int lm_bind_op(lua_State *L); /* upvalue 3: the descriptor */
int lm_bind_op_in_place(lua_State *L);
int lm_bind_arith(lua_State *L); /* a + b and the like */

/* ---- tensor/op_variants.c: names that stand for several ops */
int lm_bind_overload(lua_State *L); /* upvalue 3: the lm_overload */
int lm_bind_nonzero(lua_State *L);
int lm_bind_where(lua_State *L);

/* ---- tensor/fields.c: what x.name and x.name = v do; metamethods */
int lm_bind_index(lua_State *L); /* upvalue 3: methods, 4: getters */
int lm_bind_newindex(lua_State *L);
void lm_push_getters(lua_State *L);
int lm_bind_eq(lua_State *L);
int lm_bind_lt(lua_State *L);
int lm_bind_concat(lua_State *L);
int lm_bind_le(lua_State *L);
int lm_bind_len(lua_State *L);
int lm_bind_tostring(lua_State *L);
/* A list of sizes. From a closure of ours alone: it looks into upvalue 2. */
void lm_push_sizes(lua_State *L, int n, const int64_t *v);

/* ---- tensor/scope.c */
int lm_bind_scope(lua_State *L); /* upvalue 3: its body */
int lm_bind_scope_body(lua_State *L);

/* ---- tensor/fuse.c */
int lm_bind_fuse(lua_State *L);
/* Before an op, from before its arguments are read: to be passed to lm_fusion_end. */
static inline bool lm_fusion_begin(const lm_lua *s) {
  bool before = s->fusion && s->fusion->reading;
  if (s->fusion) s->fusion->reading = true;
  return before;
}
/* Its arguments are read: whether it may be put off is known now, and if not, what was put off is computed. */
void lm_fusion_offer(const lm_lua *s, const lm_op *op, const void *args, bool in_place);
/* After it, whether it failed or not. */
static inline void lm_fusion_end(const lm_lua *s, bool before) {
  if (!s->fusion) return;
  s->fusion->reading = before;
  s->fusion->waits = lm_chain_decline(s->fusion->chain);
}
/* The op's result has a handle. */
void lm_fusion_note(const lm_lua *s, lm_tensor_handle *b);
/* handle.c. It is collected. */
void lm_fusion_forget(const lm_lua *s, const lm_tensor_handle *b);

/* ---- tensor/index.c: x[key] and x[key] = value; key at 2, value at 3 */
int lm_index_get(lua_State *L);
int lm_index_set(lua_State *L);

/* ---- tensor/methods.c: t takes over from's memory, sizes, dtype and device; a leaf continues requiring grad */
lm_status lm_set_data(const char *fn, lm_tensor *t, lm_tensor *from);

/* ---- tensor/nested_lists.c: nested tables */
/* One element: a Lua number, a boolean for bool, cdata for integers beyond 2^53. CPU memory. */
void lm_push_element(lua_State *L, lm_dtype dtype, const void *p);
/* A new CPU tensor (moved to `device`) from what stands at i: nested lists, a number, a boolean. */
lm_status lm_from_table(lua_State *L, const lm_lua *s, int i, lm_dtype dtype, lm_device device, lm_tensor **out);

/* ---- mp/lua_thread.c: a Lua state on a thread of its own */
typedef struct lm_lua_thread lm_lua_thread;
/* Runs a chunk of Lua that finds fd (mp/channel.h, passed) in the global LM_CHANNEL; fd is taken over unless it fails.
 * *out is yours to forget. */
lm_status lm_lua_thread_start(const char *chunk, int fd, lm_lua_thread **out);
/* Raises an error in it, at its next line or so; compiled loops do not notice. */
void lm_lua_thread_interrupt(lm_lua_thread *t);
bool lm_lua_thread_wait(lm_lua_thread *t, double seconds); /* whether it has ended */
const char *lm_lua_thread_error(const lm_lua_thread *t);   /* once it has: why the chunk failed, or "" */
void lm_lua_thread_forget(lm_lua_thread *t);               /* it runs on if it has not ended */
/* Interrupts all threads and waits for their end. */
void lm_lua_threads_end(double seconds);
/* exit() called on this thread, if it is the process's first, does not pull the rug from under threads that compute. */
void lm_lua_threads_at_exit(void);

/* ---- what each file adds to the module, and some to the methods of tensors */

/* Defines a function of the module by its name in Lua: LM_FUNCTION(crc32) { … }. The rows of all files are one list of
 * the linker's, which module.c reads. */
#define LM_FUNCTION(name) LM_DEFINE(lm_functions, name)
#define LM_METHOD(name) LM_DEFINE(lm_methods, name)
#define LM_DEFINE(list, name)           \
  static int bind_##name(lua_State *L); \
  LM_ADD(list, name, bind_##name)       \
  static int bind_##name(lua_State *L)
#define LM_ADD(list, name, function) \
  static const luaL_Reg row_of_##name __attribute__((used, section(#list), aligned(16))) = {#name, function};
_Static_assert(sizeof(luaL_Reg) == 16, "rows lie side by side");

/* ---- autograd/callbacks.c: Lua functions that the core calls */
lm_status lm_callbacks_new(lm_lua *s, lm_callbacks **out);
void lm_callbacks_close(lm_callbacks *h);
/* Forget functions whose owner in the core has gone, if there are any. */
void lm_callbacks_drain(lua_State *L, lm_callbacks *h);
/* A handle with hooks is collected while the graph may still call them. It is at index 1. */
void lm_hooks_orphan(lua_State *L, lm_lua *s);
/* Binds `running` for the time of a call that may run hooks: what begin returns is to become s->running again. The Lua
 * stack has room for LM_HOOK_SLOTS more by then. */
enum { LM_HOOK_SLOTS = 16 };
lua_State *lm_running_begin(lua_State *L, lm_lua *s);
lm_status lm_backward_in(lua_State *L, lm_lua *s, const lm_backward_args *a, lm_tensor **out);
/* Runs body on the coroutine whose call into the core this is part of. What it raises is kept as it is until the
 * binding raises it again, and is an LM_E_LUA up to there. */
typedef int (*lm_lua_body)(lua_State *L, lm_lua *s, void *arg);
lm_status lm_call_lua(lm_callbacks *h, lm_lua_body body, void *arg);
int lm_bind_protected(lua_State *L);
