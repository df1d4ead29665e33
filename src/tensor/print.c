/* Formats tensors by PyTorch's rules (torch/_tensor_str.py): one width for all elements; floats that are all integral
 * lose their decimals, floats of very different magnitude turn scientific; beyond 1000 elements only three at each end
 * of a dim are shown. */
#include "tensor/print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "device/driver.h"

enum { ELEMENT_BYTES = 400 /* enough for 1e308 in full */ };

static _Thread_local lm_print_options options = {
    .precision = 4, .threshold = 1000, .edge = 3, .line = 80, .scientific = -1};

lm_print_options *lm_printing(void) { return &options; }

static void put_string(lm_bytes *b, const char *s) { lm_put(b, s, strlen(s)); }

static void put_repeated(lm_bytes *b, char c, int times) {
  for (int i = 0; i < times; i++) lm_put(b, &c, 1);
}

/* Returns the number of characters since the last newline. */
static int last_line(const lm_bytes *b) {
  size_t n = 0;
  while (n < b->n && b->data[b->n - 1 - n] != '\n') n++;
  return (int)n;
}

/* ---- elements */

typedef struct printer {
  const lm_tensor *t;
  const char *data; /* t's first element, on the host */
  bool summarize, is_float, whole, scientific;
  int width;
  /* range and number of the finite values other than 0 */
  double least, largest;
  int64_t seen;
  lm_bytes out;
} printer;

static double float_at(const printer *p, int64_t offset) { return lm_real_at(p->t->dtype, p->data, offset); }

static int format_float(const printer *p, double value, char *s) {
  if (isnan(value)) return sprintf(s, "nan");
  if (isinf(value)) return sprintf(s, value < 0 ? "-inf" : "inf");
  if (p->scientific) return sprintf(s, "%.*e", (int)options.precision, value);
  return p->whole ? sprintf(s, "%.0f.", value) : sprintf(s, "%.*f", (int)options.precision, value);
}

static int format_at(const printer *p, int64_t offset, char *s) {
  lm_dtype dtype = p->t->dtype;
  if (dtype == LM_BOOL) return sprintf(s, p->data[offset] ? "true" : "false");
  if (lm_dtype_is_int(dtype)) return sprintf(s, "%lld", (long long)lm_integer_at(dtype, p->data, offset));
  return format_float(p, float_at(p, offset), s);
}

/* ---- two passes over the elements to show: the first finds their kind, the second their width */

static bool skips_middle(const printer *p, int64_t size) { return p->summarize && size > 2 * options.edge; }

static void visit_elements(printer *p, int dim, int64_t offset, void (*see)(printer *, int64_t offset)) {
  if (dim == p->t->ndim) {
    see(p, offset);
    return;
  }
  int64_t size = p->t->size[dim];
  for (int64_t i = 0; i < size; i++) {
    if (i == options.edge && skips_middle(p, size)) i = size - options.edge;
    visit_elements(p, dim + 1, offset + i * p->t->stride[dim], see);
  }
}

static bool is_finite_nonzero(double value) { return isfinite(value) && value != 0; }

static void see_kind(printer *p, int64_t offset) {
  double value = float_at(p, offset), magnitude = fabs(value);
  if (!is_finite_nonzero(value)) return;
  if (value != ceil(value)) p->whole = false;
  if (p->seen == 0 || magnitude < p->least) p->least = magnitude;
  if (p->seen == 0 || magnitude > p->largest) p->largest = magnitude;
  p->seen++;
}

static void see_width(printer *p, int64_t offset) {
  char s[ELEMENT_BYTES];
  if (p->is_float && !is_finite_nonzero(float_at(p, offset))) return;
  int width = format_at(p, offset, s);
  if (width > p->width) p->width = width;
}

static void choose_format(printer *p) {
  p->width = 1;
  p->whole = true;
  if (p->is_float) {
    visit_elements(p, 0, 0, see_kind);
    if (p->seen == 0) return;
    p->scientific = options.scientific >= 0 ? options.scientific
                                            : p->largest / p->least > 1000.0 || p->largest > 1e8 || p->least < 1e-4;
  }
  visit_elements(p, 0, 0, see_width);
}

/* ---- layout */

static void put_element(printer *p, int64_t offset) {
  char s[ELEMENT_BYTES];
  int n = format_at(p, offset, s);
  put_repeated(&p->out, ' ', p->width - n);
  lm_put(&p->out, s, (size_t)n);
}

static void put_vector(printer *p, int64_t offset, int indent) {
  int64_t size = p->t->size[p->t->ndim - 1], stride = p->t->stride[p->t->ndim - 1];
  int a_line = (int)((options.line - indent) / (p->width + 2)), shown = 0;
  if (a_line < 1) a_line = 1;
  put_string(&p->out, "[");
  for (int64_t i = 0; i < size; i++, shown++) {
    if (shown > 0 && shown % a_line == 0) {
      put_string(&p->out, ",\n");
      put_repeated(&p->out, ' ', indent + 1);
    } else if (shown > 0) {
      put_string(&p->out, ", ");
    }
    if (i == options.edge && skips_middle(p, size)) { /* the dots count as an element of the line */
      put_string(&p->out, " ...");
      i = size - options.edge - 1;
      continue;
    }
    put_element(p, offset + i * stride);
  }
  put_string(&p->out, "]");
}

static void put_dims(printer *p, int dim, int64_t offset, int indent) {
  int left = p->t->ndim - dim;
  if (left == 0) {
    put_element(p, offset);
    return;
  }
  if (left == 1) {
    put_vector(p, offset, indent);
    return;
  }
  int64_t size = p->t->size[dim];
  put_string(&p->out, "[");
  for (int64_t i = 0; i < size; i++) {
    if (i > 0) {
      put_string(&p->out, ",");
      put_repeated(&p->out, '\n', left - 1);
      put_repeated(&p->out, ' ', indent + 1);
    }
    if (i == options.edge && skips_middle(p, size)) {
      put_string(&p->out, "...");
      i = size - options.edge - 1;
      continue;
    }
    put_dims(p, dim + 1, offset + i * p->t->stride[dim], indent + 1);
  }
  put_string(&p->out, "]");
}

/* Appends a suffix after the elements, on a new line if the last is full. */
static void put_suffix(lm_bytes *out, int indent, int *line, const char *suffix) {
  int n = (int)strlen(suffix);
  if (*line + n + 2 > options.line) {
    put_string(out, ",\n");
    put_repeated(out, ' ', indent);
    *line = indent + n;
  } else {
    put_string(out, ", ");
    *line += n + 2;
  }
  put_string(out, suffix);
}

static void put_suffixes(printer *p, int indent, const char *suffix) {
  const lm_tensor *t = p->t;
  char s[256];
  int line = last_line(&p->out) + 2; /* PyTorch counts from here */
  bool empty = t->numel == 0;
  if (t->device != LM_CPU) {
    snprintf(s, sizeof s, "device=%s", lm_device_name(t->device));
    put_suffix(&p->out, indent, &line, s);
  }
  if (empty && t->ndim != 1) {
    const char *shape = lm_shape_of(t);
    snprintf(s, sizeof s, "size=(%.*s)", (int)strlen(shape) - 2, shape + 1);
    put_suffix(&p->out, indent, &line, s);
  }
  if (t->dtype != LM_F32 && (empty || (t->dtype != LM_I64 && t->dtype != LM_BOOL))) {
    snprintf(s, sizeof s, "dtype=%s", lm_dtype_name(t->dtype));
    put_suffix(&p->out, indent, &line, s);
  }
  if (suffix && *suffix) put_suffix(&p->out, indent, &line, strncmp(suffix, ", ", 2) == 0 ? suffix + 2 : suffix);
}

/* Sets *data to t's elements in host memory; the caller frees *copy, which may be NULL. */
static lm_status on_host(const lm_tensor *t, const char **data, void **copy) {
  *data = t->data;
  *copy = NULL;
  if (LM_DEVICE_KIND(t->device) == LM_CPU || t->numel == 0) return LM_OK;
  int64_t last = 0;
  for (int d = 0; d < t->ndim; d++) last += (t->size[d] - 1) * t->stride[d];
  size_t bytes = (size_t)(last + 1) * lm_dtype_size(t->dtype);
  if (!(*copy = lm_malloc(bytes))) return LM_E_OOM;
  *data = *copy;
  return lm_tensor_fetch(t, bytes, *copy);
}

lm_status lm_tensor_print(const lm_tensor *t, const char *suffix, char **out) {
  LM_FREED void *copy = NULL;
  static const char prefix[] = "tensor(";
  int indent = (int)sizeof prefix - 1;
  printer p = {.t = t, .summarize = t->numel > options.threshold, .is_float = lm_dtype_is_float(t->dtype)};
  LM_PLAIN_NUMBERS(locale);
  *out = NULL;
  NEED(on_host(t, &p.data, &copy));
  put_string(&p.out, prefix);
  if (t->numel == 0) {
    put_string(&p.out, "[]");
  } else {
    choose_format(&p);
    put_dims(&p, 0, 0, indent);
  }
  put_suffixes(&p, indent, suffix);
  lm_put(&p.out, ")", sizeof ")");
  if (p.out.failed) {
    lm_bytes_free(&p.out);
    return LM_E_OOM;
  }
  *out = p.out.data;
  return LM_OK;
}
