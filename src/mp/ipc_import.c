#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/graph.h"
#include "mp/datagram.h"
#include "mp/ipc_core.h"

struct lm_ipc_import {
  uint32_t n;
  lm_ipc_refcount **refcounts;
  char waited[LM_IPC_BYTES]; /* the event waited for last, on `device` */
  lm_device device;
};

void lm_ipc_import_free(lm_ipc_import *b) {
  if (!b) return;
  for (uint32_t i = 0; i < b->n; i++) lm_ipc_refcount_release(b->refcounts[i]);
  lm_free(b->refcounts);
  lm_free(b);
}

lm_status lm_ipc_import_new(uint32_t n, const int *fds, lm_ipc_import **out) {
  lm_status status = n > 0 ? lm_ipc_thread_start() : LM_OK;
  uint32_t at = 0;
  *out = NULL;
  lm_ipc_import *b = lm_calloc(1, sizeof *b);
  if (b) b->refcounts = lm_calloc(n, sizeof *b->refcounts);
  if (!b || !b->refcounts) status = LM_E_OOM;
  for (; at < n && status == LM_OK; at++) {
    lm_ipc_refcount *l = lm_calloc(1, sizeof *l);
    if (!l) {
      status = LM_E_OOM;
      break;
    }
    *l = (lm_ipc_refcount){1, fds[at]};
    b->refcounts[b->n++] = l;
  }
  for (; at < n; at++) close(fds[at]);
  if (status == LM_OK) {
    *out = b;
    b = NULL;
  }
  lm_ipc_import_free(b);
  return status;
}

/* Returns a view of the original, which is still in exported_list. */
static lm_status import_original(const lm_ipc_location *at, size_t bytes, lm_tensor **out) {
  LM_OWNED *t = NULL;
  pthread_mutex_lock(&lm_ipc_thread.lock);
  lm_ipc_exported *l = lm_ipc_thread.exported_list;
  while (l && l->number != at->exported) l = l->next;
  if (l && at->index < (uint32_t)l->n) t = lm_retain(l->tensors[at->index]);
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  if (!t || t->storage->bytes != bytes) return lm_datagram_malformed();
  int64_t element = (int64_t)lm_dtype_size(t->dtype);
  return lm_tensor_view(t, 1, &(int64_t){1}, &(int64_t){1}, -((t->data - (char *)t->storage->data) / element), out);
}

static lm_status import_wait_for(lm_ipc_import *b, const char *handle, lm_device device, lm_stream *s) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(device);
  void *event = NULL;
  if (b->device == device && memcmp(b->waited, handle, LM_IPC_BYTES) == 0) return LM_OK;
  TRY(driver->ipc_event_open(lm_device_physical(device), handle, &event));
  TRY(lm_stream_wait_foreign(s, event));
  memcpy(b->waited, handle, LM_IPC_BYTES);
  b->device = device;
done:
  if (event) driver->event_destroy(lm_device_physical(device), event);
  return status;
}

lm_status lm_ipc_import_tensor(lm_ipc_import *b, lm_reader *r, lm_device device, size_t bytes, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_ipc_tensor_header m;
  lm_ipc_imported *imported = NULL;
  *out = NULL;
  if (!lm_get(r, &m, sizeof m) || m.refcount >= b->n || !lm_ipc_is_supported(device)) return lm_datagram_malformed();
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE, "a tensor on %s cannot be received while a graph is captured", lm_device_name(device));
  bool is_own = memcmp(m.at.owner, lm_ipc_thread.self, sizeof lm_ipc_thread.self) == 0;
  if (!is_own && lm_ipc_owner_has_ended(b->refcounts[m.refcount])) return lm_ipc_owner_error(device);
  imported = lm_calloc(1, sizeof *imported);
  if (!imported) return LM_E_OOM;
  *imported = (lm_ipc_imported){.at = m.at, .device = device};
  if (is_own) {
    TRY(import_original(&m.at, bytes, out));
    imported->device = device = (*out)->device;
  } else {
    TRY(lm_ipc_mapping_open(device, m.at.handle, &imported->map));
    imported->owners[0] = lm_ipc_refcount_retain(b->refcounts[m.refcount]);
    imported->owners[1] = lm_ipc_refcount_retain(b->refcounts[0]);
    lm_ipc_imported *owner = imported;
    imported = NULL;
    TRY(lm_tensor_foreign(LM_U8, device, 1, &(int64_t){(int64_t)bytes}, owner->map->base + m.at.offset, bytes,
                          lm_ipc_imported_release, owner, out));
    owner->storage = (*out)->storage;
  }
  lm_stream *s = lm_stream_current(device);
  if (!s) TRY(LM_E_STATE);
  bool from_elsewhere = memcmp(m.sender, lm_ipc_thread.self, sizeof lm_ipc_thread.self) != 0;
  if (from_elsewhere && m.has_event && !lm_ipc_owner_has_ended(b->refcounts[0]))
    TRY(import_wait_for(b, m.event, device, s));
  if (from_elsewhere) TRY(lm_use_write(lm_tensor_used(*out), s)); /* the sender may have written the memory */
  if (is_own && from_elsewhere) { /* the sender must keep its event until this stream's wait has passed */
    imported->owners[0] = lm_ipc_refcount_retain(b->refcounts[0]);
    imported->used = atomic_load(lm_tensor_used(*out));
    lm_ipc_imported_queue_return(imported);
    imported = NULL;
  }
done:
  lm_free(imported);
  if (status != LM_OK) {
    lm_release(*out);
    *out = NULL;
  }
  return status;
}
