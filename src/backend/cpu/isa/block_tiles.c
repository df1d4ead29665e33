/* Expands blocks to bfloat16 in tiles that the L2 cache holds, and multiplies them: one instruction has 8192 products.
 * The rounding of both factors is within that of x to 8 bits, 1 / 254. */
#include "backend/cpu/isa/block_tiles.h"

#if defined(__AVX512BW__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/isa/block_expand.h"
#include "backend/cpu/isa/block_runs.h"
#include "backend/cpu/isa/lanes.h"
#include "backend/cpu/isa/linalg/transpose.h"

/* A tile has SIDE rows of 64 bytes: DEEP numbers of 16 bits, or SIDE sums. In x's, a row has two numbers of each of
 * SIDE rows of x. */
enum { SIDE = 16, DEEP = 32, TILE = SIDE * DEEP, SUMS = SIDE * SIDE };

/* A process asks for the registers of tiles once, since their state is large. */
static bool start(void) {
  enum { REQUEST = 0x1023, TILES = 18, BF16_TILES = 22 };
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> BF16_TILES & 1) && __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
}

/* Stores 32 floats in bfloat16. */
LM_INLINE void put_rounded(uint16_t *to, lm_float_pack low, lm_float_pack high) {
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(low) : "v"(low), "v"(high));
  memcpy(to, &low, sizeof low);
}

/* Transposes a square of SIDE words of 32 bits, whose rows are `from_row` apart, to rows `to_row` apart. */
LM_INLINE void transpose_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
  for (int i = 0; i < SIDE; i += 8) {
    for (int j = 0; j < SIDE; j += 8) {
      lm_row_F32 r[8];
      lm_load_transposed_F32(from + j * from_row + i, from_row, r);
      for (int l = 0; l < 8; l++) memcpy(to + (i + l) * to_row + j, &r[l], sizeof r[l]);
    }
  }
}

static void pack_tiles(int64_t n, int rows, const float *x, uint16_t *to) {
  for (int first = 0; first < LM_TILE_STEP; first += SIDE) {
    for (int64_t i = 0; i < n; i += DEEP, to += TILE) {
      float square[SUMS] __attribute__((aligned(64))) = {0};
      for (int r = 0; r < SIDE && first + r < rows; r++) {
        const float *from = x + (first + r) * n + i;
        const lm_float_pack low = lm_pack_load(from), high = lm_pack_load(from + LM_PACK);
        put_rounded((uint16_t *)(square + r * SIDE), low + low * 0, high + high * 0);
      }
      transpose_square(square, SIDE, (float *)to, SIDE);
    }
  }
}

/* Expands n elements of LM_TILE_STEP rows of weight, of which the first `outs` exist, to tiles. */
static void fill_tiles(int kind, int outs, int64_t n, const uint8_t *weight, int64_t row_bytes, uint16_t *tiles) {
  float v[LM_TILE_CHUNK] __attribute__((aligned(64)));
  if (outs > LM_TILE_STEP) outs = LM_TILE_STEP;
  if (outs < LM_TILE_STEP) memset(tiles, 0, (size_t)(LM_TILE_STEP * n) * sizeof *tiles);
  for (int j = 0; j < outs; j++, weight += row_bytes) {
    uint16_t *to = tiles + j / SIDE * SIDE * n + j % SIDE * DEEP;
    LM_ISA_NAME(lm_block_expand_loops).expand[kind](n / lm_block_kind_of(kind)->elements, weight, v);
    for (int i = 0; i < n; i += DEEP, to += TILE) put_rounded(to, lm_pack_load(v + i), lm_pack_load(v + i + LM_PACK));
  }
}

#define LOAD(tile, from) __asm__ volatile("tileloadd (%0, %1), %%tmm" #tile : : "r"(from), "r"(row) : "memory")
#define STORE(tile, to) __asm__ volatile("tilestored %%tmm" #tile ", (%0, %1)" : : "r"(to), "r"(row) : "memory")
#define ADD(sums, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #sums)

/* Adds to four tiles of sums the products of two rows of tiles of weight and two of x, `w_next` and `x_next` apart. */
static void add_products(int64_t n, const uint16_t *w, int64_t w_next, const uint16_t *x, int64_t x_next, float *sums) {
  const int64_t row = 64;
  LOAD(0, sums);
  LOAD(1, sums + SUMS);
  LOAD(2, sums + 2 * SUMS);
  LOAD(3, sums + 3 * SUMS);
  for (int64_t i = 0; i < n; i += DEEP, w += TILE, x += TILE) {
    LOAD(4, w);
    LOAD(6, x);
    LOAD(7, x + x_next);
    LOAD(5, w + w_next);
    ADD(0, 4, 6);
    ADD(1, 4, 7);
    ADD(2, 5, 6);
    ADD(3, 5, 7);
  }
  STORE(0, sums);
  STORE(1, sums + SUMS);
  STORE(2, sums + 2 * SUMS);
  STORE(3, sums + 3 * SUMS);
}

static void put_sums(int rows, int outs, const float *sums, const float *bias, float *y, int64_t y_row) {
  float square[SUMS] __attribute__((aligned(64)));
  transpose_square(sums, SIDE, square, SIDE);
  const int n = outs < SIDE ? outs : SIDE;
  for (int r = 0; r < rows && r < SIDE; r++, y += y_row) {
    const lm_float_pack v = lm_pack_load(square + r * SIDE);
    lm_store_part_F32(y, bias ? v + lm_load_part_F32(bias, n) : v, n);
  }
}

static void multiply_tiles(int kind, int rows, int outs, int64_t n, const uint16_t *x, const uint8_t *weight,
                           const float *bias, float *y, int64_t y_row, void *scratch) {
  enum { FOUR = 4 * SUMS };
  struct {
    uint8_t palette, begin, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } before, config = {.palette = 1};
  const lm_block_kind *k = lm_block_kind_of(kind);
  const int64_t row_bytes = n / k->elements * k->bytes;
  uint16_t *tiles = scratch;
  float *sums = (float *)(tiles + LM_TILE_OUTS * LM_TILE_CHUNK);
  const int across = (outs + LM_TILE_STEP - 1) / LM_TILE_STEP, down = (rows + LM_TILE_STEP - 1) / LM_TILE_STEP;
  for (int t = 0; t < 8; t++) config.rows[t] = SIDE, config.bytes[t] = 64;
  __asm__ volatile("sttilecfg %0" : "=m"(before)); /* oneDNN expects that its own stays */
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
  memset(sums, 0, sizeof(float) * (size_t)(across * down * FOUR));
  for (int64_t at = 0; at < n; at += LM_TILE_CHUNK) {
    const int64_t part = n - at < LM_TILE_CHUNK ? n - at : LM_TILE_CHUNK;
    for (int j = 0; j < across; j++)
      fill_tiles(kind, outs - j * LM_TILE_STEP, part,
                 weight + j * LM_TILE_STEP * row_bytes + at / k->elements * k->bytes, row_bytes,
                 tiles + j * LM_TILE_STEP * LM_TILE_CHUNK);
    for (int i = 0; i < down; i++)
      for (int j = 0; j < across; j++)
        add_products(part, tiles + j * LM_TILE_STEP * LM_TILE_CHUNK, SIDE * part, x + i * LM_TILE_STEP * n + at * SIDE,
                     SIDE * n, sums + (i * across + j) * FOUR);
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(before));
  for (int i = 0; i < down * 2; i++)
    for (int j = 0; j < across * 2 && j * SIDE < outs; j++)
      put_sums(rows - i * SIDE, outs - j * SIDE, sums + (i / 2 * across + j / 2) * FOUR + (j % 2 * 2 + i % 2) * SUMS,
               bias ? bias + j * SIDE : NULL, y + i * SIDE * y_row + j * SIDE, y_row);
}

const struct lm_block_tile_loops LM_ISA_NAME(lm_block_tile_loops) = {start, pack_tiles, multiply_tiles};
#else
const struct lm_block_tile_loops LM_ISA_NAME(lm_block_tile_loops) = {.start = NULL};
#endif
