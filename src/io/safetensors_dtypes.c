#include "io/safetensors_dtypes.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"

const char *const lm_safetensors_dtypes[LM_DTYPE_COUNT] = {
#define X(id, ...) #id,
    LM_DTYPES(X)
#undef X
};

/* RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
bool lm_is_utf8(const char *text, size_t bytes) {
  const unsigned char *p = (const unsigned char *)text, *end = p + bytes;
  while (p < end) {
    unsigned char c = *p++;
    if (c < 0x80) continue;
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
    if (c < 0xc2 || c > 0xf4 || end - p < more) return false;
    if ((c == 0xe0 && p[0] < 0xa0) || (c == 0xed && p[0] > 0x9f)) return false;
    if ((c == 0xf0 && p[0] < 0x90) || (c == 0xf4 && p[0] > 0x8f)) return false;
    for (; more > 0; more--) {
      if ((*p++ & 0xc0) != 0x80) return false;
    }
  }
  return true;
}

bool lm_json_has_zero(const char *text, size_t bytes) {
  const char *end = text + bytes;
  if (memchr(text, 0, bytes)) return true;
  for (const char *at = text; (at = memchr(at, '\\', (size_t)(end - at))); at = end - at > 2 ? at + 2 : end) {
    if (end - at >= 6 && memcmp(at, "\\u0000", 6) == 0) return true;
  }
  return false;
}

size_t lm_json_values(const char *text, size_t bytes) {
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < bytes; i++) {
    char c = text[i];
    if (in_string && c == '\\')
      i++;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string)
      values += c == ',' || c == '[' || c == '{';
  }
  return values;
}

lm_status lm_safetensors_check_name(const char *path, const char *name) {
  if (!lm_is_utf8(name, strlen(name))) return lm_fail_in_file(LM_E_ARG, path, "a tensor's name is not valid UTF-8");
  if (strcmp(name, "__metadata__") == 0)
    return lm_fail_in_file(LM_E_ARG, path, "a tensor cannot be named __metadata__");
  return LM_OK;
}

static int compare(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

lm_status lm_safetensors_check_distinct(const char *path, int n, const char *const *names) {
  lm_status status = LM_OK;
  const char **sorted = lm_malloc(sizeof *sorted * (size_t)(n + 1));
  if (!sorted) return LM_E_OOM;
  memcpy(sorted, names, sizeof *sorted * (size_t)n);
  qsort(sorted, (size_t)n, sizeof *sorted, compare);
  for (int i = 1; i < n && status == LM_OK; i++) {
    if (strcmp(sorted[i - 1], sorted[i]) == 0) {
      status = lm_fail_in_file(LM_E_IO, path, "two tensors are named '%s'", lm_ellipsize(sorted[i], 200));
    }
  }
  lm_free(sorted);
  return status;
}
