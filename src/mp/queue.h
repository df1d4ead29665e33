/* Queues of messages with any number of writers and readers. The messages are the kernel's, in a socket both of whose
 * ends every user has; the words in shared memory only count them, and each user sets them right where one that was
 * killed left them wrong. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "mp/channel.h"

typedef struct lm_queue_words {
  pthread_mutex_t put, get;     /* robust; put before get where both are held */
  uint64_t capacity;            /* 0: none */
  _Atomic uint64_t sent;        /* the number of the newest message: they are numbered from 1 */
  _Atomic uint64_t taken;       /* the number of the newest that was taken, << GAP_BITS | numbers that had no message */
  _Atomic uint64_t done;        /* lm_queue_done */
  _Atomic uint32_t gets, dones; /* change with each, for lm_word_wait */
} lm_queue_words;

enum { LM_GAP_BITS = 16 };

LM_API lm_status lm_queue_new(uint64_t capacity, lm_handle **out);

/* Puts it at the end. *sent: false if there was no room within `seconds`, or a signal came; then l is still yours. What
 * does not fit the socket waits in this process's memory, and a thread sends it when there is room; direct: it is
 * waited for instead, as it is by one with descriptors where LM_QUEUE_KEPT wait already: they are scarce. */
enum { LM_QUEUE_KEPT = 64 };
LM_API lm_status lm_queue_put(lm_handle *h, lm_packed_message *l, bool direct, double seconds, bool *sent);
/* The first; *out is NULL if none came within `seconds`, or before a signal. Its number goes to *claim before it leaves
 * the queue, if claim is not NULL: where that is shared memory, others can tell what this process had when it died. */
LM_API lm_status lm_queue_get(lm_handle *h, double seconds, _Atomic int64_t *claim, lm_mp_message **out);
/* How many there are, those that wait in this process included. */
LM_API uint64_t lm_queue_size(const lm_handle *h);
LM_API uint64_t lm_queue_capacity(const lm_handle *h); /* 0: none */
/* Whether the message of that number, which a dead process claimed, is still there. */
LM_API lm_status lm_queue_has(lm_handle *h, uint64_t number, bool *out);

/* One that was taken is done with. LM_E_STATE if there were not that many. */
LM_API lm_status lm_queue_done(lm_handle *h);
/* Whether all that were ever put are done with: waits `seconds`, or until a signal comes. */
LM_API lm_status lm_queue_wait_done(lm_handle *h, double seconds, bool *out);

/* How many wait in this process for room in the socket; waits `seconds` for them to be gone. */
LM_API uint64_t lm_queue_backlog(const lm_handle *h, double seconds);
/* Its handle goes; it ends when all is sent. */
struct lm_backlog;
LM_API void lm_backlog_leave(struct lm_backlog *b);
