#include "device/out_of_memory.h"

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
  char asked[32], reserved[32], allocated[32], capacity[32], whole[32], card[80] = "", most[80] = "";
  size_t left = 0, total = 0;
  if (driver->memory && driver->memory(lm_device_physical(device), &left, &total) == LM_OK)
    snprintf(card, sizeof card, "%s free of %s, ", size_text(left, capacity), size_text(total, whole));
  if (limit) snprintf(most, sizeof most, "; this process may reserve %s", size_text(limit, capacity));
  return lm_fail(LM_E_OOM, "out of memory on %s: %s asked for; %s%s reserved by this process of which %s allocated%s",
                 lm_device_name(device), size_text(bytes, asked), card, size_text(stats->reserved, reserved),
                 size_text(stats->allocated, allocated), most);
}
