/* Finds true elements of masks (nonzero) and values there (masked_select), and makes masks of indices (one_hot). */
#include <string.h>

#include "backend/cpu/index/indices.h"
#include "backend/cpu/isa/elem.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/nontemporal_copy.h"
#include "op_args_indexing.h"

enum {
  TILE = 8192,   /* bytes of a large result that are made before they bypass the caches */
  PART = 1 << 14 /* elements of a mask that are counted, and then searched, together */
};

typedef struct masking {
  const uint8_t *mask;
  int64_t n, parts;
  int64_t *before; /* [parts + 1] true elements before each part, and in all */
  const lm_tensor *x;
  lm_tensor *out;
  bool streams;
} masking;

static int64_t part_end(const masking *m, int64_t part) { return (part + 1) * PART < m->n ? (part + 1) * PART : m->n; }

static void count_parts(void *ctx, int64_t first, int64_t last) {
  enum { SOME = 128 }; /* elements, whose count a byte holds */
  const masking *m = ctx;
  for (int64_t p = first; p < last; p++) {
    int64_t count = 0, end = part_end(m, p), i = p * PART;
    for (; i + SOME <= end; i += SOME) {
      uint8_t some = 0;
#pragma omp simd reduction(+ : some)
      for (int j = 0; j < SOME; j++) some += m->mask[i + j] != 0;
      count += some;
    }
    for (; i < end; i++) count += m->mask[i] != 0;
    m->before[p + 1] = count;
  }
}

/* Counts the mask, and runs fn for its parts. */
static lm_status find_true(masking *m, lm_parallel_fn *fn) {
  m->parts = (m->n + PART - 1) / PART;
  LM_WORKSPACE(int64_t, before, m->parts + 1);
  before[0] = 0;
  m->before = before;
  lm_parallel(m->parts, (double)m->n, 0, count_parts, m);
  for (int64_t p = 0; p < m->parts; p++) before[p + 1] += before[p];
  return lm_parallel(m->parts, (double)m->n, 0, fn, m);
}

#define EIGHT_TRUE UINT64_C(0x0101010101010101)
/* Runs `take` for indices from i on until `count` of them were true; k is the number of true ones before. Has no
 * branches: the result for a false one is overwritten. Runs `take_eight` for eight true ones at once. */
#define EACH_KEPT(mask, i, end, count, take, take_eight)          \
  for (int64_t k = 0; k < (count);) {                             \
    uint64_t eight = 2;                                           \
    if (i + 8 <= (end)) memcpy(&eight, (mask) + i, sizeof eight); \
    if (eight == 0) {                                             \
      i += 8;                                                     \
    } else if (eight == EIGHT_TRUE && k + 8 <= (count)) {         \
      take_eight;                                                 \
      i += 8, k += 8;                                             \
    } else if (eight != 2 && k + 8 <= (count)) {                  \
      LM_UNROLL for (int j = 0; j < 8; j++, i++) {                \
        take;                                                     \
        k += (mask)[i] != 0;                                      \
      }                                                           \
    } else {                                                      \
      for (int64_t j = 0; j < 8 && k < (count); j++, i++) {       \
        take;                                                     \
        k += (mask)[i] != 0;                                      \
      }                                                           \
    }                                                             \
  }

#define PUT_ROW(at)                                               \
  do {                                                            \
    for (int d = 0; d < inner; d++) row[k * ndim + d] = above[d]; \
    row[k * ndim + inner] = (at)-begins + 1;                      \
  } while (0)
static void write_positions(void *ctx, int64_t first, int64_t last) {
  const masking *m = ctx;
  const uint8_t *mask = m->mask;
  int ndim = m->x->ndim;
  int64_t *row = (int64_t *)m->out->data + m->before[first] * ndim, end = part_end(m, last - 1), begin = first * PART;
  int64_t count = m->before[last] - m->before[first];
  if (ndim == 1) {
    int64_t i = begin;
    EACH_KEPT(mask, i, end, count, row[k] = i + 1, for (int j = 0; j < 8; j++) row[k + j] = i + j + 1)
    return;
  }
  if (count == 0 || ndim == 0) return;
  /* Rows along the last dim: the other dims' indices, which are the same in a row, and then its own, all from 1. */
  const int inner = ndim - 1;
  const int64_t width = m->x->size[inner];
  int64_t above[LM_MAX_DIMS], position = begin / width, column = begin % width, i = begin;
  for (int d = inner - 1; d >= 0; d--) above[d] = position % m->x->size[d] + 1, position /= m->x->size[d];
  for (; i < end && count > 0; column = 0) {
    const int64_t begins = i - column, row_end = begins + width < end ? begins + width : end;
    int64_t here = 0;
    for (int64_t j = i; j < row_end; j++) here += mask[j] != 0;
    if (ndim == 2) {
      enum { inner = 1, ndim = 2 };
      EACH_KEPT(mask, i, row_end, here, PUT_ROW(i), for (int j = 0; j < 8; j++, k++) PUT_ROW(i + j); k -= 8)
    } else {
      EACH_KEPT(mask, i, row_end, here, PUT_ROW(i), for (int j = 0; j < 8; j++, k++) PUT_ROW(i + j); k -= 8)
    }
    i = row_end;
    row += here * ndim;
    count -= here;
    for (int d = inner - 1; d >= 0 && above[d]++ == m->x->size[d]; d--) above[d] = 1;
  }
}
#undef PUT_ROW

/* Writes the indices of true elements. x: a contiguous bool mask; out: [count, ndim]. */
lm_status lm_cpu_nonzero(const lm_nonzero_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x;
  return find_true(&(masking){.mask = (const uint8_t *)x->data, .n = x->numel, .x = x, .out = out[0]}, write_positions);
}

static void write_values(void *ctx, int64_t first, int64_t last) {
  const masking *m = ctx;
  const uint8_t *mask = m->mask;
  const size_t item = lm_dtype_size((lm_dtype)m->x->dtype);
  const int64_t max_chunk = TILE / (int64_t)item;
  int64_t i = first * PART, end = part_end(m, last - 1), left = m->before[last] - m->before[first];
  LM_LARGE(char, tile, TILE);
  lm_nontemporal_writer w;
  lm_nontemporal_open(&w, m->out->data + m->before[first] * (int64_t)item, m->streams);
  while (left > 0) { /* a tile at a time, or all at once */
    int64_t count = m->streams && left > max_chunk ? max_chunk : left;
    char *at = m->streams ? tile : w.to;
#define CASE(type)                                                                              \
  case sizeof(type): {                                                                          \
    const type *from = (const type *)m->x->data;                                                \
    type *to = (type *)at;                                                                      \
    EACH_KEPT(mask, i, end, count, to[k] = from[i], memcpy(to + k, from + i, 8 * sizeof(type))) \
    break;                                                                                      \
  }
    switch (item) { LM_EACH_WIDTH(CASE) }
#undef CASE
    if (m->streams) lm_nontemporal_write(&w, tile, (size_t)count * item);
    left -= count;
  }
  lm_nontemporal_close(&w);
}

/* Copies x's values where the mask is true. x and the mask are contiguous; out: [count]. */
lm_status lm_cpu_masked_values(const lm_masked_values_args *a, lm_tensor *const *out) {
  masking m = {.mask = (const uint8_t *)a->mask->data, .n = a->x->numel, .x = a->x, .out = out[0]};
  m.streams = lm_use_nontemporal(lm_nbytes(out[0]));
  return find_true(&m, write_values);
}

typedef struct one_hot_job {
  const int64_t *label;
  int64_t classes, *out;
} one_hot_job;

static void write_one_hot(void *ctx, int64_t first, int64_t last) {
  const one_hot_job *j = ctx;
  memset(j->out + first * j->classes, 0, (size_t)((last - first) * j->classes) * sizeof *j->out);
  for (int64_t i = first; i < last; i++) j->out[i * j->classes + j->label[i] - 1] = 1;
}

lm_status lm_cpu_one_hot(const lm_one_hot_args *a, lm_tensor *const *out) {
  one_hot_job job = {(const int64_t *)a->x->data, a->num_classes, (int64_t *)out[0]->data};
  NEED(lm_cpu_check_indices("one_hot", "label", a->x->numel, job.label, job.classes, NULL));
  return lm_parallel(a->x->numel, (double)out[0]->numel / 4, 0, write_one_hot, &job);
}
