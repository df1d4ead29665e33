#include "backend/cpu/isa/sort.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"

#define FLOATING_BOOL 0
#define FLOATING_U8 0
#define FLOATING_I8 0
#define FLOATING_I16 0
#define FLOATING_U16 0
#define FLOATING_I32 0
#define FLOATING_I64 0
#define FLOATING_F16 1
#define FLOATING_BF16 1
#define FLOATING_F32 1
#define FLOATING_F64 1
/* Keys have 8 bytes where the arithmetic has, else 4. */
#define LM_KEY __typeof__(__builtin_choose_expr(sizeof(LM_ACC) == 8, (uint64_t)0, (uint32_t)0))
#define LM_TEMPLATE "backend/cpu/isa/templates/sort_keys.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

#define LOOPS(name, type, number)                                                        \
  static bool ranks_##name(const void *keys, int n, uint8_t *rank) {                     \
    enum { SOME = 16 };                                                                  \
    const type *key = keys, sign = (type)1 << (8 * sizeof(type) - 1);                    \
    number x[LM_SORT_FEW], below[LM_SORT_FEW];                                           \
    int sum = 0;                                                                         \
    for (int i = 0; i < n; i++) x[i] = (number)(key[i] ^ sign);                          \
    for (int i = n; i % SOME; i++) x[i] = 0;                                             \
    for (int first = 0; first < n; first += SOME) {                                      \
      number count[SOME] = {0};                                                          \
      for (int j = 0; j < n; j++)                                                        \
        for (int i = 0; i < SOME; i++) count[i] += x[j] < x[first + i];                  \
      memcpy(below + first, count, sizeof count);                                        \
    }                                                                                    \
    for (int i = 0; i < n; i++) rank[i] = (uint8_t)below[i], sum += (int)below[i];       \
    return sum == n * (n - 1) / 2;                                                       \
  }                                                                                      \
  static uint64_t differing_##name(const void *keys, int64_t n, uint64_t first) {        \
    const type *key = keys;                                                              \
    type differing = 0;                                                                  \
    for (int64_t i = 0; i < n; i++) differing |= key[i] ^ (type)first;                   \
    return differing;                                                                    \
  }                                                                                      \
  static int64_t below_##name(const void *keys, int64_t at, int64_t n, uint64_t limit) { \
    const type *key = keys;                                                              \
    for (; at < n; at += LM_SORT_CHUNK) {                                                \
      int m = n - at < LM_SORT_CHUNK ? (int)(n - at) : LM_SORT_CHUNK;                    \
      type hits = 0;                                                                     \
      if (m == LM_SORT_CHUNK) {                                                          \
        for (int k = 0; k < LM_SORT_CHUNK; k++) hits |= key[at + k] < (type)limit;       \
      } else {                                                                           \
        for (int k = 0; k < m; k++) hits |= key[at + k] < (type)limit;                   \
      }                                                                                  \
      if (hits) return at;                                                               \
    }                                                                                    \
    return n;                                                                            \
  }
LOOPS(narrow, uint32_t, int32_t)
LOOPS(wide, uint64_t, int64_t)

#define X(id, name, type, low, high, loop) [LM_##id] = loop##_##id,
const struct lm_sort_loops LM_ISA_NAME(lm_sort_loops) = {.keys = {LM_DTYPES(X, keys_of)},
                                                         .values = {LM_DTYPES(X, values_of)},
                                                         .differing = {differing_narrow, differing_wide},
                                                         .below = {below_narrow, below_wide},
                                                         .ranks = {ranks_narrow, ranks_wide}};
