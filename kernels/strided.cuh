/* Walks over strided operands of any dtypes, four elements a thread.
 *
 * Elements are numbered in the order of the merged dims (dim 0 is the innermost), thread t takes 4t to 4t + 3. An
 * operand's four move as one vector if they are contiguous and aligned. Loading is apart from converting, so that the
 * loads of all operands are in flight before the first is waited for; dtypes are chosen by uniform branches. */
#pragma once

#include "strided.h"
#include "vectors.cuh"

enum { LM_GROUP = 4 };

/* N operands, as kernels take them. */
template <int N>
struct lm_strided {
  char *data[N];
  int64_t stride[LM_STRIDED_DIMS][N]; /* in elements */
  lm_divider size[LM_STRIDED_DIMS];
  uint32_t n;         /* < 2^31 */
  uint8_t ndim, rows; /* rows: true if a group of four never crosses the end of dim 0 */
  uint8_t dtype[N], width[N], vector[N];
};

/* Returns true if an operand's groups are contiguous and aligned. */
static inline bool lm_is_vector(const lm_strided_layout *l, int k, bool rows) {
  int width = lm_dtype_width(l->dtype[k]), together = width * LM_GROUP < 16 ? width * LM_GROUP : 16;
  if ((uintptr_t)l->data[k] % (uintptr_t)together != 0) return false;
  bool linear = true, by_rows = rows && l->stride[k][0] == 1;
  int64_t expected = 1;
  for (int d = 0; d < l->ndim; d++) {
    linear = linear && l->stride[k][d] == expected;
    by_rows = by_rows && (d == 0 || l->stride[k][d] % LM_GROUP == 0);
    expected *= l->size[d];
  }
  return linear || by_rows;
}

/* Returns a layout of fewer than 2^31 elements as kernels take it. */
template <int N>
static inline lm_strided<N> lm_strided_of(const lm_strided_layout *l) {
  lm_strided<N> w = {};
  w.n = 1;
  w.ndim = (uint8_t)l->ndim;
  w.rows = l->ndim == 1 || l->size[0] % LM_GROUP == 0;
  for (int d = 0; d < l->ndim; d++) {
    w.n *= (uint32_t)l->size[d];
    w.size[d] = lm_divider_make((uint32_t)l->size[d]);
    for (int k = 0; k < N; k++) w.stride[d][k] = l->stride[k][d];
  }
  for (int k = 0; k < N; k++) {
    w.data[k] = (char *)l->data[k];
    w.dtype[k] = (uint8_t)l->dtype[k];
    w.width[k] = (uint8_t)lm_dtype_width(l->dtype[k]);
    w.vector[k] = w.data[k] && lm_is_vector(l, k, w.rows);
  }
  return w;
}

/* Sets the offsets, in elements, of elements i to i + 3 in each operand; past the end, those of an earlier element. */
template <int N>
LM_DEVICE void lm_strided_indices(const lm_strided<N> &w, uint32_t i, int64_t (*at)[LM_GROUP]) {
  uint32_t rest[LM_GROUP], in_dim;
  int last = w.ndim - 1;
  LM_UNROLL
  for (int j = 0; j < LM_GROUP; j++) rest[j] = i + j < w.n ? i + j : w.n - 1;
  LM_UNROLL
  for (int k = 0; k < N; k++) {
    LM_UNROLL
    for (int j = 0; j < LM_GROUP; j++) at[k][j] = 0;
  }
  if (w.rows) {
    for (int d = 0; d < last; d++) {
      rest[0] = lm_divide_rest(rest[0], w.size[d], &in_dim);
      LM_UNROLL
      for (int k = 0; k < N; k++) at[k][0] += in_dim * w.stride[d][k];
    }
    LM_UNROLL
    for (int k = 0; k < N; k++) {
      at[k][0] += rest[0] * w.stride[last][k];
      LM_UNROLL
      for (int j = 1; j < LM_GROUP; j++) at[k][j] = at[k][0] + (i + j < w.n ? j : 0) * w.stride[0][k];
    }
    return;
  }
  for (int d = 0; d < last; d++) {
    LM_UNROLL
    for (int j = 0; j < LM_GROUP; j++) {
      rest[j] = lm_divide_rest(rest[j], w.size[d], &in_dim);
      LM_UNROLL
      for (int k = 0; k < N; k++) at[k][j] += in_dim * w.stride[d][k];
    }
  }
  LM_UNROLL
  for (int j = 0; j < LM_GROUP; j++) {
    LM_UNROLL
    for (int k = 0; k < N; k++) at[k][j] += rest[j] * w.stride[last][k];
  }
}

/* Four stored elements, side by side. */
typedef struct lm_raw {
  uint32_t word[8];
} lm_raw;

template <class T>
LM_DEVICE void lm_fetch_as(lm_raw *raw, const char *data, const int64_t *at, bool together) {
  lm_pack<T, LM_GROUP> pack;
  const T *p = (const T *)data;
  if (together) {
    pack = lm_load<LM_GROUP>(p + at[0]);
  } else {
    LM_UNROLL
    for (int j = 0; j < LM_GROUP; j++) pack.v[j] = p[at[j]];
  }
  memcpy(raw->word, &pack, sizeof pack);
}

template <int N>
LM_DEVICE void lm_fetch(lm_raw *raw, const lm_strided<N> &w, int k, const int64_t *at, bool whole) {
  bool together = w.vector[k] && whole;
  switch (w.width[k]) {
    case 1: lm_fetch_as<uint8_t>(raw, w.data[k], at, together); break;
    case 2: lm_fetch_as<uint16_t>(raw, w.data[k], at, together); break;
    case 4: lm_fetch_as<uint32_t>(raw, w.data[k], at, together); break;
    default: lm_fetch_as<uint64_t>(raw, w.data[k], at, together); break;
  }
}

template <class T, class num>
LM_DEVICE void lm_decode_as(num *out, const lm_raw &raw) {
  lm_pack<T, LM_GROUP> pack;
  memcpy(&pack, raw.word, sizeof pack);
  LM_UNROLL
  for (int j = 0; j < LM_GROUP; j++) out[j] = lm_get<num>(pack.v[j]);
}

/* Converts stored elements to numbers. If num is int64, no input is floating. */
template <class num>
LM_DEVICE void lm_decode(num *out, const lm_raw &raw, int dtype) {
  if constexpr (std::is_floating_point_v<num>) {
    switch (dtype) {
#define X(id, ...) \
  case LM_##id: return lm_decode_as<lm_stored_##id>(out, raw);
      LM_FLOAT_DTYPES(X)
    }
  }
  switch (dtype) {
    case LM_BOOL: return lm_decode_as<lm_bool>(out, raw); LM_INTEGER_DTYPES(X)
#undef X
  }
}

template <class T, class num>
LM_DEVICE void lm_store_as(char *data, const int64_t *at, const num *value, bool together, int count) {
  T *p = (T *)data;
  lm_pack<T, LM_GROUP> pack;
  LM_UNROLL
  for (int j = 0; j < LM_GROUP; j++) pack.v[j] = lm_put<T>(value[j]);
  if (together) {
    lm_store<LM_GROUP>(p + at[0], pack);
  } else {
    LM_UNROLL
    for (int j = 0; j < LM_GROUP; j++) {
      if (j < count) p[at[j]] = pack.v[j];
    }
  }
}

/* Writes the first `count` of four numbers to operand k. */
template <class num, int N>
LM_DEVICE void lm_store(const lm_strided<N> &w, int k, const int64_t *at, const num *value, int count) {
  char *data = w.data[k];
  bool together = w.vector[k] && count == LM_GROUP;
  switch (w.dtype[k]) {
#define X(id, ...) \
  case LM_##id: lm_store_as<lm_stored_##id>(data, at, value, together, count); break;
    LM_DTYPES(X)
#undef X
  }
}
