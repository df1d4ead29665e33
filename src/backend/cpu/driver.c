/* Allocates and copies memory of the CPU's devices: the process's own heap, shared by cpu:0, cpu:1, … */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/cpu.h"
#include "base/message.h"

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

static int count(void) { return LM_DEVICE_MAX; }

static lm_status cpu_alloc(int ordinal, size_t bytes, void **out) {
  if (posix_memalign(out, bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT, bytes) == 0) {
    if (bytes >= HUGE_PAGE) madvise(*out, bytes, MADV_HUGEPAGE);
    return LM_OK;
  }
  *out = NULL;
  return lm_fail_memory("%zu bytes on %s", bytes, lm_device_name(LM_DEVICE(LM_CPU, ordinal)));
}

static void cpu_free(int ordinal, void *p, size_t bytes) {
  (void)ordinal, (void)bytes;
  free(p);
}

static lm_status copy_host_bytes(void *stream, lm_device to, void *dst, lm_device from, const void *src, size_t bytes,
                                 bool later) {
  (void)stream, (void)to, (void)from, (void)later;
  if (bytes > 0) memmove(dst, src, bytes);
  return LM_OK;
}

static lm_status synchronize(int ordinal) {
  (void)ordinal;
  return LM_OK;
}

const lm_driver lm_cpu_driver = {
    .abi = LM_DRIVER_ABI,
    .name = "cpu",
    .count = count,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = copy_host_bytes,
    .synchronize = synchronize,
};
