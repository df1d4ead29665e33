#include "distributed/net/framed_stream.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/large_array.h"

enum {
  CHUNK = 64 << 10,      /* bytes of a read */
  KEEP_BUFFER = 1 << 20, /* bytes of the largest empty buffer that is kept */
};

static void stream_ready(lm_watch *w, uint32_t events) {
  lm_framed_stream *s = (lm_framed_stream *)w; /* through its first member */
  LM_LARGE(char, chunk, CHUNK);
  if (events & EPOLLOUT) {
    if (s->lock) pthread_mutex_lock(s->lock);
    lm_stream_send(s);
    if (s->lock) pthread_mutex_unlock(s->lock);
  }
  if (!(events & ~(uint32_t)EPOLLOUT)) return;
  ssize_t n = recv(w->fd, chunk, CHUNK, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) lm_put(&s->in, chunk, (size_t)n);
  s->received(s, n);
}

lm_status lm_stream_watch(lm_framed_stream *s, lm_loop *loop, int fd,
                          void (*received)(lm_framed_stream *s, ssize_t n)) {
  s->loop = loop;
  s->received = received;
  return lm_loop_add(loop, &s->watch, fd, stream_ready);
}

void lm_stream_drop_input(lm_framed_stream *s) {
  lm_bytes_free(&s->in);
  s->taken = 0;
}

void lm_stream_free(lm_framed_stream *s) {
  lm_loop_end(s->loop, &s->watch);
  lm_stream_drop_input(s);
  lm_bytes_free(&s->out);
}

/* Removes the first *done bytes of b. */
static void stream_shift(lm_bytes *b, size_t *done) {
  lm_bytes_shift(b, *done);
  *done = 0;
  if (b->n == 0 && b->capacity > KEEP_BUFFER) lm_bytes_free(b);
}

void lm_stream_send(lm_framed_stream *s) {
  bool full = false;
  while (s->watch.fd >= 0 && s->sent < s->out.n && !full) {
    ssize_t n = send(s->watch.fd, s->out.data + s->sent, lm_stream_unsent(s), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0)
      s->sent += (size_t)n;
    else if (errno == EAGAIN)
      full = true;
    else if (errno != EINTR)
      s->sent = s->out.n;
  }
  if (s->sent > s->out.n / 2) stream_shift(&s->out, &s->sent);
  lm_loop_set(s->loop, &s->watch, EPOLLIN | (full ? (uint32_t)EPOLLOUT : 0));
  if (s->ends && s->out.n == 0 && s->watch.fd >= 0) shutdown(s->watch.fd, SHUT_WR);
}

lm_status lm_stream_next(lm_framed_stream *s, size_t most, lm_reader *frame, bool *complete) {
  uint32_t n = 0;
  size_t left = s->in.n - s->taken;
  *complete = false;
  if (left >= sizeof n) memcpy(&n, s->in.data + s->taken, sizeof n);
  if (n > most) return lm_fail(LM_E_IO, "malformed message: %u bytes", n);
  if (left < sizeof n + n) {
    stream_shift(&s->in, &s->taken);
    return LM_OK;
  }
  *frame = lm_reader_of(s->in.data + s->taken + sizeof n, n);
  *complete = true;
  s->taken += sizeof n + n;
  return LM_OK;
}
