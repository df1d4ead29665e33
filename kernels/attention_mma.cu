/* Computes attention of float16, of bfloat16 and, by TF32, of float on tensor cores, summed in float (Dao,
 * "FlashAttention-2", 2023). A block has 64 rows, 16 to a warp: queries, or keys for the gradients of keys and values.
 * A row's numbers are in four lanes, so rounded scores are an operand of the next product without a move. A block reads
 * the other side tile by tile. As in attention.cu it sums at most WIDE columns, and results do not depend on the
 * blocks' order. */
#include "attention.cuh"
#include "mma.cuh"

enum { LM_MMA_ROWS = 64, LM_MMA_THREADS = 128 };

/* Returns the index of an element in a tile of WIDE columns. Packs of a row swap positions, so that packs of one column
 * and eight rows are in different banks. */
template <class T, int WIDE>
LM_DEVICE int lm_mma_at(int row, int column) {
  return row * WIDE + (column ^ row % 8 * lm_full_pack<T>::V);
}

/* Begins to fetch a tile of HEIGHT rows; elements past the last row and column are 0. */
template <int HEIGHT, int WIDE, class T>
LM_DEVICE void lm_mma_fetch(const lm_attention_job &job, T *tile, const T *from, int64_t step, int64_t rows,
                            int64_t columns) {
  enum { PACK = lm_full_pack<T>::V, PACKS = WIDE / PACK, AT_ONCE = LM_MMA_THREADS / PACKS };
  int row = (int)threadIdx.x / PACKS, column = (int)threadIdx.x % PACKS * PACK;
  T *to = tile + lm_mma_at<T, WIDE>(row, column);
  const T *p = from + row * step + column;
  if (job.in_packs) {
    LM_UNROLL_BY(1) /* unrolled, it would keep an address for each in registers */
    for (int e = 0; e < HEIGHT; e += AT_ONCE, p += AT_ONCE * step) {
      bool there = row + e < rows && column < columns;
      lm_copy_begin(to + e * WIDE, there ? p : from, there);
    }
  } else {
    LM_UNROLL_BY(1)
    for (int e = 0; e < HEIGHT; e += AT_ONCE, p += AT_ONCE * step) {
      lm_pack<T, PACK> pack = {};
      LM_UNROLL
      for (int v = 0; v < PACK; v++) {
        if (row + e < rows && column + v < columns) pack.v[v] = p[v];
      }
      *(lm_pack<T, PACK> *)(to + e * WIDE) = pack;
    }
  }
}

/* Waits until all threads have fetched their elements and read the earlier tiles. */
LM_DEVICE void lm_mma_meet() {
  lm_copies_wait();
  __syncthreads();
}

/* A warp's 16 rows of COLS float numbers in lm_mma's layout: with g = lane / 4 and t = lane % 4, element e of part n is
 * in row g + e / 2 * 8 and column 8 n + 2 t + e % 2. */
template <int COLS>
struct lm_mma_numbers {
  enum { PARTS = COLS / 8 };
  float of[PARTS][4];

  LM_DEVICE void clear() {
    LM_UNROLL
    for (int n = 0; n < PARTS; n++) {
      LM_UNROLL
      for (int e = 0; e < 4; e++) of[n][e] = 0;
    }
  }

  /* Adds the warp's rows of a times rows of b, both tiles of `depth` columns. */
  template <int WIDE, class T>
  LM_DEVICE void add_product(const T *a, const T *b, int64_t depth) {
    enum { PACK = lm_full_pack<T>::V };
    int lane = lm_lane(), row = (int)threadIdx.x / LM_WARP * 16 + lane % 16;
    LM_UNROLL_BY(2)
    for (int k = 0; k < WIDE && k < depth; k += 2 * PACK) {
      uint32_t x[4];
      lm_load_matrices<false>(x, a + lm_mma_at<T, WIDE>(row, k + lane / 16 * PACK));
      LM_UNROLL
      for (int n = 0; n < PARTS; n += 2) {
        uint32_t y[4];
        lm_load_matrices<false>(y, b + lm_mma_at<T, WIDE>(n * 8 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * PACK));
        lm_mma<T>(of[n], x, y);
        lm_mma<T>(of[n + 1], x, y + 2);
      }
    }
  }

  /* Adds x, rounded, times b, which has a row for each column of x. */
  template <int DEPTH, class T>
  LM_DEVICE void add_sums(const lm_mma_numbers<DEPTH> &x, const T *b) {
    int lane = lm_lane();
    LM_UNROLL
    for (int k = 0; k < DEPTH / 8; k += lm_full_pack<T>::V / 4) {
      uint32_t a[4];
      LM_UNROLL
      for (int i = 0; i < 4; i++) {
        if constexpr (std::is_same_v<T, float>) {
          a[i] = lm_tf32(x.of[k][i % 2 * 2 + i / 2]);
        } else {
          const float *pair = x.of[k + i / 2] + i % 2 * 2;
          a[i] = lm_pack_two<T>(pair[0], pair[1]);
        }
      }
      LM_UNROLL
      for (int n = 0; n < PARTS; n += 2) {
        uint32_t y[4];
        if constexpr (std::is_same_v<T, float>) {
          LM_UNROLL
          for (int i = 0; i < 4; i++)
            y[i] = lm_tf32(b[lm_mma_at<T, COLS>(k * 8 + lane % 4 * 2 + i % 2, (n + i / 2) * 8 + lane / 4)]);
        } else {
          lm_load_matrices<true>(y, b + lm_mma_at<T, COLS>(k * 8 + lane % 16, n * 8 + lane / 16 * 8));
        }
        lm_mma<T>(of[n], a, y);
        lm_mma<T>(of[n + 1], a, y + 2);
      }
    }
  }

  /* Writes the sums to a side's rows, from `row` on for the warp, and columns from `first` on; low and high are the
   * factors of the lane's two rows. */
  template <class T>
  LM_DEVICE void write(const lm_attention_job &job, const lm_attention_side &side, int64_t n, int64_t h, int64_t row,
                       int64_t rows, int64_t first, int64_t columns, float low, float high) const {
    LM_UNROLL
    for (int i = 0; i < 2; i++) {
      int64_t at = row + lm_lane() / 4 + 8 * i;
      if (at >= rows) break;
      T *to = lm_attention_row<T>(side, n, h, at) + first;
      float factor = i ? high : low;
      LM_UNROLL
      for (int part = 0; part < PARTS; part++) {
        int column = 8 * part + lm_lane() % 4 * 2;
        if (first + column >= columns) break;
        lm_pack<T, 2> two = {{lm_put<T>(of[part][2 * i] * factor), lm_put<T>(of[part][2 * i + 1] * factor)}};
        if (job.in_packs) {
          *(lm_pack<T, 2> *)(to + column) = two;
        } else {
          to[column] = two.v[0];
          if (first + column + 1 < columns) to[column + 1] = two.v[1];
        }
      }
    }
  }
};

/* Sets s to the rows of a times rows of b. Unless both are resident in their tiles, fetches them WIDE columns at a
 * time. */
template <int COLS, int WIDE, class T>
LM_DEVICE void lm_mma_product(const lm_attention_job &job, lm_mma_numbers<COLS> *s, bool resident, T *a_tile,
                              const T *a, int64_t a_step, int64_t a_rows, T *b_tile, const T *b, int64_t b_step,
                              int64_t b_rows, int64_t depth) {
  s->clear();
  for (int64_t d = 0; d < depth; d += WIDE) {
    if (!resident) {
      __syncthreads();
      lm_mma_fetch<LM_MMA_ROWS, WIDE>(job, a_tile, a + d, a_step, a_rows, depth - d);
      lm_mma_fetch<COLS, WIDE>(job, b_tile, b + d, b_step, b_rows, depth - d);
      lm_mma_meet();
    }
    s->template add_product<WIDE>(a_tile, b_tile, depth - d);
  }
}

/* Computes scores from a tile's products, for queries from i0 on and keys from j0 on: -inf where a query does not see
 * the key. Rows are queries, or keys if OF_KEYS. A separate loop, which takes few registers, sets bit 4 n + e of `seen`
 * for each number that is seen. */
template <bool OF_KEYS, class T, int COLS>
LM_DEVICE void lm_mma_score(const lm_attention_job &job, lm_mma_numbers<COLS> *s, int64_t n, int64_t h, int64_t i0,
                            int64_t j0) {
  enum { PARTS = COLS / 8, QUERIES = OF_KEYS ? COLS : LM_MMA_ROWS, KEYS = OF_KEYS ? LM_MMA_ROWS : COLS };
  int row = (int)threadIdx.x / LM_WARP * 16 + lm_lane() / 4, column = lm_lane() % 4 * 2;
  int64_t i = i0 + (OF_KEYS ? column : row), j = j0 + (OF_KEYS ? row : column);
  int64_t row_step = job.mask_stride[OF_KEYS ? 3 : 2], step = job.mask_stride[OF_KEYS ? 2 : 3];
  int64_t mask = n * job.mask_stride[0] + h * job.mask_stride[1] + i * job.mask_stride[2] + j * job.mask_stride[3];
  uint32_t seen = ~0u;
  if (job.mask || i0 + QUERIES > job.queries || j0 + KEYS > job.keys || (job.causal && j0 + KEYS > i0 + 1)) {
    seen = 0;
    LM_UNROLL_BY(8)
    for (int k = 0; k < PARTS * 4; k++) {
      int down = k / 2 % 2 * 8, right = k / 4 * 8 + k % 2;
      int64_t query = i + (OF_KEYS ? right : down), key = j + (OF_KEYS ? down : right);
      bool sees = query < job.queries && key < job.keys && !(job.causal && key > query);
      if (sees && job.mask_is_bool) sees = ((const uint8_t *)job.mask)[mask + down * row_step + right * step];
      seen |= (uint32_t)sees << k;
    }
  }
  LM_UNROLL
  for (int k = 0; k < PARTS * 4; k++) {
    float *x = &s->of[k / 4][k % 4];
    *x = seen >> k & 1 ? *x * (float)job.scale : -INFINITY;
  }
  if (!job.mask || job.mask_is_bool) return;
  const T *p = (const T *)job.mask + mask;
  LM_UNROLL
  for (int k = 0; k < PARTS * 4; k++) {
    int down = k / 2 % 2 * 8, right = k / 4 * 8 + k % 2;
    if (seen >> k & 1) s->of[k / 4][k % 4] += lm_get<float>(p[down * row_step + right * step]);
  }
}

/* Draws for four neighboring keys of a query, which take one block of random words or parts of two: bits 4 n to 4 n + 3
 * are set where dropout keeps their weights. `position` is the first key's index, `step` leads to that of the next n.
 * Lanes whose numbers are among the same keys draw for different rows and exchange the bits, so each draws once. */
template <int PARTS>
LM_DEVICE uint32_t lm_mma_draw(const lm_attention_job &job, int64_t position, int64_t step) {
  static_assert(PARTS <= 8, "four bits each");
  uint32_t bits = 0;
  LM_UNROLL_BY(1)
  for (int n = 0; n < PARTS; n++, position += step) {
    int skip = (int)(position % 4);
    uint32_t four = lm_attention_keeps(job.draw, job.threshold, (uint64_t)position / 4) >> skip;
    if (skip) four |= lm_attention_keeps(job.draw, job.threshold, (uint64_t)position / 4 + 1) << (4 - skip);
    bits |= (four & 15) << 4 * n;
  }
  return bits;
}

/* Returns bit 4 n + e set where dropout keeps a lane's number. Rows are queries, from i0 on for the warp: even lanes
 * draw for row g, odd ones for row g + 8. */
template <int PARTS>
LM_DEVICE uint32_t lm_mma_kept(const lm_attention_job &job, int64_t n, int64_t h, int64_t i0, int64_t j0) {
  if (!job.draw) return ~0u;
  int lane = lm_lane(), t = lane % 4;
  int64_t row = ((n * job.heads + h) * job.queries + i0 + lane / 4 + t % 2 * 8) * job.keys;
  uint32_t bits = lm_mma_draw<PARTS>(job, row + j0 + t / 2 * 4, 8), kept = 0;
  LM_UNROLL
  for (int i = 0; i < 2; i++) kept |= (lm_shuffle(bits, (lane & ~1) | i) >> t % 2 * 2 & 0x33333333) << 2 * i;
  return kept;
}

/* Returns dropout's bits for rows of keys from j0 on for the warp: four lanes share keys; each draws for another e. */
template <int PARTS>
LM_DEVICE uint32_t lm_mma_kept_of_keys(const lm_attention_job &job, int64_t n, int64_t h, int64_t i0, int64_t j0) {
  if (!job.draw) return ~0u;
  int lane = lm_lane(), g = lane / 4, e = g % 4;
  int64_t query = (n * job.heads + h) * job.queries + i0 + lane % 4 * 2 + e % 2;
  uint32_t bits = lm_mma_draw<PARTS>(job, query * job.keys + j0 + g / 4 * 4 + e / 2 * 8, 8 * job.keys), kept = 0;
  LM_UNROLL
  for (int i = 0; i < 4; i++) kept |= (lm_shuffle(bits, (lane & ~12) | i * 4) >> e & 0x11111111) << i;
  return kept;
}

/* Reduces a value over the four lanes that share a row. */
template <class Op>
LM_DEVICE float lm_mma_over_row(float value, Op op) {
  value = op(value, lm_shuffle_xor(value, 2));
  return op(value, lm_shuffle_xor(value, 1));
}

/* ---- forward */

template <class T, int WIDE>
LM_KERNEL void __launch_bounds__(LM_MMA_THREADS, WIDE > 64 ? 2 : 3) lm_attention_mma_forward(lm_attention_job job) {
  enum { ROWS = LM_MMA_ROWS, COLS = 64, PARTS = COLS / 8, TILE = ROWS * WIDE };
  __shared__ lm_pack<T, lm_full_pack<T>::V> memory[3 * TILE / lm_full_pack<T>::V];
  T *query = memory->v, *key = query + TILE, *value = key + TILE;
  int warp = (int)threadIdx.x / LM_WARP * 16, g = lm_lane() / 4, t = lm_lane() % 4;
  bool resident = job.width <= WIDE;
  int64_t parts = lm_attention_tiles_of(job.value_width, WIDE), blocks = lm_attention_tiles_of(job.queries, ROWS);
  if (parts == 0) parts = 1; /* log_sum is computed even if values have width 0 */
  for (int64_t unit = blockIdx.x; unit < job.samples * job.heads * parts * blocks; unit += gridDim.x) {
    int64_t block = blocks - 1 - unit % blocks, part = unit / blocks % parts; /* queries that see the most keys first */
    int64_t h = unit / blocks / parts % job.heads, n = unit / blocks / parts / job.heads, kv = h / job.shared;
    int64_t i0 = block * ROWS, rows = job.queries - i0, first = part * WIDE;
    int64_t last = job.causal && i0 + ROWS < job.keys ? i0 + ROWS : job.keys;
    const T *queries = lm_attention_row<T>(job.query, n, h, i0), *keys = lm_attention_row<T>(job.key, n, kv, 0),
            *values = lm_attention_row<T>(job.value, n, kv, 0) + first;
    lm_mma_numbers<WIDE> sums;
    float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    sums.clear();
    lm_mma_meet(); /* the previous unit is done */
    if (resident && last > 0) {
      lm_mma_fetch<ROWS, WIDE>(job, query, queries, job.query.row, rows, job.width);
      lm_mma_fetch<COLS, WIDE>(job, key, keys, job.key.row, job.keys, job.width);
    }
    for (int64_t j0 = 0; j0 < last; j0 += COLS) {
      lm_mma_numbers<COLS> s;
      lm_mma_meet();
      lm_mma_fetch<COLS, WIDE>(job, value, values + j0 * job.value.row, job.value.row, job.keys - j0,
                               job.value_width - first);
      lm_mma_product<COLS, WIDE>(job, &s, resident, query, queries, job.query.row, rows, key, keys + j0 * job.key.row,
                                 job.key.row, job.keys - j0, job.width);
      uint32_t kept = lm_mma_kept<PARTS>(job, n, h, i0 + warp, j0);
      lm_mma_score<false, T>(job, &s, n, h, i0, j0);
      LM_UNROLL
      for (int i = 0; i < 2; i++) {
        float now = most[i], more = 0;
        LM_UNROLL
        for (int e = 0; e < PARTS * 2; e++) now = lm_attention_larger()(now, s.of[e / 2][2 * i + e % 2]);
        now = lm_mma_over_row(now, lm_attention_larger());
        float base = now == -INFINITY ? 0 : now, factor = __expf(most[i] - base);
        LM_UNROLL
        for (int e = 0; e < PARTS * 2; e++) {
          float *x = &s.of[e / 2][2 * i + e % 2];
          *x = __expf(*x - base);
          more += *x;
          if (!(kept >> (e / 2 * 4 + 2 * i + e % 2) & 1)) *x = 0;
        }
        sum[i] = sum[i] * factor + lm_mma_over_row(more, lm_add_of());
        most[i] = now;
        LM_UNROLL
        for (int e = 0; e < sums.PARTS * 2; e++) sums.of[e / 2][2 * i + e % 2] *= factor;
      }
      lm_mma_meet();
      if (resident && j0 + COLS < last)
        lm_mma_fetch<COLS, WIDE>(job, key, keys + (j0 + COLS) * job.key.row, job.key.row, job.keys - j0 - COLS,
                                 job.width);
      sums.add_sums(s, value);
    }
    float factor[2];
    LM_UNROLL
    for (int i = 0; i < 2; i++) {
      int row = warp + g + 8 * i;
      factor[i] = sum[i] == 0 ? 0 : (float)job.keep_scale / sum[i];
      if (part > 0 || t > 0 || row >= rows) continue;
      float *to = (float *)job.log_sum + (n * job.heads + h) * job.queries + i0 + row;
      *to = sum[i] == 0 ? INFINITY : most[i] + logf(sum[i]);
    }
    sums.template write<T>(job, job.out, n, h, i0 + warp, job.queries, first, job.value_width, factor[0], factor[1]);
  }
}

/* ---- backward */

/* Returns the gradient of a score, without the scale; `slope` is that of its weight. *weight, a score, becomes the
 * weight that multiplied the value, dropout included. `all`, `dot`: the query's numbers in log_sum and dots. */
LM_DEVICE float lm_mma_slope(const lm_attention_job &job, float *weight, float slope, float all, float dot, bool kept) {
  if (*weight == -INFINITY) return *weight = 0;
  float of = all == INFINITY ? 0 : __expf(*weight - all);
  *weight = kept ? of * (float)job.keep_scale : 0;
  return of * ((kept ? slope * (float)job.keep_scale : 0) - dot);
}

/* Computes dquery; a block's rows are queries. */
template <class T, int WIDE>
LM_KERNEL void __launch_bounds__(LM_MMA_THREADS, 3) lm_attention_mma_of_queries(lm_attention_job job) {
  enum { ROWS = LM_MMA_ROWS, COLS = 32, TILE = ROWS * WIDE, OTHER = COLS * WIDE };
  __shared__ lm_pack<T, lm_full_pack<T>::V> memory[2 * (TILE + OTHER) / lm_full_pack<T>::V];
  T *query = memory->v, *grad = query + TILE, *key = grad + TILE, *value = key + OTHER;
  int warp = (int)threadIdx.x / LM_WARP * 16, g = lm_lane() / 4;
  bool resident = job.width <= WIDE && job.value_width <= WIDE;
  int64_t parts = lm_attention_tiles_of(job.width, WIDE), blocks = lm_attention_tiles_of(job.queries, ROWS);
  for (int64_t unit = blockIdx.x; unit < job.samples * job.heads * parts * blocks; unit += gridDim.x) {
    int64_t block = blocks - 1 - unit % blocks, part = unit / blocks % parts;
    int64_t h = unit / blocks / parts % job.heads, n = unit / blocks / parts / job.heads, kv = h / job.shared;
    int64_t i0 = block * ROWS, rows = job.queries - i0, first = part * WIDE;
    int64_t last = job.causal && i0 + ROWS < job.keys ? i0 + ROWS : job.keys;
    const T *queries = lm_attention_row<T>(job.query, n, h, i0), *grads = lm_attention_row<T>(job.grad, n, h, i0);
    float all[2] = {0, 0}, dot[2] = {0, 0};
    LM_UNROLL
    for (int i = 0; i < 2; i++) {
      int64_t row = (n * job.heads + h) * job.queries + i0 + warp + g + 8 * i;
      if (warp + g + 8 * i < rows) all[i] = ((const float *)job.log_sum)[row], dot[i] = ((const float *)job.dots)[row];
    }
    lm_mma_numbers<WIDE> sums;
    sums.clear();
    lm_mma_meet(); /* the previous unit is done */
    if (resident) {
      lm_mma_fetch<ROWS, WIDE>(job, query, queries, job.query.row, rows, job.width);
      lm_mma_fetch<ROWS, WIDE>(job, grad, grads, job.grad.row, rows, job.value_width);
    }
    for (int64_t j0 = 0; j0 < last; j0 += COLS) {
      lm_mma_numbers<COLS> weight, slope;
      const T *keys = lm_attention_row<T>(job.key, n, kv, j0), *values = lm_attention_row<T>(job.value, n, kv, j0);
      int64_t there = job.keys - j0;
      if (resident) {
        __syncthreads();
        lm_mma_fetch<COLS, WIDE>(job, key, keys, job.key.row, there, job.width);
        lm_mma_fetch<COLS, WIDE>(job, value, values, job.value.row, there, job.value_width);
        lm_mma_meet();
      }
      lm_mma_product<COLS, WIDE>(job, &weight, resident, query, queries, job.query.row, rows, key, keys, job.key.row,
                                 there, job.width);
      lm_mma_product<COLS, WIDE>(job, &slope, resident, grad, grads, job.grad.row, rows, value, values, job.value.row,
                                 there, job.value_width);
      uint32_t kept = lm_mma_kept<COLS / 8>(job, n, h, i0 + warp, j0);
      lm_mma_score<false, T>(job, &weight, n, h, i0, j0);
      LM_UNROLL
      for (int e = 0; e < COLS / 2; e++) {
        int i = e / 2 % 2;
        float *x = &slope.of[e / 4][e % 4];
        *x = lm_mma_slope(job, &weight.of[e / 4][e % 4], *x, all[i], dot[i], kept >> e & 1);
      }
      if (!resident) {
        __syncthreads();
        lm_mma_fetch<COLS, WIDE>(job, key, keys + first, job.key.row, there, job.width - first);
        lm_mma_meet();
      }
      sums.add_sums(slope, key);
    }
    lm_copies_wait(); /* waits for the fetches that the loop did not wait for */
    sums.template write<T>(job, job.dquery, n, h, i0 + warp, job.queries, first, job.width, (float)job.scale,
                           (float)job.scale);
  }
}

/* Computes dkey and dvalue; a block's rows are keys, with all queries of the heads that share them. */
template <class T, int WIDE>
LM_KERNEL void __launch_bounds__(LM_MMA_THREADS, 2) lm_attention_mma_of_keys(lm_attention_job job) {
  enum { ROWS = LM_MMA_ROWS, COLS = 32, TILE = ROWS * WIDE, OTHER = COLS * WIDE };
  __shared__ lm_pack<T, lm_full_pack<T>::V> memory[2 * (TILE + OTHER) / lm_full_pack<T>::V];
  T *key = memory->v, *value = key + TILE, *query = value + TILE, *grad = query + OTHER;
  int warp = (int)threadIdx.x / LM_WARP * 16, t = lm_lane() % 4;
  int64_t most = job.width > job.value_width ? job.width : job.value_width;
  bool resident = most <= WIDE;
  int64_t parts = lm_attention_tiles_of(most, WIDE), blocks = lm_attention_tiles_of(job.keys, ROWS);
  for (int64_t unit = blockIdx.x; unit < job.samples * job.key_heads * parts * blocks; unit += gridDim.x) {
    int64_t block = unit % blocks, part = unit / blocks % parts; /* the most queries see the first keys */
    int64_t kv = unit / blocks / parts % job.key_heads, n = unit / blocks / parts / job.key_heads;
    int64_t j0 = block * ROWS, rows = job.keys - j0, first = part * WIDE;
    const T *keys = lm_attention_row<T>(job.key, n, kv, j0), *values = lm_attention_row<T>(job.value, n, kv, j0);
    lm_mma_numbers<WIDE> of_key, of_value;
    of_key.clear();
    of_value.clear();
    lm_mma_meet(); /* the previous unit is done */
    if (resident) {
      lm_mma_fetch<ROWS, WIDE>(job, key, keys, job.key.row, rows, job.width);
      lm_mma_fetch<ROWS, WIDE>(job, value, values, job.value.row, rows, job.value_width);
    }
    for (int64_t h = kv * job.shared; h < (kv + 1) * job.shared; h++) {
      for (int64_t i0 = job.causal ? j0 : 0; i0 < job.queries; i0 += COLS) {
        lm_mma_numbers<COLS> weight, slope;
        const T *queries = lm_attention_row<T>(job.query, n, h, i0), *grads = lm_attention_row<T>(job.grad, n, h, i0);
        int64_t there = job.queries - i0;
        if (resident) {
          __syncthreads();
          lm_mma_fetch<COLS, WIDE>(job, query, queries, job.query.row, there, job.width);
          lm_mma_fetch<COLS, WIDE>(job, grad, grads, job.grad.row, there, job.value_width);
          lm_mma_meet();
        }
        lm_mma_product<COLS, WIDE>(job, &weight, resident, key, keys, job.key.row, rows, query, queries, job.query.row,
                                   there, job.width);
        lm_mma_product<COLS, WIDE>(job, &slope, resident, value, values, job.value.row, rows, grad, grads, job.grad.row,
                                   there, job.value_width);
        uint32_t kept = lm_mma_kept_of_keys<COLS / 8>(job, n, h, i0, j0 + warp);
        lm_mma_score<true, T>(job, &weight, n, h, i0, j0);
        const float *all = (const float *)job.log_sum + (n * job.heads + h) * job.queries + i0,
                    *dot = (const float *)job.dots + (all - (const float *)job.log_sum);
        LM_UNROLL
        for (int c = 0; c < COLS / 4; c++) {
          int i = c / 2 * 8 + 2 * t + c % 2;
          float all_of = i < there ? all[i] : 0, dot_of = i < there ? dot[i] : 0;
          LM_UNROLL
          for (int e = c % 2; e < 4; e += 2) {
            float *x = &slope.of[c / 2][e], *w = &weight.of[c / 2][e];
            *x = lm_mma_slope(job, w, *x, all_of, dot_of, kept >> (c / 2 * 4 + e) & 1);
          }
        }
        if (!resident) {
          __syncthreads();
          lm_mma_fetch<COLS, WIDE>(job, query, queries + first, job.query.row, there, job.width - first);
          lm_mma_fetch<COLS, WIDE>(job, grad, grads + first, job.grad.row, there, job.value_width - first);
          lm_mma_meet();
        }
        of_value.add_sums(weight, grad);
        of_key.add_sums(slope, query);
      }
    }
    lm_copies_wait(); /* waits for the fetches that the loop did not wait for */
    of_value.template write<T>(job, job.dvalue, n, kv, j0 + warp, job.keys, first, job.value_width, 1, 1);
    of_key.template write<T>(job, job.dkey, n, kv, j0 + warp, job.keys, first, job.width, (float)job.scale,
                             (float)job.scale);
  }
}

/* ---- launching */

/* Calls f with an element of the dtype and lm_width of a block's columns. Wider tiles of float take over 48 KiB. */
template <class F>
static int lm_mma_call(const lm_attention_job &job, F f) {
  bool wide = job.width > 64 || job.value_width > 64;
  if (job.dtype == LM_F32) return f(float{}, lm_width<64>());
  if (job.dtype == LM_F16) return wide ? f(lm_f16{}, lm_width<128>()) : f(lm_f16{}, lm_width<64>());
  return wide ? f(lm_bf16{}, lm_width<128>()) : f(lm_bf16{}, lm_width<64>());
}

static int lm_mma_launch(void (*kernel)(lm_attention_job), const lm_attention_job &job, int64_t heads, int64_t rows,
                         int64_t columns, int wide, void *stream) {
  int64_t parts = lm_attention_tiles_of(columns, wide), blocks = lm_attention_tiles_of(rows, LM_MMA_ROWS);
  unsigned units = lm_blocks(job.samples * heads * blocks * parts, 1, INT32_MAX);
  return lm_launch(kernel, units, LM_MMA_THREADS, 0, stream, job);
}

int lm_k_attention_mma(const lm_attention_job *job, void *stream) {
  return lm_mma_call(*job, [&](auto stored, auto width) {
    enum { WIDE = decltype(width)::value };
    return lm_mma_launch(lm_attention_mma_forward<decltype(stored), WIDE>, *job, job->heads, job->queries,
                         job->value_width > 0 ? job->value_width : 1, WIDE, stream);
  });
}

int lm_k_attention_mma_backward(const lm_attention_job *job, void *stream) {
  return lm_mma_call(*job, [&](auto stored, auto width) {
    enum { WIDE = decltype(width)::value };
    typedef decltype(stored) T;
    int64_t most = job->width > job->value_width ? job->width : job->value_width;
    int error =
        lm_mma_launch(lm_attention_mma_of_queries<T, WIDE>, *job, job->heads, job->queries, job->width, WIDE, stream);
    if (error) return error;
    return lm_mma_launch(lm_attention_mma_of_keys<T, WIDE>, *job, job->key_heads, job->keys, most, WIDE, stream);
  });
}
