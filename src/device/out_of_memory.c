#include "device/out_of_memory.h"

#include "base/message.h"

#include <stdio.h>

static const char *size_text(size_t bytes, char text[32]) {
  static const char *const unit[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double n = (double)bytes;
  int u = 0;
  for (; n >= 1024 && u < 5; u++) n /= 1024;
  snprintf(text, 32, u == 0 ? "%.0f %s" : "%.1f %s", n, unit[u]);
  return text;
}

lm_status lm_out_of_memory(const lm_driver *driver, lm_device device, size_t bytes, const lm_memory_stats *stats,
                           size_t limit) {
  char request[32], reserved[32], allocated[32], capacity[32], size[32], available[80] = "", cap[80] = "";
  size_t left = 0, total = 0;
  if (driver->memory && driver->memory(lm_device_physical(device), &left, &total) == LM_OK)
    snprintf(available, sizeof available, "%s free of %s, ", size_text(left, capacity), size_text(total, size));
  if (limit) snprintf(cap, sizeof cap, ", limited to %s", size_text(limit, capacity));
  lm_fail_memory("%s on %s", size_text(bytes, request), lm_device_name(device));
  return lm_remedy(LM_E_OOM, "%s%s reserved by this process%s, %s of them allocated", available,
                   size_text(stats->reserved, reserved), cap, size_text(stats->allocated, allocated));
}
