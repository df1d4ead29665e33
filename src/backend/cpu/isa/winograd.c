#include "backend/cpu/isa/winograd.h"

#include "backend/cpu/isa/float_pack.h"

/* A product keeps ROWS x VECTORS vectors of its result in registers, of which there are 32 or 16. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { VECTORS = 4 };
#else
enum { VECTORS = 2 };
#endif
/* A panel of DEPTH rows stays in the L1 or L2 cache while tiles pass. */
enum { ROWS = 6, PANEL = VECTORS * LM_PACK, DEPTH = 256 };

typedef lm_float_pack vec;

/* Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), for the interpolation
 * points 0, +-p, +-q, infinity. With p = 1/q = sqrt(1/2) the matrices' entries stay near 1, and the
 * error is about half of that with the usual 1 and 2.
 *
 *   B' = | p2q2   0  -(p2+q2)    0     1  0 |    G = |  1/p2q2    0     0   |    A' = | 1  1   1  1   1  0 |
 *        |  0  -+pq2   -q2     +-p     1  0 |        |  (1  +-p   p2) / Np  |         | 0  p  -p  q  -q  0 |
 *        |  0  -+p2q   -p2     +-q     1  0 |        |  (1  +-q   q2) / Nq  |         | 0  p2 p2  q2 q2  0 |
 *        |  0   p2q2    0   -(p2+q2)   0  1 |        |    0       0     1   |         | 0  p3 -p3 q3 -q3 1 |
 *
 * where p2 = p * p and so on, p2q2 = 1, Np = 2 p2 (p2 - q2), Nq = 2 q2 (q2 - p2). */
#define P 0.70710678118654752440
#define Q 1.41421356237309504880
#define P2 0.5
#define Q2 2.0
#define NP (2 * P2 * (P2 - Q2))
#define NQ (2 * Q2 * (Q2 - P2))
#define F(x) ((float)(x))

/* Transform one dimension: vectors are `is` apart in the input, `os` apart in the output. */
LM_INLINE void apply_bt(const vec *d, int is, vec *o, int os) { /* 6 -> 6 */
  vec d1 = d[is], d2 = d[2 * is], d3 = d[3 * is], d4 = d[4 * is];
  o[0] = d[0] + d4 - F(P2 + Q2) * d2;
  o[5 * os] = d1 + d[5 * is] - F(P2 + Q2) * d3;
  vec even_p = d4 - F(Q2) * d2, odd_p = d3 - F(Q2) * d1;
  o[os] = even_p + F(P) * odd_p;
  o[2 * os] = even_p - F(P) * odd_p;
  vec even_q = d4 - F(P2) * d2, odd_q = d3 - F(P2) * d1;
  o[3 * os] = even_q + F(Q) * odd_q;
  o[4 * os] = even_q - F(Q) * odd_q;
}

LM_INLINE void apply_at(const vec *m, int is, vec *o, int os) { /* 6 -> 4 */
  vec sum_p = m[is] + m[2 * is], dif_p = m[is] - m[2 * is];
  vec sum_q = m[3 * is] + m[4 * is], dif_q = m[3 * is] - m[4 * is];
  o[0] = m[0] + sum_p + sum_q;
  o[os] = F(P) * dif_p + F(Q) * dif_q;
  o[2 * os] = F(P2) * sum_p + F(Q2) * sum_q;
  o[3 * os] = F(P2 * P) * dif_p + (F(Q2 * Q) * dif_q + m[5 * is]);
}

LM_INLINE void apply_a(const vec *y, int is, vec *o, int os) { /* 4 -> 6 */
  vec y1 = y[is], y2 = y[2 * is], y3 = y[3 * is];
  vec even_p = F(P2) * y2 + y[0], odd_p = F(P2) * y3 + y1;
  vec even_q = F(Q2) * y2 + y[0], odd_q = F(Q2) * y3 + y1;
  o[0] = y[0];
  o[os] = even_p + F(P) * odd_p;
  o[2 * os] = even_p - F(P) * odd_p;
  o[3 * os] = even_q + F(Q) * odd_q;
  o[4 * os] = even_q - F(Q) * odd_q;
  o[5 * os] = y3;
}

LM_INLINE void apply_g(const vec *w, int is, vec *o, int os) { /* 3 -> 6 */
  vec w0 = w[0], w1 = w[is], w2 = w[2 * is];
  vec even_p = F(1 / NP) * (F(P2) * w2 + w0), even_q = F(1 / NQ) * (F(Q2) * w2 + w0);
  o[0] = w0;
  o[os] = even_p + F(P / NP) * w1;
  o[2 * os] = even_p - F(P / NP) * w1;
  o[3 * os] = even_q + F(Q / NQ) * w1;
  o[4 * os] = even_q - F(Q / NQ) * w1;
  o[5 * os] = w2;
}

LM_INLINE void apply_gt(const vec *u, int is, vec *o, int os) { /* 6 -> 3 */
  vec sum_p = u[is] + u[2 * is], dif_p = u[is] - u[2 * is];
  vec sum_q = u[3 * is] + u[4 * is], dif_q = u[3 * is] - u[4 * is];
  o[0] = u[0] + (F(1 / NP) * sum_p + F(1 / NQ) * sum_q);
  o[os] = F(P / NP) * dif_p + F(Q / NQ) * dif_q;
  o[2 * os] = F(P2 / NP) * sum_p + (F(Q2 / NQ) * sum_q + u[5 * is]);
}

/* Transposes LM_PACK vectors: squares of 2, of 4 and so on exchange the parts off their diagonals. */
#define LOW(j, s) ((j) & (s) ? LM_PACK + (j) - (s) : (j))
#define HIGH(j, s) ((j) & (s) ? LM_PACK + (j) : (j) + (s))
#define FOUR(f, j, s) f(j, s), f(j + 1, s), f(j + 2, s), f(j + 3, s)
#if defined(__AVX512F__)
#define LANES(f, s) FOUR(f, 0, s), FOUR(f, 4, s), FOUR(f, 8, s), FOUR(f, 12, s)
#elif defined(__AVX2__)
#define LANES(f, s) FOUR(f, 0, s), FOUR(f, 4, s)
#else
#define LANES(f, s) FOUR(f, 0, s)
#endif
#define EXCHANGE(r, s)                                            \
  for (int i = 0; i < LM_PACK; i++) {                             \
    if (i & (s)) continue;                                        \
    vec a = (r)[i], b = (r)[i + (s)];                             \
    (r)[i] = __builtin_shufflevector(a, b, LANES(LOW, s));        \
    (r)[i + (s)] = __builtin_shufflevector(a, b, LANES(HIGH, s)); \
  }
LM_INLINE void transpose(vec *r) {
  EXCHANGE(r, 1)
  EXCHANGE(r, 2)
#ifdef __AVX2__
  EXCHANGE(r, 4)
#endif
#ifdef __AVX512F__
  EXCHANGE(r, 8)
#endif
}

/* Walks over tiles in order. */
typedef struct tile_cursor {
  const lm_wino_images *im;
  int64_t n, i, j;
} tile_cursor;

LM_INLINE tile_cursor tile_cursor_from(const lm_wino_images *im, int64_t tile) {
  int64_t in_image = tile % (im->th * im->tw);
  return (tile_cursor){im, tile / (im->th * im->tw), in_image / im->tw, in_image % im->tw};
}

LM_INLINE void tile_cursor_next(tile_cursor *at) {
  if (++at->j < at->im->tw) return;
  at->j = 0;
  if (++at->i < at->im->th) return;
  at->i = 0;
  at->n++;
}

/* Sets the addresses of the side x side pixels of a tile, `outside` for those beyond the image. */
LM_INLINE void pixels(const tile_cursor *at, int side, const float *x, const float *outside, const float **out) {
  const lm_wino_images *im = at->im;
  int64_t y0 = 4 * at->i - im->top, x0 = 4 * at->j - im->left;
  const float *first = x + ((at->n * im->h + y0) * im->w + x0) * im->c;
  for (int i = 0; i < side; i++)
    for (int j = 0; j < side; j++) {
      bool in = y0 + i >= 0 && y0 + i < im->h && x0 + j >= 0 && x0 + j < im->w;
      out[i * side + j] = in ? first + (i * im->w + j) * im->c : outside;
    }
}

/* Prefetches the rows of the tile to the right: the hardware does not predict a jump every few pixels. */
LM_INLINE void prefetch(const tile_cursor *at, const float *x, int64_t channels) {
  const lm_wino_images *im = at->im;
  int64_t y0 = 4 * at->i - im->top, x0 = 4 * at->j - im->left + 6;
  int64_t columns = im->w - x0 < 4 ? im->w - x0 : 4;
  for (int64_t i = y0 < 0 ? 0 : y0; i < y0 + 6 && i < im->h; i++) {
    for (int64_t j = 0; j < columns; j++) {
      const float *pixel = x + ((at->n * im->h + i) * im->w + x0 + j) * im->c;
      for (int64_t k = 0; k < channels; k += 16) __builtin_prefetch(pixel + k);
    }
  }
}

/* Transforms run along a line of a tile at a time, columns first; the result between (`half`) is larger than the
 * registers and passes through the stack. */
static void input(const lm_wino_images *im, const float *x, int64_t channels, int64_t first, int64_t last, float *v,
                  int64_t stride, const float *zeros) {
  tile_cursor at = tile_cursor_from(im, first);
  for (int64_t tile = first; tile < last; tile++, v += channels, tile_cursor_next(&at)) {
    const float *p[36];
    pixels(&at, 6, x, zeros, p);
    prefetch(&at, x, channels);
    for (int64_t c = 0; c < channels; c += LM_PACK) {
      vec half[36], line[6];
#pragma GCC unroll 6
      for (int j = 0; j < 6; j++) {
        vec d[6];
        for (int i = 0; i < 6; i++) d[i] = lm_pack_load(p[i * 6 + j] + c);
        apply_bt(d, 1, half + j, 6);
      }
#pragma GCC unroll 6
      for (int i = 0; i < 6; i++) {
        apply_bt(half + 6 * i, 1, line, 1);
        for (int j = 0; j < 6; j++) lm_pack_store(v + (i * 6 + j) * stride + c, line[j]);
      }
    }
  }
}

static void transform_wino_grad(const lm_wino_images *im, const float *g, int64_t channels, int64_t first, int64_t last,
                                float *z, int64_t stride, const float *zeros) {
  tile_cursor at = tile_cursor_from(im, first);
  for (int64_t tile = first; tile < last; tile++, z += channels, tile_cursor_next(&at)) {
    const float *p[16];
    pixels(&at, 4, g, zeros, p);
    for (int64_t c = 0; c < channels; c += LM_PACK) {
      vec half[24], line[6];
#pragma GCC unroll 6
      for (int j = 0; j < 4; j++) {
        vec d[4];
        for (int i = 0; i < 4; i++) d[i] = lm_pack_load(p[i * 4 + j] + c);
        apply_a(d, 1, half + j, 4);
      }
#pragma GCC unroll 6
      for (int i = 0; i < 6; i++) {
        apply_a(half + 4 * i, 1, line, 1);
        for (int j = 0; j < 6; j++) lm_pack_store(z + (i * 6 + j) * stride + c, line[j]);
      }
    }
  }
}

static void output(const lm_wino_images *im, const float *m, int64_t stride, int64_t first, int64_t last,
                   const float *bias, float *y, float *spare) {
  tile_cursor at = tile_cursor_from(im, first);
  for (int64_t tile = first; tile < last; tile++, m += im->c, tile_cursor_next(&at)) {
    const float *p[16];
    pixels(&at, 4, y, spare, p);
    for (int64_t c = 0; c < im->c; c += LM_PACK) {
      vec half[24], line[4], b = bias ? lm_pack_load(bias + c) : (vec){0};
#pragma GCC unroll 6
      for (int j = 0; j < 6; j++) {
        vec d[6];
        for (int i = 0; i < 6; i++) d[i] = lm_pack_load(m + (i * 6 + j) * stride + c);
        apply_at(d, 1, half + j, 6);
      }
#pragma GCC unroll 6
      for (int i = 0; i < 4; i++) {
        apply_at(half + 6 * i, 1, line, 1);
        for (int j = 0; j < 4; j++) lm_pack_store((float *)p[i * 4 + j] + c, line[j] + b);
      }
    }
  }
}

/* Loads a square of LM_PACK x LM_PACK filters of w [k, c, 3, 3]: x[i * 9 + tap] holds input channel i's, one output
 * channel in each lane. `w` points at the first filter. */
LM_INLINE void load_filters(const float *w, int64_t row, vec *x) {
  for (int q = 0; q < 9; q++) {
    for (int j = 0; j < LM_PACK; j++) x[LM_PACK * q + j] = lm_pack_load(w + j * row + LM_PACK * q);
    transpose(x + LM_PACK * q);
  }
}

LM_INLINE void transform_filter(const vec *w, float *u, int64_t stride) { /* w: 9 taps */
  vec half[18], line[6];
  for (int j = 0; j < 3; j++) apply_g(w + j, 3, half + j, 3);
#pragma GCC unroll 6
  for (int i = 0; i < 6; i++) {
    apply_g(half + 3 * i, 1, line, 1);
    for (int j = 0; j < 6; j++) lm_pack_store(u + (i * 6 + j) * stride, line[j]);
  }
}

static void weight(const float *w, int64_t c, int64_t k0, int width, int64_t row, float *u, int64_t stride) {
  for (int64_t r = row; r < row + LM_WINO_CHANNELS; r += LM_PACK)
    for (int k = 0; k < width; k += LM_PACK) {
      LM_LARGE(vec, x, 9 * LM_PACK);
      load_filters(w + ((k0 + k) * c + r) * 9, c * 9, x);
      for (int l = 0; l < LM_PACK; l++) transform_filter(x + 9 * l, u + (r + l) * width + k, stride);
    }
}

static void weight_rotated(const float *w, int64_t c, int64_t c0, int width, int64_t row, float *u, int64_t stride) {
  for (int64_t r = row; r < row + LM_WINO_CHANNELS; r += LM_PACK)
    for (int i = 0; i < width; i += LM_PACK) {
      LM_LARGE(vec, x, 9 * LM_PACK);
      LM_LARGE(vec[LM_PACK], taps, 9);
      load_filters(w + (r * c + c0 + i) * 9, c * 9, x);
      for (int t = 0; t < 9; t++) {
        for (int l = 0; l < LM_PACK; l++) taps[t][l] = x[9 * l + t];
        transpose(taps[t]);
      }
      for (int l = 0; l < LM_PACK; l++) {
        vec rotated[9];
        for (int t = 0; t < 9; t++) rotated[t] = taps[8 - t][l];
        transform_filter(rotated, u + (r + l) * width + i, stride);
      }
    }
}

/* Computes the gradient of such a square of filters. `u` and `dw` point at the first one. */
LM_INLINE void filters_grad(const float *u, int64_t ldu, int64_t stride, int64_t parts, int64_t part_stride, float *dw,
                            int64_t row) {
  LM_LARGE(vec, x, 9 * LM_PACK);
  for (int l = 0; l < LM_PACK; l++) {
    vec half[18];
    for (int j = 0; j < 6; j++) {
      vec d[6];
      for (int i = 0; i < 6; i++) {
        const float *from = u + l * ldu + (i * 6 + j) * stride;
        d[i] = lm_pack_load(from);
        for (int64_t part = 1; part < parts; part++) d[i] += lm_pack_load(from + part * part_stride);
      }
      apply_gt(d, 1, half + j, 6);
    }
    for (int i = 0; i < 3; i++) apply_gt(half + 6 * i, 1, x + 9 * l + 3 * i, 1);
  }
  for (int q = 0; q < 9; q++) {
    transpose(x + LM_PACK * q);
    for (int j = 0; j < LM_PACK; j++) lm_pack_store(dw + j * row + LM_PACK * q, x[LM_PACK * q + j]);
  }
}

static void weight_grad(const float *u, int64_t stride, int64_t parts, int64_t part_stride, int64_t c, int64_t c0,
                        int64_t k0, int width, float *dw) {
  for (int k = 0; k < width; k += LM_PACK)
    for (int r = 0; r < LM_WINO_CHANNELS; r += LM_PACK)
      filters_grad(u + r * width + k, width, stride, parts, part_stride, dw + ((k0 + k) * c + c0 + r) * 9, c * 9);
}

/* A product's operands: element (r, d) of a is a[r * row + d * col]. Panels of weights come from the L3 cache or from
 * memory: the next one is prefetched evenly while rows pass this one. Without, 512 channels took 1.3 to 1.7 times as
 * long. */
typedef struct operands {
  const float *a, *b;
  float *m;
  int64_t row, col, ldb, ldm, depth;
  const char *next; /* memory to prefetch */
  int64_t step;     /* bytes of `next` for each element of depth */
  bool add;         /* true: adds to m */
} operands;

LM_INLINE void block(const int rows, const int vectors, const operands *p) {
  const float *a = p->a, *b = p->b;
  const int64_t row = p->row, col = p->col, ldb = p->ldb, ldm = p->ldm;
  vec s[ROWS][VECTORS];
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) s[r][j] = (vec){0};
  if (p->add) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) s[r][j] = lm_pack_load(p->m + r * ldm + j * LM_PACK);
  }
  const char *next = p->next;
  const int64_t step = p->step;
  for (int64_t d = p->depth; d > 0; d--, a += col, b += ldb) {
    vec v[VECTORS];
    __builtin_prefetch(next);
    next += step;
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) v[j] = lm_pack_load(b + j * LM_PACK);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      float f = a[r * row];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; j++) s[r][j] += f * v[j];
    }
  }
  float *m = p->m;
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++, m += ldm)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) lm_pack_store(m + j * LM_PACK, s[r][j]);
}

/* Each size has its own function: together they would spill registers. Channels are multiples of 16, so that only
 * panels of more columns have narrower ones. */
#define BLOCK(rows, vectors) \
  static void block_##rows##_##vectors(const operands *p) { block(rows, vectors, p); }
#define BLOCKS(vectors) \
  BLOCK(1, vectors) BLOCK(2, vectors) BLOCK(3, vectors) BLOCK(4, vectors) BLOCK(5, vectors) BLOCK(6, vectors)
#define ROW(vectors)              \
  [vectors] = {NULL,              \
               block_1_##vectors, \
               block_2_##vectors, \
               block_3_##vectors, \
               block_4_##vectors, \
               block_5_##vectors, \
               block_6_##vectors},
#if defined(__AVX512F__)
#define EACH_WIDTH(X) X(1) X(2) X(3) X(4)
#elif defined(__aarch64__)
#define EACH_WIDTH(X) X(4)
#else
#define EACH_WIDTH(X) X(2)
#endif
EACH_WIDTH(BLOCKS)
static void (*const blocks[VECTORS + 1][ROWS + 1])(const operands *p) = {EACH_WIDTH(ROW)};

/* Multiplies all rows by one panel, while p.step bytes of the next one are prefetched with each element of depth. */
static void panel_product(int64_t rows, int width, operands p) {
  const int64_t bytes = p.step, all = rows;
  while (rows > 0) { /* blocks of 6; the last two share what is left */
    int64_t take = rows >= 12 || rows == 6 ? 6 : rows > 6 ? (rows + 1) / 2 : rows;
    p.step = bytes * take / all;
    blocks[width / LM_PACK][take](&p);
    p.next += p.step * p.depth;
    p.a += take * p.row;
    p.m += take * p.ldm;
    rows -= take;
  }
}

static void multiply(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const float *b,
                     float *m, int64_t ldm) {
  for (int64_t d = 0; d < depth; d += DEPTH) {
    int64_t deep = depth - d < DEPTH ? depth - d : DEPTH;
    for (int64_t column = 0; column < columns; column += PANEL) {
      int width = columns - column < PANEL ? (int)(columns - column) : PANEL;
      int64_t left = columns - column - width, next_width = left < PANEL ? left : PANEL;
      const float *panel = b + column * depth + d * width;
      const float *next = left > 0 ? b + (column + width) * depth + d * next_width : panel;
      operands p = {.a = a + d,
                    .row = lda,
                    .col = 1,
                    .b = panel,
                    .ldb = width,
                    .m = m + column,
                    .ldm = ldm,
                    .depth = deep,
                    .next = (const char *)next,
                    .step = next_width * (int64_t)sizeof(float),
                    .add = d > 0};
      panel_product(rows, width, p);
    }
  }
}

static void multiply_transposed(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, float *u,
                                bool add) {
  for (int64_t column = 0; column < columns; column += PANEL) {
    int width = columns - column < PANEL ? (int)(columns - column) : PANEL;
    operands p = {.a = a,
                  .row = 1,
                  .col = rows,
                  .b = b + column,
                  .ldb = columns,
                  .m = u + column * rows,
                  .ldm = width,
                  .depth = depth,
                  .next = (const char *)b,
                  .add = add};
    panel_product(rows, width, p);
  }
}

const struct lm_wino_loops LM_ISA_NAME(lm_wino_loops) = {
    .panel = PANEL,
    .input = input,
    .grad = transform_wino_grad,
    .output = output,
    .weight = weight,
    .weight_rotated = weight_rotated,
    .weight_grad = weight_grad,
    .multiply = multiply,
    .multiply_transposed = multiply_transposed,
};
