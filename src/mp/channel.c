#include "mp/channel.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "mp/datagram.h"

lm_status lm_connection_pair(lm_handle_kind kind, lm_handle *out[2]) {
  int fd[2];
  out[0] = out[1] = NULL;
  NEED(lm_datagram_pair(fd));
  lm_status status = lm_handle_of(kind, &fd[0], NULL, &out[0]);
  if (status != LM_OK) {
    close(fd[1]);
  } else if ((status = lm_handle_of(kind, &fd[1], NULL, &out[1])) != LM_OK) {
    lm_handle_free(out[0]);
    out[0] = NULL;
  }
  return status;
}

lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready) {
  enum { MOST = 1000000 }; /* seconds, as poll takes an int of milliseconds */
  struct pollfd p = {.fd = fd, .events = events};
  int n = poll(&p, 1, seconds > MOST ? MOST * 1000 : (int)(seconds * 1000 + 0.999));
  *ready = n > 0;
  return n < 0 && errno != EINTR ? lm_datagram_error(errno) : LM_OK;
}

lm_status lm_connection_put(const lm_handle *h, lm_packed_message *l, double seconds, bool *sent) {
  double deadline = lm_seconds() + seconds;
  for (;;) {
    bool ready;
    NEED(lm_packed_message_send(h->fd[0], l, 0, sent));
    double left = deadline - lm_seconds();
    if (*sent || left <= 0) break;
    NEED(lm_channel_wait(h->fd[0], POLLOUT, left, &ready));
    if (!ready) break;
    usleep(1000); /* there is room, but too many descriptors are in flight */
  }
  return LM_OK;
}

lm_status lm_connection_get(const lm_handle *h, double seconds, lm_mp_message **out, bool *closed) {
  bool ready;
  *closed = false;
  NEED(lm_packed_message_receive(h->fd[0], out, closed));
  if (*out || *closed || seconds <= 0) return LM_OK;
  NEED(lm_channel_wait(h->fd[0], POLLIN, seconds, &ready));
  return ready ? lm_packed_message_receive(h->fd[0], out, closed) : LM_OK;
}

void lm_connection_abandon(lm_handle *h) {
  lm_mp_message *p;
  bool closed = false;
  shutdown(h->fd[0], SHUT_RD); /* no more messages arrive; those in the socket can still be read */
  while (lm_packed_message_receive(h->fd[0], &p, &closed) == LM_OK && p) lm_mp_message_free(p);
}
