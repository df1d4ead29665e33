#define _GNU_SOURCE
#include "mp/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "autograd/autograd.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "mp/share.h"

/* ---- parcels */

void lm_parcel_free(lm_parcel *p) {
  if (!p) return;
  for (int i = 0; i < p->ntensors; i++) lm_release(p->tensors[i]);
  lm_free(p->tensors);
  lm_free(p->text);
  lm_free(p);
}

static lm_parcel *new_parcel(const char *text, size_t n, int ntensors) {
  lm_parcel *p = lm_calloc(1, sizeof *p);
  if (p) {
    p->text = lm_malloc(n);
    p->tensors = lm_calloc((size_t)ntensors, sizeof *p->tensors);
  }
  if (!p || !p->text || !p->tensors) {
    lm_parcel_free(p);
    return NULL;
  }
  memcpy(p->text, text, n);
  p->n = n;
  p->ntensors = ntensors;
  return p;
}

lm_status lm_parcel_new(const char *text, size_t n, int ntensors, lm_tensor *const *tensors, lm_parcel **out) {
  lm_status status = LM_OK;
  *out = NULL;
  lm_parcel *p = new_parcel(text, n, ntensors);
  if (!p) return LM_E_OOM;
  TRY(lm_share_again(ntensors, tensors, p->tensors));
  *out = p;
  p = NULL;
done:
  lm_parcel_free(p);
  return status;
}

/* ---- sockets */

enum { MAGIC = 0x4c4d5031, MOST_FDS = 250, PATIENCE = 10 }; /* seconds in which a message that has begun must end */

typedef struct heading { /* of each message; a parcel with many descriptors takes several */
  uint32_t magic, nfds, more;
} heading;

lm_status lm_channel_pair(int fd[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0) return LM_OK;
  return lm_fail(LM_E_IO, "no pair of sockets to be had: %s", strerror(errno));
}

static lm_status broken(int error) {
  if (error == EPIPE || error == ECONNRESET || error == 0) return lm_fail(LM_E_IO, "closed");
  return lm_fail(LM_E_IO, "the connection broke: %s", strerror(error));
}

/* Waits until there is something to read, or room to write. *ready is false when the time is over. */
static lm_status wait_for(int fd, short events, double deadline, bool *ready) {
  struct pollfd p = {.fd = fd, .events = events};
  for (;;) {
    double left = deadline - lm_seconds();
    int n = poll(&p, 1, left <= 0 ? 0 : left > 1 ? 1000 : (int)(left * 1000) + 1);
    if (n < 0 && errno != EINTR) return broken(errno);
    *ready = n > 0;
    if (n > 0 || left <= 0) return LM_OK;
  }
}

static lm_status send_message(int fd, heading h, const int *fds) {
  lm_status status = LM_OK;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
  size_t sent = 0;
  double deadline = lm_seconds() + PATIENCE;
  while (sent < sizeof h) {
    struct iovec part = {(char *)&h + sent, sizeof h - sent};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (sent == 0 && h.nfds > 0) {
      memset(control, 0, sizeof control);
      m.msg_control = control;
      m.msg_controllen = CMSG_SPACE(h.nfds * sizeof(int));
      struct cmsghdr *c = CMSG_FIRSTHDR(&m);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(h.nfds * sizeof(int));
      memcpy(CMSG_DATA(c), fds, h.nfds * sizeof(int));
    }
    ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += (size_t)n;
    } else if (errno == EAGAIN || errno == ETOOMANYREFS) {
      bool ready;
      TRY(wait_for(fd, POLLOUT, deadline, &ready));
      if (lm_seconds() > deadline) return lm_fail(LM_E_IO, "the other side does not read what it is sent");
      if (ready) usleep(1000); /* too many descriptors under way */
    } else if (errno != EINTR) {
      return broken(errno);
    }
  }
done:
  return status;
}

/* Descriptors are appended to fds; *n says how many there are now. *closed: the end of the stream, before a message. */
static lm_status receive_message(int fd, heading *h, int *fds, int *n, int room, bool *closed) {
  lm_status status = LM_OK;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
  size_t got = 0;
  double deadline = lm_seconds() + PATIENCE;
  int before = *n;
  while (got < sizeof *h) {
    struct iovec part = {(char *)h + got, sizeof *h - got};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (k < 0 && errno == EAGAIN) {
      bool ready;
      TRY(wait_for(fd, POLLIN, deadline, &ready));
      if (!ready) return lm_fail(LM_E_IO, "a message has begun and does not end");
      continue;
    }
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno != ECONNRESET) return broken(errno);
    if (k <= 0) {
      *closed = true;
      return LM_OK;
    }
    got += (size_t)k;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      int count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)), one;
      for (int i = 0; i < count; i++) {
        memcpy(&one, CMSG_DATA(c) + (size_t)i * sizeof one, sizeof one);
        if (*n < room) {
          fds[(*n)++] = one;
        } else {
          close(one);
        }
      }
    }
    if (m.msg_flags & MSG_CTRUNC) return lm_fail(LM_E_IO, "descriptors were lost: this process has too many open");
  }
  if (h->magic != MAGIC || h->nfds != (uint32_t)(*n - before)) return lm_fail(LM_E_IO, "the message makes no sense");
done:
  return status;
}

/* ---- tensors as text: which file, where in it, what it looks like */

static void put_tensor(lm_bytes *b, const lm_tensor *t, uint32_t file, uint32_t storage) {
  const lm_segment *s = lm_segment_of(t);
  size_t element = lm_dtype_size((lm_dtype)t->dtype);
  lm_put_u32(b, file);
  lm_put_u32(b, storage);
  lm_put_u64(b, s ? (uint64_t)((char *)t->storage->data - s->base) : 0);
  lm_put_u64(b, t->storage->bytes);
  lm_put_u64(b, t->numel > 0 ? (uint64_t)(t->data - (char *)t->storage->data) / element : 0);
  lm_put_u8(b, (uint8_t)t->dtype);
  lm_put_u32(b, t->device);
  lm_put_u8(b, lm_requires_grad(t));
  lm_put_u8(b, t->ndim);
  for (int d = 0; d < t->ndim; d++) {
    lm_put_u64(b, (uint64_t)t->size[d]);
    lm_put_u64(b, (uint64_t)t->stride[d]);
  }
}

typedef struct arrival { /* a parcel as it is unpacked */
  lm_segment **files;
  int nfiles;
  lm_tensor **places; /* for each storage number, a tensor over it; filled as they come */
  int nplaces;
} arrival;

static lm_status get_tensor(lm_reader *r, arrival *a, lm_tensor **out) {
  uint32_t file = lm_get_u32(r), number = lm_get_u32(r);
  uint64_t at = lm_get_u64(r), bytes = lm_get_u64(r), offset = lm_get_u64(r);
  int dtype = lm_get_u8(r);
  lm_device device = (lm_device)lm_get_u32(r);
  bool requires_grad = lm_get_u8(r);
  int ndim = lm_get_u8(r);
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  if (ndim > LM_MAX_DIMS || dtype >= LM_DTYPE_COUNT || LM_DEVICE_KIND(device) != LM_CPU ||
      LM_DEVICE_ORDINAL(device) >= LM_DEVICE_MAX) {
    r->failed = true;
  }
  for (int d = 0; d < ndim && !r->failed; d++) {
    size[d] = (int64_t)lm_get_u64(r);
    stride[d] = (int64_t)lm_get_u64(r);
  }
  if (r->failed || number >= (uint32_t)a->nplaces) return lm_fail(LM_E_IO, "the message makes no sense");
  lm_status status = LM_OK;
  lm_tensor **place = &a->places[number];
  if (bytes == 0) {
    TRY(lm_tensor_empty((lm_dtype)dtype, device, ndim, size, LM_CONTIGUOUS, out));
  } else {
    if (!*place) {
      if (file >= (uint32_t)a->nfiles) return lm_fail(LM_E_IO, "the message makes no sense");
      TRY(lm_segment_tensor(a->files[file], at, bytes, place));
    }
    (*place)->dtype = (int8_t)dtype; /* it only lends its storage */
    (*place)->device = (*place)->storage->device = device;
    TRY(lm_tensor_view(*place, ndim, size, stride, (int64_t)offset, out));
  }
  if (requires_grad) TRY(lm_set_requires_grad(*out, true));
done:
  return status;
}

/* ---- sending */

typedef struct packing {
  lm_bytes head; /* u32 ntensors, u32 files, the tensors, then the text */
  int *fds;      /* the parcel's own file, then one for each segment */
  int nfds;
} packing;

static lm_status describe(packing *k, int n, lm_tensor *const *tensors, lm_segment **files, lm_storage **storages) {
  int nfiles = 0, nstorages = 0;
  for (int i = 0; i < n; i++) {
    const lm_tensor *t = tensors[i];
    lm_segment *s = lm_segment_of(t);
    if (!s && t->storage->bytes > 0) return lm_fail(LM_E_STATE, "tensor %d is not in shared memory", i + 1);
    int file = 0, storage = 0;
    while (s && file < nfiles && files[file] != s) file++;
    if (s && file == nfiles) {
      files[nfiles++] = s;
      k->fds[k->nfds++] = s->fd;
    }
    while (storage < nstorages && storages[storage] != t->storage) storage++;
    if (storage == nstorages) storages[nstorages++] = t->storage;
    put_tensor(&k->head, t, (uint32_t)file, (uint32_t)storage);
  }
  return LM_OK;
}

lm_status lm_channel_send(int fd, const char *text, size_t n, int ntensors, lm_tensor *const *tensors) {
  lm_status status = LM_OK;
  packing k = {0};
  lm_segment *parcel = NULL, **files = lm_calloc((size_t)ntensors, sizeof *files);
  lm_storage **storages = lm_calloc((size_t)ntensors, sizeof *storages);
  k.fds = lm_calloc((size_t)ntensors + 1, sizeof *k.fds);
  if (!files || !storages || !k.fds) {
    status = LM_E_OOM;
    goto done;
  }
  k.nfds = 1;
  lm_put_u32(&k.head, (uint32_t)ntensors);
  TRY(describe(&k, ntensors, tensors, files, storages));
  lm_put_u64(&k.head, n);
  if (k.head.failed) {
    status = LM_E_OOM;
    goto done;
  }
  TRY(lm_segment_new(k.head.n + n, &parcel));
  memcpy(parcel->base, k.head.data, k.head.n);
  memcpy(parcel->base + k.head.n, text, n);
  k.fds[0] = parcel->fd;
  for (int at = 0; at < k.nfds; at += MOST_FDS) {
    int count = k.nfds - at < MOST_FDS ? k.nfds - at : MOST_FDS;
    TRY(send_message(fd, (heading){MAGIC, (uint32_t)count, at + count < k.nfds}, k.fds + at));
  }
done:
  lm_segment_release(parcel);
  lm_bytes_free(&k.head);
  lm_free(k.fds);
  lm_free(storages);
  lm_free(files);
  return status;
}

lm_status lm_channel_pass(int fd, lm_parcel *parcel) {
  ssize_t n;
  do { n = send(fd, &parcel, sizeof parcel, MSG_NOSIGNAL | MSG_DONTWAIT); } while (n < 0 && errno == EINTR);
  if (n == (ssize_t)sizeof parcel) return LM_OK;
  return n < 0 && errno == EAGAIN ? lm_fail(LM_E_IO, "the other side does not read what it is sent") : broken(errno);
}

/* ---- receiving */

static lm_status unpack(lm_segment *parcel, lm_segment **files, int nfiles, lm_parcel **out) {
  lm_status status = LM_OK;
  arrival a = {.files = files, .nfiles = nfiles};
  lm_parcel *p = NULL;
  lm_reader r = lm_reader_of(parcel->base, parcel->bytes);
  uint32_t n = lm_get_u32(&r);
  if (r.failed || n > parcel->bytes / 32) return lm_fail(LM_E_IO, "the message makes no sense");
  if (!(p = new_parcel("", 0, (int)n)) || !(a.places = lm_calloc(n, sizeof *a.places))) {
    status = LM_E_OOM;
    goto done;
  }
  a.nplaces = (int)n;
  for (uint32_t i = 0; i < n; i++) TRY(get_tensor(&r, &a, &p->tensors[i]));
  uint64_t bytes = lm_get_u64(&r);
  if (r.failed || bytes != (uint64_t)(r.end - r.at)) {
    status = lm_fail(LM_E_IO, "the message makes no sense");
    goto done;
  }
  char *text = lm_realloc(p->text, bytes);
  if (!text) {
    status = LM_E_OOM;
    goto done;
  }
  memcpy(text, r.at, bytes);
  p->text = text;
  p->n = bytes;
  *out = p;
  p = NULL;
done:
  for (int i = 0; i < a.nplaces; i++) lm_release(a.places[i]);
  lm_free(a.places);
  lm_parcel_free(p);
  return status;
}

static lm_status receive_parcel(int fd, lm_parcel **out, bool *closed) {
  lm_status status = LM_OK;
  int *fds = NULL, nfds = 0, room = 0, opened = 0;
  lm_segment **files = NULL;
  heading h = {.more = 1};
  while (h.more) {
    int *more = lm_realloc(fds, (size_t)(room + MOST_FDS) * sizeof *fds);
    if (!more) {
      status = LM_E_OOM;
      goto done;
    }
    fds = more;
    room += MOST_FDS;
    TRY(receive_message(fd, &h, fds, &nfds, room, closed));
    if (*closed) goto done;
  }
  if (nfds == 0) {
    status = lm_fail(LM_E_IO, "the message makes no sense");
    goto done;
  }
  if (!(files = lm_calloc((size_t)nfds, sizeof *files))) {
    status = LM_E_OOM;
    goto done;
  }
  for (; opened < nfds; opened++) {
    status = lm_segment_open(fds[opened], &files[opened]);
    if (status != LM_OK) {
      opened++; /* an error has closed it too */
      goto done;
    }
  }
  TRY(unpack(files[0], files + 1, nfds - 1, out));
done:
  for (int i = 0; files && i < opened; i++) lm_segment_release(files[i]);
  for (int i = opened; i < nfds; i++) close(fds[i]);
  lm_free(files);
  lm_free(fds);
  return status;
}

static lm_status receive_passed(int fd, lm_parcel **out, bool *closed) {
  ssize_t n;
  do { n = recv(fd, out, sizeof *out, MSG_DONTWAIT); } while (n < 0 && errno == EINTR);
  if (n == (ssize_t)sizeof *out) return LM_OK;
  *out = NULL;
  *closed = n == 0;
  return n < 0 && errno != EAGAIN ? broken(errno) : LM_OK;
}

lm_status lm_channel_receive(int fd, bool passed, double seconds, lm_parcel **out, bool *closed) {
  lm_status status = LM_OK;
  bool ready = true;
  *out = NULL;
  *closed = false;
  if (seconds >= 0) {
    TRY(wait_for(fd, POLLIN, lm_seconds() + seconds, &ready));
  } else if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1) < 0) {
    if (errno != EINTR) return broken(errno);
    ready = false;
  }
  if (ready) TRY(passed ? receive_passed(fd, out, closed) : receive_parcel(fd, out, closed));
done:
  return status;
}

void lm_channel_close(int fd, bool passed) {
  lm_parcel *p = NULL;
  bool closed = false;
  if (fd < 0) return;
  if (passed) shutdown(fd, SHUT_RD); /* nothing comes in any more; what has come can still be read */
  while (passed && receive_passed(fd, &p, &closed) == LM_OK && p) lm_parcel_free(p);
  close(fd);
}
