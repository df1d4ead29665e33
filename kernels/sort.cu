/* Computes topk, the k-th of each line, indices in sorted rows, and randperm (sort.h). */
#include "merged_dims.cuh"
#include "philox.h"
#include "types.cuh"

#include "sort.h"

enum { THREADS = 256, LINE_THREADS = 512 /* the most for a line */, DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

/* ---- keys: unsigned numbers in the order of the values, NaN the largest, -0 as 0 */

template <class T>
using lm_topk_key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/* Returns v's key. Integers, and floats above 0, have their sign bit flipped; floats below 0 have all bits flipped. */
template <class T>
LM_DEVICE lm_topk_key<T> lm_topk_key_of(T v) {
  typedef lm_topk_key<T> Key;
  const Key sign = (Key)1 << (sizeof(Key) * 8 - 1);
  if constexpr (std::is_same_v<lm_compute<T>, int64_t>) {
    return (Key)lm_get<int64_t>(v) ^ sign;
  } else {
    lm_compute<T> number = lm_get<lm_compute<T>>(v), positive = number + 0; /* -0 becomes 0 */
    Key bits;
    memcpy(&bits, &positive, sizeof bits);
    return number != number ? (Key) ~(Key)0 : bits & sign ? (Key)~bits : bits | sign;
  }
}

int lm_topk_key_bytes(int dtype) { return lm_dtype_width(dtype) == 8 ? 8 : 4; }

/* An lm_topk as kernels take it. */
template <class T>
struct lm_topk_job : lm_topk {
  lm_dims_loops<2> loops; /* over the lines */
  LM_DEVICE const T *line(int64_t at) const { return (const T *)x + at; }
};

template <class T>
static lm_topk_job<T> lm_topk_job_of(const lm_topk *t) {
  return {*t, lm_dims_loops_of<2>(&t->lines)};
}

/* Returns an element's rank key; smaller is better. */
template <class T>
LM_DEVICE lm_topk_key<T> lm_topk_rank(const lm_topk_job<T> &job, const T *line, int64_t i) {
  lm_topk_key<T> key = lm_topk_key_of(line[i * job.x_stride]);
  return job.largest ? ~key : key;
}

template <class T>
LM_DEVICE void lm_topk_put(const lm_topk_job<T> &job, const T *line, int64_t to, int64_t j, int64_t position) {
  ((T *)job.values)[to + j * job.out_stride] = line[position * job.x_stride];
  job.indices[to + j * job.out_stride] = position + 1;
}

/* ---- one block for each line */

/* Returns the bin of a histogram that contains the `*need`th counted element; *need becomes its number in that bin,
 * *held the bin's count. All threads call and get the same. */
LM_DEVICE int lm_topk_bin(const int *bins, int64_t *need, int *held) {
  __shared__ int found, before, inside;
  if (threadIdx.x < LM_WARP) {
    int lane = (int)threadIdx.x, sum = 0;
    enum { SHARE = DIGITS / LM_WARP };
    for (int b = 0; b < SHARE; b++) sum += bins[lane * SHARE + b];
    int upto = sum;
    LM_UNROLL
    for (int by = 1; by < LM_WARP; by *= 2) {
      int other = lm_shuffle_up(upto, by);
      if (lane >= by) upto += other;
    }
    int below = upto - sum;
    if (below < *need && *need <= upto) {
      int b = lane * SHARE;
      while (below + bins[b] < *need) below += bins[b++];
      found = b;
      before = below;
      inside = bins[b];
    }
  }
  __syncthreads();
  *need -= before;
  *held = inside;
  int bin = found;
  __syncthreads();
  return bin;
}

/* Calls f(i, rank) for this thread's elements of a line, with several loads in flight. */
template <class T, class F>
LM_DEVICE void lm_topk_each(const lm_topk_job<T> &job, const T *line, F f) {
  enum { LOADS = 4 };
  for (int64_t base = threadIdx.x; base < job.n; base += LOADS * blockDim.x) {
    lm_topk_key<T> rank[LOADS];
    LM_UNROLL
    for (int k = 0; k < LOADS; k++) {
      int64_t i = base + k * blockDim.x;
      rank[k] = lm_topk_rank(job, line, i < job.n ? i : base);
    }
    LM_UNROLL
    for (int k = 0; k < LOADS; k++) {
      int64_t i = base + k * blockDim.x;
      if (i < job.n) f(i, rank[k]);
    }
  }
}

/* Selects by radix, digit by digit from the top: *key is the need-th best element's, and the best have smaller keys, or
 * this key and an index up to *last. */
template <class T, class Key>
LM_DEVICE void lm_topk_select(const lm_topk_job<T> &job, const T *line, int64_t need, int *bins, Key *key,
                              uint32_t *last) {
  Key prefix = 0, mask = 0;
  int held = 0;
  for (int shift = (int)sizeof(Key) * 8 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
    for (int b = (int)threadIdx.x; b < DIGITS; b += (int)blockDim.x) bins[b] = 0;
    __syncthreads();
    lm_topk_each(job, line, [=](int64_t, Key rank) {
      if ((rank & mask) == prefix) atomicAdd(&bins[(int)(rank >> shift) & (DIGITS - 1)], 1);
    });
    __syncthreads();
    prefix |= (Key)lm_topk_bin(bins, &need, &held) << shift;
    mask |= (Key)(DIGITS - 1) << shift;
  }
  *key = prefix;
  *last = UINT32_MAX;
  if (held == need) return; /* every element with that key is among the best */
  uint32_t position = 0, position_mask = 0;
  for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
    if (job.n >> shift == 0) { /* this digit is 0 in all indices */
      position_mask |= (uint32_t)(DIGITS - 1) << shift;
      continue;
    }
    for (int b = (int)threadIdx.x; b < DIGITS; b += (int)blockDim.x) bins[b] = 0;
    __syncthreads();
    lm_topk_each(job, line, [=](int64_t i, Key rank) {
      if (((uint32_t)i & position_mask) != position || rank != prefix) return;
      atomicAdd(&bins[(int)((uint32_t)i >> shift) & (DIGITS - 1)], 1);
    });
    __syncthreads();
    position |= (uint32_t)lm_topk_bin(bins, &need, &held) << shift;
    position_mask |= (uint32_t)(DIGITS - 1) << shift;
  }
  *last = position;
}

/* Sorts `size` entries, a power of two, by key, then index (Batcher's bitonic network). */
template <class Key>
LM_DEVICE void lm_topk_sort(Key *keys, uint32_t *indices, int size) {
  for (int span = 2; span <= size; span *= 2) {
    for (int by = span / 2; by > 0; by /= 2) {
      for (int i = (int)threadIdx.x; i < size / 2; i += (int)blockDim.x) {
        int low = 2 * i - (i & (by - 1)), high = low + by;
        bool falling = (low & span) != 0;
        bool greater = keys[low] > keys[high] || (keys[low] == keys[high] && indices[low] > indices[high]);
        if (greater == falling) continue;
        Key key = keys[low];
        uint32_t position = indices[low];
        keys[low] = keys[high], indices[low] = indices[high];
        keys[high] = key, indices[high] = position;
      }
      __syncthreads();
    }
  }
}

/* Sorts whole lines of up to LM_TOPK_BLOCK elements, and the best k of longer ones. size: a power of two, at least
 * their number. */
template <class T>
LM_KERNEL void __launch_bounds__(LINE_THREADS, 2) lm_topk_block(lm_topk_job<T> job, int size) {
  typedef lm_topk_key<T> Key;
  LM_DYNAMIC_SHARED(Key, keys); /* [size], then indices [size] */
  __shared__ int bins[DIGITS];
  __shared__ int kept;
  uint32_t *indices = (uint32_t *)(keys + size);
  int64_t at[2] = {0, 0};
  lm_dims_offset<true>(job.loops, blockIdx.x, at);
  const T *line = job.line(at[0]);
  for (int i = (int)threadIdx.x; i < size; i += (int)blockDim.x) { /* pads with keys worse than any element's */
    keys[i] = (Key) ~(Key)0;
    indices[i] = UINT32_MAX;
  }
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();
  if (job.n <= size) {
    for (int i = (int)threadIdx.x; i < (int)job.n; i += (int)blockDim.x) {
      keys[i] = lm_topk_rank(job, line, i);
      indices[i] = (uint32_t)i;
    }
  } else {
    Key key;
    uint32_t last;
    lm_topk_select(job, line, job.k, bins, &key, &last);
    int *slots = &kept;
    lm_topk_each(job, line, [=](int64_t i, Key rank) {
      if (rank > key || (rank == key && (uint32_t)i > last)) return;
      int slot = atomicAdd(slots, 1); /* slots are taken in any order, as they are sorted next */
      keys[slot] = rank;
      indices[slot] = (uint32_t)i;
    });
  }
  __syncthreads();
  lm_topk_sort(keys, indices, size);
  for (int64_t j = threadIdx.x; j < job.k; j += blockDim.x) lm_topk_put(job, line, at[1], j, indices[j]);
}

template <class T>
static int lm_topk_lines_of(void *stream, const lm_topk *t) {
  int64_t held = t->n <= LM_TOPK_BLOCK ? t->n : t->k;
  int size = 2, threads = LM_WARP;
  while (size < held) size *= 2;
  while (threads < LINE_THREADS && threads < (t->n <= LM_TOPK_BLOCK ? size / 2 : t->n)) threads *= 2;
  size_t shared = (size_t)size * (sizeof(lm_topk_key<T>) + sizeof(uint32_t));
  return lm_launch(lm_topk_block<T>, (unsigned)lm_dims_numel(&t->lines), threads, shared, stream, lm_topk_job_of<T>(t),
                   size);
}

int lm_topk_lines(void *stream, const lm_topk *t) {
  return lm_for_dtype(t->dtype, [=](auto e) { return lm_topk_lines_of<decltype(e)>(stream, t); });
}

/* ---- the k-th of each line, a block for each */

/* Returns k itself, or which element, from 1, is the median of n with `nans` NaNs, all after the others. */
LM_DEVICE int64_t lm_kth_rank(int64_t k, int64_t n, int64_t nans) {
  if (k >= 1) return k;
  if (k == LM_KTH_MEDIAN) return nans > 0 ? n - nans + 1 : (n + 1) / 2;
  return nans == n ? 1 : (n - nans + 1) / 2;
}

template <class T>
LM_KERNEL void __launch_bounds__(LINE_THREADS, 2) lm_kth_block(lm_topk_job<T> job) {
  typedef lm_topk_key<T> Key;
  __shared__ int bins[DIGITS];
  __shared__ int64_t sums[LM_WARP];
  int64_t at[2] = {0, 0}, k = job.k, nans = 0, found = -1; /* copies: changing job would move it to local memory */
  lm_dims_offset<true>(job.loops, blockIdx.x, at);
  const T *line = job.line(at[0]);
  if (k < 1) {
    for (int64_t i = threadIdx.x; !lm_is_any<lm_compute<T>, int64_t> && i < job.n; i += blockDim.x) {
      nans += lm_topk_rank(job, line, i) == (Key) ~(Key)0; /* NaN */
    }
    k = lm_kth_rank(k, job.n, lm_block_reduce(nans, lm_add_of(), sums));
  }
  Key key;
  uint32_t last;
  lm_topk_select(job, line, k, bins, &key, &last);
  for (int64_t i = threadIdx.x; i < job.n && i <= (int64_t)last; i += blockDim.x) {
    if (lm_topk_rank(job, line, i) == key) found = i;
  }
  found = lm_block_reduce(found, lm_max_of(), sums);
  if (threadIdx.x == 0) lm_topk_put(job, line, at[1], 0, found);
}

int lm_kth_lines(void *stream, const lm_topk *t) {
  return lm_for_dtype(t->dtype, [=](auto e) {
    typedef decltype(e) T;
    int threads = LM_WARP;
    while (threads < LINE_THREADS && threads < t->n) threads *= 2;
    return lm_launch(lm_kth_block<T>, (unsigned)lm_dims_numel(&t->lines), threads, 0, stream, lm_topk_job_of<T>(t));
  });
}

/* ---- searchsorted */

template <class T>
LM_KERNEL void lm_search_sorted_kernel(const T *rows, int64_t n, const T *values, int64_t count, int64_t each,
                                       bool right, int64_t *out) {
  int64_t u = lm_thread();
  if (u >= count) return;
  const T *row = each < 0 ? rows : rows + u / each * n, v = values[u];
  int64_t low = 0, high = n; /* the result, less 1, is from low to high */
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (row[middle] < v || (right && row[middle] == v) || v != v) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  out[u] = low + 1;
}

int lm_search_sorted(void *stream, int dtype, const void *rows, int64_t n, const void *values, int64_t count,
                     int64_t each, bool right, int64_t *out) {
  auto search = [=](auto t) {
    typedef decltype(t) T;
    return lm_launch_each(lm_search_sorted_kernel<T>, count, THREADS, stream, (const T *)rows, n, (const T *)values,
                          count, each, right, out);
  };
  return dtype == LM_F32 ? search(float{}) : dtype == LM_F64 ? search(double{}) : search(int64_t{});
}

/* ---- topk and kth by sorting */

template <class T>
LM_KERNEL void lm_topk_fill(lm_topk_job<T> job, int64_t first, int64_t elements, lm_topk_key<T> *keys,
                            uint32_t *order) {
  int64_t u = lm_thread(), at[2] = {0, 0};
  if (u >= elements) return;
  int64_t line = u / job.n;
  lm_dims_offset<true>(job.loops, first + line, at);
  keys[u] = lm_topk_rank(job, job.line(at[0]), u - line * job.n);
  order[u] = (uint32_t)u;
}

int lm_topk_keys(void *stream, const lm_topk *t, int64_t first, int64_t count, void *keys, uint32_t *order) {
  int64_t elements = count * t->n;
  return lm_for_dtype(t->dtype, [=](auto e) {
    typedef decltype(e) T;
    return lm_launch_each(lm_topk_fill<T>, elements, THREADS, stream, lm_topk_job_of<T>(t), first, elements,
                          (lm_topk_key<T> *)keys, order);
  });
}

LM_KERNEL void lm_topk_lines_of_elements(int64_t n, int64_t elements, const uint32_t *order, uint32_t *owners) {
  int64_t u = lm_thread();
  if (u < elements) owners[u] = (uint32_t)(order[u] / n);
}

int lm_topk_owners(void *stream, int64_t n, int64_t elements, const uint32_t *order, uint32_t *owners) {
  return lm_launch_each(lm_topk_lines_of_elements, elements, THREADS, stream, n, elements, order, owners);
}

template <class T>
LM_KERNEL void lm_topk_collect(lm_topk_job<T> job, int64_t first, int64_t results, const uint32_t *order) {
  int64_t u = lm_thread(), at[2] = {0, 0};
  if (u >= results) return;
  int64_t line = u / job.k, j = u - line * job.k;
  lm_dims_offset<true>(job.loops, first + line, at);
  lm_topk_put(job, job.line(at[0]), at[1], j, (int64_t)order[line * job.n + j] - line * job.n);
}

int lm_topk_take(void *stream, const lm_topk *t, int64_t first, int64_t count, const uint32_t *order) {
  int64_t results = count * t->k;
  return lm_for_dtype(t->dtype, [=](auto e) {
    typedef decltype(e) T;
    return lm_launch_each(lm_topk_collect<T>, results, THREADS, stream, lm_topk_job_of<T>(t), first, results, order);
  });
}

/* Writes the k-th of one line from its sorted keys and their indices; one thread. */
template <class T>
LM_KERNEL void lm_kth_sorted(lm_topk_job<T> job, int64_t line, const lm_topk_key<T> *keys, const uint32_t *order) {
  int64_t at[2] = {0, 0}, low = lm_is_any<lm_compute<T>, int64_t> ? job.n : 0, high = job.n;
  if (lm_thread() != 0) return;
  lm_dims_offset<true>(job.loops, line, at);
  while (low < high) { /* searches for the first NaN */
    int64_t middle = low + (high - low) / 2;
    if (keys[middle] == (lm_topk_key<T>)~(lm_topk_key<T>)0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  lm_topk_put(job, job.line(at[0]), at[1], 0, (int64_t)order[lm_kth_rank(job.k, job.n, job.n - low) - 1]);
}

int lm_kth_take(void *stream, const lm_topk *t, int64_t line, const void *keys, const uint32_t *order) {
  return lm_for_dtype(t->dtype, [=](auto e) {
    typedef decltype(e) T;
    return lm_launch(lm_kth_sorted<T>, 1, LM_WARP, 0, stream, lm_topk_job_of<T>(t), line, (const lm_topk_key<T> *)keys,
                     order);
  });
}

/* ---- randperm
 *
 * Step i exchanges indices i and target[i] >= i, so step i settles index i, and before step i <= p, index p is only
 * written by steps k < i with target[k] == p, each of which puts index k's value there. Hence out[i] is the value that
 * the last such k for p = target[i] put there, or p; and index k's value before step k is found in the same way, from
 * step to earlier step: chains of O(log n) steps (Shun et al., "Sequential Random Permutation, List Contraction and
 * Tree Contraction are Highly Parallel", SODA 2015). */

static const uint32_t LM_RANDPERM_NONE = UINT32_MAX;

LM_KERNEL void lm_randperm_draw(int64_t n, uint64_t seed, uint64_t offset, const uint64_t *extra, uint32_t *target,
                                uint32_t *step) {
  int64_t i = lm_thread();
  if (i >= n) return;
  uint64_t block = offset + (extra ? *extra : 0) + (uint64_t)i / 2;
  uint64_t bits = lm_philox_u64(lm_philox(seed, block), (int)(i % 2));
  target[i] = (uint32_t)(i + (int64_t)lm_uniform_below(bits, (uint64_t)(n - i)));
  step[i] = (uint32_t)i;
}

int lm_randperm_targets(void *stream, int64_t n, uint64_t seed, uint64_t offset, const uint64_t *extra,
                        uint32_t *target, uint32_t *step) {
  return lm_launch_each(lm_randperm_draw, n, THREADS, stream, n, seed, offset, extra, target, step);
}

/* Sets earlier[i]: the last step before i with i's target; and into[p]: the last step before p whose target is p. */
LM_KERNEL void lm_randperm_link(int64_t n, const uint32_t *target, const uint32_t *step, uint32_t *earlier,
                                uint32_t *into) {
  int64_t s = lm_thread();
  if (s >= n) return;
  uint32_t i = step[s], p = target[s];
  uint32_t before = s > 0 && target[s - 1] == p ? step[s - 1] : LM_RANDPERM_NONE;
  earlier[i] = before;
  if (s + 1 == n || target[s + 1] != p) into[p] = i == p ? before : i;
}

LM_KERNEL void lm_randperm_follow(int64_t n, const uint32_t *target, const uint32_t *earlier, const uint32_t *into,
                                  int64_t *out) {
  int64_t i = lm_thread();
  if (i >= n) return;
  uint32_t at = earlier[i];
  if (at == LM_RANDPERM_NONE) {
    at = target[i];
  } else {
    while (into[at] != LM_RANDPERM_NONE) at = into[at];
  }
  out[i] = (int64_t)at + 1;
}

int lm_randperm_chase(void *stream, int64_t n, const uint32_t *target, const uint32_t *sorted_target,
                      const uint32_t *sorted_step, uint32_t *earlier, uint32_t *into, int64_t *out) {
  int error = (int)cudaMemsetAsync(into, 0xff, (size_t)n * sizeof *into, (cudaStream_t)stream); /* NONE */
  if (error != 0) return error;
  error = lm_launch_each(lm_randperm_link, n, THREADS, stream, n, sorted_target, sorted_step, earlier, into);
  if (error != 0) return error;
  return lm_launch_each(lm_randperm_follow, n, THREADS, stream, n, target, (const uint32_t *)earlier,
                        (const uint32_t *)into, out);
}
