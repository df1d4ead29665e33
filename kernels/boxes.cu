/* Runs operations on boxes in images: pools their bins, a thread for each, and finds boxes that overlap, by a matrix of
 * bits. */
#include "boxes.h"

#include "merged_dims.cuh"
#include "types.cuh"

enum { LM_ROI_BLOCK = 256, LM_NMS_BITS_BLOCK = 128, LM_NMS_BLOCK = 1024 };

/* Returns v clipped to 0 .. size; NaN becomes 0. */
template <class A>
LM_DEVICE int64_t lm_roi_clipped(A v, int64_t size) {
  return !(v > 0) ? 0 : v < (A)size ? (int64_t)v : size;
}

template <class A>
LM_DEVICE A lm_roi_edge(A v) { /* edges beyond any image become 1e9 or -1e9 */
  v = round(v);
  return v > (A)-1e9 ? v < (A)1e9 ? v : (A)1e9 : (A)-1e9;
}

struct lm_roi_dividers {
  lm_divider columns, rows, c;
};

template <class T, bool WIDE>
LM_KERNEL void lm_roi_kernel(lm_roi_job s, lm_roi_dividers by, int64_t count) {
  typedef lm_compute<T> A;
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    int64_t column, row, c, at = -1;
    int64_t line = lm_split<WIDE>(e, s.columns, by.columns, &column);
    int64_t box = lm_split<WIDE>(lm_split<WIDE>(line, s.rows, by.rows, &row), s.c, by.c, &c);
    const T *b = (const T *)s.boxes + box * 5;
    A image = lm_get<A>(b[0]), scale = (A)s.scale, best = lm_lowest<A>();
    if (!(image >= 1 && image < (A)(s.n + 1))) {
      if (column == 0 && row == 0 && c == 0) lm_report_bad(s.bad, s.bad_kind, box + 1, (int64_t)image, s.n);
      ((T *)s.y)[e] = T{}, s.indices[e] = 0;
      continue;
    }
    A x1 = lm_roi_edge<A>(lm_get<A>(b[1]) * scale), y1 = lm_roi_edge<A>(lm_get<A>(b[2]) * scale);
    A wide = lm_roi_edge<A>(lm_get<A>(b[3]) * scale) - x1 + 1, high = lm_roi_edge<A>(lm_get<A>(b[4]) * scale) - y1 + 1;
    A each_w = (wide > 1 ? wide : 1) / (A)s.columns, each_h = (high > 1 ? high : 1) / (A)s.rows;
    int64_t from_y = lm_roi_clipped<A>(floor((A)row * each_h) + y1, s.h);
    int64_t to_y = lm_roi_clipped<A>(ceil((A)(row + 1) * each_h) + y1, s.h);
    int64_t from_x = lm_roi_clipped<A>(floor((A)column * each_w) + x1, s.w);
    int64_t to_x = lm_roi_clipped<A>(ceil((A)(column + 1) * each_w) + x1, s.w);
    int64_t plane = (((int64_t)image - 1) * s.c + c) * s.h * s.w;
    for (int64_t i = from_y; i < to_y; i++) {
      for (int64_t j = from_x; j < to_x; j++) {
        A v = lm_get<A>(((const T *)s.x)[plane + i * s.w + j]);
        if (v > best) best = v, at = plane + i * s.w + j;
      }
    }
    ((T *)s.y)[e] = lm_put<T>(to_y <= from_y || to_x <= from_x ? (A)0 : best);
    s.indices[e] = at + 1;
  }
}

int lm_k_roi_pool(const lm_roi_job *job, void *stream) {
  int64_t count = job->k * job->c * job->rows * job->columns;
  lm_roi_dividers by = {lm_split_divider(job->columns), lm_split_divider(job->rows), lm_split_divider(job->c)};
  return lm_for_float(job->dtype, [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(count < LM_NARROW ? lm_roi_kernel<T, false> : lm_roi_kernel<T, true>, count, LM_ROI_BLOCK,
                          stream, *job, by, count);
  });
}

enum { LM_NMS_WORD = 64 }; /* boxes in a word of bits */

/* Sets bit b of bits[word * rows + r] if box 64 word + b comes after box first + r and their overlap (intersection over
 * union) is above the threshold. Leaves words without a later box unwritten. */
template <class T>
LM_KERNEL void lm_nms_bits_kernel(const T *boxes, int64_t n, double threshold, int64_t first, int64_t rows,
                                  uint64_t *bits) {
  typedef lm_compute<T> A;
  int64_t count = rows * ((n + LM_NMS_WORD - 1) / LM_NMS_WORD);
  for (int64_t e = lm_thread(); e < count; e += lm_threads()) {
    int64_t i = first + e % rows, from = e / rows * LM_NMS_WORD, to = from + LM_NMS_WORD < n ? from + LM_NMS_WORD : n;
    if (i >= n || to <= i) continue;
    uint64_t word = 0;
    A left = lm_get<A>(boxes[4 * i]), top = lm_get<A>(boxes[4 * i + 1]), right = lm_get<A>(boxes[4 * i + 2]);
    A bottom = lm_get<A>(boxes[4 * i + 3]), own = (right - left) * (bottom - top);
    for (int64_t j = from > i ? from : i + 1; j < to; j++) {
      A x1 = lm_get<A>(boxes[4 * j]), y1 = lm_get<A>(boxes[4 * j + 1]), x2 = lm_get<A>(boxes[4 * j + 2]);
      A y2 = lm_get<A>(boxes[4 * j + 3]);
      A w = (x2 < right ? x2 : right) - (x1 > left ? x1 : left),
        h = (y2 < bottom ? y2 : bottom) - (y1 > top ? y1 : top);
      A shared = (w > 0 ? w : 0) * (h > 0 ? h : 0);
      if (shared / (own + (x2 - x1) * (y2 - y1) - shared) > (A)threshold) word |= (uint64_t)1 << (j - from);
    }
    bits[e] = word;
  }
}

/* Decides for boxes first to first + rows - 1 whether they are kept, one word of boxes at a time. gone: a bit for each
 * box that an earlier kept box has suppressed. */
LM_KERNEL void __launch_bounds__(LM_NMS_BLOCK)
    lm_nms_keep_kernel(int64_t n, int64_t first, int64_t rows, const uint64_t *bits, uint64_t *gone, uint8_t *keep) {
  __shared__ uint64_t own[LM_NMS_WORD];
  int64_t words = (n + LM_NMS_WORD - 1) / LM_NMS_WORD;
  for (int64_t r = 0; r < rows && first + r < n; r += LM_NMS_WORD) {
    int64_t word = (first + r) / LM_NMS_WORD;
    int t = (int)threadIdx.x, size = n - first - r < LM_NMS_WORD ? (int)(n - first - r) : LM_NMS_WORD;
    if (t < size) own[t] = bits[word * rows + r + t];
    __syncthreads();
    uint64_t kept = ~gone[word];
    for (int b = 0; b < size; b++) kept &= kept >> b & 1 ? ~own[b] : ~(uint64_t)0;
    if (t < size) keep[first + r + t] = (uint8_t)(kept >> t & 1);
    for (int64_t w = word + 1 + t; w < words; w += LM_NMS_BLOCK) { /* this word is full, as a later one exists */
      uint64_t struck = 0;
      LM_UNROLL_BY(8)
      for (int b = 0; b < LM_NMS_WORD; b++) struck |= kept >> b & 1 ? bits[w * rows + r + b] : 0;
      gone[w] |= struck;
    }
    __syncthreads();
  }
}

int lm_k_nms(int dtype, const void *boxes, int64_t n, double threshold, int64_t rows, uint64_t *gone, uint8_t *keep,
             void *stream) {
  int64_t words = (n + LM_NMS_WORD - 1) / LM_NMS_WORD;
  uint64_t *bits = gone + words;
  int error = (int)cudaMemsetAsync(gone, 0, (size_t)words * sizeof *gone, (cudaStream_t)stream);
  for (int64_t first = 0; error == 0 && first < n; first += rows) {
    error = lm_for_float(dtype, [=](auto t) {
      typedef decltype(t) T;
      return lm_launch_each(lm_nms_bits_kernel<T>, rows * words, LM_NMS_BITS_BLOCK, stream, (const T *)boxes, n,
                            threshold, first, rows, bits);
    });
    if (error == 0) error = lm_launch(lm_nms_keep_kernel, 1, LM_NMS_BLOCK, 0, stream, n, first, rows, bits, gone, keep);
  }
  return error;
}
