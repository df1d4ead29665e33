/* What reading and writing safetensors files share: names of dtypes and of tensors, how large a header is. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tensor/dtype.h"

extern const char *const lm_safetensors_dtypes[LM_DTYPE_COUNT]; /* "F32", ... */

enum {
  LM_SAFETENSORS_HEADER = 100000000, /* bytes, as the reference implementation */
  LM_JSON_VALUES = 3 << 20           /* of a JSON text, up to 300 bytes each where it is read: 390,000 tensors */
};

bool lm_is_utf8(const char *text, size_t bytes);
/* Whether a string in this JSON holds a zero byte, as it is or as \u0000: cJSON would cut it there. */
LM_API bool lm_json_has_zero(const char *text, size_t bytes);
/* How many values this JSON has, or a few more; names are none. */
LM_API size_t lm_json_values(const char *text, size_t bytes);
/* Valid UTF-8, and not "__metadata__". */
lm_status lm_safetensors_check_name(const char *path, const char *name);
/* No name twice. */
lm_status lm_safetensors_check_distinct(const char *path, int n, const char *const *names);
