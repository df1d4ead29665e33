#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "io/atomic_write.h"
#include "io/safetensors.h"
#include "io/safetensors_dtypes.h"

enum { CHUNK = 1 << 16 };

static lm_status add_tensor(cJSON *header, const char *name, const lm_tensor *t, double from, double to) {
  cJSON *entry = cJSON_AddObjectToObject(header, name), *shape, *offsets;
  if (!entry || !cJSON_AddStringToObject(entry, "dtype", lm_safetensors_dtypes[t->dtype])) goto none;
  shape = cJSON_AddArrayToObject(entry, "shape");
  if (!shape) goto none;
  for (int d = 0; d < t->ndim; d++) {
    cJSON *size = cJSON_CreateNumber((double)t->size[d]);
    if (!cJSON_AddItemToArray(shape, size)) goto none;
  }
  offsets = cJSON_AddArrayToObject(entry, "data_offsets");
  if (!offsets || !cJSON_AddItemToArray(offsets, cJSON_CreateNumber(from)) ||
      !cJSON_AddItemToArray(offsets, cJSON_CreateNumber(to))) {
    goto none;
  }
  return LM_OK;
none:
  return lm_fail(LM_E_OOM, "out of memory: the header of a safetensors file");
}

/* The elements in the order of the dims, a chunk at a time. */
static lm_status write_strided(lm_new_file *f, const lm_tensor *t) {
  lm_status status = LM_OK;
  size_t bytes = lm_dtype_size(t->dtype), filled = 0;
  int64_t at[LM_MAX_DIMS] = {0};
  char *chunk = lm_malloc(CHUNK);
  if (!chunk) return LM_E_OOM;
  const char *p = t->data;
  for (int64_t k = 0; k < t->numel; k++) {
    memcpy(chunk + filled, p, bytes);
    if ((filled += bytes) == CHUNK) {
      TRY(lm_new_file_write(f, chunk, filled));
      filled = 0;
    }
    for (int d = t->ndim - 1; d >= 0; d--) {
      p += t->stride[d] * (int64_t)bytes;
      if (++at[d] < t->size[d]) break;
      p -= t->stride[d] * (int64_t)bytes * t->size[d];
      at[d] = 0;
    }
  }
  TRY(lm_new_file_write(f, chunk, filled));
done:
  lm_free(chunk);
  return status;
}

/* Wider elements first, so that every tensor is aligned to its element; otherwise as given. */
static void order_by_width(int n, lm_tensor *const *tensors, int *order) {
  int k = 0;
  for (size_t width = 8; width > 0; width /= 2) {
    for (int i = 0; i < n; i++) {
      if (lm_dtype_size(tensors[i]->dtype) == width) order[k++] = i;
    }
  }
}

static lm_status make_header(int n, const char *const *names, lm_tensor *const *tensors, const int *order, int nmeta,
                             const char *const *keys, const char *const *values, char **out) {
  lm_status status = LM_OK;
  double offset = 0;
  cJSON *header = cJSON_CreateObject();
  *out = NULL;
  if (!header) return lm_fail(LM_E_OOM, "out of memory: the header of a safetensors file");
  if (nmeta > 0) {
    cJSON *metadata = cJSON_AddObjectToObject(header, "__metadata__");
    for (int i = 0; i < nmeta; i++) {
      if (!metadata || !cJSON_AddStringToObject(metadata, keys[i], values[i])) {
        status = lm_fail(LM_E_OOM, "out of memory: the metadata of a safetensors file");
        goto done;
      }
    }
  }
  for (int k = 0; k < n; k++) {
    const lm_tensor *t = tensors[order[k]];
    double end = offset + (double)t->numel * (double)lm_dtype_size(t->dtype);
    TRY(add_tensor(header, names[order[k]], t, offset, end));
    offset = end;
  }
  *out = cJSON_PrintUnformatted(header);
  if (!*out) status = lm_fail(LM_E_OOM, "out of memory: the header of a safetensors file");
done:
  cJSON_Delete(header);
  return status;
}

lm_status lm_safetensors_write(const char *path, int n, const char *const *names, lm_tensor *const *tensors, int nmeta,
                               const char *const *keys, const char *const *values) {
  lm_status status = LM_OK;
  lm_new_file f = {.fd = -1};
  char *header = NULL;
  int *order = NULL;
  for (int i = 0; i < n; i++) {
    TRY(lm_safetensors_check_name(path, names[i]));
    if (LM_DEVICE_KIND(tensors[i]->device) != LM_CPU) {
      return lm_fail(LM_E_DEVICE, "save: '%s' must be on cpu, got %s; move it with :cpu()", lm_ellipsize(names[i], 200),
                     lm_device_name(tensors[i]->device));
    }
  }
  for (int i = 0; i < nmeta; i++) {
    if (!lm_is_utf8(keys[i], strlen(keys[i])) || !lm_is_utf8(values[i], strlen(values[i]))) {
      return lm_fail_in_file(LM_E_ARG, path, "the metadata must be valid UTF-8");
    }
  }
  TRY(lm_safetensors_check_distinct(path, n, names));
  order = lm_malloc(sizeof *order * (size_t)(n + 1));
  if (!order) return LM_E_OOM;
  order_by_width(n, tensors, order);
  TRY(make_header(n, names, tensors, order, nmeta, keys, values, &header));
  size_t length = strlen(header), padded = lm_round_up(length, 8);
  if (padded > LM_SAFETENSORS_HEADER || lm_json_values(header, length) > LM_JSON_VALUES) {
    status =
        lm_fail(LM_E_ARG,
                "save: the header of %d tensors and other values has %zu bytes, more than readers accept; store many "
                "numbers in one tensor (lm.tensor, lm.stack)",
                n, length);
    goto done;
  }
  TRY(lm_new_file_open(path, &f));
  unsigned char prefix[8];
  for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)padded >> 8 * i);
  TRY(lm_new_file_write(&f, prefix, sizeof prefix));
  TRY(lm_new_file_write(&f, header, length));
  TRY(lm_new_file_write(&f, "       ", padded - length));
  for (int k = 0; k < n; k++) {
    const lm_tensor *t = tensors[order[k]];
    if (lm_is_contiguous(t)) {
      TRY(lm_new_file_write(&f, t->data, lm_nbytes(t)));
    } else {
      TRY(write_strided(&f, t));
    }
  }
  TRY(lm_new_file_commit(&f));
done:
  lm_new_file_abandon(&f);
  free(header); /* cJSON's */
  lm_free(order);
  return status;
}
