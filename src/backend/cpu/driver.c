/* Memory of the CPU's devices: the process's own heap, shared by cpu:0, cpu:1, … */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"

enum { ALIGNMENT = 64 };

static int count(void) { return LM_DEVICE_MAX; }

static lm_status cpu_alloc(lm_device device, size_t bytes, void **out) {
  if (posix_memalign(out, ALIGNMENT, bytes) == 0) return LM_OK;
  *out = NULL;
  return lm_fail(LM_E_OOM, "out of memory on %s: %zu bytes", lm_device_name(device), bytes);
}

static void cpu_free(lm_device device, void *p, size_t bytes) {
  (void)device, (void)bytes;
  free(p);
}

static lm_status copy(lm_device to, void *dst, lm_device from, const void *src, size_t bytes) {
  (void)to, (void)from;
  if (bytes > 0) memmove(dst, src, bytes);
  return LM_OK;
}

static lm_status synchronize(lm_device device) {
  (void)device;
  return LM_OK;
}

const lm_driver lm_cpu_driver = {
    .abi = LM_DRIVER_ABI,
    .name = "cpu",
    .count = count,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = copy,
    .synchronize = synchronize,
};
