/* Computes attention and its gradients without tensor cores. A block of threads has a tile of rows, queries or keys,
 * and reads the other side tile by tile. Both products (rows by rows, a tile by rows) take operands from shared memory
 * and sum in registers: a thread has every TY-th row of a tile and every TX-th column. A block sums at most WIDE
 * columns; blocks of further columns compute the scores again. Results do not depend on the order in which blocks
 * run. */
#include "attention.cuh"

template <class num>
struct lm_attention_tiles {
  enum {
    TX = 16,
    TY = 8,
    THREADS = TX * TY,
    PACK = 16 / (int)sizeof(num),
    I = sizeof(num) == 8 ? 4 : 8, /* I: rows of a thread; J: columns of a thread */
    J = sizeof(num) == 8 ? 2 : 4,
    ROWS = TY * I,
    COLS = TX * J,
    DEPTH = 32, /* columns of the operands that are in shared memory at a time */
    LINE = DEPTH + PACK,
    TILE_LINE = COLS + PACK,
  };
};

/* Number of packs in the stage: both operands of a product of rows, or DEPTH rows of WIDE columns. */
template <class num, int WIDE>
constexpr int lm_attention_stage = [] {
  typedef lm_attention_tiles<num> S;
  int both = (S::ROWS + S::COLS) * S::LINE, rows = S::DEPTH * (WIDE + S::PACK);
  return (both > rows ? both : rows) / S::PACK;
}();

/* Copies HEIGHT rows of COUNT numbers, `line` apart, to shared memory; zeros beyond `rows` rows and `count` columns. */
template <class num, int HEIGHT, int COUNT>
LM_DEVICE void lm_attention_fetch(const lm_attention_job &job, num *to, int line, const num *from, int64_t step,
                                  int64_t rows, int64_t count) {
  enum { V = lm_attention_tiles<num>::PACK, THREADS = lm_attention_tiles<num>::THREADS };
  if (job.in_packs) {
    enum { PACKS = HEIGHT * (COUNT / V), EACH = PACKS / THREADS };
    static_assert(PACKS % THREADS == 0, "every thread has as many");
    lm_words<num, V> words[EACH]; /* all loads are issued before the first is used */
    LM_UNROLL
    for (int e = 0; e < EACH; e++) {
      int i = e * THREADS + (int)threadIdx.x, row = i / (COUNT / V), at = i % (COUNT / V) * V;
      words[e] = {};
      if (row < rows && at < count) words[e] = lm_load_words<V>(from + row * step + at);
    }
    LM_UNROLL
    for (int e = 0; e < EACH; e++) {
      int i = e * THREADS + (int)threadIdx.x, row = i / (COUNT / V), at = i % (COUNT / V) * V;
      *(lm_pack<num, V> *)(to + row * line + at) = lm_unpack<num, V>(words[e]);
    }
  } else {
    for (int i = (int)threadIdx.x; i < HEIGHT * COUNT; i += THREADS) {
      int row = i / COUNT, at = i % COUNT;
      to[row * line + at] = row < rows && at < count ? from[row * step + at] : 0;
    }
  }
}

template <class num, int PACK>
LM_DEVICE void lm_attention_take(num *to, const num *from) {
  lm_pack<num, PACK> pack = lm_load<PACK>(from);
  LM_UNROLL
  for (int v = 0; v < PACK; v++) to[v] = pack.v[v];
}

/* Sets s[i][j] to the product of row ty + i TY of a and row tx + j TX of b, summed over `depth` numbers. */
template <class num>
LM_DEVICE void lm_attention_product(const lm_attention_job &job, num (*s)[lm_attention_tiles<num>::J], num *stage,
                                    const num *a, int64_t a_step, int64_t a_rows, const num *b, int64_t b_step,
                                    int64_t b_rows, int64_t depth) {
  typedef lm_attention_tiles<num> S;
  int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
  num *of_a = stage, *of_b = stage + S::ROWS * S::LINE;
  LM_UNROLL
  for (int i = 0; i < S::I; i++) {
    LM_UNROLL
    for (int j = 0; j < S::J; j++) s[i][j] = 0;
  }
  for (int64_t d = 0; d < depth; d += S::DEPTH) {
    __syncthreads(); /* all threads have read the previous stage */
    lm_attention_fetch<num, S::ROWS, S::DEPTH>(job, of_a, S::LINE, a + d, a_step, a_rows, depth - d);
    lm_attention_fetch<num, S::COLS, S::DEPTH>(job, of_b, S::LINE, b + d, b_step, b_rows, depth - d);
    __syncthreads();
    LM_UNROLL_BY(2)
    for (int k = 0; k < S::DEPTH; k += S::PACK) {
      num y[S::J][S::PACK];
      LM_UNROLL
      for (int j = 0; j < S::J; j++) lm_attention_take<num, S::PACK>(y[j], of_b + (tx + j * S::TX) * S::LINE + k);
      LM_UNROLL
      for (int i = 0; i < S::I; i++) {
        num x[S::PACK];
        lm_attention_take<num, S::PACK>(x, of_a + (ty + i * S::TY) * S::LINE + k);
        LM_UNROLL
        for (int j = 0; j < S::J; j++) {
          LM_UNROLL
          for (int v = 0; v < S::PACK; v++) s[i][j] += x[v] * y[j][v];
        }
      }
    }
  }
}

/* A thread's sums. For its row ty + i TY and each g, they are of PACK columns from (g TX + tx) PACK on. */
template <class num, int WIDE>
struct lm_attention_sums {
  typedef lm_attention_tiles<num> S;
  enum { GROUPS = WIDE / (S::TX * S::PACK), N = GROUPS * S::PACK };
  num of[S::I][N];

  LM_DEVICE void clear() {
    LM_UNROLL
    for (int i = 0; i < S::I; i++) {
      LM_UNROLL
      for (int c = 0; c < N; c++) of[i][c] = 0;
    }
  }

  /* Adds tile [ROWS, COLS] times b, whose COLS rows (b_rows of them exist) have `count` numbers each. */
  LM_DEVICE void add(const lm_attention_job &job, const num *tile, num *stage, const num *b, int64_t b_step,
                     int64_t b_rows, int64_t count) {
    enum { LINE = WIDE + S::PACK, AT_ONCE = S::DEPTH < S::COLS ? S::DEPTH : S::COLS };
    int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
    for (int first = 0; first < S::COLS; first += AT_ONCE) {
      __syncthreads(); /* the tile is written, and the previous stage is read */
      if (first >= b_rows) return;
      lm_attention_fetch<num, AT_ONCE, WIDE>(job, stage, LINE, b + first * b_step, b_step, b_rows - first, count);
      __syncthreads();
      LM_UNROLL_BY(2)
      for (int k = 0; k < AT_ONCE; k += S::PACK) {
        num y[S::PACK][N];
        LM_UNROLL
        for (int v = 0; v < S::PACK; v++) {
          LM_UNROLL
          for (int g = 0; g < GROUPS; g++)
            lm_attention_take<num, S::PACK>(y[v] + g * S::PACK, stage + (k + v) * LINE + (g * S::TX + tx) * S::PACK);
        }
        LM_UNROLL
        for (int i = 0; i < S::I; i++) {
          num x[S::PACK];
          lm_attention_take<num, S::PACK>(x, tile + (ty + i * S::TY) * S::TILE_LINE + first + k);
          LM_UNROLL
          for (int v = 0; v < S::PACK; v++) {
            LM_UNROLL
            for (int c = 0; c < N; c++) of[i][c] += x[v] * y[v][c];
          }
        }
      }
    }
  }

  /* Writes the sums, each row times its factor, to a side's rows (`rows` of them exist), columns from `first` on. */
  LM_DEVICE void write(const lm_attention_job &job, const lm_attention_side &side, int64_t n, int64_t h, int64_t row,
                       int64_t rows, int64_t first, int64_t count, const num *factor) const {
    int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
    LM_UNROLL
    for (int i = 0; i < S::I; i++) {
      if (ty + i * S::TY >= rows) break;
      num *to = lm_attention_row<num>(side, n, h, row + ty + i * S::TY) + first;
      LM_UNROLL
      for (int g = 0; g < GROUPS; g++) {
        int at = (g * S::TX + tx) * S::PACK;
        lm_pack<num, S::PACK> pack;
        LM_UNROLL
        for (int v = 0; v < S::PACK; v++) pack.v[v] = of[i][g * S::PACK + v] * factor[i];
        if (job.in_packs) {
          if (first + at < count) lm_store<S::PACK>(to + at, pack);
        } else {
          LM_UNROLL
          for (int v = 0; v < S::PACK; v++) {
            if (first + at + v < count) to[at + v] = pack.v[v];
          }
        }
      }
    }
  }
};

/* Writes a thread's numbers of a tile to shared memory, once all threads have read the previous tile. */
template <class num>
LM_DEVICE void lm_attention_put(num *tile, const num (*s)[lm_attention_tiles<num>::J]) {
  typedef lm_attention_tiles<num> S;
  int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
  __syncthreads();
  LM_UNROLL
  for (int i = 0; i < S::I; i++) {
    LM_UNROLL
    for (int j = 0; j < S::J; j++) tile[(ty + i * S::TY) * S::TILE_LINE + tx + j * S::TX] = s[i][j];
  }
}

/* Returns the score of query i and key j as softmax takes it: -inf if the query does not see the key. */
template <class num>
LM_DEVICE num lm_attention_score(const lm_attention_job &job, int64_t n, int64_t h, int64_t i, int64_t j, num product) {
  if (i >= job.queries || j >= job.keys || (job.causal && j > i)) return -(num)INFINITY;
  num score = product * (num)job.scale;
  if (job.mask) {
    int64_t at = n * job.mask_stride[0] + h * job.mask_stride[1] + i * job.mask_stride[2] + j * job.mask_stride[3];
    if (!job.mask_is_bool) return score + ((const num *)job.mask)[at];
    if (!((const uint8_t *)job.mask)[at]) return -(num)INFINITY;
  }
  return score;
}

/* Returns bit i J + j set where dropout keeps the weight in row i and column j of a thread's numbers. `position`: index
 * of the first in its head; i_step, j_step: distances of rows and columns. A loop, as its body is long. */
template <class num>
LM_DEVICE uint32_t lm_attention_kept(const lm_attention_job &job, int64_t n, int64_t h, int64_t position,
                                     int64_t i_step, int64_t j_step) {
  typedef lm_attention_tiles<num> S;
  static_assert(S::I * S::J <= 32, "a bit each");
  uint32_t bits = 0;
  if (!job.draw) return ~bits;
  position += (n * job.heads + h) * job.queries * job.keys;
  LM_UNROLL_BY(1)
  for (int k = 0; k < S::I * S::J; k++) {
    uint64_t at = (uint64_t)(position + k / S::J * i_step + k % S::J * j_step);
    bits |= (lm_attention_keeps(job.draw, job.threshold, at / 4) >> at % 4 & 1) << k;
  }
  return bits;
}

/* Reduces a value over the threads that share a row. */
template <class num, class Op>
LM_DEVICE num lm_attention_over_row(num value, Op op) {
  LM_UNROLL
  for (int by = 8; by > 0; by /= 2) value = op(value, lm_shuffle_xor(value, by));
  return value;
}

/* ---- forward */

template <class num, int WIDE>
LM_KERNEL void __launch_bounds__(lm_attention_tiles<num>::THREADS) lm_attention_forward(lm_attention_job job) {
  typedef lm_attention_tiles<num> S;
  __shared__ lm_pack<num, S::PACK> memory[lm_attention_stage<num, WIDE> + S::ROWS * S::TILE_LINE / S::PACK];
  num *stage = memory->v, *tile = memory[lm_attention_stage<num, WIDE>].v;
  int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
  int64_t parts = lm_attention_tiles_of(job.value_width, WIDE), blocks = lm_attention_tiles_of(job.queries, S::ROWS);
  if (parts == 0) parts = 1; /* log_sum is computed even if values have width 0 */
  for (int64_t unit = blockIdx.x; unit < job.samples * job.heads * parts * blocks; unit += gridDim.x) {
    int64_t block = blocks - 1 - unit % blocks, part = unit / blocks % parts; /* queries that see the most keys first */
    int64_t h = unit / blocks / parts % job.heads, n = unit / blocks / parts / job.heads, kv = h / job.shared;
    int64_t i0 = block * S::ROWS, rows = job.queries - i0, first = part * WIDE;
    int64_t last = job.causal && i0 + S::ROWS < job.keys ? i0 + S::ROWS : job.keys;
    lm_attention_sums<num, WIDE> values;
    num most[S::I], sum[S::I];
    values.clear();
    LM_UNROLL
    for (int i = 0; i < S::I; i++) most[i] = -(num)INFINITY, sum[i] = 0;
    for (int64_t j0 = 0; j0 < last; j0 += S::COLS) {
      num s[S::I][S::J];
      lm_attention_product<num>(job, s, stage, lm_attention_row<num>(job.query, n, h, i0), job.query.row, rows,
                                lm_attention_row<num>(job.key, n, kv, j0), job.key.row, job.keys - j0, job.width);
      uint32_t kept = lm_attention_kept<num>(job, n, h, (i0 + ty) * job.keys + j0 + tx, S::TY * job.keys, S::TX);
      LM_UNROLL
      for (int i = 0; i < S::I; i++) {
        int64_t query = i0 + ty + i * S::TY;
        num now = most[i];
        LM_UNROLL
        for (int j = 0; j < S::J; j++) {
          s[i][j] = lm_attention_score<num>(job, n, h, query, j0 + tx + j * S::TX, s[i][j]);
          now = lm_attention_larger()(now, s[i][j]);
        }
        now = lm_attention_over_row(now, lm_attention_larger());
        num base = now == -(num)INFINITY ? 0 : now, factor = lm_exp(most[i] - base), more = 0;
        LM_UNROLL
        for (int j = 0; j < S::J; j++) {
          s[i][j] = lm_exp(s[i][j] - base);
          more += s[i][j];
          if (!(kept >> (i * S::J + j) & 1)) s[i][j] = 0;
        }
        sum[i] = sum[i] * factor + lm_attention_over_row(more, lm_add_of());
        most[i] = now;
        LM_UNROLL
        for (int c = 0; c < values.N; c++) values.of[i][c] *= factor;
      }
      lm_attention_put<num>(tile, s);
      values.add(job, tile, stage, lm_attention_row<num>(job.value, n, kv, j0) + first, job.value.row, job.keys - j0,
                 job.value_width - first);
    }
    num factor[S::I];
    LM_UNROLL
    for (int i = 0; i < S::I; i++) {
      factor[i] = sum[i] == 0 ? 0 : (num)job.keep_scale / sum[i];
      if (part > 0 || tx > 0 || ty + i * S::TY >= rows) continue;
      num *to = (num *)job.log_sum + (n * job.heads + h) * job.queries + i0 + ty + i * S::TY;
      *to = sum[i] == 0 ? (num)INFINITY : most[i] + log(sum[i]);
    }
    values.write(job, job.out, n, h, i0, rows, first, job.value_width, factor);
  }
}

/* ---- backward */

/* Sets dots to the products of grad's and out's rows; a warp computes a row. */
template <class L>
LM_KERNEL void lm_attention_dots(lm_attention_job job) {
  typedef typename L::num num;
  int64_t rows = job.samples * job.heads * job.queries;
  for (int64_t row = lm_thread() / LM_WARP; row < rows; row += lm_threads() / LM_WARP) {
    int64_t i = row % job.queries, h = row / job.queries % job.heads, n = row / job.queries / job.heads;
    const typename L::stored *x = lm_attention_row<typename L::stored>(job.grad, n, h, i),
                             *y = lm_attention_row<typename L::stored>(job.out, n, h, i);
    L load = {job.dtype};
    num sum = 0;
    for (int64_t k = lm_lane(); k < job.value_width; k += LM_WARP) sum += load(x[k]) * load(y[k]);
    sum = lm_warp_reduce(sum, lm_add_of());
    if (lm_lane() == 0) ((num *)job.dots)[row] = sum;
  }
}

/* Returns the gradient of a product of query and key, from `slope`, the gradient of its weight. *weight is that
 * product, and becomes the weight that multiplied the value, dropout included. */
template <class num>
LM_DEVICE num lm_attention_slope(const lm_attention_job &job, int64_t n, int64_t h, int64_t i, int64_t j, num *weight,
                                 num slope, bool kept) {
  num score = lm_attention_score<num>(job, n, h, i, j, *weight);
  if (score == -(num)INFINITY) return *weight = 0;
  int64_t row = (n * job.heads + h) * job.queries + i;
  num all = ((const num *)job.log_sum)[row], of = all == (num)INFINITY ? 0 : lm_exp(score - all);
  *weight = kept ? of * (num)job.keep_scale : 0;
  return of * ((kept ? slope * (num)job.keep_scale : 0) - ((const num *)job.dots)[row]) * (num)job.scale;
}

/* Computes dquery; a block's rows are queries. */
template <class num, int WIDE>
LM_KERNEL void __launch_bounds__(lm_attention_tiles<num>::THREADS) lm_attention_of_queries(lm_attention_job job) {
  typedef lm_attention_tiles<num> S;
  __shared__ lm_pack<num, S::PACK> memory[lm_attention_stage<num, WIDE> + S::ROWS * S::TILE_LINE / S::PACK];
  num *stage = memory->v, *tile = memory[lm_attention_stage<num, WIDE>].v;
  int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
  int64_t parts = lm_attention_tiles_of(job.width, WIDE), blocks = lm_attention_tiles_of(job.queries, S::ROWS);
  num factor[S::I];
  LM_UNROLL
  for (int i = 0; i < S::I; i++) factor[i] = 1;
  for (int64_t unit = blockIdx.x; unit < job.samples * job.heads * parts * blocks; unit += gridDim.x) {
    int64_t block = blocks - 1 - unit % blocks, part = unit / blocks % parts;
    int64_t h = unit / blocks / parts % job.heads, n = unit / blocks / parts / job.heads, kv = h / job.shared;
    int64_t i0 = block * S::ROWS, rows = job.queries - i0, first = part * WIDE;
    int64_t last = job.causal && i0 + S::ROWS < job.keys ? i0 + S::ROWS : job.keys;
    lm_attention_sums<num, WIDE> sums;
    sums.clear();
    for (int64_t j0 = 0; j0 < last; j0 += S::COLS) {
      num weight[S::I][S::J], slope[S::I][S::J];
      const num *key = lm_attention_row<num>(job.key, n, kv, j0);
      lm_attention_product<num>(job, weight, stage, lm_attention_row<num>(job.query, n, h, i0), job.query.row, rows,
                                key, job.key.row, job.keys - j0, job.width);
      lm_attention_product<num>(job, slope, stage, lm_attention_row<num>(job.grad, n, h, i0), job.grad.row, rows,
                                lm_attention_row<num>(job.value, n, kv, j0), job.value.row, job.keys - j0,
                                job.value_width);
      uint32_t kept = lm_attention_kept<num>(job, n, h, (i0 + ty) * job.keys + j0 + tx, S::TY * job.keys, S::TX);
      LM_UNROLL
      for (int i = 0; i < S::I; i++) {
        LM_UNROLL
        for (int j = 0; j < S::J; j++)
          slope[i][j] = lm_attention_slope<num>(job, n, h, i0 + ty + i * S::TY, j0 + tx + j * S::TX, &weight[i][j],
                                                slope[i][j], kept >> (i * S::J + j) & 1);
      }
      lm_attention_put<num>(tile, slope);
      sums.add(job, tile, stage, key + first, job.key.row, job.keys - j0, job.width - first);
    }
    sums.write(job, job.dquery, n, h, i0, rows, first, job.width, factor);
  }
}

/* Computes dkey and dvalue; a block's rows are keys, with all queries of the heads that share them. */
template <class num, int WIDE>
LM_KERNEL void __launch_bounds__(lm_attention_tiles<num>::THREADS) lm_attention_of_keys(lm_attention_job job) {
  typedef lm_attention_tiles<num> S;
  __shared__ lm_pack<num, S::PACK> memory[lm_attention_stage<num, WIDE> + S::ROWS * S::TILE_LINE / S::PACK];
  num *stage = memory->v, *tile = memory[lm_attention_stage<num, WIDE>].v;
  int tx = (int)threadIdx.x % S::TX, ty = (int)threadIdx.x / S::TX;
  int64_t most = job.width > job.value_width ? job.width : job.value_width;
  int64_t parts = lm_attention_tiles_of(most, WIDE), blocks = lm_attention_tiles_of(job.keys, S::ROWS);
  num factor[S::I];
  LM_UNROLL
  for (int i = 0; i < S::I; i++) factor[i] = 1;
  for (int64_t unit = blockIdx.x; unit < job.samples * job.key_heads * parts * blocks; unit += gridDim.x) {
    int64_t block = unit % blocks, part = unit / blocks % parts; /* the most queries see the first keys */
    int64_t kv = unit / blocks / parts % job.key_heads, n = unit / blocks / parts / job.key_heads;
    int64_t j0 = block * S::ROWS, rows = job.keys - j0, first = part * WIDE;
    const num *key = lm_attention_row<num>(job.key, n, kv, j0), *value = lm_attention_row<num>(job.value, n, kv, j0);
    lm_attention_sums<num, WIDE> of_key, of_value;
    of_key.clear();
    of_value.clear();
    for (int64_t h = kv * job.shared; h < (kv + 1) * job.shared; h++) {
      for (int64_t i0 = job.causal ? j0 / S::COLS * S::COLS : 0; i0 < job.queries; i0 += S::COLS) {
        num weight[S::I][S::J], slope[S::I][S::J];
        const num *query = lm_attention_row<num>(job.query, n, h, i0),
                  *grad = lm_attention_row<num>(job.grad, n, h, i0);
        int64_t there = job.queries - i0;
        lm_attention_product<num>(job, weight, stage, key, job.key.row, rows, query, job.query.row, there, job.width);
        lm_attention_product<num>(job, slope, stage, value, job.value.row, rows, grad, job.grad.row, there,
                                  job.value_width);
        uint32_t kept = lm_attention_kept<num>(job, n, h, (i0 + tx) * job.keys + j0 + ty, S::TY, S::TX * job.keys);
        LM_UNROLL
        for (int i = 0; i < S::I; i++) {
          LM_UNROLL
          for (int j = 0; j < S::J; j++)
            slope[i][j] = lm_attention_slope<num>(job, n, h, i0 + tx + j * S::TX, j0 + ty + i * S::TY, &weight[i][j],
                                                  slope[i][j], kept >> (i * S::J + j) & 1);
        }
        if (first < job.value_width) {
          lm_attention_put<num>(tile, weight);
          of_value.add(job, tile, stage, grad + first, job.grad.row, there, job.value_width - first);
        }
        if (first < job.width) {
          lm_attention_put<num>(tile, slope);
          of_key.add(job, tile, stage, query + first, job.query.row, there, job.width - first);
        }
      }
    }
    of_value.write(job, job.dvalue, n, kv, j0, rows, first, job.value_width, factor);
    of_key.write(job, job.dkey, n, kv, j0, rows, first, job.width, factor);
  }
}

/* ---- dropout */

LM_KERNEL void lm_attention_draw_put(uint64_t *to, uint64_t seed, uint64_t offset, const uint64_t *extra) {
  to[0] = seed;
  to[1] = offset + (extra ? *extra : 0);
}

template <class T>
LM_KERNEL void lm_dropout_drawn(const T *x, T *y, int64_t n, const uint64_t *draw, uint32_t threshold,
                                double keep_scale) {
  typedef lm_compute<T> num;
  for (int64_t i = lm_thread(); i < n; i += lm_threads()) {
    bool stays = lm_attention_keeps(draw, threshold, (uint64_t)i / 4) >> i % 4 & 1;
    y[i] = lm_put<T>(stays ? lm_get<num>(x[i]) * (num)keep_scale : 0);
  }
}

/* ---- launching */

enum { MAX_BLOCKS = INT32_MAX, ROW_THREADS = 256 };

/* Returns the number of columns that a block sums. */
template <class num>
static int lm_attention_wide(int64_t columns) {
  return sizeof(num) < 8 && columns > 64 ? 128 : 64;
}

template <class num>
static int lm_attention_launch(const lm_attention_job &job, void *stream) {
  typedef lm_attention_tiles<num> S;
  int wide = lm_attention_wide<num>(job.value_width);
  int64_t parts = lm_attention_tiles_of(job.value_width, wide);
  int64_t units = job.samples * job.heads * lm_attention_tiles_of(job.queries, S::ROWS) * (parts > 0 ? parts : 1);
  auto kernel = lm_attention_forward<num, 64>;
  if constexpr (sizeof(num) < 8) {
    if (wide > 64) kernel = lm_attention_forward<num, 128>;
  }
  return lm_launch(kernel, lm_blocks(units, 1, MAX_BLOCKS), S::THREADS, 0, stream, job);
}

template <class num>
static int lm_attention_launch_backward(const lm_attention_job &job, void *stream) {
  typedef lm_attention_tiles<num> S;
  int64_t most = job.width > job.value_width ? job.width : job.value_width;
  int64_t of_queries = job.samples * job.heads * lm_attention_tiles_of(job.queries, S::ROWS) *
                       lm_attention_tiles_of(job.width, lm_attention_wide<num>(job.width));
  int64_t of_keys =
      job.samples * job.key_heads * lm_attention_tiles_of(job.keys, S::ROWS) * lm_attention_tiles_of(most, 64);
  auto kernel = lm_attention_of_queries<num, 64>;
  if constexpr (sizeof(num) < 8) {
    if (lm_attention_wide<num>(job.width) > 64) kernel = lm_attention_of_queries<num, 128>;
  }
  int error = lm_launch(kernel, lm_blocks(of_queries, 1, MAX_BLOCKS), S::THREADS, 0, stream, job);
  return error
             ? error
             : lm_launch(lm_attention_of_keys<num, 64>, lm_blocks(of_keys, 1, MAX_BLOCKS), S::THREADS, 0, stream, job);
}

int lm_k_attention(const lm_attention_job *job, void *stream) {
  switch (job->dtype) {
    case LM_F64: return lm_attention_launch<double>(*job, stream);
    case LM_F32: return job->tf32 ? lm_k_attention_mma(job, stream) : lm_attention_launch<float>(*job, stream);
    default: return lm_k_attention_mma(job, stream);
  }
}

int lm_k_attention_backward(const lm_attention_job *job, void *stream) {
  int64_t rows = job->samples * job->heads * job->queries;
  int error = lm_for_float_loader(job->dtype, [&](auto load) {
    return lm_launch(lm_attention_dots<decltype(load)>, lm_blocks(rows, ROW_THREADS / LM_WARP, 1 << 20), ROW_THREADS, 0,
                     stream, *job);
  });
  if (error) return error;
  switch (job->dtype) {
    case LM_F64: return lm_attention_launch_backward<double>(*job, stream);
    case LM_F32:
      return job->tf32 ? lm_k_attention_mma_backward(job, stream) : lm_attention_launch_backward<float>(*job, stream);
    default: return lm_k_attention_mma_backward(job, stream);
  }
}

int lm_k_attention_draw(uint64_t *to, uint64_t seed, uint64_t offset, const uint64_t *extra, void *stream) {
  return lm_launch(lm_attention_draw_put, 1, 1, 0, stream, to, seed, offset, extra);
}

int lm_k_dropout_by_draw(int dtype, const void *x, void *y, int64_t n, const uint64_t *draw, uint32_t threshold,
                         double keep_scale, void *stream) {
  return lm_for_float(dtype, [&](auto num) {
    typedef decltype(num) T;
    return lm_launch(lm_dropout_drawn<T>, lm_blocks(n, ROW_THREADS, 1 << 20), ROW_THREADS, 0, stream, (const T *)x,
                     (T *)y, n, draw, threshold, keep_scale);
  });
}
