/* Implements message queues with any number of writers and readers. The kernel holds the messages in a socket, both of
 * whose ends every user has. The words in shared memory only count them; users correct counts that a killed user left
 * wrong. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "mp/channel.h"

typedef struct lm_queue_words {
  pthread_mutex_t put, get;     /* robust; put is locked before get */
  uint64_t capacity;            /* messages; 0: unbounded */
  _Atomic uint64_t sent;        /* number of the newest message, counted from 1 */
  _Atomic uint64_t taken;       /* number of the newest taken message, << GAP_BITS | unused numbers so far */
  _Atomic uint64_t done;        /* calls of lm_queue_done */
  _Atomic uint32_t gets, dones; /* change with each get or done, for lm_word_wait */
} lm_queue_words;

enum { LM_GAP_BITS = 16 };

LM_API lm_status lm_queue_new(uint64_t capacity, lm_handle **out);

/* Appends l and then owns it. *sent is false if there was no room within `seconds`, or a signal arrived; the caller
 * then keeps l. This process keeps a message that does not fit the socket, and a thread sends it later. With `direct`,
 * or if it has descriptors, which are scarce, and LM_QUEUE_MAX_BACKLOG wait already, the call waits instead. */
enum { LM_QUEUE_MAX_BACKLOG = 64 };
LM_API lm_status lm_queue_put(lm_handle *h, lm_packed_message *l, bool direct, double seconds, bool *sent);
/* Receives the first message; *out is NULL if none arrived within `seconds`, or before a signal. Its number is stored
 * in *claim, if not NULL, before it leaves the queue: in shared memory, it shows others what a dead process held. */
LM_API lm_status lm_queue_get(lm_handle *h, double seconds, _Atomic int64_t *claim, lm_mp_message **out);
/* Returns the number of messages, those kept in this process included. */
LM_API uint64_t lm_queue_size(const lm_handle *h);
LM_API uint64_t lm_queue_capacity(const lm_handle *h); /* 0: unbounded */
/* Sets *out to true if the message of that number, which a dead process claimed, is still in the queue. */
LM_API lm_status lm_queue_has(lm_handle *h, uint64_t number, bool *out);

/* Marks one received message as processed. LM_E_STATE if all received ones are already. */
LM_API lm_status lm_queue_done(lm_handle *h);
/* Waits at most `seconds`, or until a signal, for all messages ever put to be processed; *out is true if they are. */
LM_API lm_status lm_queue_wait_done(lm_handle *h, double seconds, bool *out);

/* Returns the number of messages kept in this process; waits at most `seconds` for them to be sent. */
LM_API uint64_t lm_queue_backlog(const lm_handle *h, double seconds);
/* Detaches the backlog before its handle is freed; it is freed once all is sent. */
void lm_queue_abandon(lm_handle *h);
