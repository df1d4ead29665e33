/* Names in safetensors files: of dtypes, and of tensors. */
#ifndef LM_IO_SAFETENSORS_DTYPES_H
#define LM_IO_SAFETENSORS_DTYPES_H

#include <stdbool.h>
#include <stddef.h>

#include "tensor/dtype.h"

extern const char *const lm_safetensors_dtypes[LM_DTYPE_COUNT]; /* "F32", ... */

bool lm_is_utf8(const char *text, size_t bytes);
/* Whether a string in this JSON holds a zero byte, as it is or as \u0000: cJSON would cut it there. */
LM_API bool lm_json_has_zero(const char *text, size_t bytes);
/* Valid UTF-8, and not "__metadata__". */
lm_status lm_safetensors_check_name(const char *path, const char *name);
/* No name twice. */
lm_status lm_safetensors_check_distinct(const char *path, int n, const char *const *names);

#endif
