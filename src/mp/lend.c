#define _GNU_SOURCE
#include "mp/lend.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/driver.h"
#include "device/known.h"
#include "device/segments.h"

enum { ID_BYTES = 16, CARD_BYTES = 64, KIND_BYTES = 32, AT_EXIT = 3 /* seconds */ };

typedef struct loan { /* what one letter lent */
  uint64_t number;
  int fd; /* of the pipe's reading end */
  int n, nevents;
  lm_tensor **tensors; /* NULL for those on the CPU */
  struct mark {
    lm_device device;
    void *event; /* NULL: the device has none for other processes */
    char handle[LM_IPC_BYTES];
  } * events; /* one a device */
  struct loan *next;
} loan;

typedef struct lease { /* a writing end that came with a letter */
  int rc, fd;
} lease;

typedef struct mapping { /* memory of another process's, opened once */
  int rc, ordinal;
  lm_device device;
  char handle[LM_IPC_BYTES];
  char *base;
  struct mapping *next;
} mapping;

typedef struct place { /* where memory is, for any process */
  char owner[ID_BYTES];
  uint64_t loan;
  uint32_t index;            /* in it */
  char handle[LM_IPC_BYTES]; /* of the segment */
  uint64_t offset;           /* there */
} place;

typedef struct borrowed { /* the owner of a storage over it */
  place at;
  mapping *map;
  lease *of[2]; /* of the owner, and of the letter */
  lm_device device;
  lm_storage *storage; /* valid while the release runs */
  uint64_t used;
  void *mark;
  struct borrowed *next;
} borrowed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows, and of leases' counts */
static loan *loans;
static borrowed *returned;
static int nloans, nreturned, wake = -1;
static uint64_t latest; /* loan's number */
static bool runs, stops;
static pthread_t keeper;
static char self[ID_BYTES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of the mappings */
static mapping *mappings;

int lm_lent(void) {
  pthread_mutex_lock(&lock);
  int n = nloans + nreturned;
  pthread_mutex_unlock(&lock);
  return n;
}

/* ---- ends of what was lent and borrowed */

static void give_events(const loan *l) {
  for (int i = 0; i < l->nevents; i++) {
    lm_device device = l->events[i].device;
    if (l->events[i].event) lm_driver_of(device)->event_destroy(lm_device_physical(device), l->events[i].event);
  }
}

static void free_loan(loan *l) {
  if (!l) return;
  if (l->fd >= 0) close(l->fd);
  give_events(l);
  for (int i = 0; i < l->n; i++) lm_release(l->tensors[i]);
  lm_free(l->tensors);
  lm_free(l->events);
  lm_free(l);
}

static lease *retain_lease(lease *l) {
  pthread_mutex_lock(&lock);
  l->rc++;
  pthread_mutex_unlock(&lock);
  return l;
}

static void release_lease(lease *l) {
  if (!l) return;
  pthread_mutex_lock(&lock);
  bool last = --l->rc == 0;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  close(l->fd);
  lm_free(l);
}

/* Closing a mapping would break captures: false, and to be tried again, while there is one. */
static bool release_mapping(mapping *m) {
  if (!lm_graph_keep_out()) return false;
  pthread_mutex_lock(&opening);
  if (--m->rc == 0) {
    mapping **at = &mappings;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    lm_driver_of(m->device)->ipc_close(m->ordinal, m->base);
    lm_free(m);
  }
  pthread_mutex_unlock(&opening);
  lm_graph_let_in();
  return true;
}

/* The memory goes back once the device is through with it; false: not yet. What a device that has failed was given is
 * over, too. */
static bool give_back(borrowed *b) {
  bool over;
  if (b->map) {
    if (lm_use_is_over(b->device, &b->used, &b->mark, &over) == LM_OK && !over) return false;
    if (!release_mapping(b->map)) return false;
  }
  for (int i = 0; i < 2; i++) release_lease(b->of[i]);
  lm_free(b);
  return true;
}

static void wake_keeper(void) {
  ssize_t n = write(wake, &(uint64_t){1}, sizeof(uint64_t));
  (void)n; /* it is awake if there is no room */
}

/* Finalizers come here: no driver is called. */
static void return_borrowed(void *owner) {
  borrowed *b = owner;
  b->used = b->storage ? atomic_load(&b->storage->used) : 0;
  pthread_mutex_lock(&lock);
  b->next = returned;
  returned = b;
  nreturned++;
  pthread_mutex_unlock(&lock);
  wake_keeper();
}

/* ---- the thread */

static void collect_returned(void) {
  pthread_mutex_lock(&lock);
  borrowed *list = returned;
  returned = NULL;
  pthread_mutex_unlock(&lock);
  for (borrowed *next; list; list = next) {
    next = list->next;
    bool gone = give_back(list);
    pthread_mutex_lock(&lock);
    if (gone) {
      nreturned--;
    } else {
      list->next = returned;
      returned = list;
    }
    pthread_mutex_unlock(&lock);
  }
}

/* Whether all events are reached, which a stream of another process may still wait for. What a device that has failed
 * was given is over, too. */
static bool is_over(const loan *l) {
  for (int i = 0; i < l->nevents; i++) {
    lm_device device = l->events[i].device;
    bool done = true;
    void *event = l->events[i].event;
    if (event && lm_driver_of(device)->event_query(lm_device_physical(device), event, &done) != LM_OK) done = true;
    if (!done) return false;
  }
  return true;
}

/* Loans whose pipes have no writing end left, `at` being theirs, go to `ending`. */
static void collect_loans(const struct pollfd *at, loan *const *of, int n, loan **ending) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < n; i++) {
    if (!(at[i].revents & (POLLHUP | POLLERR | POLLNVAL))) continue;
    loan **from = &loans;
    while (*from != of[i]) from = &(*from)->next;
    *from = of[i]->next;
    of[i]->next = *ending;
    *ending = of[i];
  }
  pthread_mutex_unlock(&lock);
  for (loan *l; (l = *ending);) {
    if (!is_over(l)) {
      ending = &l->next;
      continue;
    }
    *ending = l->next;
    free_loan(l);
    pthread_mutex_lock(&lock);
    nloans--; /* its memory is there again for who sees that */
    pthread_mutex_unlock(&lock);
  }
}

static void *keep(void *unused) {
  enum { BRIEFLY = 1, WITHOUT_MEMORY = 100 }; /* ms */
  struct pollfd *at = NULL;
  loan **of = NULL, *ending = NULL;
  int room = 0;
  (void)unused;
  for (;;) {
    int n = 0;
    pthread_mutex_lock(&lock);
    bool over = stops, waits = returned || ending;
    if (room < nloans + 1) {
      struct pollfd *more = realloc(at, (size_t)(2 * nloans + 8) * sizeof *more);
      if (more) at = more;
      loan **further = more ? realloc(of, (size_t)(2 * nloans + 8) * sizeof *further) : NULL;
      if (further) of = further;
      if (further) room = 2 * nloans + 8;
    }
    for (loan *l = loans; l && n + 1 < room; l = l->next) {
      at[n + 1] = (struct pollfd){.fd = l->fd};
      of[n++] = l;
    }
    pthread_mutex_unlock(&lock);
    if (over) break;
    if (room == 0) {
      poll(NULL, 0, WITHOUT_MEMORY);
      continue;
    }
    at[0] = (struct pollfd){.fd = wake, .events = POLLIN};
    if (poll(at, (nfds_t)(n + 1), waits ? BRIEFLY : -1) < 0) continue;
    uint64_t count;
    if (at[0].revents && read(wake, &count, sizeof count) < 0) continue;
    collect_loans(at + 1, of, n, &ending);
    collect_returned();
  }
  free(at);
  free(of);
  return NULL;
}

/* What was lent is gone with this process: others get a moment to be done with it. */
static void leave(void) {
  double deadline = lm_seconds() + AT_EXIT;
  for (;;) {
    pthread_mutex_lock(&lock);
    int left = nloans;
    pthread_mutex_unlock(&lock);
    if (left == 0) break;
    if (lm_seconds() > deadline) {
      lm_say(
          "mp: this process ends while others may still have tensors of its devices' memory (messages: %d), and that "
          "memory goes with it: a sender has to live until they have let go",
          left);
      break;
    }
    usleep(1000);
  }
  pthread_mutex_lock(&lock);
  stops = true;
  pthread_mutex_unlock(&lock);
  wake_keeper();
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec++; /* a device may hang */
  pthread_timedjoin_np(keeper, NULL, &until);
}

static lm_status start(void) {
  lm_status status = LM_OK;
  sigset_t all, before;
  pthread_mutex_lock(&lock);
  if (runs) goto done;
  if (wake < 0 && (wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
    status = lm_fail(LM_E_OOM, "no descriptor to be had: %s", strerror(errno));
    goto done;
  }
  if (getrandom(self, sizeof self, 0) != (ssize_t)sizeof self) {
    status = lm_fail(LM_E_IO, "no random number to be had: %s", strerror(errno));
    goto done;
  }
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int problem = pthread_create(&keeper, NULL, keep, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (problem) {
    status = lm_fail(LM_E_IO, "no thread to be had: %s", strerror(problem));
    goto done;
  }
  runs = true;
  atexit(leave);
done:
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- which card */

static void put_card(void *ctx, const lm_property *p) {
  if (strcmp(p->name, "uuid") == 0 && p->kind == LM_PROPERTY_TEXT) snprintf(ctx, CARD_BYTES, "%s", p->text);
}

/* The device's name for all processes: "GPU-…". */
static lm_status card_of(lm_device device, const char **out) {
  static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
  static char known[LM_DEVICE_KINDS][LM_DEVICE_MAX][CARD_BYTES];
  const lm_driver *driver = lm_driver_of(device);
  int ordinal = lm_device_physical(device);
  char *text = known[LM_DEVICE_KIND(device)][ordinal];
  lm_status status = LM_OK;
  pthread_mutex_lock(&asking);
  if (!*text && driver->properties) status = driver->properties(ordinal, put_card, text);
  pthread_mutex_unlock(&asking);
  *out = text;
  return status;
}

/* Which of the devices that are made of its card. */
static int part_of(lm_device device) {
  int part = 0;
  while (part < LM_DEVICE_ORDINAL(device) &&
         lm_device_physical((lm_device)(device - part - 1)) == lm_device_physical(device)) {
    part++;
  }
  return part;
}

lm_status lm_lend_put_device(lm_bytes *b, lm_device device) {
  const char *card;
  lm_status status = card_of(device, &card);
  if (status != LM_OK) return status;
  lm_put_text(b, lm_device_kind_name(LM_DEVICE_KIND(device)));
  lm_put_text(b, card);
  lm_put_u8(b, (uint8_t)part_of(device));
  return LM_OK;
}

lm_status lm_borrow_device(lm_reader *r, lm_device *out) {
  char kind_name[KIND_BYTES], card[CARD_BYTES];
  const char *here;
  int kind;
  lm_get_text(r, kind_name, sizeof kind_name);
  lm_get_text(r, card, sizeof card);
  int part = lm_get_u8(r);
  if (r->failed) return lm_fail(LM_E_IO, "the message makes no sense");
  lm_status status = lm_device_kind(kind_name, &kind);
  if (status != LM_OK) return status;
  bool found = false;
  for (int i = 0; i < lm_device_count(kind); i++) {
    lm_device device = LM_DEVICE(kind, i);
    if ((status = card_of(device, &here)) != LM_OK) return status;
    if (strcmp(here, card) != 0 || (found && part_of(device) > part)) continue;
    *out = device;
    found = true;
  }
  if (found) return LM_OK;
  const lm_known_kind *known = lm_known_kind_of(kind);
  const char *chooser = known ? known->read_once[0] : "its driver", *visible = known ? getenv(chooser) : NULL;
  bool none = lm_device_count(kind) == 0;
  return lm_fail(LM_E_DEVICE, "a tensor lies on the card %s, which this process does not see (%s%s%s); send x:cpu()",
                 card, none ? "" : chooser, none ? "" : ": ",
                 none      ? lm_device_why_none(kind)
                 : visible ? lm_brief(visible, 80)
                           : "not set");
}

/* ---- lending */

bool lm_is_lendable(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  return driver && driver->ipc_export && lm_is_segmented(driver);
}

static lm_storage *root_of(const lm_tensor *t) { return t->storage->whole ? t->storage->whole : t->storage; }
static borrowed *borrowed_of(const lm_storage *s) {
  return s->foreign_release == return_borrowed ? (borrowed *)s->owner : NULL;
}

/* The others' ends of the pipe are closed: the process has ended. */
static bool has_gone(const lease *l) {
  struct pollfd p = {.fd = l->fd};
  return poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

static lm_status gone(lm_device device) {
  return lm_fail(LM_E_STATE,
                 "the process that a tensor's memory on %s belonged to has ended, and the memory with it: "
                 "the sender has to live until others have let go",
                 lm_device_name(device));
}

lm_status lm_lend_check(const lm_tensor *t) {
  const lm_storage *root = root_of(t);
  const borrowed *b = borrowed_of(root);
  bool of_graph;
  if (LM_DEVICE_KIND(t->device) == LM_CPU || root->bytes == 0) return LM_OK;
  if (!lm_is_lendable(t->device))
    return lm_fail(LM_E_DEVICE, "memory on %s cannot be shared with another process; send x:cpu()",
                   lm_device_name(t->device));
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE, "a tensor on %s cannot be sent to another process while a graph is captured",
                   lm_device_name(t->device));
  if (b) return has_gone(b->of[0]) ? gone(t->device) : LM_OK;
  if (root->foreign_release || !lm_segments_base(t->device, root->data, &of_graph))
    return lm_fail(LM_E_DEVICE,
                   "memory on %s that Luminary did not allocate cannot be shared with another process; "
                   "send x:clone()",
                   lm_device_name(t->device));
  if (of_graph)
    return lm_fail(LM_E_STATE,
                   "memory of a captured graph, which its replays write, cannot be shared with another "
                   "process; send x:clone()");
  return LM_OK;
}

struct lm_lending {
  loan *what;
  int end; /* the pipe's */
  uint32_t nleases;
  lease **leases; /* of others' memory in it */
};

void lm_lending_free(lm_lending *l) {
  if (!l) return;
  for (uint32_t i = 0; i < l->nleases; i++) release_lease(l->leases[i]);
  if (l->end >= 0) close(l->end); /* the keeper sees to the loan */
  lm_free(l->leases);
  lm_free(l);
}

static uint32_t lease_number(const lm_lending *l, const lease *of) {
  uint32_t i = 0;
  while (i < l->nleases && l->leases[i] != of) i++;
  return i + 1; /* 0: the letter's own */
}

static struct mark *mark_of(const loan *l, lm_device device) {
  int i = 0;
  while (i < l->nevents && l->events[i].device != device) i++;
  return i < l->nevents ? &l->events[i] : NULL;
}

/* The current stream goes on after who wrote the tensors, and the event is behind it. */
static lm_status mark(loan *l, lm_device device) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(device);
  int ordinal = lm_device_physical(device);
  lm_stream *s = lm_stream_current(device);
  if (!s) return LM_E_STATE;
  struct mark *m = &l->events[l->nevents];
  *m = (struct mark){.device = device};
  for (int i = 0; i < l->n; i++) {
    const lm_tensor *t = l->tensors[i];
    if (t && t->device == device) TRY(lm_use_read(lm_tensor_used(t), s));
  }
  TRY(driver->ipc_event_create(ordinal, &m->event));
  l->nevents++;
  if (m->event) {
    TRY(driver->event_record(ordinal, m->event, s->native));
    TRY(driver->ipc_event_export(ordinal, m->event, m->handle));
  } else {
    TRY(lm_stream_synchronize(s));
  }
done:
  return status;
}

static bool lies_on_device(const lm_tensor *t) { return LM_DEVICE_KIND(t->device) != LM_CPU && t->storage->bytes > 0; }

lm_status lm_lending_new(int n, lm_tensor *const *tensors, lm_lending **out) {
  lm_status status = LM_OK;
  int fds[2] = {-1, -1}, count = 0;
  loan *made = NULL;
  lm_lending *l = NULL;
  *out = NULL;
  for (int i = 0; i < n; i++) {
    TRY(lm_lend_check(tensors[i]));
    count += lies_on_device(tensors[i]);
  }
  if (count == 0) return LM_OK;
  TRY(start());
  made = lm_calloc(1, sizeof *made);
  l = lm_calloc(1, sizeof *l);
  if (made) *made = (loan){.fd = -1, .tensors = lm_calloc((size_t)n, sizeof *made->tensors)};
  if (made) made->events = lm_calloc((size_t)count, sizeof *made->events);
  if (l) *l = (lm_lending){.end = -1, .leases = lm_calloc((size_t)count, sizeof *l->leases)};
  if (!made || !l || !made->tensors || !made->events || !l->leases) {
    status = LM_E_OOM;
    goto done;
  }
  if (pipe2(fds, O_CLOEXEC) != 0) {
    status = lm_fail(LM_E_OOM, "no descriptor to be had: %s", strerror(errno));
    goto done;
  }
  made->fd = fds[0];
  l->end = fds[1];
  for (; made->n < n; made->n++) {
    if (lies_on_device(tensors[made->n])) made->tensors[made->n] = lm_retain(tensors[made->n]);
  }
  for (int i = 0; i < n; i++) {
    if (!lies_on_device(tensors[i])) continue;
    if (!mark_of(made, tensors[i]->device)) TRY(mark(made, tensors[i]->device));
    borrowed *b = borrowed_of(root_of(tensors[i]));
    if (b && lease_number(l, b->of[0]) > l->nleases) l->leases[l->nleases++] = retain_lease(b->of[0]);
  }
  l->what = made;
  pthread_mutex_lock(&lock);
  made->number = ++latest;
  made->next = loans;
  loans = made;
  nloans++;
  pthread_mutex_unlock(&lock);
  wake_keeper();
  *out = l;
  made = NULL;
  l = NULL;
done:
  free_loan(made);
  lm_lending_free(l);
  return status;
}

uint32_t lm_lending_descriptors(const lm_lending *l, int *fds) {
  if (!l) return 0;
  fds[0] = l->end;
  for (uint32_t i = 0; i < l->nleases; i++) fds[i + 1] = l->leases[i]->fd;
  return l->nleases + 1;
}

lm_status lm_lending_put(const lm_lending *l, int index, lm_bytes *out) {
  lm_status status = LM_OK;
  const lm_tensor *t = l->what->tensors[index];
  const lm_storage *root = root_of(t);
  const borrowed *b = borrowed_of(root);
  const struct mark *m = mark_of(l->what, t->device);
  uint64_t within = (uint64_t)((char *)t->storage->data - (char *)root->data);
  place at;
  if (b) {
    at = b->at;
    at.offset += within;
  } else {
    bool of_graph;
    char *base = lm_segments_base(t->device, root->data, &of_graph);
    at = (place){.loan = l->what->number, .index = (uint32_t)index};
    memcpy(at.owner, self, sizeof self);
    TRY(lm_driver_of(t->device)->ipc_export(lm_device_physical(t->device), base, at.handle));
    at.offset = (uint64_t)((char *)root->data - base) + within;
  }
  lm_put(out, self, sizeof self);
  lm_put(out, at.owner, sizeof at.owner);
  lm_put_u64(out, at.loan);
  lm_put_u32(out, at.index);
  lm_put(out, at.handle, sizeof at.handle);
  lm_put_u64(out, at.offset);
  lm_put_u32(out, b ? lease_number(l, b->of[0]) : 0);
  lm_put_u8(out, m->event != NULL);
  lm_put(out, m->handle, sizeof m->handle);
done:
  return status;
}

/* ---- borrowing */

struct lm_borrowing {
  uint32_t n;
  lease **leases;
  char waited[LM_IPC_BYTES]; /* for this event on that device last */
  lm_device device;
};

void lm_borrowing_free(lm_borrowing *b) {
  if (!b) return;
  for (uint32_t i = 0; i < b->n; i++) release_lease(b->leases[i]);
  lm_free(b->leases);
  lm_free(b);
}

lm_status lm_borrowing_new(uint32_t n, const int *fds, lm_borrowing **out) {
  lm_status status = n > 0 ? start() : LM_OK;
  uint32_t at = 0;
  *out = NULL;
  lm_borrowing *b = lm_calloc(1, sizeof *b);
  if (b) b->leases = lm_calloc(n, sizeof *b->leases);
  if (!b || !b->leases) status = LM_E_OOM;
  for (; at < n && status == LM_OK; at++) {
    lease *l = lm_calloc(1, sizeof *l);
    if (!l) {
      status = LM_E_OOM;
      break;
    }
    *l = (lease){1, fds[at]};
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
  if (!(m = lm_calloc(1, sizeof *m))) {
    status = LM_E_OOM;
    goto done;
  }
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
static lm_status own(const place *at, size_t bytes, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *t = NULL;
  pthread_mutex_lock(&lock);
  loan *l = loans;
  while (l && l->number != at->loan) l = l->next;
  if (l && at->index < (uint32_t)l->n) t = lm_retain(l->tensors[at->index]);
  pthread_mutex_unlock(&lock);
  if (!t || t->storage->bytes != bytes) {
    status = lm_fail(LM_E_IO, "the message makes no sense");
    goto done;
  }
  int64_t element = (int64_t)lm_dtype_size((lm_dtype)t->dtype);
  TRY(lm_tensor_view(t, 1, &(int64_t){1}, &(int64_t){1}, -((t->data - (char *)t->storage->data) / element), out));
done:
  lm_release(t);
  return status;
}

static lm_status wait_for(lm_borrowing *b, const char *handle, lm_device device, lm_stream *s) {
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
  char sender[ID_BYTES], event[LM_IPC_BYTES];
  place at;
  borrowed *made = NULL;
  *out = NULL;
  lm_get(r, sender, sizeof sender);
  lm_get(r, at.owner, sizeof at.owner);
  at.loan = lm_get_u64(r);
  at.index = lm_get_u32(r);
  lm_get(r, at.handle, sizeof at.handle);
  at.offset = lm_get_u64(r);
  uint32_t of = lm_get_u32(r);
  bool has_event = lm_get_u8(r);
  lm_get(r, event, sizeof event);
  if (r->failed || of >= b->n || !lm_is_lendable(device)) return lm_fail(LM_E_IO, "the message makes no sense");
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE, "a tensor on %s cannot be received while a graph is captured", lm_device_name(device));
  bool is_own = memcmp(at.owner, self, sizeof self) == 0;
  if (is_own) {
    TRY(own(&at, bytes, out));
    device = (*out)->device;
  } else if (has_gone(b->leases[of])) {
    return gone(device);
  } else {
    made = lm_calloc(1, sizeof *made);
    if (!made) return LM_E_OOM;
    *made = (borrowed){.at = at, .device = device};
    TRY(open_mapping(device, at.handle, &made->map));
    made->of[0] = retain_lease(b->leases[of]);
    made->of[1] = retain_lease(b->leases[0]);
    borrowed *owner = made;
    made = NULL;
    TRY(lm_tensor_foreign(LM_U8, device, 1, &(int64_t){(int64_t)bytes}, owner->map->base + at.offset, bytes,
                          return_borrowed, owner, out));
    owner->storage = (*out)->storage;
  }
  lm_stream *s = lm_stream_current(device);
  if (!s) {
    status = LM_E_STATE;
    goto done;
  }
  bool from_elsewhere = memcmp(sender, self, sizeof self) != 0;
  if (from_elsewhere && has_event && !has_gone(b->leases[0])) TRY(wait_for(b, event, device, s));
  TRY(lm_use_write(lm_tensor_used(*out), s));
done:
  lm_free(made);
  if (status != LM_OK) {
    lm_release(*out);
    *out = NULL;
  }
  return status;
}
