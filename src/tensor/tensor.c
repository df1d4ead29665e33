#include "tensor/tensor.h"

#include "base/message.h"
#include "device/graph.h"

#include <math.h>
#include <string.h>

#include "base/mapping_guard.h"
#include "base/mem.h"
#include "device/alloc.h"
#include "device/driver.h"
#include "device/stream_core.h"
#include "tensor/free_list.h"
#include "tensor/memory_history.h"

static void (*_Atomic release_grad)(struct lm_grad *);

void lm_tensor_set_grad_release(void (*release)(struct lm_grad *)) { atomic_store(&release_grad, release); }

_Thread_local lm_tensor_watcher *lm_tensors_watched;
_Atomic int lm_compiled_calls;

static inline lm_tensor_watcher *watcher(void) { return lm_compiled_call_runs() ? lm_tensors_watched : NULL; }

/* ---- storage */

/* Drops a reference; true if it was the last. Count 1 means no other thread has one: no locked instruction. */
static bool drops_to_zero(_Atomic int32_t *rc) {
  return atomic_load_explicit(rc, memory_order_acquire) == 1 ||
         atomic_fetch_sub_explicit(rc, 1, memory_order_acq_rel) == 1;
}

void lm_storage_retain(lm_storage *s) { atomic_fetch_add_explicit(&s->rc, 1, memory_order_relaxed); }

static void release_source(lm_source *source) {
  if (!drops_to_zero(&source->rc)) return;
  source->release(source->ctx);
  lm_free(source);
}

void lm_storage_release(lm_storage *s) {
  if (!s || !drops_to_zero(&s->rc)) return;
  if (watcher()) watcher()->freed(watcher(), s);
  if (lm_traces(LM_TRACE_SPANS | LM_TRACE_LIVE_MEMORY)) lm_memory_freed(s);
  if (s->foreign_release) {
    s->foreign_release(s->owner);
  } else if (s->data != s->small) {
    lm_device_free_used(s->device, s->data, s->bytes, atomic_load_explicit(&s->used, memory_order_relaxed));
  }
  if (s->source) release_source(s->source);
  lm_storage_put(s);
}

static lm_status new_storage(lm_device device, size_t bytes, lm_storage **out) {
  lm_storage *s = lm_storage_take();
  if (!s) return LM_E_OOM;
  s->device = device;
  s->bytes = bytes;
  if (bytes <= LM_SMALL_BYTES && LM_DEVICE_KIND(device) == LM_CPU) {
    s->data = s->small;
  } else if (bytes > 0) {
    lm_status status = lm_device_alloc_used(device, bytes, &s->data, &s->used);
    if (status != LM_OK) {
      lm_storage_put(s);
      return status;
    }
  }
  if (lm_traces(LM_TRACE_SPANS | LM_TRACE_LIVE_MEMORY)) lm_memory_allocated(s);
  if (watcher()) watcher()->made(watcher(), s);
  *out = s;
  return LM_OK;
}

/* ---- headers */

static void destroy(lm_tensor *t) {
  if (watcher()) watcher()->dropped(watcher(), t);
  lm_storage_release(t->storage);
  lm_header_put(t);
}

/* Tensors to destroy that have autograd records. A list, as a gradient may have a gradient, and so on: chains of any
 * length need no recursion. */
static _Thread_local struct {
  bool destroying; /* true while destroy_recorded is on this thread's stack */
  lm_tensor *doomed;
} own;

static void destroy_recorded(lm_tensor *t) {
  t->next = own.doomed;
  own.doomed = t;
  if (own.destroying) return;
  own.destroying = true;
  while ((t = own.doomed)) {
    own.doomed = t->next;
    atomic_load_explicit(&release_grad, memory_order_relaxed)(t->grad);
    destroy(t);
  }
  own.destroying = false;
}

void lm_release(lm_tensor *t) {
  if (!t || !drops_to_zero(&t->rc)) return;
  if (t->grad) {
    destroy_recorded(t);
  } else {
    destroy(t);
  }
}

/* Returns the error for bad sizes; callers prepend the function's name. */
static lm_status fail_bad_sizes(int ndim, const int64_t *size) {
  if (ndim < 0 || ndim > LM_MAX_DIMS)
    return lm_fail(LM_E_ARG, "the number of dims must be at most %d, got %d", LM_MAX_DIMS, ndim);
  const char *shape = lm_shape_text(ndim, size);
  for (int d = 0; d < ndim; d++)
    if (size[d] < 0) return lm_fail(LM_E_ARG, "the shape must be non-negative integers, got %s", shape);
  return lm_fail(LM_E_ARG, "the shape must be less than 2^63 bytes of elements, got %s", shape);
}

/* Sets t's sizes, and strides of a dense tensor whose dims are in memory as `order` lists them, innermost first; NULL:
 * the last dim innermost. Returns false for invalid sizes. */
static bool lay_out(lm_tensor *t, int ndim, const int64_t *size, const int8_t *order, size_t element) {
  int64_t span = 1, numel = 1; /* span counts a size of 0 as 1, as PyTorch's strides do */
  if (ndim < 0 || ndim > LM_MAX_DIMS) return false;
  for (int i = 0; i < ndim; i++) {
    int d = order ? order[i] : ndim - 1 - i;
    int64_t n = size[d];
    if (n < 0) return false;
    t->size[d] = n;
    t->stride[d] = span;
    numel *= n; /* the product is at most span, or 0 */
    if (__builtin_mul_overflow(span, n > 0 ? n : 1, &span)) return false;
  }
  int64_t bytes;
  if (__builtin_mul_overflow(span, (int64_t)element, &bytes)) return false;
  t->ndim = (uint8_t)ndim;
  t->numel = numel;
  return true;
}

static _Thread_local lm_tensor *next_out;

void lm_tensor_set_next_out(lm_tensor *home) { next_out = home; }

static bool has_layout_of(const lm_tensor *t, const lm_tensor *home) {
  if (t->numel != home->numel || t->dtype != home->dtype || t->device != home->device) return false;
  for (int d = 0, h = 0;; d++, h++) {
    while (d < t->ndim && t->size[d] == 1) d++;
    while (h < home->ndim && home->size[h] == 1) h++;
    if (d == t->ndim || h == home->ndim) return d == t->ndim && h == home->ndim;
    if (t->size[d] != home->size[h] || t->stride[d] != home->stride[h]) return false;
  }
}

static lm_status new_dense(lm_dtype dtype, lm_device device, int ndim, const int64_t *size, const int8_t *order,
                           lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *t = lm_header_take();
  *out = NULL;
  if (!t) return LM_E_OOM;
  t->dtype = dtype;
  t->device = device;
  size_t element = lm_dtype_size(dtype);
  if (!lay_out(t, ndim, size, order, element)) TRY(fail_bad_sizes(ndim, size));
  lm_tensor *home = next_out;
  if (home && has_layout_of(t, home)) {
    next_out = NULL;
    lm_storage_retain(home->storage);
    t->storage = home->storage;
    t->data = home->data;
  } else {
    TRY(new_storage(device, (size_t)t->numel * element, &t->storage));
    t->data = t->storage->data;
  }
  *out = t;
done:
  if (status != LM_OK) lm_header_put(t);
  return status;
}

static const int8_t channels_last_order[4] = {1, 3, 2, 0}; /* innermost first: C, W, H, N */

lm_status lm_tensor_empty(lm_dtype dtype, lm_device device, int ndim, const int64_t *size, lm_format format,
                          lm_tensor **out) {
  *out = NULL;
  if (format == LM_CHANNELS_LAST && ndim != 4)
    return lm_fail(LM_E_ARG, "the shape must be [N, C, H, W] for channels_last, got %s", lm_shape_text(ndim, size));
  return new_dense(dtype, device, ndim, size, format == LM_CHANNELS_LAST ? channels_last_order : NULL, out);
}

/* Returns 1 if dim a lies outside dim b in t's memory, -1 if inside, 0 if undecided: PyTorch's infer_dense_strides, in
 * which expanded dims (stride 0) compare with nothing and equal strides leave the larger size outside. */
static int compare_dims(const lm_tensor *t, int a, int b) {
  if (t->stride[a] == 0 || t->stride[b] == 0) return 0;
  if (t->stride[a] != t->stride[b]) return t->stride[a] > t->stride[b] ? 1 : -1;
  return t->size[a] > t->size[b] ? 1 : 0;
}

/* Writes t's dims to order, innermost first. */
static void write_memory_order(const lm_tensor *t, int8_t *order) {
  int n = t->ndim;
  for (int i = 0; i < n; i++) order[i] = (int8_t)(n - 1 - i);
  for (int i = 1; i < n; i++) {
    int moving = i;
    for (int j = i - 1; j >= 0; j--) {
      int o = compare_dims(t, order[j], order[moving]);
      if (o < 0) break;
      if (o == 0) continue;
      int8_t dim = order[j];
      order[j] = order[moving];
      order[moving] = dim;
      moving = j;
    }
  }
}

lm_status lm_tensor_empty_like(const lm_tensor *like, lm_dtype dtype, lm_device device, lm_tensor **out) {
  if (lm_is_contiguous(like)) return new_dense(dtype, device, like->ndim, like->size, NULL, out);
  int8_t order[LM_MAX_DIMS];
  write_memory_order(like, order);
  lm_status status = new_dense(dtype, device, like->ndim, like->size, order, out);
  /* Dims of size 1 may have any stride; a dense tensor's are copied unchanged. */
  if (status == LM_OK && lm_is_dense(like)) memcpy((*out)->stride, like->stride, sizeof like->stride);
  return status;
}

lm_status lm_tensor_view(lm_tensor *t, int ndim, const int64_t *size, const int64_t *stride, int64_t offset,
                         lm_tensor **out) {
  *out = NULL;
  if (ndim < 0 || ndim > LM_MAX_DIMS) return fail_bad_sizes(ndim, size);
  int64_t element = (int64_t)lm_dtype_size(t->dtype), numel = 1, first, last = offset, end;
  bool fits = true;
  for (int d = 0; d < ndim; d++) {
    if (size[d] < 0) return fail_bad_sizes(ndim, size);
    if (stride[d] < 0) return lm_fail_int("view", lm_text("stride of dim %d", d + 1), "at least 0", stride[d]);
    if (__builtin_mul_overflow(numel, size[d], &numel)) return fail_bad_sizes(ndim, size);
    int64_t reach;
    fits =
        fits && !__builtin_mul_overflow(size[d] - 1, stride[d], &reach) && !__builtin_add_overflow(last, reach, &last);
  }
  /* An empty view reads nothing, wherever it points. */
  if (numel == 0) {
    offset = 0;
  } else {
    int64_t start = t->data - (char *)t->storage->data;
    fits = fits && !__builtin_mul_overflow(offset, element, &first) && !__builtin_add_overflow(start, first, &first) &&
           !__builtin_mul_overflow(last, element, &end) && !__builtin_add_overflow(start + element, end, &end);
    if (!fits || first < 0 || end > (int64_t)t->storage->bytes)
      return lm_fail_value("view", "size and strides", lm_text("within a storage of %zu bytes", t->storage->bytes),
                           lm_text("%s and %s from element %lld", lm_shape_text(ndim, size),
                                   lm_shape_text(ndim, stride), (long long)offset));
  }
  lm_tensor *v = lm_header_take();
  if (!v) return LM_E_OOM;
  v->dtype = t->dtype;
  v->device = t->device;
  v->ndim = (uint8_t)ndim;
  v->numel = numel;
  for (int d = 0; d < ndim; d++) {
    v->size[d] = size[d];
    v->stride[d] = stride[d];
  }
  lm_storage_retain(t->storage);
  v->storage = t->storage;
  v->data = t->data ? t->data + offset * element : NULL;
  *out = v;
  return LM_OK;
}

lm_status lm_tensor_view_as(lm_tensor *t, lm_dtype dtype, int ndim, const int64_t *size, const int64_t *stride,
                            size_t at, lm_tensor **out) {
  lm_tensor base = {.dtype = dtype, .device = t->device, .storage = t->storage, .data = t->data};
  *out = NULL;
  if (at > lm_nbytes(t)) {
    return lm_fail_int("view", "the byte offset", lm_text("at most %zu", lm_nbytes(t)), (int64_t)at);
  }
  if (base.data) base.data += at;
  if ((uintptr_t)base.data % lm_dtype_size(dtype) != 0) {
    return lm_fail_int("view", "the byte offset",
                       lm_text("aligned to %s's %zu bytes", lm_dtype_name(dtype), lm_dtype_size(dtype)), (int64_t)at);
  }
  return lm_tensor_view(&base, ndim, size, stride, 0, out);
}

lm_status lm_tensor_foreign(lm_dtype dtype, lm_device device, int ndim, const int64_t *size, void *data, size_t bytes,
                            void (*release)(void *owner), void *owner, lm_tensor **out) {
  lm_status status = LM_OK;
  size_t element = lm_dtype_size(dtype);
  lm_tensor *t = lm_header_take();
  *out = NULL;
  if (!t) TRY(LM_E_OOM);
  if (!lay_out(t, ndim, size, NULL, element)) TRY(fail_bad_sizes(ndim, size));
  if ((size_t)t->numel * element > bytes)
    TRY(lm_fail_int("foreign tensor", "memory",
                    lm_text("at least %lld bytes for %s of %s", (long long)t->numel * (long long)element,
                            lm_shape_text(ndim, size), lm_dtype_name(dtype)),
                    (int64_t)bytes));
  if ((uintptr_t)data & (element - 1))
    TRY(lm_fail(LM_E_ARG, "foreign tensor: memory of %s must be aligned to %zu bytes", lm_dtype_name(dtype), element));
  lm_storage *s = lm_storage_take();
  if (!s) TRY(LM_E_OOM);
  s->device = t->device = device;
  s->bytes = bytes;
  s->data = data;
  s->foreign_release = release;
  s->owner = owner;
  t->dtype = dtype;
  t->storage = s;
  t->data = data;
  *out = t;
done:
  if (status != LM_OK) {
    if (t) lm_header_put(t);
    release(owner);
  }
  return status;
}

static void release_whole(void *owner) { lm_storage_release(owner); }

lm_status lm_tensor_part(lm_tensor *t, lm_dtype dtype, int ndim, const int64_t *size, size_t at, lm_tensor **out) {
  lm_storage *whole = t->storage->whole ? t->storage->whole : t->storage;
  size_t end = (size_t)((char *)t->storage->data + t->storage->bytes - t->data);
  *out = NULL;
  if (at > end) return lm_fail_int("part of a tensor", "the byte offset", lm_text("at most %zu", end), (int64_t)at);
  lm_storage_retain(whole);
  NEED(lm_tensor_foreign(dtype, t->device, ndim, size, t->data + at, end - at, release_whole, whole, out));
  (*out)->storage->bytes = (size_t)(*out)->numel * lm_dtype_size(dtype);
  (*out)->storage->whole = whole;
  (*out)->storage->era = whole->era;
  return LM_OK;
}

lm_status lm_tensor_set_source(lm_tensor *t, const lm_tensor *from, lm_source source) {
  lm_source *s = lm_malloc(sizeof *s);
  if (!s) {
    source.release(source.ctx);
    return LM_E_OOM;
  }
  *s = source;
  atomic_init(&s->rc, 1);
  s->version = lm_version(from);
  if (t->storage->source) release_source(t->storage->source);
  t->storage->source = s;
  int writer = atomic_load_explicit(&from->storage->writer, memory_order_relaxed);
  atomic_store_explicit(&t->storage->writer, writer, memory_order_relaxed);
  atomic_store_explicit(&t->storage->version, s->version, memory_order_relaxed);
  return LM_OK;
}

lm_status lm_tensor_placeholder(lm_tensor *t, lm_tensor **out) {
  lm_storage *s;
  NEED(new_storage(t->device, 0, &s));
  lm_status status = lm_tensor_view(t, t->ndim, t->size, t->stride, 0, out);
  if (status != LM_OK) {
    lm_storage_release(s);
    return status;
  }
  s->data = NULL;
  s->source = t->storage->source;
  atomic_fetch_add_explicit(&s->source->rc, 1, memory_order_relaxed);
  atomic_store_explicit(&s->version, lm_version(t), memory_order_relaxed);
  lm_storage_release((*out)->storage);
  (*out)->storage = s;
  (*out)->data = (char *)(t->data - (char *)t->storage->data); /* an offset, until the memory is fetched */
  return LM_OK;
}

lm_status lm_tensor_fetch_source(const lm_tensor *placeholder, lm_tensor **out) {
  const lm_source *source = placeholder->storage->source;
  LM_OWNED *full = NULL;
  NEED(source->fetch(source->ctx, NULL, &full));
  size_t offset = (size_t)placeholder->data;
  if (!full || full->device != placeholder->device || offset > full->storage->bytes)
    return lm_fail(LM_E_STATE, "backward: a saved tensor cannot be fetched: its source returned another tensor");
  lm_tensor base = {.dtype = placeholder->dtype, .device = full->device, .storage = full->storage};
  base.data = (char *)full->storage->data + offset;
  return lm_tensor_view(&base, placeholder->ndim, placeholder->size, placeholder->stride, 0, out);
}

lm_status lm_tensor_at(lm_storage *s, lm_dtype dtype, lm_device device, int ndim, const int64_t *size,
                       const int64_t *stride, int64_t at, lm_tensor **out) {
  lm_tensor *t = lm_header_take();
  *out = NULL;
  if (!t) return LM_E_OOM;
  lm_status status = LM_OK;
  if (s)
    lm_storage_retain(s);
  else if ((status = new_storage(device, 0, &s)) == LM_OK)
    s->data = NULL;
  if (status != LM_OK) {
    lm_header_put(t);
    return status;
  }
  t->dtype = dtype;
  t->device = device;
  t->ndim = (uint8_t)ndim;
  t->numel = 1;
  for (int d = 0; d < ndim; d++) {
    t->size[d] = size[d];
    t->stride[d] = stride[d];
    t->numel *= size[d];
  }
  t->storage = s;
  t->data = s->data ? (char *)s->data + at : (char *)at;
  *out = t;
  return LM_OK;
}

void lm_tensor_move(lm_tensor *t, lm_storage *s, int64_t at) {
  lm_storage *before = t->storage;
  lm_storage_retain(s);
  t->storage = s;
  t->data = s->data ? (char *)s->data + at : NULL;
  lm_storage_release(before);
}

lm_status lm_tensor_number(double value, lm_tensor **out) {
  bool integral = value >= -0x1p63 && value < 0x1p63 && value == trunc(value);
  NEED(new_dense(integral ? LM_I64 : LM_F64, LM_CPU, 0, NULL, NULL, out));
  (*out)->number = true;
  if (integral) {
    *(int64_t *)(*out)->data = (int64_t)value;
  } else {
    *(double *)(*out)->data = value;
  }
  return LM_OK;
}

void lm_tensor_set_data(lm_tensor *t, lm_tensor *from) {
  if (t == from) return;
  lm_storage *old = t->storage;
  /* A new version shows to those that saved t's version that values may differ. */
  uint32_t version = lm_version(t) + 1;
  if (lm_version(from) < version) {
    atomic_store_explicit(&from->storage->writer, LM_BY_SET_DATA, memory_order_relaxed);
    atomic_store_explicit(&from->storage->version, version, memory_order_relaxed);
  }
  lm_storage_retain(from->storage);
  t->storage = from->storage;
  t->data = from->data;
  t->dtype = from->dtype;
  t->device = from->device;
  t->ndim = from->ndim;
  t->numel = from->numel;
  memcpy(t->size, from->size, sizeof t->size);
  memcpy(t->stride, from->stride, sizeof t->stride);
  lm_storage_release(old);
}

/* ---- reading on the host */

lm_status lm_tensor_fetch(const lm_tensor *t, size_t bytes, void *out) {
  lm_stream *s = lm_stream_current(t->device);
  if (!s) return LM_E_STATE; /* the driver recorded the message */
  if (lm_graph_capturing())
    return lm_fail(
        LM_E_STATE,
        "graph: cannot read a value on %s during capture; leave :item(), print and copies to the host out of the graph",
        lm_device_name(t->device));
  NEED(lm_use_read(lm_tensor_used(t), s));
  uint64_t given = lm_stream_given(s);
  NEED(lm_driver_of(t->device)->copy(s->native, LM_CPU, out, t->device, t->data, bytes, false));
  lm_stream_done(s, given);
  return LM_OK;
}

typedef union element { /* large enough for any dtype */
  int64_t i64;
  double f64;
} element;

/* Copies the bytes of a one-element tensor to the host. */
static lm_status fetch_element(const lm_tensor *t, element *out) {
  if (t->numel != 1) return lm_fail_value("item", "x", "a tensor of one element", lm_text("shape %s", lm_shape_of(t)));
  size_t bytes = lm_dtype_size(t->dtype);
  if (LM_DEVICE_KIND(t->device) != LM_CPU) return lm_tensor_fetch(t, bytes, out);
  memcpy(out, t->data, bytes);
  return lm_truncation_check();
}

lm_status lm_tensor_item_f64(const lm_tensor *t, double *out) {
  element e;
  if (watcher()) watcher()->read(watcher(), t);
  NEED(fetch_element(t, &e));
  lm_dtype dtype = t->dtype;
  *out = lm_dtype_is_float(dtype) ? lm_real_at(dtype, &e, 0) : (double)lm_integer_at(dtype, &e, 0);
  return LM_OK;
}

lm_status lm_tensor_item_i64(const lm_tensor *t, int64_t *out) {
  element e;
  double value;
  if (t->dtype == LM_I64) {
    if (watcher()) watcher()->read(watcher(), t);
    lm_status status = fetch_element(t, &e);
    if (status == LM_OK) *out = e.i64;
    return status;
  }
  NEED(lm_tensor_item_f64(t, &value));
  if (!(value >= -0x1p63 && value < 0x1p63))
    return lm_fail_number("item", "the value", "within the range of int64", value);
  *out = (int64_t)value;
  return LM_OK;
}
