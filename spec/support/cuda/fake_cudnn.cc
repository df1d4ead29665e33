/* cuDNN's graph API, as far as the backend uses it: convolution's three passes, and a bias added in the same graph, by
 * plain loops; and graphs of other operations, as attention is (fake_cudnn_fused.cc). Descriptors are tables of
 * attributes that know which names, types and counts they take; finalizing checks that what is needed is there and
 * fits, and nothing can be set afterwards.
 *
 * The engines it offers are made up, so that a caller meets what the real library has in store:
 *   0  is proposed first, many times over; in float it rounds inputs to TF32 and has the note TENSOR_CORE; needs a
 *      workspace
 *   1  has the note NONDETERMINISTIC
 *   2  has no notes
 *   3  only in the fallback list: all the others lack what it takes
 * No engine takes groups in double; channels-last in double with dilation has none; in double a bias is never in the
 * graph. Engine 0 refuses to become a plan for an odd number of input channels, and in half precision tensors that are
 * contiguous, or promised to be aligned to less than 16 bytes, are engine 3's. A tensor that exists only in the graph
 * must be aligned to 16.
 *
 * Graphs of other operations are engine 4's, in half precision and with 8 numbers in a row or a multiple; in the
 * fallback list there is none. */
#include "fake_cudnn.h"

#include <stdio.h>

#include <memory>
#include <set>

namespace {
enum {
  WORKSPACE = 1024,
  ENGINES = 4,
  TENSOR_CORE_ENGINE = 0,
  LAST_ENGINE = 3,
  FUSED_ENGINE = 4,
  TENSOR_CORE_CONFIGS = 30,
  ALIGN = 16
};

struct descriptor;
typedef std::shared_ptr<descriptor> reference;

struct attribute {
  cudnnBackendAttributeType_t type;
  std::vector<unsigned char> bytes;
  std::vector<reference> part;
};

struct descriptor {
  cudnnBackendDescriptorType_t type;
  bool final = false;
  int engine = -1; /* number of an engine or its config; else -1 */
  std::map<int, attribute> attributes;

  bool has(int name) const { return attributes.count(name) > 0; }
  const descriptor &part(int name, size_t i = 0) const { return *attributes.at(name).part.at(i); }
  size_t parts(int name) const { return has(name) ? attributes.at(name).part.size() : 0; }
  template <class T>
  T get(int name, size_t i = 0) const {
    T v;
    memcpy(&v, &attributes.at(name).bytes.at(i * sizeof v), sizeof v);
    return v;
  }
};

struct holder { /* target of a caller's handle: its descriptor lives on in others */
  reference of;
};

typedef lm_fake_cudnn library;

/* An attribute of a type: name, type of the values, how many at least and at most; needed unless `may`. */
struct row {
  cudnnBackendDescriptorType_t of;
  int name;
  cudnnBackendAttributeType_t type;
  int least, most;
  bool may;
  int part; /* type of BACKEND_DESCRIPTOR values, or OPERATION: any of those */
};
}  // namespace

#define D(name) CUDNN_BACKEND_##name##_DESCRIPTOR
#define A(name) CUDNN_ATTR_##name
#define T(name) CUDNN_TYPE_##name
enum { NONE = -2, OPERATION = -1 }; /* for the type of a part */
#define CONVOLUTION(of, prefix, x, y, w)                                             \
  {D(of), A(prefix##_##x), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},           \
      {D(of), A(prefix##_##w), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},       \
      {D(of), A(prefix##_##y), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)}, {     \
    D(of), A(prefix##_CONV_DESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(CONVOLUTION) \
  }

static const row ROWS[] = {
    {D(TENSOR), A(TENSOR_UNIQUE_ID), T(INT64), 1, 1, false, NONE},
    {D(TENSOR), A(TENSOR_DATA_TYPE), T(DATA_TYPE), 1, 1, false, NONE},
    {D(TENSOR), A(TENSOR_DIMENSIONS), T(INT64), 4, 4, false, NONE},
    {D(TENSOR), A(TENSOR_STRIDES), T(INT64), 4, 4, false, NONE},
    {D(TENSOR), A(TENSOR_BYTE_ALIGNMENT), T(INT64), 1, 1, false, NONE},
    {D(TENSOR), A(TENSOR_IS_VIRTUAL), T(BOOLEAN), 1, 1, true, NONE},
    {D(TENSOR), A(TENSOR_IS_BY_VALUE), T(BOOLEAN), 1, 1, true, NONE},
    {D(MATMUL), A(MATMUL_COMP_TYPE), T(DATA_TYPE), 1, 1, false, NONE},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_ADESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_BDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_CDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_DESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(MATMUL)},
    {D(REDUCTION), A(REDUCTION_OPERATOR), T(REDUCTION_OPERATOR_TYPE), 1, 1, false, NONE},
    {D(REDUCTION), A(REDUCTION_COMP_TYPE), T(DATA_TYPE), 1, 1, false, NONE},
    {D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_DESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(REDUCTION)},
    {D(OPERATION_RESHAPE), A(OPERATION_RESHAPE_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_RESHAPE), A(OPERATION_RESHAPE_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(RNG), A(RNG_DISTRIBUTION), T(RNG_DISTRIBUTION), 1, 1, false, NONE},
    {D(RNG), A(RNG_BERNOULLI_DIST_PROBABILITY), T(DOUBLE), 1, 1, false, NONE},
    {D(OPERATION_RNG), A(OPERATION_RNG_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_RNG), A(OPERATION_RNG_SEED), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_RNG), A(OPERATION_RNG_OFFSET_DESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_RNG), A(OPERATION_RNG_DESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(RNG)},
    {D(CONVOLUTION), A(CONVOLUTION_SPATIAL_DIMS), T(INT64), 1, 1, false, NONE},
    {D(CONVOLUTION), A(CONVOLUTION_COMP_TYPE), T(DATA_TYPE), 1, 1, false, NONE},
    {D(CONVOLUTION), A(CONVOLUTION_CONV_MODE), T(CONVOLUTION_MODE), 1, 1, false, NONE},
    {D(CONVOLUTION), A(CONVOLUTION_FILTER_STRIDES), T(INT64), 2, 2, false, NONE},
    {D(CONVOLUTION), A(CONVOLUTION_PRE_PADDINGS), T(INT64), 2, 2, false, NONE},
    {D(CONVOLUTION), A(CONVOLUTION_POST_PADDINGS), T(INT64), 2, 2, false, NONE},
    {D(CONVOLUTION), A(CONVOLUTION_DILATIONS), T(INT64), 2, 2, false, NONE},
    CONVOLUTION(OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD, X, Y, W),
    CONVOLUTION(OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA, DX, DY, W),
    CONVOLUTION(OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER, X, DY, DW),
    {D(POINTWISE), A(POINTWISE_MODE), T(POINTWISE_MODE), 1, 1, false, NONE},
    {D(POINTWISE), A(POINTWISE_MATH_PREC), T(DATA_TYPE), 1, 1, false, NONE},
    {D(POINTWISE), A(POINTWISE_AXIS), T(INT64), 1, 1, true, NONE},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_PW_DESCRIPTOR), T(BACKEND_DESCRIPTOR), 1, 1, false, D(POINTWISE)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_BDESC), T(BACKEND_DESCRIPTOR), 1, 1, true, D(TENSOR)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_TDESC), T(BACKEND_DESCRIPTOR), 1, 1, true, D(TENSOR)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, false, D(TENSOR)},
    {D(OPERATIONGRAPH), A(OPERATIONGRAPH_OPS), T(BACKEND_DESCRIPTOR), 1, 64, false, OPERATION},
    {D(OPERATIONGRAPH), A(OPERATIONGRAPH_HANDLE), T(HANDLE), 1, 1, false, NONE},
    {D(ENGINEHEUR), A(ENGINEHEUR_OPERATION_GRAPH), T(BACKEND_DESCRIPTOR), 1, 1, false, D(OPERATIONGRAPH)},
    {D(ENGINEHEUR), A(ENGINEHEUR_MODE), T(HEUR_MODE), 1, 1, false, NONE},
    {D(EXECUTION_PLAN), A(EXECUTION_PLAN_ENGINE_CONFIG), T(BACKEND_DESCRIPTOR), 1, 1, false, D(ENGINECFG)},
    {D(EXECUTION_PLAN), A(EXECUTION_PLAN_HANDLE), T(HANDLE), 1, 1, false, NONE},
    {D(VARIANT_PACK), A(VARIANT_PACK_UNIQUE_IDS), T(INT64), 1, 32, false, NONE},
    {D(VARIANT_PACK), A(VARIANT_PACK_DATA_POINTERS), T(VOID_PTR), 1, 32, false, NONE},
    {D(VARIANT_PACK), A(VARIANT_PACK_WORKSPACE), T(VOID_PTR), 1, 1, false, NONE},
};
/* A convolution's factors are float or, computing in double, double. */
static const struct {
  cudnnBackendDescriptorType_t of;
  int x, y, w, how, alpha, beta;
} CONVOLUTIONS[] = {
    {D(OPERATION_CONVOLUTION_FORWARD), A(OPERATION_CONVOLUTION_FORWARD_X), A(OPERATION_CONVOLUTION_FORWARD_Y),
     A(OPERATION_CONVOLUTION_FORWARD_W), A(OPERATION_CONVOLUTION_FORWARD_CONV_DESC),
     A(OPERATION_CONVOLUTION_FORWARD_ALPHA), A(OPERATION_CONVOLUTION_FORWARD_BETA)},
    {D(OPERATION_CONVOLUTION_BACKWARD_DATA), A(OPERATION_CONVOLUTION_BWD_DATA_DX), A(OPERATION_CONVOLUTION_BWD_DATA_DY),
     A(OPERATION_CONVOLUTION_BWD_DATA_W), A(OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC),
     A(OPERATION_CONVOLUTION_BWD_DATA_ALPHA), A(OPERATION_CONVOLUTION_BWD_DATA_BETA)},
    {D(OPERATION_CONVOLUTION_BACKWARD_FILTER), A(OPERATION_CONVOLUTION_BWD_FILTER_X),
     A(OPERATION_CONVOLUTION_BWD_FILTER_DY), A(OPERATION_CONVOLUTION_BWD_FILTER_DW),
     A(OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC), A(OPERATION_CONVOLUTION_BWD_FILTER_ALPHA),
     A(OPERATION_CONVOLUTION_BWD_FILTER_BETA)},
};
enum { FORWARD, INPUT, WEIGHT, PASSES };

static int pass_of(cudnnBackendDescriptorType_t type) {
  int pass = 0;
  while (pass < PASSES && CONVOLUTIONS[pass].of != type) pass++;
  return pass;
}

static thread_local char message[256];

cudnnStatus_t lm_fake_refuse(cudnnStatus_t status, const char *why) {
  snprintf(message, sizeof message, "fake: %s", why);
  return status;
}
static cudnnStatus_t (*const refuse)(cudnnStatus_t, const char *) = lm_fake_refuse;

/* ---- what a graph says ---- */

int lm_fake_dtype_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_HALF: return LM_F16;
    case CUDNN_DATA_BFLOAT16: return LM_BF16;
    case CUDNN_DATA_FLOAT: return LM_F32;
    case CUDNN_DATA_DOUBLE: return LM_F64;
    case CUDNN_DATA_INT64: return LM_I64;
    default: return LM_NO_DTYPE;
  }
}

namespace {
typedef lm_fake_tensor tensor;
struct work {
  int pass;
  tensor x, w, y, bias; /* y: where the result goes */
  bool biased, wide;
  int64_t stride[2], padding[2], dilation[2];
  double alpha, beta;
};
}  // namespace

static tensor tensor_of(const descriptor &d) {
  tensor t;
  t.id = d.get<int64_t>(A(TENSOR_UNIQUE_ID));
  t.align = d.get<int64_t>(A(TENSOR_BYTE_ALIGNMENT));
  t.dtype = lm_fake_dtype_of(d.get<cudnnDataType_t>(A(TENSOR_DATA_TYPE)));
  t.inside = d.has(A(TENSOR_IS_VIRTUAL)) && d.get<bool>(A(TENSOR_IS_VIRTUAL));
  t.number = d.has(A(TENSOR_IS_BY_VALUE)) && d.get<bool>(A(TENSOR_IS_BY_VALUE));
  for (int i = 0; i < 4; i++) {
    t.size[i] = d.get<int64_t>(A(TENSOR_DIMENSIONS), i);
    t.stride[i] = d.get<int64_t>(A(TENSOR_STRIDES), i);
  }
  return t;
}

static bool channels_last(const tensor &t) { return t.stride[1] == 1 && t.size[1] > 1; }

/* Returns the one convolution of the graph, and the bias added to it. */
static work work_of(const descriptor &graph) {
  const descriptor &op = graph.part(A(OPERATIONGRAPH_OPS), 0);
  work j;
  j.pass = pass_of(op.type);
  auto &names = CONVOLUTIONS[j.pass];
  const descriptor &how = op.part(names.how);
  j.x = tensor_of(op.part(names.x));
  j.w = tensor_of(op.part(names.w));
  j.y = tensor_of(op.part(names.y));
  j.wide = how.get<cudnnDataType_t>(A(CONVOLUTION_COMP_TYPE)) == CUDNN_DATA_DOUBLE;
  j.alpha = j.wide ? op.get<double>(names.alpha) : op.get<float>(names.alpha);
  j.beta = j.wide ? op.get<double>(names.beta) : op.get<float>(names.beta);
  for (int i = 0; i < 2; i++) {
    j.stride[i] = how.get<int64_t>(A(CONVOLUTION_FILTER_STRIDES), i);
    j.padding[i] = how.get<int64_t>(A(CONVOLUTION_PRE_PADDINGS), i);
    j.dilation[i] = how.get<int64_t>(A(CONVOLUTION_DILATIONS), i);
  }
  j.biased = graph.parts(A(OPERATIONGRAPH_OPS)) > 1;
  if (j.biased) {
    const descriptor &add = graph.part(A(OPERATIONGRAPH_OPS), 1);
    j.bias = tensor_of(add.part(A(OPERATION_POINTWISE_BDESC)));
    j.y = tensor_of(add.part(A(OPERATION_POINTWISE_YDESC)));
  }
  return j;
}

static bool is_convolution(const descriptor &graph) {
  return pass_of(graph.part(A(OPERATIONGRAPH_OPS), 0).type) < PASSES;
}

static lm_fake_operation node_of(const descriptor &op) {
  lm_fake_operation n = {};
  n.operands = 1;
  switch (op.type) {
    case D(OPERATION_MATMUL):
      n.kind = lm_fake_operation::PRODUCT;
      n.operands = 2;
      n.x = tensor_of(op.part(A(OPERATION_MATMUL_ADESC)));
      n.b = tensor_of(op.part(A(OPERATION_MATMUL_BDESC)));
      n.y = tensor_of(op.part(A(OPERATION_MATMUL_CDESC)));
      break;
    case D(OPERATION_REDUCTION):
      n.kind = lm_fake_operation::REDUCTION;
      n.mode = op.part(A(OPERATION_REDUCTION_DESC)).get<cudnnReduceTensorOp_t>(A(REDUCTION_OPERATOR));
      n.x = tensor_of(op.part(A(OPERATION_REDUCTION_XDESC)));
      n.y = tensor_of(op.part(A(OPERATION_REDUCTION_YDESC)));
      break;
    case D(OPERATION_RESHAPE):
      n.kind = lm_fake_operation::RESHAPE;
      n.x = tensor_of(op.part(A(OPERATION_RESHAPE_XDESC)));
      n.y = tensor_of(op.part(A(OPERATION_RESHAPE_YDESC)));
      break;
    case D(OPERATION_RNG):
      n.kind = lm_fake_operation::RANDOM;
      n.operands = 2;
      n.probability = op.part(A(OPERATION_RNG_DESC)).get<double>(A(RNG_BERNOULLI_DIST_PROBABILITY));
      n.x = tensor_of(op.part(A(OPERATION_RNG_SEED)));
      n.b = tensor_of(op.part(A(OPERATION_RNG_OFFSET_DESC)));
      n.y = tensor_of(op.part(A(OPERATION_RNG_YDESC)));
      break;
    default: {
      const descriptor &how = op.part(A(OPERATION_POINTWISE_PW_DESCRIPTOR));
      n.kind = lm_fake_operation::POINT;
      n.mode = how.get<cudnnPointwiseMode_t>(A(POINTWISE_MODE));
      n.axis = how.has(A(POINTWISE_AXIS)) ? how.get<int64_t>(A(POINTWISE_AXIS)) : -1;
      n.x = tensor_of(op.part(A(OPERATION_POINTWISE_XDESC)));
      n.y = tensor_of(op.part(A(OPERATION_POINTWISE_YDESC)));
      if (op.has(A(OPERATION_POINTWISE_BDESC))) n.b = tensor_of(op.part(A(OPERATION_POINTWISE_BDESC))), n.operands = 2;
      if (op.has(A(OPERATION_POINTWISE_TDESC))) n.t = tensor_of(op.part(A(OPERATION_POINTWISE_TDESC))), n.operands = 3;
    }
  }
  return n;
}

static std::vector<lm_fake_operation> nodes_of(const descriptor &graph) {
  std::vector<lm_fake_operation> nodes;
  for (size_t i = 0; i < graph.parts(A(OPERATIONGRAPH_OPS)); i++)
    nodes.push_back(node_of(graph.part(A(OPERATIONGRAPH_OPS), i)));
  return nodes;
}

/* Returns all tensors that a graph's nodes read and write, once each. */
static std::map<int64_t, tensor> tensors_of(const std::vector<lm_fake_operation> &nodes) {
  std::map<int64_t, tensor> all;
  for (const lm_fake_operation &n : nodes) {
    for (const tensor *t : {&n.x, &n.b, &n.t})
      if (t - &n.x < n.operands) all.emplace(t->id, *t);
    all.emplace(n.y.id, n.y);
  }
  return all;
}

/* Products of halves, of which rows are packs of 16 bytes; one that has a tensor of its own in memory is of numbers. */
static bool fused_takes(const std::vector<lm_fake_operation> &nodes) {
  bool good = true;
  for (const lm_fake_operation &n : nodes) {
    if (n.kind != lm_fake_operation::PRODUCT) continue;
    for (const tensor *t : {&n.x, &n.b}) {
      bool half = t->dtype == LM_F16 || t->dtype == LM_BF16;
      int64_t row = t->stride[3] == 1 ? t->size[3] : t->size[2];
      good = good && half && (t->inside || (row % 8 == 0 && t->align % ALIGN == 0));
    }
  }
  return good;
}

static bool engine_takes(int engine, const work &j) {
  int64_t groups = j.x.size[1] / j.w.size[1];
  bool last = channels_last(j.y) || channels_last(j.x);
  if (j.wide && (groups > 1 || j.biased)) return false;
  if (j.wide && last && (j.dilation[0] > 1 || j.dilation[1] > 1)) return false;
  if (engine == TENSOR_CORE_ENGINE && j.x.size[1] % 2 != 0) return false;
  bool half = j.x.dtype == LM_F16 || j.x.dtype == LM_BF16;
  bool aligned = true;
  for (const tensor *t : {&j.x, &j.w, &j.y}) aligned = aligned && t->align >= ALIGN;
  return engine == LAST_ENGINE || !half || (last && aligned);
}

/* ---- the loops: each element of the result is one sum ---- */

static int64_t output_at(int64_t in, int64_t tap, const work &j, int i, int64_t size) {
  int64_t from = in + j.padding[i] - tap * j.dilation[i];
  return from >= 0 && from % j.stride[i] == 0 && from / j.stride[i] < size ? from / j.stride[i] : -1;
}

static void convolve(const work &j, const void *x, const void *w, const void *y, const void *bias, bool tf32) {
  tensor result = j.pass == FORWARD ? j.y : j.pass == INPUT ? j.x : j.w;
  void *out = (void *)(j.pass == FORWARD ? y : j.pass == INPUT ? x : w);
  int64_t count = result.size[0] * result.size[1] * result.size[2] * result.size[3];
  int64_t each = j.w.size[1], outs = j.y.size[1] / (j.x.size[1] / each);
  std::vector<double> sum((size_t)count, 0.0);
  auto index = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
    return (size_t)(((a * result.size[1] + b) * result.size[2] + c) * result.size[3] + d);
  };
  auto read = [&](const tensor &t, const void *p, int64_t at) {
    double v = lm_fake_read(t.dtype, p, at);
    return tf32 ? lm_fake_tf32(v) : v;
  };
  for (int64_t n = 0; n < j.x.size[0]; n++)
    for (int64_t k = 0; k < j.y.size[1]; k++)
      for (int64_t c = 0; c < each; c++)
        for (int64_t a = 0; a < j.w.size[2]; a++)
          for (int64_t b = 0; b < j.w.size[3]; b++)
            for (int64_t h = 0; h < j.x.size[2]; h++) {
              int64_t oh = output_at(h, a, j, 0, j.y.size[2]);
              if (oh < 0) continue;
              for (int64_t v = 0; v < j.x.size[3]; v++) {
                int64_t ow = output_at(v, b, j, 1, j.y.size[3]), channel = k / outs * each + c;
                if (ow < 0) continue;
                if (j.pass == FORWARD) {
                  sum[index(n, k, oh, ow)] += read(j.x, x, j.x.at(n, channel, h, v)) * read(j.w, w, j.w.at(k, c, a, b));
                } else if (j.pass == INPUT) {
                  sum[index(n, channel, h, v)] += read(j.y, y, j.y.at(n, k, oh, ow)) * read(j.w, w, j.w.at(k, c, a, b));
                } else {
                  sum[index(k, c, a, b)] += read(j.y, y, j.y.at(n, k, oh, ow)) * read(j.x, x, j.x.at(n, channel, h, v));
                }
              }
            }
  for (int64_t a = 0; a < result.size[0]; a++)
    for (int64_t b = 0; b < result.size[1]; b++)
      for (int64_t c = 0; c < result.size[2]; c++)
        for (int64_t d = 0; d < result.size[3]; d++) {
          double value = j.alpha * sum[index(a, b, c, d)];
          if (j.beta != 0) value += j.beta * lm_fake_read(result.dtype, out, result.at(a, b, c, d));
          if (j.biased) value += lm_fake_read(j.bias.dtype, bias, j.bias.at(0, b, 0, 0));
          lm_fake_write(result.dtype, out, result.at(a, b, c, d), value);
        }
}

/* ---- checks of whole descriptors ---- */

static cudnnStatus_t check_tensor(const descriptor &d) {
  tensor t = tensor_of(d);
  if (t.id < 1) return refuse(CUDNN_STATUS_BAD_PARAM, "unique ids begin at 1");
  if (t.dtype < 0 && !t.inside) return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a tensor's type");
  if (t.inside && t.number) return refuse(CUDNN_STATUS_BAD_PARAM, "a number inside");
  for (int i = 0; i < 4; i++)
    if (t.size[i] < 1 || t.stride[i] < 1) return refuse(CUDNN_STATUS_BAD_PARAM, "a size or stride below 1");
  if (t.align < 1 || (t.align & (t.align - 1)) != 0) return refuse(CUDNN_STATUS_BAD_PARAM, "an alignment");
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_convolution(const descriptor &op, int pass) {
  auto &names = CONVOLUTIONS[pass];
  const descriptor &how = op.part(names.how);
  tensor x = tensor_of(op.part(names.x)), w = tensor_of(op.part(names.w)), y = tensor_of(op.part(names.y));
  bool wide = how.get<cudnnDataType_t>(A(CONVOLUTION_COMP_TYPE)) == CUDNN_DATA_DOUBLE;
  for (int name : {names.alpha, names.beta}) {
    if (!op.has(name) || op.attributes.at(name).type != (wide ? T(DOUBLE) : T(FLOAT)))
      return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "alpha and beta are of the type computed in");
  }
  if (wide != (x.dtype == LM_F64) || x.dtype != w.dtype || (x.dtype != y.dtype && !y.inside))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types that do not go together");
  if (x.size[0] != y.size[0] || w.size[0] != y.size[1] || x.size[1] % w.size[1] != 0)
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "sizes of x, w and y");
  for (int i = 0; i < 2; i++) {
    int64_t stride = how.get<int64_t>(A(CONVOLUTION_FILTER_STRIDES), i);
    int64_t padding =
        how.get<int64_t>(A(CONVOLUTION_PRE_PADDINGS), i) + how.get<int64_t>(A(CONVOLUTION_POST_PADDINGS), i);
    int64_t reach = how.get<int64_t>(A(CONVOLUTION_DILATIONS), i) * (w.size[2 + i] - 1) + 1;
    if (y.size[2 + i] != (x.size[2 + i] + padding - reach) / stride + 1)
      return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the size of y");
  }
  return CUDNN_STATUS_SUCCESS;
}

/* Accepts one convolution, whose result may go through one addition of a bias; every tensor has its own number. */
static cudnnStatus_t check_graph(const descriptor &graph) {
  size_t ops = graph.parts(A(OPERATIONGRAPH_OPS));
  const descriptor &first = graph.part(A(OPERATIONGRAPH_OPS), 0);
  int pass = pass_of(first.type);
  if (!is_convolution(graph)) {
    const char *problem = lm_fake_fused_problem(nodes_of(graph));
    return problem ? refuse(CUDNN_STATUS_BAD_PARAM, problem) : CUDNN_STATUS_SUCCESS;
  }
  if (ops > 2 || pass == PASSES) return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the graph");
  std::set<int64_t> ids;
  auto &names = CONVOLUTIONS[pass];
  for (int name : {names.x, names.w, names.y}) ids.insert(tensor_of(first.part(name)).id);
  size_t distinct = 3;
  tensor result = tensor_of(first.part(names.y));
  if (ops == 2) {
    const descriptor &add = graph.part(A(OPERATIONGRAPH_OPS), 1);
    if (pass != FORWARD || add.type != D(OPERATION_POINTWISE))
      return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the graph");
    tensor sum = tensor_of(add.part(A(OPERATION_POINTWISE_XDESC))),
           y = tensor_of(add.part(A(OPERATION_POINTWISE_YDESC)));
    tensor bias = tensor_of(add.part(A(OPERATION_POINTWISE_BDESC)));
    if (result.inside && result.align < ALIGN) return refuse(CUDNN_STATUS_BAD_PARAM, "the alignment of the sum");
    if (sum.id != result.id || !result.inside || y.inside)
      return refuse(CUDNN_STATUS_BAD_PARAM, "the addition is not of the convolution's result");
    if (bias.size[1] != y.size[1] || bias.size[0] * bias.size[2] * bias.size[3] != 1)
      return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the bias");
    ids.insert(y.id);
    ids.insert(bias.id);
    distinct = 5;
  } else if (result.inside) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "the result is nowhere to be found");
  }
  if (ids.size() != distinct) return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "tensors' numbers");
  return CUDNN_STATUS_SUCCESS;
}

/* Checks a plan. An engine config stands for an engine and, through A(ENGINEHEUR_OPERATION_GRAPH), for its graph. */
static cudnnStatus_t check_plan(const descriptor &plan) {
  const descriptor &config = plan.part(A(EXECUTION_PLAN_ENGINE_CONFIG));
  const descriptor &graph = config.part(A(ENGINEHEUR_OPERATION_GRAPH));
  if (is_convolution(graph) && !engine_takes(config.engine, work_of(graph)))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the engine does not take this after all");
  return CUDNN_STATUS_SUCCESS;
}

/* ---- the API ---- */

static const row *find_row(cudnnBackendDescriptorType_t of, int name) {
  for (const row &r : ROWS)
    if (r.of == of && r.name == name) return &r;
  return NULL;
}

static size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case T(BOOLEAN): return sizeof(bool);
    case T(INT64):
    case T(DOUBLE): return 8;
    case T(HANDLE):
    case T(VOID_PTR): return sizeof(void *);
    default: return 4; /* enumerations, float */
  }
}

static bool is_factor(const descriptor &d, int name) {
  int pass = pass_of(d.type);
  return pass < PASSES && (name == CONVOLUTIONS[pass].alpha || name == CONVOLUTIONS[pass].beta);
}

static bool is_operation(const descriptor &d) {
  return pass_of(d.type) < PASSES || d.type == D(OPERATION_POINTWISE) || d.type == D(OPERATION_MATMUL) ||
         d.type == D(OPERATION_REDUCTION) || d.type == D(OPERATION_RESHAPE) || d.type == D(OPERATION_RNG);
}

#define ENTER() LM_FAKE_ENTER(cudnnStatus_t)

extern "C" {

LM_FAKE_API size_t cudnnGetVersion(void) { return CUDNN_VERSION; }

LM_FAKE_API const char *cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS";
  }
}

LM_FAKE_API void cudnnGetLastErrorString(char *text, size_t most) {
  snprintf(text, most, "%s", message);
  message[0] = '\0';
}

LM_FAKE_API cudnnStatus_t cudnnCreate(cudnnHandle_t *out) {
  ENTER();
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "no device");
  lm_fake_waits_for(device);
  library *made = new library{device, NULL, NULL};
  if (cudaMalloc(&made->memory, 256) != cudaSuccess) { /* a capture forbids cudaMalloc */
    delete made;
    return refuse(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "no memory for the handle");
  }
  *out = (cudnnHandle_t)made;
  lm_fake_count("handle", 1);
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  int code = lm_fake_enter(__func__);
  cudaFree(((library *)handle)->memory);
  delete (library *)handle;
  lm_fake_count("handle", -1);
  return (cudnnStatus_t)code;
}

LM_FAKE_API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  ENTER();
  ((library *)handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t *out) {
  ENTER();
  bool known = type == D(ENGINECFG) || type == D(ENGINE);
  for (const row &r : ROWS) known = known || r.of == type;
  if (!known) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this type of descriptor");
  holder *made = new holder{std::make_shared<descriptor>()};
  made->of->type = type;
  *out = (cudnnBackendDescriptor_t)made;
  lm_fake_count("descriptor", 1);
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  int code = lm_fake_enter(__func__);
  delete (holder *)d;
  lm_fake_count("descriptor", -1);
  return (cudnnStatus_t)code;
}

LM_FAKE_API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t count, const void *value) {
  ENTER();
  descriptor &d = *((holder *)to)->of;
  if (d.final) return refuse(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
  const row *r = find_row(d.type, name);
  bool factor = is_factor(d, name);
  if (!r && !factor) return refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "an attribute that this descriptor lacks");
  if (factor ? type != T(FLOAT) && type != T(DOUBLE) : type != r->type)
    return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "the type of an attribute");
  if (factor ? count != 1 : count < r->least || count > r->most)
    return refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "how many values an attribute has");
  if (!value) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no value");
  attribute a;
  a.type = type;
  if (type == T(BACKEND_DESCRIPTOR)) {
    for (int64_t i = 0; i < count; i++) {
      holder *part = ((holder *const *)value)[i];
      if (!part || !part->of->final) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a part is not finalized");
      if (r->part == OPERATION ? !is_operation(*part->of) : (int)part->of->type != r->part)
        return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "the type of a part");
      a.part.push_back(part->of);
    }
  } else {
    const unsigned char *bytes = (const unsigned char *)value;
    a.bytes.assign(bytes, bytes + (size_t)count * bytes_of(type));
  }
  d.attributes[name] = a;
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t which) {
  ENTER();
  descriptor &d = *((holder *)which)->of;
  if (d.final) return refuse(CUDNN_STATUS_BAD_PARAM, "finalized twice");
  for (const row &r : ROWS)
    if (r.of == d.type && !r.may && !d.has(r.name)) return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute is missing");
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (d.type == D(TENSOR)) status = check_tensor(d);
  if (pass_of(d.type) < PASSES) status = check_convolution(d, pass_of(d.type));
  if (d.type == D(OPERATIONGRAPH)) status = check_graph(d);
  if (d.type == D(EXECUTION_PLAN)) {
    status = check_plan(d);
    if (status == CUDNN_STATUS_SUCCESS) status = (cudnnStatus_t)lm_fake_enter("cudnnBackendFinalize: a plan");
  }
  if (d.type == D(VARIANT_PACK) &&
      d.attributes[A(VARIANT_PACK_UNIQUE_IDS)].bytes.size() != d.attributes[A(VARIANT_PACK_DATA_POINTERS)].bytes.size())
    status = refuse(CUDNN_STATUS_BAD_PARAM, "as many numbers as pointers");
  d.final = status == CUDNN_STATUS_SUCCESS;
  return status;
}

/* Puts the engines proposed for a graph into descriptors that the caller has made. */
static cudnnStatus_t proposals(const descriptor &heuristics, int64_t most, int64_t *found, void *into) {
  bool fallback = heuristics.get<cudnnBackendHeurMode_t>(A(ENGINEHEUR_MODE)) == CUDNN_HEUR_MODE_FALLBACK;
  const attribute &graph = heuristics.attributes.at(A(ENGINEHEUR_OPERATION_GRAPH));
  *found = 0;
  auto propose = [&](int engine) {
    descriptor &config = *((holder **)into)[(*found)++]->of;
    if (config.type != D(ENGINECFG)) return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "configs are wanted");
    config.engine = engine;
    config.attributes[A(ENGINEHEUR_OPERATION_GRAPH)] = graph;
    config.final = true;
    return CUDNN_STATUS_SUCCESS;
  };
  if (!is_convolution(*graph.part[0]))
    return !fallback && fused_takes(nodes_of(*graph.part[0])) ? propose(FUSED_ENGINE) : CUDNN_STATUS_SUCCESS;
  work j = work_of(*graph.part[0]);
  bool half = j.x.dtype == LM_F16 || j.x.dtype == LM_BF16;
  for (int engine = fallback ? LAST_ENGINE : 0; engine < (fallback ? ENGINES : LAST_ENGINE); engine++) {
    if (engine != TENSOR_CORE_ENGINE && !engine_takes(engine, j)) continue; /* engine 0 promises more than it keeps */
    int times =
        engine == TENSOR_CORE_ENGINE && !half ? TENSOR_CORE_CONFIGS : 1; /* with other knobs, which are not given */
    for (int i = 0; i < times && *found < most; i++) {
      cudnnStatus_t status = propose(engine);
      if (status != CUDNN_STATUS_SUCCESS) return status;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t notes(const descriptor &engine, int64_t most, int64_t *found, void *into) {
  cudnnBackendNumericalNote_t *note = (cudnnBackendNumericalNote_t *)into;
  *found = 0;
  if (most < 1) return refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "room for notes");
  if (engine.engine == TENSOR_CORE_ENGINE || engine.engine == FUSED_ENGINE)
    note[(*found)++] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
  if (engine.engine == 1) note[(*found)++] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const from,
                                                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                   int64_t most, int64_t *found, void *into) {
  ENTER();
  const descriptor &d = *((holder *)from)->of;
  if (!d.final) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "asked before it is finalized");
  if (d.type == D(ENGINEHEUR) && name == A(ENGINEHEUR_RESULTS) && type == T(BACKEND_DESCRIPTOR))
    return proposals(d, most, found, into);
  if (d.type == D(ENGINECFG) && name == A(ENGINECFG_ENGINE) && type == T(BACKEND_DESCRIPTOR) && most == 1) {
    descriptor &engine = *(*(holder **)into)->of;
    if (engine.type != D(ENGINE)) return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an engine is wanted");
    engine.engine = d.engine;
    engine.final = true;
    *found = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  if (d.type == D(ENGINE) && name == A(ENGINE_NUMERICAL_NOTE) && type == T(NUMERICAL_NOTE))
    return notes(d, most, found, into);
  if (d.type == D(EXECUTION_PLAN) && name == A(EXECUTION_PLAN_WORKSPACE_SIZE) && type == T(INT64) && most == 1) {
    *(int64_t *)into = d.part(A(EXECUTION_PLAN_ENGINE_CONFIG)).engine == TENSOR_CORE_ENGINE ? WORKSPACE : 0;
    *found = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  return refuse(CUDNN_STATUS_BAD_PARAM, "this attribute cannot be asked for so");
}

/* Returns a tensor's memory from the pack; NULL: the pack does not have it. */
static void *place_in(const descriptor &pack, int64_t id) {
  size_t count = pack.attributes.at(A(VARIANT_PACK_UNIQUE_IDS)).bytes.size() / sizeof(int64_t);
  void *place = NULL;
  for (size_t k = 0; k < count; k++)
    if (pack.get<int64_t>(A(VARIANT_PACK_UNIQUE_IDS), k) == id)
      place = pack.get<void *>(A(VARIANT_PACK_DATA_POINTERS), k);
  return place;
}

static cudnnStatus_t check_place(const tensor &t, const void *place) {
  if (lm_fake_device_of(place) < 0) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor has no memory");
  if (!lm_fake_aligned(place, t.align))
    return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a pointer is not aligned as was promised");
  return CUDNN_STATUS_SUCCESS;
}

/* Counts each tensor in memory once, and the products of tensors of all sizes: what a mask hides is not taken off. */
static lm_fake_cost cost_of_fused(const std::vector<lm_fake_operation> &nodes,
                                  const std::map<int64_t, void *> &memory) {
  lm_fake_cost cost = {NULL, "cudnnBackendExecute: attention", 0, {}};
  std::map<int64_t, bool> written;
  std::map<int64_t, tensor> all = tensors_of(nodes);
  for (const lm_fake_operation &n : nodes) {
    written[n.y.id] = true;
    if (n.kind != lm_fake_operation::PRODUCT) continue;
    cost.flops += 2.0 * (double)n.y.numel() * (double)n.x.size[3];
    if (!n.x.inside) cost.what = lm_fake_product_of(n.x.dtype, false);
  }
  for (auto &place : memory) {
    const tensor &t = all.at(place.first);
    cost.operands.push_back({place.second, (uint64_t)t.numel() * lm_fake_bytes_of(t.dtype), written.count(t.id) > 0});
  }
  return cost;
}

static lm_fake_cost cost_of_convolution(const work &j, void *const data[4], bool tf32) {
  static const char *const names[PASSES] = {"cudnnBackendExecute: convolution",
                                            "cudnnBackendExecute: its input's gradient",
                                            "cudnnBackendExecute: its weight's gradient"};
  const tensor *tensors[3] = {&j.x, &j.w, &j.y}, *result = j.pass == FORWARD ? &j.y : j.pass == INPUT ? &j.x : &j.w;
  double positions = (double)(j.y.size[0] * j.y.size[2] * j.y.size[3]);
  lm_fake_cost cost = {lm_fake_product_of(j.x.dtype, tf32), names[j.pass], 2.0 * positions * (double)j.w.numel(), {}};
  for (int i = 0; i < 3; i++)
    cost.operands.push_back(
        {data[i], (uint64_t)tensors[i]->numel() * lm_fake_bytes_of(j.x.dtype), tensors[i] == result});
  if (j.biased) cost.operands.push_back({data[3], (uint64_t)j.bias.numel() * lm_fake_bytes_of(j.bias.dtype), false});
  return cost;
}

static cudnnStatus_t execute_fused(library *own, const descriptor &graph, const descriptor &pack) {
  std::vector<lm_fake_operation> nodes = nodes_of(graph);
  std::map<int64_t, void *> memory;
  std::map<int64_t, double> numbers;
  std::map<int64_t, tensor> all = tensors_of(nodes);
  size_t given = pack.attributes.at(A(VARIANT_PACK_UNIQUE_IDS)).bytes.size() / sizeof(int64_t), outside = 0;
  for (auto &entry : all) {
    const tensor &t = entry.second;
    if (t.inside) continue;
    void *place = place_in(pack, t.id);
    outside++;
    if (t.number) {
      if (!place || lm_fake_device_of(place) >= 0) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a number");
      numbers[t.id] = lm_fake_read(t.dtype, place, 0); /* read now: it may be on the caller's stack */
      continue;
    }
    cudnnStatus_t status = check_place(t, place);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    memory[t.id] = place;
  }
  if (given != outside) return refuse(CUDNN_STATUS_BAD_PARAM, "as many tensors as the graph has");
  lm_fake_count("fused engine", 1); /* never counted down */
  int code = lm_fake_enqueue(
      own->stream, [=] { lm_fake_fused_run(nodes, memory, numbers); }, cost_of_fused(nodes, memory));
  return code ? refuse(CUDNN_STATUS_EXECUTION_FAILED, "the stream takes no work") : CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t which,
                                              cudnnBackendDescriptor_t with) {
  if (lm_fake_null) return CUDNN_STATUS_SUCCESS;
  ENTER();
  const descriptor &plan = *((holder *)which)->of, &pack = *((holder *)with)->of;
  library *own = (library *)handle;
  int device = -1;
  cudaGetDevice(&device);
  if (!plan.final || plan.type != D(EXECUTION_PLAN) || !pack.final || pack.type != D(VARIANT_PACK))
    return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a plan and a pack, finalized");
  if (plan.get<void *>(A(EXECUTION_PLAN_HANDLE)) != handle || own->device != device)
    return refuse(CUDNN_STATUS_BAD_PARAM, "the plan was made with another handle, or another device is current");
  const descriptor &config = plan.part(A(EXECUTION_PLAN_ENGINE_CONFIG));
  const descriptor &graph = config.part(A(ENGINEHEUR_OPERATION_GRAPH));
  if (!is_convolution(graph)) return execute_fused(own, graph, pack);
  work j = work_of(graph);
  const tensor *tensors[4] = {&j.x, &j.w, &j.y, &j.bias};
  void *data[4] = {};
  for (int i = 0; i < (j.biased ? 4 : 3); i++) {
    data[i] = place_in(pack, tensors[i]->id);
    cudnnStatus_t status = check_place(*tensors[i], data[i]);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  bool first = config.engine == TENSOR_CORE_ENGINE, tf32 = first && j.x.dtype == LM_F32;
  void *workspace = pack.get<void *>(A(VARIANT_PACK_WORKSPACE));
  if (first && lm_fake_device_of(workspace) < 0) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace");
  static const char *const runs[ENGINES] = {"engine 0", "engine 1", "engine 2", "engine 3"};
  lm_fake_count(runs[config.engine], 1); /* never counted down */
  void *x = data[0], *w = data[1], *y = data[2], *bias = data[3];
  auto run = [=] {
    if (first) memset(workspace, 0xee, WORKSPACE);
    convolve(j, x, w, y, bias, tf32);
  };
  int code = lm_fake_enqueue(own->stream, run, cost_of_convolution(j, data, tf32));
  return code ? refuse(CUDNN_STATUS_EXECUTION_FAILED, "the stream takes no work") : CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
