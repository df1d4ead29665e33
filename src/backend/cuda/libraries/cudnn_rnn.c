#include "backend/cuda/libraries/cudnn_rnn.h"

#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/lazy_library.h"
#include "backend/cuda/runtime/context.h"
#include "backend/known/plan_searches.h"
#include "base/log.h"
#include "base/mem.h"

#define FUNCTIONS(X)               \
  X(cudnnCreateDropoutDescriptor)  \
  X(cudnnSetDropoutDescriptor)     \
  X(cudnnDestroyDropoutDescriptor) \
  X(cudnnCreateRNNDescriptor)      \
  X(cudnnDestroyRNNDescriptor)     \
  X(cudnnSetRNNDescriptor_v8)      \
  X(cudnnGetRNNWeightSpaceSize)    \
  X(cudnnGetRNNWeightParams)       \
  X(cudnnGetRNNTempSpaceSizes)     \
  X(cudnnCreateRNNDataDescriptor)  \
  X(cudnnDestroyRNNDataDescriptor) \
  X(cudnnSetRNNDataDescriptor)     \
  X(cudnnCreateTensorDescriptor)   \
  X(cudnnDestroyTensorDescriptor)  \
  X(cudnnSetTensorNdDescriptor)    \
  X(cudnnGetTensorNdDescriptor)    \
  X(cudnnRNNForward) X(cudnnRNNBackwardData_v8) X(cudnnRNNBackwardWeights_v8)
LM_LAZY_LIBRARY(library, rnn, FUNCTIONS, "cudnn_rnn", LM_FILE_OF("libcudnn.so.", CUDNN_MAJOR));

/* Checks a status. The first call that needs this part of cuDNN reports that it is missing. */
static lm_status check_cudnn_rnn(int code, const char *call) {
  if (code == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED || code == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH)
    return lm_fail(LM_E_MISSING, "%s: cannot load libcudnn_adv, which is missing or of another version", call);
  return lm_cuda_check_cudnn(code, call);
}
#define RNN(name, ...) check_cudnn_rnn((int)rnn.name(__VA_ARGS__), #name)

/* Checks a status. An older library may report as bad what it does not support, such as a dtype. */
static lm_status check_support(int code, const char *call) {
  lm_status status = check_cudnn_rnn(code, call);
  return status != LM_OK && CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_BAD_PARAM ? LM_E_MISSING : status;
}
#define ASK(name, ...) check_support((int)rnn.name(__VA_ARGS__), #name)

/* ---- networks */

static cudnnMathType_t math_type(const lm_cudnn_rnn_key *key) {
  switch (key->dtype) {
    case LM_F16: return CUDNN_TENSOR_OP_MATH;
    case LM_F32: return key->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    default: return CUDNN_DEFAULT_MATH;
  }
}

static cudnnRNNMode_t mode_of(int cell) {
  static const cudnnRNNMode_t modes[] = {
      [LM_RNN_TANH] = CUDNN_RNN_TANH, [LM_RNN_RELU] = CUDNN_RNN_RELU, [LM_GRU] = CUDNN_GRU, [LM_LSTM] = CUDNN_LSTM};
  return modes[cell];
}

static int gates_of(int cell) { return cell == LM_LSTM ? 4 : cell == LM_GRU ? 3 : 1; }

/* Describes a network without dropout between layers, which would take numbers of cuDNN's generator, not of ours. */
static lm_status describe_network(lm_cudnn *c, const lm_cudnn_rnn_key *key, lm_cudnn_rnn *out) {
  lm_status status;
  cudnnDropoutDescriptor_t dropout = NULL;
  cudnnRNNDescriptor_t network = NULL;
  TRY(RNN(cudnnCreateDropoutDescriptor, &dropout));
  TRY(RNN(cudnnSetDropoutDescriptor, dropout, c->handle, 0, NULL, 0, 0));
  TRY(RNN(cudnnCreateRNNDescriptor, &network));
  TRY(ASK(cudnnSetRNNDescriptor_v8, network, CUDNN_RNN_ALGO_STANDARD, mode_of(key->cell),
          key->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
          key->bidirectional ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
          lm_cudnn_type(key->dtype), lm_cudnn_compute_type(key->dtype), math_type(key), key->input, key->hidden,
          key->hidden, key->layers, dropout, CUDNN_RNN_PADDED_IO_DISABLED));
  TRY(ASK(cudnnGetRNNWeightSpaceSize, c->handle, network, &out->weight_bytes));
  out->network = network;
  out->dropout = dropout;
  network = NULL;
  dropout = NULL;
done:
  if (network) rnn.cudnnDestroyRNNDescriptor(network);
  if (dropout) rnn.cudnnDestroyDropoutDescriptor(dropout);
  return status;
}

lm_status lm_cudnn_rnn_get(lm_cudnn *c, const lm_cudnn_rnn_key *key, lm_cudnn_rnn **out) {
  lm_status status = lm_lazy_load(&library);
  if (status != LM_OK) return status;
  LM_FREED lm_cudnn_rnn *found = lm_cache_find(&c->networks, key, sizeof *key);
  if (!found) {
    int mode;
    found = lm_calloc(1, sizeof *found);
    if (!found) return LM_E_OOM;
    found->key = *key;
    lm_plan_search_count();
    found->weights = key->layers * (key->bidirectional ? 2 : 1) * (key->bias ? 4 : 2);
    NEED(lm_cuda_relax(&mode)); /* this call may load a library */
    status = describe_network(c, key, found);
    lm_cuda_unrelax(mode);
    if (status != LM_OK && status != LM_E_MISSING) return status;
    if (status == LM_E_MISSING && lm_log_on(LM_LOG_OP)) lm_log(LM_LOG_OP, "cuDNN: no such network: %s", lm_error());
    lm_cache_put(&c->networks, &found->head, sizeof *key);
    status = LM_OK;
  }
  *out = found;
  found = NULL;
  if (!(*out)->network) status = lm_fail(LM_E_MISSING, "cuDNN does not support this recurrent network");
  return status;
}

/* Offsets of a gate's matrix and bias, in bytes from `packed`, and their numbers of elements; -1 and 0 if absent. */
typedef struct gate_slot {
  int64_t at[2], count[2];
} gate_slot;

static lm_status find_gate(lm_cudnn *c, const lm_cudnn_rnn *r, const void *packed, int layer, int gate,
                           gate_slot *out) {
  lm_status status;
  cudnnTensorDescriptor_t what[2] = {NULL, NULL};
  void *where[2] = {NULL, NULL};
  for (int k = 0; k < 2; k++) TRY(RNN(cudnnCreateTensorDescriptor, &what[k]));
  TRY(RNN(cudnnGetRNNWeightParams, c->handle, r->network, layer, r->weight_bytes, packed, gate, what[0], &where[0],
          what[1], &where[1]));
  for (int k = 0; k < 2; k++) {
    int ndim = 0, size[8] = {0}, stride[8];
    cudnnDataType_t type;
    out->at[k] = -1;
    out->count[k] = 0;
    if (!where[k]) continue;
    TRY(RNN(cudnnGetTensorNdDescriptor, what[k], 3, &type, &ndim, size, stride));
    out->at[k] = (const char *)where[k] - (const char *)packed;
    out->count[k] = 1;
    for (int d = 0; d < ndim && d < 3; d++) out->count[k] *= size[d];
  }
done:
  for (int k = 0; k < 2; k++) {
    if (what[k]) rnn.cudnnDestroyTensorDescriptor(what[k]);
  }
  return status;
}

lm_status lm_cudnn_rnn_weight_slots(lm_cudnn *c, lm_cudnn_rnn *r, const void *packed) {
  const lm_cudnn_rnn_key *key = &r->key;
  const int directions = key->bidirectional ? 2 : 1, gates = gates_of(key->cell), each = key->bias ? 4 : 2;
  const int64_t item = (int64_t)lm_dtype_size(key->dtype);
  LM_FREED int64_t *position = NULL;
  if (r->position) return LM_OK;
  position = lm_calloc((size_t)r->weights, sizeof *position);
  if (!position) return LM_E_OOM;
  for (int layer = 0; layer < key->layers * directions; layer++) {
    int64_t width = layer < directions ? key->input : (int64_t)key->hidden * directions;
    for (int side = 0; side < 2; side++) { /* 0: weights of inputs, 1: of the previous state */
      const int64_t wanted[2] = {key->hidden * (side == 0 ? width : key->hidden), key->bias ? key->hidden : 0};
      gate_slot first;
      for (int gate = 0; gate < gates; gate++) {
        gate_slot g;
        NEED(find_gate(c, r, packed, layer, side * gates + gate, &g));
        if (gate == 0) first = g;
        for (int k = 0; k < (key->bias ? 2 : 1); k++) {
          bool fits = g.count[k] == wanted[k] && g.at[k] == first.at[k] + gate * wanted[k] * item && g.at[k] >= 0 &&
                      g.at[k] % item == 0 && (size_t)(g.at[k] + wanted[k] * item) <= r->weight_bytes;
          if (!fits) return lm_fail(LM_E_MISSING, "cuDNN packs weights of recurrent networks in an unknown layout");
          if (gate == 0) position[layer * each + 2 * k + side] = g.at[k] / item;
        }
      }
    }
  }
  r->position = position;
  position = NULL;
  return LM_OK;
}

/* ---- calls */

typedef struct described {
  cudnnRNNDataDescriptor_t x, y;
  cudnnTensorDescriptor_t state;
} described;

static lm_status describe_data(const lm_cudnn_rnn_call *o, int width, cudnnRNNDataDescriptor_t *out) {
  NEED(RNN(cudnnCreateRNNDataDescriptor, out));
  return RNN(cudnnSetRNNDataDescriptor, *out, lm_cudnn_type(o->rnn->key.dtype), CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
             o->steps, o->batch, width, o->lengths, NULL);
}

static void destroy_descriptors(described *d) {
  if (d->x) rnn.cudnnDestroyRNNDataDescriptor(d->x);
  if (d->y) rnn.cudnnDestroyRNNDataDescriptor(d->y);
  if (d->state) rnn.cudnnDestroyTensorDescriptor(d->state);
}

static lm_status create_descriptors(const lm_cudnn_rnn_call *o, described *d) {
  const lm_cudnn_rnn_key *key = &o->rnn->key;
  const int directions = key->bidirectional ? 2 : 1;
  const int size[3] = {key->layers * directions, o->batch, key->hidden};
  const int stride[3] = {o->batch * key->hidden, key->hidden, 1};
  *d = (described){0};
  NEED(describe_data(o, key->input, &d->x));
  NEED(describe_data(o, key->hidden * directions, &d->y));
  NEED(RNN(cudnnCreateTensorDescriptor, &d->state));
  return RNN(cudnnSetTensorNdDescriptor, d->state, lm_cudnn_type(key->dtype), 3, size, stride);
}

static lm_status temporary_bytes(const lm_cudnn_rnn_call *o, const described *d, cudnnForwardMode_t mode,
                                 size_t *workspace, size_t *reserve) {
  return RNN(cudnnGetRNNTempSpaceSizes, o->cudnn->handle, o->rnn->network, mode, d->x, workspace, reserve);
}

lm_status lm_cudnn_rnn_reserve(const lm_cudnn_rnn_call *o, size_t *bytes) {
  __attribute__((cleanup(destroy_descriptors))) described d;
  size_t workspace;
  NEED(create_descriptors(o, &d));
  return temporary_bytes(o, &d, CUDNN_FWD_MODE_TRAINING, &workspace, bytes);
}

static lm_status run_rnn_forward(const lm_cudnn_rnn_call *o, const described *d, cudnnForwardMode_t mode, size_t bytes,
                                 void *workspace) {
  return RNN(cudnnRNNForward, o->cudnn->handle, o->rnn->network, mode, NULL, d->x, o->x, d->y, o->y, d->state, o->h0,
             o->h, d->state, o->c0, o->c, o->rnn->weight_bytes, o->weights, bytes, workspace, o->reserve_bytes,
             o->reserve);
}

static lm_status run_backward(const lm_cudnn_rnn_call *o, const described *d, size_t bytes, void *workspace) {
  NEED(RNN(cudnnRNNBackwardData_v8, o->cudnn->handle, o->rnn->network, NULL, d->y, o->y, o->grad_y, d->x, o->grad_x,
           d->state, o->h0, o->grad_h, o->grad_h0, d->state, o->c0, o->grad_c, o->grad_c0, o->rnn->weight_bytes,
           o->weights, bytes, workspace, o->reserve_bytes, o->reserve));
  return RNN(cudnnRNNBackwardWeights_v8, o->cudnn->handle, o->rnn->network, CUDNN_WGRAD_MODE_ADD, NULL, d->x, o->x,
             d->state, o->h0, d->y, o->y, o->rnn->weight_bytes, o->grad_weights, bytes, workspace, o->reserve_bytes,
             o->reserve);
}

lm_status lm_cudnn_rnn_run(const lm_cudnn_rnn_call *o, bool is_backward) {
  __attribute__((cleanup(destroy_descriptors))) described d;
  size_t bytes = 0, unused = 0;
  LM_CUDA_SCRATCH workspace = {0};
  int relaxed;
  bool trains = is_backward || o->reserve;
  cudnnForwardMode_t mode = trains ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
  NEED(create_descriptors(o, &d));
  NEED(temporary_bytes(o, &d, mode, &bytes, &unused));
  NEED(lm_cuda_scratch(o->device, bytes, &workspace));
  NEED(lm_cuda_relax(&relaxed)); /* this call may load kernels */
  lm_status status =
      is_backward ? run_backward(o, &d, bytes, workspace.p) : run_rnn_forward(o, &d, mode, bytes, workspace.p);
  lm_cuda_unrelax(relaxed);
  return status;
}
