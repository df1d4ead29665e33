/* Runs elementwise kernels over a row of pointwise_elements.cuh, for each compute type num. Two kernels a row: `flat`
 * where all operands are laid out alike, contiguous and of one dtype (the compute type, or a 16-bit one), single
 * numbers aside; `walk` for everything else. A few rows of two inputs have `mixed` as well: contiguous operands of
 * float and a 16-bit dtype, or a mask as the second. */
#pragma once

#include "pointwise.h"
#include "pointwise_elements.cuh"
#include "strided.cuh"

template <class Row, class num>
LM_DEVICE num lm_pointwise_of(const num *in, const lm_numbers<num> &numbers, lm_bad bad, int bad_kind,
                              int64_t element) {
  const int by = Row::DIVIDES;
  if (by > 0 && in[by > 0 ? by - 1 : 0] == 0) lm_report_bad(bad, bad_kind, element + 1, 0, 0);
  return Row::of(in, numbers);
}

/* ---- flat: inputs are stored as T, the result as O */

template <class num, class T, class O, int N>
struct lm_flat {
  const T *in[N]; /* NULL: value */
  num value[N];
  O *out;
  unsigned repeated; /* bit k: in[k] has one element */
  uint32_t n;
  lm_numbers<num> numbers;
  lm_bad bad;
  int bad_kind;
  int64_t first;
};

enum { LM_POINTWISE_BLOCK = 256, LM_FLAT_UNROLL = 2 };

template <class Row, class num, class T, class O>
LM_KERNEL void __launch_bounds__(LM_POINTWISE_BLOCK) lm_pointwise_flat(const lm_flat<num, T, O, Row::NIN> a) {
  enum { N = Row::NIN, V = 16 / sizeof(T), STEP = LM_POINTWISE_BLOCK * V };
  uint32_t begin = blockIdx.x * (STEP * LM_FLAT_UNROLL) + threadIdx.x * V;
  lm_words<T, V> words[LM_FLAT_UNROLL][N];
  lm_pack<T, V> pack[LM_FLAT_UNROLL][N];
  num in[N], single[N];
  LM_UNROLL
  for (int u = 0; u < LM_FLAT_UNROLL; u++) {
    uint32_t i = begin + u * STEP;
    LM_UNROLL
    for (int k = 0; k < N; k++) {
      if (i + V <= a.n && !(a.repeated >> k & 1)) words[u][k] = lm_load_words<V>(a.in[k] + i);
    }
  }
  LM_UNROLL
  for (int k = 0; k < N; k++) single[k] = a.in[k] && a.repeated >> k & 1 ? lm_get<num>(*a.in[k]) : a.value[k];
  LM_UNROLL
  for (int u = 0; u < LM_FLAT_UNROLL; u++) {
    LM_UNROLL
    for (int k = 0; k < N; k++) pack[u][k] = lm_unpack(words[u][k]);
  }
  LM_UNROLL
  for (int u = 0; u < LM_FLAT_UNROLL; u++) {
    uint32_t i = begin + u * STEP;
    if (i + V > a.n) break;
    lm_pack<O, V> result;
    LM_UNROLL
    for (int j = 0; j < V; j++) {
      LM_UNROLL
      for (int k = 0; k < N; k++) in[k] = a.repeated >> k & 1 ? single[k] : lm_get<num>(pack[u][k].v[j]);
      result.v[j] = lm_put<O>(lm_pointwise_of<Row, num>(in, a.numbers, a.bad, a.bad_kind, a.first + i + j));
    }
    lm_store<V>(a.out + i, result);
  }
  uint32_t i = a.n - a.n % V + threadIdx.x; /* fewer than V are left: one for each thread */
  if (blockIdx.x + 1 < gridDim.x || i >= a.n) return;
  LM_UNROLL
  for (int k = 0; k < N; k++) in[k] = a.repeated >> k & 1 ? single[k] : lm_get<num>(a.in[k][i]);
  a.out[i] = lm_put<O>(lm_pointwise_of<Row, num>(in, a.numbers, a.bad, a.bad_kind, a.first + i));
}

/* ---- mixed: eight elements a thread */

/* Rows with a mixed kernel: FLOATS, float and a 16-bit dtype into float; MASK, one dtype and bool into that dtype. */
template <class Row>
struct lm_row_mixes {
  enum { FLOATS = 0, MASK = 0 };
};
template <>
struct lm_row_mixes<lm_row_add<float>> {
  enum { FLOATS = 1, MASK = 0 };
};
template <>
struct lm_row_mixes<lm_row_mul<float>> {
  enum { FLOATS = 1, MASK = 0 };
};
template <>
struct lm_row_mixes<lm_row_dropout_backward<float>> {
  enum { FLOATS = 0, MASK = 1 };
};

template <class Row, class A, class B, class O>
LM_KERNEL void __launch_bounds__(LM_POINTWISE_BLOCK)
    lm_pointwise_mixed(const A *a, const B *b, O *out, uint32_t n, const lm_numbers<float> numbers) {
  enum { V = 8 };
  uint32_t i = (blockIdx.x * LM_POINTWISE_BLOCK + threadIdx.x) * V;
  if (i + V <= n) {
    lm_pack<A, V> x = lm_load<V>(a + i);
    lm_pack<B, V> y = lm_load<V>(b + i);
    lm_pack<O, V> result;
    LM_UNROLL
    for (int j = 0; j < V; j++) {
      float in[] = {lm_get<float>(x.v[j]), lm_get<float>(y.v[j])};
      result.v[j] = lm_put<O>(Row::of(in, numbers));
    }
    lm_store<V>(out + i, result);
  }
  for (; i < n && n - i < V; i++) {
    float in[] = {lm_get<float>(a[i]), lm_get<float>(b[i])};
    out[i] = lm_put<O>(Row::of(in, numbers));
  }
}

/* ---- walk: operand 0 is the result, input k operand k + 1 */

template <class num, int N>
struct lm_pointwise_strided_args {
  lm_strided<N + 1> walk;
  num value[N];
  lm_numbers<num> numbers;
  lm_bad bad;
  int bad_kind;
  int64_t first;
};

template <class Row, class num>
LM_KERNEL void __launch_bounds__(LM_POINTWISE_BLOCK)
    lm_pointwise_strided(const lm_pointwise_strided_args<num, Row::NIN> a) {
  enum { N = Row::NIN };
  uint32_t i = (blockIdx.x * LM_POINTWISE_BLOCK + threadIdx.x) * LM_GROUP;
  if (i >= a.walk.n) return;
  int count = a.walk.n - i < LM_GROUP ? (int)(a.walk.n - i) : LM_GROUP;
  int64_t at[N + 1][LM_GROUP];
  lm_strided_indices<N + 1>(a.walk, i, at);
  lm_raw raw[N];
  LM_UNROLL
  for (int k = 0; k < N; k++) {
    if (a.walk.data[k + 1]) lm_fetch(&raw[k], a.walk, k + 1, at[k + 1], count == LM_GROUP);
  }
  num x[N][LM_GROUP], y[LM_GROUP];
  LM_UNROLL
  for (int k = 0; k < N; k++) {
    if (a.walk.data[k + 1]) {
      lm_decode(x[k], raw[k], a.walk.dtype[k + 1]);
    } else {
      LM_UNROLL
      for (int j = 0; j < LM_GROUP; j++) x[k][j] = a.value[k];
    }
  }
  LM_UNROLL
  for (int j = 0; j < LM_GROUP; j++) {
    num in[N];
    LM_UNROLL
    for (int k = 0; k < N; k++) in[k] = x[k][j];
    y[j] = lm_pointwise_of<Row, num>(in, a.numbers, a.bad, a.bad_kind, a.first + i + (j < count ? j : 0));
  }
  lm_store(a.walk, 0, at[0], y, count);
}

/* ---- launching */

/* Returns the dtype of all inputs that are not single numbers if `flat` can run, else LM_NO_DTYPE. */
static inline int lm_flat_dtype(const lm_pointwise_launch *l, int num_dtype, bool test) {
  const lm_strided_layout *at = &l->at;
  int dtype = LM_NO_DTYPE;
  bool alike = at->ndim == 1 && at->stride[0][0] == 1;
  for (int k = 1; alike && k < at->operands; k++) {
    if (!at->data[k]) continue;
    if (dtype == LM_NO_DTYPE) dtype = at->dtype[k];
    alike =
        at->dtype[k] == dtype && (at->stride[k][0] == 0 || (at->stride[k][0] == 1 && (uintptr_t)at->data[k] % 16 == 0));
  }
  if (dtype == LM_NO_DTYPE) dtype = test ? num_dtype : at->dtype[0];
  if (!alike || (uintptr_t)at->data[0] % 16 != 0 || at->dtype[0] != (test ? (int)LM_BOOL : dtype)) return LM_NO_DTYPE;
  return dtype;
}

template <class num>
static inline num lm_value_in(const lm_pointwise_value *value) {
  num v;
  memcpy(&v, value, sizeof v);
  return v;
}

template <class Row, class num, class T, class O>
static int lm_pointwise_run_flat(const lm_pointwise_launch *l, void *stream) {
  enum { N = Row::NIN };
  lm_flat<num, T, O, N> a = {};
  a.out = (O *)l->at.data[0];
  a.n = (uint32_t)l->at.size[0];
  for (int k = 0; k < N; k++) {
    a.in[k] = (const T *)l->at.data[k + 1];
    a.value[k] = lm_value_in<num>(&l->value[k + 1]);
    if (!a.in[k] || (l->at.stride[k + 1][0] == 0)) a.repeated |= 1u << k;
  }
  for (int i = 0; i < LM_POINTWISE_NUMBERS; i++) a.numbers.of[i] = lm_value_in<num>(&l->number[i]);
  a.bad = l->bad, a.bad_kind = l->bad_kind, a.first = l->first;
  unsigned blocks = lm_blocks(a.n, LM_POINTWISE_BLOCK * LM_FLAT_UNROLL * (16 / (int)sizeof(T)), INT32_MAX);
  return lm_launch(lm_pointwise_flat<Row, num, T, O>, blocks, LM_POINTWISE_BLOCK, 0, stream, a);
}

template <class Row, class num>
static int lm_pointwise_run_strided(const lm_pointwise_launch *l, void *stream) {
  enum { N = Row::NIN };
  lm_pointwise_strided_args<num, N> a = {};
  a.walk = lm_strided_of<N + 1>(&l->at);
  for (int k = 0; k < N; k++) a.value[k] = lm_value_in<num>(&l->value[k + 1]);
  for (int i = 0; i < LM_POINTWISE_NUMBERS; i++) a.numbers.of[i] = lm_value_in<num>(&l->number[i]);
  a.bad = l->bad, a.bad_kind = l->bad_kind, a.first = l->first;
  unsigned blocks = lm_blocks(a.walk.n, LM_POINTWISE_BLOCK * LM_GROUP, INT32_MAX);
  return lm_launch(lm_pointwise_strided<Row, num>, blocks, LM_POINTWISE_BLOCK, 0, stream, a);
}

template <class Row, class A, class B, class O>
static int lm_pointwise_launch_mixed(const lm_pointwise_launch *l, void *stream) {
  lm_numbers<float> numbers;
  for (int i = 0; i < LM_POINTWISE_NUMBERS; i++) numbers.of[i] = lm_value_in<float>(&l->number[i]);
  unsigned blocks = lm_blocks(l->at.size[0], LM_POINTWISE_BLOCK * 8, INT32_MAX);
  return lm_launch(lm_pointwise_mixed<Row, A, B, O>, blocks, LM_POINTWISE_BLOCK, 0, stream, (const A *)l->at.data[1],
                   (const B *)l->at.data[2], (O *)l->at.data[0], (uint32_t)l->at.size[0], numbers);
}

/* Runs the row's mixed kernel and sets *error; returns false if it has none for these operands. */
template <class Row>
static bool lm_pointwise_run_mixed(const lm_pointwise_launch *l, void *stream, int *error) {
  typedef lm_row_mixes<Row> mixes;
  const lm_strided_layout *at = &l->at;
  bool alike = at->ndim == 1;
  for (int k = 0; k < at->operands; k++)
    alike = alike && at->data[k] && at->stride[k][0] == 1 && (uintptr_t)at->data[k] % 16 == 0;
  if (!alike) return false;
  const int out = at->dtype[0], a = at->dtype[1], b = at->dtype[2];
  lm_pointwise_launcher *launch = NULL;
  if constexpr (mixes::MASK) {
    if (b != LM_BOOL || a != out) return false;
    if (a == LM_F32) launch = lm_pointwise_launch_mixed<Row, float, lm_bool, float>;
    if (a == LM_F16) launch = lm_pointwise_launch_mixed<Row, lm_f16, lm_bool, lm_f16>;
    if (a == LM_BF16) launch = lm_pointwise_launch_mixed<Row, lm_bf16, lm_bool, lm_bf16>;
  } else {
    if (out != LM_F32) return false;
    if (a == LM_F32 && b == LM_F16) launch = lm_pointwise_launch_mixed<Row, float, lm_f16, float>;
    if (a == LM_F32 && b == LM_BF16) launch = lm_pointwise_launch_mixed<Row, float, lm_bf16, float>;
    if (a == LM_F16 && b == LM_F32) launch = lm_pointwise_launch_mixed<Row, lm_f16, float, float>;
    if (a == LM_BF16 && b == LM_F32) launch = lm_pointwise_launch_mixed<Row, lm_bf16, float, float>;
  }
  if (launch) *error = launch(l, stream);
  return launch != NULL;
}

/* Runs a row in a compute type. */
template <class Row, class num>
struct lm_pointwise_runner {
  template <class T>
  static int flat(const lm_pointwise_launch *l, void *stream) {
    return lm_pointwise_run_flat<Row, num, T, std::conditional_t<Row::TEST, lm_bool, T>>(l, stream);
  }
  static int run(const lm_pointwise_launch *l, int num_dtype, void *stream) {
    int dtype = lm_flat_dtype(l, num_dtype, Row::TEST);
    if (dtype == num_dtype) return flat<num>(l, stream);
    if constexpr (std::is_same_v<num, float>) {
      if (dtype == LM_F16) return flat<lm_f16>(l, stream);
      if (dtype == LM_BF16) return flat<lm_bf16>(l, stream);
    }
    if constexpr (lm_row_mixes<Row>::FLOATS || lm_row_mixes<Row>::MASK) {
      int error;
      if (lm_pointwise_run_mixed<Row>(l, stream, &error)) return error;
    }
    return lm_pointwise_run_strided<Row, num>(l, stream);
  }
};

/* Defines a launcher of pointwise.h. */
#define LM_POINTWISE_LAUNCHER(name, row, num, dtype)                       \
  int name(const lm_pointwise_launch *launch, void *stream) {              \
    return lm_pointwise_runner<row<num>, num>::run(launch, dtype, stream); \
  }
