#include "backend/cpu/isa/winograd.h"

#include <stddef.h>

#if defined(__AVX512F__)
#include <immintrin.h>

/* Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), for the interpolation
 * points 0, +-p, +-q, infinity. With p = 1/q = sqrt(1/2) the matrices' entries stay near 1, and the
 * error is about half of that with the usual 1 and 2.
 *
 *   B' = | p2q2   0  -(p2+q2)    0     1  0 |    G = |  1/p2q2    0     0   |    A' = | 1  1   1  1   1  0 |
 *        |  0  -+pq2   -q2     +-p     1  0 |        |  (1  +-p   p2) / Np  |         | 0  p  -p  q  -q  0 |
 *        |  0  -+p2q   -p2     +-q     1  0 |        |  (1  +-q   q2) / Nq  |         | 0  p2 p2  q2 q2  0 |
 *        |  0   p2q2    0   -(p2+q2)   0  1 |        |    0       0     1   |         | 0  p3 -p3 q3 -q3 1 |
 *
 * where p2 = p * p and so on, Np = 2 p2 (p2 - q2), Nq = 2 q2 (q2 - p2). */
#define P 0.70710678118654752440
#define Q 1.41421356237309504880
#define NP (2 * P * P * (P * P - Q * Q))
#define NQ (2 * Q * Q * (Q * Q - P * P))
#define INLINE static inline __attribute__((always_inline))

typedef __m512 vec;

INLINE vec load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, vec v) { _mm512_storeu_ps(p, v); }
INLINE vec all(double x) { return _mm512_set1_ps((float)x); }
INLINE vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec muladd(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }  /* a b + c */
INLINE vec mulsub(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */

/* One dimension of each transform: vectors `is` apart in, `os` apart out. */
INLINE void apply_bt(const vec *d, int is, vec *o, int os) { /* 6 -> 6 */
  vec p = all(P), q = all(Q), p2 = all(P * P), q2 = all(Q * Q), s2 = all(P * P + Q * Q), m2 = all(P * P * Q * Q);
  vec d1 = d[is], d2 = d[2 * is], d3 = d[3 * is], d4 = d[4 * is];
  vec even_p = mulsub(q2, d2, d4), odd_p = mulsub(q2, d1, d3);
  vec even_q = mulsub(p2, d2, d4), odd_q = mulsub(p2, d1, d3);
  o[0] = muladd(m2, d[0], mulsub(s2, d2, d4));
  o[os] = muladd(p, odd_p, even_p);
  o[2 * os] = mulsub(p, odd_p, even_p);
  o[3 * os] = muladd(q, odd_q, even_q);
  o[4 * os] = mulsub(q, odd_q, even_q);
  o[5 * os] = muladd(m2, d1, mulsub(s2, d3, d[5 * is]));
}

INLINE void apply_at(const vec *m, int is, vec *o, int os) { /* 6 -> 4 */
  vec sum_p = add(m[is], m[2 * is]), dif_p = sub(m[is], m[2 * is]);
  vec sum_q = add(m[3 * is], m[4 * is]), dif_q = sub(m[3 * is], m[4 * is]);
  o[0] = add(add(m[0], sum_p), sum_q);
  o[os] = muladd(all(P), dif_p, mul(all(Q), dif_q));
  o[2 * os] = muladd(all(P * P), sum_p, mul(all(Q * Q), sum_q));
  o[3 * os] = muladd(all(P * P * P), dif_p, muladd(all(Q * Q * Q), dif_q, m[5 * is]));
}

INLINE void apply_a(const vec *y, int is, vec *o, int os) { /* 4 -> 6 */
  vec y1 = y[is], y2 = y[2 * is], y3 = y[3 * is];
  vec even_p = muladd(all(P * P), y2, y[0]), odd_p = muladd(all(P * P), y3, y1);
  vec even_q = muladd(all(Q * Q), y2, y[0]), odd_q = muladd(all(Q * Q), y3, y1);
  o[0] = y[0];
  o[os] = muladd(all(P), odd_p, even_p);
  o[2 * os] = mulsub(all(P), odd_p, even_p);
  o[3 * os] = muladd(all(Q), odd_q, even_q);
  o[4 * os] = mulsub(all(Q), odd_q, even_q);
  o[5 * os] = y3;
}

INLINE void apply_g(const vec *w, int is, vec *o, int os) { /* 3 -> 6 */
  vec w0 = w[0], w1 = w[is], w2 = w[2 * is];
  vec even_p = mul(all(1 / NP), muladd(all(P * P), w2, w0)), even_q = mul(all(1 / NQ), muladd(all(Q * Q), w2, w0));
  o[0] = mul(all(1 / (P * P * Q * Q)), w0);
  o[os] = muladd(all(P / NP), w1, even_p);
  o[2 * os] = mulsub(all(P / NP), w1, even_p);
  o[3 * os] = muladd(all(Q / NQ), w1, even_q);
  o[4 * os] = mulsub(all(Q / NQ), w1, even_q);
  o[5 * os] = w2;
}

INLINE void apply_gt(const vec *u, int is, vec *o, int os) { /* 6 -> 3 */
  vec sum_p = add(u[is], u[2 * is]), dif_p = sub(u[is], u[2 * is]);
  vec sum_q = add(u[3 * is], u[4 * is]), dif_q = sub(u[3 * is], u[4 * is]);
  o[0] = muladd(all(1 / (P * P * Q * Q)), u[0], muladd(all(1 / NP), sum_p, mul(all(1 / NQ), sum_q)));
  o[os] = muladd(all(P / NP), dif_p, mul(all(Q / NQ), dif_q));
  o[2 * os] = muladd(all(P * P / NP), sum_p, muladd(all(Q * Q / NQ), sum_q, u[5 * is]));
}

INLINE void transpose16(vec *r) {
  vec t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 16; j += 8) {
      t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  for (int i = 0; i < 8; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}

/* Walks tiles in order; `x0` and `y0` are the tile's first pixel. */
typedef struct tile_cursor {
  const lm_wino_images *im;
  int64_t n, i, j;
} tile_cursor;

INLINE tile_cursor tile_cursor_from(const lm_wino_images *im, int64_t tile) {
  int64_t in_image = tile % (im->th * im->tw);
  return (tile_cursor){im, tile / (im->th * im->tw), in_image / im->tw, in_image % im->tw};
}

INLINE void tile_cursor_next(tile_cursor *at) {
  if (++at->j < at->im->tw) return;
  at->j = 0;
  if (++at->i < at->im->th) return;
  at->i = 0;
  at->n++;
}

/* Addresses of the side x side pixels of a tile, `outside` for those beyond the image. */
INLINE void pixels(const tile_cursor *at, int side, const float *x, const float *outside, const float **out) {
  const lm_wino_images *im = at->im;
  int64_t y0 = 4 * at->i - im->top, x0 = 4 * at->j - im->left;
  const float *first = x + ((at->n * im->h + y0) * im->w + x0) * im->c;
  for (int i = 0; i < side; i++)
    for (int j = 0; j < side; j++) {
      bool in = y0 + i >= 0 && y0 + i < im->h && x0 + j >= 0 && x0 + j < im->w;
      out[i * side + j] = in ? first + (i * im->w + j) * im->c : outside;
    }
}

/* Begins to load the rows of the tile to the right; the hardware does not follow a jump every few pixels. */
INLINE void prefetch(const tile_cursor *at, const float *x) {
  const lm_wino_images *im = at->im;
  int64_t y0 = 4 * at->i - im->top, x0 = 4 * at->j - im->left + 6;
  int64_t columns = im->w - x0 < 4 ? im->w - x0 : 4;
  for (int64_t i = y0 < 0 ? 0 : y0; i < y0 + 6 && i < im->h; i++) {
    const float *row = x + ((at->n * im->h + i) * im->w + x0) * im->c;
    for (int64_t k = 0; k < columns * im->c; k += 16) _mm_prefetch((const char *)(row + k), _MM_HINT_T0);
  }
}

static void input(const lm_wino_images *im, const float *x, int64_t first, int64_t last, float *v, int64_t stride,
                  const float *zeros) {
  tile_cursor at = tile_cursor_from(im, first);
  for (int64_t tile = first; tile < last; tile++, v += im->c, tile_cursor_next(&at)) {
    const float *p[36];
    pixels(&at, 6, x, zeros, p);
    prefetch(&at, x);
    for (int64_t c = 0; c < im->c; c += 16) {
      vec half[36], row[6];
      for (int j = 0; j < 6; j++) {
        vec d[6];
        for (int i = 0; i < 6; i++) d[i] = load(p[i * 6 + j] + c);
        apply_bt(d, 1, half + j, 6);
      }
      for (int i = 0; i < 6; i++) {
        apply_bt(half + 6 * i, 1, row, 1);
        for (int j = 0; j < 6; j++) store(v + (i * 6 + j) * stride + c, row[j]);
      }
    }
  }
}

static void grad(const lm_wino_images *im, const float *g, int64_t first, int64_t last, float *z, int64_t stride,
                 const float *zeros) {
  tile_cursor at = tile_cursor_from(im, first);
  for (int64_t tile = first; tile < last; tile++, z += im->c, tile_cursor_next(&at)) {
    const float *p[16];
    pixels(&at, 4, g, zeros, p);
    for (int64_t c = 0; c < im->c; c += 16) {
      vec half[24], row[6];
      for (int j = 0; j < 4; j++) {
        vec d[4];
        for (int i = 0; i < 4; i++) d[i] = load(p[i * 4 + j] + c);
        apply_a(d, 1, half + j, 4);
      }
      for (int i = 0; i < 6; i++) {
        apply_a(half + 4 * i, 1, row, 1);
        for (int j = 0; j < 6; j++) store(z + (i * 6 + j) * stride + c, row[j]);
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
    for (int64_t c = 0; c < im->c; c += 16) {
      vec half[24], row[4], b = bias ? load(bias + c) : _mm512_setzero_ps();
      for (int j = 0; j < 6; j++) {
        vec d[6];
        for (int i = 0; i < 6; i++) d[i] = load(m + (i * 6 + j) * stride + c);
        apply_at(d, 1, half + j, 6);
      }
      for (int i = 0; i < 4; i++) {
        apply_at(half + 6 * i, 1, row, 1);
        for (int j = 0; j < 4; j++) store((float *)p[i * 4 + j] + c, add(row[j], b));
      }
    }
  }
}

/* The 16 x 16 filters of w [k, c, 3, 3] at (k, c): x[i * 9 + tap] holds input channel i's, a lane each
 * output channel. `w` points at filter (k, c). */
INLINE void load_filters(const float *w, int64_t row, vec *x) {
  for (int q = 0; q < 9; q++) {
    for (int j = 0; j < 16; j++) x[16 * q + j] = load(w + j * row + 16 * q);
    transpose16(x + 16 * q);
  }
}

INLINE void transform_filter(const vec *w, float *u, int64_t stride) { /* w: 9 taps */
  vec half[18], row[6];
  for (int j = 0; j < 3; j++) apply_g(w + j, 3, half + j, 3);
  for (int i = 0; i < 6; i++) {
    apply_g(half + 3 * i, 1, row, 1);
    for (int j = 0; j < 6; j++) store(u + (i * 6 + j) * stride, row[j]);
  }
}

static void weight(const float *w, int64_t c, int64_t k0, int width, int64_t row, float *u, int64_t stride) {
  for (int k = 0; k < width; k += 16) {
    vec x[144];
    load_filters(w + ((k0 + k) * c + row) * 9, c * 9, x);
    for (int l = 0; l < 16; l++) transform_filter(x + 9 * l, u + (row + l) * width + k, stride);
  }
}

static void weight_turned(const float *w, int64_t c, int64_t c0, int width, int64_t row, float *u, int64_t stride) {
  for (int i = 0; i < width; i += 16) {
    vec x[144], taps[9][16];
    load_filters(w + (row * c + c0 + i) * 9, c * 9, x);
    for (int t = 0; t < 9; t++) {
      for (int l = 0; l < 16; l++) taps[t][l] = x[9 * l + t];
      transpose16(taps[t]);
    }
    for (int l = 0; l < 16; l++) {
      vec turned[9];
      for (int t = 0; t < 9; t++) turned[t] = taps[8 - t][l];
      transform_filter(turned, u + (row + l) * width + i, stride);
    }
  }
}

static void weight_grad(const float *u, int64_t stride, int parts, int64_t part_stride, int64_t c, int64_t c0,
                        int64_t k0, int width, float *dw) {
  for (int k = 0; k < width; k += 16) {
    vec x[144];
    for (int l = 0; l < 16; l++) {
      const float *from = u + (c0 + l) * width + k;
      vec half[18];
      for (int j = 0; j < 6; j++) {
        vec d[6];
        for (int i = 0; i < 6; i++) {
          d[i] = load(from + (i * 6 + j) * stride);
          for (int part = 1; part < parts; part++)
            d[i] = add(d[i], load(from + part * part_stride + (i * 6 + j) * stride));
        }
        apply_gt(d, 1, half + j, 6);
      }
      for (int i = 0; i < 3; i++) apply_gt(half + 6 * i, 1, x + 9 * l + 3 * i, 1);
    }
    for (int q = 0; q < 9; q++) {
      transpose16(x + 16 * q);
      for (int j = 0; j < 16; j++) store(dw + ((k0 + k + j) * c + c0) * 9 + 16 * q, x[16 * q + j]);
    }
  }
}

/* R rows by N vectors of the product in registers; A's element (r, d) is a[r * row + d * col]. */
INLINE void block(int R, int N, int64_t depth, const float *a, int64_t row, int64_t col, const float *b, int64_t ldb,
                  float *m, int64_t ldm, bool accumulate) {
  vec s[6][4];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) s[r][j] = accumulate ? load(m + r * ldm + 16 * j) : _mm512_setzero_ps();
  for (int64_t d = 0; d < depth; d++, a += col, b += ldb) {
    vec v[4];
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) v[j] = load(b + 16 * j);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      vec f = _mm512_set1_ps(a[r * row]);
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) s[r][j] = muladd(f, v[j], s[r][j]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < N; j++) store(m + r * ldm + 16 * j, s[r][j]);
}

typedef void block_fn(int64_t depth, const float *a, int64_t lda, const float *b, int64_t ldb, float *m, int64_t ldm);

#define PLAIN(R, N)                                                                                              \
  static void plain_##R##_##N(int64_t depth, const float *a, int64_t lda, const float *b, int64_t ldb, float *m, \
                              int64_t ldm) {                                                                     \
    block(R, N, depth, a, lda, 1, b, ldb, m, ldm, false);                                                        \
  }
#define TURNED(R, N)                                                                                           \
  static void set_##R##_##N(int64_t depth, const float *a, int64_t lda, const float *b, int64_t ldb, float *m, \
                            int64_t ldm) {                                                                     \
    block(R, N, depth, a, 1, lda, b, ldb, m, ldm, false);                                                      \
  }                                                                                                            \
  static void add_##R##_##N(int64_t depth, const float *a, int64_t lda, const float *b, int64_t ldb, float *m, \
                            int64_t ldm) {                                                                     \
    block(R, N, depth, a, 1, lda, b, ldb, m, ldm, true);                                                       \
  }
/* clang-format off */
#define WIDTHS(F, R) F(R, 1) F(R, 2) F(R, 3) F(R, 4)
WIDTHS(PLAIN, 1) WIDTHS(PLAIN, 2) WIDTHS(PLAIN, 3) WIDTHS(PLAIN, 4) WIDTHS(PLAIN, 5) WIDTHS(PLAIN, 6)
WIDTHS(TURNED, 4) WIDTHS(TURNED, 6)
/* clang-format on */

#define ROW(kind, R) \
  { kind##_##R##_1, kind##_##R##_2, kind##_##R##_3, kind##_##R##_4 }
    static block_fn *const plain[6][4] = {ROW(plain, 1), ROW(plain, 2), ROW(plain, 3),
                                          ROW(plain, 4), ROW(plain, 5), ROW(plain, 6)};
static block_fn *const turned[2][2][4] = {{ROW(set, 4), ROW(set, 6)}, {ROW(add, 4), ROW(add, 6)}};

static void multiply(int64_t rows, int width, int64_t depth, const float *a, int64_t lda, const float *b, float *m,
                     int64_t ldm) {
  while (rows > 0) { /* blocks of 6; the last two share what is left */
    int64_t take = rows >= 12 || rows == 6 ? 6 : rows > 6 ? (rows + 1) / 2 : rows;
    plain[take - 1][width / 16 - 1](depth, a, lda, b, width, m, ldm);
    a += take * lda;
    m += take * ldm;
    rows -= take;
  }
}

static void multiply_turned(int64_t rows, int width, int64_t depth, const float *a, int64_t lda, const float *b,
                            int64_t ldb, float *u, bool accumulate) {
  while (rows > 0) { /* an even number: blocks of 6, and of 4 at the end */
    int64_t take = rows == 4 || rows == 8 ? 4 : 6;
    turned[accumulate][take == 6][width / 16 - 1](depth, a, lda, b, ldb, u, width);
    a += take;
    u += take * width;
    rows -= take;
  }
}

const struct lm_wino_loops LM_ISA_NAME(lm_wino_loops) = {true,          input,       grad,     output,         weight,
                                                         weight_turned, weight_grad, multiply, multiply_turned};

#else
const struct lm_wino_loops LM_ISA_NAME(lm_wino_loops) = {.usable = false};
#endif
