#include "base/cores.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/descriptor.h"
#include "base/large_array.h"

static int cores_of_affinity(void) {
  enum { MOST_CPUS = 1 << 16 };
  for (int cpus = CPU_SETSIZE; cpus <= MOST_CPUS; cpus *= 2) { /* a kernel built for more CPUs refuses a smaller set */
    cpu_set_t *set = CPU_ALLOC(cpus);
    int allowed =
        set && sched_getaffinity(0, CPU_ALLOC_SIZE(cpus), set) == 0 ? CPU_COUNT_S(CPU_ALLOC_SIZE(cpus), set) : 0;
    CPU_FREE(set);
    if (allowed > 0) return allowed;
  }
  return 1;
}

/* Returns the cores' worth of time that a control group's folder grants, 0 if unlimited. Version 2 has quota and period
 * in microseconds in one file, version 1 in a file each; "max" and -1 mean no limit. */
static double cores_granted_by(const char *folder) {
  char path[4352], text[64];
  long long quota = 0, period = 0;
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  if (lm_read_start(path, text, sizeof text)) {
    if (sscanf(text, "%lld %lld", &quota, &period) != 2) return 0;
  } else {
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (lm_read_start(path, text, sizeof text)) quota = strtoll(text, NULL, 10);
    if (quota <= 0) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (lm_read_start(path, text, sizeof text)) period = strtoll(text, NULL, 10);
  }
  return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* Returns the minimum of `least` and the grants of a group and those above it; truncates `path`. In a container the
 * path's folders may be invisible; the last folder, `base` itself, is then the container's own. */
static double granted_above(const char *base, char *path, double least) {
  enum { MAX = 4224 };
  LM_LARGE(char, folder, MAX);
  for (;;) {
    snprintf(folder, MAX, "/sys/fs/cgroup%s%s", base, path);
    const double granted = cores_granted_by(folder);
    if (granted > 0 && granted < least) least = granted;
    char *last = strrchr(path, '/');
    if (!last) return least;
    *last = 0;
  }
}

/* Returns the least of `least` and all grants. Lines: "0::/job" in version 2, "3:cpu,cpuacct:/job" in version 1. */
static double cores_of_control_group(double least) {
  enum { MAX = 4096 };
  LM_LARGE(char, text, MAX);
  if (!lm_read_start("/proc/self/cgroup", text, MAX)) return least;
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
    char *controllers, *path = line, copy[4096], base[64];
    strsep(&path, ":");
    controllers = strsep(&path, ":");
    if (!path) continue;
    if (*controllers == 0) {
      least = granted_above("", path, least);
      continue;
    }
    bool of_time = false;
    snprintf(base, sizeof base, "/%s", controllers);
    for (char *name; (name = strsep(&controllers, ","));) of_time = of_time || strcmp(name, "cpu") == 0;
    if (!of_time) continue;
    strcpy(copy, path);
    least = granted_above(base, path, least);
    if (strcmp(base, "/cpu") != 0) least = granted_above("/cpu", copy, least);
  }
  return least;
}

int lm_cores(void) {
  const int cores = cores_of_affinity();
  const int granted = (int)cores_of_control_group(cores);
  return granted > 0 ? granted : 1;
}

int lm_this_core(void) { return sched_getcpu(); }

void lm_leave_core(int core) {
  cpu_set_t all, others;
  if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof all, &all) != 0) return;
  others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
    sched_setaffinity(0, sizeof all, &all);
}
