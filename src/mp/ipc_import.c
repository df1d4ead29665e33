#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"
#include "device/graph.h"
#include "mp/datagram.h"
#include "mp/ipc_core.h"

typedef struct mapping { /* another process's memory, opened once */
  int rc, ordinal;
  lm_device device;
  char handle[LM_IPC_BYTES];
  char *base;
  struct mapping *next;
} mapping;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* protects the mappings */
static mapping *mappings;

lm_ipc_refcount *lm_ipc_refcount_retain(lm_ipc_refcount *l) {
  pthread_mutex_lock(&lm_ipc_thread.lock);
  l->rc++;
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  return l;
}

void lm_ipc_refcount_release(lm_ipc_refcount *l) {
  if (!l) return;
  pthread_mutex_lock(&lm_ipc_thread.lock);
  bool last = --l->rc == 0;
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  if (!last) return;
  close(l->fd);
  lm_free(l);
}

/* The pipe's reading end closes with its process: a poll of the writing end then reports POLLERR. */
bool lm_ipc_owner_has_ended(const lm_ipc_refcount *l) {
  struct pollfd p = {.fd = l->fd};
  return poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

lm_status lm_ipc_owner_error(lm_device device) {
  return lm_fail(LM_E_STATE,
                 "the process that owned a tensor's memory on %s has ended; the sender must live until all receivers "
                 "have released the tensor",
                 lm_device_name(device));
}

/* ---- closing */

/* Drops a reference to a mapping. False during a capture, which closing would break: try again later. */
static bool release_mapping(mapping *m) {
  if (!lm_graph_block()) return false;
  pthread_mutex_lock(&opening);
  bool last = --m->rc == 0;
  if (last) LM_UNLINK(mappings, m);
  pthread_mutex_unlock(&opening);
  if (last) { /* ipc_close waits for all work of the device, which may wait for data the script has yet to receive */
    lm_driver_of(m->device)->ipc_close(m->ordinal, m->base);
    lm_free(m);
  }
  lm_graph_unblock();
  return true;
}

/* Closes the memory once the device has finished with it; false: not yet. A failed device counts as finished. */
bool lm_ipc_imported_return(lm_ipc_imported *b) {
  bool over;
  if (lm_use_is_over(b->device, &b->used, &b->mark, &over) == LM_OK && !over) return false;
  if (b->map && !release_mapping(b->map)) return false;
  for (int i = 0; i < 2; i++) lm_ipc_refcount_release(b->of[i]);
  lm_free(b);
  return true;
}

static void queue_return(lm_ipc_imported *b) {
  pthread_mutex_lock(&lm_ipc_thread.lock);
  b->next = lm_ipc_thread.returned;
  lm_ipc_thread.returned = b;
  lm_ipc_thread.nreturned++;
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  lm_wakeup_fd_signal(lm_ipc_thread.wakeup_fd);
}

/* Releases a storage: finalizers call it, so it calls no driver. */
static void return_imported(void *owner) {
  lm_ipc_imported *b = owner;
  b->used = b->storage ? atomic_load(&b->storage->used) : 0;
  queue_return(b);
}

lm_ipc_imported *lm_ipc_imported_of(const lm_storage *s) {
  return s->foreign_release == return_imported ? (lm_ipc_imported *)s->owner : NULL;
}

/* ---- importing */

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

static lm_status open_mapping(lm_device device, const char *handle, mapping **out) {
  lm_status status = LM_OK;
  int ordinal = lm_device_physical(device);
  void *base = NULL;
  pthread_mutex_lock(&opening);
  mapping *m = mappings;
  while (m && (m->ordinal != ordinal || LM_DEVICE_KIND(m->device) != LM_DEVICE_KIND(device) ||
               memcmp(m->handle, handle, LM_IPC_BYTES) != 0)) {
    m = m->next;
  }
  if (m) {
    m->rc++;
    goto done;
  }
  if (!(m = lm_calloc(1, sizeof *m))) TRY(LM_E_OOM);
  status = lm_driver_of(device)->ipc_open(ordinal, handle, &base);
  if (status != LM_OK) {
    lm_free(m);
    m = NULL;
    goto done;
  }
  *m = (mapping){.rc = 1, .ordinal = ordinal, .device = device, .base = base, .next = mappings};
  memcpy(m->handle, handle, LM_IPC_BYTES);
  mappings = m;
done:
  pthread_mutex_unlock(&opening);
  *out = m;
  return status;
}

/* Returns a view of the original, which is still in exported_list. */
static lm_status import_original(const lm_ipc_location *at, size_t bytes, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *t = NULL;
  pthread_mutex_lock(&lm_ipc_thread.lock);
  lm_ipc_exported *l = lm_ipc_thread.exported_list;
  while (l && l->number != at->exported) l = l->next;
  if (l && at->index < (uint32_t)l->n) t = lm_retain(l->tensors[at->index]);
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  if (!t || t->storage->bytes != bytes) TRY(lm_datagram_malformed());
  int64_t element = (int64_t)lm_dtype_size(t->dtype);
  TRY(lm_tensor_view(t, 1, &(int64_t){1}, &(int64_t){1}, -((t->data - (char *)t->storage->data) / element), out));
done:
  lm_release(t);
  return status;
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
  lm_ipc_imported *made = NULL;
  *out = NULL;
  if (!lm_get(r, &m, sizeof m) || m.refcount >= b->n || !lm_ipc_is_supported(device)) return lm_datagram_malformed();
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE, "a tensor on %s cannot be received while a graph is captured", lm_device_name(device));
  bool is_own = memcmp(m.at.owner, lm_ipc_thread.self, sizeof lm_ipc_thread.self) == 0;
  if (!is_own && lm_ipc_owner_has_ended(b->refcounts[m.refcount])) return lm_ipc_owner_error(device);
  made = lm_calloc(1, sizeof *made);
  if (!made) return LM_E_OOM;
  *made = (lm_ipc_imported){.at = m.at, .device = device};
  if (is_own) {
    TRY(import_original(&m.at, bytes, out));
    made->device = device = (*out)->device;
  } else {
    TRY(open_mapping(device, m.at.handle, &made->map));
    made->of[0] = lm_ipc_refcount_retain(b->refcounts[m.refcount]);
    made->of[1] = lm_ipc_refcount_retain(b->refcounts[0]);
    lm_ipc_imported *owner = made;
    made = NULL;
    TRY(lm_tensor_foreign(LM_U8, device, 1, &(int64_t){(int64_t)bytes}, owner->map->base + m.at.offset, bytes,
                          return_imported, owner, out));
    owner->storage = (*out)->storage;
  }
  lm_stream *s = lm_stream_current(device);
  if (!s) TRY(LM_E_STATE);
  bool from_elsewhere = memcmp(m.sender, lm_ipc_thread.self, sizeof lm_ipc_thread.self) != 0;
  if (from_elsewhere && m.has_event && !lm_ipc_owner_has_ended(b->refcounts[0]))
    TRY(import_wait_for(b, m.event, device, s));
  TRY(lm_use_write(lm_tensor_used(*out), s));
  if (is_own && from_elsewhere) { /* the sender must keep its event until this stream's wait has passed */
    made->of[0] = lm_ipc_refcount_retain(b->refcounts[0]);
    made->used = atomic_load(lm_tensor_used(*out));
    queue_return(made);
    made = NULL;
  }
done:
  lm_free(made);
  if (status != LM_OK) {
    lm_release(*out);
    *out = NULL;
  }
  return status;
}
