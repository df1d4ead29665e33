#include "base/cache_size.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/environment_variable.h"

/* Bytes: the default for a system that reports none, and the maximum to rely on. A server's CPU reports hundreds of MB,
 * which dozens of cores share, those of other virtual machines among them. */
enum { UNKNOWN = 8 << 20, LARGEST_SHARE = 32 << 20 };

static size_t cache_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Returns the largest cache in bytes, from files such as "32768K"; 0 without any. In a virtual machine they show the
 * part its cores share, while the CPU's registers, which sysconf reads, report the complete package's. */
static size_t reported_by_sysfs(void) {
  size_t largest = 0;
  for (int index = 0; index < 8; index++) {
    char path[64], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    if (!lm_read_start(path, text, sizeof text)) break;
    size_t bytes = (size_t)strtoull(text, NULL, 10) << 10;
    if (bytes > largest) largest = bytes;
  }
  return largest;
}

static void read_size(void) {
  const char *set = lm_variable_get(LM_VAR_CACHE_BYTES);
  long long bytes = set ? strtoll(set, NULL, 10) : 0;
  const bool is_set = bytes > 0;
  if (!is_set) bytes = (long long)reported_by_sysfs();
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  if (bytes <= 0) bytes = UNKNOWN;
  cache_bytes = is_set || bytes < LARGEST_SHARE ? (size_t)bytes : LARGEST_SHARE;
}

size_t lm_cache_bytes(void) {
  pthread_once(&once, read_size);
  return cache_bytes;
}
