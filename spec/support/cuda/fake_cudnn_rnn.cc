/* cuDNN's recurrent networks as the backend uses them (the v8 calls, packed sequences), in double, by the formulae of
 * its documentation: RNN   h' = tanh or relu (W x + R h + bW + bR) LSTM  i, f, o = sigmoid(W x + R h + bW + bR), g =
 * tanh(...): c' = f c + i g, h' = o tanh(c'); gates in the order i, f, g, o GRU   r, z = sigmoid(...), n = tanh(Wn x +
 * bWn + r (Rn h + bRn)): h' = (1 - z) n + z h; gates in the order r, z, n Weights lie as in cuDNN 9.19: of each layer
 * and direction the gates' W and then their R, after those of all layers the biases likewise; but with a gap between
 * the two, since nothing promises that there is none. What it checks the real one checks too. Like that it needs its
 * workspace, works only with what the training forward pass left in the reserve, writes there in the data pass, and
 * takes the weights' pass after that one alone: what comes in another order becomes NaN. float rounds what it
 * multiplies to TF32, unless its math type forbids that. */
#include "fake_cudnn.h"

#include <math.h>

#include <vector>

namespace {
enum { GAP = 64, WORKSPACE = 512, MAX_GATES = 4, SLOTS = 5 };
enum { FILLED = 0x5eed, TURNED = 0xdead };

struct network {
  cudnnRNNMode_t mode;
  int dtype, layers, directions, input, hidden;
  bool bias, tf32;

  int gates() const { return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1; }
  int64_t width(int layer) const { return layer < directions ? input : (int64_t)hidden * directions; }
  int64_t side(int layer, int side) const { return hidden * (side == 0 ? width(layer) : hidden); }
  int64_t item() const { return dtype == LM_F64 ? 8 : dtype == LM_F32 ? 4 : 2; }
  int64_t matrices() const {
    int64_t sum = 0;
    for (int l = 0; l < layers * directions; l++) sum += gates() * (side(l, 0) + side(l, 1));
    return sum;
  }
  /* The first number of a matrix, and of a bias. */
  int64_t matrix(int layer, int gate) const {
    int64_t at = 0;
    for (int l = 0; l < layer; l++) at += gates() * (side(l, 0) + side(l, 1));
    int before = gate < gates() ? gate : gates();
    return at + before * side(layer, 0) + (gate - before) * side(layer, 1);
  }
  int64_t bias_at(int layer, int gate) const {
    return matrices() + GAP / item() + (int64_t)(layer * 2 * gates() + gate) * hidden;
  }
  int64_t numbers() const {
    return matrices() + (bias ? GAP / item() + (int64_t)layers * directions * 2 * gates() * hidden : 0);
  }
};

struct sequences {
  int dtype, steps, batch, width;
  std::vector<int> length;
};

/* Numbers of a call, and where each step's rows begin. */
struct work {
  network net;
  std::vector<int> length;
  std::vector<int64_t> first;
  int64_t rows;

  work(const network &n, const sequences &s) : net(n), length(s.length), first((size_t)s.steps + 1, 0) {
    for (int t = 0; t < s.steps; t++) first[(size_t)t + 1] = first[(size_t)t] + count(t);
    rows = first[(size_t)s.steps];
  }
  int64_t count(int t) const {
    int64_t n = 0;
    for (int one : length) n += one > t;
    return n;
  }
  int64_t batch() const { return (int64_t)length.size(); }
  int64_t out() const { return (int64_t)net.hidden * net.directions; }
  /* In the reserve, in doubles behind the mark: of a layer what it gave [rows, out], then for each direction its slots
   * [rows, SLOTS, hidden]. */
  int64_t layer_at(int l) const {
    return 1 + (int64_t)l * rows * (out() + (int64_t)net.directions * SLOTS * net.hidden);
  }
  int64_t slots_at(int l, int d) const { return layer_at(l) + rows * out() + (int64_t)d * rows * SLOTS * net.hidden; }
  int64_t reserve() const { return layer_at(net.layers); }

  double read(const void *p, int64_t i) const { return lm_fake_read(net.dtype, p, i); }
  double factor(double v) const { return net.tf32 ? lm_fake_tf32(v) : v; }
  double rounded(double v) const { /* as it is once it was stored */
    unsigned char capacity[8];
    lm_fake_write(net.dtype, capacity, 0, v);
    return read(capacity, 0);
  }
  /* The row before in the direction, of sequence i, or -1: then there is the state that it begins with. */
  int64_t before(int d, int t, int64_t i) const {
    int from = d == 0 ? t - 1 : t + 1;
    return from < 0 || from >= length[(size_t)i] ? -1 : first[(size_t)from] + i;
  }
};
}  // namespace

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }

static std::vector<double> all_of(const work &w, const void *p, int64_t count, bool factor = false) {
  std::vector<double> v((size_t)count);
  for (int64_t i = 0; i < count; i++) v[(size_t)i] = factor ? w.factor(w.read(p, i)) : w.read(p, i);
  return v;
}

/* Multiplies x [width] by W [hidden, width] and adds its bias: one number of each unit. */
static double product(const work &w, const std::vector<double> &weights, int layer, int gate, int64_t unit,
                      const double *x, int64_t width) {
  double sum = w.net.bias ? weights[(size_t)(w.net.bias_at(layer, gate) + unit)] : 0;
  const double *row = &weights[(size_t)(w.net.matrix(layer, gate) + unit * width)];
  for (int64_t k = 0; k < width; k++) sum += w.factor(row[k]) * w.factor(x[k]);
  return sum;
}

static void forward(const work &w, const void *x, const void *weight, const void *h0, const void *c0, void *y, void *hn,
                    void *cn, double *kept) {
  const network &n = w.net;
  const int64_t H = n.hidden, batch = w.batch();
  std::vector<double> weights = all_of(w, weight, n.numbers()), in = all_of(w, x, w.rows * n.input);
  for (int l = 0; l < n.layers; l++) {
    std::vector<double> out((size_t)(w.rows * w.out()));
    for (int d = 0; d < n.directions; d++) {
      const int layer = l * n.directions + d, G = n.gates(), steps = (int)w.first.size() - 1;
      const int64_t width = n.width(layer);
      std::vector<double> slots((size_t)(w.rows * SLOTS * H));
      for (int k = 0; k < steps; k++) {
        int t = d == 0 ? k : steps - 1 - k;
        for (int64_t i = 0; i < w.count(t); i++) {
          int64_t row = w.first[(size_t)t] + i, from = w.before(d, t, i), state = (layer * batch + i) * H;
          std::vector<double> h((size_t)H), c((size_t)H);
          for (int64_t u = 0; u < H; u++) {
            h[(size_t)u] = from >= 0 ? out[(size_t)(from * w.out() + d * H + u)] : h0 ? w.read(h0, state + u) : 0;
            if (n.mode == CUDNN_LSTM)
              c[(size_t)u] = from >= 0 ? slots[(size_t)((from * SLOTS + 4) * H + u)] : c0 ? w.read(c0, state + u) : 0;
          }
          for (int64_t u = 0; u < H; u++) {
            double a[MAX_GATES], b[MAX_GATES], *slot = &slots[(size_t)(row * SLOTS * H + u)], h_new, c_new = 0;
            for (int g = 0; g < G; g++) {
              a[g] = product(w, weights, layer, g, u, &in[(size_t)(row * width)], width);
              b[g] = product(w, weights, layer, G + g, u, h.data(), H);
            }
            if (n.mode == CUDNN_LSTM) {
              double i_ = sigmoid(a[0] + b[0]), f = sigmoid(a[1] + b[1]), g = tanh(a[2] + b[2]);
              double o = sigmoid(a[3] + b[3]);
              c_new = f * c[(size_t)u] + i_ * g;
              h_new = o * tanh(c_new);
              slot[0] = i_, slot[H] = f, slot[2 * H] = g, slot[3 * H] = o, slot[4 * H] = c_new;
            } else if (n.mode == CUDNN_GRU) {
              double r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]), fresh = tanh(a[2] + r * b[2]);
              h_new = (1 - z) * fresh + z * h[(size_t)u];
              slot[0] = r, slot[H] = z, slot[2 * H] = fresh, slot[3 * H] = b[2];
            } else {
              double sum = a[0] + b[0];
              h_new = n.mode == CUDNN_RNN_TANH ? tanh(sum) : sum > 0 ? sum : 0;
              slot[0] = h_new;
            }
            out[(size_t)(row * w.out() + d * H + u)] = h_new = w.rounded(h_new);
            if (t == (d == 0 ? w.length[(size_t)i] - 1 : 0)) {
              if (hn) lm_fake_write(n.dtype, hn, state + u, h_new);
              if (cn && n.mode == CUDNN_LSTM) lm_fake_write(n.dtype, cn, state + u, c_new);
            }
          }
        }
      }
      if (kept) memcpy(kept + w.slots_at(l, d), slots.data(), slots.size() * sizeof(double));
    }
    if (kept) memcpy(kept + w.layer_at(l), out.data(), out.size() * sizeof(double));
    in = out;
  }
  for (int64_t i = 0; i < w.rows * w.out(); i++) lm_fake_write(n.dtype, y, i, in[(size_t)i]);
  if (kept) kept[0] = FILLED;
}

static void spoil(const work &w, void *p, int64_t count) {
  for (int64_t i = 0; p && i < count; i++) lm_fake_write(w.net.dtype, p, i, NAN);
}

/* Leaves in the slots of the reserve gradients of the inputs of the gates' functions; GRU's third as the layer's input
 * sees it and, in slot 3, as the state sees it. */
static void backward_data(const work &w, const void *dy, const void *weight, const void *h0, const void *c0,
                          const void *dhn, const void *dcn, void *dx, void *dh0, void *dc0, double *kept) {
  const network &n = w.net;
  const int64_t H = n.hidden, batch = w.batch();
  if (kept[0] != FILLED) {
    spoil(w, dx, w.rows * n.input);
    return;
  }
  std::vector<double> weights = all_of(w, weight, n.numbers()), grad = all_of(w, dy, w.rows * w.out());
  for (int l = n.layers - 1; l >= 0; l--) {
    const int64_t width = n.width(l * n.directions);
    const double *out = kept + w.layer_at(l);
    std::vector<double> below((size_t)(w.rows * width), 0.0);
    for (int d = 0; d < n.directions; d++) {
      const int layer = l * n.directions + d, G = n.gates(), steps = (int)w.first.size() - 1;
      double *slots = kept + w.slots_at(l, d);
      std::vector<double> old(slots, slots + w.rows * SLOTS * H);
      std::vector<double> carry((size_t)(batch * H)), cells((size_t)(batch * H));
      for (int64_t i = 0; i < batch * H; i++) {
        carry[(size_t)i] = dhn ? w.read(dhn, layer * batch * H + i) : 0;
        cells[(size_t)i] = dcn ? w.read(dcn, layer * batch * H + i) : 0;
      }
      for (int k = 0; k < steps; k++) {
        int t = d == 0 ? steps - 1 - k : k;
        for (int64_t i = 0; i < w.count(t); i++) {
          int64_t row = w.first[(size_t)t] + i, from = w.before(d, t, i), state = (layer * batch + i) * H;
          std::vector<double> next((size_t)H, 0.0);
          for (int64_t u = 0; u < H; u++) {
            const double *s = &old[(size_t)(row * SLOTS * H + u)];
            double *pre = slots + row * SLOTS * H + u, dh = grad[(size_t)(row * w.out() + d * H + u)];
            dh += carry[(size_t)(i * H + u)];
            if (n.mode == CUDNN_LSTM) {
              double before = from >= 0 ? old[(size_t)((from * SLOTS + 4) * H + u)] : c0 ? w.read(c0, state + u) : 0;
              double transposed = tanh(s[4 * H]),
                     dc = cells[(size_t)(i * H + u)] + dh * s[3 * H] * (1 - transposed * transposed);
              pre[0] = dc * s[2 * H] * s[0] * (1 - s[0]);
              pre[H] = dc * before * s[H] * (1 - s[H]);
              pre[2 * H] = dc * s[0] * (1 - s[2 * H] * s[2 * H]);
              pre[3 * H] = dh * transposed * s[3 * H] * (1 - s[3 * H]);
              cells[(size_t)(i * H + u)] = dc * s[H];
            } else if (n.mode == CUDNN_GRU) {
              double before = from >= 0 ? out[from * w.out() + d * H + u] : h0 ? w.read(h0, state + u) : 0;
              double fresh = dh * (1 - s[H]) * (1 - s[2 * H] * s[2 * H]);
              pre[0] = fresh * s[3 * H] * s[0] * (1 - s[0]);
              pre[H] = dh * (before - s[2 * H]) * s[H] * (1 - s[H]);
              pre[2 * H] = fresh;
              pre[3 * H] = fresh * s[0];
              next[(size_t)u] += dh * s[H];
            } else {
              pre[0] = dh * (n.mode == CUDNN_RNN_TANH ? 1 - s[0] * s[0] : s[0] > 0);
            }
          }
          for (int g = 0; g < G; g++) {
            const double *inner = slots + (row * SLOTS + g) * H;
            const double *outer = n.mode == CUDNN_GRU && g == 2 ? inner + H : inner;
            const double *W = &weights[(size_t)n.matrix(layer, g)], *R = &weights[(size_t)n.matrix(layer, G + g)];
            for (int64_t u = 0; u < H; u++) {
              for (int64_t j = 0; j < width; j++)
                below[(size_t)(row * width + j)] += w.factor(inner[u]) * w.factor(W[u * width + j]);
              for (int64_t j = 0; j < H; j++) next[(size_t)j] += w.factor(outer[u]) * w.factor(R[u * H + j]);
            }
          }
          for (int64_t u = 0; u < H; u++) carry[(size_t)(i * H + u)] = next[(size_t)u];
        }
      }
      for (int64_t i = 0; i < batch * H; i++) {
        if (dh0) lm_fake_write(n.dtype, dh0, layer * batch * H + i, carry[(size_t)i]);
        if (dc0 && n.mode == CUDNN_LSTM) lm_fake_write(n.dtype, dc0, layer * batch * H + i, cells[(size_t)i]);
      }
    }
    grad = below;
  }
  for (int64_t i = 0; i < w.rows * n.input; i++) lm_fake_write(n.dtype, dx, i, grad[(size_t)i]);
  kept[0] = TURNED;
}

static void backward_weights(const work &w, const void *x, const void *h0, void *dweight, double *kept) {
  const network &n = w.net;
  const int64_t H = n.hidden, batch = w.batch();
  if (kept[0] != TURNED) {
    spoil(w, dweight, n.numbers());
    return;
  }
  std::vector<double> sum = all_of(w, dweight, n.numbers()), in = all_of(w, x, w.rows * n.input);
  for (int l = 0; l < n.layers; l++) {
    const double *out = kept + w.layer_at(l);
    for (int d = 0; d < n.directions; d++) {
      const int layer = l * n.directions + d, G = n.gates();
      const int64_t width = n.width(layer);
      const double *slots = kept + w.slots_at(l, d);
      for (int t = 0; t + 1 < (int)w.first.size(); t++) {
        for (int64_t i = 0; i < w.count(t); i++) {
          int64_t row = w.first[(size_t)t] + i, from = w.before(d, t, i), state = (layer * batch + i) * H;
          for (int g = 0; g < G; g++) {
            const double *inner = slots + (row * SLOTS + g) * H;
            const double *outer = n.mode == CUDNN_GRU && g == 2 ? inner + H : inner;
            double *W = &sum[(size_t)n.matrix(layer, g)], *R = &sum[(size_t)n.matrix(layer, G + g)];
            for (int64_t u = 0; u < H; u++) {
              for (int64_t j = 0; j < width; j++)
                W[u * width + j] += w.factor(inner[u]) * w.factor(in[(size_t)(row * width + j)]);
              for (int64_t j = 0; j < H; j++) {
                double h = from >= 0 ? out[from * w.out() + d * H + j] : h0 ? w.read(h0, state + j) : 0;
                R[u * H + j] += w.factor(outer[u]) * w.factor(h);
              }
              if (n.bias) sum[(size_t)(n.bias_at(layer, g) + u)] += inner[u];
              if (n.bias) sum[(size_t)(n.bias_at(layer, G + g) + u)] += outer[u];
            }
          }
        }
      }
    }
    in.assign(out, out + w.rows * w.out());
  }
  for (int64_t i = 0; i < n.numbers(); i++) lm_fake_write(n.dtype, dweight, i, sum[(size_t)i]);
}

/* ---- the API ---- */

#define ENTER() LM_FAKE_ENTER(cudnnStatus_t)
#define BAD(why) lm_fake_refuse(CUDNN_STATUS_BAD_PARAM, why)

namespace {
struct tensor_description {
  cudnnDataType_t type;
  int ndim, size[8], stride[8];
};
}  // namespace

/* Checks what every pass requires. */
static cudnnStatus_t check_pass(cudnnHandle_t handle, cudnnRNNDescriptor_t net, const int32_t *on_device,
                                cudnnRNNDataDescriptor_t x, cudnnRNNDataDescriptor_t y, cudnnTensorDescriptor_t state,
                                size_t weight_bytes, size_t work_bytes, void *workspace) {
  if (!handle || !net || !x || !y || !state) return BAD("a descriptor is missing");
  const network &n = *(network *)net;
  const sequences &in = *(sequences *)x, &out = *(sequences *)y;
  const tensor_description &s = *(tensor_description *)state;
  int device = -1;
  cudaGetDevice(&device);
  if (((lm_fake_cudnn *)handle)->device != device) return BAD("another device is current");
  if (on_device) return BAD("lengths in device memory: no call of ours gives them");
  if (in.dtype != n.dtype || out.dtype != n.dtype || lm_fake_dtype_of(s.type) != n.dtype) return BAD("types differ");
  if (in.length != out.length || in.width != n.input || out.width != n.hidden * n.directions)
    return lm_fake_refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "sequences");
  if (s.ndim != 3 || s.size[0] != n.layers * n.directions || s.size[1] != in.batch || s.size[2] != n.hidden ||
      s.stride[2] != 1 || s.stride[1] != s.size[2] || s.stride[0] != s.size[1] * s.size[2])
    return lm_fake_refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "states");
  if (weight_bytes != (size_t)(n.numbers() * n.item())) return BAD("bytes of weights");
  if (work_bytes < WORKSPACE || lm_fake_device_of(workspace) < 0) return BAD("the workspace");
  return CUDNN_STATUS_SUCCESS;
}

static bool on_device(std::initializer_list<const void *> list) {
  for (const void *p : list)
    if (lm_fake_device_of(p) < 0) return false;
  return true;
}

static cudnnStatus_t enqueued(int code) {
  return code ? lm_fake_refuse(CUDNN_STATUS_EXECUTION_FAILED, "the stream takes no work") : CUDNN_STATUS_SUCCESS;
}

extern "C" {

LM_FAKE_API cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *out) {
  ENTER();
  *out = (cudnnDropoutDescriptor_t) new float(-1);
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t d) {
  int code = lm_fake_enter(__func__);
  delete (float *)d;
  return (cudnnStatus_t)code;
}

LM_FAKE_API cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle, float p, void *,
                                                    size_t, unsigned long long) {
  ENTER();
  if (!handle || p != 0) return BAD("dropout without states");
  *(float *)d = p;
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out) {
  ENTER();
  *out = (cudnnTensorDescriptor_t) new tensor_description{};
  lm_fake_count("descriptor", 1);
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) {
  int code = lm_fake_enter(__func__);
  delete (tensor_description *)d;
  lm_fake_count("descriptor", -1);
  return (cudnnStatus_t)code;
}

LM_FAKE_API cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int ndim,
                                                     const int size[], const int stride[]) {
  ENTER();
  if (ndim < 3 || ndim > 8) return BAD("how many dims");
  tensor_description &t = *(tensor_description *)d;
  t.type = type;
  t.ndim = ndim;
  for (int i = 0; i < ndim; i++) t.size[i] = size[i], t.stride[i] = stride[i];
  for (int i = 0; i < ndim; i++)
    if (size[i] < 1) return BAD("an empty tensor");
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t d, int most, cudnnDataType_t *type,
                                                     int *ndim, int size[], int stride[]) {
  ENTER();
  const tensor_description &t = *(const tensor_description *)d;
  *type = t.type;
  *ndim = t.ndim;
  for (int i = 0; i < t.ndim && i < most; i++) size[i] = t.size[i], stride[i] = t.stride[i];
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *out) {
  ENTER();
  *out = (cudnnRNNDescriptor_t) new network{};
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t d) {
  int code = lm_fake_enter(__func__);
  delete (network *)d;
  return (cudnnStatus_t)code;
}

LM_FAKE_API cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t algo, cudnnRNNMode_t mode,
                                                   cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                                   cudnnRNNInputMode_t input_mode, cudnnDataType_t type,
                                                   cudnnDataType_t computed, cudnnMathType_t math, int32_t input,
                                                   int32_t hidden, int32_t projected, int32_t layers,
                                                   cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  ENTER();
  if (algo != CUDNN_RNN_ALGO_STANDARD || input_mode != CUDNN_LINEAR_INPUT || flags != CUDNN_RNN_PADDED_IO_DISABLED)
    return lm_fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "what the fake does not know");
  if (bias != CUDNN_RNN_NO_BIAS && bias != CUDNN_RNN_DOUBLE_BIAS)
    return lm_fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "what the fake does not know");
  if (input < 1 || hidden < 1 || layers < 1 || projected != hidden) return BAD("sizes");
  if (lm_fake_dtype_of(type) == LM_NO_DTYPE || computed != (type == CUDNN_DATA_DOUBLE ? type : CUDNN_DATA_FLOAT))
    return BAD("types");
  if (dropout && *(float *)dropout != 0) return BAD("the dropout descriptor is not set");
  network &n = *(network *)d;
  n.mode = mode;
  n.dtype = lm_fake_dtype_of(type);
  n.layers = layers;
  n.directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
  n.input = input;
  n.hidden = hidden;
  n.bias = bias == CUDNN_RNN_DOUBLE_BIAS;
  n.tf32 = type == CUDNN_DATA_FLOAT && math != CUDNN_FMA_MATH;
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t d, size_t *bytes) {
  ENTER();
  if (!handle || !d) return BAD("!handle || !rnnDesc");
  const network &n = *(network *)d;
  *bytes = (size_t)(n.numbers() * n.item());
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t d, int32_t layer,
                                                  size_t bytes, const void *space, int32_t gate,
                                                  cudnnTensorDescriptor_t matrix, void **matrix_at,
                                                  cudnnTensorDescriptor_t bias, void **bias_at) {
  ENTER();
  if (!handle || !d || !space) return BAD("!handle || !rnnDesc");
  const network &n = *(network *)d;
  if (layer < 0 || layer >= n.layers * n.directions || gate < 0 || gate >= 2 * n.gates()) return BAD("which weights");
  if (bytes != (size_t)(n.numbers() * n.item())) return BAD("bytes of weights");
  cudnnDataType_t type = n.dtype == LM_F64   ? CUDNN_DATA_DOUBLE
                         : n.dtype == LM_F32 ? CUDNN_DATA_FLOAT
                         : n.dtype == LM_F16 ? CUDNN_DATA_HALF
                                             : CUDNN_DATA_BFLOAT16;
  int wide = (int)(gate < n.gates() ? n.width(layer) : n.hidden);
  *(tensor_description *)matrix = {type, 3, {1, n.hidden, wide}, {n.hidden * wide, wide, 1}};
  *matrix_at = (char *)space + n.matrix(layer, gate) * n.item();
  *(tensor_description *)bias = {type, 3, {1, n.hidden, 1}, {n.hidden, 1, 1}};
  *bias_at = n.bias ? (char *)space + n.bias_at(layer, gate) * n.item() : NULL;
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *out) {
  ENTER();
  *out = (cudnnRNNDataDescriptor_t) new sequences{};
  lm_fake_count("descriptor", 1);
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t d) {
  int code = lm_fake_enter(__func__);
  delete (sequences *)d;
  lm_fake_count("descriptor", -1);
  return (cudnnStatus_t)code;
}

LM_FAKE_API cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, cudnnDataType_t type,
                                                    cudnnRNNDataLayout_t layout, int steps, int batch, int width,
                                                    const int length[], void *) {
  ENTER();
  if (layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED)
    return lm_fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "what the fake does not know");
  if (steps < 1 || batch < 1 || width < 1 || lm_fake_dtype_of(type) == LM_NO_DTYPE) return BAD("sizes");
  for (int i = 0; i < batch; i++)
    if (length[i] < 1 || length[i] > (i == 0 ? steps : length[i - 1]) || (i == 0 && length[i] != steps))
      return BAD("lengths that are packed: none of 0, the longest first, as long as there are steps");
  *(sequences *)d = {lm_fake_dtype_of(type), steps, batch, width, std::vector<int>(length, length + batch)};
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t d,
                                                    cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                                    size_t *workspace, size_t *reserve) {
  ENTER();
  if (!handle || !d || !x) return BAD("a descriptor is missing");
  *workspace = WORKSPACE;
  if (reserve) *reserve = 0;
  if (reserve && mode == CUDNN_FWD_MODE_TRAINING)
    *reserve = (size_t)work(*(network *)d, *(sequences *)x).reserve() * sizeof(double);
  return CUDNN_STATUS_SUCCESS;
}

LM_FAKE_API cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t d, cudnnForwardMode_t mode,
                                          const int32_t *lengths, cudnnRNNDataDescriptor_t in, const void *x,
                                          cudnnRNNDataDescriptor_t out, void *y, cudnnTensorDescriptor_t state,
                                          const void *h0, void *h, cudnnTensorDescriptor_t, const void *c0, void *c,
                                          size_t weight_bytes, const void *weight, size_t work_bytes, void *workspace,
                                          size_t reserve_bytes, void *reserve) {
  ENTER();
  cudnnStatus_t status = check_pass(handle, d, lengths, in, out, state, weight_bytes, work_bytes, workspace);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  work w(*(network *)d, *(sequences *)in);
  bool training = mode == CUDNN_FWD_MODE_TRAINING;
  if (!on_device({x, y, weight}) || (training && !on_device({reserve})))
    return lm_fake_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor has no memory");
  if (training && reserve_bytes < (size_t)w.reserve() * sizeof(double)) return BAD("the reserve's bytes");
  return enqueued(lm_fake_enqueue(((lm_fake_cudnn *)handle)->stream, [=] {
    memset(workspace, 0xee, WORKSPACE);
    forward(w, x, weight, h0, c0, y, h, c, training ? (double *)reserve : NULL);
  }));
}

LM_FAKE_API cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t d, const int32_t *lengths,
                                                  cudnnRNNDataDescriptor_t out, const void *y, const void *dy,
                                                  cudnnRNNDataDescriptor_t in, void *dx, cudnnTensorDescriptor_t state,
                                                  const void *h0, const void *dh, void *dh0, cudnnTensorDescriptor_t,
                                                  const void *c0, const void *dc, void *dc0, size_t weight_bytes,
                                                  const void *weight, size_t work_bytes, void *workspace,
                                                  size_t reserve_bytes, void *reserve) {
  ENTER();
  cudnnStatus_t status = check_pass(handle, d, lengths, in, out, state, weight_bytes, work_bytes, workspace);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  work w(*(network *)d, *(sequences *)in);
  if (!on_device({y, dy, dx, weight, reserve}))
    return lm_fake_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor has no memory");
  if (reserve_bytes < (size_t)w.reserve() * sizeof(double)) return BAD("the reserve's bytes");
  return enqueued(lm_fake_enqueue(((lm_fake_cudnn *)handle)->stream, [=] {
    memset(workspace, 0xee, WORKSPACE);
    backward_data(w, dy, weight, h0, c0, dh, dc, dx, dh0, dc0, (double *)reserve);
  }));
}

LM_FAKE_API cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t d,
                                                     cudnnWgradMode_t mode, const int32_t *lengths,
                                                     cudnnRNNDataDescriptor_t in, const void *x,
                                                     cudnnTensorDescriptor_t state, const void *h0,
                                                     cudnnRNNDataDescriptor_t out, const void *y, size_t weight_bytes,
                                                     void *dweight, size_t work_bytes, void *workspace,
                                                     size_t reserve_bytes, void *reserve) {
  ENTER();
  cudnnStatus_t status = check_pass(handle, d, lengths, in, out, state, weight_bytes, work_bytes, workspace);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (mode != CUDNN_WGRAD_MODE_ADD) return lm_fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "gradients are added");
  work w(*(network *)d, *(sequences *)in);
  if (!on_device({x, y, dweight, reserve}))
    return lm_fake_refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor has no memory");
  if (reserve_bytes < (size_t)w.reserve() * sizeof(double)) return BAD("the reserve's bytes");
  return enqueued(lm_fake_enqueue(((lm_fake_cudnn *)handle)->stream, [=] {
    memset(workspace, 0xee, WORKSPACE);
    backward_weights(w, x, h0, dweight, (double *)reserve);
  }));
}

}  // extern "C"
