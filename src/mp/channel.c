#define _GNU_SOURCE
#include "mp/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "autograd/autograd.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "mp/lend.h"
#include "mp/share.h"

/* ---- parcels */

void lm_parcel_free(lm_parcel *p) {
  if (!p) return;
  for (int i = 0; i < p->ntensors; i++) lm_release(p->tensors[i]);
  for (int i = 0; i < p->nhandles; i++) lm_handle_free(p->handles[i]);
  lm_free(p->tensors);
  lm_free(p->handles);
  lm_free(p->text);
  lm_free(p);
}

static lm_parcel *new_parcel(const char *text, size_t n, int ntensors, int nhandles) {
  lm_parcel *p = lm_calloc(1, sizeof *p);
  if (p) {
    p->text = lm_malloc(n);
    p->tensors = lm_calloc((size_t)ntensors, sizeof *p->tensors);
    p->handles = lm_calloc((size_t)nhandles, sizeof *p->handles);
  }
  if (!p || !p->text || !p->tensors || !p->handles) {
    lm_parcel_free(p);
    return NULL;
  }
  memcpy(p->text, text, n);
  p->n = n;
  p->ntensors = ntensors;
  p->nhandles = nhandles;
  return p;
}

lm_status lm_parcel_new(const lm_content *c, lm_parcel **out) {
  lm_status status = LM_OK;
  *out = NULL;
  lm_parcel *p = new_parcel(c->text, c->n, c->ntensors, c->nhandles);
  if (!p) return LM_E_OOM;
  TRY(lm_share_again(c->ntensors, c->tensors, p->tensors));
  for (int i = 0; i < c->nhandles; i++) TRY(lm_handle_copy(c->handles[i], &p->handles[i]));
  *out = p;
  p = NULL;
done:
  lm_parcel_free(p);
  return status;
}

/* ---- sockets */

enum {
  MAGIC = 0x4c4d5033,
  MOST_FDS = 250,    /* the kernel's limit for a message is a little above */
  INLINE = 32 << 10, /* a body up to that is in the message itself */
  BUFFER = 1 << 20,  /* of a socket, if the system's net.core.wmem_max grants it */
  PATIENCE = 10      /* seconds */
};

/* Which follow: the body, or one descriptor more, first of all, of a memory file that holds it; the other descriptors,
 * or one of a socket in which they are. */
enum { BODY_IN_FILE = 1, FDS_IN_SOCKET = 2 };

typedef struct heading {
  uint32_t magic, nfds, flags, reserved;
  uint64_t number;
} heading;

lm_status lm_channel_pair(int fd[2]) {
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) != 0) {
    return lm_fail(LM_E_IO, "no pair of sockets to be had: %s", strerror(errno));
  }
  for (int i = 0; i < 2; i++) setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &(int){BUFFER}, sizeof(int));
  return LM_OK;
}

lm_status lm_connection_pair(lm_handle *out[2]) {
  int fd[2];
  lm_status status = lm_channel_pair(fd);
  if (status != LM_OK) return status;
  status = lm_handle_of(LM_CONNECTION, &fd[0], NULL, &out[0]);
  if (status != LM_OK) {
    close(fd[1]);
  } else if ((status = lm_handle_of(LM_CONNECTION, &fd[1], NULL, &out[1])) != LM_OK) {
    lm_handle_free(out[0]);
  }
  return status;
}

static lm_status broken(int error) {
  if (error == EPIPE || error == ECONNRESET || error == 0) return lm_fail(LM_E_IO, "closed");
  return lm_fail(LM_E_IO, "the connection broke: %s", strerror(error));
}

lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready) {
  enum { MOST = 1000000 };
  struct pollfd p = {.fd = fd, .events = events};
  int n = poll(&p, 1, seconds < 0 ? -1 : seconds > MOST ? MOST * 1000 : (int)(seconds * 1000 + 0.999));
  *ready = n > 0;
  return n < 0 && errno != EINTR ? broken(errno) : LM_OK;
}

/* One message. *sent is false, and nothing was sent, where there is no room. */
static lm_status send_message(int fd, const heading *h, const void *body, size_t n, const int *fds, bool *sent) {
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
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
  /* ETOOMANYREFS: too many descriptors under way */
  return k >= 0 || errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? LM_OK : broken(errno);
}

typedef struct luggage { /* descriptors that came; -1: taken */
  int *fd;
  uint32_t n, next;
} luggage;

static int take_fd(luggage *l) {
  if (l->next >= l->n) return -1;
  int fd = l->fd[l->next];
  l->fd[l->next++] = -1;
  return fd;
}

static void drop_luggage(luggage *l) {
  for (uint32_t i = l->next; i < l->n; i++) close(l->fd[i]);
  lm_free(l->fd);
  *l = (luggage){0};
}

static lm_status put_luggage(luggage *l, const struct cmsghdr *c) {
  uint32_t count = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  int *more = lm_realloc(l->fd, (l->n + count) * sizeof *more);
  if (more) l->fd = more;
  for (uint32_t i = 0; i < count; i++) {
    int fd;
    memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
    if (more) {
      more[l->n++] = fd;
    } else {
      close(fd);
    }
  }
  return more ? LM_OK : LM_E_OOM;
}

/* One message, if there is one: *got. Its descriptors are appended to l; *n becomes the number of bytes in body. */
static lm_status receive_message(int fd, heading *h, void *body, size_t *n, luggage *l, bool *got, bool *closed) {
  lm_status status = LM_OK;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST_FDS * sizeof(int))];
  struct iovec parts[] = {{h, sizeof *h}, {body, *n}};
  struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control};
  uint32_t before = l->n;
  ssize_t k;
  *got = false;
  /* ECONNRESET is told once: the other side closed without reading all; what it sent before that is still there. */
  do { k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); } while (k < 0 && (errno == EINTR || errno == ECONNRESET));
  if (k < 0) return errno == EAGAIN ? LM_OK : broken(errno);
  if (k == 0) {
    *closed = true;
    return LM_OK;
  }
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    lm_status problem = put_luggage(l, c);
    if (problem != LM_OK) status = problem;
  }
  if (status != LM_OK) return lm_fail(LM_E_IO, "there was no memory for what came, and it is lost");
  if (m.msg_flags & MSG_CTRUNC) return lm_fail(LM_E_IO, "descriptors were lost: this process has too many open");
  if ((size_t)k < sizeof *h || (m.msg_flags & MSG_TRUNC) || h->magic != MAGIC || h->nfds != l->n - before) {
    return lm_fail(LM_E_IO, "the message makes no sense");
  }
  *n = (size_t)k - sizeof *h;
  *got = true;
  return LM_OK;
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
  uint32_t nfiles;
  lm_tensor **places; /* for each storage number, a tensor over it; filled as they come */
  int nplaces;
  lm_borrowing *borrowing;
} arrival;

static lm_status get_tensor(lm_reader *r, arrival *a, lm_tensor **out) {
  uint32_t file = lm_get_u32(r), number = lm_get_u32(r);
  uint64_t at = lm_get_u64(r), bytes = lm_get_u64(r), offset = lm_get_u64(r);
  int dtype = lm_get_u8(r);
  lm_device device = (lm_device)lm_get_u32(r);
  bool requires_grad = lm_get_u8(r);
  int ndim = lm_get_u8(r);
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  bool on_cpu = LM_DEVICE_KIND(device) == LM_CPU;
  if (ndim > LM_MAX_DIMS || dtype >= LM_DTYPE_COUNT || (on_cpu && LM_DEVICE_ORDINAL(device) >= LM_DEVICE_MAX)) {
    r->failed = true;
  }
  for (int d = 0; d < ndim && !r->failed; d++) {
    size[d] = (int64_t)lm_get_u64(r);
    stride[d] = (int64_t)lm_get_u64(r);
  }
  if (r->failed || number >= (uint32_t)a->nplaces) return lm_fail(LM_E_IO, "the message makes no sense");
  lm_status status = LM_OK;
  lm_tensor **place = &a->places[number];
  if (!on_cpu) TRY(lm_borrow_device(r, &device));
  if (bytes == 0) {
    TRY(lm_tensor_empty((lm_dtype)dtype, device, ndim, size, LM_CONTIGUOUS, out));
  } else {
    if (!*place && !on_cpu) TRY(lm_borrow(a->borrowing, r, device, bytes, place));
    if (!*place) {
      if (file >= a->nfiles) return lm_fail(LM_E_IO, "the message makes no sense");
      TRY(lm_segment_tensor(a->files[file], at, bytes, place));
    }
    (*place)->dtype = (int8_t)dtype; /* it only lends its storage */
    if (on_cpu) (*place)->device = (*place)->storage->device = device;
    TRY(lm_tensor_view(*place, ndim, size, stride, (int64_t)offset, out));
  }
  if (requires_grad) TRY(lm_set_requires_grad(*out, true));
done:
  return status;
}

/* ---- handles as text: their kind and file; their sockets come after all files */

enum { NO_FILE = UINT32_MAX };

static lm_status get_handle(lm_reader *r, const arrival *a, luggage *l, lm_handle **out) {
  lm_handle_kind kind = (lm_handle_kind)lm_get_u8(r);
  uint32_t file = lm_get_u32(r);
  int fds[LM_HANDLE_SOCKETS];
  if (r->failed || (file != NO_FILE && file >= a->nfiles)) return lm_fail(LM_E_IO, "the message makes no sense");
  for (int i = 0; i < lm_handle_sockets(kind); i++) fds[i] = take_fd(l);
  lm_segment *words = file == NO_FILE ? NULL : a->files[file];
  if (words) lm_segment_retain(words);
  return lm_handle_of(kind, fds, words, out);
}

/* ---- sending */

struct lm_letter {
  lm_parcel *kept; /* keeps the descriptors open */
  lm_lending *lending;
  lm_segment *file; /* the body's, if it is long */
  lm_bytes body;    /* u32 tensors, files, leases, handles; the tensors, the handles, the text */
  int *fds;
  uint32_t nfds;
};

void lm_letter_free(lm_letter *l) {
  if (!l) return;
  lm_lending_free(l->lending);
  lm_parcel_free(l->kept);
  lm_segment_release(l->file);
  lm_bytes_free(&l->body);
  lm_free(l->fds);
  lm_free(l);
}

/* The number of s among the files from fds[first] on. */
static uint32_t file_number(lm_letter *l, uint32_t first, const lm_segment *s) {
  uint32_t i = first;
  while (i < l->nfds && l->fds[i] != s->fd) i++;
  if (i == l->nfds) l->fds[l->nfds++] = s->fd;
  return i - first;
}

static lm_status put_things(lm_letter *l, uint32_t first) {
  const lm_parcel *p = l->kept;
  lm_status status = LM_OK;
  lm_storage **storages = lm_calloc((size_t)p->ntensors, sizeof *storages);
  if (!storages) return LM_E_OOM;
  int nstorages = 0;
  for (int i = 0; i < p->ntensors; i++) {
    const lm_tensor *t = p->tensors[i];
    const lm_segment *s = lm_segment_of(t);
    int storage = 0;
    bool on_cpu = LM_DEVICE_KIND(t->device) == LM_CPU;
    if (!s && on_cpu && t->storage->bytes > 0) TRY(lm_fail(LM_E_STATE, "tensor %d is not in shared memory", i + 1));
    while (storage < nstorages && storages[storage] != t->storage) storage++;
    bool is_new = storage == nstorages;
    if (is_new) storages[nstorages++] = t->storage;
    put_tensor(&l->body, t, s ? file_number(l, first, s) : 0, (uint32_t)storage);
    if (on_cpu) continue;
    TRY(lm_lend_put_device(&l->body, t->device));
    if (is_new && t->storage->bytes > 0) TRY(lm_lending_put(l->lending, i, &l->body));
  }
  for (int i = 0; i < p->nhandles; i++) {
    const lm_handle *h = p->handles[i];
    lm_put_u8(&l->body, (uint8_t)h->kind);
    lm_put_u32(&l->body, h->words ? file_number(l, first, h->words) : NO_FILE);
  }
done:
  lm_free(storages);
  return status;
}

/* A body that is long becomes a file of its own. */
static lm_status finish_body(lm_letter *l, const lm_content *c, uint32_t first) {
  size_t n = l->body.n + c->n;
  uint32_t files = l->nfds - first;
  if (!l->body.failed) memcpy(l->body.data + sizeof(uint32_t), &files, sizeof files);
  if (n <= INLINE) {
    lm_put(&l->body, c->text, c->n);
    return l->body.failed ? LM_E_OOM : LM_OK;
  }
  if (l->body.failed) return LM_E_OOM;
  lm_status status = lm_segment_new(n, &l->file);
  if (status != LM_OK) return status;
  memcpy(l->file->base, l->body.data, l->body.n);
  memcpy(l->file->base + l->body.n, c->text, c->n);
  l->fds[0] = l->file->fd;
  lm_bytes_free(&l->body);
  return LM_OK;
}

lm_status lm_letter_new(const lm_content *c, lm_letter **out) {
  lm_status status = LM_OK;
  const uint32_t first = 1; /* fds[0] is the body's place */
  *out = NULL;
  lm_letter *l = lm_calloc(1, sizeof *l);
  if (!l ||
      !(l->fds = lm_calloc((size_t)(2 * c->ntensors + 1 + c->nhandles * (1 + LM_HANDLE_SOCKETS)) + first, sizeof(int))))
    TRY(LM_E_OOM);
  l->nfds = first;
  lm_content things = *c;
  things.n = 0;
  TRY(lm_parcel_new(&things, &l->kept));
  TRY(lm_lending_new(l->kept->ntensors, l->kept->tensors, &l->lending));
  int *leases = l->fds + c->ntensors + c->nhandles + first; /* behind all files there may be */
  uint32_t nleases = lm_lending_descriptors(l->lending, leases);
  lm_put_u32(&l->body, (uint32_t)c->ntensors);
  lm_put_u32(&l->body, 0);
  lm_put_u32(&l->body, nleases);
  lm_put_u32(&l->body, (uint32_t)c->nhandles);
  TRY(put_things(l, first));
  TRY(finish_body(l, c, first));
  memmove(l->fds + l->nfds, leases, nleases * sizeof *leases);
  l->nfds += nleases;
  for (int i = 0; i < c->nhandles; i++) {
    for (int k = 0; k < lm_handle_sockets(c->handles[i]->kind); k++) l->fds[l->nfds++] = l->kept->handles[i]->fd[k];
  }
  *out = l;
  l = NULL;
done:
  lm_letter_free(l);
  return status;
}

/* More descriptors than a message takes go into a socket of their own, and that is sent. */
static lm_status fill_socket(const int *fds, uint32_t n, int *out, bool *room) {
  lm_status status = LM_OK;
  int ends[2] = {-1, -1};
  *room = true;
  TRY(lm_channel_pair(ends));
  for (uint32_t at = 0; at < n && *room; at += MOST_FDS) {
    heading h = {.magic = MAGIC, .nfds = n - at < MOST_FDS ? n - at : MOST_FDS};
    TRY(send_message(ends[0], &h, "", 0, fds + at, room));
  }
done:
  if (ends[0] >= 0) close(ends[0]);
  if (status == LM_OK && *room) {
    *out = ends[1];
  } else if (ends[1] >= 0) {
    close(ends[1]);
  }
  return status;
}

uint32_t lm_letter_descriptors(const lm_letter *l) { return l->nfds - 1; }

lm_status lm_letter_post(int fd, lm_letter *l, uint64_t number, bool *sent) {
  lm_status status = LM_OK;
  const int *fds = l->file ? l->fds : l->fds + 1;
  heading h = {MAGIC, l->file ? l->nfds : l->nfds - 1, l->file ? BODY_IN_FILE : 0, 0, number};
  int bundle = -1;
  *sent = false;
  if (h.nfds > MOST_FDS) {
    bool room;
    TRY(fill_socket(fds, h.nfds, &bundle, &room));
    if (!room) return LM_OK;
    fds = &bundle;
    h.nfds = 1;
    h.flags |= FDS_IN_SOCKET;
  }
  TRY(send_message(fd, &h, l->body.data, l->body.n, fds, sent));
done:
  if (bundle >= 0) close(bundle);
  return status;
}

lm_status lm_channel_send(int fd, const lm_content *c) {
  lm_letter *l;
  lm_status status = lm_letter_new(c, &l);
  if (status != LM_OK) return status;
  double deadline = lm_seconds() + PATIENCE;
  for (;;) {
    bool sent, ready;
    TRY(lm_letter_post(fd, l, 0, &sent));
    if (sent) break;
    if (lm_seconds() > deadline) {
      status = lm_fail(LM_E_IO, "the other side does not read what it is sent");
      break;
    }
    TRY(lm_channel_wait(fd, POLLOUT, 1, &ready));
    if (ready) usleep(1000); /* too many descriptors under way */
  }
done:
  lm_letter_free(l);
  return status;
}

lm_status lm_channel_pass(int fd, lm_parcel *parcel) {
  ssize_t n;
  do { n = send(fd, &parcel, sizeof parcel, MSG_NOSIGNAL | MSG_DONTWAIT); } while (n < 0 && errno == EINTR);
  if (n == (ssize_t)sizeof parcel) return LM_OK;
  return n < 0 && errno == EAGAIN ? lm_fail(LM_E_IO, "the other side does not read what it is sent") : broken(errno);
}

/* ---- receiving */

static lm_status unpack(const char *body, size_t n, luggage *l, lm_parcel **out) {
  lm_status status = LM_OK;
  arrival a = {0};
  lm_parcel *p = NULL;
  lm_reader r = lm_reader_of(body, n);
  uint32_t ntensors = lm_get_u32(&r), nfiles = lm_get_u32(&r), nleases = lm_get_u32(&r), nhandles = lm_get_u32(&r);
  uint32_t there = l->n - l->next;
  if (r.failed || ntensors > n / 32 || nhandles > n / 5 || nfiles > there || nleases > there - nfiles) {
    return lm_fail(LM_E_IO, "the message makes no sense");
  }
  if (!(p = new_parcel("", 0, (int)ntensors, (int)nhandles)) || !(a.places = lm_calloc(ntensors, sizeof *a.places)) ||
      !(a.files = lm_calloc(nfiles, sizeof *a.files)))
    TRY(LM_E_OOM);
  a.nplaces = (int)ntensors;
  for (; a.nfiles < nfiles; a.nfiles++) TRY(lm_segment_open(take_fd(l), &a.files[a.nfiles]));
  l->next += nleases;
  TRY(lm_borrowing_new(nleases, l->fd + l->next - nleases, &a.borrowing));
  for (uint32_t i = 0; i < ntensors; i++) TRY(get_tensor(&r, &a, &p->tensors[i]));
  for (uint32_t i = 0; i < nhandles; i++) TRY(get_handle(&r, &a, l, &p->handles[i]));
  size_t bytes = (size_t)(r.end - r.at);
  char *text = lm_realloc(p->text, bytes);
  if (!text) TRY(LM_E_OOM);
  memcpy(text, r.at, bytes);
  p->text = text;
  p->n = bytes;
  *out = p;
  p = NULL;
done:
  for (int i = 0; i < a.nplaces; i++) lm_release(a.places[i]);
  for (uint32_t i = 0; i < a.nfiles; i++) lm_segment_release(a.files[i]);
  lm_borrowing_free(a.borrowing);
  lm_free(a.places);
  lm_free(a.files);
  lm_parcel_free(p);
  return status;
}

static lm_status empty_socket(luggage *l) {
  lm_status status = LM_OK;
  int fd = take_fd(l);
  luggage all = {0};
  bool got = true, closed = false;
  while (got) {
    heading h;
    size_t n = 0;
    TRY(receive_message(fd, &h, NULL, &n, &all, &got, &closed));
  }
  drop_luggage(l);
  *l = all;
  all = (luggage){0};
done:
  drop_luggage(&all);
  if (fd >= 0) close(fd);
  return status;
}

static bool peek(int fd, heading *h) {
  ssize_t k;
  do { k = recv(fd, h, sizeof *h, MSG_PEEK | MSG_DONTWAIT); } while (k < 0 && (errno == EINTR || errno == ECONNRESET));
  return k == (ssize_t)sizeof *h;
}

bool lm_letter_peek(int fd, uint64_t *number) {
  heading h;
  bool there = peek(fd, &h);
  *number = there ? h.number : 0;
  return there;
}

/* Where descriptors cannot be taken in, they would be lost with their message. */
static lm_status check_room(int fd, uint32_t n) {
  int all[MOST_FDS + 1], error = 0;
  uint32_t had = 0;
  if (n > MOST_FDS + 1) return LM_OK; /* the message makes no sense */
  while (had < n && (all[had] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0) had++;
  if (had < n) error = errno;
  for (uint32_t i = 0; i < had; i++) close(all[i]);
  return error ? lm_fail(LM_E_OOM, "its descriptors cannot be taken in: %s", strerror(error)) : LM_OK;
}

lm_status lm_letter_take(int fd, lm_parcel **out, bool *closed) {
  lm_status status = LM_OK;
  char body[INLINE];
  size_t n = sizeof body;
  heading h;
  luggage l = {0};
  lm_segment *file = NULL;
  bool got = false;
  *out = NULL;
  if (peek(fd, &h)) TRY(check_room(fd, h.nfds));
  TRY(receive_message(fd, &h, body, &n, &l, &got, closed));
  if (!got) goto done;
  if (h.flags & FDS_IN_SOCKET) TRY(empty_socket(&l));
  if (h.flags & BODY_IN_FILE) TRY(lm_segment_open(take_fd(&l), &file));
  TRY(file ? unpack(file->base, file->bytes, &l, out) : unpack(body, n, &l, out));
done:
  /* Not to be tried again: the message has left the socket. */
  if (status == LM_E_OOM && got) status = lm_fail(LM_E_IO, "there was no memory for what came, and it is lost");
  lm_segment_release(file);
  drop_luggage(&l);
  return status;
}

static lm_status receive_passed(int fd, lm_parcel **out, bool *closed) {
  ssize_t n;
  do { n = recv(fd, out, sizeof *out, MSG_DONTWAIT); } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n == (ssize_t)sizeof *out) return LM_OK;
  *out = NULL;
  *closed = n == 0;
  return n < 0 && errno != EAGAIN ? broken(errno) : LM_OK;
}

lm_status lm_channel_receive(int fd, bool passed, double seconds, lm_parcel **out, bool *closed) {
  lm_status status = LM_OK;
  double deadline = lm_seconds() + seconds;
  bool ready;
  *out = NULL;
  *closed = false;
  do {
    double left = deadline - lm_seconds();
    TRY(lm_channel_wait(fd, POLLIN, seconds < 0 ? -1 : left > 0 ? left : 0, &ready));
  } while (!ready && seconds > 0 && lm_seconds() < deadline);
  if (ready) TRY(passed ? receive_passed(fd, out, closed) : lm_letter_take(fd, out, closed));
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
