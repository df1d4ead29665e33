/* Answers for C programs what concerns the process: version, statuses, log, threads, devices. */
#include "base/log.h"
#include "base/message.h"
#include "base/parallel.h"
#include "c_interface/session.h"
#include "device/alloc.h"
#include "tensor/generator.h"

_Static_assert((int)LUM_E_MEMORY == (int)LM_E_OOM && (int)LUM_E_SCRIPT == (int)LM_E_LUA,
               "other numbers than the core's");

const char *lum_status_name(lum_status status) {
  static const char *const names[] = {"LUM_OK",       "LUM_E_ARGUMENT", "LUM_E_SHAPE",  "LUM_E_DTYPE",
                                      "LUM_E_DEVICE", "LUM_E_INDEX",    "LUM_E_MEMORY", "LUM_E_FILE",
                                      "LUM_E_STATE",  "LUM_E_MISSING",  "LUM_E_SCRIPT"};
  return (unsigned)status < sizeof names / sizeof *names ? names[status] : "LUM_E_UNKNOWN";
}

const char *lum_version(void) { return LM_VERSION; }

void lum_set_log(void (*log)(void *user, const char *line), void *user) { lm_set_log(log, user); }

lum_status lum_set_num_threads(int n) {
  if (n < 0 || n > LM_MAX_THREADS) return lm_noted(NULL, lm_fail_int("lum_set_num_threads", "n", "from 0 to 256", n));
  lm_set_num_threads(n);
  return LUM_OK;
}
int lum_get_num_threads(void) { return lm_num_threads(); }

void lum_manual_seed(uint64_t seed) { lm_generator_seed_all(seed); }

int lum_device_count(const char *kind) {
  int k;
  if (!kind || lm_device_kind(kind, &k) != LM_OK) return 0;
  return k == LM_CPU ? 1 : lm_device_count(k);
}

lum_status lum_device_check(const char *device) {
  lm_device d;
  return lm_noted(NULL, lm_named_device(device, &d));
}

lum_status lum_device_synchronize(const char *device) {
  lm_device d;
  lm_status status = lm_named_device(device, &d);
  return lm_noted(NULL, status == LM_OK ? lm_device_synchronize(d) : status);
}

size_t lum_device_memory(const char *device) {
  lm_device d;
  return lm_named_device(device, &d) == LM_OK ? lm_memory_stats_of(d).allocated : 0;
}
