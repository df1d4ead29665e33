#include "mp/queue.h"

#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "mp/datagram.h"
#include "mp/lock.h"

enum { READ, WRITE };

/* Seconds. Inner locks are held only briefly unless the holder is stopped. Waiters poll again after LOOK, since a
 * killed process may not have changed the word they wait for. */
static const double HOLD = 1, LOOK = 0.05;

static lm_queue_words *words_of(const lm_handle *h) { return (lm_queue_words *)h->words->base; }

lm_status lm_queue_new(uint64_t capacity, lm_handle **out) {
  int fd[2];
  lm_status status = lm_datagram_pair(fd);
  if (status != LM_OK) return status;
  TRY(lm_handle_with_words(LM_QUEUE, fd, out));
  words_of(*out)->capacity = capacity;
  TRY(lm_robust_init(&words_of(*out)->put));
  TRY(lm_robust_init(&words_of(*out)->get));
  return LM_OK;
done:
  lm_handle_free(*out);
  *out = NULL;
  return status;
}

/* ---- counting */

/* Locks m, `put` or `get`. A writer that died may have sent message sent + 1 or not: that number is not used again. */
static lm_status lock_words(lm_queue_words *w, pthread_mutex_t *m, bool *locked) {
  lm_acquire_result got;
  lm_status status = lm_robust_lock(m, HOLD, &got);
  *locked = got != LM_ACQUIRE_TIMEOUT;
  if (m == &w->put && got == LM_ACQUIRE_ABANDONED) atomic_fetch_add(&w->sent, 1);
  return status == LM_OK ? LM_OK : lm_fail_in(status, "the lock of the queue");
}

typedef struct count {
  uint64_t last, gaps; /* newest number that left the queue; number of unused ones up to it */
} count;

static count queue_taken(const lm_queue_words *w) {
  uint64_t now = atomic_load(&w->taken);
  return (count){now >> LM_GAP_BITS, now & ((1u << LM_GAP_BITS) - 1)};
}

/* Returns true if there is a message; *first is the number of our next one. A foreign message, which has no number, may
 * come before it. */
static bool peek_message(const lm_handle *h, uint64_t *first, bool *foreign) {
  lm_datagram_header next;
  if (!lm_datagram_peek(h->fd[READ], &next)) return false;
  *foreign = next.number == 0;
  *first = *foreign ? queue_taken(words_of(h)).last + 1 : next.number;
  return true;
}

static uint64_t in_socket(const lm_handle *h) {
  bool foreign;
  uint64_t first, sent = atomic_load(&words_of(h)->sent);
  if (!peek_message(h, &first, &foreign)) return 0;
  return sent >= first ? sent - first + 1 : 1; /* the message's writer is about to count it */
}

/* Stores the count. Requires the lock `get`. */
static void set_taken(lm_queue_words *w, count c) { atomic_store(&w->taken, c.last << LM_GAP_BITS | c.gaps); }

/* Counts message n as taken; skipped numbers had no message. Requires the lock `get`. */
static void note_taken(lm_queue_words *w, uint64_t n) {
  count c = queue_taken(w);
  if (n > c.last) set_taken(w, (count){n, c.gaps + (n - c.last - 1)}); /* or its first reader counted it and died */
}

/* ---- messages that wait for room */

typedef struct lm_backlog {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  lm_handle *queue; /* a copy, with its own sockets */
  lm_packed_message *first, **end;
  uint64_t n;
  bool runs, left; /* true while its thread runs; true if its handle was freed */
} lm_backlog;

static void free_backlog(lm_backlog *b) {
  for (lm_packed_message *l; (l = b->first);) {
    b->first = l->next;
    lm_packed_message_free(l);
  }
  lm_handle_free(b->queue);
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->changed);
  lm_free(b);
}

/* Sends l if fewer than `most` messages are in the socket; 0: no limit. */
static lm_status queue_post(const lm_handle *h, lm_packed_message *l, uint64_t most, bool *sent) {
  lm_queue_words *w = words_of(h);
  bool locked;
  *sent = false;
  lm_status status = lock_words(w, &w->put, &locked);
  if (status != LM_OK || !locked) return status;
  if (most == 0 || in_socket(h) < most) {
    uint64_t number = atomic_load(&w->sent) + 1;
    status = lm_packed_message_send(h->fd[WRITE], l, number, sent);
    if (*sent) atomic_store(&w->sent, number);
  }
  pthread_mutex_unlock(&w->put);
  return status;
}

/* Runs the thread: sends the messages in order, and ends when none is left. */
static void *queue_feed(void *arg) {
  lm_backlog *b = arg;
  bool was_writable = false;
  pthread_mutex_lock(&b->lock);
  for (lm_packed_message *l; (l = b->first);) {
    pthread_mutex_unlock(&b->lock);
    bool sent = false, ready = false;
    lm_status status = queue_post(b->queue, l, 0, &sent);
    if (status == LM_OK && !sent) {
      lm_channel_wait(b->queue->fd[WRITE], POLLOUT, 1, &ready);
      if (ready && was_writable) usleep(1000); /* too many descriptors in flight */
      was_writable = ready;
    }
    pthread_mutex_lock(&b->lock);
    if (status == LM_OK && !sent) continue;
    b->first = l->next;
    if (!b->first) b->end = &b->first;
    b->n--;
    lm_packed_message_free(l);
    pthread_cond_broadcast(&b->changed);
  }
  b->runs = false;
  bool left = b->left;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
  if (left) free_backlog(b);
  return NULL;
}

static lm_status begin_backlog(lm_handle *h) {
  lm_backlog *b = lm_calloc(1, sizeof *b);
  if (!b) return LM_E_OOM;
  lm_status status = lm_handle_copy(h, &b->queue);
  if (status != LM_OK) {
    lm_free(b);
    return status;
  }
  pthread_mutex_init(&b->lock, NULL);
  lm_cond_init(&b->changed);
  b->end = &b->first;
  h->backlog = b;
  return LM_OK;
}

static lm_status keep_for_later(lm_handle *h, lm_packed_message *l) {
  lm_status status = LM_OK;
  if (!h->backlog && (status = begin_backlog(h)) != LM_OK) return status;
  lm_backlog *b = h->backlog;
  LM_LOCKED(&b->lock);
  if (!b->runs) status = lm_thread_start_detached("lm-queue", queue_feed, b); /* it waits for the lock */
  if (status == LM_OK) {
    b->runs = true;
    l->next = NULL;
    *b->end = l;
    b->end = &l->next;
    b->n++;
  }
  return status;
}

uint64_t lm_queue_backlog(const lm_handle *h, double seconds) {
  lm_backlog *b = h->backlog;
  if (!b) return 0;
  double until = lm_seconds() + seconds;
  LM_LOCKED(&b->lock);
  while (b->n > 0 && seconds > 0 && lm_cond_wait_until(&b->changed, &b->lock, until)) continue;
  return b->n;
}

void lm_queue_abandon(lm_handle *h) {
  lm_backlog *b = h->backlog;
  if (!b) return;
  pthread_mutex_lock(&b->lock);
  b->left = true;
  bool runs = b->runs;
  pthread_mutex_unlock(&b->lock);
  if (!runs) free_backlog(b);
}

/* ---- putting */

uint64_t lm_queue_size(const lm_handle *h) { return in_socket(h) + lm_queue_backlog(h, 0); }

uint64_t lm_queue_capacity(const lm_handle *h) { return words_of(h)->capacity; }

/* Returns true if a bounded queue is full; messages that other processes keep are not counted. */
static bool is_full(const lm_handle *h) { return lm_queue_capacity(h) > 0 && lm_queue_size(h) >= lm_queue_capacity(h); }

static lm_status try_put(lm_handle *h, lm_packed_message *l, bool direct, bool *sent) {
  *sent = false;
  if (lm_queue_backlog(h, 0) == 0) NEED(queue_post(h, l, words_of(h)->capacity, sent));
  if (*sent) {
    lm_packed_message_free(l);
  } else if (!direct && !is_full(h) && (l->nfds == 1 || lm_queue_backlog(h, 0) < LM_QUEUE_MAX_BACKLOG)) {
    NEED(keep_for_later(h, l));
    *sent = true;
  }
  return LM_OK;
}

lm_status lm_queue_put(lm_handle *h, lm_packed_message *l, bool direct, double seconds, bool *sent) {
  lm_queue_words *w = words_of(h);
  double deadline = lm_seconds() + seconds;
  for (;;) {
    uint32_t gets = atomic_load(&w->gets);
    NEED(try_put(h, l, direct, sent));
    double left = deadline - lm_seconds();
    if (*sent || left <= 0) break;
    if (!lm_word_wait(&w->gets, gets, left < LOOK ? left : LOOK)) break;
  }
  return LM_OK;
}

/* ---- getting */

lm_status lm_queue_get(lm_handle *h, double seconds, _Atomic int64_t *claim, lm_mp_message **out) {
  lm_status status = LM_OK;
  lm_queue_words *w = words_of(h);
  double deadline = lm_seconds() + seconds;
  *out = NULL;
  for (;;) {
    bool locked, closed = false, ready, foreign;
    uint64_t number;
    NEED(lock_words(w, &w->get, &locked));
    if (locked) {
      if (peek_message(h, &number, &foreign)) {
        if (claim && !foreign) atomic_store(claim, (int64_t)number);
        if (!foreign) note_taken(w, number);
        status = lm_packed_message_receive(h->fd[READ], out, &closed);
        if (closed) status = lm_datagram_foreign(h->fd[READ]); /* 0 bytes; both ends are open in this handle */
        atomic_fetch_add(&w->gets, 1);
      }
      pthread_mutex_unlock(&w->get);
      if (*out || status != LM_OK) {
        lm_word_wake(&w->gets);
        return status;
      }
    }
    double left = deadline - lm_seconds();
    if (left <= 0) break;
    NEED(lm_channel_wait(h->fd[READ], POLLIN, left, &ready));
    if (!ready) break;
  }
  return status;
}

lm_status lm_queue_has(lm_handle *h, uint64_t number, bool *out) {
  lm_queue_words *w = words_of(h);
  bool locked = false, foreign;
  uint64_t first;
  lm_status status = LM_OK;
  while (status == LM_OK && !locked) status = lock_words(w, &w->get, &locked);
  if (status != LM_OK) return status;
  *out = peek_message(h, &first, &foreign) && first <= number;
  pthread_mutex_unlock(&w->get);
  return LM_OK;
}

/* ---- processed messages */

lm_status lm_queue_done(lm_handle *h) {
  lm_queue_words *w = words_of(h);
  uint64_t done = atomic_load(&w->done);
  do {
    count c = queue_taken(w);
    if (done + c.gaps >= c.last) return lm_fail(LM_E_STATE, "called more often than get()");
  } while (!atomic_compare_exchange_weak(&w->done, &done, done + 1));
  atomic_fetch_add(&w->dones, 1);
  lm_word_wake(&w->dones);
  return LM_OK;
}

/* Sets *out if all is processed. Unused numbers are counted first, which is possible once the queue is empty. */
static lm_status queue_is_done(lm_handle *h, bool *out) {
  lm_queue_words *w = words_of(h);
  lm_status status = LM_OK;
  bool put = false, get = false, foreign;
  uint64_t first;
  *out = false;
  TRY(lock_words(w, &w->put, &put));
  if (!put) goto done;
  TRY(lock_words(w, &w->get, &get));
  if (!get || peek_message(h, &first, &foreign)) goto done;
  uint64_t sent = atomic_load(&w->sent);
  count c = queue_taken(w);
  if (sent > c.last) set_taken(w, c = (count){sent, c.gaps + (sent - c.last)});
  *out = atomic_load(&w->done) + c.gaps >= c.last;
done:
  if (get) pthread_mutex_unlock(&w->get);
  if (put) pthread_mutex_unlock(&w->put);
  return status;
}

lm_status lm_queue_wait_done(lm_handle *h, double seconds, bool *out) {
  lm_queue_words *w = words_of(h);
  double deadline = lm_seconds() + seconds;
  for (;;) {
    uint32_t dones = atomic_load(&w->dones);
    *out = false;
    if (lm_queue_backlog(h, 0) == 0) NEED(queue_is_done(h, out));
    double left = deadline - lm_seconds();
    if (*out || left <= 0) break;
    if (!lm_word_wait(&w->dones, dones, left < LOOK ? left : LOOK)) break;
  }
  return LM_OK;
}
