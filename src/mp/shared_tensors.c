#include "mp/shared_tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/autograd.h"
#include "base/descriptor.h"
#include "base/file_size_limit.h"
#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "mp/ipc.h"

/* ---- segments */

LM_MUTEX(lock); /* protects the list and all counts */
static lm_segment *segments;

static void share_unmap(lm_segment *s) {
  if (s->base) munmap(s->base, s->bytes);
  if (s->fd >= 0) close(s->fd);
  lm_free(s);
}

void lm_segment_retain(lm_segment *s) {
  LM_LOCKED(&lock);
  s->rc++;
}

void lm_segment_release(lm_segment *s) {
  if (!s) return;
  pthread_mutex_lock(&lock);
  bool last = --s->rc == 0;
  if (last) LM_UNLINK(segments, s);
  pthread_mutex_unlock(&lock);
  if (last) share_unmap(s);
}

/* Maps s->fd and adds s to the list, or returns the segment of the same file that is mapped already. */
static lm_status share_enter(lm_segment *s, lm_segment **out) {
  lm_status status = LM_OK;
  struct stat file;
  if (fstat(s->fd, &file) != 0 || file.st_size <= 0) TRY(lm_fail(LM_E_IO, "shared memory: received an empty file"));
  s->device = (uint64_t)file.st_dev;
  s->inode = (uint64_t)file.st_ino;
  s->bytes = (size_t)file.st_size;
  pthread_mutex_lock(&lock);
  lm_segment *known = segments;
  while (known && (known->inode != s->inode || known->device != s->device)) known = known->next;
  if (known) known->rc++;
  pthread_mutex_unlock(&lock);
  if (known) {
    share_unmap(s);
    *out = known;
    return LM_OK;
  }
  void *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
  if (base == MAP_FAILED) TRY(lm_fail_cannot(LM_E_OOM, lm_text("map %zu bytes of shared memory", s->bytes), errno));
  s->base = base;
  s->rc = 1;
  pthread_mutex_lock(&lock);
  s->next = segments;
  segments = s;
  pthread_mutex_unlock(&lock);
  *out = s;
  s = NULL;
done:
  if (s) share_unmap(s);
  return status;
}

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

lm_status lm_segment_new(size_t bytes, lm_segment **out) {
  lm_status status = LM_OK;
  *out = NULL;
  lm_segment *s = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->fd = lm_fd_above_stdio(memfd_create("luminary", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int problem = s->fd < 0 ? errno : 0;
  lm_file_limit limit;
  lm_file_limit_begin(&limit);
  while (!problem && fallocate(s->fd, 0, 0, (off_t)bytes) != 0) {
    if (errno != EINTR) problem = errno;
  }
  lm_file_limit_end(&limit);
  if (!problem && fcntl(s->fd, F_ADD_SEALS, SEALS) != 0) problem = errno;
  if (problem) {
    bool lack = problem == ENOMEM || problem == ENOSPC || problem == EMFILE || problem == ENFILE;
    status = lm_fail_cannot(lack ? LM_E_OOM : LM_E_IO, lm_text("allocate %zu bytes of shared memory", bytes), problem);
    share_unmap(s);
    return status;
  }
  return share_enter(s, out);
}

lm_status lm_segment_open(int fd, lm_segment **out) {
  *out = NULL;
  lm_segment *s = lm_calloc(1, sizeof *s);
  if (!s) {
    close(fd);
    return LM_E_OOM;
  }
  s->fd = fd;
  /* Reject files that others may truncate under us: the next access would raise SIGBUS. */
  int seals = fcntl(fd, F_GET_SEALS); /* -1: not a memory file */
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    share_unmap(s);
    return lm_fail(LM_E_IO, "shared memory: received a file that is not a sealed memory file");
  }
  return share_enter(s, out);
}

static void release_owner(void *owner) { lm_segment_release(owner); }

lm_segment *lm_segment_of(const lm_tensor *t) {
  return t->storage->foreign_release == release_owner ? t->storage->owner : NULL;
}

bool lm_is_shared(const lm_tensor *t) {
  return t->storage->bytes == 0 || lm_segment_of(t) != NULL || lm_ipc_is_supported(t->device);
}

lm_status lm_segment_tensor(lm_segment *s, size_t offset, size_t bytes, lm_tensor **out) {
  *out = NULL;
  if (bytes == 0 || bytes > s->bytes || offset > s->bytes - bytes) {
    return lm_fail(LM_E_IO, "shared memory: a tensor of %zu bytes at %zu is outside its file of %zu", bytes, offset,
                   s->bytes);
  }
  const int64_t size[] = {(int64_t)bytes};
  lm_segment_retain(s);
  return lm_tensor_foreign(LM_U8, LM_DEVICE(LM_CPU, 0), 1, size, s->base + offset, bytes, release_owner, s, out);
}

/* ---- moving */

typedef struct mover { /* a tensor whose memory moves */
  lm_tensor *t;
  int which; /* index of the argument it belongs to */
  lm_tensor *position, *view;
} mover;

/* Orders by storage, then by tensor, so that equal ones are adjacent. */
static int by_storage(const void *a, const void *b) {
  const mover *x = a, *y = b;
  if (x->t->storage != y->t->storage) return x->t->storage < y->t->storage ? -1 : 1;
  return x->t < y->t ? -1 : x->t > y->t;
}

static int sorted(mover *list, int n) {
  int distinct = 0;
  qsort(list, (size_t)n, sizeof *list, by_storage);
  for (int i = 0; i < n; i++) {
    if (distinct == 0 || list[i].t != list[distinct - 1].t) list[distinct++] = list[i];
  }
  return distinct;
}

static int views_of(const lm_tensor *base, const mover *list, int n) {
  int found = 0;
  for (int i = 0; i < n; i++) found += lm_view_base(list[i].t) == base;
  return found;
}

/* Collects the tensors to move: the arguments, and bases that only views among them keep alive. `list` has room for two
 * per argument. */
static int share_gather(int n, lm_tensor *const *tensors, mover *list) {
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (!lm_is_shared(tensors[i])) list[count++] = (mover){.t = tensors[i], .which = i};
  }
  int known = count = sorted(list, count);
  for (int i = 0, group = 0; i < known; i++) {
    if (list[i].t->storage != list[group].t->storage) group = i;
    int end = i;
    while (end < known && list[end].t->storage == list[group].t->storage) end++;
    lm_tensor *base = lm_view_base(list[i].t);
    if (!base || base->storage != list[i].t->storage) continue;
    if (atomic_load(&base->rc) == views_of(base, list + group, end - group)) {
      list[count++] = (mover){.t = base, .which = list[i].which};
    }
  }
  return sorted(list, count);
}

static bool starts_group(const mover *list, int i) { return i == 0 || list[i].t->storage != list[i - 1].t->storage; }

/* Checks that all users of each storage move; *bytes is the segment's size. */
static lm_status share_check(const mover *list, int count, size_t *bytes, int *which) {
  *bytes = 0;
  for (int i = 0; i < count; i++) {
    const lm_storage *s = list[i].t->storage;
    if (!starts_group(list, i)) continue;
    int end = i;
    while (end < count && list[end].t->storage == s) end++;
    *which = list[i].which;
    if (LM_DEVICE_KIND(s->device) != LM_CPU) {
      return lm_fail(LM_E_DEVICE, "memory on %s cannot be shared with another process; send x:cpu()",
                     lm_device_name(s->device));
    }
    if (atomic_load(&s->rc) != end - i) {
      return lm_fail(LM_E_STATE, "it shares memory with a tensor that would not be moved");
    }
    *bytes += lm_round_up(s->bytes, 64);
  }
  return LM_OK;
}

/* Creates a view with t's dtype and layout over its copy in the segment. */
static lm_status view_like(lm_tensor *position, const lm_tensor *t, lm_tensor **out) {
  int64_t element = (int64_t)lm_dtype_size(t->dtype);
  int64_t offset = t->numel > 0 ? (t->data - (char *)t->storage->data) / element : 0;
  position->dtype = t->dtype; /* `position` is private: only its storage is used */
  position->device = t->device;
  return lm_tensor_view(position, t->ndim, t->size, t->stride, offset, out);
}

lm_status lm_share(int n, lm_tensor *const *tensors, int *which) {
  lm_status status = LM_OK;
  lm_segment *segment = NULL;
  int count = 0;
  *which = 0;
  mover *list = lm_calloc((size_t)n * 2, sizeof *list);
  if (!list) return LM_E_OOM;
  count = share_gather(n, tensors, list);
  size_t bytes, offset = 0;
  if (count == 0) goto done;
  TRY(share_check(list, count, &bytes, which));
  TRY(lm_segment_new(bytes, &segment));
  for (int i = 0; i < count; i++) {
    lm_storage *s = list[i].t->storage;
    if (starts_group(list, i)) {
      TRY(lm_segment_tensor(segment, offset, s->bytes, &list[i].position));
      memcpy(segment->base + offset, s->data, s->bytes);
      lm_storage *now = list[i].position->storage;
      now->device = s->device;
      atomic_store(&now->version, atomic_load(&s->version));
      atomic_store(&now->writer, atomic_load(&s->writer));
      offset += lm_round_up(s->bytes, 64);
    } else {
      list[i].position = lm_retain(list[i - 1].position);
    }
    TRY(view_like(list[i].position, list[i].t, &list[i].view));
  }
  TRY(lm_truncation_check());
  for (int i = 0; i < count; i++) lm_tensor_set_data(list[i].t, list[i].view);
done:
  for (int i = 0; i < count; i++) {
    lm_release(list[i].view);
    lm_release(list[i].position);
  }
  lm_free(list);
  lm_segment_release(segment);
  return status;
}

/* ---- other threads */

lm_status lm_share_again(int n, lm_tensor *const *tensors, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor **indices = lm_calloc((size_t)n, sizeof *indices); /* each segment's storage at its first tensor */
  if (!indices) return LM_E_OOM;
  for (int i = 0; i < n; i++) {
    lm_tensor *t = tensors[i];
    lm_storage *storage = t->storage;
    lm_segment *segment = lm_segment_of(t);
    if (!segment) {
      atomic_store(&storage->passed, true);
      TRY(lm_tensor_view(t, t->ndim, t->size, t->stride, 0, &out[i]));
    } else {
      int first = 0;
      while (tensors[first]->storage != storage) first++;
      size_t offset = (size_t)((char *)storage->data - segment->base);
      if (!indices[first]) TRY(lm_segment_tensor(segment, offset, storage->bytes, &indices[first]));
      indices[first]->storage->device = storage->device;
      TRY(view_like(indices[first], t, &out[i]));
    }
    if (lm_requires_grad(t)) TRY(lm_set_requires_grad(out[i], true));
  }
done:
  for (int i = 0; i < n; i++) lm_release(indices[i]);
  lm_free(indices);
  return status;
}
