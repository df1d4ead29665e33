/* Defines what every .cu file here needs: launching, indexing, and reductions within a warp and a block.
 *
 * Kernels are plain functions marked LM_KERNEL with external linkage, in no namespace. They are launched by lm_launch,
 * never by <<<>>>, so that each file also compiles for the host (LM_HOST_KERNELS): spec/support/cuda runs the same
 * bodies on an emulated grid. Includes nothing from src/. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef LM_HOST_KERNELS
#include LM_HOST_KERNELS /* the header that supplies CUDA's names */
#elif !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>
#endif

#define LM_KERNEL __global__
#ifdef LM_HOST_KERNELS
#define LM_DEVICE inline __attribute__((unused))
#define LM_HOST_DEVICE inline __attribute__((unused))
#define LM_UNROLL
#define LM_UNROLL_BY(n)
/* Declares the block's dynamic shared memory, 16-byte aligned, as `type *name`. */
#define LM_DYNAMIC_SHARED(type, name) type *name = (type *)lm_fake_dynamic_shared()
#else
#define LM_DEVICE __device__ __forceinline__
#define LM_HOST_DEVICE __host__ __device__ __forceinline__
#define LM_UNROLL _Pragma("unroll")
#define LM_PRAGMA(text) _Pragma(#text)
#define LM_UNROLL_BY(n) LM_PRAGMA(unroll n)
/* Declares one untyped array, since a second declaration with another type would clash with it. */
#define LM_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(16) unsigned char lm_dynamic_shared_[]; \
  type *name = (type *)lm_dynamic_shared_
#endif

enum { LM_WARP = 32, LM_MAX_BLOCK = 1024 };
static const unsigned LM_ALL_LANES = 0xffffffffu;

/* ---- launching ---- */

#ifndef __CUDACC_RTC__
/* Precedes the arguments of every launch, as args[-1]. CUDA ignores it; a runtime that has no device but the kernel's
 * body, compiled for the host, copies the parameters by `size` and runs the body with them by `call`. */
enum { LM_LAUNCH_MAGIC = 0x4c4d6b31 };
typedef struct lm_launch_info {
  int magic, count;
  const size_t *size; /* [count], bytes */
  void (*call)(const void *body, void *const *args);
} lm_launch_info;

template <typename T>
struct lm_same_type {
  typedef T type; /* hides T from deduction, so that arguments convert to the kernel's parameter types */
};

template <int... I>
struct lm_indices {};
template <int N, int... I>
struct lm_count_to : lm_count_to<N - 1, N - 1, I...> {};
template <int... I>
struct lm_count_to<0, I...> {
  typedef lm_indices<I...> type;
};

template <typename... P, int... I>
static inline void lm_call_indexed(void (*body)(P...), void *const *args, lm_indices<I...>) {
  (void)args; /* avoids a warning where there are no parameters */
  body(*(typename lm_same_type<P>::type *)args[I]...);
}

template <typename... P>
static void lm_call_body(const void *body, void *const *args) {
  lm_call_indexed((void (*)(P...))body, args, typename lm_count_to<sizeof...(P)>::type());
}

/* Launches a kernel. Grid, block: dim3 or numbers; `shared`: dynamic shared memory, bytes. Returns a cudaError_t. */
template <typename... P>
static inline int lm_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, void *stream,
                            typename lm_same_type<P>::type... args) {
  static_assert(((alignof(P) <= 16) && ...), "parameters are kept at 16-byte boundaries");
  static const size_t size[] = {sizeof(P)..., 0};
  static const lm_launch_info info = {LM_LAUNCH_MAGIC, (int)sizeof...(P), size, lm_call_body<P...>};
  void *slots[] = {(void *)&info, (void *)&args...};
  return (int)cudaLaunchKernel((const void *)kernel, grid, block, slots + 1, shared, (cudaStream_t)stream);
}

/* Returns the blocks for n elements, `each` in a block: at least 1 (an empty launch is an error), at most `limit`. */
static inline unsigned lm_blocks(int64_t n, int64_t each, int64_t limit) {
  int64_t blocks = n / each + (n % each != 0);
  return (unsigned)(blocks < 1 ? 1 : blocks < limit ? blocks : limit);
}

/* Launches a kernel with a thread for each of n elements. */
template <typename... P>
static inline int lm_launch_each(void (*kernel)(P...), int64_t n, int threads, void *stream,
                                 typename lm_same_type<P>::type... args) {
  return lm_launch(kernel, lm_blocks(n, threads, INT32_MAX), threads, 0, stream, args...);
}
#endif

/* ---- indices ---- */

/* Returns this thread's index in a one-dimensional grid; lm_threads: the number of its threads, for `for (int64_t i =
 * lm_thread(); i < n; i += lm_threads())`. */
LM_DEVICE int64_t lm_thread() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
LM_DEVICE int64_t lm_threads() { return (int64_t)gridDim.x * blockDim.x; }
LM_DEVICE int lm_lane() { return (int)(threadIdx.x % LM_WARP); }

/* A divider of n < 2^31 by a divisor known only at run time, without a division: with s the least number for which 2^s
 * >= d and m = floor(2^32 (2^s - d) / d) + 1, n / d = (hi(m n) + n) >> s (Granlund and Montgomery, "Division by
 * Invariant Integers using Multiplication", 1994). The sum stays below 2^32 because n < 2^31. */
typedef struct lm_divider {
  uint32_t divisor, magic, shift;
} lm_divider;

/* Returns a divider by 1 <= divisor < 2^31. */
static inline lm_divider lm_divider_make(uint32_t divisor) {
  lm_divider d = {divisor, 0, 0};
  while (d.shift < 31 && (1u << d.shift) < divisor) d.shift++;
  d.magic = (uint32_t)(((uint64_t)((1u << d.shift) - divisor) << 32) / divisor + 1);
  return d;
}

LM_HOST_DEVICE uint32_t lm_divide(uint32_t n, lm_divider d) {
#ifdef __CUDA_ARCH__
  uint32_t high = __umulhi(n, d.magic);
#else
  uint32_t high = (uint32_t)((uint64_t)n * d.magic >> 32);
#endif
  return (high + n) >> d.shift;
}

/* Returns n / d; *rest = n % d. */
LM_HOST_DEVICE uint32_t lm_divide_rest(uint32_t n, lm_divider d, uint32_t *rest) {
  uint32_t quotient = lm_divide(n, d);
  *rest = n - quotient * d.divisor;
  return quotient;
}

/* A divider of n < 2^63 by the method of lm_divider, for positions in tensors of any size, without a division. */
typedef struct lm_long_divider {
  uint64_t magic;
  int64_t divisor;
  uint32_t shift;
} lm_long_divider;

#ifndef __CUDACC_RTC__
static inline lm_long_divider lm_long_divider_make(int64_t divisor) {
  lm_long_divider d = {0, divisor, 0};
  while (d.shift < 63 && ((uint64_t)1 << d.shift) < (uint64_t)divisor) d.shift++;
  unsigned __int128 above = (((uint64_t)1 << d.shift) - (uint64_t)divisor);
  d.magic = (uint64_t)((above << 64) / (uint64_t)divisor + 1);
  return d;
}
#endif

LM_DEVICE int64_t lm_long_divide(int64_t n, lm_long_divider d) {
  return (int64_t)((__umul64hi((uint64_t)n, d.magic) + (uint64_t)n) >> d.shift);
}

/* A division of n elements into parts whose sizes differ by one at most. */
typedef struct lm_shares {
  int64_t each, longer; /* the first `longer` parts have one more */
} lm_shares;

static inline lm_shares lm_shares_make(int64_t n, int64_t parts) { return {n / parts, n % parts}; }

/* Returns the first element of part k. */
LM_HOST_DEVICE int64_t lm_share_begin(lm_shares s, int64_t k) { return k * s.each + (k < s.longer ? k : s.longer); }

/* ---- shuffles and reductions ---- */

/* Words for shuffles of any plain type, 32 bits at a time. */
template <typename T>
union lm_shuffle_words {
  uint32_t word[(sizeof(T) + 3) / 4];
  unsigned char bytes[sizeof(T)];
};

#define LM_SHUFFLE(name, intrinsic)                               \
  template <typename T>                                           \
  LM_DEVICE T name(T value, int by) {                             \
    lm_shuffle_words<T> words = {};                               \
    memcpy(words.bytes, &value, sizeof(T));                       \
    LM_UNROLL                                                     \
    for (int i = 0; i < (int)((sizeof(T) + 3) / 4); i++) {        \
      words.word[i] = intrinsic(LM_ALL_LANES, words.word[i], by); \
    }                                                             \
    memcpy((void *)&value, words.bytes, sizeof(T));               \
    return value;                                                 \
  }
LM_SHUFFLE(lm_shuffle, __shfl_sync)           /* reads lane `by` */
LM_SHUFFLE(lm_shuffle_xor, __shfl_xor_sync)   /* reads lane ^ by */
LM_SHUFFLE(lm_shuffle_up, __shfl_up_sync)     /* reads lane - by; keeps its own value if there is none */
LM_SHUFFLE(lm_shuffle_down, __shfl_down_sync) /* reads lane + by; keeps its own value if there is none */
#undef LM_SHUFFLE

/* Reduces by op(a, b) over a full warp; every lane gets the result. The order is fixed; op must be commutative. */
template <typename T, typename Op>
LM_DEVICE T lm_warp_reduce(T value, Op op) {
  LM_UNROLL
  for (int by = LM_WARP / 2; by > 0; by /= 2) value = op(value, lm_shuffle_xor(value, by));
  return value;
}

/* Reduces by op(a, b), as lm_warp_reduce does, over a one-dimensional block of any multiple of 32 threads. `shared` has
 * room for LM_WARP values; all threads call, all get the result, and `shared` may be used again at once. */
template <typename T, typename Op>
LM_DEVICE T lm_block_reduce(T value, Op op, T *shared) {
  int lane = lm_lane(), warp = (int)(threadIdx.x / LM_WARP), warps = (int)(blockDim.x / LM_WARP);
  value = lm_warp_reduce(value, op);
  if (warps == 1) return value;
  __syncthreads(); /* earlier readers of `shared` are done */
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  if (warp == 0) {
    if (lane < warps) value = shared[lane]; /* shared[0] is lane 0's, which writes it below */
    LM_UNROLL
    for (int by = LM_WARP / 2; by > 0; by /= 2) {
      T other = lm_shuffle_down(value, by);
      if (lane + by < warps) value = op(value, other);
    }
    if (lane == 0) shared[0] = value;
  }
  __syncthreads();
  return shared[0];
}

/* Reduces by op(a, b) over the threads of a block that share a column: thread t has column t % across, a power of two.
 * All get their column's result. shared: one value for each thread. */
template <typename T, typename Op>
LM_DEVICE T lm_columns_reduce(T value, Op op, int across, T *shared) {
  int t = (int)threadIdx.x, threads = (int)blockDim.x;
  if (threads == across) return value;
  __syncthreads(); /* earlier readers of `shared` are done */
  shared[t] = value;
  __syncthreads();
  for (int half = threads / 2; half >= across; half /= 2) {
    if (t < half) shared[t] = op(shared[t], shared[t + half]);
    __syncthreads();
  }
  return shared[t & (across - 1)];
}

/* Sum of two numbers, for reductions. */
struct lm_add_of {
  template <typename T>
  LM_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

/* Larger and smaller of two numbers, for reductions; NaN if one is NaN. */
struct lm_max_of {
  template <typename T>
  LM_DEVICE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct lm_min_of {
  template <typename T>
  LM_DEVICE T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
