/* Packs messages into bytes and descriptors for another process, and unpacks them. */
#include <string.h>

#include "autograd/autograd.h"
#include "base/bytes.h"
#include "base/large_array.h"
#include "base/mem.h"
#include "mp/channel.h"
#include "mp/datagram.h"
#include "mp/ipc.h"
#include "mp/shared_tensors.h"

enum {
  INLINE = 32 << 10 /* bytes; a body up to that is in the message itself */,
  FIRST = 1 /* fds[0] is the body's */
};

/* ---- tensors as bytes: file, position in it, layout */

static void put_tensor(lm_bytes *b, const lm_tensor *t, uint32_t file, uint32_t storage) {
  const lm_segment *s = lm_segment_of(t);
  size_t element = lm_dtype_size(t->dtype);
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

typedef struct arrival { /* a message being unpacked */
  lm_segment **files;
  uint32_t nfiles;
  lm_tensor **indices; /* for each storage number, a tensor over it; filled on arrival */
  int nplaces;
  lm_ipc_import *ipc_import;
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
  if (r->failed || number >= (uint32_t)a->nplaces) return lm_datagram_malformed();
  lm_tensor **position = &a->indices[number];
  if (!on_cpu) NEED(lm_ipc_get_device(r, &device));
  if (bytes == 0) {
    NEED(lm_tensor_empty((lm_dtype)dtype, device, ndim, size, LM_CONTIGUOUS, out));
  } else {
    if (!*position && !on_cpu) NEED(lm_ipc_import_tensor(a->ipc_import, r, device, bytes, position));
    if (!*position) {
      if (file >= a->nfiles) return lm_datagram_malformed();
      NEED(lm_segment_tensor(a->files[file], at, bytes, position));
    }
    (*position)->dtype = dtype; /* only its storage is used */
    if (on_cpu) (*position)->device = (*position)->storage->device = device;
    NEED(lm_tensor_view(*position, ndim, size, stride, (int64_t)offset, out));
  }
  if (requires_grad) NEED(lm_set_requires_grad(*out, true));
  return LM_OK;
}

/* ---- handles as bytes: kind and file; their sockets follow all files */

enum { NO_FILE = UINT32_MAX };

static lm_status get_handle(lm_reader *r, const arrival *a, lm_received_fds *l, lm_handle **out) {
  lm_handle_kind kind = (lm_handle_kind)lm_get_u8(r);
  uint32_t file = lm_get_u32(r);
  int fds[LM_HANDLE_SOCKETS];
  if (r->failed || (file != NO_FILE && file >= a->nfiles)) return lm_datagram_malformed();
  for (int i = 0; i < lm_handle_sockets(kind); i++) fds[i] = lm_received_fds_take(l);
  lm_segment *words = file == NO_FILE ? NULL : a->files[file];
  if (words) lm_segment_retain(words);
  return lm_handle_make(kind, fds, words, out);
}

/* ---- sending */

void lm_packed_message_free(lm_packed_message *l) {
  if (!l) return;
  lm_ipc_export_free(l->ipc_export);
  lm_mp_message_free(l->contents);
  lm_segment_release(l->file);
  lm_bytes_free(&l->body);
  lm_free(l->fds);
  lm_free(l);
}

/* Returns the number of s among the files; appends it if new. */
static uint32_t file_number(lm_packed_message *l, const lm_segment *s) {
  uint32_t i = FIRST;
  while (i < l->nfds && l->fds[i] != s->fd) i++;
  if (i == l->nfds) l->fds[l->nfds++] = s->fd;
  return i - FIRST;
}

static lm_status put_things(lm_packed_message *l) {
  const lm_mp_message *p = l->contents;
  LM_FREED lm_storage **storages = lm_calloc((size_t)p->ntensors, sizeof *storages);
  if (!storages) return LM_E_OOM;
  int nstorages = 0;
  for (int i = 0; i < p->ntensors; i++) {
    const lm_tensor *t = p->tensors[i];
    const lm_segment *s = lm_segment_of(t);
    int storage = 0;
    bool on_cpu = LM_DEVICE_KIND(t->device) == LM_CPU;
    if (!s && on_cpu && t->storage->bytes > 0) return lm_fail(LM_E_STATE, "tensor %d is not in shared memory", i + 1);
    while (storage < nstorages && storages[storage] != t->storage) storage++;
    bool is_new = storage == nstorages;
    if (is_new) storages[nstorages++] = t->storage;
    put_tensor(&l->body, t, s ? file_number(l, s) : 0, (uint32_t)storage);
    if (on_cpu) continue;
    NEED(lm_ipc_put_device(&l->body, t->device));
    if (is_new && t->storage->bytes > 0) NEED(lm_ipc_export_put(l->ipc_export, i, &l->body));
  }
  for (int i = 0; i < p->nhandles; i++) {
    const lm_handle *h = p->handles[i];
    lm_put_u8(&l->body, (uint8_t)h->kind);
    lm_put_u32(&l->body, h->words ? file_number(l, h->words) : NO_FILE);
  }
  return LM_OK;
}

/* Completes the body with the text; moves a long body to a memory file. */
static lm_status finish_body(lm_packed_message *l, const lm_mp_message *c) {
  size_t n = l->body.n + c->n;
  uint32_t files = l->nfds - FIRST;
  if (!l->body.failed) memcpy(l->body.data + sizeof(uint32_t), &files, sizeof files);
  if (n <= INLINE) {
    lm_put(&l->body, c->text, c->n);
    return l->body.failed ? LM_E_OOM : LM_OK;
  }
  if (l->body.failed) return LM_E_OOM;
  NEED(lm_segment_new(n, &l->file));
  memcpy(l->file->base, l->body.data, l->body.n);
  memcpy(l->file->base + l->body.n, c->text, c->n);
  l->fds[0] = l->file->fd;
  lm_bytes_free(&l->body);
  return LM_OK;
}

lm_status lm_packed_message_new(lm_handle_kind kind, const lm_mp_message *c, lm_packed_message **out) {
  lm_status status = LM_OK;
  lm_mp_message things = *c;
  *out = NULL;
  lm_packed_message *l = lm_calloc(1, sizeof *l);
  if (!l) return LM_E_OOM;
  l->nfds = FIRST;
  l->is_passed = kind == LM_THREAD_CONNECTION;
  if (!l->is_passed) things.n = 0;
  TRY(lm_mp_message_new(&things, &l->contents));
  if (l->is_passed) {
    *out = l;
    return LM_OK;
  }
  l->fds = lm_calloc((size_t)(2 * c->ntensors + 1 + c->nhandles * (1 + LM_HANDLE_SOCKETS)) + FIRST, sizeof *l->fds);
  if (!l->fds) TRY(LM_E_OOM);
  TRY(lm_ipc_export_new(l->contents->ntensors, l->contents->tensors, &l->ipc_export));
  int *refcounts = l->fds + c->ntensors + c->nhandles + FIRST; /* behind the largest possible number of files */
  uint32_t nrefcounts = lm_ipc_export_descriptors(l->ipc_export, refcounts);
  lm_put_u32(&l->body, (uint32_t)c->ntensors);
  lm_put_u32(&l->body, 0);
  lm_put_u32(&l->body, nrefcounts);
  lm_put_u32(&l->body, (uint32_t)c->nhandles);
  TRY(put_things(l));
  TRY(finish_body(l, c));
  memmove(l->fds + l->nfds, refcounts, nrefcounts * sizeof *refcounts);
  l->nfds += nrefcounts;
  for (int i = 0; i < c->nhandles; i++) {
    for (int k = 0; k < lm_handle_sockets(c->handles[i]->kind); k++) l->fds[l->nfds++] = l->contents->handles[i]->fd[k];
  }
  *out = l;
  l = NULL;
done:
  lm_packed_message_free(l);
  return status;
}

/* Sends the address of the contents, which the receiver then owns. */
static lm_status pass_contents(int fd, lm_packed_message *l, bool *sent) {
  lm_datagram_header h = {.flags = LM_BODY_PASSED, .number = (uintptr_t)l->contents};
  lm_mp_message_depart(l->contents);
  lm_status status = lm_datagram_send(fd, &h, "", 0, NULL, sent);
  if (*sent)
    l->contents = NULL;
  else
    lm_mp_message_arrive(l->contents);
  return status;
}

lm_status lm_packed_message_send(int fd, lm_packed_message *l, uint64_t number, bool *sent) {
  if (l->is_passed) return pass_contents(fd, l, sent);
  lm_datagram_header h = {
      .nfds = l->file ? l->nfds : l->nfds - FIRST, .flags = l->file ? LM_BODY_IN_FILE : 0, .number = number};
  return lm_datagram_send(fd, &h, l->body.data, l->body.n, l->file ? l->fds : l->fds + FIRST, sent);
}

/* ---- receiving */

static lm_status unpack_body(const char *body, size_t n, lm_received_fds *l, lm_mp_message **out) {
  lm_status status = LM_OK;
  arrival a = {0};
  lm_mp_message *p = NULL;
  lm_reader r = lm_reader_of(body, n);
  uint32_t ntensors = lm_get_u32(&r), nfiles = lm_get_u32(&r), nrefcounts = lm_get_u32(&r), nhandles = lm_get_u32(&r);
  uint32_t there = l->n - l->next;
  if (r.failed || ntensors > n / 32 || nhandles > n / 5 || nfiles > there || nrefcounts > there - nfiles) {
    return lm_datagram_malformed();
  }
  if (!(p = lm_mp_message_empty("", 0, (int)ntensors, (int)nhandles)) ||
      !(a.indices = lm_calloc(ntensors, sizeof *a.indices)) || !(a.files = lm_calloc(nfiles, sizeof *a.files)))
    TRY(LM_E_OOM);
  a.nplaces = (int)ntensors;
  for (; a.nfiles < nfiles; a.nfiles++) TRY(lm_segment_open(lm_received_fds_take(l), &a.files[a.nfiles]));
  l->next += nrefcounts;
  TRY(lm_ipc_import_new(nrefcounts, l->fd + l->next - nrefcounts, &a.ipc_import));
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
  for (int i = 0; i < a.nplaces; i++) lm_release(a.indices[i]);
  for (uint32_t i = 0; i < a.nfiles; i++) lm_segment_release(a.files[i]);
  lm_ipc_import_free(a.ipc_import);
  lm_free(a.indices);
  lm_free(a.files);
  lm_mp_message_free(p);
  return status;
}

lm_status lm_packed_message_receive(int fd, lm_mp_message **out, bool *closed) {
  lm_status status = LM_OK;
  LM_LARGE(char, body, INLINE);
  size_t n = INLINE;
  lm_datagram_header h;
  lm_received_fds l = {0};
  lm_segment *file = NULL;
  bool got = false;
  *out = NULL;
  TRY(lm_datagram_receive(fd, &h, body, &n, &l, &got, closed));
  if (!got) goto done;
  if (h.flags & LM_BODY_PASSED) {
    lm_mp_message *passed = (lm_mp_message *)(uintptr_t)h.number;
    if (!lm_mp_message_arrive(passed)) TRY(lm_datagram_foreign(fd));
    *out = passed;
    goto done;
  }
  if (h.flags & LM_BODY_IN_FILE) TRY(lm_segment_open(lm_received_fds_take(&l), &file));
  TRY(file ? unpack_body(file->base, file->bytes, &l, out) : unpack_body(body, n, &l, out));
done:
  /* LM_E_OOM would mean a retry, but the message has left the socket. */
  if (status == LM_E_OOM && got) status = lm_fail(LM_E_IO, "out of memory: a received message is lost");
  lm_segment_release(file);
  lm_received_fds_close(&l);
  return status;
}
