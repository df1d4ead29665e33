#include "backend/cpu/isa/index.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "op_choices.h"

/* Defines a loop over a line; `becomes` combines *d with v. With step 0 all elements share an index, so one entry. */
#define SCATTER(name, DST, SRC, load, becomes)                                                   \
  static void name(const lm_scatter_line *l, void *dst, const int64_t *index, const void *src) { \
    int64_t n = l->n, to = l->to, along = l->along, step = l->step, from = l->from;              \
    const SRC *s = src;                                                                          \
    if (step == 0) {                                                                             \
      DST *entry = (DST *)dst + (index[0] - 1) * to;                                             \
      if (along == 1 && from == 0) { /* src is one number */                                     \
        const DST v = load(s[0]);                                                                \
        LM_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                         \
          DST *d = entry + i;                                                                    \
          becomes;                                                                               \
        }                                                                                        \
      } else if (along == 1 && from == 1) {                                                      \
        LM_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                         \
          DST *d = entry + i, v = load(s[i]);                                                    \
          becomes;                                                                               \
        }                                                                                        \
      } else {                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                        \
          DST *d = entry + i * along, v = load(s[i * from]);                                     \
          becomes;                                                                               \
        }                                                                                        \
      }                                                                                          \
    } else if (along == 0 && to == 1 && step == 1 && from == 1) {                                \
      for (int64_t i = 0; i < n; i++) {                                                          \
        DST *d = (DST *)dst + index[i] - 1, v = load(s[i]);                                      \
        becomes;                                                                                 \
      }                                                                                          \
    } else {                                                                                     \
      for (int64_t i = 0; i < n; i++) {                                                          \
        DST *d = (DST *)dst + (index[i * step] - 1) * to + i * along, v = load(s[i * from]);     \
        becomes;                                                                                 \
      }                                                                                          \
    }                                                                                            \
  }

#define LM_TEMPLATE "backend/cpu/isa/templates/scatter.inc"
#include "backend/cpu/isa/templates/each_dtype.inc"

#define SAME(v) (v)
SCATTER(put_1, uint8_t, uint8_t, SAME, *d = v)
SCATTER(put_2, uint16_t, uint16_t, SAME, *d = v)
SCATTER(put_4, uint32_t, uint32_t, SAME, *d = v)
SCATTER(put_8, uint64_t, uint64_t, SAME, *d = v)

#define X(id, name, type, low, high, loop) [LM_##id] = loop##_##id,
const struct lm_scatter_loops LM_ISA_NAME(lm_scatter_loops) = {
    .fold = {[LM_FOLD_SUM] = {LM_DTYPES(X, add)},
             [LM_FOLD_PROD] = {LM_DTYPES(X, mul)},
             [LM_FOLD_AMAX] = {LM_DTYPES(X, amax)},
             [LM_FOLD_AMIN] = {LM_DTYPES(X, amin)}},
    .put = {[1] = put_1, [2] = put_2, [4] = put_4, [8] = put_8},
};

/* ---- embedding bags */

enum { LANES = 64, FEW = 16 }; /* columns of the embedding summed in one pass; FEW for shorter rows */

#undef LM_TEMPLATE
#define LM_TEMPLATE "backend/cpu/isa/templates/embedding_bag.inc"
#include "backend/cpu/isa/templates/each_float.inc"

const struct lm_embedding_bag_loops LM_ISA_NAME(lm_embedding_bag_loops) = {.sums = {LM_FLOATS(bags)}};
