#include "mp/channel.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "mp/datagram.h"

/* ---- sockets */

enum { SEND_TIMEOUT = 10 /* seconds */ };

lm_status lm_connection_pair(lm_handle *out[2]) {
  int fd[2];
  lm_status status = lm_datagram_pair(fd);
  if (status != LM_OK) return status;
  status = lm_handle_of(LM_CONNECTION, &fd[0], NULL, &out[0]);
  if (status != LM_OK) {
    close(fd[1]);
  } else if ((status = lm_handle_of(LM_CONNECTION, &fd[1], NULL, &out[1])) != LM_OK) {
    lm_handle_free(out[0]);
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
  return lm_handle_of(LM_CONNECTION, &fd, NULL, out);
done:
  if (fd >= 0) close(fd);
  return status;
}

lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready) {
  enum { MAX_MESSAGE_BYTES = 1000000 };
  struct pollfd p = {.fd = fd, .events = events};
  int n = poll(&p, 1,
               seconds < 0                   ? -1
               : seconds > MAX_MESSAGE_BYTES ? MAX_MESSAGE_BYTES * 1000
                                             : (int)(seconds * 1000 + 0.999));
  *ready = n > 0;
  return n < 0 && errno != EINTR ? lm_datagram_error(errno) : LM_OK;
}

/* ---- sending and receiving */

lm_status lm_channel_send(int fd, const lm_message_content *c) {
  lm_packed_message *l;
  lm_status status = lm_packed_message_new(c, &l);
  if (status != LM_OK) return status;
  double deadline = lm_seconds() + SEND_TIMEOUT;
  for (;;) {
    bool sent, ready;
    TRY(lm_packed_message_send(fd, l, 0, &sent));
    if (sent) break;
    if (lm_seconds() > deadline) {
      status = lm_fail(LM_E_IO, "the receiver does not read its messages");
      break;
    }
    TRY(lm_channel_wait(fd, POLLOUT, 1, &ready));
    if (ready) usleep(1000); /* there is room, but too many descriptors are in flight */
  }
done:
  lm_packed_message_free(l);
  return status;
}

/* Messages in transit to other threads, the newest first. The socket carries a message's address, which is looked up
 * here before use: its descriptor is only a number, and others may write to it by mistake. */
static struct {
  pthread_mutex_t lock;
  lm_mp_message *first;
} passed_messages = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void enter_passed(lm_mp_message *p) {
  pthread_mutex_lock(&passed_messages.lock);
  p->next = passed_messages.first;
  passed_messages.first = p;
  pthread_mutex_unlock(&passed_messages.lock);
}

static bool leave_passed(const lm_mp_message *p) {
  pthread_mutex_lock(&passed_messages.lock);
  bool found = LM_UNLINK(passed_messages.first, p);
  pthread_mutex_unlock(&passed_messages.lock);
  return found;
}

lm_status lm_channel_pass(int fd, lm_mp_message *message) {
  ssize_t n;
  enter_passed(message);
  do { n = send(fd, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT); } while (n < 0 && errno == EINTR);
  if (n == (ssize_t)sizeof message) return LM_OK;
  int problem = errno;
  leave_passed(message);
  return n < 0 && problem == EAGAIN ? lm_fail(LM_E_IO, "the receiver does not read its messages")
                                    : lm_datagram_error(problem);
}

/* Returns recv's result for the next message; *out is NULL unless it is a passed message of this process. */
static ssize_t take_passed(int fd, lm_mp_message **out) {
  ssize_t n;
  do {
    n = recv(fd, out, sizeof *out, MSG_DONTWAIT | MSG_TRUNC);
  } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n != (ssize_t)sizeof *out || !leave_passed(*out)) *out = NULL;
  return n;
}

static lm_status receive_passed(int fd, lm_mp_message **out, bool *closed) {
  ssize_t n = take_passed(fd, out);
  *closed = n == 0;
  if (n > 0) return *out ? LM_OK : lm_envelope_foreign(fd);
  return n < 0 && errno != EAGAIN ? lm_datagram_error(errno) : LM_OK;
}

lm_status lm_channel_receive(int fd, bool passed, double seconds, lm_mp_message **out, bool *closed) {
  double deadline = lm_seconds() + seconds;
  bool ready;
  *out = NULL;
  *closed = false;
  do {
    double left = deadline - lm_seconds();
    NEED(lm_channel_wait(fd, POLLIN, seconds < 0 ? -1 : left > 0 ? left : 0, &ready));
  } while (!ready && seconds > 0 && lm_seconds() < deadline);
  if (ready) NEED(passed ? receive_passed(fd, out, closed) : lm_packed_message_receive(fd, out, closed));
  return LM_OK;
}

void lm_channel_close(int fd, bool passed) {
  lm_mp_message *p;
  if (fd < 0) return;
  if (passed) shutdown(fd, SHUT_RD); /* no more messages arrive; those in the socket can still be read */
  while (passed && take_passed(fd, &p) > 0) lm_mp_message_free(p);
  close(fd);
}
