/* Attention to keys and values in pages: a block of threads for a token and up to LM_PAGED_HEADS heads that share keys,
 * which reads each key and value once and updates a softmax tile by tile. */
#include "paged_attention.h"

#include "block_words.cuh"

enum { LM_PAGED_THREADS = 128, LM_PAGED_WARPS = LM_PAGED_THREADS / LM_WARP, LM_PAGED_HEADS = 8 };
enum { LM_PAGED_KEYS = LM_WARP, LM_PAGED_COLUMNS = 4 * LM_PAGED_THREADS }; /* keys of a tile; most columns at a time */

LM_DEVICE int64_t lm_paged_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Reads elements i .. i + 3 of a row of n, with zeros behind its end. */
template <class Source>
LM_DEVICE void lm_paged_read(const char *row, int64_t i, int64_t n, float *v) {
  if constexpr (std::is_class_v<Source> && !lm_is_any<Source, lm_f16, lm_bf16>) {
    constexpr lm_block_kind k = Source::of();
    lm_block_read_four(k, (const uint8_t *)row + i / k.elements * k.bytes, (int)(i % k.elements), v);
  } else {
    LM_UNROLL
    for (int l = 0; l < 4; l++) v[l] = i + l < n ? lm_get<float>(((const Source *)row)[i + l]) : 0;
  }
}

/* Returns the row of a position, from 0, in keys and values; -1, with a report, if its page is bad. */
LM_DEVICE int64_t lm_paged_row(const lm_paged_attention_job &j, int64_t sequence, int64_t position, lm_bad bad) {
  const int64_t entry = position / j.page_size, page = j.pages[(sequence - 1) * j.entries + entry];
  if (page >= 1 && page <= j.count) return (page - 1) * j.page_size + position % j.page_size;
  lm_report_bad(bad, j.bad_kind, entry + 1, page, j.count);
  return -1;
}

/* Returns true if the sequence and position of a token are there; otherwise one thread reports them. */
LM_DEVICE bool lm_paged_fits(const lm_paged_attention_job &j, int64_t token, int64_t sequence, int64_t position,
                             lm_bad bad) {
  const bool is_sequence = sequence >= 1 && sequence <= j.sequences;
  const int64_t limit = is_sequence ? j.entries * j.page_size : j.sequences;
  if (is_sequence && position >= 1 && position <= limit) return true;
  if (threadIdx.x == 0) lm_report_bad(bad, j.bad_kind, token + 1, is_sequence ? position : sequence, limit);
  return false;
}

template <class Source>
LM_KERNEL void __launch_bounds__(LM_PAGED_THREADS, 4) lm_paged_attention_kernel(lm_paged_attention_job j, lm_bad bad) {
  __shared__ float scores[LM_PAGED_HEADS][LM_PAGED_KEYS], largest[LM_PAGED_HEADS], sums[LM_PAGED_HEADS];
  __shared__ float rescale[LM_PAGED_HEADS];
  __shared__ int64_t row_of[LM_PAGED_KEYS];
  __shared__ float parts[LM_PAGED_THREADS][LM_PAGED_HEADS][4];
  const int t = (int)threadIdx.x, lane = lm_lane(), warp = t / LM_WARP;
  const int64_t token = blockIdx.x, shared = j.heads / j.key_heads, key_head = blockIdx.y;
  const int64_t head = key_head * shared + (int64_t)blockIdx.z * LM_PAGED_HEADS;
  const int heads = (int)lm_paged_least((key_head + 1) * shared - head, LM_PAGED_HEADS);
  const int64_t sequence = j.sequence[token], position = j.position[token];
  const float *query = j.query + (token * j.heads + head) * j.width;
  float *y = j.y + (token * j.heads + head) * j.value_width;
  if (!lm_paged_fits(j, token, sequence, position, bad)) return;
  for (int64_t column = 0; column < j.value_width; column += LM_PAGED_COLUMNS) {
    const int64_t columns = lm_paged_least(j.value_width - column, LM_PAGED_COLUMNS);
    const int chunks = (int)((columns + 3) / 4), slices = LM_PAGED_THREADS / chunks;
    const int chunk = t % chunks, slice = t / chunks;
    float sum[LM_PAGED_HEADS][4] = {};
    __syncthreads(); /* the last columns have been read */
    if (t < LM_PAGED_HEADS) largest[t] = -INFINITY, sums[t] = 0;
    for (int64_t k = j.window > 0 && position > j.window ? position - j.window : 0; k < position; k += LM_PAGED_KEYS) {
      const int keys = (int)lm_paged_least(position - k, LM_PAGED_KEYS);
      if (t < keys) row_of[t] = lm_paged_row(j, sequence, k + t, bad);
      if (__syncthreads_or(t < keys && row_of[t] < 0)) return;
      for (int c = warp; c < keys; c += LM_PAGED_WARPS) {
        const char *key = j.keys + (row_of[c] * j.key_heads + key_head) * j.key_bytes;
        float dot[LM_PAGED_HEADS] = {};
        for (int64_t i = lane * 4; i < j.width; i += 4 * LM_WARP) {
          float v[4];
          lm_paged_read<Source>(key, i, j.width, v);
          LM_UNROLL
          for (int h = 0; h < LM_PAGED_HEADS; h++) {
            LM_UNROLL
            for (int l = 0; l < 4; l++) {
              if (h < heads && i + l < j.width) dot[h] += query[h * j.width + i + l] * v[l];
            }
          }
        }
        LM_UNROLL
        for (int h = 0; h < LM_PAGED_HEADS; h++) {
          const float score = lm_warp_reduce(dot[h], lm_add_of()) * j.scale;
          if (lane == 0) scores[h][c] = j.cap > 0 ? tanhf(score / j.cap) * j.cap : score;
        }
      }
      __syncthreads();
      for (int h = warp; h < heads; h += LM_PAGED_WARPS) {
        const float score = lane < keys ? scores[h][lane] : -INFINITY, before = largest[h];
        const float most = lm_warp_reduce(lm_max_of()(score, before), lm_max_of());
        const float weight = lane < keys ? expf(score - most) : 0, all = lm_warp_reduce(weight, lm_add_of());
        scores[h][lane] = weight;
        if (lane == 0) {
          rescale[h] = expf(before - most);
          sums[h] = sums[h] * rescale[h] + all;
          largest[h] = most;
        }
      }
      __syncthreads();
      LM_UNROLL
      for (int h = 0; h < LM_PAGED_HEADS; h++) {
        LM_UNROLL
        for (int l = 0; l < 4; l++) {
          if (h < heads) sum[h][l] *= rescale[h];
        }
      }
      for (int c = slice; slice < slices && c < keys; c += slices) {
        const char *value = j.values + (row_of[c] * j.key_heads + key_head) * j.value_bytes;
        float v[4];
        lm_paged_read<Source>(value, column + chunk * 4, j.value_width, v);
        LM_UNROLL
        for (int h = 0; h < LM_PAGED_HEADS; h++) {
          LM_UNROLL
          for (int l = 0; l < 4; l++) {
            if (h < heads) sum[h][l] += scores[h][c] * v[l];
          }
        }
      }
      __syncthreads();
    }
    LM_UNROLL
    for (int h = 0; h < LM_PAGED_HEADS; h++) {
      LM_UNROLL
      for (int l = 0; l < 4; l++) parts[t][h][l] = sum[h][l];
    }
    __syncthreads();
    for (int64_t i = t; i < heads * columns; i += LM_PAGED_THREADS) {
      const int h = (int)(i / columns), c = (int)(i % columns);
      float total = 0;
      for (int s = 0; s < slices; s++) total += parts[s * chunks + c / 4][h][c % 4];
      y[h * j.value_width + column + c] = total / sums[h];
    }
  }
}

int lm_k_paged_attention(const lm_paged_attention_job *job, lm_bad bad, void *stream) {
  const int64_t shared = job->heads / job->key_heads;
  const dim3 grid((unsigned)job->tokens, (unsigned)job->key_heads, lm_blocks(shared, LM_PAGED_HEADS, 65535));
  const auto launch = [=](auto source) {
    return lm_launch(lm_paged_attention_kernel<decltype(source)>, grid, LM_PAGED_THREADS, 0, stream, *job, bad);
  };
  switch (job->dtype) {
    case LM_F32: return launch(float());
    case LM_F16: return launch(lm_f16());
    case LM_BF16: return launch(lm_bf16());
    default: return lm_for_block_kind(job->kind, launch);
  }
}
