/* Runs elementwise kernels over tiles. */
#include <string.h>

#include "backend/cpu/chain.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/strided_tiles.h"
#include "base/message.h"
#include "op_ids.h"

static const char *name_of(int kernel) { return lm_ops[lm_pointwise_op(kernel)].name; }

/* Returns true if an integer divisor has a zero, which must be found before the first write. */
static bool has_zero(const char *data, lm_dtype dtype, int ndim, const int64_t *size, const int64_t *stride) {
  int64_t bytes = (int64_t)lm_dtype_size(dtype), n = ndim == 0 || stride[0] == 0 ? 1 : size[0];
  if (ndim > 1) {
    for (int64_t i = 0; i < n; i++) {
      if (has_zero(data + i * stride[0] * bytes, dtype, ndim - 1, size + 1, stride + 1)) return true;
    }
    return false;
  }
  int64_t tile[LM_TILE], step = n == 1 ? 0 : stride[0];
  for (int64_t i = 0; i < n; i += LM_TILE) {
    int part = n - i < LM_TILE ? (int)(n - i) : LM_TILE;
    lm_pointwise_loops_of(LM_I64)->load[dtype](tile, data + i * step * bytes, step, part);
    for (int k = 0; k < part; k++) {
      if (tile[k] == 0) return true;
    }
  }
  return false;
}

/* Returns true if each input is laid out like a contiguous result, or is one element, `repeated`. */
static bool is_plain(const lm_pointwise *job, bool *repeated) {
  const lm_tensor *out = job->out;
  int64_t expected = 1;
  for (int i = 0; i < job->nin; i++) repeated[i] = true;
  for (int d = out->ndim - 1; d >= 0; d--) {
    if (out->size[d] == 1) continue;
    if (out->stride[d] != expected) return false;
    for (int i = 0; i < job->nin; i++) {
      bool outermost = expected == 1; /* the first dim that is seen decides if the input repeats */
      if (outermost) repeated[i] = job->in_stride[i][d] == 0;
      if (job->in_stride[i][d] != (repeated[i] ? 0 : expected)) return false;
    }
    expected *= out->size[d];
  }
  return true;
}

static bool dtype_holds(lm_dtype d, int64_t v) {
  int64_t low, high;
  lm_dtype_integers(d, &low, &high);
  return low <= v && v <= high;
}

/* Returns a narrower integer type that the kernel may compute in: the one of its tensors, beside which masks are
 * allowed, and integers that fit into it. Returns LM_I64 if there is none. */
static lm_dtype narrow_type(const lm_pointwise *job) {
  lm_dtype type = LM_BOOL, result = job->out->dtype;
  for (int i = 0; i < job->nin; i++) {
    const lm_tensor *t = job->in[i];
    if (t->dtype == LM_BOOL || (t->numel == 1 && t->dtype == LM_I64) || t->dtype == type) continue;
    if (type != LM_BOOL) return LM_I64;
    type = t->dtype;
  }
  if (result != LM_BOOL && result != type) return LM_I64;
  if (type == LM_BOOL) type = LM_U8;
  if ((type != LM_U8 && type != LM_I8 && type != LM_I16 && type != LM_I32) ||
      !lm_pointwise_loops_of(type)->kernel[lm_pointwise_row(job->kernel)])
    return LM_I64;
  for (int i = 0; i < job->nin; i++) {
    if (job->in[i]->dtype == LM_I64 && !dtype_holds(type, *(const int64_t *)job->in[i]->data)) return LM_I64;
  }
  for (int i = 0; i < lm_ops[job->kernel].nnumber; i++) {
    double v = job->number[i];
    if (!(v >= INT32_MIN && v <= INT32_MAX) || !dtype_holds(type, (int64_t)v)) return LM_I64;
  }
  return type;
}

static bool is_test(const lm_pointwise *job) {
  return job->kernel < LM_OP_COUNT && lm_ops[job->kernel].result_dtype == LM_RESULT_DTYPE_BOOL;
}

/* Returns true if the kernel only tests whether its inputs are 0, so that it can read bools as bytes. */
static bool is_logical(int kernel) {
  return kernel == LM_OP_logical_and || kernel == LM_OP_logical_or || kernel == LM_OP_logical_xor ||
         kernel == LM_OP_logical_not;
}

/* Returns the kernels that compute in float on halves, if all tensors have one half dtype (single elements may have
 * any); NULL if not. */
static const struct lm_half_loops *half_loops(const lm_pointwise *job) {
  lm_dtype half = job->out->dtype;
  bool known = half != LM_BOOL || !is_test(job); /* a test's result is bool; its inputs have the half dtype */
  for (int i = 0; i < job->nin; i++) {
    if (job->in[i]->numel == 1) continue;
    if (!known) half = job->in[i]->dtype, known = true;
    if (job->in[i]->dtype != half) return NULL;
  }
  if (!lm_dtype_is_half(half)) return NULL;
  const struct lm_half_loops *loops = half == LM_F16 ? LM_ISA_PICK(lm_half_F16) : LM_ISA_PICK(lm_half_BF16);
  return loops->kernel ? loops : NULL;
}

/* Returns true if `bytes` from t's first element on belong to t, which has fewer: a small tensor alone in its
 * storage. */
static bool has_room(const lm_tensor *t, size_t bytes) {
  const lm_storage *s = t->storage;
  return t->data == s->small && s->bytes == lm_nbytes(t) && bytes <= LM_SMALL_BYTES;
}

/* Computes one tile at most, without a plan: small tensors cost about as much as the call. Floats in a small tensor's
 * own memory are not padded, since nobody reads its unused lanes. Integers are, since some kernels divide. */
static void run_small(const lm_pointwise *job, const struct lm_pointwise_loops *loops, lm_dtype compute,
                      const bool *repeated) {
  const void *in[LM_POINTWISE_MAX_IN];
  int n = (int)job->out->numel, whole = lm_round_up(n, LM_LANES);
  size_t num = lm_dtype_size(compute), bytes = num * (size_t)whole;
  bool is_float = lm_dtype_is_float(compute), tiled[LM_POINTWISE_MAX_IN];
  bool here = job->out->dtype == compute && (n == whole || (is_float && has_room(job->out, bytes))), tiles = !here;
  for (int i = 0; i < job->nin; i++) {
    const lm_tensor *t = job->in[i];
    tiled[i] = repeated[i] || t->dtype != compute || (n != whole && !(is_float && has_room(t, bytes)));
    tiles |= tiled[i];
  }
  LM_LARGE(char[LM_TILE_BYTES], tile, tiles ? LM_POINTWISE_MAX_IN + 1 : 0);
  for (int i = 0; i < job->nin; i++) {
    const lm_tensor *t = job->in[i];
    in[i] = t->data;
    if (!tiled[i]) continue;
    loops->load[t->dtype](tile[i], t->data, repeated[i] ? 0 : 1, repeated[i] ? whole : n);
    if (!repeated[i]) lm_tile_pad(tile[i], n, num);
    in[i] = tile[i];
  }
  lm_tile_numbers numbers;
  if (job->kernel >= LM_OP_COUNT || lm_ops[job->kernel].nnumber) numbers = lm_tile_numbers_of(compute, job->number);
  void *out = here ? job->out->data : tile[LM_POINTWISE_MAX_IN];
  loops->kernel[lm_pointwise_row(job->kernel)](out, in, &numbers, whole);
  if (!here) loops->store[job->out->dtype](job->out->data, 1, out, n);
}

lm_status lm_cpu_pointwise(const lm_pointwise *job) {
  lm_dtype compute = job->compute == LM_I64 && job->out->numel > 0 ? narrow_type(job) : job->compute;
  const struct lm_pointwise_loops *loops = lm_pointwise_loops_of(compute);
  if (!loops->kernel[lm_pointwise_row(job->kernel)]) {
    return lm_fail_missing(name_of(job->kernel), lm_dtype_name(job->compute));
  }
  if (job->out->numel == 0) return LM_OK;
  int by = lm_pointwise_divisor(job->kernel) - 1;
  bool divides = by >= 0 && job->compute == LM_I64; /* true if the call must report a zero divisor */
  if (__builtin_expect(atomic_load_explicit(&lm_chains, memory_order_relaxed) > 0, 0) &&
      lm_chain_put(job, compute, !divides)) {
    return LM_OK;
  }
  if (divides && has_zero(job->in[by]->data, job->in[by]->dtype, job->out->ndim, job->out->size, job->in_stride[by])) {
    return lm_fail_division(name_of(job->kernel));
  }
  bool repeated[LM_POINTWISE_MAX_IN];
  if (job->out->numel <= LM_TILE && is_plain(job, repeated)) {
    run_small(job, loops, compute, repeated);
    return LM_OK;
  }
  const struct lm_half_loops *halves = compute == LM_F32 ? half_loops(job) : NULL;
  lm_tiles t = {.compute = halves ? LM_I16 : compute,
                .kernel = (halves ? halves->kernel : loops->kernel)[lm_pointwise_row(job->kernel)],
                .halves = halves != NULL,
                .nin = job->nin,
                .tests = is_test(job)};
  lm_tiles_result(&t, job->out);
  for (int i = 0; i < job->nin; i++) {
    t.in[i] = lm_operand_of(job->in[i]);
    memcpy(t.in[i].stride, job->in_stride[i], (size_t)job->out->ndim * sizeof(int64_t));
    if (t.in[i].dtype == LM_BOOL && compute == LM_U8 && is_logical(job->kernel)) t.in[i].dtype = LM_U8;
  }
  memcpy(t.number, job->number, sizeof t.number);
  lm_tiles_run(&t);
  return LM_OK;
}
