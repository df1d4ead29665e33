#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/message.h"
#include "io/file_sections.h"
#include "io/safetensors.h"
#include "io/safetensors_dtypes.h"

/* What is read at a time: enough for several threads, and a bound on what lies in memory before it moves to a device.
 */
static const size_t WINDOW = (size_t)64 << 20;

typedef struct entry {
  const char *name; /* the header's */
  char stored[20];  /* its dtype's name */
  lm_dtype dtype;   /* what it is read as; LM_NO_DTYPE: this version has none that holds it */
  bool from_u32;    /* uint32 in the file, for which tensors have no dtype: int64 holds it */
  int ndim;
  int64_t size[LM_MAX_DIMS];
  size_t from, to; /* from the end of the header */
} entry;

struct lm_safetensors {
  lm_sections *file;
  const char *path; /* the file's */
  bool mapped;      /* else tensors are read into memory of their own */
  cJSON *header;
  uint64_t data_at; /* the first byte after the header */
  int n, nmeta;
  entry *entry;
  lm_tensor **ahead; /* read, and not yet asked for */
  lm_piece *piece;   /* room for n */
  const char **key, **value;
};

static const char *called(const entry *e) { return lm_ellipsize(e->name, 200); }

/* A JSON number that is an integer from 0 on, which a double holds exactly. */
static bool is_count(const cJSON *item, uint64_t *out) {
  if (!cJSON_IsNumber(item)) return false;
  double v = item->valuedouble;
  if (!(v >= 0 && v <= 9007199254740992.0) || v != (double)(uint64_t)v) return false;
  *out = (uint64_t)v;
  return true;
}

/* What is wrong with an entry of the header, after its name. */
static lm_status malformed(const lm_safetensors *f, const entry *e, const char *reason, ...) LM_PRINTF(3, 4);
static lm_status malformed(const lm_safetensors *f, const entry *e, const char *reason, ...) {
  char text[400];
  va_list args;
  va_start(args, reason);
  lm_write_v(text, sizeof text, reason, args);
  va_end(args);
  return lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "'%s'%s", called(e), text);
}

static lm_status read_shape(const lm_safetensors *f, const cJSON *shape, entry *e, uint64_t *numel) {
  *numel = 1;
  if (!cJSON_IsArray(shape)) return malformed(f, e, ": shape must be a list");
  bool empty = false;
  const cJSON *item;
  cJSON_ArrayForEach(item, shape) {
    uint64_t size;
    if (!is_count(item, &size)) return malformed(f, e, ": shape must be non-negative integers");
    if (e->ndim == LM_MAX_DIMS) return malformed(f, e, " has more than %d dims", LM_MAX_DIMS);
    e->size[e->ndim++] = (int64_t)size;
    empty = empty || size == 0;
  }
  for (int d = 0; d < e->ndim && !empty; d++) {
    if (__builtin_mul_overflow(*numel, (uint64_t)e->size[d], numel)) {
      return malformed(f, e, " has more than 2^64 elements");
    }
  }
  if (empty) *numel = 0;
  return LM_OK;
}

static lm_status read_entry(const lm_safetensors *f, const cJSON *item, size_t data_bytes, entry *e) {
  lm_status status = LM_OK;
  const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL, *field;
  uint64_t numel, from, to, bytes;
  *e = (entry){.name = item->string, .dtype = LM_NO_DTYPE};
  TRY(lm_safetensors_check_name(f->path, e->name));
  if (!cJSON_IsObject(item)) return malformed(f, e, " must be an object");
  cJSON_ArrayForEach(field, item) {
    const cJSON **position = strcmp(field->string, "dtype") == 0          ? &dtype
                             : strcmp(field->string, "shape") == 0        ? &shape
                             : strcmp(field->string, "data_offsets") == 0 ? &offsets
                                                                          : NULL;
    if (!position || *position) {
      return malformed(f, e, " has %s field '%s'", position ? "a repeated" : "an unknown",
                       lm_ellipsize(field->string, 60));
    }
    *position = field;
  }
  if (!cJSON_IsString(dtype)) return malformed(f, e, ": dtype must be a string");
  for (int d = 0; d < LM_DTYPE_COUNT; d++) {
    if (strcmp(dtype->valuestring, lm_safetensors_dtypes[d]) == 0) e->dtype = (lm_dtype)d;
  }
  e->from_u32 = strcmp(dtype->valuestring, "U32") == 0;
  if (e->from_u32) e->dtype = LM_I64;
  snprintf(e->stored, sizeof e->stored, "%s", lm_ellipsize(dtype->valuestring, sizeof e->stored - 1));
  TRY(read_shape(f, shape, e, &numel));
  if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !is_count(offsets->child, &from) ||
      !is_count(offsets->child->next, &to)) {
    return malformed(f, e, ": data_offsets must be two non-negative integers");
  }
  if (from > to || to > data_bytes) {
    return malformed(f, e, " is at bytes %llu to %llu of %zu", (unsigned long long)from, (unsigned long long)to,
                     data_bytes);
  }
  if (e->dtype != LM_NO_DTYPE) {
    size_t item = e->from_u32 ? sizeof(uint32_t) : lm_dtype_size(e->dtype);
    if (__builtin_mul_overflow(numel, (uint64_t)item, &bytes) || bytes != to - from) {
      return malformed(f, e, " of shape %s and dtype %s does not match its %llu bytes", lm_shape_text(e->ndim, e->size),
                       e->stored, (unsigned long long)(to - from));
    }
  }
  e->from = (size_t)from;
  e->to = (size_t)to;
done:
  return status;
}

static int by_position(const void *a, const void *b) {
  const entry *x = *(const entry *const *)a, *y = *(const entry *const *)b;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  return (x->to > y->to) - (x->to < y->to);
}

/* The tensors fill the data without gap or overlap. */
static lm_status check_layout(const lm_safetensors *f, size_t data_bytes) {
  lm_status status = LM_OK;
  size_t at = 0;
  const entry **sorted = lm_malloc(sizeof *sorted * (size_t)(f->n + 1));
  if (!sorted) return LM_E_OOM;
  for (int i = 0; i < f->n; i++) sorted[i] = &f->entry[i];
  qsort(sorted, (size_t)f->n, sizeof *sorted, by_position);
  for (int i = 0; i < f->n && status == LM_OK; i++) {
    if (sorted[i]->from != at) {
      status = malformed(f, sorted[i], " must start at byte %zu of the data, got %zu: a gap or an overlap", at,
                         sorted[i]->from);
    }
    at = sorted[i]->to;
  }
  if (status == LM_OK && at != data_bytes) {
    status = lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET,
                               "the tensors have %zu bytes, the file has %zu", at, data_bytes);
  }
  lm_free(sorted);
  return status;
}

static lm_status read_metadata(lm_safetensors *f, const cJSON *metadata) {
  if (!cJSON_IsObject(metadata))
    return lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "__metadata__ must be an object");
  size_t n = (size_t)cJSON_GetArraySize(metadata);
  f->key = lm_calloc(n, sizeof *f->key);
  f->value = lm_calloc(n, sizeof *f->value);
  if (!f->key || !f->value) return LM_E_OOM;
  const cJSON *item;
  cJSON_ArrayForEach(item, metadata) {
    if (!cJSON_IsString(item)) {
      return lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "__metadata__: '%s' must be a string",
                               lm_ellipsize(item->string, 200));
    }
    f->key[f->nmeta] = item->string;
    f->value[f->nmeta++] = item->valuestring;
  }
  return LM_OK;
}

/* The header's text, of `length` bytes. */
static lm_status read_header(const lm_safetensors *f, char **out, uint64_t *length) {
  unsigned char prefix[8];
  lm_status status;
  char *text = NULL;
  uint64_t bytes = lm_sections_bytes(f->file);
  if (bytes < 10) {
    return lm_fail_in_file(LM_E_IO, f->path, "not a safetensors file: it has %llu bytes", (unsigned long long)bytes);
  }
  TRY(lm_sections_copy(f->file, 0, sizeof prefix, prefix));
  *length = 0;
  for (int i = 0; i < 8; i++) *length |= (uint64_t)prefix[i] << 8 * i;
  if (*length > LM_SAFETENSORS_HEADER || *length > bytes - 8) {
    return lm_fail_in_file(LM_E_IO, f->path, "not a safetensors file: a header of %llu bytes in a file of %llu",
                           (unsigned long long)*length, (unsigned long long)bytes);
  }
  if (!(text = lm_malloc((size_t)*length))) return LM_E_OOM;
  TRY(lm_sections_copy(f->file, 8, *length, text));
  *out = text;
  text = NULL;
done:
  lm_free(text);
  return status;
}

/* Names of tensors and sizes make no more values of n bytes, however short the names are. */
static bool has_too_many_values(const char *text, size_t n) {
  size_t values = lm_json_values(text, n);
  return values > n / 4 + 16 || values > LM_JSON_VALUES;
}

static lm_status parse(lm_safetensors *f) {
  lm_status status = LM_OK;
  uint64_t length = 0;
  const char **names = NULL, *end = NULL;
  char *text = NULL;
  TRY(read_header(f, &text, &length));
  if (length == 0 || text[0] != '{') {
    status = lm_fail_malformed(f->path, "safetensors header", 8, "it must start with {");
    goto done;
  }
  if (!lm_is_utf8(text, (size_t)length)) {
    status = lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "it is not valid UTF-8");
    goto done;
  }
  if (lm_json_has_zero(text, (size_t)length)) {
    status = lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "a string contains a NUL byte");
    goto done;
  }
  if (has_too_many_values(text, (size_t)length)) {
    status = lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET,
                               "it has %llu bytes and more values than names and shapes of tensors need",
                               (unsigned long long)length);
    goto done;
  }
  f->header = cJSON_ParseWithLengthOpts(text, (size_t)length, &end, 0);
  if (!cJSON_IsObject(f->header)) {
    status = lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "it is not a JSON object");
    goto done;
  }
  for (; end < text + length; end++) {
    if (*end == ' ') continue;
    status = lm_fail_malformed(f->path, "safetensors header", 8 + (end - text), "data follows its object");
    goto done;
  }
  f->data_at = 8 + length;
  size_t data_bytes = (size_t)(lm_sections_bytes(f->file) - f->data_at), n = (size_t)cJSON_GetArraySize(f->header);
  f->entry = lm_calloc(n, sizeof *f->entry);
  f->ahead = lm_calloc(n, sizeof *f->ahead);
  f->piece = lm_calloc(n, sizeof *f->piece);
  names = lm_calloc(n, sizeof *names);
  if (!f->entry || !f->ahead || !f->piece || !names) {
    status = LM_E_OOM;
    goto done;
  }
  cJSON *item;
  cJSON_ArrayForEach(item, f->header) {
    if (strcmp(item->string, "__metadata__") == 0) {
      if (f->key) {
        status = lm_fail_malformed(f->path, "safetensors header", LM_NO_OFFSET, "__metadata__ appears twice");
        goto done;
      }
      TRY(read_metadata(f, item));
    } else {
      TRY(read_entry(f, item, data_bytes, &f->entry[f->n]));
      names[f->n] = item->string;
      f->n++;
      cJSON_Delete(item->child); /* all that is left to know is the name: there may be very many */
      item->child = NULL;
    }
  }
  TRY(lm_safetensors_check_distinct(f->path, f->n, names));
  TRY(check_layout(f, data_bytes));
done:
  lm_free(names);
  lm_free(text);
  return status;
}

lm_status lm_safetensors_open(const char *path, int threads, lm_safetensors **out) {
  lm_status status;
  lm_safetensors *f = lm_calloc(1, sizeof *f);
  if (!f) return LM_E_OOM;
  TRY(lm_sections_open(path, threads, &f->file));
  f->path = lm_sections_path(f->file);
  f->mapped = threads == 0;
  TRY(parse(f));
  *out = f;
  f = NULL;
done:
  lm_safetensors_close(f);
  return status;
}

void lm_safetensors_close(lm_safetensors *f) {
  if (!f) return;
  for (int i = 0; i < f->n; i++) lm_release(f->ahead[i]);
  cJSON_Delete(f->header);
  lm_sections_close(f->file);
  lm_free(f->entry);
  lm_free(f->ahead);
  lm_free(f->piece);
  lm_free(f->key);
  lm_free(f->value);
  lm_free(f);
}

int lm_safetensors_count(const lm_safetensors *f) { return f->n; }
const char *lm_safetensors_name(const lm_safetensors *f, int i) { return f->entry[i].name; }
int lm_safetensors_nmeta(const lm_safetensors *f) { return f->nmeta; }
const char *lm_safetensors_key(const lm_safetensors *f, int i) { return f->key[i]; }
const char *lm_safetensors_value(const lm_safetensors *f, int i) { return f->value[i]; }

const char *lm_safetensors_lacking(const lm_safetensors *f, int i) {
  return f->entry[i].dtype == LM_NO_DTYPE ? f->entry[i].stored : NULL;
}

/* Where the file's bytes go: for smaller elements the end of the tensor's memory, from which `widen` spreads them. */
static char *landing(const entry *e, const lm_tensor *t) {
  size_t bytes = lm_nbytes(t);
  return t->data + (bytes - (e->to - e->from));
}

/* From the first on: each is read before what lies on it is written. */
static void widen(const entry *e, const lm_tensor *t) {
  if (!e->from_u32) return;
  const char *from = landing(e, t);
  for (int64_t k = 0; k < t->numel; k++, from += sizeof(uint32_t)) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    ((int64_t *)t->data)[k] = value;
  }
}

static lm_status new_tensor(const lm_safetensors *f, const entry *e, lm_tensor **out) {
  lm_status status = lm_tensor_empty(e->dtype, LM_DEVICE(LM_CPU, 0), e->ndim, e->size, LM_CONTIGUOUS, out);
  return status == LM_OK ? status : lm_fail_in_file(status, f->path, "%s", lm_error());
}

/* Over the mapped file, or copied. */
static lm_status map_tensor(lm_safetensors *f, const entry *e, lm_tensor **out) {
  lm_status status;
  size_t bytes = e->to - e->from;
  lm_tensor *t = NULL;
  if (!e->from_u32) {
    TRY(lm_sections_over(f->file, e->dtype, e->ndim, e->size, f->data_at + e->from, bytes, lm_dtype_size(e->dtype),
                         &t));
  }
  if (!t) {
    TRY(new_tensor(f, e, &t));
    if (bytes > 0) TRY(lm_sections_copy(f->file, f->data_at + e->from, bytes, landing(e, t)));
  }
  *out = t;
  t = NULL;
done:
  lm_release(t);
  return status;
}

/* Reads tensor i, and those after it that fit in the window: one thread for each small tensor would be too few. */
static lm_status read_ahead(lm_safetensors *f, int i) {
  lm_status status = LM_OK;
  size_t bytes = 0;
  int n = 0;
  for (int k = i; k < f->n && !f->ahead[k]; k++, n++) {
    const entry *e = &f->entry[k];
    if (e->dtype == LM_NO_DTYPE || (k > i && bytes + (e->to - e->from) > WINDOW)) break;
    status = new_tensor(f, e, &f->ahead[k]);
    if (status != LM_OK && k > i) break; /* what is ahead has time */
    TRY(status);
    f->piece[n] = (lm_piece){landing(e, f->ahead[k]), e->to - e->from, f->data_at + e->from};
    bytes += e->to - e->from;
  }
  status = lm_sections_pieces(f->file, n, f->piece);
  for (int k = i; k < i + n && status != LM_OK; k++) {
    lm_release(f->ahead[k]);
    f->ahead[k] = NULL;
  }
done:
  return status;
}

lm_status lm_safetensors_tensor(lm_safetensors *f, int i, lm_tensor **out) {
  lm_status status = LM_OK;
  const entry *e = &f->entry[i];
  lm_tensor *t = NULL;
  if (e->dtype == LM_NO_DTYPE) {
    return lm_fail_in_file(LM_E_IO, f->path, "'%s' has unsupported dtype %s", called(e), e->stored);
  }
  if (f->mapped) {
    TRY(map_tensor(f, e, &t));
  } else {
    if (!f->ahead[i]) TRY(read_ahead(f, i));
    t = f->ahead[i];
    f->ahead[i] = NULL;
  }
  widen(e, t);
  for (int64_t k = 0; e->dtype == LM_BOOL && k < t->numel; k++) {
    int value = (unsigned char)t->data[k];
    if (value <= 1) continue;
    status = lm_fail_malformed(f->path, "safetensors data", LM_NO_OFFSET, "'%s' is bool but has the value %d",
                               called(e), value);
    goto done;
  }
  *out = t;
  t = NULL;
done:
  lm_release(t);
  return status;
}
