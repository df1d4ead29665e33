#include "base/cache_size.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/environment_variable.h"

enum { UNKNOWN = 8 << 20 }; /* bytes, for a system that reports none */

static size_t cache_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Files such as "32768K". A virtual machine has the part of the cache that its cores share here, while the CPU's own
 * registers, which sysconf reads, count all of the package's. */
static size_t reported_by_sysfs(void) {
  size_t largest = 0;
  for (int index = 0; index < 8; index++) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    int fd = lm_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) break;
    if (read(fd, text, sizeof text - 1) > 0) {
      size_t bytes = (size_t)strtoull(text, NULL, 10) << 10;
      if (bytes > largest) largest = bytes;
    }
    close(fd);
  }
  return largest;
}

static void read_size(void) {
  const char *set = lm_variable_get(LM_VAR_CACHE_BYTES);
  long long bytes = set ? strtoll(set, NULL, 10) : 0;
  if (bytes <= 0) bytes = (long long)reported_by_sysfs();
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  cache_bytes = bytes > 0 ? (size_t)bytes : UNKNOWN;
}

size_t lm_cache_bytes(void) {
  pthread_once(&once, read_size);
  return cache_bytes;
}
