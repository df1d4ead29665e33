/* The Lua C API: everything that sees a lua_State. One file a subject.
 *
 * What `require "luminary.core"` holds (lua/ builds `require "luminary"` from it). Tensors are
 * userdata; `opts` is a trailing table with string keys; unknown options are errors that name the
 * nearest known one; errors are Lua errors at the first line outside luminary's own Lua files.
 *
 *   ops              table: every op by name, and `name_` of each POINT op
 *   methods          table: the methods of tensors, ops included; Lua code may add to it
 *   sizes            the metatable of lists of sizes, x.shape and the like (sizes.lua fills it)
 *   op_list()        list of op names          help(name)  text: signature with defaults, help
 *   nearest(s, list) the nearest of a list of strings to s, or nil if none is close (for messages)
 *   error_at_caller(message)   raise at the first line outside luminary's own Lua files
 *
 *   tensor(v, {dtype, device, requires_grad})     from nested lists, a number, a boolean or a tensor
 *   is_tensor(v)     true for a live or dropped tensor handle; is_alive(v) for a live one
 *   become(t, from)  t takes over from's storage, sizes, dtype, device in place (module:to, load)
 *   live_tensors()   headers alive in the process (leak specs)
 *   max(x [, dim | other] [, opts])  min likewise: what x:max() and x:min() do
 *   split(x, size | sizes, dim)  chunk(x, n, dim)  unbind(x, dim)    lists of views
 *
 *   no_grad(f, ...)  enable_grad(f, ...)          return what f returns; restore on error
 *   is_grad_enabled()  set_grad_enabled(on)       the second returns the mode before
 *   detect_anomaly(f, ...)   set_detect_anomaly(on)   is_anomaly_enabled()
 *   autocast({device, dtype, enabled, cache_enabled}, f, ...)    is_autocast_enabled([device])
 *   get_autocast_dtype([device])
 *   scope(f, ...)    drops the handles f made and neither returned (tables included) nor kept
 *   keep(x)          spares a tensor or the tensors in a table, at any depth; returns x
 *
 *   backward(tensors, {gradient = t | list, retain_graph, create_graph})
 *   grad(outputs, inputs, {grad_outputs, retain_graph, create_graph, allow_unused})   list
 *   checkpoint(f, again, ...)  f(...), recorded without saving anything; backward calls again() for it
 *   is_checkpointing()         inside of such a function
 *   custom_record(name, backward, inputs, outputs, saved)   ties outputs to inputs; backward(grads)
 *                    returns a list of gradients for inputs; in it custom_saved(i) is saved[i]
 *                    (autograd.lua uses it)
 *
 *   manual_seed(n)   get_rng_state(device) -> uint8 tensor of 16 bytes   set_rng_state(state, device)
 *   with_seed(seed, f, ...)                       returns what f returns; the CPU's generator goes on as before
 *   memory_allocated(device)  memory_reserved(device)  max_memory_allocated(device)
 *   max_memory_reserved(device)  reset_peak_memory_stats(device)  empty_cache(device)
 *   set_num_threads(n)  get_num_threads()  synchronize(device)  time()  seconds, monotonic
 *   setenv(name, value | nil)  getenv(name)   as the C library sees it
 *   set_default_dtype(d)  get_default_dtype()  set_default_device(d)  get_default_device()
 *   device(v)        canonical device string of a string or CUDA ordinal ("cpu:0" -> "cpu"), checked
 *   dtype(v)         canonical dtype string ("float" -> "float32"), checked
 *   dtype_size(d)    bytes      is_floating_point(dtype or tensor)
 *   device_count(kind)  of "cpu" or "cuda"
 *   _fail_alloc_from(n)  _alloc_count()           fault injection (base/mem.h)
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
 *   json_encode(value)  json_decode(text [, null]) plain values as JSON text and back (json.c)
 *
 *   safetensors_save(path, tensors by name, metadata of strings by name, names in order)
 *   safetensors_load(path, {device, mmap}) -> tensors by name, metadata, names in file order
 *   read_idx(path)   uint8 tensor, from plain or gzipped IDX
 *   read_file(path) -> uint8 tensor    write_file(path, bytes)    whole or not at all; bytes: a string or a tensor
 *   image_header(bytes, name, max_pixels, apply_exif_orientation, allow_corrupt) -> height, width, channels, format
 *   image_decode(the same, mode from 0, {top, left, height, width} | nil, {height, width} | nil) -> uint8 [C, H, W]
 *   encode_jpeg(image, quality)  encode_png(image, level) -> uint8 tensor of bytes
 *   file_kind(path)  "a regular file", "a folder", "a FIFO", "a socket" or "a device", and its size; nothing if there
 * is nothing. Opens nothing
 *   gather_rows(x, index, {scale, bias, dtype})    rows of x by a 1-d int64 index from 1, converted
 *   permutation(n, seed)  int64 tensor: 1 to n in an order that depends on seed alone
 *   image_transform(name, x, numbers [, out])     a transform of image/transform.h, into `out` if it is given
 *   uniform_number() the CPU's next random number, from 0 to less than 1
 *   draws(n, seed, count) int64 tensor: `count` numbers from 1 to n, with replacement, that depend on seed alone
 *   bytes_of, span_text, scan_folder, source_*, tar_*, csv_*    what data sets read (records.c)
 *
 *   device_*, stream_*, event_*, with_device, with_stream, pin_memory, is_pinned    devices and their streams
 * (device.c) graph_*          whole-step capture (graph.c) setting(name [, value])       a boolean of base/setting.h,
 * as it was before cuda_version(library)         of "cuda", "cudnn", "cublaslt": a number, or nil where it is not there
 * (backends.c) reducer_*        what DistributedDataParallel stands on (reducer.c)
 */
#ifndef LM_BIND_BIND_H
#define LM_BIND_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/clock.h"
#include "base/nearest.h"

/* A tensor handle: the userdata Lua holds. t is NULL once freed or dropped, and `why` says by whom. */
typedef struct lm_box {
  lm_tensor *t;
  const char *why;              /* text after "this tensor", kept alive by the state's table of sites */
  struct lm_box *next, **pprev; /* in the list of its scope, if pprev */
  bool hooked;                  /* has an environment of its own, with hooks */
} lm_box;

typedef struct lm_scope {
  struct lm_scope *outer;
  lm_box *boxes;
} lm_scope;

struct lm_home;

/* Where the tensors' metatable holds that of lists of sizes. */
enum { LM_SIZES = 1 };

/* One for each Lua state: upvalue 1 of every closure of ours; upvalue 2 is the tensors' metatable. */
typedef struct lm_lua {
  const void *metatable;        /* a userdata is a tensor if this is its metatable */
  int worlds, worlds_before;    /* of dist: open, and opened in all */
  lua_State *running;           /* the coroutine inside lm_backward, for hooks */
  struct lm_home *home;         /* hooks.c */
  struct callback *in_backward; /* the custom function that runs */
  lm_scope *scope;
  /* While a reader has Lua code run (lm_to_int64), the call may hold tensors it read before without a reference. What
   * handles let go of meanwhile is kept until the next call makes a step of the collector. */
  int asking, nkept, kept_room;
  lm_tensor **kept;
  /* The paced collector: bytes of results since the last step, when to step, the budget of a cycle. */
  size_t fresh, step_at, budget;
  double cycle_start, cycle_collecting;
  int cycle_steps;
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
    lm_reg_catchers;

#define LM_STATE(L) ((lm_lua *)lua_touserdata(L, lua_upvalueindex(1)))

static inline void lm_reg_get(lua_State *L, const char *key) {
  lua_pushlightuserdata(L, (void *)key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

/* ---- tensor_box.c: handles */
static inline lm_box *lm_to_box(lua_State *L, const lm_lua *s, int i) {
  lm_box *b = (lm_box *)lua_touserdata(L, i);
  if (!b || !lua_getmetatable(L, i)) return NULL;
  const void *metatable = lua_topointer(L, -1);
  lua_pop(L, 1);
  return metatable == s->metatable ? b : NULL;
}
/* NULL if it is no tensor or a dead handle. */
static inline lm_tensor *lm_to_tensor(lua_State *L, const lm_lua *s, int i) {
  lm_box *b = lm_to_box(L, s, i);
  return b ? b->t : NULL;
}
/* An empty handle on the stack. Made before arguments are read, since it may collect. */
lm_box *lm_box_new(lua_State *L);
/* The handle takes the reference over. */
static inline void lm_box_fill(lm_lua *s, lm_box *b, lm_tensor *t) {
  b->t = t;
  if (s->scope) {
    b->next = s->scope->boxes;
    b->pprev = &s->scope->boxes;
    if (b->next) b->next->pprev = &b->next;
    s->scope->boxes = b;
  }
}
/* No scope will drop it. */
void lm_box_unlink(lm_box *b);
/* Releases the tensor; `why` ends the sentence "this tensor …". */
void lm_box_drop(lm_lua *s, lm_box *b, const char *why);
/* A reference that a handle had; at once, but for the while that a reader has Lua code run. */
void lm_let_go(lm_lua *s, lm_tensor *t);
/* What was kept for that while. Where no call is reading. */
void lm_let_go_kept(lm_lua *s);
int lm_box_gc(lua_State *L);

/* ---- object.c: userdata of other types */
typedef struct lm_object_type {
  const char *name; /* "luminary.event": of the process's one metatable of the type in each state */
  size_t bytes;
  lua_CFunction gc;
} lm_object_type;
/* On the stack, all zeros. */
void *lm_object_new(lua_State *L, const lm_object_type *type);
/* NULL if the value at i is none of the type. */
void *lm_to_object(lua_State *L, int i, const lm_object_type *type);

/* ---- collector.c: Lua's collector cannot see memory off its heap, so we drive it by bytes */
void lm_pace_step(lua_State *L, lm_lua *s);
/* First thing in every call that makes tensors; the caller's frame owns nothing yet, since a
 * finalizer's error may pass through. */
static inline void lm_pace(lua_State *L, lm_lua *s) {
  if (s->fresh >= s->step_at) lm_pace_step(L, s);
}
/* Finds scale[] of the device's kind. */
int lm_pace_scale(lm_lua *s, lm_device device);
/* A result's memory counts towards the next step. */
static inline void lm_pace_count(lm_lua *s, const lm_tensor *t) {
  int scale = s->scale[LM_DEVICE_KIND(t->device)];
  if (scale == 0) scale = lm_pace_scale(s, t->device);
  s->fresh += (t->storage->bytes >> (scale - 1)) + 512;
}
/* So does a descriptor, of which a process may have some 1,000: a collection for every 256. */
enum { LM_PACE_DESCRIPTOR = 256 << 10 };
/* Runs f; if it was out of memory, collects everything and runs it once more. f owns nothing when
 * it returns an error and never raises. The stack is as high as before for each run. f reads its tensors
 * itself, since finalizers that run between may free them. */
typedef lm_status (*lm_attempt)(lua_State *L, lm_lua *s, void *arg);
lm_status lm_attempt_twice(lua_State *L, lm_lua *s, lm_attempt f, void *arg);

/* ---- error.c */
/* Raises the last message at the first line outside our own Lua files; never returns. Only where the
 * C frame owns nothing. */
int lm_raise(lua_State *L, lm_status status);
/* The same with a message made here. */
int lm_raise_text(lua_State *L, const char *format, ...) LM_PRINTF(2, 3);
/* "train.lua:12: " of the first level outside our own Lua files, or "". */
/* Tells autograd that line, for lm_set_anomaly. */
void lm_note_anomaly(lua_State *L);
void lm_push_where(lua_State *L);
/* lua_pcall for functions of the script's, which may come back here: an error instead where the C stack is about to
 * end. Allocates nothing of its own in Lua. */
int lm_pcall(lua_State *L, int nargs, int nresults);
int lm_note_traceback(lua_State *L); /* its handler */
/* traceback_of(message): the frames that lm_pcall saw when this was raised, if it was the last; else nothing. */
int lm_bind_traceback_of(lua_State *L);
/* Where ranks wait is told by the script's line: says it to the core (lm_set_where) if this state has an open world.
 * For calls that may wait for other ranks; makes no garbage. */
void lm_note_line(lua_State *L, const lm_lua *s);
/* What stands at index i, for messages: "a tensor [2, 3]", "number 0.5", "nil". Thread-local text. */
const char *lm_got(lua_State *L, const lm_lua *s, int i);
/* The string at i as C reads it; NULL if there is none, or if it holds a zero byte, which would cut it. lm_got says
 * which. The value keeps it alive. */
const char *lm_to_text(lua_State *L, int i);
/* Checks the keys of the options table at i against `names`. */
lm_status lm_check_options(lua_State *L, int i, const char *fn, int n, const char *const *names);
int lm_bind_nearest(lua_State *L);
int lm_bind_error_at_caller(lua_State *L);
int lm_bind_help(lua_State *L);
int lm_bind_op_list(lua_State *L);
int lm_bind_own_files(lua_State *L);
/* Says what lm_warn was given, once for each line of the caller's. */
void lm_show_warning(lua_State *L);
int lm_bind_set_warnings(lua_State *L);
int lm_bind_warn(lua_State *L);

/* ---- arg.c: readers of one value; none raises or allocates in Lua. fn and arg word the message. */
/* Tensors are borrowed from their handles: good until something allocates in Lua or runs Lua code, since a finalizer or
 * a debug hook may free them. So calls make what they return first, then read, then use. */
/* x.item() gives nothing for x, and x.view(4, -1) a number: what messages add to say so, or "". */
const char *lm_dot_hint(const char *fn, const char *arg, int type);
lm_status lm_read_tensor(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out);
/* A tensor, or a number or boolean made 0-d; *owned is what the caller has to release, or NULL. */
lm_status lm_read_scalar(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_tensor **out,
                         lm_tensor **owned);
lm_status lm_read_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, double *out);
lm_status lm_read_int(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_text(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, const char **out);
lm_status lm_read_bool(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool *out);
/* 1-based, not 0, to 0-based; negative from the end stays. */
lm_status lm_read_dim(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, int64_t *out);
lm_status lm_read_dtype(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_dtype *out);
/* A string, or an integer: a CUDA ordinal. */
lm_status lm_read_device(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, lm_device *out);
/* Sizes (dims false) or dims (true) from a number or a list. */
lm_status lm_read_ints(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool dims, lm_ints *out);
/* A list of tensors into a malloc'ed array of yours; `holes` allows false. */
lm_status lm_read_list(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                       lm_tensor ***out);
/* An int64 or uint64 cdata's value. */
bool lm_to_int64(lua_State *L, const lm_lua *s, int i, int64_t *out);
/* Field `name` of the table at i on the stack; true if it is not nil. Raw. */
bool lm_field(lua_State *L, int i, const char *name);
/* For a table at i in which nothing was found: an error if it has a metatable with __index or __len. */
lm_status lm_check_empty(lua_State *L, int i, const char *fn, const char *arg);
/* The same read into out, which stays as it is where the field is nil. */
lm_status lm_field_number(lua_State *L, const lm_lua *s, int i, const char *fn, const char *name, double *out);
lm_status lm_field_int(lua_State *L, const lm_lua *s, int i, const char *fn, const char *name, int64_t *out);
lm_status lm_field_bool(lua_State *L, const lm_lua *s, int i, const char *fn, const char *name, bool *out);

/* ---- decode.c: any op's call */
int lm_run_op(lua_State *L, lm_op_id id, bool in_place);
int lm_bind_op(lua_State *L); /* upvalue 3: the descriptor */
int lm_bind_op_in_place(lua_State *L);
int lm_bind_arith(lua_State *L); /* a + b and the like */
int lm_bind_overload(lua_State *L);
int lm_bind_nonzero(lua_State *L);

/* ---- fields.c: what x.name and x.name = v do; metamethods */
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

/* ---- modes.c */
int lm_bind_scope(lua_State *L); /* upvalue 3: its body */
int lm_bind_scope_body(lua_State *L);

/* ---- index.c: x[key] and x[key] = value; key at 2, value at 3 */
int lm_index_get(lua_State *L);
int lm_index_set(lua_State *L);

/* ---- tensor_methods.c: t takes over from's memory, sizes, dtype and device; a leaf goes on requiring grad */
lm_status lm_become(const char *fn, lm_tensor *t, lm_tensor *from);

/* ---- table.c: nested tables */
/* One element: a Lua number, a boolean for bool, cdata for integers beyond 2^53. CPU memory. */
void lm_push_element(lua_State *L, lm_dtype dtype, const void *p);
/* A new CPU tensor (moved to `device`) from what stands at i: nested lists, a number, a boolean. */
lm_status lm_from_table(lua_State *L, const lm_lua *s, int i, lm_dtype dtype, lm_device device, lm_tensor **out);

/* ---- dist.c: worlds, groups, works */
/* The group of the handle at i; NULL if it is none or has been closed. */
struct lm_group *lm_to_group(lua_State *L, const lm_lua *s, int i);
/* The same for calls on it: says what is wrong with the handle, and fails if a rank of its world has failed. */
lm_status lm_read_group(lua_State *L, const lm_lua *s, int i, const char *fn, struct lm_group **out);
/* What stands on a group (works, reducers) has to end before it, whichever of the handles the collector takes first:
 * close is called when the group is about to close. Part of a userdata; leave before that goes. */
typedef struct lm_user {
  struct lm_user *next, **pprev; /* in a list, if pprev */
  void (*close)(struct lm_user *);
} lm_user;
void lm_group_join(lua_State *L, int i, lm_user *user); /* the group's handle at i */
void lm_user_leave(lm_user *user);                      /* twice is fine */

/* ---- threads.c: a Lua state on a thread of its own */
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

extern const luaL_Reg lm_tensor_functions[]; /* tensor_methods.c: methods */
extern const luaL_Reg lm_handle_functions[];
extern const luaL_Reg lm_table_functions[]; /* table.c */
extern const luaL_Reg lm_table_methods[];
extern const luaL_Reg lm_mode_functions[];       /* modes.c */
extern const luaL_Reg lm_autograd_functions[];   /* autograd.c */
extern const luaL_Reg lm_hook_functions[];       /* hooks.c */
extern const luaL_Reg lm_runtime_functions[];    /* runtime.c */
extern const luaL_Reg lm_optim_functions[];      /* optim.c */
extern const luaL_Reg lm_rescale_functions[];    /* rescale.c */
extern const luaL_Reg lm_io_functions[];         /* io.c */
extern const luaL_Reg lm_data_functions[];       /* data.c */
extern const luaL_Reg lm_transform_functions[];  /* transform.c */
extern const luaL_Reg lm_record_functions[];     /* records.c */
extern const luaL_Reg lm_json_functions[];       /* json.c */
extern const luaL_Reg lm_mp_functions[];         /* mp.c */
extern const luaL_Reg lm_mp_handle_functions[];  /* handles.c */
extern const luaL_Reg lm_process_functions[];    /* process.c */
extern const luaL_Reg lm_dist_functions[];       /* dist.c */
extern const luaL_Reg lm_collective_functions[]; /* collective.c */
extern const luaL_Reg lm_reducer_functions[];    /* reducer.c */
extern const luaL_Reg lm_device_functions[];     /* device.c */
extern const luaL_Reg lm_graph_functions[];      /* graph.c */
extern const luaL_Reg lm_backends_functions[];   /* backends.c */
extern const luaL_Reg lm_image_functions[];      /* image.c */

/* ---- hooks.c: Lua functions that the core calls */
lm_status lm_home_new(lm_lua *s, struct lm_home **out);
void lm_home_close(struct lm_home *h);
/* Forget functions whose owner in the core has gone. */
void lm_home_drain(lua_State *L, struct lm_home *h);
bool lm_home_waiting(const struct lm_home *h);
/* A handle with hooks is collected while the graph may still call them. Box at index 1. */
void lm_hooks_orphan(lua_State *L, lm_lua *s);
/* Binds `running` for the time of a call that may run hooks: what begin gives is to become s->running again. The Lua
 * stack has room for LM_HOOK_SLOTS more by then. */
enum { LM_HOOK_SLOTS = 16 };
lua_State *lm_running_begin(lua_State *L, lm_lua *s);
lm_status lm_backward_in(lua_State *L, lm_lua *s, const lm_backward_args *a, lm_tensor **out);
/* Runs body on the coroutine whose call into the core this is part of. What it raises is kept as it is until the
 * binding raises it again, and is an LM_E_LUA up to there. */
typedef int (*lm_lua_body)(lua_State *L, lm_lua *s, void *arg);
lm_status lm_call_lua(struct lm_home *h, lm_lua_body body, void *arg);
int lm_bind_protected(lua_State *L);

#endif
