/* Graphs of products, reductions, random bits and elementwise operations, computed one operation after the other. */
#include <math.h>

#include "fake_cudnn.h"

typedef lm_fake_tensor tensor;
typedef lm_fake_operation node;

static int64_t count(const tensor &t) { return t.size[0] * t.size[1] * t.size[2] * t.size[3]; }

/* Returns t's index of (a, b, c, d) of a larger tensor, row-major: dims of 1 are repeated, each of fewer heads serves
 * several. */
static size_t seen(const tensor &t, const tensor &from, const int64_t *at) {
  size_t place = 0;
  for (int d = 0; d < 4; d++) {
    int64_t i = t.size[d] == 1 ? 0 : d == 1 ? at[1] / (from.size[1] / t.size[1]) : at[d];
    place = place * (size_t)t.size[d] + (size_t)i;
  }
  return place;
}

template <class F>
static void each(const tensor &t, F f) {
  int64_t at[4];
  size_t i = 0;
  for (at[0] = 0; at[0] < t.size[0]; at[0]++)
    for (at[1] = 0; at[1] < t.size[1]; at[1]++)
      for (at[2] = 0; at[2] < t.size[2]; at[2]++)
        for (at[3] = 0; at[3] < t.size[3]; at[3]++) f(at, i++);
}

static double rounded(const tensor &t, double v) {
  unsigned char capacity[8];
  if (t.dtype == LM_NO_DTYPE) return v;
  lm_fake_write(t.dtype, capacity, 0, v);
  return lm_fake_read(t.dtype, capacity, 0);
}

/* Row-major values of a tensor: computed before, or read. */
typedef std::map<int64_t, std::vector<double>> values;

static std::vector<double> take(const tensor &t, const values &known, const std::map<int64_t, void *> &memory,
                                const std::map<int64_t, double> &numbers) {
  auto found = known.find(t.id);
  if (t.number) return {numbers.at(t.id)};
  std::vector<double> v((size_t)count(t));
  if (found == known.end()) {
    const void *p = memory.at(t.id);
    each(t, [&](const int64_t *at, size_t i) { v[i] = lm_fake_read(t.dtype, p, t.at(at[0], at[1], at[2], at[3])); });
  } else {
    v = found->second;
  }
  return v;
}

static double point(const node &n, double x, double b, double t, const int64_t *at) {
  switch (n.mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_GEN_INDEX: return (double)at[n.axis];
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    default: return t != 0 ? x : b; /* BINARY_SELECT */
  }
}

static int operands_of(int mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE: return 2;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX: return 1;
    case CUDNN_POINTWISE_BINARY_SELECT: return 3;
    default: return 0;
  }
}

static bool fits(const tensor &part, const tensor &whole) {
  bool good = true;
  for (int d = 0; d < 4; d++)
    good =
        good && (part.size[d] == 1 || part.size[d] == whole.size[d] || (d == 1 && whole.size[1] % part.size[1] == 0));
  return good;
}

static const char *problem_of(const node &n) {
  const tensor &x = n.x, &b = n.b, &y = n.y;
  switch (n.kind) {
    case node::POINT:
      if (operands_of(n.mode) != n.operands) return "how many operands an elementwise operation has";
      if (n.mode == CUDNN_POINTWISE_GEN_INDEX && (n.axis < 0 || n.axis > 3)) return "an axis";
      for (const tensor *t : {&n.x, &n.b, &n.t})
        if (t - &n.x < n.operands && !fits(*t, y)) return "sizes of an elementwise operation";
      return NULL;
    case node::PRODUCT:
      if (x.size[3] != b.size[2] || y.size[2] != x.size[2] || y.size[3] != b.size[3] || x.size[0] != y.size[0] ||
          b.size[0] != y.size[0] || y.size[1] % x.size[1] != 0 || y.size[1] % b.size[1] != 0)
        return "sizes of a product";
      return NULL;
    case node::REDUCTION:
      if (n.mode != CUDNN_REDUCE_TENSOR_MAX && n.mode != CUDNN_REDUCE_TENSOR_ADD) return "a reduction";
      return fits(y, x) ? NULL : "sizes of a reduction";
    case node::RANDOM:
      if (x.dtype != LM_I64 || b.dtype != LM_I64 || count(x) != 1 || count(b) != 1) return "a seed and an offset";
      return n.probability > 0 && n.probability <= 1 ? NULL : "a probability";
    default: return count(x) == count(y) ? NULL : "sizes of a reshape";
  }
}

const char *lm_fake_fused_problem(const std::vector<node> &nodes) {
  values known; /* values computed so far */
  for (const node &n : nodes) {
    const char *problem = problem_of(n);
    if (problem) return problem;
    for (const tensor *t : {&n.x, &n.b, &n.t}) {
      bool there = t - &n.x < n.operands;
      if (there && t->inside && !known.count(t->id)) return "an operand is computed nowhere";
      if (there && !t->inside && t->dtype == LM_NO_DTYPE) return "the type of a tensor in memory";
    }
    if (n.y.number || known.count(n.y.id)) return "a result that has a value";
    known[n.y.id];
  }
  return NULL;
}

/* Returns whether the element is 1, by its own generator (splitmix64), since nobody knows the library's. */
static bool drawn(double seed, double offset, uint64_t i, double probability) {
  uint64_t bits = (uint64_t)seed * 0x9e3779b97f4a7c15u ^ ((uint64_t)offset << 32) ^ (i + 1) * 0xd1342543de82ef95u;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  return (double)((bits ^ bits >> 31) >> 11) * 0x1p-53 < probability;
}

void lm_fake_fused_run(const std::vector<node> &nodes, const std::map<int64_t, void *> &memory,
                       const std::map<int64_t, double> &numbers) {
  values known;
  for (const node &n : nodes) {
    std::vector<double> x = take(n.x, known, memory, numbers), b, t, y((size_t)count(n.y));
    if (n.operands > 1) b = take(n.b, known, memory, numbers);
    if (n.operands > 2) t = take(n.t, known, memory, numbers);
    if (n.kind == node::POINT) {
      each(n.y, [&](const int64_t *at, size_t i) {
        y[i] = point(n, x[seen(n.x, n.y, at)], n.operands > 1 ? b[seen(n.b, n.y, at)] : 0,
                     n.operands > 2 ? t[seen(n.t, n.y, at)] : 0, at);
      });
    } else if (n.kind == node::PRODUCT) {
      each(n.y, [&](const int64_t *at, size_t i) {
        for (int64_t k = 0; k < n.x.size[3]; k++) {
          int64_t row[4] = {at[0], at[1] / (n.y.size[1] / n.x.size[1]), at[2], k};
          int64_t column[4] = {at[0], at[1] / (n.y.size[1] / n.b.size[1]), k, at[3]};
          y[i] += x[seen(n.x, n.x, row)] * b[seen(n.b, n.b, column)];
        }
      });
    } else if (n.kind == node::REDUCTION) {
      bool most = n.mode == CUDNN_REDUCE_TENSOR_MAX;
      if (most) y.assign(y.size(), -INFINITY);
      each(n.x, [&](const int64_t *at, size_t i) {
        double &to = y[seen(n.y, n.x, at)];
        to = most ? fmax(to, x[i]) : to + x[i];
      });
    } else if (n.kind == node::RANDOM) {
      for (size_t i = 0; i < y.size(); i++) y[i] = drawn(x[0], b[0], i, n.probability);
    } else { /* y is the same memory with other sizes and strides */
      std::map<int64_t, double> lying;
      each(n.x, [&](const int64_t *at, size_t i) { lying[n.x.at(at[0], at[1], at[2], at[3])] = x[i]; });
      each(n.y, [&](const int64_t *at, size_t i) { y[i] = lying.at(n.y.at(at[0], at[1], at[2], at[3])); });
    }
    for (double &v : y) v = rounded(n.y, v);
    if (!n.y.inside) {
      void *p = memory.at(n.y.id);
      each(n.y,
           [&](const int64_t *at, size_t i) { lm_fake_write(n.y.dtype, p, n.y.at(at[0], at[1], at[2], at[3]), y[i]); });
    }
    known[n.y.id] = y;
  }
}
