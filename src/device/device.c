#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "device/driver.h"

enum { NAME_BYTES = 24, KNOWN_KINDS = 2 };

static const char *const known[KNOWN_KINDS] = {[LM_CPU] = "cpu", [LM_CUDA] = "cuda"};
static _Atomic(const lm_driver *) drivers[LM_DEVICE_KINDS];
static char names[LM_DEVICE_KINDS][LM_DEVICE_MAX][NAME_BYTES];
static pthread_once_t named = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over registering */

static void name_kind(int kind, const char *name) {
  for (int i = 0; i < LM_DEVICE_MAX; i++) snprintf(names[kind][i], NAME_BYTES, "%.16s:%d", name, i);
}

static void name_all(void) {
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) name_kind(kind, kind < KNOWN_KINDS ? known[kind] : "device");
  snprintf(names[LM_CPU][0], NAME_BYTES, "cpu");
}

const char *lm_device_name(lm_device device) {
  int kind = LM_DEVICE_KIND(device), ordinal = LM_DEVICE_ORDINAL(device);
  if (kind >= LM_DEVICE_KINDS || ordinal >= LM_DEVICE_MAX) return "no device";
  pthread_once(&named, name_all);
  return names[kind][ordinal];
}

lm_status lm_driver_register(int kind, const lm_driver *driver) {
  if (kind < 0 || kind >= LM_DEVICE_KINDS)
    return lm_fail(LM_E_ARG, "driver_register: kind %d; there are 0 to %d", kind, LM_DEVICE_KINDS - 1);
  if (driver->abi != LM_DRIVER_ABI)
    return lm_fail(LM_E_STATE, "driver_register: the %s backend was built for driver table %d, this core has %d",
                   driver->name, driver->abi, LM_DRIVER_ABI);
  if (kind < KNOWN_KINDS && strcmp(driver->name, known[kind]) != 0)
    return lm_fail(LM_E_ARG, "driver_register: kind %d is %s, not %s", kind, known[kind], driver->name);
  pthread_once(&named, name_all);
  pthread_mutex_lock(&lock);
  const lm_driver *old = atomic_load(&drivers[kind]);
  if (!old) {
    if (kind >= KNOWN_KINDS) name_kind(kind, driver->name);
    atomic_store(&drivers[kind], driver);
  }
  pthread_mutex_unlock(&lock);
  return !old || old == driver ? LM_OK : lm_fail(LM_E_STATE, "driver_register: kind %d has a driver already", kind);
}

const lm_driver *lm_driver_of(lm_device device) {
  int kind = LM_DEVICE_KIND(device);
  return kind < LM_DEVICE_KINDS ? atomic_load_explicit(&drivers[kind], memory_order_acquire) : NULL;
}

int lm_device_count(int kind) {
  const lm_driver *driver = kind >= 0 && kind < LM_DEVICE_KINDS ? lm_driver_of(LM_DEVICE(kind, 0)) : NULL;
  int n = driver ? driver->count() : 0;
  return n < LM_DEVICE_MAX ? n : LM_DEVICE_MAX;
}

static const char *kind_name(int kind) {
  if (kind < KNOWN_KINDS) return known[kind];
  const lm_driver *driver = lm_driver_of(LM_DEVICE(kind, 0));
  return driver ? driver->name : NULL;
}

static int find_kind(const char *name, size_t length) {
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    const char *known_as = kind_name(kind);
    if (known_as && strlen(known_as) == length && memcmp(known_as, name, length) == 0) return kind;
  }
  return -1;
}

static lm_status unknown_kind(const char *name, size_t length, const char *rest) {
  const char *candidates[LM_DEVICE_KINDS];
  char word[NAME_BYTES];
  int n = 0;
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++)
    if (kind_name(kind)) candidates[n++] = kind_name(kind);
  snprintf(word, sizeof word, "%.*s", (int)length, name);
  const char *nearest = length < sizeof word ? lm_nearest(word, n, candidates) : NULL;
  if (nearest) return lm_fail(LM_E_DEVICE, "device: '%.64s' is not known; did you mean '%s%.8s'?", name, nearest, rest);
  return lm_fail(LM_E_DEVICE, "device: '%.64s' is not known; devices are written 'cpu', 'cpu:1' or 'cuda:0'", name);
}

/* ":12" to 12; -1 if it is not that, LM_DEVICE_MAX if it is too large. */
static int parse_ordinal(const char *text) {
  int value = 0;
  if (*text++ != ':' || !*text) return -1;
  for (; *text; text++) {
    if (*text < '0' || *text > '9') return -1;
    value = value * 10 + (*text - '0');
    if (value > LM_DEVICE_MAX) value = LM_DEVICE_MAX;
  }
  return value;
}

lm_status lm_device_parse(const char *name, lm_device *out) {
  size_t length = strcspn(name, ":");
  const char *rest = name + length;
  int kind = find_kind(name, length);
  if (kind < 0) return unknown_kind(name, length, rest);
  int ordinal = *rest ? parse_ordinal(rest) : 0, count = lm_device_count(kind);
  if (ordinal < 0)
    return lm_fail(LM_E_DEVICE, "device: '%.64s' is not known; what follows '%s:' is a number that counts from 0", name,
                   kind_name(kind));
  if (count == 0)
    return lm_fail(LM_E_DEVICE, "device: '%.64s' asks for %s, and there is none here; 'cpu' is always there", name,
                   kind == LM_CUDA ? "a CUDA device" : kind_name(kind));
  if (ordinal >= count)
    return lm_fail(LM_E_DEVICE, "device: there is no '%.64s'; %s devices go from %s:0 to %s:%d", name, kind_name(kind),
                   kind_name(kind), kind_name(kind), count - 1);
  *out = LM_DEVICE(kind, ordinal);
  return LM_OK;
}
