/* Computes attention to keys and values in pages. A thread takes some tokens of a sequence and the heads that share
 * keys; it converts a part of these to float32 in its cache, and updates a softmax along the parts as attention. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/attention.h"
#include "backend/cpu/isa/block_expand.h"
#include "backend/cpu/isa/matmul/skinny_gemm.h"
#include "backend/cpu/memory.h"
#include "op/kernels.h"
#include "op_args_attention.h"

/* Keys of a block; floats between its rows of scores; rows of queries of a group, unless more heads share keys. */
enum { KEYS = 128, LINE = KEYS + 16, ROWS = 64 };

typedef struct token_group { /* tokens of a sequence that follow each other; position: of the first, from 1 */
  int64_t first, n, sequence, position;
} token_group;

typedef struct paged_job {
  const lm_paged_attention_args *a;
  lm_tensor *y;
  const token_group *group;
  int64_t heads, kv_heads, shared, width, value_width, rows; /* shared: heads that share keys; rows: most of a group */
} paged_job;

typedef struct paged_scratch {
  void *queries, *keys, *values, *scores, *sums, *row_max, *sum, *norms, *seen;
} paged_scratch;

static size_t paged_scratch_of(const paged_job *j, char *memory, paged_scratch *r) {
  const size_t rows = (size_t)j->rows * sizeof(float);
  return lm_memory_divide(memory, 9,
                          (lm_memory_part[]){{&r->queries, rows * (size_t)j->width},
                                             {&r->keys, (size_t)(KEYS * j->width) * sizeof(float)},
                                             {&r->values, (size_t)(KEYS * j->value_width) * sizeof(float)},
                                             {&r->scores, rows * LINE},
                                             {&r->sums, rows * (size_t)j->value_width},
                                             {&r->row_max, rows},
                                             {&r->sum, rows},
                                             {&r->norms, rows},
                                             {&r->seen, (size_t)j->rows * KEYS}});
}

/* Reads a head's rows of the positions from `first` on as float32. */
static void read_rows(const paged_job *j, const lm_tensor *t, int64_t sequence, int64_t head, int64_t first, int64_t n,
                      int64_t width, float *to) {
  const int64_t page_size = j->a->page_size, step = j->kv_heads * t->size[2] * (int64_t)lm_dtype_size(t->dtype);
  const int64_t *page = (const int64_t *)j->a->pages->data + sequence * j->a->pages->size[1];
  void (*const read)(const void *, int64_t, float *) = LM_ISA_PICK(lm_skinny_gemm_loops)->read[t->dtype];
  void (*const expand)(int64_t, const uint8_t *, float *) = LM_ISA_PICK(lm_block_expand_loops)->expand[j->a->kind];
  const int64_t blocks = width / lm_block_kind_of(j->a->kind)->elements;
  for (int64_t i = first, end; i < first + n; i = end) {
    const char *row =
        t->data + ((page[i / page_size] - 1) * page_size + i % page_size) * step + head * (step / j->kv_heads);
    end = lm_min(first + n, (i / page_size + 1) * page_size);
    for (int64_t k = i; k < end; k++, row += step, to += width) {
      if (t->dtype == LM_U8)
        expand(blocks, (const uint8_t *)row, to);
      else
        read(row, width, to);
    }
  }
}

/* Sets which of the keys from `first` on the window of each token has. */
static void set_seen(const token_group *q, int64_t window, int64_t first, int64_t cols, uint8_t *seen) {
  for (int64_t t = 0; t < q->n; t++)
    for (int64_t c = 0; c < cols; c++) seen[t * KEYS + c] = first + c >= q->position + t - window;
}

static void attend(const paged_job *j, const token_group *q, int64_t kv_head, char *scratch) {
  const struct lm_attention_loops *loops = lm_attention_loops_of(LM_F32);
  const int64_t n = q->n, rows = n * j->shared, width = j->width, value_width = j->value_width;
  const int64_t last = q->position + n - 1, window = j->a->window;
  const int64_t begin = window > 0 && q->position > window ? q->position - window : 0;
  paged_scratch r;
  paged_scratch_of(j, scratch, &r);
  float *queries = r.queries, *scores = r.scores, *sums = r.sums, *row_max = r.row_max, *sum = r.sum;
  const float *x = (const float *)j->a->query->data;
  for (int64_t row = 0; row < rows; row++) {
    const int64_t token = q->first + row % n, head = kv_head * j->shared + row / n;
    memcpy(queries + row * width, x + (token * j->heads + head) * width, (size_t)width * sizeof *x);
    row_max[row] = -INFINITY;
    sum[row] = 0;
  }
  memset(sums, 0, (size_t)(rows * value_width) * sizeof *sums);
  for (int64_t k = begin; k < last; k += KEYS) {
    const int64_t cols = lm_min(KEYS, last - k);
    const bool cuts = window > 0 && k < last - window;
    read_rows(j, j->a->keys, q->sequence, kv_head, k, cols, width, r.keys);
    read_rows(j, j->a->values, q->sequence, kv_head, k, cols, value_width, r.values);
    lm_skinny_multiply(rows, cols, width, j->a->scale, queries, width, r.keys, width, true, 0, scores, LINE);
    if (cuts) set_seen(q, window, k, cols, r.seen);
    for (int64_t row = 0; row < rows; row += n) {
      const lm_score_block b = {.scores = scores + row * LINE,
                                .rows = n,
                                .cols = cols,
                                .line = LINE,
                                .causal = q->position - k,
                                .cap = j->a->cap,
                                .mask = cuts ? r.seen : NULL,
                                .mask_is_bool = true,
                                .mask_row = KEYS,
                                .mask_col = 1};
      loops->online_softmax(&b, row_max + row, sum + row, sums + row * value_width, value_width);
    }
    lm_skinny_multiply(rows, value_width, cols, 1, scores, LINE, r.values, value_width, false, 1, sums, value_width);
  }
  for (int64_t h = 0; h < j->shared; h++)
    loops->finish((float *)j->y->data + (q->first * j->heads + kv_head * j->shared + h) * value_width,
                  j->heads * value_width, r.norms, sums + h * n * value_width, row_max + h * n, sum + h * n, 1, n,
                  value_width);
}

static void attend_units(void *ctx, int64_t first, int64_t last) {
  const paged_job *j = ctx;
  for (int64_t unit = first; unit < last; unit++)
    attend(j, &j->group[unit / j->kv_heads], unit % j->kv_heads, lm_scratch());
}

/* Fails if a token's sequence, position or pages are not there. */
static lm_status check_pages(const lm_paged_attention_args *a) {
  const int64_t *sequence = (const int64_t *)a->sequence->data, *position = (const int64_t *)a->position->data;
  const int64_t sequences = a->pages->size[0], entries = a->pages->size[1], pages = a->keys->size[0] / a->page_size;
  for (int64_t t = 0; t < a->query->size[0]; t++) {
    if (sequence[t] < 1 || sequence[t] > sequences)
      return lm_fail_bad_index("paged_attention", "sequence", sequence[t], t + 1, sequences, false);
    if (position[t] < 1 || position[t] > entries * a->page_size)
      return lm_fail_bad_index("paged_attention", "position", position[t], t + 1, entries * a->page_size, false);
    const int64_t *page = (const int64_t *)a->pages->data + (sequence[t] - 1) * entries;
    for (int64_t i = 0; i <= (position[t] - 1) / a->page_size; i++)
      if (page[i] < 1 || page[i] > pages)
        return lm_fail_bad_index("paged_attention", "page", page[i], i + 1, pages, false);
  }
  return LM_OK;
}

lm_status lm_cpu_paged_attention(const lm_paged_attention_args *a, lm_tensor *const *out) {
  const int64_t *sequence = (const int64_t *)a->sequence->data, *position = (const int64_t *)a->position->data;
  const int64_t tokens = a->query->size[0];
  int64_t n = 0;
  double work = 0;
  paged_job job = {.a = a,
                   .y = out[0],
                   .heads = a->query->size[1],
                   .kv_heads = a->keys->size[1],
                   .width = a->query->size[2],
                   .value_width = out[0]->size[2]};
  NEED(check_pages(a));
  if (tokens == 0 || job.heads == 0 || job.value_width == 0) return LM_OK;
  job.shared = job.heads / job.kv_heads;
  const int64_t most = lm_max(1, ROWS / job.shared);
  job.rows = most * job.shared;
  LM_WORKSPACE(token_group, group, tokens);
  for (int64_t t = 0; t < tokens; t++) {
    token_group *last = n > 0 ? &group[n - 1] : NULL;
    if (last && last->n < most && last->sequence == sequence[t] - 1 && last->position + last->n == position[t])
      last->n++;
    else
      group[n++] = (token_group){t, 1, sequence[t] - 1, position[t]};
    work += (double)(position[t] * job.heads * (job.width + job.value_width)) / 30;
  }
  job.group = group;
  return lm_parallel(n * job.kv_heads, work, paged_scratch_of(&job, NULL, &(paged_scratch){0}), attend_units, &job);
}
