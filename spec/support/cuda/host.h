/* Lets the .cu files of kernels/ compile for the host: CUDA's keywords, built-in variables, intrinsics and
 * vector types for a plain C++ compiler (kernels/launch.cuh includes this under LM_HOST_KERNELS). Threads of a block
 * take turns on one host thread (grid.cc), so atomics are plain arithmetic; only barriers and warp operations switch
 * between them. */
#ifndef LM_FAKE_HOST_H
#define LM_FAKE_HOST_H

#include <cuda_runtime_api.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector_functions.h>

#include "fake.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __managed__
#define __global__
#define __device__
#define __host__
#define __shared__ static /* one block runs at a time; filled with 0xff before each (launch.cc finds them by name) */
#define __constant__ static const
#define __launch_bounds__(...)

#pragma GCC visibility push(default) /* for bodies that are compiled at run time (nvrtc.cc) */
extern "C" {
/* Set for the running thread by grid.cc. */
extern dim3 lm_fake_grid_dim, lm_fake_block_dim;
extern uint3 lm_fake_block, lm_fake_thread;
void *lm_fake_dynamic_shared(void);

enum { LM_FAKE_SYNC, LM_FAKE_SHUFFLE, LM_FAKE_BALLOT, LM_FAKE_GATHER };
/* Waits until all threads of the block meet; returns how many passed a `predicate` other than 0. */
int lm_fake_barrier(int predicate);
/* The lanes of `mask` meet in the same operation. Each brings `bits`. SHUFFLE returns those of lane `source`, BALLOT
 * the lanes whose bits are not 0, GATHER fills `all` (32 values, 0 for lanes outside the mask). */
unsigned long long lm_fake_meet(int operation, unsigned mask, unsigned long long bits, int source,
                                unsigned long long *all);
int lm_fake_lane(void);
/* Copies 16 bytes, zeros for NULL, when the thread waits for its copies: before, NaN is there. */
void lm_fake_copy_begin(void *to, const void *from);
void lm_fake_copies_wait(void);
}
#pragma GCC visibility pop

#define threadIdx lm_fake_thread
#define blockIdx lm_fake_block
#define blockDim lm_fake_block_dim
#define gridDim lm_fake_grid_dim
static const int warpSize = 32;

/* ---- barriers and fences ---- */

static inline void __syncthreads() { lm_fake_barrier(0); }
static inline int __syncthreads_count(int predicate) { return lm_fake_barrier(predicate); }
static inline int __syncthreads_or(int predicate) { return lm_fake_barrier(predicate) != 0; }
static inline int __syncthreads_and(int predicate) { return lm_fake_barrier(!predicate) == 0; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { lm_fake_meet(LM_FAKE_SYNC, mask, 0, 0, NULL); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) {}

/* ---- warps ---- */

template <typename T>
static inline T lm_fake_shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8, "shuffles move at most 64 bits");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = lm_fake_meet(LM_FAKE_SHUFFLE, mask, bits, source, NULL);
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  int lane = lm_fake_lane();
  return lm_fake_shuffle(mask, value, (lane & -width) | (source & (width - 1)));
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  int lane = lm_fake_lane(), source = lane ^ by;
  return lm_fake_shuffle(mask, value, source < (lane & -width) + width ? source : lane);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = lm_fake_lane(), source = lane - (int)by;
  return lm_fake_shuffle(mask, value, source >= (lane & -width) ? source : lane);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = lm_fake_lane(), source = lane + (int)by;
  return lm_fake_shuffle(mask, value, source < (lane & -width) + width ? source : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return (unsigned)lm_fake_meet(LM_FAKE_BALLOT, mask, predicate != 0, 0, NULL);
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
/* A device decides which lanes run together; here each lane is alone, an answer that is always allowed. */
static inline unsigned __activemask() { return 1u << lm_fake_lane(); }
template <typename T>
static inline unsigned __match_any_sync(unsigned mask, T value) {
  unsigned long long bits = 0, all[32];
  memcpy(&bits, &value, sizeof value);
  lm_fake_meet(LM_FAKE_GATHER, mask, bits, 0, all);
  unsigned same = 0;
  for (int i = 0; i < 32; i++) same |= (unsigned)(all[i] == bits) << i;
  return same & mask;
}
#define LM_FAKE_REDUCE(name, type, expression)                             \
  static inline type name(unsigned mask, type value) {                     \
    unsigned long long all[32];                                            \
    lm_fake_meet(LM_FAKE_GATHER, mask, (unsigned long long)value, 0, all); \
    type a = value;                                                        \
    for (int i = 0; i < 32; i++) {                                         \
      if (!(mask >> i & 1) || i == lm_fake_lane()) continue;               \
      type b = (type)all[i];                                               \
      a = (expression);                                                    \
    }                                                                      \
    return a;                                                              \
  }
LM_FAKE_REDUCE(__reduce_add_sync, unsigned, a + b)
LM_FAKE_REDUCE(__reduce_add_sync, int, a + b)
LM_FAKE_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
LM_FAKE_REDUCE(__reduce_min_sync, int, a < b ? a : b)
LM_FAKE_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
LM_FAKE_REDUCE(__reduce_max_sync, int, a > b ? a : b)
LM_FAKE_REDUCE(__reduce_and_sync, unsigned, (a & b))
LM_FAKE_REDUCE(__reduce_or_sync, unsigned, a | b)
LM_FAKE_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef LM_FAKE_REDUCE

/* ---- atomics; each returns the old value ---- */

/* Checked bodies (checks.cc) report every access: an atomic one apart from plain ones. */
#ifdef __SANITIZE_THREAD__
#define LM_FAKE_ATOMIC_ACCESS static __attribute__((noinline, no_sanitize("thread")))
extern "C" void lm_fake_check_atomic(const void *p, size_t bytes);
#else
#define LM_FAKE_ATOMIC_ACCESS static inline
#define lm_fake_check_atomic(p, bytes) (void)0
#endif
#define LM_FAKE_ATOMIC(name, expression)                        \
  template <typename T>                                         \
  LM_FAKE_ATOMIC_ACCESS T name(T *p, lm_fake_same<T> operand) { \
    lm_fake_check_atomic(p, sizeof *p);                         \
    T old = *p;                                                 \
    *p = (expression);                                          \
    return old;                                                 \
  }
template <typename T>
struct lm_fake_same_as {
  typedef T type;
};
template <typename T>
using lm_fake_same = typename lm_fake_same_as<T>::type;
LM_FAKE_ATOMIC(atomicAdd, (T)(old + operand))
LM_FAKE_ATOMIC(atomicSub, (T)(old - operand))
LM_FAKE_ATOMIC(atomicExch, operand)
LM_FAKE_ATOMIC(atomicMin, old < operand ? old : operand)
LM_FAKE_ATOMIC(atomicMax, old > operand ? old : operand)
LM_FAKE_ATOMIC(atomicAnd, (T)(old &operand))
LM_FAKE_ATOMIC(atomicOr, (T)(old | operand))
LM_FAKE_ATOMIC(atomicXor, (T)(old ^ operand))
LM_FAKE_ATOMIC(atomicInc, (T)(old >= operand ? 0 : old + 1))
LM_FAKE_ATOMIC(atomicAdd_system, (T)(old + operand))
LM_FAKE_ATOMIC(atomicExch_system, operand)
#undef LM_FAKE_ATOMIC
template <typename T>
LM_FAKE_ATOMIC_ACCESS T atomicCAS(T *p, lm_fake_same<T> expected, lm_fake_same<T> desired) {
  lm_fake_check_atomic(p, sizeof *p);
  T old = *p;
  if (old == expected) *p = desired;
  return old;
}
template <typename T>
static inline T atomicCAS_system(T *p, lm_fake_same<T> expected, lm_fake_same<T> desired) {
  return atomicCAS(p, expected, desired);
}

/* ---- memory ---- */

#define LM_FAKE_LOAD(name)           \
  template <typename T>              \
  static inline T name(const T *p) { \
    return *p;                       \
  }
LM_FAKE_LOAD(__ldg)
LM_FAKE_LOAD(__ldca)
LM_FAKE_LOAD(__ldcg)
LM_FAKE_LOAD(__ldcs)
LM_FAKE_LOAD(__ldcv)
LM_FAKE_LOAD(__ldlu)
#undef LM_FAKE_LOAD
#define LM_FAKE_STORE(name)                          \
  template <typename T>                              \
  static inline void name(T *p, lm_fake_same<T> v) { \
    *p = v;                                          \
  }
LM_FAKE_STORE(__stwb)
LM_FAKE_STORE(__stcg)
LM_FAKE_STORE(__stcs)
LM_FAKE_STORE(__stwt)
#undef LM_FAKE_STORE

/* ---- bits ---- */

template <typename To, typename From>
static inline To lm_fake_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return lm_fake_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return lm_fake_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return lm_fake_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return lm_fake_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return lm_fake_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return lm_fake_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
  return y;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- arithmetic ---- */

#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __tanhf tanhf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline int __float2int_ru(float x) { return (int)ceilf(x); }
/* Newer C libraries have some of these, with linkage of their own. */
#define rsqrtf lm_fake_rsqrt
#define rsqrt lm_fake_rsqrt
#define sinpif lm_fake_sinpi
#define sinpi lm_fake_sinpi
#define cospif lm_fake_cospi
#define cospi lm_fake_cospi
#define sincospif lm_fake_sincospi
#define sincospi lm_fake_sincospi
static const double LM_FAKE_PI = 3.14159265358979323846;
static inline float lm_fake_rsqrt(float x) { return 1 / sqrtf(x); }
static inline double lm_fake_rsqrt(double x) { return 1 / sqrt(x); }
static inline double lm_fake_sinpi(double x) { return sin(LM_FAKE_PI * remainder(x, 2)); }
static inline double lm_fake_cospi(double x) { return cos(LM_FAKE_PI * remainder(x, 2)); }
static inline float lm_fake_sinpi(float x) { return (float)lm_fake_sinpi((double)x); }
static inline float lm_fake_cospi(float x) { return (float)lm_fake_cospi((double)x); }
template <typename T>
static inline void lm_fake_sincospi(T x, T *s, T *c) {
  *s = lm_fake_sinpi(x), *c = lm_fake_cospi(x);
}

/* Return what CUDA's do: a number wins over NaN; mixed types go to the wider, signed with unsigned to unsigned. */
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }
#define LM_FAKE_EXTREMES(a_type, b_type, type)                                                 \
  static inline type min(a_type a, b_type b) { return (type)a < (type)b ? (type)a : (type)b; } \
  static inline type max(a_type a, b_type b) { return (type)a > (type)b ? (type)a : (type)b; }
LM_FAKE_EXTREMES(int, int, int)
LM_FAKE_EXTREMES(unsigned, unsigned, unsigned)
LM_FAKE_EXTREMES(int, unsigned, unsigned)
LM_FAKE_EXTREMES(unsigned, int, unsigned)
LM_FAKE_EXTREMES(long, long, long)
LM_FAKE_EXTREMES(unsigned long, unsigned long, unsigned long)
LM_FAKE_EXTREMES(long, unsigned long, unsigned long)
LM_FAKE_EXTREMES(unsigned long, long, unsigned long)
LM_FAKE_EXTREMES(long long, long long, long long)
LM_FAKE_EXTREMES(unsigned long long, unsigned long long, unsigned long long)
LM_FAKE_EXTREMES(long long, unsigned long long, unsigned long long)
LM_FAKE_EXTREMES(unsigned long long, long long, unsigned long long)
#undef LM_FAKE_EXTREMES

#endif
