/* Declares the Lua C API: every file that uses a lua_State, one for each subject, in folders, shares this header.
 *
 * `require "luminary.core"` has these functions (lua/ builds `require "luminary"` from it). Tensors are
 * userdata; `opts` is a trailing table with string keys; unknown options are errors that name the
 * nearest known one; errors are Lua errors at the first line outside luminary's own Lua files.
 * Other functions are listed at the head of the file that adds them.
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
 *   max(x [, dim | other] [, opts])  min likewise; the methods x:max() and x:min()
 *
 *   no_grad(f, ...)  enable_grad(f, ...)          return the results of f; restore on error
 *   is_grad_enabled()  set_grad_enabled(on)       the second returns the previous mode
 *   detect_anomaly(f, ...)   set_detect_anomaly(on)   is_anomaly_enabled()
 *   autocast({device, dtype, enabled, cache_enabled}, f, ...)    is_autocast_enabled([device])
 *   get_autocast_dtype([device])
 *
 *   backward(tensors, {gradient = t | list, retain_graph, create_graph})
 *   grad(outputs, inputs, {grad_outputs, retain_graph, create_graph, allow_unused})   list
 *   checkpoint(f, again, ...)  f(...), recorded without saving tensors; backward calls again()
 *   is_checkpointing()         true inside of such a function
 *   custom_record(name, backward, inputs, outputs, saved)   ties outputs to inputs; backward(grads)
 *                    returns a list of gradients for inputs; in it custom_saved(i) is saved[i]
 *                    (autograd/init.lua uses it)
 *
 *   optim_step{kind = an optimizer's name, options = list of its numbers in its entry's order, params = list,
 *              grads = list or nil (each param's .grad; params without one are skipped), states = lists by name
 *              parallel to params, carried = list of its numbers from the last step, nil at first, step, from 1, first
 * = true if the states were made for this step} returns the number of parameters stepped, and the numbers carried to
 * the next step total_norm(list, p, of_grads)                 of the tensors, or of their gradients: a tensor
 *   clip_with_norm(params, max_norm, total)  clip_value(params, most)   change the gradients in place
 *   zero_grad(params [, set_to_none = true])      for lists of tensors
 *   has_grad(param)  true if it has a .grad
 *
 *   image_header(bytes, name, max_pixels, apply_exif_orientation, allow_corrupt) -> height, width, channels, format
 *   image_decode(the same, mode from 0, {top, left, height, width} | nil, {height, width} | nil) -> uint8 [C, H, W]
 *   decode_gif(the first five, channels) -> uint8 [N, C, H, W]
 *   encode_jpeg(image, quality)  encode_png(image, level)  encode_webp(image, quality) -> uint8 tensor of bytes
 *   gather_rows(x, index, {scale, bias, dtype})    rows of x by a 1-d int64 index from 1, converted
 *   permutation(n, seed)  int64 tensor: 1 to n in an order that depends on seed alone
 *   image_transform(name, x, numbers [, out])     a transform of image/transform.h, into `out` if given
 *   uniform_number() the CPU's next random number, from 0 to less than 1
 *   draws(n, seed, count) int64 tensor: `count` numbers from 1 to n, with replacement, that depend on seed alone
 *   setting(name [, value])       a boolean of backend/known/setting.h; returns the previous value
 *   cuda_version(library)         of "cuda", "cudnn", "cublaslt": a number, or nil if it is not installed
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

/* A tensor handle: the userdata that Lua holds. t is NULL once freed or dropped, and `why` says by what. */
typedef struct lm_tensor_handle {
  const struct lm_lua *state; /* the Lua state that made it; distinguishes handles from other userdata */
  lm_tensor *t;
  union {
    struct lm_tensor_handle *next; /* in the list of its scope, if pprev is set */
    const char *why; /* once t is NULL: text after "this tensor", kept alive by the state's table of sites */
  };
  struct lm_tensor_handle **pprev;
  bool hooked; /* true if it has an environment of its own, with hooks */
} lm_tensor_handle;

typedef struct lm_scope {
  struct lm_scope *outer;
  lm_tensor_handle *handles;
} lm_scope;

/* A call of a function of lm.fuse: the deferred ops, and the handles of their results. */
typedef struct lm_fusion {
  lm_chain *chain;
  lm_tensor_handle *handle[LM_CHAIN_LINKS]; /* NULL once collected */
  bool reading;                             /* true while an op reads its arguments, whose values it may not need */
  bool waits;                               /* true if the last op was deferred */
} lm_fusion;

typedef struct lm_callbacks lm_callbacks;

/* Index in the tensors' metatable of the metatable of size lists. */
enum { LM_SIZES = 1 };

/* Data for one Lua state: upvalue 1 of every closure of this library; upvalue 2 is the tensors' metatable. */
typedef struct lm_lua {
  int worlds, worlds_before; /* worlds of dist: open now, and opened in total */
  lua_State *running;        /* the coroutine that called lm_backward, for hooks */
  lm_callbacks *callbacks;
  struct lm_callback *in_backward; /* the running custom function */
  lm_scope *scope;
  lm_fusion *fusion; /* NULL: ops are not deferred */
  /* While a reader runs Lua code (asking > 0, lm_to_int64), the call may hold tensors it has read without a reference.
   * Tensors that handles release meanwhile are kept until a later call runs lm_gc_step. */
  int asking, nkept;
  size_t kept_capacity;
  lm_tensor **kept;
  /* The paced collector: bytes of results since the last step, bytes at which to step, bytes of a cycle's budget. */
  size_t fresh, step_at, budget, uncached;
  size_t made;       /* bytes of results of all steps since the last backward pass */
  size_t collect_at; /* the same, while step_at is 0 because each call has other work in lm_gc_step */
  double cycle_start, cycle_collecting;
  int cycle_steps;
  bool elsewhere;                 /* true if some of the cycle's results are not on the CPU */
  bool at_once;                   /* true if the budget is for a heap that one step collects */
  bool hastened;                  /* true if the next collection comes before the budget is used */
  uint8_t scale[LM_DEVICE_KINDS]; /* a byte on such a device counts for 2^(1 - scale); 0: not known yet */
  /* Names interned by this state: equal names have equal pointers. */
  const char *key[LM_OP_COUNT][LM_MAX_ARGS];
  const char *key_requires_grad, *dtype_name[LM_DTYPE_COUNT], *device_cpu;
  uint32_t required[LM_OP_COUNT]; /* bit i: argument i has no default */
  uint16_t default_at[LM_OP_COUNT];
  char *defaults;             /* every op's argument struct as set by lm_op_defaults */
  bool variadic[LM_OP_COUNT]; /* true if the last positional argument takes all later ones too: x:view(2, 3) */
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
/* Pops the value on top into registry[key]. */
static inline void lm_reg_set(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
/* int64_cdata.c: stores in the registry functions that need LuaJIT's FFI. */
void lm_load_int64_cdata(lua_State *L);

/* Return one result from a C function. */
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
/* fuse.c. Computes the deferred ops. */
void lm_fusion_settle(const lm_lua *s);
/* Returns the handle at i without computing deferred ops: its tensor's values may be missing. */
static inline lm_tensor_handle *lm_peek_tensor_handle(lua_State *L, const lm_lua *s, int i) {
  lm_tensor_handle *b = (lm_tensor_handle *)lua_touserdata(L, i);
  return b && lua_objlen(L, i) == sizeof *b && b->state == s ? b : NULL;
}
static inline lm_tensor_handle *lm_to_tensor_handle(lua_State *L, const lm_lua *s, int i) {
  if (__builtin_expect(s->fusion != NULL, 0)) lm_fusion_settle(s);
  return lm_peek_tensor_handle(L, s, i);
}
/* Returns the tensor at i, borrowed; NULL if it is no tensor or a dead handle. */
static inline lm_tensor *lm_to_tensor(lua_State *L, const lm_lua *s, int i) {
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, i);
  return b ? b->t : NULL;
}
/* Pushes an empty handle. Call it before reading arguments, since it may run the collector. */
lm_tensor_handle *lm_tensor_handle_new(lua_State *L);
/* Stores t in the handle, which takes over the caller's reference. */
static inline void lm_tensor_handle_fill(lm_lua *s, lm_tensor_handle *b, lm_tensor *t) {
  b->t = t;
  if (s->scope) {
    b->next = s->scope->handles;
    b->pprev = &s->scope->handles;
    if (b->next) b->next->pprev = &b->next;
    s->scope->handles = b;
  }
}
/* Removes the handle from its scope, which will not drop it. */
void lm_tensor_handle_unlink(lm_tensor_handle *b);
/* Releases the tensor; `why` ends the sentence "this tensor …". */
void lm_tensor_handle_drop(lm_lua *s, lm_tensor_handle *b, const char *why);
/* Releases a handle's reference: at once, or after the call while a reader runs Lua code. */
void lm_let_go(lm_lua *s, lm_tensor *t);
/* Releases the references kept for that time. Call it while no call reads arguments. */
void lm_let_go_kept(lm_lua *s);
int lm_tensor_handle_gc(lua_State *L);

/* ---- userdata.c: userdata of other types */
typedef struct lm_object_type {
  const char *name; /* "luminary.event": key of the type's metatable in each state's registry */
  size_t bytes;
  void (*close)(void *object); /* called on collection; may be called twice */
  const char *noun;            /* "an event", for messages */
  const luaL_Reg *methods;     /* NULL: none */
} lm_object_type;
/* Pushes a zeroed object. Call it only from a closure of this library: methods get its upvalues. */
void *lm_object_new(lua_State *L, const lm_object_type *type);
/* Returns the object at i; NULL if it is not of the type. */
void *lm_to_object(lua_State *L, int i, const lm_object_type *type);
/* Does the same, and raises if it is not of the type. */
void *lm_need_object(lua_State *L, int i, const lm_object_type *type, const char *fn);
/* Returns the pointer that the object at i begins with; raises if it is NULL, as after closing. */
void *lm_need_held(lua_State *L, int i, const lm_object_type *type, const char *fn);
/* Makes the object on top keep the value at i alive. */
void lm_object_keeps(lua_State *L, int i);

/* ---- gc_step.c: drives Lua's collector by bytes of tensors, which it cannot see */
void lm_gc_step(lua_State *L, lm_lua *s);
/* Makes the next collection come earlier, after a backward pass that freed its graph and left garbage handles. */
void lm_gc_step_hasten(lm_lua *s);
/* Comes first in every call that makes tensors; the caller's frame must own nothing yet, since a finalizer's error may
 * pass through. */
static inline void lm_gc_step_if_due(lua_State *L, lm_lua *s) {
  if (s->fresh >= s->step_at) lm_gc_step(L, s);
}
/* Collects all garbage after an allocation failed. */
void lm_collect_all(lua_State *L, const lm_lua *s);
/* Sets and returns scale[] of the device's kind. */
int lm_gc_step_scale(lm_lua *s, lm_device device);
/* Counts a result's memory towards the next step. */
static inline void lm_gc_step_count(lm_lua *s, const lm_tensor *t) {
  int scale = s->scale[LM_DEVICE_KIND(t->device)];
  if (scale == 0) scale = lm_gc_step_scale(s, t->device);
  size_t bytes = t->storage->bytes >> (scale - 1);
  bool on_cpu = LM_DEVICE_KIND(t->device) == LM_CPU, cached = bytes <= s->uncached && on_cpu;
  if (!on_cpu) s->elsewhere = true;
  s->fresh += (cached || s->uncached == SIZE_MAX ? bytes : bytes / 4) + 512;
}
/* Bytes that a file descriptor counts for: a process may have about 1,000, so 256 make a collection due. */
enum { LM_GC_STEP_DESCRIPTOR = 256 << 10 };
typedef lm_status (*lm_retried_call)(lua_State *L, lm_lua *s, void *arg);
/* Runs f by lm_retry_after_gc with the arguments at 1 to nargs; the tensors that f makes become the n results, nil for
 * NULL. arg may be `made`. */
int lm_return_tensors(lua_State *L, int nargs, int n, lm_retried_call f, void *arg, lm_tensor **made);
/* Does the same for one tensor; f's arg is the lm_tensor ** to store it at. */
int lm_return_tensor(lua_State *L, int nargs, lm_retried_call f);
/* Runs f; if it runs out of memory, collects all garbage and runs it once more. f must never raise, nor own anything
 * when it returns an error. The stack is as high as before for each run. f reads its tensors itself, since finalizers
 * that run between may free them. */
lm_status lm_retry_after_gc(lua_State *L, lm_lua *s, lm_retried_call f, void *arg);

/* ---- values.c: none raises or allocates in Lua */
/* Describes the value at index i for messages: "a tensor [2, 3]", "0.5", "string 'x'", "nil", "a table". Thread-local
 * text. */
const char *lm_describe_arg(lua_State *L, const lm_lua *s, int i);
/* Returns true if the object at i is a module: its metatable has is_module (nn/module.lua). */
bool lm_is_module(lua_State *L, int i);
/* Fails with LM_E_ARG: "FN: ARG must be BOUND, got VALUE" for the value at i; "FN: ARG is missing" for none. */
lm_status lm_fail_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char *bound);
/* Returns the string at i, which keeps it alive; NULL if it is no string, or contains a NUL byte, which would cut it.
 * lm_describe_arg says which. */
const char *lm_to_text(lua_State *L, int i);
/* Returns a message's hint for a method called with a dot: x.item() passes nothing as x, x.view(4, -1) a number,
 * x.add(y) nothing as other. "" for other calls. */
const char *lm_dot_hint(lua_State *L, const char *fn, const char *arg, int type);
/* Returns a message's hint for a boolean instead of a tensor: x == y, which PyTorch compares by elements; else "". */
const char *lm_equality_hint(int type);
/* Reads an int64 or uint64 cdata; false for other values. May run Lua code (a debug hook). */
bool lm_to_int64(lua_State *L, const lm_lua *s, int i, int64_t *out);
/* Pushes field `name` of the table at i, by raw access, if it is not nil; returns true then, else pushes nothing. */
bool lm_field(lua_State *L, int i, const char *name);

/* ---- error.c */
/* Raises the last message at the first line outside luminary's own Lua files; never returns. Call it only if the C
 * frame owns nothing. */
int lm_raise(lua_State *L, lm_status status);
/* Does the same with a message in printf's format. */
int lm_raise_text(lua_State *L, const char *format, ...) LM_PRINTF(2, 3);
/* Pushes that line as "train.lua:12: ", or "". */
void lm_push_where(lua_State *L);
/* Calls a function of the script by lua_pcall; returns an error if the C stack is almost used up, as it may call back.
 * Allocates nothing of its own in Lua. */
int lm_pcall(lua_State *L, int nargs, int nresults);
int lm_note_traceback(lua_State *L); /* its message handler */
/* Returns true if an op has an in-place method, x:OP_(…). `where` has none: it would write into its condition. */
static inline bool lm_has_in_place(const lm_op *op) { return op->kind == LM_POINTWISE && !(op->masks & 1); }
/* module.c: the functions that call ops, which messages distinguish from others. */
typedef struct lm_call_functions {
  lua_CFunction index, newindex, op, op_in_place, overload;
} lm_call_functions;
extern const lm_call_functions lm_calls;
/* Passes the line of the first level outside luminary's own Lua files to the core: as the position of waiting ranks
 * (lm_set_where) if this state has an open world, and as the script's line (lm_set_script_line) if requested. For calls
 * that may wait for other ranks, and, by lm_gc_step, those that make tensors; makes no garbage. */
void lm_note_line(lua_State *L, const lm_lua *s);
/* True if autograd's messages, profilers or the history of memory need lines. */
static inline bool lm_wants_lines(void) { return lm_anomaly() || lm_traces(LM_TRACE_LINES | LM_TRACE_LIVE_MEMORY); }
/* Makes the state's next call note its line, after a change of lm_wants_lines. */
static inline void lm_lines_changed(lm_lua *s) {
  s->step_at = 0;
  lm_set_script_line(NULL);
}
/* Raises lm_fail_arg's error. Call it only if the C frame owns nothing. */
int lm_raise_arg(lua_State *L, int i, const char *fn, const char *arg, const char *bound);
/* Prints lm_warn's pending warning, once for each line of the caller. */
void lm_show_warning(lua_State *L);
/* Does the same once for each line and name, such as a function's. */
void lm_show_warning_of(lua_State *L, const char *name);
/* Returns true if warnings for code ported from PyTorch are requested too (ported_code.c). */
bool lm_is_porting(void);
/* Checks an op's call for such errors. given: bit i: argument i was given; out: its first result, or NULL. Prints the
 * call's own pending warning first. */
void lm_check_ported(lua_State *L, lm_op_id id, const void *args, uint32_t given, const lm_tensor *out);
/* Reports reads of the globals True, False and None, which Lua does not define, while these warnings are requested; not
 * if the script's globals already have a metatable. */
void lm_watch_python_names(lua_State *L);
/* Returns true if the script itself called the function `name` at that level. A function that made it by a tail call
 * has no frame: the line before then calls something else, a function of the library or of the script. `function`: the
 * stack index of the function that the script called, which made the tail call; 0: that one itself. */
bool lm_is_scripts_call(lua_State *L, int level, const char *name, int function);

/* ---- arguments.c: readers of one value; none raises or allocates in Lua. fn and arg are names for the message. */
/* Tensors are borrowed from their handles: valid until something allocates in Lua or runs Lua code, since a finalizer
 * or a debug hook may free them. So calls first make their results, then read, then use. */
lm_status lm_read_tensor(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out);
/* Reads a tensor, or a number or boolean as a 0-d tensor; the caller releases *owned, which may be NULL. */
lm_status lm_read_scalar(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out,
                         lm_tensor **owned);
lm_status lm_read_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, double *out);
lm_status lm_read_int(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_text(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out);
/* Reads a string that may contain NUL bytes. */
lm_status lm_read_string(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out,
                         size_t *n);
lm_status lm_read_bool(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool *out);
/* Reads a dim: from 1 to from 0; 0 is an error; negative dims, from the end, stay. */
lm_status lm_read_dim(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_dtype(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype *out);
/* Reads a device: a string, or an integer as a CUDA ordinal. */
lm_status lm_read_device(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_device *out);
struct lm_generator;
extern const lm_object_type lm_generator_type; /* tensor/random.c */
lm_status lm_read_generator(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg,
                            struct lm_generator **out);
/* Reads sizes (dims false) or dims (true) from a number or a list. */
lm_status lm_read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, lm_ints *out);
/* Reads a contiguous tensor on the CPU of that dtype. */
lm_status lm_read_plain(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype dtype,
                        lm_tensor **out);
/* Reads a list of tensors into an array that the caller frees; `holes` allows false. */
lm_status lm_read_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                       lm_tensor ***out);
/* Reads a tensor or a list of tensors; the caller releases each, and frees the array. */
lm_status lm_read_some(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, lm_list *out);
/* Fails if the table at i, found empty, has a metatable with __index or __len. */
lm_status lm_check_empty(lua_State *L, int i, const char *fn, const char *arg);
/* Fails if the list at i has an entry at [0], which no reader of lists reads. */
lm_status lm_check_start(lua_State *L, int i, const char *fn, const char *arg);
/* Reads the value of argument `a` (op/op.h) at i, of any kind except LM_ARG_S. The caller frees a list's array. */
lm_status lm_read_arg(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_arg *a, void *out);

/* An argument of a C function, and the address of its value. */
typedef struct lm_param {
  const char *name;
  int kind; /* lm_arg_kind; with LM_OR_NIL, nil leaves *out unchanged */
  void *out;
} lm_param;
enum { LM_OR_NIL = 1 << 8 };
#define LM_PARAMS(...) \
  sizeof((lm_param[]){__VA_ARGS__}) / sizeof(lm_param), (lm_param[]) { __VA_ARGS__ }
/* Reads arguments by position, from `first` on. */
lm_status lm_read_args(lua_State *L, const lm_lua *s, int first, const char *fn, int n, const lm_param *params);
#define LM_READ_ARGS(L, s, first, fn, ...) lm_read_args(L, s, first, fn, LM_PARAMS(__VA_ARGS__))
/* Reads arguments by name from the table at i, which may be nil: absent ones stay unchanged. An unknown name is an
 * error that names the nearest. */
lm_status lm_read_options(lua_State *L, const lm_lua *s, int i, const char *fn, int n, const lm_param *params);
#define LM_READ_OPTIONS(L, s, i, fn, ...) lm_read_options(L, s, i, fn, LM_PARAMS(__VA_ARGS__))
/* Reads `count` values from `first` on: the first `limit` params by position, any of them by name in a table at the
 * end. Bit k of *given: params[k] has a value. */
lm_status lm_read_call(lua_State *L, const lm_lua *s, int first, int count, const char *fn, int limit, int n,
                       const lm_param *params, uint32_t *given);
/* Fails for the key at i of a table of options, which is none of these names. */
lm_status lm_fail_key(lua_State *L, int i, const char *fn, int n, const char *const *names);

/* Raise instead of returning an error; for C frames that own nothing. */
static inline void lm_need(lua_State *L, lm_status status) {
  if (status != LM_OK) lm_raise(L, status);
}
static inline lm_tensor *lm_need_tensor(lua_State *L, int i, const char *fn, const char *arg) {
  lm_tensor *t = lm_to_tensor(L, LM_STATE(L), i);
  if (!t) lm_need(L, lm_read_tensor(L, LM_STATE(L), i, fn, arg, &t));
  return t;
}
/* Reads declared arguments by position. */
#define LM_NEED_ARGS(L, first, fn, ...) lm_need(L, LM_READ_ARGS(L, LM_STATE(L), first, fn, __VA_ARGS__))
double lm_need_number(lua_State *L, int i, const char *fn, const char *arg);
int64_t lm_need_int(lua_State *L, int i, const char *fn, const char *arg);
const char *lm_need_text(lua_State *L, int i, const char *fn, const char *arg);
const char *lm_need_string(lua_State *L, int i, const char *fn, const char *arg, size_t *n);
void lm_need_table(lua_State *L, int i, const char *fn, const char *arg);
bool lm_need_bool(lua_State *L, int i, const char *fn, const char *arg);
lm_dtype lm_need_dtype(lua_State *L, int i, const char *fn, const char *arg);
lm_device lm_need_device(lua_State *L, int i, const char *fn);
/* Raises unless a function is at i. `before` precedes it in the message's example call: "{…}, ", or "". */
void lm_need_function(lua_State *L, int i, const char *fn, const char *before);
/* Returns the strings of the list at i and a final NULL, after `before` free slots, in a userdata on the stack; the
 * list keeps them alive. */
const char **lm_need_strings(lua_State *L, int i, const char *fn, const char *name, int before, int *n);

/* ---- defaults.c: returns the device at i, or the default one; raises */
lm_device lm_device_or_default(lua_State *L, int i, const char *fn);

/* ---- device/stream.c: returns the stream with the number at i + 1 of the device at i; raises */
lm_stream *lm_need_stream(lua_State *L, int i, const char *fn);

/* ---- tensor/op_call.c: calls any op */
int lm_run_op(lua_State *L, lm_op_id id, bool in_place);
int lm_bind_op(lua_State *L); /* upvalue 3: the descriptor */
int lm_bind_op_in_place(lua_State *L);
int lm_bind_arith(lua_State *L); /* arithmetic operators: a + b */

/* ---- tensor/op_variants.c: names that each stand for several ops */
int lm_bind_overload(lua_State *L); /* upvalue 3: the lm_overload */
int lm_bind_nonzero(lua_State *L);
int lm_bind_where(lua_State *L);

/* ---- tensor/fields.c: implements x.name, x.name = v and metamethods */
int lm_bind_index(lua_State *L); /* upvalue 3: methods, 4: getters */
int lm_bind_newindex(lua_State *L);
void lm_push_getters(lua_State *L);
int lm_bind_eq(lua_State *L);
int lm_bind_lt(lua_State *L);
int lm_bind_concat(lua_State *L);
int lm_bind_le(lua_State *L);
int lm_bind_len(lua_State *L);
int lm_bind_tostring(lua_State *L);
/* Pushes a list of sizes. Call it only from a closure of this library: it reads upvalue 2. */
void lm_push_sizes(lua_State *L, int n, const int64_t *v);

/* ---- tensor/scope.c */
int lm_bind_scope(lua_State *L); /* upvalue 3: its body */
int lm_bind_scope_body(lua_State *L);

/* ---- tensor/fuse.c */
int lm_bind_fuse(lua_State *L);
/* Begins an op, before its arguments are read; pass the result to lm_fusion_end. */
static inline bool lm_fusion_begin(const lm_lua *s) {
  bool before = s->fusion && s->fusion->reading;
  if (s->fusion) s->fusion->reading = true;
  return before;
}
/* Offers the op for deferral once its arguments are read; if it cannot be deferred, computes the deferred ops. */
void lm_fusion_offer(const lm_lua *s, const lm_op *op, const void *args, bool in_place);
/* Ends the op, also after an error. */
static inline void lm_fusion_end(const lm_lua *s, bool before) {
  if (!s->fusion) return;
  s->fusion->reading = before;
  s->fusion->waits = lm_chain_decline(s->fusion->chain);
}
/* Records the handle of a deferred op's result. */
void lm_fusion_note(const lm_lua *s, lm_tensor_handle *b);
/* Forgets a handle that is being collected (handle.c). */
void lm_fusion_forget(const lm_lua *s, const lm_tensor_handle *b);

/* ---- tensor/index.c: x[key] and x[key] = value; key at 2, value at 3 */
int lm_index_get(lua_State *L);
int lm_index_set(lua_State *L);

/* ---- tensor/methods.c: moves from's memory, sizes, dtype and device into t; a leaf keeps requires_grad */
lm_status lm_set_data(const char *fn, lm_tensor *t, lm_tensor *from);

/* ---- tensor/nested_lists.c: nested tables */
/* Pushes one element in CPU memory: a Lua number, a boolean for bool, cdata for integers beyond 2^53. */
void lm_push_element(lua_State *L, lm_dtype dtype, const void *p);
/* Returns a new tensor on `device` from the value at i: nested lists, a number or a boolean. */
lm_status lm_from_table(lua_State *L, const lm_lua *s, int i, lm_dtype dtype, lm_device device, lm_tensor **out);

/* ---- mp/lua_thread.c: runs a Lua state on its own thread */
typedef struct lm_lua_thread lm_lua_thread;
/* Runs a chunk of Lua in a new thread, with fd (mp/channel.h) passed in the global LM_CHANNEL; takes over fd unless it
 * fails. The caller passes *out to lm_lua_thread_forget. */
lm_status lm_lua_thread_start(const char *chunk, int fd, lm_lua_thread **out);
/* Raises an error in it, at about its next line; compiled loops do not notice. */
void lm_lua_thread_interrupt(lm_lua_thread *t);
bool lm_lua_thread_wait(lm_lua_thread *t, double seconds); /* true if it has ended */
const char *lm_lua_thread_error(const lm_lua_thread *t);   /* once ended: the chunk's error, or "" */
void lm_lua_thread_forget(lm_lua_thread *t);               /* it keeps running if it has not ended */
/* Interrupts all threads and waits at most `seconds` for their end. */
void lm_lua_threads_end(double seconds);
/* Makes exit() on this thread, if it is the process's first, safe while other threads compute. */
void lm_lua_threads_at_exit(void);

/* ---- functions of the module and methods of tensors that each file adds */

/* Defines a function of the module by its name in Lua: LM_FUNCTION(crc32) { … }. The linker collects the rows of all
 * files in one list, which module.c reads. */
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
/* Removes functions whose callback the core has released, if any. */
void lm_callbacks_drain(lua_State *L, lm_callbacks *h);
/* Keeps the hooks of the handle at index 1, which is being collected, while the graph may still call them. */
void lm_hooks_orphan(lua_State *L, lm_lua *s);
/* Sets s->running during a call that may run hooks; the caller restores the returned value. The Lua stack must have
 * room for LM_HOOK_SLOTS more. */
enum { LM_HOOK_SLOTS = 16 };
lua_State *lm_running_begin(lua_State *L, lm_lua *s);
lm_status lm_backward_in(lua_State *L, lm_lua *s, const lm_backward_args *a, lm_tensor **out);
/* Runs body on the coroutine whose call into the core this is part of. A Lua error is kept as LM_E_LUA, and the binding
 * raises the same value again. */
typedef int (*lm_lua_body)(lua_State *L, lm_lua *s, void *arg);
lm_status lm_call_lua(lm_callbacks *h, lm_lua_body body, void *arg);
int lm_bind_protected(lua_State *L);
