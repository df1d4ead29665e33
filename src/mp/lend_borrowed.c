#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"
#include "device/graph.h"
#include "mp/lend_core.h"

typedef struct mapping { /* memory of another process's, opened once */
  int rc, ordinal;
  lm_device device;
  char handle[LM_IPC_BYTES];
  char *base;
  struct mapping *next;
} mapping;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of the mappings */
static mapping *mappings;

lm_lease *lm_lease_retain(lm_lease *l) {
  pthread_mutex_lock(&lm_keeper.lock);
  l->rc++;
  pthread_mutex_unlock(&lm_keeper.lock);
  return l;
}

void lm_lease_release(lm_lease *l) {
  if (!l) return;
  pthread_mutex_lock(&lm_keeper.lock);
  bool last = --l->rc == 0;
  pthread_mutex_unlock(&lm_keeper.lock);
  if (!last) return;
  close(l->fd);
  lm_free(l);
}

/* The others' ends of the pipe are closed: the process has ended. */
bool lm_lender_has_gone(const lm_lease *l) {
  struct pollfd p = {.fd = l->fd};
  return poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

lm_status lm_lender_gone(lm_device device) {
  return lm_fail(LM_E_STATE,
                 "the process that a tensor's memory on %s belonged to has ended, and the memory with it: "
                 "the sender has to live until others have let go",
                 lm_device_name(device));
}

/* ---- going back */

/* Closing a mapping would break captures: false, and to be tried again, while there is one. */
static bool release_mapping(mapping *m) {
  if (!lm_graph_block()) return false;
  pthread_mutex_lock(&opening);
  bool last = --m->rc == 0;
  if (last) {
    mapping **at = &mappings;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
  }
  pthread_mutex_unlock(&opening);
  if (last) { /* it waits for all that the device was given, which may wait for what the script is yet to receive */
    lm_driver_of(m->device)->ipc_close(m->ordinal, m->base);
    lm_free(m);
  }
  lm_graph_unblock();
  return true;
}

/* The memory goes back once the device is through with it; false: not yet. What a device that has failed was given is
 * over, too. */
bool lm_borrowed_give_back(lm_borrowed *b) {
  bool over;
  if (lm_use_is_over(b->device, &b->used, &b->mark, &over) == LM_OK && !over) return false;
  if (b->map && !release_mapping(b->map)) return false;
  for (int i = 0; i < 2; i++) lm_lease_release(b->of[i]);
  lm_free(b);
  return true;
}

static void give_to_keeper(lm_borrowed *b) {
  pthread_mutex_lock(&lm_keeper.lock);
  b->next = lm_keeper.returned;
  lm_keeper.returned = b;
  lm_keeper.nreturned++;
  pthread_mutex_unlock(&lm_keeper.lock);
  lm_wakeup_fd_signal(lm_keeper.wakeup_fd);
}

/* Finalizers come here: no driver is called. */
static void return_borrowed(void *owner) {
  lm_borrowed *b = owner;
  b->used = b->storage ? atomic_load(&b->storage->used) : 0;
  give_to_keeper(b);
}

lm_borrowed *lm_borrowed_of(const lm_storage *s) {
  return s->foreign_release == return_borrowed ? (lm_borrowed *)s->owner : NULL;
}

/* ---- borrowing */

struct lm_borrowing {
  uint32_t n;
  lm_lease **leases;
  char waited[LM_IPC_BYTES]; /* for this event on that device last */
  lm_device device;
};

void lm_borrowing_free(lm_borrowing *b) {
  if (!b) return;
  for (uint32_t i = 0; i < b->n; i++) lm_lease_release(b->leases[i]);
  lm_free(b->leases);
  lm_free(b);
}

lm_status lm_borrowing_new(uint32_t n, const int *fds, lm_borrowing **out) {
  lm_status status = n > 0 ? lm_keeper_start() : LM_OK;
  uint32_t at = 0;
  *out = NULL;
  lm_borrowing *b = lm_calloc(1, sizeof *b);
  if (b) b->leases = lm_calloc(n, sizeof *b->leases);
  if (!b || !b->leases) status = LM_E_OOM;
  for (; at < n && status == LM_OK; at++) {
    lm_lease *l = lm_calloc(1, sizeof *l);
    if (!l) {
      status = LM_E_OOM;
      break;
    }
    *l = (lm_lease){1, fds[at]};
    b->leases[b->n++] = l;
  }
  for (; at < n; at++) close(fds[at]);
  if (status == LM_OK) {
    *out = b;
    b = NULL;
  }
  lm_borrowing_free(b);
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

/* The original, which is lent, so it is there. */
static lm_status borrow_original(const lm_lent_at *at, size_t bytes, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *t = NULL;
  pthread_mutex_lock(&lm_keeper.lock);
  lm_loan *l = lm_keeper.loans;
  while (l && l->number != at->loan) l = l->next;
  if (l && at->index < (uint32_t)l->n) t = lm_retain(l->tensors[at->index]);
  pthread_mutex_unlock(&lm_keeper.lock);
  if (!t || t->storage->bytes != bytes) TRY(lm_fail(LM_E_IO, "the message makes no sense"));
  int64_t element = (int64_t)lm_dtype_size((lm_dtype)t->dtype);
  TRY(lm_tensor_view(t, 1, &(int64_t){1}, &(int64_t){1}, -((t->data - (char *)t->storage->data) / element), out));
done:
  lm_release(t);
  return status;
}

static lm_status borrow_wait_for(lm_borrowing *b, const char *handle, lm_device device, lm_stream *s) {
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

lm_status lm_borrow(lm_borrowing *b, lm_reader *r, lm_device device, size_t bytes, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_lent_message m;
  lm_borrowed *made = NULL;
  *out = NULL;
  if (!lm_get(r, &m, sizeof m) || m.lease >= b->n || !lm_is_lendable(device))
    return lm_fail(LM_E_IO, "the message makes no sense");
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE, "a tensor on %s cannot be received while a graph is captured", lm_device_name(device));
  bool is_own = memcmp(m.at.owner, lm_keeper.self, sizeof lm_keeper.self) == 0;
  if (!is_own && lm_lender_has_gone(b->leases[m.lease])) return lm_lender_gone(device);
  made = lm_calloc(1, sizeof *made);
  if (!made) return LM_E_OOM;
  *made = (lm_borrowed){.at = m.at, .device = device};
  if (is_own) {
    TRY(borrow_original(&m.at, bytes, out));
    made->device = device = (*out)->device;
  } else {
    TRY(open_mapping(device, m.at.handle, &made->map));
    made->of[0] = lm_lease_retain(b->leases[m.lease]);
    made->of[1] = lm_lease_retain(b->leases[0]);
    lm_borrowed *owner = made;
    made = NULL;
    TRY(lm_tensor_foreign(LM_U8, device, 1, &(int64_t){(int64_t)bytes}, owner->map->base + m.at.offset, bytes,
                          return_borrowed, owner, out));
    owner->storage = (*out)->storage;
  }
  lm_stream *s = lm_stream_current(device);
  if (!s) TRY(LM_E_STATE);
  bool from_elsewhere = memcmp(m.sender, lm_keeper.self, sizeof lm_keeper.self) != 0;
  if (from_elsewhere && m.has_event && !lm_lender_has_gone(b->leases[0])) TRY(borrow_wait_for(b, m.event, device, s));
  TRY(lm_use_write(lm_tensor_used(*out), s));
  if (is_own && from_elsewhere) { /* its sender's event stays until the stream has come to wait for it */
    made->of[0] = lm_lease_retain(b->leases[0]);
    made->used = atomic_load(lm_tensor_used(*out));
    give_to_keeper(made);
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
