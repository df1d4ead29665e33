#include "mp/datagram.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"

enum {
  MAGIC = 0x4c4d5033,
  SOCKET_BUFFER = 1 << 20, /* bytes, if the system's net.core.wmem_max grants them */
  MAX_FDS = 250            /* per message; the kernel's limit is slightly higher */
};

lm_status lm_datagram_error(int error) {
  if (error == EPIPE || error == ECONNRESET || error == 0) return lm_fail(LM_E_IO, "connection closed");
  return lm_fail(LM_E_IO, "the connection broke: %s", strerror(error));
}

lm_status lm_datagram_malformed(void) { return lm_fail(LM_E_IO, "received a malformed message"); }

lm_status lm_datagram_foreign(int fd) {
  return lm_fail(LM_E_IO, "received a message that is not from lm.mp; does something else write to descriptor %d?", fd);
}

lm_status lm_datagram_pair(int fd[2]) {
  if (lm_fds_above_stdio(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), fd) != 0) {
    return lm_fail_cannot(LM_E_IO, "create a pair of sockets", errno);
  }
  for (int i = 0; i < 2; i++) setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &(int){SOCKET_BUFFER}, sizeof(int));
  return LM_OK;
}

/* ---- descriptors */

int lm_received_fds_take(lm_received_fds *l) {
  if (l->next >= l->n) return -1;
  int fd = l->fd[l->next];
  l->fd[l->next++] = -1;
  return fd;
}

void lm_received_fds_close(lm_received_fds *l) {
  for (uint32_t i = l->next; i < l->n; i++) close(l->fd[i]);
  lm_free(l->fd);
  *l = (lm_received_fds){0};
}

static lm_status put_fds(lm_received_fds *l, const struct cmsghdr *c) {
  uint32_t count = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  int *more = lm_realloc(l->fd, (l->n + count) * sizeof *more);
  if (more) l->fd = more;
  for (uint32_t i = 0; i < count; i++) {
    int fd;
    memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
    fd = lm_fd_above_stdio(fd);
    if (more) {
      more[l->n++] = fd;
    } else {
      close(fd);
    }
  }
  return more ? LM_OK : LM_E_OOM;
}

/* ---- sending */

/* Sends one message; *sent is false, and nothing was sent, if there is no room. */
static lm_status send_message(int fd, const lm_datagram_header *h, const void *body, size_t n, const int *fds,
                              bool *sent) {
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
  struct iovec parts[] = {{(void *)h, sizeof *h}, {(void *)body, n}};
  struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
  if (h->nfds > 0) {
    memset(control, 0, CMSG_SPACE(h->nfds * sizeof(int)));
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(h->nfds * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(h->nfds * sizeof(int));
    memcpy(CMSG_DATA(c), fds, h->nfds * sizeof(int));
  }
  ssize_t k;
  do { k = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT); } while (k < 0 && errno == EINTR);
  *sent = k >= 0;
  /* ETOOMANYREFS: too many descriptors are in flight */
  return k >= 0 || errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? LM_OK : lm_datagram_error(errno);
}

/* Puts all descriptors into a new socket and returns its reading end; *fits is false if it has no room for them. */
static lm_status fill_socket(const int *fds, uint32_t n, int *out, bool *fits) {
  lm_status status = LM_OK;
  int ends[2] = {-1, -1};
  *fits = true;
  TRY(lm_datagram_pair(ends));
  for (uint32_t at = 0; at < n && *fits; at += MAX_FDS) {
    lm_datagram_header h = {.magic = MAGIC, .nfds = n - at < MAX_FDS ? n - at : MAX_FDS};
    TRY(send_message(ends[0], &h, "", 0, fds + at, fits));
  }
done:
  if (ends[0] >= 0) close(ends[0]);
  if (status == LM_OK && *fits) {
    *out = ends[1];
  } else if (ends[1] >= 0) {
    close(ends[1]);
  }
  return status;
}

lm_status lm_datagram_send(int fd, const lm_datagram_header *header, const void *body, size_t n, const int *fds,
                           bool *sent) {
  lm_datagram_header h = *header;
  LM_OWNED_FD bundle = -1;
  *sent = false;
  h.magic = MAGIC;
  if (h.nfds > MAX_FDS) {
    bool fits;
    NEED(fill_socket(fds, h.nfds, &bundle, &fits));
    if (!fits) return LM_OK;
    fds = &bundle;
    h.nfds = 1;
    h.flags |= LM_FDS_IN_SOCKET;
  }
  return send_message(fd, &h, body, n, fds, sent);
}

/* ---- receiving */

/* Receives one message; *got is false if there is none. Appends its descriptors to l; *n becomes the size of body. */
static lm_status receive_message(int fd, lm_datagram_header *h, void *body, size_t *n, lm_received_fds *l, bool *got,
                                 bool *closed) {
  lm_status status = LM_OK;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
  struct iovec parts[] = {{h, sizeof *h}, {body, *n}};
  struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control};
  uint32_t before = l->n;
  ssize_t k;
  *got = false;
  /* ECONNRESET occurs once, if the other side closed without reading all; what it sent before is still readable. */
  do { k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); } while (k < 0 && (errno == EINTR || errno == ECONNRESET));
  if (k < 0) return errno == EAGAIN ? LM_OK : lm_datagram_error(errno);
  if (k == 0) {
    *closed = true;
    return LM_OK;
  }
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    lm_status problem = put_fds(l, c);
    if (problem != LM_OK) status = problem;
  }
  if (status != LM_OK) return lm_fail(LM_E_IO, "out of memory: a received message is lost");
  if (m.msg_flags & MSG_CTRUNC)
    return lm_fail(LM_E_IO, "too many open files: descriptors of a received message are lost");
  if ((size_t)k < sizeof *h || (m.msg_flags & MSG_TRUNC) || h->magic != MAGIC || h->nfds != l->n - before) {
    return lm_datagram_foreign(fd);
  }
  *n = (size_t)k - sizeof *h;
  *got = true;
  return LM_OK;
}

static lm_status empty_socket(lm_received_fds *l) {
  LM_OWNED_FD fd = lm_received_fds_take(l);
  __attribute__((cleanup(lm_received_fds_close))) lm_received_fds all = {0};
  bool got = true, closed = false;
  while (got) {
    lm_datagram_header h;
    size_t n = 0;
    NEED(receive_message(fd, &h, NULL, &n, &all, &got, &closed));
  }
  lm_received_fds_close(l);
  *l = all;
  all = (lm_received_fds){0};
  return LM_OK;
}

bool lm_datagram_peek(int fd, lm_datagram_header *h) {
  ssize_t k;
  do { k = recv(fd, h, sizeof *h, MSG_PEEK | MSG_DONTWAIT); } while (k < 0 && (errno == EINTR || errno == ECONNRESET));
  if (k >= 0 && (k != (ssize_t)sizeof *h || h->magic != MAGIC)) *h = (lm_datagram_header){0};
  return k >= 0;
}

/* Returns LM_E_OOM if n descriptors cannot be opened now: the kernel would drop them from the message. */
static lm_status check_capacity(int fd, uint32_t n) {
  int all[MAX_FDS + 1], error = 0;
  uint32_t had = 0;
  if (n > MAX_FDS + 1) return LM_OK; /* a malformed message */
  while (had < n && (all[had] = lm_fd_copy(fd, 0)) >= 0) had++;
  if (had < n) error = errno;
  for (uint32_t i = 0; i < had; i++) close(all[i]);
  return error ? lm_fail_cannot(LM_E_OOM, "receive the descriptors of a message", error) : LM_OK;
}

lm_status lm_datagram_receive(int fd, lm_datagram_header *h, void *body, size_t *n, lm_received_fds *l, bool *got,
                              bool *closed) {
  *got = false;
  if (lm_datagram_peek(fd, h)) NEED(check_capacity(fd, h->nfds));
  NEED(receive_message(fd, h, body, n, l, got, closed));
  if (*got && (h->flags & LM_FDS_IN_SOCKET)) NEED(empty_socket(l));
  return LM_OK;
}
