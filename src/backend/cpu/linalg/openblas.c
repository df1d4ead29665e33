#include "backend/cpu/linalg/openblas.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/isa.h"
#include "base/address_space.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/plugin.h"

lm_openblas_table lm_openblas;

static const size_t buffer_bytes = (128 << 20) + (64 << 10);

static lm_status no_room(void) { return lm_fail_memory("address space for OpenBLAS's buffers (ulimit -v)"); }

/* Lists variables for the load of OpenBLAS. It would start threads that are never used, and takes CPUs newer than
 * itself for those of 2004. Variables that the user set stay. */
static int missing_variables(const char *added[2]) {
  static const char *const cores[] = {NULL, "OPENBLAS_CORETYPE=Haswell", "OPENBLAS_CORETYPE=SkylakeX"};
  int n = 0;
  if (!getenv("OPENBLAS_NUM_THREADS")) added[n++] = "OPENBLAS_NUM_THREADS=1";
  if (cores[lm_cpu_level()] && !getenv("OPENBLAS_CORETYPE")) added[n++] = cores[lm_cpu_level()];
  return n;
}

static lm_status load_openblas(void) {
  static const lm_plugin_family family = {"cpu", LM_VAR_BACKEND_PATH, "lm_openblas_plugin", "library", 0};
  void (*plugin)(lm_openblas_table *) = NULL;
  NEED(lm_plugin_need(&family, "openblas", (void **)&plugin));
  plugin(&lm_openblas);
  if (strstr(lm_openblas.get_config(), "USE64BITINT")) {
    return lm_fail(LM_E_MISSING, "OpenBLAS here has 64-bit integers (INTERFACE64); install one with 32-bit integers");
  }
  lm_openblas.set_num_threads(1);
  return LM_OK;
}

static void drop_variable(const char *entry) {
  char **e = environ;
  while (e && *e && *e != entry) e++;
  for (; e && *e; e++) e[0] = e[1];
}

/* Loads OpenBLAS with these variables. setenv would race with another thread's getenv: this replaces the environment as
 * a whole, by one that is never freed, and then removes its variables; changes by others in between stay. */
static lm_status load_with_variables(void *nothing) {
  (void)nothing;
  if (!lm_address_space_has(2, buffer_bytes)) return no_room();
  static char **volatile with; /* kept, for leak checkers: once somebody calls setenv, nothing else points to it */
  const char *added[2];
  char **before = environ;
  int n = 0, more = missing_variables(added);
  while (before && before[n]) n++;
  with = lm_malloc((size_t)(n + more + 1) * sizeof *with);
  if (!with) return lm_fail_memory("the environment of OpenBLAS");
  for (int i = 0; i < n + more; i++) with[i] = i < n ? before[i] : (char *)added[i - n];
  with[n + more] = NULL;
  environ = with;
  lm_status status = load_openblas();
  while (more > 0) drop_variable(added[--more]);
  return status;
}

lm_status lm_openblas_load(void) {
  static _Atomic bool loaded;
  return lm_load_once(&loaded, load_with_variables, NULL);
}

static _Atomic int callers; /* buffers that threads now in OpenBLAS may take */
static _Atomic int buffers; /* most that it took at once */

lm_status lm_openblas_enter(int parts) {
  NEED(lm_openblas_load());
  int wanted = atomic_fetch_add(&callers, parts) + parts, before = atomic_load(&buffers);
  if (wanted <= before) return LM_OK;
  if (!lm_address_space_has(wanted - before, buffer_bytes)) {
    lm_openblas_leave(parts);
    return no_room();
  }
  while (before < wanted && !atomic_compare_exchange_weak(&buffers, &before, wanted)) continue;
  return LM_OK;
}

void lm_openblas_leave(int parts) { atomic_fetch_sub(&callers, parts); }
