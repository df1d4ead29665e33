/* Multiplies small matrices on tensor cores, by a whole warp (PTX ISA, "Matrix fragments for mma.m16n8k16" and
 * "mma.m16n8k8"): of float16, of bfloat16, and of float rounded to TF32. With g = lane / 4 and t = lane % 4, a lane has
 * of a matrix, of 16-bit numbers
 *   a [16, 16]  rows g and g + 8: columns 2 t, 2 t + 1 in words 0 and 1, columns 2 t + 8, 2 t + 9 in words 2 and 3
 *   b [16, 8]   column g: rows 2 t, 2 t + 1 in word 0, rows 2 t + 8, 2 t + 9 in word 1
 * of float
 *   a [16, 8]   rows g and g + 8: column t in words 0 and 1, column t + 4 in words 2 and 3
 *   b [8, 8]    column g: row t in word 0, row t + 4 in word 1
 * of all
 *   c [16, 8]   row g: columns 2 t, 2 t + 1 in 0 and 1, and row g + 8 in 2 and 3
 * so that neighboring c, rounded, are an a; of float one of columns 0, 2, 4, 6, 1, 3, 5, 7. Also loads such matrices
 * from shared memory, and copies to it. */
#pragma once

#include "vectors.cuh"

/* Returns two numbers as a word of T, the first in its lower half. */
template <class T>
LM_DEVICE uint32_t lm_pack_two(float low, float high) {
#if !defined(LM_HOST_KERNELS)
  if constexpr (std::is_same_v<T, lm_f16>) {
    __half2 two = __floats2half2_rn(low, high);
    return *(uint32_t *)&two;
  } else {
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&two;
  }
#else
  return (uint32_t)lm_put<T>(low).bits | (uint32_t)lm_put<T>(high).bits << 16;
#endif
}

/* Returns a float's word with TF32's 10 bits of mantissa, rounded to nearest, ties away from 0. */
LM_DEVICE uint32_t lm_tf32(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
#else
  uint32_t word = __float_as_uint(value);
  return value - value == 0 ? (word + 0x1000) & ~0x1fffu : word;
#endif
}

/* The N words of every lane of a warp; of(lane, i) returns one. */
template <int N>
struct lm_lanes {
#if defined(LM_HOST_KERNELS)
  unsigned long long words[N / 2][LM_WARP];
  explicit lm_lanes(const uint32_t *own) {
    for (int i = 0; i < N / 2; i++)
      lm_fake_meet(LM_FAKE_GATHER, LM_ALL_LANES, own[2 * i] | (unsigned long long)own[2 * i + 1] << 32, 0, words[i]);
  }
  uint32_t of(int lane, int i) const { return (uint32_t)(words[i / 2][lane] >> i % 2 * 32); }
#else
  const uint32_t *own;
  LM_DEVICE explicit lm_lanes(const uint32_t *words) : own(words) {}
  LM_DEVICE uint32_t of(int lane, int i) const { return __shfl_sync(LM_ALL_LANES, own[i], lane); }
#endif
};

/* Returns number n of a word of T. */
template <class T>
LM_DEVICE float lm_unpack_half(uint32_t word, int n) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(word);
  } else {
    return lm_get<float>(T{(uint16_t)(word >> 16 * n)});
  }
}

/* Adds a b to c without tensor cores for T. */
template <class T>
LM_DEVICE void lm_mma_by_lanes(float *c, const uint32_t *a, const uint32_t *b) {
  lm_lanes<4> in_a(a);
  lm_lanes<2> in_b(b);
  int row = lm_lane() / 4 * 4, column = lm_lane() % 4 * 8; /* first lane of a row, of two columns */
  LM_UNROLL
  for (int k = 0; k < 8; k++) { /* a word of each row and column */
    int lane = k % 4, half = k / 4;
    uint32_t x[2] = {in_a.of(row + lane, 2 * half), in_a.of(row + lane, 2 * half + 1)};
    uint32_t y[2] = {in_b.of(column + lane, half), in_b.of(column + 4 + lane, half)};
    LM_UNROLL
    for (int i = 0; i < 4; i++) {
      LM_UNROLL
      for (int n = 0; n < 4 / (int)sizeof(T); n++)
        c[i] += lm_unpack_half<T>(x[i / 2], n) * lm_unpack_half<T>(y[i % 2], n);
    }
  }
}

/* Adds a b to c. Architectures older than those that are accepted (runtime/context.c) only need PTX that compiles. */
template <class T>
LM_DEVICE void lm_mma(float *c, const uint32_t *a, const uint32_t *b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define LM_MMA(size, type)                                                       \
  asm volatile("mma.sync.aligned." size ".row.col.f32." type "." type            \
               ".f32 "                                                           \
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, lm_f16>) {
    LM_MMA("m16n8k16", "f16");
  } else if constexpr (std::is_same_v<T, lm_bf16>) {
    LM_MMA("m16n8k16", "bf16");
  } else {
    LM_MMA("m16n8k8", "tf32");
  }
#undef LM_MMA
#else
  lm_mma_by_lanes<T>(c, a, b);
#endif
}

/* Loads four matrices [8, 8] of 16-bit numbers from shared memory, or [8, 4] of float, one to a word: lane 8 i + r has
 * the address of matrix i's row r, aligned to 16 bytes. A lane gets word t of row g, of float rounded; TRANSPOSED, of
 * 16-bit numbers alone, rows 2 t, 2 t + 1 of column g. */
template <bool TRANSPOSED, class T>
LM_DEVICE void lm_load_matrices(uint32_t *to, const T *row) {
  static_assert(!TRANSPOSED || sizeof(T) == 2, "the columns of 16-bit numbers");
#if defined(LM_HOST_KERNELS)
  uint64_t address = (uint64_t)row;
  const uint32_t words[2] = {(uint32_t)address, (uint32_t)(address >> 32)};
  lm_lanes<2> all(words);
  int g = lm_lane() / 4, t = lm_lane() % 4 * 2;
  for (int i = 0; i < 4; i++) {
    uint32_t pair[2];
    for (int k = 0; k < 2; k++) {
      int lane = 8 * i + (TRANSPOSED ? t + k : g);
      const uint16_t *at = (const uint16_t *)(all.of(lane, 0) | (uint64_t)all.of(lane, 1) << 32);
      pair[k] = at[TRANSPOSED ? g : t + k];
    }
    to[i] = pair[0] | pair[1] << 16;
  }
#else
  uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#endif
  if constexpr (std::is_same_v<T, float>) {
    LM_UNROLL
    for (int i = 0; i < 4; i++) to[i] = lm_tf32(__uint_as_float(to[i]));
  }
}

/* Begins to copy 16 bytes to shared memory, or zeros unless they are `there`. Threads may read them after
 * lm_copies_wait of this one and a barrier. */
LM_DEVICE void lm_copy_begin(void *to, const void *from, bool there) {
#if defined(LM_HOST_KERNELS)
  lm_fake_copy_begin(to, there ? from : NULL);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#else
  *(uint4 *)to = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

LM_DEVICE void lm_copies_wait() {
#if defined(LM_HOST_KERNELS)
  lm_fake_copies_wait();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
