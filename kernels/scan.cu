/* Scans lines: sums, products and the like up to each element (scan.h).
 *
 * A scan F has a state and
 *   state start()                    the state of no elements
 *   state load(int64_t x)            the state of the element at x
 *   state operator()(state, state)   two joined, the earlier first
 *   void put(int64_t out, state)     writes the result for the element at out */
#include "scan.h"

#include "merged_dims.cuh"
#include "types.cuh"

enum { THREADS = 256, ITEMS = LM_SCAN_CHUNK / THREADS };

/* Returns an element of any dtype. */
template <class C>
LM_DEVICE C lm_scan_get(const void *p, int dtype, int64_t i) {
  switch (dtype) {
    case LM_BOOL: return lm_get<C>(((const lm_bool *)p)[i]);
#define X(id, ...) \
  case LM_##id: return lm_get<C>(((const lm_elem_##id *)p)[i]);
      LM_INTEGER_DTYPES(X)
#undef X
    default: return (C)lm_number_at(p, dtype, i);
  }
}

/* A scan's operands; C is double or int64. */
template <class C>
struct lm_scan_sides {
  const void *x, *decay;
  void *out;
  int64_t *indices;
  int x_dtype, decay_dtype, out_dtype;
  LM_DEVICE C get(int64_t at) const { return lm_scan_get<C>(x, x_dtype, at); }
  LM_DEVICE void set(int64_t at, C v) const { lm_put_number(out, out_dtype, at, v); }
};

template <class C>
struct lm_scan_sum : lm_scan_sides<C> {
  typedef C state;
  LM_DEVICE state start() const { return 0; }
  LM_DEVICE state load(int64_t at, int64_t) const { return this->get(at); }
  LM_DEVICE state operator()(state a, state b) const { return a + b; }
  LM_DEVICE void put(int64_t at, state s) const { this->set(at, s); }
};

template <class C>
struct lm_scan_product : lm_scan_sum<C> {
  typedef C state;
  LM_DEVICE state start() const { return 1; }
  LM_DEVICE state operator()(state a, state b) const { return a * b; }
};

template <class C>
struct lm_scan_logsumexp : lm_scan_sum<C> {
  typedef C state;
  LM_DEVICE state start() const { return -INFINITY; }
  LM_DEVICE state operator()(state a, state b) const {
    state least = a < b ? a : b, most = a < b ? b : a;
    if (a != a || b != b) return a + b;
    return least == most && isinf(least) ? least : most + log1p(exp(least - most));
  }
};

template <class C>
struct lm_scan_extreme : lm_scan_sides<C> {
  struct state {
    C value;
    int64_t position; /* index of the extreme, from 1; 0 for no elements */
  };
  bool largest;
  LM_DEVICE state start() const { return {0, 0}; }
  LM_DEVICE state load(int64_t at, int64_t i) const { return {this->get(at), i + 1}; }
  LM_DEVICE state operator()(state a, state b) const {
    if (b.position == 0) return a;
    bool later = a.position == 0 || b.value != b.value || (largest ? b.value >= a.value : b.value <= a.value);
    return later ? b : a;
  }
  LM_DEVICE void put(int64_t at, state s) const {
    this->set(at, s.value);
    this->indices[at] = s.position;
  }
};

/* The map y -> decay y + x. */
template <class C>
struct lm_scan_recurrence : lm_scan_sides<C> {
  struct state {
    C decay, x;
  };
  LM_DEVICE state start() const { return {1, 0}; }
  LM_DEVICE state load(int64_t at, int64_t) const {
    return {lm_scan_get<C>(this->decay, this->decay_dtype, at), this->get(at)};
  }
  LM_DEVICE state operator()(state a, state b) const { return {a.decay * b.decay, b.decay * a.x + b.x}; }
  LM_DEVICE void put(int64_t at, state s) const { this->set(at, s.x); }
};

typedef struct lm_scan_lines {
  lm_dims_loops<LM_SCAN_SIDES> begin;
  int64_t count, n, step[LM_SCAN_SIDES], first[LM_SCAN_SIDES]; /* first: offset of the element that is scanned first */
  int parts;
  int64_t each; /* elements of each part except the last */
} lm_scan_lines;

template <class F>
LM_DEVICE typename F::state lm_scan_load(const F &f, const lm_scan_lines &lines, const int64_t *at, int64_t i) {
  return f.load(at[LM_SCAN_X] + i * lines.step[LM_SCAN_X], i);
}

/* Returns the inclusive scan of the states of a warp's lanes. */
template <class F>
LM_DEVICE typename F::state lm_scan_warp(const F &f, typename F::state s) {
  int lane = lm_lane();
  LM_UNROLL
  for (int by = 1; by < LM_WARP; by *= 2) {
    typename F::state before = lm_shuffle_up(s, by);
    if (lane >= by) s = f(before, s);
  }
  return s;
}

/* Scans rows, a block for each part of a line; each thread has ITEMS neighbors at a time. If there are several parts, a
 * first launch, without PUT, joins each into totals; the second starts from the totals of earlier parts. */
template <class F, bool PUT>
LM_KERNEL void lm_scan_rows(lm_scan_lines lines, F f, typename F::state *totals) {
  typedef typename F::state state_t;
  __shared__ state_t upto[LM_WARP];
  int lane = lm_lane(), warp = (int)threadIdx.x / LM_WARP, warps = THREADS / LM_WARP;
  int64_t at[LM_SCAN_SIDES] = {lines.first[0], lines.first[1]};
  int part = (int)(blockIdx.x % (unsigned)lines.parts);
  int64_t from = part * lines.each, to = from + lines.each < lines.n ? from + lines.each : lines.n;
  lm_dims_offset<true>(lines.begin, blockIdx.x / (unsigned)lines.parts, at);
  state_t carry = f.start();
  for (int k = 0; PUT && k < part; k++) carry = f(carry, totals[blockIdx.x - part + k]);
  for (int64_t base = from; base < to; base += LM_SCAN_CHUNK) {
    state_t own[ITEMS], sum = f.start();
    int64_t first = base + (int64_t)threadIdx.x * ITEMS;
    LM_UNROLL
    for (int k = 0; k < ITEMS; k++) {
      if (first + k < to) sum = f(sum, lm_scan_load(f, lines, at, first + k));
      own[k] = sum;
    }
    state_t within = lm_scan_warp(f, sum), before = lm_shuffle_up(within, 1);
    if (lane == LM_WARP - 1) upto[warp] = within;
    __syncthreads();
    if (warp == 0) {
      state_t all = lm_scan_warp(f, lane < warps ? upto[lane] : f.start());
      if (lane < warps) upto[lane] = all;
    }
    __syncthreads();
    if (lane == 0) before = f.start();
    if (warp > 0) before = f(upto[warp - 1], before);
    before = f(carry, before);
    LM_UNROLL
    for (int k = 0; k < ITEMS; k++) {
      if (PUT && first + k < to) f.put(at[LM_SCAN_OUT] + (first + k) * lines.step[LM_SCAN_OUT], f(before, own[k]));
    }
    carry = f(carry, upto[warps - 1]);
    __syncthreads();
  }
  if (!PUT && threadIdx.x == 0) totals[blockIdx.x] = carry;
}

/* Scans columns, a thread for each part of a line; neighboring threads have neighboring lines. If there are several
 * parts, the first launch, without PUT, joins each into totals. */
template <class F, bool PUT>
LM_KERNEL void lm_scan_columns(lm_scan_lines lines, F f, typename F::state *totals) {
  enum { LOADS = 4 };
  int64_t part = lm_thread() / lines.count, line = lm_thread() - part * lines.count;
  int64_t at[LM_SCAN_SIDES] = {lines.first[0], lines.first[1]};
  if (part >= lines.parts) return;
  int64_t from = part * lines.each, to = from + lines.each < lines.n ? from + lines.each : lines.n;
  lm_dims_offset<true>(lines.begin, line, at);
  typename F::state s = f.start();
  for (int64_t k = 0; PUT && k < part; k++) s = f(s, totals[k * lines.count + line]);
  for (int64_t base = from; base < to; base += LOADS) {
    typename F::state next[LOADS];
    LM_UNROLL
    for (int k = 0; k < LOADS; k++) next[k] = base + k < to ? lm_scan_load(f, lines, at, base + k) : f.start();
    LM_UNROLL
    for (int k = 0; k < LOADS; k++) {
      if (base + k >= to) break;
      s = f(s, next[k]);
      if (PUT) f.put(at[LM_SCAN_OUT] + (base + k) * lines.step[LM_SCAN_OUT], s);
    }
  }
  if (!PUT) totals[part * lines.count + line] = s;
}

template <class F>
static int lm_scan_launch(const lm_scan_job *job, F f, void *stream) {
  lm_scan_lines lines = {
      lm_dims_loops_of<LM_SCAN_SIDES>(&job->lines), lm_dims_numel(&job->lines), job->n, {}, {}, job->parts, 0};
  for (int s = 0; s < LM_SCAN_SIDES; s++) {
    lines.step[s] = job->reverse ? -job->step[s] : job->step[s];
    lines.first[s] = job->reverse ? (job->n - 1) * job->step[s] : 0;
  }
  typedef typename F::state state_t;
  static_assert(sizeof(state_t) <= LM_SCAN_STATE);
  int64_t unit = job->columns ? 1 : LM_SCAN_CHUNK, units = (job->n + unit - 1) / unit;
  unsigned blocks = lm_blocks(lines.count * job->parts, job->columns ? THREADS : 1, INT32_MAX);
  state_t *totals = (state_t *)job->totals;
  lines.each = (units + job->parts - 1) / job->parts * unit;
  auto join = job->columns ? lm_scan_columns<F, false> : lm_scan_rows<F, false>;
  auto put = job->columns ? lm_scan_columns<F, true> : lm_scan_rows<F, true>;
  int error = job->parts > 1 ? lm_launch(join, blocks, THREADS, 0, stream, lines, f, totals) : 0;
  return error != 0 ? error : lm_launch(put, blocks, THREADS, 0, stream, lines, f, totals);
}

template <class C>
static int lm_scan_of(const lm_scan_job *job, void *stream) {
  lm_scan_sides<C> sides = {job->x, job->decay, job->out, job->indices, job->x_dtype, job->decay_dtype, job->out_dtype};
  switch (job->kind) {
    case LM_SCAN_SUM: return lm_scan_launch(job, lm_scan_sum<C>{sides}, stream);
    case LM_SCAN_PRODUCT: return lm_scan_launch(job, lm_scan_product<C>{{sides}}, stream);
    case LM_SCAN_MAX:
    case LM_SCAN_MIN: return lm_scan_launch(job, lm_scan_extreme<C>{sides, job->kind == LM_SCAN_MAX}, stream);
    default: break;
  }
  if constexpr (std::is_floating_point_v<C>) {
    if (job->kind == LM_SCAN_LOGSUMEXP) return lm_scan_launch(job, lm_scan_logsumexp<C>{{sides}}, stream);
    if (job->kind == LM_SCAN_RECURRENCE) return lm_scan_launch(job, lm_scan_recurrence<C>{sides}, stream);
  }
  return (int)cudaErrorInvalidValue;
}

int lm_scan_run(const lm_scan_job *job, void *stream) {
  bool floating = job->x_dtype >= LM_F16 || job->out_dtype >= LM_F16;
  return floating ? lm_scan_of<double>(job, stream) : lm_scan_of<int64_t>(job, stream);
}
