#include "io/mapped_file.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/message.h"

lm_status lm_mapping_open(const char *path, int fd, size_t bytes, lm_mapping **out) {
  lm_mapping *m = lm_malloc(sizeof *m);
  if (!m) return LM_E_OOM;
  m->bytes = bytes;
  m->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (m->data == MAP_FAILED) {
    lm_free(m);
    return lm_fail_file("map", path, strerror(errno));
  }
  atomic_init(&m->rc, 1);
  lm_status status = lm_mapping_guard_new(path, m->data, bytes, &m->watched);
  if (status == LM_OK)
    *out = m;
  else
    lm_mapping_release(m);
  return status;
}

void lm_mapping_release(void *mapping) {
  lm_mapping *m = mapping;
  if (!m || atomic_fetch_sub_explicit(&m->rc, 1, memory_order_acq_rel) != 1) return;
  lm_mapping_guard_free(m->watched);
  munmap(m->data, m->bytes);
  lm_free(m);
}

lm_status lm_mapping_tensor(lm_mapping *m, lm_dtype dtype, int ndim, const int64_t *size, size_t at, size_t bytes,
                            lm_tensor **out) {
  atomic_fetch_add_explicit(&m->rc, 1, memory_order_relaxed);
  return lm_tensor_foreign(dtype, LM_DEVICE(LM_CPU, 0), ndim, size, m->data + at, bytes, lm_mapping_release, m, out);
}
