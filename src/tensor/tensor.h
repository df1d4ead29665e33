/* Defines tensors: a header (sizes, strides) over a reference-counted storage. They are plain data without recording;
 * what autograd adds hangs off `grad`, opaque here.
 *
 * In the core, dims count from 0 and may be negative from the end; the binding converts Lua's, which count from 1.
 * Values that index (labels, index tensors) count from 1 everywhere, since they are data. Messages use Lua's base. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"
#include "device/device.h"
#include "device/stream.h"
#include "integers.h"
#include "tensor/dtype.h"

enum { LM_MAX_DIMS = 8, LM_SMALL_BYTES = 64, LM_BY_COLLECTIVE = -2, LM_BY_SET_DATA = -3, LM_BY_COMPILED = -4 };

struct lm_tensor;

/* A way to fetch a storage's values again after its memory was freed (a parameter gathered from the ranks). */
typedef struct lm_source {
  _Atomic int32_t rc;
  uint32_t version; /* the storage's version while nobody has written to it */
  lm_status (*fetch)(void *ctx, struct lm_tensor *unused, struct lm_tensor **out); /* returns a new reference */
  void *ctx;
  void (*release)(void *ctx);
} lm_source;

typedef struct lm_storage {
  _Atomic int32_t rc;
  lm_device device;
  _Atomic bool passed;      /* true once passed to another thread's Lua state, which may write to the memory */
  _Atomic uint32_t version; /* incremented by every in-place write */
  _Atomic int32_t writer; /* op id of the last in-place write, for messages; -1: none, or an optimizer; or LM_BY_… */
  size_t bytes;
  void *data; /* small[], from device/alloc.h, or foreign */
  /* Non-NULL for foreign memory (a mapped file, a Lua-owned buffer): called once when the storage is freed. */
  void (*foreign_release)(void *owner);
  void *owner;
  union {
    struct lm_storage *next;  /* next in the free list */
    struct lm_storage *whole; /* in use: the storage this is a part of (lm_tensor_part), or NULL */
  };
  lm_source *source;                  /* NULL for most */
  lm_used used;                       /* streams that use it (device/stream.h); 0 on the CPU; see lm_tensor_used */
  struct lm_prepack_entry *prepacked; /* forms that kernels keep (tensor/prepack.h) */
  _Atomic int32_t prepack_users;      /* number of callers that ask for these */
  uint32_t era;                       /* lm_storage_era when the memory was made */
  _Alignas(64) char small[LM_SMALL_BYTES];
} lm_storage;

typedef struct lm_tensor {
  _Atomic int32_t rc;
  lm_dtype dtype;
  uint8_t ndim;
  lm_device device;
  bool number; /* a Lua number as 0-d tensor: promotes weakly and fits any device */
  int64_t numel;
  int64_t size[LM_MAX_DIMS];
  int64_t stride[LM_MAX_DIMS]; /* elements; 0 in an expanded dim; never negative */
  lm_storage *storage;
  char *data;             /* first element */
  struct lm_grad *grad;   /* autograd's record; NULL for most */
  struct lm_tensor *next; /* next in the free list */
} lm_tensor;

/* Number of the process's reruns of checkpoints so far (autograd/recompute.c). */
extern _Atomic uint32_t lm_storage_era;

/* True if only this thread's Lua state may write to it: it is neither foreign (files, shared memory) nor passed to
 * another thread. */
static inline bool lm_storage_is_private(const lm_storage *s) {
  return !s->foreign_release && !atomic_load_explicit(&s->passed, memory_order_relaxed);
}

/* Returns numel times the bytes of an element: those of a dense copy of t. */
static inline size_t lm_nbytes(const lm_tensor *t) { return (size_t)t->numel * lm_dtype_size(t->dtype); }

typedef struct lm_list { /* borrowed tensors; an entry may be NULL if the op allows it */
  int n;
  lm_tensor **v;
} lm_list;

typedef struct lm_ints { /* sizes or dims; n < 0: not given */
  int n;
  int64_t v[LM_MAX_DIMS];
} lm_ints;

typedef struct lm_pads { /* padding before and after the last dim, then the one before it, … */
  int n;
  int64_t v[2 * LM_MAX_DIMS];
} lm_pads;

static inline int64_t lm_sizes_product(const lm_ints *sizes) {
  int64_t product = 1;
  for (int d = 0; d < sizes->n; d++) product *= sizes->v[d];
  return product;
}

/* Sets the strides of a contiguous tensor; a size of 0 counts as 1. */
static inline void lm_dense_strides(int ndim, const int64_t *size, int64_t *stride) {
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    stride[d] = step;
    step *= size[d] > 0 ? size[d] : 1;
  }
}

typedef enum lm_format { LM_PRESERVE, LM_CONTIGUOUS, LM_CHANNELS_LAST } lm_format;

/* Creates a dense, uninitialized tensor. format: LM_CONTIGUOUS, or LM_CHANNELS_LAST for 4-d. LM_E_ARG for a negative
 * size or an overflow, LM_E_OOM. */
LM_API lm_status lm_tensor_empty(lm_dtype dtype, lm_device device, int ndim, const int64_t *size, lm_format format,
                                 lm_tensor **out);
/* Creates a dense, uninitialized tensor with `like`'s sizes, its dims in memory ordered by `like`'s strides (PyTorch's
 * preserve_format; dense even if `like` is not). */
LM_API lm_status lm_tensor_empty_like(const lm_tensor *like, lm_dtype dtype, lm_device device, lm_tensor **out);
/* Makes the next dense tensor of this thread with home's dtype, device, sizes and strides, dims of size 1 aside, use
 * home's storage. Applies once. `home` is borrowed: pass NULL before releasing it. */
LM_API void lm_tensor_set_next_out(lm_tensor *home);
/* Creates a view of t's storage, `offset` elements after t's first; checks the storage's bounds. */
LM_API lm_status lm_tensor_view(lm_tensor *t, int ndim, const int64_t *size, const int64_t *stride, int64_t offset,
                                lm_tensor **out);
/* Creates a view of t's memory from byte `at`, as elements of another dtype. LM_E_ARG if they are misaligned. */
LM_API lm_status lm_tensor_view_as(lm_tensor *t, lm_dtype dtype, int ndim, const int64_t *size, const int64_t *stride,
                                   size_t at, lm_tensor **out);
/* Creates a contiguous tensor over foreign memory; calls release(owner) when the last reference is released, or before
 * returning an error. */
LM_API lm_status lm_tensor_foreign(lm_dtype dtype, lm_device device, int ndim, const int64_t *size, void *data,
                                   size_t bytes, void (*release)(void *owner), void *owner, lm_tensor **out);
/* Creates a contiguous tensor over t's memory from byte `at`, with a storage (version, views) of its own; it keeps t's
 * alive. Stream use of one such part is ordered after use of t and of the other parts. */
LM_API lm_status lm_tensor_part(lm_tensor *t, lm_dtype dtype, int ndim, const int64_t *size, size_t at,
                                lm_tensor **out);
/* Returns the streams that use t's memory, for lm_use_*. */
static inline lm_used *lm_tensor_used(const lm_tensor *t) {
  return t->storage->whole ? &t->storage->whole->used : &t->storage->used;
}
/* Sets the source of t's storage, whose version and writer become those of `from`: the values are equal as long as
 * from's version is. Takes over ctx, which it releases after an error, too. */
LM_API lm_status lm_tensor_set_source(lm_tensor *t, const lm_tensor *from, lm_source source);
/* Creates a header of t's sizes and strides that keeps the source of t's storage, not its memory. No op may read it. */
lm_status lm_tensor_placeholder(lm_tensor *t, lm_tensor **out);
/* Returns true if t is a placeholder; lm_has_source: true if t's storage has a source and was not written since. */
static inline bool lm_is_placeholder(const lm_tensor *t) { return t->storage->source && !t->storage->data; }
static inline bool lm_has_source(const lm_tensor *t) {
  return t->storage->source &&
         atomic_load_explicit(&t->storage->version, memory_order_relaxed) == t->storage->source->version;
}
/* Fetches the memory of a placeholder: creates a header over it. */
lm_status lm_tensor_fetch_source(const lm_tensor *placeholder, lm_tensor **out);
/* Creates a 0-d CPU tensor for a Lua number: int64 if integral, else float64, marked `number`. */
LM_API lm_status lm_tensor_number(double value, lm_tensor **out);

static inline lm_tensor *lm_retain(lm_tensor *t) {
  if (t) atomic_fetch_add_explicit(&t->rc, 1, memory_order_relaxed);
  return t;
}
LM_API void lm_release(lm_tensor *t); /* t may be NULL; callable from any thread; never calls Lua */
/* Declares a tensor, NULL or a reference that the block owns and releases at its end: LM_OWNED *copy = NULL. No goto
 * may jump over the declaration. A function that fails must not leave a released tensor in its `out`. */
#define LM_OWNED __attribute__((cleanup(lm_tensor_drop))) lm_tensor
/* Declares the same for an array of tensors, all NULL. */
#define LM_OWNED_ARRAY(name, count) \
  lm_tensor *name[count] = {NULL};  \
  const lm_list name##_owned __attribute__((cleanup(lm_list_drop), unused)) = {count, name}
static inline void lm_tensor_drop(lm_tensor **t) {
  if (*t) lm_release(*t);
}
/* Declares a list that the block owns, with its tensors and its memory, of lm_calloc: LM_OWNED_LIST parts = {0}. */
#define LM_OWNED_LIST __attribute__((cleanup(lm_list_free))) lm_list
static inline void lm_list_drop(const lm_list *list) {
  for (int i = 0; list->v && i < list->n; i++) lm_tensor_drop(&list->v[i]);
}
static inline void lm_list_free(lm_list *list) {
  lm_list_drop(list);
  lm_free(list->v);
}
/* Returns *t, which the caller then owns, and sets *t to NULL. */
static inline lm_tensor *lm_tensor_take(lm_tensor **t) {
  lm_tensor *taken = *t;
  *t = NULL;
  return taken;
}
LM_API void lm_storage_retain(lm_storage *s);
LM_API void lm_storage_release(lm_storage *s);

/* Sets the function that releases tensor->grad; autograd calls this once. */
LM_API void lm_tensor_set_grad_release(void (*release)(struct lm_grad *));

/* Makes t share `from`'s storage, sizes, dtype and device in place (module:to, load). */
LM_API void lm_tensor_set_data(lm_tensor *t, lm_tensor *from);

LM_API bool lm_is_contiguous(const lm_tensor *t);
LM_API bool lm_is_channels_last(const lm_tensor *t); /* 4-d and [N, H, W, C] in memory */
/* True if elements fill their span without gap or overlap, in any order of dims. */
LM_API bool lm_is_dense(const lm_tensor *t);
/* True if t has these strides, those of dims of one element aside. */
LM_API bool lm_has_strides(const lm_tensor *t, const int64_t *stride);
/* True if a and b, of the same sizes, are dense and in the same order of dims, so that a copy of the bytes suffices. */
LM_API bool lm_same_layout(const lm_tensor *a, const lm_tensor *b);
/* True if a and b have the same sizes. */
LM_API bool lm_same_shape(const lm_tensor *a, const lm_tensor *b);
/* True if elements share memory within t (expanded dims), which in-place writes refuse. */
LM_API bool lm_overlaps_itself(const lm_tensor *t);

static inline uint32_t lm_version(const lm_tensor *t) {
  return atomic_load_explicit(&t->storage->version, memory_order_relaxed);
}
static inline void lm_bump(lm_tensor *t, int writer) {
  atomic_store_explicit(&t->storage->writer, writer, memory_order_relaxed);
  atomic_fetch_add_explicit(&t->storage->version, 1, memory_order_relaxed);
}

/* Copies `bytes` from t's first element, on a device other than the CPU, to out, after pending writes. */
LM_API lm_status lm_tensor_fetch(const lm_tensor *t, size_t bytes, void *out);
/* Return the value of a one-element tensor of any device as a number. */
LM_API lm_status lm_tensor_item_f64(const lm_tensor *t, double *out);
LM_API lm_status lm_tensor_item_i64(const lm_tensor *t, int64_t *out);

/* Broadcasts two lists of sizes by PyTorch's rule; the error names `op` and both shapes. */
LM_API lm_status lm_broadcast(const char *op, int na, const int64_t *a, int nb, const int64_t *b, int *n, int64_t *out);
/* Normalizes a dim (0-based, negative from the end) to 0..ndim-1; 0-d tensors accept 0 and -1. The error names the dim
 * in Lua's base. */
LM_API lm_status lm_dim(const char *op, int64_t dim, int ndim, int *out);
/* Returns "[2, 3]" in a thread-local ring of eight buffers, for messages. */
LM_API const char *lm_shape_text(int ndim, const int64_t *size);
#define lm_shape_of(t) lm_shape_text((t)->ndim, (t)->size)

/* Notes what becomes of this thread's tensors while a step is recorded (plan/). */
typedef struct lm_tensor_watcher {
  void (*made)(struct lm_tensor_watcher *w, const lm_storage *s);   /* memory was made */
  void (*freed)(struct lm_tensor_watcher *w, const lm_storage *s);  /* memory is freed */
  void (*dropped)(struct lm_tensor_watcher *w, const lm_tensor *t); /* a header is freed */
  void (*read)(struct lm_tensor_watcher *w, const lm_tensor *t);    /* C code reads an element as a number */
} lm_tensor_watcher;
LM_API extern _Thread_local lm_tensor_watcher *lm_tensors_watched;
/* The number of threads that run compiled steps: while it is 0, no thread-local variable of theirs needs a look. */
LM_API extern _Atomic int lm_compiled_calls;
static inline bool lm_compiled_call_runs(void) {
  return __builtin_expect(atomic_load_explicit(&lm_compiled_calls, memory_order_relaxed) > 0, 0);
}
/* Creates a header without values at byte `at` of storage s; if s is NULL, of a new one without memory. */
LM_API lm_status lm_tensor_at(lm_storage *s, lm_dtype dtype, lm_device device, int ndim, const int64_t *size,
                              const int64_t *stride, int64_t at, lm_tensor **out);
/* Moves a header to byte `at` of another storage. */
LM_API void lm_tensor_move(lm_tensor *t, lm_storage *s, int64_t at);

/* Returns the process's number of live tensor headers, for leak checks in specs. */
LM_API long lm_live_tensors(void);
