/* Declares elementwise loops over tiles, a table for each compute type: float, double, int64, and, for ops whose
 * results are the same in them, uint8, int8, int16 and int32, whose load and store take only that dtype, bool, uint16
 * and (load) int64; and tables of kernels over float16 and bfloat16, which compute in float. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"
#include "op/kernels.h"
#include "op/pointwise.h"

/* A tile is at most LM_TILE elements of the compute type, 64-byte aligned. Kernels take a multiple of
 * LM_LANES, so that every element goes through the same vector code wherever it lies in a tensor. */
enum { LM_TILE = 512, LM_LANES = 16, LM_TILE_BYTES = LM_TILE * 8 };

/* A kernel's numbers in the compute type; for integers clamped to int64's range. */
typedef struct lm_tile_numbers {
  union {
    float f32[LM_POINTWISE_MAX_NUMBERS];
    double f64[LM_POINTWISE_MAX_NUMBERS];
    int64_t i64[LM_POINTWISE_MAX_NUMBERS];
    int32_t i32[LM_POINTWISE_MAX_NUMBERS];
    int16_t i16[LM_POINTWISE_MAX_NUMBERS];
    int8_t i8[LM_POINTWISE_MAX_NUMBERS];
  };
  unsigned repeated; /* loops over halves: a bit for each input that is one float, LM_LANES times */
} lm_tile_numbers;

/* An elementwise kernel over its inputs in their order; out may be one of them. `numbers` are lm_tile_numbers. */
typedef void lm_pointwise_loop(void *out, const void *const *in, const void *numbers, int64_t n);

struct lm_pointwise_loops {
  /* Copy n elements of a dtype, `stride` elements apart, to and from a tile. */
  void (*load[LM_DTYPE_COUNT])(void *tile, const void *src, int64_t stride, int n);
  void (*store[LM_DTYPE_COUNT])(void *dst, int64_t stride, const void *tile, int n);
  /* Loads n elements of the compute type into a tile: those `step` apart from src on, each `run` times, the first
   * `skip` times fewer. */
  void (*repeat)(void *tile, const void *src, int64_t step, int64_t skip, int64_t run, int n);
  /* Transposes src [cols, rows] into dst [rows, cols]; src's rows are `step` elements apart. */
  void (*transpose)(void *dst, const void *src, int64_t step, int rows, int cols);
  /* Copies n elements of the compute type backwards: src, the one before it, and so on. */
  void (*reverse)(void *dst, const void *src, int64_t n);
  /* The loop of each lm_pointwise_row; NULL where the compute type has no such op. */
  lm_pointwise_loop *const *kernel;
};

/* Kernels that compute in float on float16 or bfloat16, whose tiles are moved as those of LM_I16. */
struct lm_half_loops {
  lm_pointwise_loop *const *kernel; /* NULL at a level that has none */
};

LM_ISA_DECLARE(struct lm_half_loops, lm_half_F16);
LM_ISA_DECLARE(struct lm_half_loops, lm_half_BF16);

LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_F32);
LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_F64);
LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_I64);
LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_U8);
LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_I8);
LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_I16);
LM_ISA_DECLARE(struct lm_pointwise_loops, lm_pointwise_I32);

static inline const struct lm_pointwise_loops *lm_pointwise_loops_of(lm_dtype compute) {
  switch (compute) {
    case LM_F32: return LM_ISA_PICK(lm_pointwise_F32);
    case LM_F64: return LM_ISA_PICK(lm_pointwise_F64);
    case LM_U8: return LM_ISA_PICK(lm_pointwise_U8);
    case LM_I8: return LM_ISA_PICK(lm_pointwise_I8);
    case LM_I16: return LM_ISA_PICK(lm_pointwise_I16);
    case LM_I32: return LM_ISA_PICK(lm_pointwise_I32);
    default: return LM_ISA_PICK(lm_pointwise_I64);
  }
}

/* Load and store any number of elements, which may be more than an int holds. num: bytes of an element of the tile. */
static inline void lm_load_long(const struct lm_pointwise_loops *loops, lm_dtype dtype, size_t num, char *tile,
                                const char *src, int64_t stride, int64_t n) {
  const int64_t bytes = (int64_t)lm_dtype_size(dtype), most = 1 << 20;
  for (int64_t i = 0; i < n; i += most)
    loops->load[dtype](tile + (size_t)i * num, src + i * stride * bytes, stride, (int)lm_min(most, n - i));
}
static inline void lm_store_long(const struct lm_pointwise_loops *loops, lm_dtype dtype, size_t num, const char *tile,
                                 char *dst, int64_t stride, int64_t n) {
  const int64_t bytes = (int64_t)lm_dtype_size(dtype), most = 1 << 20;
  for (int64_t i = 0; i < n; i += most)
    loops->store[dtype](dst + i * stride * bytes, stride, tile + (size_t)i * num, (int)lm_min(most, n - i));
}
