/* Pads x by its own elements: each row of the result is one of x's, with copies of others before and after it. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/nontemporal_copy.h"
#include "op/check.h"
#include "op_args_indexing.h"

enum { TILE = 8192 }; /* bytes of a large result that are made in the caches before they bypass them */

/* A dim of the result, or all dims without padding as one, and the index in x, from 0, for each of its indices. */
typedef struct axis {
  int64_t size, stride; /* the result's size; x's stride */
  const int64_t *from;  /* indices in x; NULL: the same ones */
} axis;

static int64_t entry_at(int mode, int64_t position, int64_t n, int64_t before, int64_t after) {
  if (mode == LM_PAD_REPLICATE) return position < 0 ? 0 : position >= n ? n - 1 : position;
  if (mode == LM_PAD_CIRCULAR) { /* negative padding crops before it wraps */
    int64_t cut = before < 0 ? -before : 0, left = lm_pad_left(n, before, after);
    return cut + ((position - cut) % left + left) % left;
  }
  return position < 0 ? -position : position >= n ? 2 * (n - 1) - position : position;
}

/* Makes one row: `same` contiguous entries of x in the middle, from index `first` on; copies before and after them. */
static void make_row(const axis *last, int64_t first, int64_t same, size_t item, const char *x, char *to) {
#define CASE(type)                                                                                 \
  case sizeof(type): {                                                                             \
    const type *from = (const type *)x;                                                            \
    type *row = (type *)to;                                                                        \
    for (int64_t j = 0; j < first; j++) row[j] = from[last->from[j]];                              \
    if (same > 0) lm_copy_run(row + first, from + last->from[first], (size_t)same * sizeof(type)); \
    for (int64_t j = first + same; j < last->size; j++) row[j] = from[last->from[j]];              \
    break;                                                                                         \
  }
  switch (item) { LM_EACH_WIDTH(CASE) }
#undef CASE
}

typedef struct padding {
  axis axes[LM_MAX_DIMS + 1];
  int ndim;
  int64_t first, same; /* part of a row that copies contiguous entries of x */
  size_t item;
  const lm_tensor *x;
  lm_tensor *y;
  bool streams;
} padding;

/* Makes rows from .. to - 1 of the result, along the last axis. */
static void make_rows(void *ctx, int64_t from, int64_t to) {
  const padding *p = ctx;
  const axis *axes = p->axes;
  const size_t item = p->item;
  const int ndim = p->ndim;
  const axis *last = &axes[ndim - 1];
  const int64_t width = last->size * (int64_t)item, max_chunk = TILE / width;
  int64_t index[LM_MAX_DIMS + 1], rest = from, some = 0;
  LM_LARGE(char, tile, TILE);
  lm_nontemporal_writer w;
  lm_nontemporal_open(&w, p->y->data + from * width, p->streams && max_chunk > 0);
  for (int d = ndim - 2; d >= 0; d--) index[d] = rest % axes[d].size, rest /= axes[d].size;
  for (int64_t r = from; r < to; r++) {
    int64_t at = 0;
    for (int d = 0; d < ndim - 1; d++) at += (axes[d].from ? axes[d].from[index[d]] : index[d]) * axes[d].stride;
    make_row(last, p->first, p->same, item, p->x->data + at * (int64_t)item, w.streams ? tile + some * width : w.to);
    if (!w.streams) {
      w.to += width;
    } else if (++some == max_chunk || r == to - 1) {
      lm_nontemporal_write(&w, tile, (size_t)(some * width));
      some = 0;
    }
    for (int d = ndim - 2; d >= 0 && ++index[d] == axes[d].size; d--) index[d] = 0;
  }
  lm_nontemporal_close(&w);
}

lm_status lm_cpu_pad_around(const lm_pad_around_args *a, lm_tensor *const *out) {
  const lm_tensor *x = a->x;
  int padded = a->pad.n / 2, first_padded = x->ndim - padded, ndim = padded + 1;
  padding job = {.ndim = ndim, .item = lm_dtype_size((lm_dtype)x->dtype), .x = x, .y = out[0]};
  axis *axes = job.axes;
  int64_t indices = 0, lead = 1, pitch = 1; /* pitch: of what is padded; a stride of a dim of 1 may differ */
  for (int d = 0; d < first_padded; d++) lead *= x->size[d];
  for (int d = first_padded; d < x->ndim; d++) indices += out[0]->size[d], pitch *= x->size[d];
  LM_WORKSPACE(int64_t, tables, indices);
  int64_t *from = tables;
  axes[0] = (axis){lead, pitch, NULL};
  for (int k = 1; k < ndim; k++) {
    int d = first_padded + k - 1, p = 2 * (x->ndim - 1 - d);
    axes[k] = (axis){out[0]->size[d], x->stride[d], from};
    for (int64_t i = 0; i < axes[k].size; i++)
      from[i] = entry_at(a->mode, i - a->pad.v[p], x->size[d], a->pad.v[p], a->pad.v[p + 1]);
    from += axes[k].size;
  }
  int64_t width = axes[ndim - 1].size, before = a->pad.v[0], after = a->pad.v[1];
  job.first = before > 0 ? before : 0, job.same = lm_pad_left(x->size[x->ndim - 1], before, after);
  job.streams = lm_use_nontemporal(lm_nbytes(out[0]));
  int64_t rows = out[0]->numel / width;
  return lm_parallel(rows, (double)out[0]->numel / 4 + 8 * (double)rows, 0, make_rows, &job);
}
