/* Sorts and selects along a dim (topk, which also sorts, kthvalue, the medians), and searches sorted rows.
 *
 * Elements are compared by keys (isa/sort.h); of equal ones the earlier is the smaller. Whole lines are sorted digit by
 * digit. For the best few, the elements are collected that are better than the worst so far. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/sort.h"
#include "backend/cpu/memory.h"
#include "base/message.h"
#include "merged_dims.h"
#include "op_args_indexing.h"
#include "op_args_ordering.h"

/* A pass that writes to more than 2^10 regions takes twice as long: the nearest TLB holds no more pages. */
enum { DIGIT_BITS = 10, FEW_DIGIT_BITS = 8, FEW_DIGITS_BELOW = 1 << 13 };
enum { MEDIAN = 0, NAN_MEDIAN = -1 };     /* values of k */
enum { SORT_WORK = 12, SELECT_WORK = 2 }; /* nanoseconds an element, about */

/* ---- lines */

typedef struct line_job {
  const struct lm_sort_loops *loops;
  lm_dtype dtype;
  bool wide, floating;
  uint64_t flip, zero_key, nan_key; /* keys of floats' zeros and of NaN */
  int64_t n, k, stride, out_stride;
  size_t item;
  char *values;
  int64_t *indices;
  const char *x;
  int64_t count; /* number of lines */
  lm_dims lines; /* lines' offsets: side 0 in x, side 1 in the results */
} line_job;

static line_job describe_sorted_lines(const lm_tensor *x, int64_t dim, int64_t k, bool largest, lm_tensor *const *out) {
  lm_dtype dtype = x->dtype;
  bool wide = lm_sort_is_wide(dtype);
  const uint64_t all = wide ? UINT64_MAX : UINT32_MAX, flip = largest ? all : 0;
  line_job job = {.loops = LM_ISA_PICK(lm_sort_loops),
                  .dtype = dtype,
                  .wide = wide,
                  .floating = lm_dtype_is_float(dtype),
                  .flip = flip,
                  .zero_key = (all ^ all >> 1) ^ flip,
                  .nan_key = all ^ flip,
                  .n = x->size[dim],
                  .k = k,
                  .stride = x->stride[dim],
                  .out_stride = out[0]->stride[dim],
                  .item = lm_dtype_size(dtype),
                  .values = out[0]->data,
                  .indices = (int64_t *)out[1]->data,
                  .x = x->data};
  bool others[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) others[d] = d != dim;
  job.lines = lm_dims_of(x->ndim, x->size, others, 2, (const int64_t *[]){x->stride, out[0]->stride}, false);
  job.count = lm_dims_numel(&job.lines);
  return job;
}

static const char *line_at(const line_job *job, int64_t line) {
  return job->x + lm_dims_at(&job->lines, 0, line) * (int64_t)job->item;
}

static inline void put_element(size_t bytes, char *to, const char *from) {
  switch (bytes) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8); break;
  }
}

static void put_elements(size_t bytes, char *to, int64_t step, const char *from, int n) {
#define CASE(type)                                                                \
  case sizeof(type): {                                                            \
    for (int i = 0; i < n; i++) ((type *)to)[i * step] = ((const type *)from)[i]; \
    break;                                                                        \
  }
  switch (bytes) { LM_EACH_WIDTH(CASE) }
#undef CASE
}

/* The items that are sorted: keys of 4 or 8 bytes, whose positions are their indices, or pairs of key and position. */
typedef enum items_kind { KEYS, WIDE_KEYS, PAIRS } items_kind;

/* Returns the number of bits up to the highest that is set. */
static inline int bits_of(uint64_t word) { return word ? 64 - __builtin_clzll(word) : 0; }

/* Returns the number of pairs that are collected for the k best: at least as many again, and a chunk. */
static inline int64_t best_capacity(int64_t k) {
  const int64_t few = 32;
  return k + (k > few ? k : few) + LM_SORT_CHUNK;
}

#define WORD LM_FN(WORD)
#define WORD_U32 uint32_t
#define WORD_U64 uint64_t
#define PAIR LM_FN(pair)
#define LM_E U32
#include "backend/cpu/isa/templates/sort_pairs.inc"
#undef LM_E
#define LM_E U64
#include "backend/cpu/isa/templates/sort_pairs.inc"
#undef LM_E

/* ---- whole lines */

/* Makes the keys of a line, in shares, and finds the bits in which they differ. */
typedef struct keys_job {
  const line_job *job;
  const char *line;
  char *keys;
  int shares;
  uint64_t first;
  _Atomic uint64_t differing;
} keys_job;

static void make_keys(void *ctx, int64_t first, int64_t last) {
  enum { SOME = 4096 }; /* keys, which the L1 cache holds */
  keys_job *j = ctx;
  const line_job *job = j->job;
  int64_t end = lm_part_begin(job->n, last, j->shares);
  uint64_t differing = 0;
  for (int64_t i = lm_part_begin(job->n, first, j->shares); i < end; i += SOME) {
    int64_t n = end - i < SOME ? end - i : SOME;
    void *keys = j->keys + i * (job->wide ? 8 : 4);
    job->loops->keys[job->dtype](j->line + i * job->stride * (int64_t)job->item, n, job->stride, job->flip, keys);
    differing |= job->loops->differing[job->wide](keys, n, j->first);
  }
  atomic_fetch_or_explicit(&j->differing, differing, memory_order_relaxed);
}

/* Sorts a line; scratch: twice n pairs. Wide keys that differ only in their lower halves are sorted as narrow ones. */
static void sort_line(const line_job *job, const char *line, int64_t to, int shares, void *scratch, int64_t *counts) {
  const int64_t n = job->n;
  union {
    uint32_t narrow;
    uint64_t wide;
  } key;
  job->loops->keys[job->dtype](line, 1, 1, job->flip, &key);
  const uint64_t first = job->wide ? key.wide : key.narrow;
  keys_job keys = {job, line, (char *)scratch + n * (job->wide ? 16 : 8), shares, first, 0};
  lm_parallel(shares, shares > 1 ? (double)n * SELECT_WORK : 0, 0, make_keys, &keys);
  uint64_t differing = keys.differing;
  if (job->wide && (differing > UINT32_MAX || n > UINT32_MAX)) {
    pair_U64 *pairs = scratch;
    sort_items_U64(job, line, to, WIDE_KEYS, keys.keys, n, differing, 0, shares, pairs, pairs + n, counts);
    return;
  }
  pair_U32 *pairs = scratch, *other = (pair_U32 *)keys.keys;
  sort_items_U32(job, line, to, job->wide ? WIDE_KEYS : KEYS, keys.keys, n, differing, first & ~(uint64_t)UINT32_MAX,
                 shares, pairs, other, counts);
}

/* ---- the ops */

typedef enum way { SORT, BEST, SELECT } way;

typedef struct lines_job {
  const line_job *job;
  way how;
  int shares; /* shares of a line that is sorted; 1 if threads have lines of their own */
  size_t bytes;
  char *memory; /* one line's scratch, whose pages are reused from call to call; else NULL */
} lines_job;

static void run_some_lines(void *ctx, int64_t first, int64_t last) {
  const lines_job *j = ctx;
  const line_job *job = j->job;
  char *own_memory = j->memory ? j->memory : lm_scratch();
  for (int64_t i = first; i < last; i++) {
    const char *line = line_at(job, i);
    int64_t to = lm_dims_at(&job->lines, 1, i);
    if (j->how == BEST) {
      (job->wide ? best_of_U64 : best_of_U32)(job, line, to, own_memory, (int64_t *)(own_memory + j->bytes));
    } else if (j->how == SELECT) {
      (job->wide ? select_line_U64 : select_line_U32)(job, line, to, own_memory);
    } else {
      sort_line(job, line, to, j->shares, own_memory, (int64_t *)(own_memory + j->bytes));
    }
  }
}

static lm_status run_lines(const line_job *job, way how) {
  int64_t n = job->n, words = how == BEST ? 4 * best_capacity(job->k) : n * (how == SORT ? 4 : 3) + 2;
  double work = (double)job->count * (double)n * (how == SORT ? SORT_WORK : SELECT_WORK);
  if (!job->wide && n > UINT32_MAX) {
    return lm_fail_int(lm_op_running(), "the size of dim", "at most 2^32 - 1 for this dtype", n);
  }
  int threads = lm_threads_for(work);
  bool within = how == SORT && job->count < threads && n >= FEW_DIGITS_BELOW; /* several threads a line */
  lines_job lines = {.job = job, .how = how, .shares = within ? threads : 1};
  lines.bytes = (size_t)lm_round_up(words * (job->wide ? 8 : 4), 64);
  size_t counts = how == SELECT ? 0 : sizeof(int64_t) * (size_t)lines.shares << DIGIT_BITS;
  const size_t bytes = lines.bytes + counts;
  if (job->count > 1) return lm_parallel(job->count, within ? 0 : work, bytes, run_some_lines, &lines);
  LM_WORKSPACE(char, memory, bytes);
  lines.memory = memory;
  run_some_lines(&lines, 0, job->count);
  return LM_OK;
}

lm_status lm_cpu_topk(const lm_topk_args *a, lm_tensor *const *out) {
  if (a->k == 0) return LM_OK;
  line_job job = describe_sorted_lines(a->x, a->dim, a->k, a->largest, out);
  return run_lines(&job, a->k > a->x->size[a->dim] / 4 ? SORT : BEST);
}

lm_status lm_cpu_kth_along(const lm_kth_along_args *a, lm_tensor *const *out) {
  line_job job = describe_sorted_lines(a->x, a->dim, a->k, false, out);
  return run_lines(&job, SELECT);
}

/* ---- searching */

/* Sets `out` for each value to 1 more than the count of n growing numbers below it, or with `right` not above it; NaN
 * is above all. The range is halved without branches, for GROUP values together, so that their waits for memory
 * overlap. Loops over values have constant bounds, which keeps the values in registers. */
enum { GROUP = 8 };
#define SEARCH(E, type)                                                                                             \
  static inline __attribute__((always_inline)) void search_group_##E(const type *row, int64_t n, const type *v,     \
                                                                     const bool right, int64_t *out) {              \
    const type *at[GROUP];                                                                                          \
    for (int k = 0; k < GROUP; k++) at[k] = row;                                                                    \
    for (int64_t left = n, half; left > 0; left -= half) {                                                          \
      half = (left + 1) / 2;                                                                                        \
      LM_UNROLL for (int k = 0; k < GROUP; k++) {                                                                   \
        const type number = at[k][half - 1];                                                                        \
        at[k] += -(int64_t)(right ? number <= v[k] : number < v[k]) & half;                                         \
      }                                                                                                             \
    }                                                                                                               \
    for (int k = 0; k < GROUP; k++) out[k] = LM_NAN(v[k]) ? n + 1 : at[k] - row + 1;                                \
  }                                                                                                                 \
  static void search_##E(const void *row, int64_t n, const void *values, int64_t count, bool right, int64_t *out) { \
    const type *v = values;                                                                                         \
    for (int64_t i = 0; i < count; i += GROUP) {                                                                    \
      type some[GROUP] = {0};                                                                                       \
      int64_t found[GROUP];                                                                                         \
      const size_t m = count - i < GROUP ? (size_t)(count - i) : GROUP;                                             \
      memcpy(some, v + i, m * sizeof *some);                                                                        \
      if (right)                                                                                                    \
        search_group_##E(row, n, some, true, found);                                                                \
      else                                                                                                          \
        search_group_##E(row, n, some, false, found);                                                               \
      memcpy(out + i, found, m * sizeof *found);                                                                    \
    }                                                                                                               \
  }
SEARCH(F32, float)
SEARCH(F64, double)
SEARCH(I64, int64_t)
#undef SEARCH

typedef struct searching {
  const lm_searchsorted_args *a;
  lm_tensor *out;
  int64_t each, cuts; /* values of a row; tasks of a row */
} searching;

enum { SEARCHED = 1 << 12 }; /* values of a task */

static void search_tasks(void *ctx, int64_t begin, int64_t end) {
  const searching *j = ctx;
  const lm_tensor *rows = j->a->sorted_sequence;
  int64_t n = rows->size[rows->ndim - 1], item = (int64_t)lm_dtype_size((lm_dtype)rows->dtype);
  for (int64_t task = begin; task < end; task++) {
    int64_t row = task / j->cuts, first = task % j->cuts * SEARCHED;
    int64_t some = j->each - first < SEARCHED ? j->each - first : SEARCHED;
    const char *sorted = rows->data + (rows->ndim == 1 ? 0 : row * n) * item;
    const char *values = j->a->x->data + (row * j->each + first) * item;
    int64_t *indices = (int64_t *)j->out->data + row * j->each + first;
    (rows->dtype == LM_F32   ? search_F32
     : rows->dtype == LM_F64 ? search_F64
                             : search_I64)(sorted, n, values, some, j->a->right, indices);
  }
}

lm_status lm_cpu_searchsorted(const lm_searchsorted_args *a, lm_tensor *const *out) {
  int64_t count = out[0]->numel, each = a->sorted_sequence->ndim == 1 ? count : a->x->size[a->x->ndim - 1];
  searching job = {a, out[0], each, (each + SEARCHED - 1) / SEARCHED};
  return lm_parallel(each == 0 ? 0 : count / each * job.cuts, (double)count * 20, 0, search_tasks, &job);
}
