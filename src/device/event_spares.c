/* Keeps drivers' events for reuse. */

#include "base/mem.h"
#include "base/thread.h"
#include "device/stream_core.h"

/* A freed event, kept for reuse: a finalizer, which must not call the driver, may free one. */
typedef struct spare {
  void *native;
  struct spare *next;
} spare;

typedef struct spares {
  pthread_mutex_t lock;
  spare *event[2]; /* indexed by `timing` */
  spare *empty;    /* nodes without an event */
} spares;

static spares tables[LM_DEVICE_KINDS][LM_DEVICE_MAX] = {[0 ... LM_DEVICE_KINDS - 1][0 ... LM_DEVICE_MAX - 1].lock =
                                                            PTHREAD_MUTEX_INITIALIZER};

/* Returns the spare events of the physical device, which the virtual devices of a card share. */
static spares *spares_of(lm_device device) { return &tables[LM_DEVICE_KIND(device)][lm_device_physical(device)]; }

static void move_first(spare **from, spare **to) {
  spare *s = *from;
  *from = s->next;
  s->next = *to;
  *to = s;
}

void *lm_event_take(lm_device device, bool timing) {
  spares *k = spares_of(device);
  void *native = NULL;
  LM_LOCKED(&k->lock);
  if (k->event[timing]) {
    native = k->event[timing]->native;
    move_first(&k->event[timing], &k->empty);
  }
  return native;
}

void lm_event_put(lm_device device, bool timing, void *native) {
  spares *k = spares_of(device);
  pthread_mutex_lock(&k->lock);
  spare *s = k->empty;
  if (s || (s = lm_malloc(sizeof *s))) {
    if (s == k->empty) k->empty = s->next;
    *s = (spare){native, k->event[timing]};
    k->event[timing] = s;
    native = NULL;
  }
  pthread_mutex_unlock(&k->lock);
  if (native) lm_driver_of(device)->event_destroy(lm_device_physical(device), native);
}
