#include "device/device.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/environment_variable.h"
#include "base/log.h"
#include "base/nearest_word.h"
#include "base/plugin.h"
#include "base/thread.h"
#include "device/driver.h"
#include "device/known.h"

enum { NAME_BYTES = 24, WHY_BYTES = 1024 };

static _Atomic(const lm_driver *) drivers[LM_DEVICE_KINDS];
static char names[LM_DEVICE_KINDS][LM_DEVICE_MAX][NAME_BYTES];
static pthread_once_t named = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for registration */

static void name_kind(int kind, const char *name) {
  for (int i = 0; i < LM_DEVICE_MAX; i++) snprintf(names[kind][i], NAME_BYTES, "%.16s:%d", name, i);
}

static void name_all(void) {
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++)
    name_kind(kind, kind < lm_known_count ? lm_known_kinds[kind].name : "device");
  snprintf(names[LM_CPU][0], NAME_BYTES, "cpu");
}

const char *lm_device_name(lm_device device) {
  int kind = LM_DEVICE_KIND(device), ordinal = LM_DEVICE_ORDINAL(device);
  if (kind >= LM_DEVICE_KINDS || ordinal >= LM_DEVICE_MAX) return "no device";
  pthread_once(&named, name_all);
  return names[kind][ordinal];
}

static const char *kind_name(int kind) {
  if (kind < lm_known_count) return lm_known_kinds[kind].name;
  const lm_driver *driver = lm_driver_of(LM_DEVICE(kind, 0));
  return driver ? driver->name : NULL;
}

const char *lm_device_kind_name(int kind) {
  const char *name = kind >= 0 && kind < LM_DEVICE_KINDS ? kind_name(kind) : NULL;
  return name ? name : "?";
}

lm_status lm_driver_register(const lm_driver *driver, int *out) {
  if (driver->abi != LM_DRIVER_ABI)
    return lm_fail(LM_E_STATE,
                   "backend '%s': built for version %d of the driver table, this library has version %d; rebuild the "
                   "backend",
                   driver->name, driver->abi, LM_DRIVER_ABI);
  pthread_once(&named, name_all);
  pthread_mutex_lock(&lock);
  int kind = 0;
  while (kind < LM_DEVICE_KINDS && kind_name(kind) && strcmp(kind_name(kind), driver->name) != 0) kind++;
  const lm_driver *old = kind < LM_DEVICE_KINDS ? atomic_load(&drivers[kind]) : NULL;
  if (kind < LM_DEVICE_KINDS && !old) {
    if (kind >= lm_known_count) name_kind(kind, driver->name);
    atomic_store(&drivers[kind], driver);
  }
  pthread_mutex_unlock(&lock);
  *out = kind;
  if (kind == LM_DEVICE_KINDS)
    return lm_fail(LM_E_STATE, "backend '%s': cannot register more than %d kinds of device", driver->name,
                   LM_DEVICE_KINDS);
  return !old || old == driver
             ? LM_OK
             : lm_fail(LM_E_STATE, "backend '%s': another driver is registered already", driver->name);
}

const lm_driver *lm_driver_of(lm_device device) {
  int kind = LM_DEVICE_KIND(device);
  return kind < LM_DEVICE_KINDS ? atomic_load_explicit(&drivers[kind], memory_order_acquire) : NULL;
}

/* ---- plug-ins */

static const lm_plugin_family family = {"backend", LM_VAR_BACKEND_PATH, "lm_backend_plugin", "backend", 0};
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* Loads and registers the plug-in; *found is false if no plug-in has that name. */
static lm_status load_plugin(const char *name, bool *found) {
  lm_status status, (*plugin)(void) = NULL;
  char path[LM_PLUGIN_PATH];
  pthread_mutex_lock(&loading);
  status = lm_plugin_load(&family, name, (void **)&plugin, path);
  if (status == LM_OK && plugin) {
    status = plugin();
    lm_log(LM_LOG_OP, "backend %s from %s", name, path);
  }
  pthread_mutex_unlock(&loading);
  *found = plugin != NULL;
  return status;
}

lm_status lm_device_load(const char *name) {
  bool found;
  lm_status status = load_plugin(name, &found);
  if (status != LM_OK || found) return status;
  return lm_fail(
      LM_E_MISSING,
      "cannot load backend '%s': luminary_backend_%s.so is neither on LM_BACKEND_PATH nor beside the library",
      lm_ellipsize(name, 60), lm_ellipsize(name, 60));
}

/* ---- device counts, read from the driver once: a process keeps the devices it started with */

typedef struct kind_state {
  int count;
  int each; /* number of devices that each of the driver's is split into */
  char why[WHY_BYTES];
} kind_state;

static kind_state states[LM_DEVICE_KINDS];
static _Atomic bool asked[LM_DEVICE_KINDS];
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static int devices_of_each(const lm_known_kind *known) {
  const char *text = known ? lm_variable_get(known->split) : NULL;
  int n = text ? atoi(text) : 1;
  return n < 1 ? 1 : n < LM_DEVICE_MAX ? n : LM_DEVICE_MAX;
}

static void ask_driver(int kind, kind_state *s) {
  const lm_known_kind *known = lm_known_kind_of(kind);
  bool found;
  s->each = 1;
  if (known && !lm_driver_of(LM_DEVICE(kind, 0))) {
    if (load_plugin(known->name, &found) != LM_OK) {
      snprintf(s->why, sizeof s->why, "%s: %s", known->title, lm_error());
    } else if (!found) {
      snprintf(s->why, sizeof s->why,
               "%s: the %s backend is not built here (there is no luminary_backend_%s.so on LM_BACKEND_PATH or beside "
               "the library)",
               known->title, known->title, known->name);
    }
  }
  const lm_driver *driver = lm_driver_of(LM_DEVICE(kind, 0));
  if (!driver) return;
  s->count = driver->count();
  if (s->count > 0) {
    s->each = devices_of_each(known);
    if (s->count > LM_DEVICE_MAX / s->each) s->count = LM_DEVICE_MAX / s->each;
    s->count *= s->each;
  } else {
    const char *why = driver->why_none ? driver->why_none() : NULL;
    snprintf(s->why, sizeof s->why, "%s", why ? why : "its driver has none");
  }
}

/* Returns NULL for an unregistered kind. */
static const kind_state *state_of(int kind) {
  if (kind < 0 || kind >= LM_DEVICE_KINDS) return NULL;
  if (atomic_load_explicit(&asked[kind], memory_order_acquire)) return &states[kind];
  if (!lm_known_kind_of(kind) && !lm_driver_of(LM_DEVICE(kind, 0))) return NULL;
  LM_LOCKED(&asking);
  if (!atomic_load(&asked[kind])) {
    ask_driver(kind, &states[kind]);
    atomic_store_explicit(&asked[kind], true, memory_order_release);
  }
  return &states[kind];
}

int lm_device_physical(lm_device device) {
  const kind_state *s = state_of(LM_DEVICE_KIND(device));
  return s && s->each > 1 ? LM_DEVICE_ORDINAL(device) / s->each : LM_DEVICE_ORDINAL(device);
}

int lm_device_count(int kind) {
  const kind_state *s = state_of(kind);
  return s ? s->count : 0;
}

const char *lm_device_why_none(int kind) {
  const kind_state *s = state_of(kind);
  return s ? s->why : "no driver of that kind is loaded";
}

static bool was_asked(int kind) { return kind >= 0 && kind < LM_DEVICE_KINDS && atomic_load(&asked[kind]); }

bool lm_device_likely(int kind) {
  const lm_known_kind *known = lm_known_kind_of(kind);
  if (!known || was_asked(kind)) return lm_device_count(kind) > 0;
  if (dlsym(RTLD_DEFAULT, known->symbol)) return true;
  for (const char *const *trace = known->traces; *trace; trace++)
    if (access(*trace, F_OK) == 0) return true;
  return false;
}

int lm_device_kind_that_read(const char *variable) {
  for (int kind = LM_CPU + 1; kind < lm_known_count; kind++)
    for (const char *const *name = lm_known_kinds[kind].read_once; *name; name++)
      if (strcmp(*name, variable) == 0 && was_asked(kind)) return kind;
  return -1;
}

lm_status lm_fail_no_device(const char *op, lm_device device) {
  return lm_fail(LM_E_DEVICE, "%s: device must be available on this machine, got %s", op, lm_device_name(device));
}

lm_status lm_device_enter(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  if (!driver) return lm_fail_no_device("device", device);
  return driver->enter ? driver->enter(lm_device_physical(device)) : LM_OK;
}

/* ---- each thread's current device of a kind, which the kind's bare name stands for */

static _Thread_local uint8_t ordinals[LM_DEVICE_KINDS];

lm_device lm_device_current(int kind) { return LM_DEVICE(kind, kind == LM_CPU ? 0 : ordinals[kind]); }

void lm_device_set_current(lm_device device) { ordinals[LM_DEVICE_KIND(device)] = (uint8_t)LM_DEVICE_ORDINAL(device); }

/* ---- names */

static int find_kind(const char *name, size_t length) {
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++) {
    const char *known_as = kind_name(kind);
    if (known_as && strlen(known_as) == length && memcmp(known_as, name, length) == 0) return kind;
  }
  return -1;
}

static lm_status fail_unknown_kind(const char *name, size_t length, const char *rest) {
  const char *candidates[LM_DEVICE_KINDS];
  char word[NAME_BYTES];
  int n = 0;
  for (int kind = 0; kind < LM_DEVICE_KINDS; kind++)
    if (kind_name(kind)) candidates[n++] = kind_name(kind);
  snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), name);
  const char *nearest = length < sizeof word ? lm_nearest(word, n, candidates) : NULL;
  if (nearest)
    return lm_fail(LM_E_DEVICE, "unknown device '%s'; did you mean '%s%s'?", lm_ellipsize(name, 60), nearest,
                   lm_ellipsize(rest, 8));
  return lm_fail(LM_E_DEVICE, "unknown device '%s'; devices are 'cpu', 'cpu:1' or '%s:0'", lm_ellipsize(name, 60),
                 lm_known_kinds[lm_known_count - 1].name);
}

/* Converts ":12" to 12; returns -1 for other text, LM_DEVICE_MAX for larger numbers. */
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

/* Finds the kind by name; an unregistered name may be a plug-in's. */
static lm_status find_or_load_kind(const char *name, size_t length, int *out) {
  char word[LM_PLUGIN_NAME];
  bool found = false;
  *out = find_kind(name, length);
  if (*out >= 0 || length >= sizeof word) return LM_OK;
  memcpy(word, name, length);
  word[length] = 0;
  lm_status status = load_plugin(word, &found);
  if (status == LM_OK && found) *out = find_kind(name, length);
  return status;
}

lm_status lm_device_kind(const char *name, int *kind) {
  lm_status status = find_or_load_kind(name, strlen(name), kind);
  if (status != LM_OK || *kind >= 0) return status;
  return fail_unknown_kind(name, strlen(name), "");
}

lm_status lm_device_parse(const char *name, lm_device *out) {
  size_t length = strcspn(name, ":");
  const char *rest = name + length;
  int kind;
  NEED(find_or_load_kind(name, length, &kind));
  if (kind < 0) return fail_unknown_kind(name, length, rest);
  int ordinal = *rest ? parse_ordinal(rest) : LM_DEVICE_ORDINAL(lm_device_current(kind));
  int count = lm_device_count(kind);
  if (ordinal < 0)
    return lm_fail(LM_E_DEVICE, "unknown device '%s'; '%s:' must be followed by an integer of at least 0",
                   lm_ellipsize(name, 60), kind_name(kind));
  if (count == 0) {
    const lm_known_kind *known = lm_known_kind_of(kind);
    return lm_fail(LM_E_DEVICE, "unavailable device '%s': this machine has no %s device (%s); use 'cpu'",
                   lm_ellipsize(name, 60), known ? known->title : kind_name(kind), lm_device_why_none(kind));
  }
  if (ordinal >= count)
    return lm_fail(LM_E_DEVICE, "unavailable device '%s': %s devices are %s:0 to %s:%d", lm_ellipsize(name, 60),
                   kind_name(kind), kind_name(kind), kind_name(kind), count - 1);
  *out = LM_DEVICE(kind, ordinal);
  return LM_OK;
}
