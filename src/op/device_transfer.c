/* Copies between any two tensors of equal sizes: within a device by its backend, between devices as bytes. */
#include <string.h>

#include "base/message.h"
#include "device/alloc.h"
#include "device/graph.h"
#include "device/stream_core.h"
#include "op/check.h"
#include "op/stream_order.h"

static bool on_host(const lm_tensor *t) { return LM_DEVICE_KIND(t->device) == LM_CPU; }

static lm_status copy_here(const lm_tensor *src, lm_tensor *dst) {
  const lm_backend *backend = lm_backend_of(dst->device);
  if (!backend) return LM_E_MISSING;
  if (!backend->copy) return lm_fail_missing("copy_", lm_device_name(dst->device));
  return lm_is_ordered(dst->device) ? lm_ordered_copy(backend, src, dst) : backend->copy(src, dst);
}

/* Copies between devices on stream s. With `later`, pinned host memory may still be read or written on return. */
static lm_status wait_and_copy(lm_stream *s, const lm_tensor *src, lm_tensor *dst, bool later) {
  const void *host = on_host(src) ? src->data : on_host(dst) ? dst->data : NULL;
  later = later && host && lm_is_pinned(host);
  if (host && !later && lm_graph_capturing())
    return lm_fail(LM_E_STATE,
                   "graph: cannot copy between %s and %s during capture, except pinned memory with {non_blocking = "
                   "true}; move the copy out of the graph",
                   lm_device_name(src->device), lm_device_name(dst->device));
  NEED(lm_stream_order_read(s, src));
  NEED(lm_stream_order_write(s, dst));
  uint64_t given = lm_stream_given(s);
  lm_status status =
      lm_driver_of(s->device)->copy(s->native, dst->device, dst->data, src->device, src->data, lm_nbytes(dst), later);
  if (later) lm_pinned_use(host, s);
  if (on_host(dst) && !later && status == LM_OK) lm_stream_done(s, given);
  return lm_stream_order_end(s, status);
}

/* Copies src's bytes to dst, of the same layout on another device, ordered on both devices' streams. */
static lm_status copy_across(const lm_tensor *src, lm_tensor *dst, bool later) {
  size_t bytes = lm_nbytes(dst);
  if (on_host(src) && on_host(dst))
    return lm_driver_of(dst->device)->copy(NULL, dst->device, dst->data, src->device, src->data, bytes, false);
  lm_stream *s = lm_stream_current(on_host(dst) ? src->device : dst->device), *other = NULL;
  if (!s) return LM_E_STATE; /* the driver recorded the message */
  NEED(lm_graph_join(s));
  if (!on_host(src) && !on_host(dst)) {
    if (!(other = lm_stream_current(src->device))) return LM_E_STATE;
    NEED(lm_graph_join(other));
    NEED(lm_stream_order_read(other, src));
    NEED(lm_stream_wait(s, other));
  }
  NEED(wait_and_copy(s, src, dst, later));
  if (other) NEED(lm_stream_wait(other, s)); /* src's stream must not write to src before it was read */
  return LM_OK;
}

/* Sets *out to t, or to a dense copy of it (*copy) in another dtype or in the layout of `like`, on t's device. */
static lm_status dense_on_own_device(const lm_tensor *t, const lm_tensor *like, lm_dtype dtype, lm_tensor **copy,
                                     const lm_tensor **out) {
  *out = t;
  if (t->dtype == dtype && lm_same_layout(t, like)) return LM_OK;
  NEED(lm_tensor_empty_like(like, dtype, t->device, copy));
  NEED(copy_here(t, *copy));
  *out = *copy;
  return LM_OK;
}

/* Copies from the host. The device converts, which is faster and reads pinned memory without a host copy. */
static lm_status to_device(const lm_tensor *src, lm_tensor *dst, bool later) {
  LM_OWNED *copy = NULL, *landing = NULL;
  const lm_tensor *from = src;
  if (!lm_is_dense(src)) NEED(dense_on_own_device(src, dst, src->dtype, &copy, &from));
  if (from->dtype == dst->dtype && lm_same_layout(from, dst)) return copy_across(from, dst, later && from == src);
  NEED(lm_tensor_empty_like(from, from->dtype, dst->device, &landing));
  NEED(copy_across(from, landing, later && from == src));
  return copy_here(landing, dst);
}

static lm_status copy_from_device(const lm_tensor *src, lm_tensor *dst, bool later) {
  LM_OWNED *copy = NULL, *landing = NULL;
  const lm_tensor *from;
  if (!lm_is_dense(dst)) NEED(lm_tensor_empty_like(dst, dst->dtype, dst->device, &landing));
  lm_tensor *to = landing ? landing : dst;
  NEED(dense_on_own_device(src, to, dst->dtype, &copy, &from));
  NEED(copy_across(from, to, later && !landing));
  if (landing) NEED(copy_here(landing, dst));
  return LM_OK;
}

/* Copies through the host between two kinds of devices, whose drivers cannot reach each other. */
static lm_status through_host(const lm_tensor *src, lm_tensor *dst) {
  LM_OWNED *copy = NULL;
  NEED(lm_tensor_empty_like(src, dst->dtype, LM_DEVICE(LM_CPU, 0), &copy));
  NEED(copy_from_device(src, copy, false));
  return to_device(copy, dst, false);
}

lm_status lm_copy_later(const lm_tensor *src, lm_tensor *dst, bool later) {
  if (dst->numel == 0) return LM_OK;
  if (src->device == dst->device) return copy_here(src, dst);
  if (!lm_backend_of(src->device) || !lm_backend_of(dst->device)) return LM_E_MISSING;
  bool kinds_differ = LM_DEVICE_KIND(src->device) != LM_DEVICE_KIND(dst->device);
  if (on_host(src) && kinds_differ) return to_device(src, dst, later);
  if (!on_host(dst) && kinds_differ) return through_host(src, dst);
  return copy_from_device(src, dst, later);
}

lm_status lm_copy(const lm_tensor *src, lm_tensor *dst) { return lm_copy_later(src, dst, false); }
