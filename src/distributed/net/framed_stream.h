/* Sends and receives frames, a uint32 length and as many bytes, over a socket in an event loop. Nothing blocks: what
 * the socket does not take now is sent when it can. */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "base/event_loop.h"

typedef struct lm_framed_stream { /* its owner's first member */
  lm_watch watch;                 /* fd -1: closed; frames may be put into `out` */
  lm_loop *loop;
  /* Called on the loop's thread once n bytes are added to `in` (which may fail for lack of memory); n = 0: the stream
   * ended; n < 0: it failed, with errno. */
  void (*received)(struct lm_framed_stream *s, ssize_t n);
  pthread_mutex_t *lock; /* guards all but `in` and `taken`; NULL: one thread uses the stream */
  lm_bytes in, out;
  size_t taken, sent; /* bytes of `in` that returned frames took; bytes of `out` that are sent */
  bool ends;          /* true if its sending side is shut down once `out` is sent */
} lm_framed_stream;

/* Watches fd, whose owner it becomes; on failure fd stays the caller's. */
lm_status lm_stream_watch(lm_framed_stream *s, lm_loop *loop, int fd, void (*received)(lm_framed_stream *s, ssize_t n));
void lm_stream_drop_input(lm_framed_stream *s);
void lm_stream_free(lm_framed_stream *s); /* closes the socket, and frees both buffers */
static inline size_t lm_stream_unsent(const lm_framed_stream *s) { return s->out.n - s->sent; }
/* Sends as much of `out` as the socket takes. Of a broken connection it drops the rest; `received` reports its end,
 * after received data. */
void lm_stream_send(lm_framed_stream *s);
/* Returns the next received frame, valid until the next call, or *complete = false if it has not come yet. LM_E_IO: it
 * is longer than `most` bytes. */
lm_status lm_stream_next(lm_framed_stream *s, size_t most, lm_reader *frame, bool *complete);
