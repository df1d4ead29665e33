#include "mp/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/message.h"
#include "mp/datagram.h"

lm_status lm_connection_pair(lm_handle_kind kind, lm_handle *out[2]) {
  int fd[2];
  out[0] = out[1] = NULL;
  NEED(lm_datagram_pair(fd));
  lm_status status = lm_handle_make(kind, &fd[0], NULL, &out[0]);
  if (status != LM_OK) {
    close(fd[1]);
  } else if ((status = lm_handle_make(kind, &fd[1], NULL, &out[1])) != LM_OK) {
    lm_handle_free(out[0]);
    out[0] = NULL;
  }
  return status;
}

lm_status lm_listener_new(const char *path, lm_handle **out) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  lm_status status = LM_OK;
  int fd = -1;
  if (strlen(path) >= sizeof address.sun_path) {
    return lm_fail(LM_E_ARG, "the path of a socket has at most %zu bytes, got '%s'", sizeof address.sun_path - 1, path);
  }
  strcpy(address.sun_path, path);
  fd = lm_fd_above_stdio(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, SOMAXCONN) != 0) {
    TRY(lm_fail_cannot(LM_E_IO, lm_text("listen at '%s'", path), errno));
  }
  return lm_handle_make(LM_CONNECTION, &fd, NULL, out);
done:
  if (fd >= 0) close(fd);
  return status;
}

lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready) {
  enum { MOST = 1000000 }; /* seconds, as poll takes an int of milliseconds */
  struct pollfd p = {.fd = fd, .events = events};
  int n = poll(&p, 1, seconds > MOST ? MOST * 1000 : (int)(seconds * 1000 + 0.999));
  *ready = n > 0;
  return n < 0 && errno != EINTR ? lm_datagram_error(errno) : LM_OK;
}

/* Fails in a child of a fork for a connection of its parent's threads: their messages are in the parent's memory. */
static lm_status check_process(const lm_handle *h) {
  if (h->kind != LM_THREAD_CONNECTION || h->process == getpid()) return LM_OK;
  return lm_fail(LM_E_STATE, "the thread belongs to process %d, which forked this one", h->process);
}

lm_status lm_connection_put(const lm_handle *h, lm_packed_message *l, double seconds, bool *sent) {
  double deadline = lm_seconds() + seconds;
  NEED(check_process(h));
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
  NEED(check_process(h));
  NEED(lm_packed_message_receive(h->fd[0], out, closed));
  if (*out || *closed || seconds <= 0) return LM_OK;
  NEED(lm_channel_wait(h->fd[0], POLLIN, seconds, &ready));
  return ready ? lm_packed_message_receive(h->fd[0], out, closed) : LM_OK;
}

void lm_connection_abandon(lm_handle *h) {
  lm_mp_message *p;
  bool closed = false;
  if (h->process != getpid()) return;
  shutdown(h->fd[0], SHUT_RD); /* no more messages arrive; those in the socket can still be read */
  while (lm_packed_message_receive(h->fd[0], &p, &closed) == LM_OK && p) lm_mp_message_free(p);
}
