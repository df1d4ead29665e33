/* Frees exported memory and closes imported memory; counts the owners' pipes that both hold. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"
#include "device/graph.h"
#include "device/segments.h"
#include "mp/ipc_core.h"

struct lm_ipc_thread lm_ipc_thread = {.lock = PTHREAD_MUTEX_INITIALIZER, .wakeup_fd = -1, .epoll_fd = -1};

bool lm_ipc_is_supported(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  return driver && driver->ipc_export && lm_is_segmented(driver);
}

/* ---- pipes */

lm_ipc_refcount *lm_ipc_refcount_retain(lm_ipc_refcount *l) {
  LM_LOCKED(&lm_ipc_thread.lock);
  l->rc++;
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

/* Polls the writing end: POLLERR if the process of the pipe's reading end has ended. */
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

/* ---- exported memory */

/* Maximum number of open events: a driver has some 20,000 for other processes, and then fails. */
enum { MAX_EVENTS = 512 };
static _Atomic int nevents;

static void destroy_events(const lm_ipc_exported *l) {
  for (int i = 0; i < l->nevents; i++) {
    lm_device device = l->events[i].device;
    if (!l->events[i].event) continue;
    lm_driver_of(device)->event_destroy(lm_device_physical(device), l->events[i].event);
    atomic_fetch_sub(&nevents, 1);
  }
}

void lm_ipc_exported_free(lm_ipc_exported *l) {
  if (!l) return;
  if (l->fd >= 0) close(l->fd);
  destroy_events(l);
  for (int i = 0; i < l->n; i++) lm_release(l->tensors[i]);
  lm_free(l->tensors);
  lm_free(l->events);
  lm_free(l);
}

/* Returns true if all events are reached; until then a stream of another process may wait for one. On a failed device
 * they count as reached. */
bool lm_ipc_exported_is_done(const lm_ipc_exported *l) {
  for (int i = 0; i < l->nevents; i++) {
    lm_device device = l->events[i].device;
    bool done = true;
    void *event = l->events[i].event;
    if (event && lm_driver_of(device)->event_query(lm_device_physical(device), event, &done) != LM_OK) done = true;
    if (!done) return false;
  }
  return true;
}

lm_status lm_ipc_exported_record_event(lm_ipc_exported *l, lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  int ordinal = lm_device_physical(device);
  lm_stream *s = lm_stream_current(device);
  if (!s) return LM_E_STATE;
  struct lm_ipc_exported_event *m = &l->events[l->nevents];
  *m = (struct lm_ipc_exported_event){.device = device};
  for (int i = 0; i < l->n; i++) {
    const lm_tensor *t = l->tensors[i];
    if (t && t->device == device) NEED(lm_use_read(lm_tensor_used(t), s));
  }
  if (atomic_load(&nevents) < MAX_EVENTS) NEED(driver->ipc_event_create(ordinal, &m->event));
  l->nevents++;
  if (m->event) {
    atomic_fetch_add(&nevents, 1);
    NEED(driver->event_record(ordinal, m->event, s->native));
    NEED(driver->ipc_event_export(ordinal, m->event, m->handle));
  } else {
    NEED(lm_stream_synchronize(s));
  }
  return LM_OK;
}

/* ---- imported memory */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* protects the mappings */
static lm_ipc_mapping *mappings;

lm_status lm_ipc_mapping_open(lm_device device, const char *handle, lm_ipc_mapping **out) {
  int ordinal = lm_device_physical(device);
  void *base = NULL;
  LM_LOCKED(&opening);
  for (*out = mappings; *out; *out = (*out)->next) {
    if ((*out)->ordinal != ordinal || LM_DEVICE_KIND((*out)->device) != LM_DEVICE_KIND(device)) continue;
    if (memcmp((*out)->handle, handle, LM_IPC_BYTES) != 0) continue;
    (*out)->rc++;
    return LM_OK;
  }
  LM_FREED lm_ipc_mapping *m = lm_calloc(1, sizeof *m);
  if (!m) return LM_E_OOM;
  NEED(lm_driver_of(device)->ipc_open(ordinal, handle, &base));
  *m = (lm_ipc_mapping){.rc = 1, .ordinal = ordinal, .device = device, .base = base, .next = mappings};
  memcpy(m->handle, handle, LM_IPC_BYTES);
  mappings = *out = m;
  m = NULL;
  return LM_OK;
}

/* Drops a reference to a mapping. False during a capture, which closing would break: try again later. */
static bool release_mapping(lm_ipc_mapping *m) {
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
  for (int i = 0; i < 2; i++) lm_ipc_refcount_release(b->owners[i]);
  lm_free(b);
  return true;
}

void lm_ipc_imported_queue_return(lm_ipc_imported *b) {
  pthread_mutex_lock(&lm_ipc_thread.lock);
  b->next = lm_ipc_thread.returned;
  lm_ipc_thread.returned = b;
  lm_ipc_thread.nreturned++;
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  lm_wakeup_fd_signal(lm_ipc_thread.wakeup_fd);
}

void lm_ipc_imported_release(void *owner) {
  lm_ipc_imported *b = owner;
  b->used = b->storage ? atomic_load(&b->storage->used) : 0;
  lm_ipc_imported_queue_return(b);
}

lm_ipc_imported *lm_ipc_imported_of(const lm_storage *s) {
  return s->foreign_release == lm_ipc_imported_release ? (lm_ipc_imported *)s->owner : NULL;
}
