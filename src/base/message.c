#include "base/message.h"

#include <stdio.h>
#include <string.h>

#include "base/nearest_word.h"

const char *lm_text(const char *format, ...) {
  static _Thread_local char texts[8][256];
  static _Thread_local unsigned turn;
  char *out = texts[turn++ % 8];
  LM_WRITE_ARGS(out, sizeof texts[0], format);
  return out;
}

lm_status lm_remedy(lm_status status, const char *format, ...) {
  char text[512];
  LM_WRITE_ARGS(text, sizeof text, format);
  return lm_fail(status, "%s; %s", lm_error(), text);
}

static lm_status must_be(lm_status status, const char *op, const char *name, const char *bound, const char *got) {
  return lm_fail(status, "%s: %s must be %s, got %s", op, name, bound, got);
}

lm_status lm_fail_value(const char *op, const char *name, const char *bound, const char *got) {
  return must_be(LM_E_ARG, op, name, bound, got);
}

lm_status lm_fail_int(const char *op, const char *name, const char *bound, int64_t got) {
  return must_be(LM_E_ARG, op, name, bound, lm_text("%lld", (long long)got));
}

lm_status lm_fail_number(const char *op, const char *name, const char *bound, double got) {
  return must_be(LM_E_ARG, op, name, bound, got == got ? lm_text("%.14g", got) : "nan"); /* printf may write -nan */
}

lm_status lm_fail_absent(const char *op, const char *name, const char *bound) {
  return lm_fail(LM_E_ARG, "%s: %s is missing; expected %s", op, name, bound);
}

lm_status lm_fail_divisible(const char *op, const char *name, int64_t value, const char *divisor_name,
                            int64_t divisor) {
  return lm_fail(LM_E_ARG, "%s: %s (%lld) must be divisible by %s (%lld)", op, name, (long long)value, divisor_name,
                 (long long)divisor);
}

lm_status lm_fail_too_many(const char *op, int limit, const char *thing, int64_t got) {
  if (limit == 0) return lm_fail(LM_E_ARG, "%s: takes no %ss, got %lld", op, thing, (long long)got);
  return lm_fail(LM_E_ARG, "%s: takes at most %d %s%s, got %lld", op, limit, thing, limit == 1 ? "" : "s",
                 (long long)got);
}

lm_status lm_fail_twice(const char *op, const char *name) {
  return lm_fail(LM_E_ARG, "%s: %s is given twice, by position and by name", op, name);
}

lm_status lm_fail_exclusive(const char *op, const char *a, const char *b) {
  return lm_fail(LM_E_ARG, "%s: %s and %s are mutually exclusive", op, a, b);
}

lm_status lm_fail_repeated_dim(const char *op, int dim) { return lm_fail(LM_E_ARG, "%s: dim %d is repeated", op, dim); }

lm_status lm_fail_overlap(const char *op, const char *name, const char *shape) {
  return lm_fail(LM_E_ARG,
                 "%s: cannot write in place to %s of shape %s, whose elements share memory; :clone() it first", op,
                 name, shape);
}

lm_status lm_fail_option(const char *op, const char *option, int n, const char *const *names) {
  const char *near = lm_nearest(option, n, names);
  const char *shown = lm_ellipsize(option, 100);
  if (strcmp(option, "out") == 0) {
    return lm_fail(LM_E_ARG, "%s: unknown option 'out'; results are new tensors: y:copy_(result) copies one into y",
                   op);
  }
  if (near) return lm_fail(LM_E_ARG, "%s: unknown option '%s'; did you mean '%s'?", op, shown, near);
  if (n == 0) return lm_fail(LM_E_ARG, "%s: unknown option '%s'; it has no options", op, shown);
  char list[512] = "";
  for (int i = 0, at = 0; i < n && at < (int)sizeof list; i++)
    at += snprintf(list + at, sizeof list - (size_t)at, "%s%s", i ? ", " : "", names[i]);
  return lm_fail(LM_E_ARG, "%s: unknown option '%s'; options are %s", op, shown, list);
}

lm_status lm_fail_shape(const char *op, const char *name, const char *expected, const char *got) {
  return lm_fail(LM_E_SHAPE, "%s: expected %s to have shape %s, got %s", op, name, expected, got);
}

lm_status lm_fail_shapes(const char *op, const char *a, const char *shape_a, const char *b, const char *shape_b) {
  return lm_fail(LM_E_SHAPE, "%s: shapes of %s and %s must match, got %s and %s", op, a, b, shape_a, shape_b);
}

lm_status lm_fail_broadcast(const char *op, const char *name, const char *shape, const char *target) {
  return lm_fail(LM_E_SHAPE, "%s: %s of shape %s does not broadcast to %s", op, name, shape, target);
}

lm_status lm_fail_empty_dim(const char *op, int dim, const char *shape) {
  return lm_fail(LM_E_SHAPE, "%s: dim %d of %s must not be empty", op, dim, shape);
}

lm_status lm_fail_index(const char *op, int64_t index, int dim, int64_t size) {
  return lm_fail(LM_E_INDEX, "%s: index %lld is out of range for dimension %d of size %lld (indices start at 1)", op,
                 (long long)index, dim, (long long)size);
}

lm_status lm_fail_dtype(const char *op, const char *name, const char *bound, const char *got) {
  return must_be(LM_E_DTYPE, op, name, bound, got);
}

lm_status lm_fail_dtypes(const char *op, const char *a, const char *dtype_a, const char *b, const char *dtype_b) {
  return lm_fail(LM_E_DTYPE, "%s: dtype mismatch: %s is %s, %s is %s; convert one with :to()", op, a, dtype_a, b,
                 dtype_b);
}

lm_status lm_fail_devices(const char *op, const char *a, const char *device_a, const char *b, const char *device_b) {
  return lm_fail(LM_E_DEVICE, "%s: device mismatch: %s is on %s, %s is on %s; move one with :to()", op, a, device_a, b,
                 device_b);
}

lm_status lm_fail_division(const char *op) { return lm_fail(LM_E_ARG, "%s: integer division by zero", op); }

lm_status lm_fail_missing(const char *op, const char *where) {
  return lm_fail(LM_E_MISSING, "%s: not implemented for %s", op, where);
}

lm_status lm_fail_freed(const char *op) {
  return lm_fail(LM_E_STATE,
                 "%s: saved tensors were freed by an earlier backward(); pass {retain_graph = true} to the first", op);
}

/* ---- distributed and processes */

lm_status lm_fail_cannot(lm_status status, const char *action, int error) {
  return lm_fail(status, "cannot %s: %s", action, strerror(error));
}

lm_status lm_fail_rank(const char *op, int64_t rank, int64_t size) {
  return lm_fail(LM_E_ARG, "%s: rank %lld is out of range for %lld ranks (ranks start at 0)", op, (long long)rank,
                 (long long)size);
}

lm_status lm_fail_length(const char *op, const char *name, int n, const char *each, int got) {
  return lm_fail(LM_E_ARG, "%s: %s must have %d %s, one for each %s, got %d", op, name, n, n == 1 ? "entry" : "entries",
                 each, got);
}

lm_status lm_fail_device(const char *op, const char *name, const char *bound, const char *got) {
  return must_be(LM_E_DEVICE, op, name, bound, got);
}

lm_status lm_fail_wait(const char *call, double seconds) {
  return lm_fail(LM_E_STATE, "wait: %s is not done after %g s and continues", call, seconds);
}

/* ---- files */

enum { PATH_BYTES = 600, REASON_BYTES = 900 }; /* the complete message has at most 1023 */

static void write_path(char out[PATH_BYTES], const char *path) {
  lm_write(out, PATH_BYTES, "%s", path);
  for (char *p = out; *p; p++) {
    if (*p == '\n' || *p == '\t') *p = '?';
  }
}

lm_status lm_fail_file(const char *verb, const char *path, const char *reason) {
  char shown[PATH_BYTES];
  write_path(shown, path);
  return lm_fail(LM_E_IO, "cannot %s '%s': %s", verb, shown, reason);
}

lm_status lm_fail_malformed(const char *path, const char *part, int64_t at, const char *reason, ...) {
  char text[REASON_BYTES];
  LM_WRITE_ARGS(text, sizeof text, reason);
  const char *where = at == LM_NO_OFFSET ? "" : lm_text(" at byte %lld", (long long)at);
  return lm_fail_in_file(LM_E_IO, path, "malformed %s%s: %s", part, where, text);
}

lm_status lm_fail_truncated(const char *path, uint64_t needed, uint64_t at, uint64_t bytes) {
  return lm_fail_in_file(LM_E_IO, path, "truncated: needs %llu bytes at byte %llu, the file has %llu",
                         (unsigned long long)needed, (unsigned long long)at, (unsigned long long)bytes);
}

lm_status lm_fail_in_file(lm_status status, const char *path, const char *reason, ...) {
  char shown[PATH_BYTES], text[REASON_BYTES];
  LM_WRITE_ARGS(text, sizeof text, reason);
  write_path(shown, path);
  return lm_fail(status, "'%s': %s", shown, text);
}

/* ---- the system and other libraries */

lm_status lm_fail_memory(const char *format, ...) {
  char what[512];
  LM_WRITE_ARGS(what, sizeof what, format);
  return lm_fail(LM_E_OOM, "cannot allocate %s: out of memory", what);
}

lm_status lm_fail_call(lm_status status, const char *op, const char *call, int code, const char *name,
                       const char *text) {
  char named[96] = "";
  if (name) snprintf(named, sizeof named, " (%s)", name);
  return lm_fail(status, "%s%s%.*s: error %d%s%s%s", op ? op : "", op ? ": " : "", (int)strcspn(call, "("), call, code,
                 named, text && *text ? ": " : "", text ? text : "");
}
