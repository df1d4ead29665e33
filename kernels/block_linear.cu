/* Products with quantized blocks, which are expanded in registers: four elements are a word. */
#include "block_linear.h"

#include "block_words.cuh"

enum { LM_BLOCK_THREADS = 128, LM_BLOCK_RUN = 32, LM_BLOCK_WORDS = LM_BLOCK_RUN / 4 };
/* Returns sum plus the products of four signed bytes. */
LM_DEVICE int lm_dot_bytes(uint32_t a, uint32_t b, int sum) {
#ifdef __CUDA_ARCH__
  return __dp4a((int)a, (int)b, sum);
#else
  for (int l = 0; l < 32; l += 8) sum += (int8_t)(a >> l) * (int8_t)(b >> l);
  return sum;
#endif
}

/* ---- expanding */

template <class Kind>
LM_KERNEL void __launch_bounds__(LM_BLOCK_THREADS)
    lm_expand_blocks_kernel(const uint8_t *blocks, float *to, int64_t words) {
  constexpr lm_block_kind k = Kind::of();
  for (int64_t word = lm_thread(); word < words; word += lm_threads()) {
    const int i = (int)(word % (k.elements / 4)) * 4;
    const uint8_t *block = blocks + word / (k.elements / 4) * k.bytes;
    float v[4];
    lm_block_read_four(k, block, i, v);
    ((float4 *)to)[word] = make_float4(v[0], v[1], v[2], v[3]);
  }
}

/* ---- products */

/* A warp rounds 32 elements to 1 / 254 of their largest magnitude. */
LM_KERNEL void __launch_bounds__(LM_BLOCK_THREADS)
    lm_round_to_bytes_kernel(const float *x, int8_t *steps, float *scale, int64_t count) {
  const int64_t i = lm_thread();
  if (i - lm_lane() >= count) return;
  const float v = x[i], largest = lm_warp_reduce(fabsf(v), lm_max_of()), by = largest > 0 ? 127 / largest : 0;
  const bool is_finite = largest < INFINITY, fits = by < INFINITY; /* NaN is not less */
  steps[i] = is_finite && fits ? (int8_t)rintf(v * by) : 0;
  if (lm_lane() == 0) scale[i / LM_BLOCK_RUN] = !is_finite ? NAN : fits ? largest / 127 : 0;
}

template <class Kind, int ROWS>
LM_KERNEL void __launch_bounds__(LM_BLOCK_THREADS) lm_block_linear_kernel(lm_block_linear_job j) {
  constexpr lm_block_kind k = Kind::of();
  constexpr int groups = LM_BLOCK_RUN / k.group, runs = k.elements / LM_BLOCK_RUN;
  const bool needs_total = lm_block_zero_left(k) || lm_block_has_minima(&k);
  const int64_t out = lm_thread() / LM_WARP, first = (int64_t)blockIdx.y * ROWS;
  if (out >= j.outs) return;
  const uint8_t *weight = j.weight + out * (j.n / k.elements) * k.bytes;
  float sum[ROWS] = {0};
  for (int64_t run = lm_lane(); run < j.n / LM_BLOCK_RUN; run += LM_WARP) {
    const uint8_t *block = weight + run / runs * k.bytes;
    const int at = (int)(run % runs);
    uint32_t q[LM_BLOCK_WORDS];
    float scale[groups], minimum[groups] = {0};
    LM_UNROLL
    for (int g = 0; g < groups; g++) scale[g] = lm_block_scale(&k, block, at * groups + g, minimum + g);
    LM_UNROLL
    for (int w = 0; w < LM_BLOCK_WORDS; w++) q[w] = lm_block_word_integers(k, block, at * LM_BLOCK_RUN + w * 4);
    LM_UNROLL
    for (int r = 0; r < ROWS; r++) {
      const int64_t row = first + r < j.rows ? first + r : j.rows - 1;
      const uint32_t *x = (const uint32_t *)(j.steps + row * j.n + run * LM_BLOCK_RUN);
      float of_run = 0;
      LM_UNROLL
      for (int g = 0; g < groups; g++) {
        int dot = 0, total = 0;
        LM_UNROLL
        for (int w = g * LM_BLOCK_WORDS / groups; w < (g + 1) * LM_BLOCK_WORDS / groups; w++) {
          dot = lm_dot_bytes(q[w], x[w], dot);
          if (needs_total) total = lm_dot_bytes(LM_EACH_BYTE, x[w], total);
        }
        of_run += scale[g] * (float)(dot - lm_block_zero_left(k) * total) - minimum[g] * (float)total;
      }
      sum[r] += of_run * j.scale[row * (j.n / LM_BLOCK_RUN) + run];
    }
  }
  LM_UNROLL
  for (int r = 0; r < ROWS; r++) {
    const float y = lm_warp_reduce(sum[r], lm_add_of());
    if (lm_lane() == 0 && first + r < j.rows) j.y[(first + r) * j.outs + out] = y + (j.bias ? j.bias[out] : 0);
  }
}

/* ---- launching */

int lm_k_expand_blocks(int kind, const void *blocks, float *to, int64_t words, void *stream) {
  return lm_for_block_kind(kind, [=](auto k) {
    return lm_launch_each(lm_expand_blocks_kernel<decltype(k)>, words, LM_BLOCK_THREADS, stream,
                          (const uint8_t *)blocks, to, words);
  });
}

int lm_k_block_linear(const lm_block_linear_job *job, void *stream) {
  const int error = lm_launch_each(lm_round_to_bytes_kernel, job->rows * job->n, LM_BLOCK_THREADS, stream, job->x,
                                   job->steps, job->scale, job->rows * job->n);
  if (error) return error;
  return lm_for_block_kind(job->kind, [=](auto k) {
    typedef decltype(k) Kind;
    const unsigned blocks = lm_blocks(job->outs, LM_BLOCK_THREADS / LM_WARP, INT32_MAX);
    if (job->rows == 1) return lm_launch(lm_block_linear_kernel<Kind, 1>, blocks, LM_BLOCK_THREADS, 0, stream, *job);
    const dim3 grid(blocks, lm_blocks(job->rows, LM_BLOCK_ROWS, 65535));
    return lm_launch(lm_block_linear_kernel<Kind, LM_BLOCK_ROWS>, grid, LM_BLOCK_THREADS, 0, stream, *job);
  });
}
