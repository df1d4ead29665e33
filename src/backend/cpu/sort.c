/* Sorting and selecting along a dim: topk, which sort is too, kthvalue, the medians; and searching sorted rows.
 *
 * Elements are compared by keys (isa/templates/sort_keys.inc), of equal ones the earlier is the smaller. Lines that are
 * wanted whole are sorted digit by digit; a heap finds the best few. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/elem.h"
#include "merged_dims.h"

enum { DIGIT_BITS = 11, FEW_DIGIT_BITS = 8, FEW_DIGITS_BELOW = 1 << 13, INSERTED_BELOW = 64 };
enum { MEDIAN = 0, NAN_MEDIAN = -1 };     /* for k */
enum { SORT_WORK = 20, SELECT_WORK = 2 }; /* nanoseconds an element, about */

/* ---- keys */

typedef void keys_fn(const void *line, int64_t n, int64_t stride, uint64_t flip, void *keys);

#define FLOATING_BOOL 0
#define FLOATING_U8 0
#define FLOATING_I8 0
#define FLOATING_I16 0
#define FLOATING_U16 0
#define FLOATING_I32 0
#define FLOATING_I64 0
#define FLOATING_F16 1
#define FLOATING_BF16 1
#define FLOATING_F32 1
#define FLOATING_F64 1
#define LM_KEY LM_FN(LM_KEY)
#define LM_KEY_BOOL uint32_t
#define LM_KEY_U8 uint32_t
#define LM_KEY_I8 uint32_t
#define LM_KEY_I16 uint32_t
#define LM_KEY_U16 uint32_t
#define LM_KEY_I32 uint32_t
#define LM_KEY_I64 uint64_t
#define LM_KEY_F16 uint32_t
#define LM_KEY_BF16 uint32_t
#define LM_KEY_F32 uint32_t
#define LM_KEY_F64 uint64_t
#define LM_TEMPLATE "backend/cpu/isa/templates/sort_keys.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

static keys_fn *const keys_of[] = {
#define X(id, ...) [LM_##id] = keys_of_##id,
    LM_DTYPES(X)
#undef X
};

static bool has_wide_keys(lm_dtype dtype) { return dtype == LM_I64 || dtype == LM_F64; }

/* ---- lines */

typedef struct line_job {
  keys_fn *keys_of;
  bool wide, floating;
  uint64_t flip;
  int64_t n, k, stride, out_stride;
  size_t item;
  char *values;
  int64_t *indices;
  const char *x;
  int64_t count; /* of lines */
  lm_dims lines; /* where they begin: side 0 in x, side 1 in the results */
} line_job;

static line_job job_of(const lm_tensor *x, int64_t dim, int64_t k, bool largest, lm_tensor *const *out) {
  lm_dtype dtype = x->dtype;
  line_job job = {.keys_of = keys_of[dtype],
                  .wide = has_wide_keys(dtype),
                  .floating = lm_dtype_is_float(dtype),
                  .flip = largest ? UINT64_MAX : 0,
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
  job.count = lm_dims_count(&job.lines);
  return job;
}

static const char *line_at(const line_job *job, int64_t line) {
  return job->x + lm_dims_at(&job->lines, 0, line) * (int64_t)job->item;
}

static inline void put_result(const line_job *job, const char *line, int64_t to, int64_t position) {
  const char *from = line + position * job->stride * (int64_t)job->item;
  char *value = job->values + to * (int64_t)job->item;
  switch (job->item) {
    case 1: *value = *from; break;
    case 2: memcpy(value, from, 2); break;
    case 4: memcpy(value, from, 4); break;
    default: memcpy(value, from, 8); break;
  }
  job->indices[to] = position + 1;
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
#include "base/message.h"
#undef LM_E

/* ---- the best few, by a heap */

typedef struct entry {
  uint64_t key;
  int64_t position; /* in the line, from 0 */
} entry;

/* Of equal keys the earlier place is better, so that the result is one and stable. */
static inline bool is_worse(entry a, entry b) { return a.key < b.key || (a.key == b.key && a.position > b.position); }

/* heap[0] is the worst of the n kept. Put e at `hole` or below. */
static void sift_down(entry *heap, int64_t n, int64_t hole, entry e) {
  for (;;) {
    int64_t child = 2 * hole + 1;
    if (child >= n) break;
    if (child + 1 < n && is_worse(heap[child + 1], heap[child])) child++;
    if (!is_worse(heap[child], e)) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = e;
}

/* The k best of a line, best first. Keys are made some at a time. */
static void best_of(const line_job *job, const char *line, int64_t to, entry *heap) {
  enum { SOME = 512 };
  uint64_t words[SOME];
  int64_t k = job->k;
  for (int64_t first = 0; first < job->n; first += SOME) {
    int64_t some = job->n - first < SOME ? job->n - first : SOME;
    job->keys_of(line + first * job->stride * (int64_t)job->item, some, job->stride, ~job->flip, words);
    for (int64_t j = 0; j < some; j++) {
      int64_t i = first + j;
      entry e = {job->wide ? words[j] : ((const uint32_t *)words)[j], i};
      if (i < k) {
        heap[i] = e;
        for (int64_t at = k / 2 - 1; i == k - 1 && at >= 0; at--) sift_down(heap, k, at, heap[at]);
      } else if (is_worse(heap[0], e)) {
        sift_down(heap, k, 0, e);
      }
    }
  }
  for (int64_t left = k - 1; left > 0; left--) { /* the worst goes to the end */
    entry worst = heap[0];
    sift_down(heap, left, 0, heap[left]);
    heap[left] = worst;
  }
  for (int64_t i = 0; i < k; i++) put_result(job, line, to + i * job->out_stride, heap[i].position);
}

/* ---- the ops */

typedef enum way { SORT, HEAP, SELECT } way;

typedef struct lines_job {
  const line_job *job;
  way how;
  int shares; /* of a line that is sorted: 1 where threads have lines of their own */
  size_t bytes;
} lines_job;

static void run_some_lines(void *ctx, int64_t first, int64_t last) {
  const lines_job *j = ctx;
  const line_job *job = j->job;
  char *mine = lm_scratch();
  for (int64_t i = first; i < last; i++) {
    const char *line = line_at(job, i);
    int64_t to = lm_dims_at(&job->lines, 1, i);
    if (j->how == HEAP) {
      best_of(job, line, to, (entry *)mine);
    } else if (j->how == SELECT) {
      (job->wide ? select_line_U64 : select_line_U32)(job, line, to, mine);
    } else {
      (job->wide ? sort_line_U64 : sort_line_U32)(job, line, to, j->shares, mine, (int64_t *)(mine + j->bytes));
    }
  }
}

static lm_status run_lines(const line_job *job, way how) {
  int64_t n = job->n, words = how == HEAP ? 0 : n * (how == SORT ? 4 : 3) + 2;
  double work = (double)job->count * (double)n * (how == SORT ? SORT_WORK : SELECT_WORK);
  if (!job->wide && n > UINT32_MAX) {
    return lm_fail_int(lm_op_running(), "the size of dim", "at most 2^32 - 1 for this dtype", n);
  }
  int threads = lm_threads_for(work);
  bool within = how == SORT && job->count < threads && n >= FEW_DIGITS_BELOW; /* several threads a line */
  lines_job lines = {job, how, within ? threads : 1, 0};
  lines.bytes = how == HEAP ? sizeof(entry) * (size_t)job->k : (size_t)words * (job->wide ? 8 : 4);
  lines.bytes = (size_t)lm_round_up((int64_t)lines.bytes, 64);
  size_t counts = how == SORT ? sizeof(int64_t) * (size_t)lines.shares << DIGIT_BITS : 0;
  return lm_parallel(job->count, within ? 0 : work, lines.bytes + counts, run_some_lines, &lines);
}

lm_status lm_cpu_topk(const void *args, lm_tensor *const *out) {
  const lm_topk_args *a = args;
  line_job job = job_of(a->x, a->dim, a->k, a->largest, out);
  return run_lines(&job, a->k > a->x->size[a->dim] / 16 ? SORT : HEAP);
}

lm_status lm_cpu_kth_along(const void *args, lm_tensor *const *out) {
  const lm_kth_along_args *a = args;
  line_job job = job_of(a->x, a->dim, a->k, false, out);
  return run_lines(&job, SELECT);
}

/* ---- searching */

/* For each value 1 more than how many of n growing numbers are below it, or with `right` not above it; NaN is above
 * all. The range is halved without branches, for GROUP values beside one another, so that they wait for memory
 * together. */
#define BELOW(number, v) (((number) < (v)) | (((number) == (v)) & right) | LM_NAN(v))
#define SEARCH(E, type)                                                                                              \
  static void search_##E(const void *rows, int64_t n, const void *values, int64_t count, bool right, int64_t *out) { \
    enum { GROUP = 16 };                                                                                             \
    const type *row = rows;                                                                                          \
    for (int64_t i = 0; i < count; i += GROUP) {                                                                     \
      const type *v = (const type *)values + i;                                                                      \
      int64_t at[GROUP] = {0};                                                                                       \
      int some = count - i < GROUP ? (int)(count - i) : GROUP;                                                       \
      for (int64_t left = n; left > 0; left -= (left + 1) / 2) {                                                     \
        int64_t half = (left + 1) / 2;                                                                               \
        for (int k = 0; k < some; k++) at[k] += -(int64_t)BELOW(row[at[k] + half - 1], v[k]) & half;                 \
      }                                                                                                              \
      for (int k = 0; k < some; k++) out[i + k] = at[k] + 1;                                                         \
    }                                                                                                                \
  }
SEARCH(F32, float)
SEARCH(F64, double)
SEARCH(I64, int64_t)
#undef SEARCH
#undef BELOW

typedef struct searching {
  const lm_searchsorted_args *a;
  lm_tensor *out;
  int64_t each, cuts; /* values of a row, and tasks of them */
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

lm_status lm_cpu_searchsorted(const void *args, lm_tensor *const *out) {
  const lm_searchsorted_args *a = args;
  int64_t count = out[0]->numel, each = a->sorted_sequence->ndim == 1 ? count : a->x->size[a->x->ndim - 1];
  searching job = {a, out[0], each, (each + SEARCHED - 1) / SEARCHED};
  return lm_parallel(each == 0 ? 0 : count / each * job.cuts, (double)count * 20, 0, search_tasks, &job);
}
