#include "base/environment_variable.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  const char *one_of; /* allowed values, "0, 1"; NULL: any */
} table[LM_VARIABLES] = {
#include "variable_table.inc"
};

static _Atomic bool warned[LM_VARIABLES];

static bool is_one_of(const char *list, const char *value) {
  size_t n = strlen(value), each;
  for (;; list += each + strspn(list + each, ", ")) {
    each = strcspn(list, ",");
    if (each == n && memcmp(list, value, n) == 0) return true;
    if (list[each] == '\0') return false;
  }
}

const char *lm_variable_get(lm_variable variable) {
  const char *value = getenv(table[variable].name);
  if (!value || !*value) return NULL;
  if (!table[variable].one_of || is_one_of(table[variable].one_of, value)) return value;
  if (!atomic_exchange(&warned[variable], true)) {
    lm_print_stderr("luminary: %s is '%s', which is none of %s: it is as if it were not set", table[variable].name,
                    lm_ellipsize(value, 60), table[variable].one_of);
  }
  return NULL;
}

bool lm_variable_is_on(lm_variable variable, bool without) {
  const char *value = lm_variable_get(variable);
  return value ? strcmp(value, "1") == 0 : without;
}
