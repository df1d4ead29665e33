#include "device/memory_count.h"

#include <stdio.h>

#include "base/message.h"
#include "base/thread.h"

static lm_memory_count counts[LM_DEVICE_KINDS][LM_DEVICE_MAX] = {
    [0 ... LM_DEVICE_KINDS - 1][0 ... LM_DEVICE_MAX - 1].lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void watch_forks(void) { lm_lock_at_fork(&counts[LM_CPU][0].lock); }

lm_memory_count *lm_memory_count_of(lm_device device) {
  return &counts[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)];
}

lm_memory_stats lm_memory_stats_of(lm_device device) {
  lm_memory_count *m = lm_memory_count_of(device);
  LM_LOCKED(&m->lock);
  return m->stats;
}

void lm_memory_reset_peak(lm_device device) {
  lm_memory_count *m = lm_memory_count_of(device);
  LM_LOCKED(&m->lock);
  m->stats.max_allocated = m->stats.allocated;
  m->stats.max_reserved = m->stats.reserved;
}

static const char *size_text(size_t bytes, char text[32]) {
  static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double n = (double)bytes;
  int u = 0;
  for (; n >= 1024 && u < 5; u++) n /= 1024;
  lm_write(text, 32, u == 0 ? "%.0f %s" : "%.1f %s", n, unit[u]);
  return text;
}

lm_status lm_out_of_memory(const lm_driver *driver, lm_device device, size_t bytes) {
  const lm_memory_stats stats = lm_memory_stats_of(device);
  const size_t limit = lm_memory_count_of(device)->limit;
  char request[32], reserved[32], allocated[32], capacity[32], size[32], available[80] = "", cap[80] = "";
  size_t left = 0, total = 0;
  if (driver->memory && driver->memory(lm_device_physical(device), &left, &total) == LM_OK)
    snprintf(available, sizeof available, "%s free of %s, ", size_text(left, capacity), size_text(total, size));
  if (limit) snprintf(cap, sizeof cap, ", limited to %s", size_text(limit, capacity));
  lm_fail_memory("%s on %s", size_text(bytes, request), lm_device_name(device));
  return lm_remedy(LM_E_OOM, "%s%s reserved by this process%s, %s of them allocated", available,
                   size_text(stats.reserved, reserved), cap, size_text(stats.allocated, allocated));
}
