/* Runs recurrent networks, all layers at once, by cuDNN. LM_E_MISSING, with nothing written, if cuDNN does not take
 * one: then the caller runs the layers step by step. */
#include <stdlib.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/cudnn_rnn.h"
#include "backend/cuda/sort_pairs.h"
#include "backend/known/setting.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "cat.h"
#include "copy.h"

/* Checks the settings. cuBLAS may use a buffer of another size for another stream, and so sum in another order, unless
 * it is set to one size (cuBLAS's "Results Reproducibility"). */
static lm_status check_wanted(void) {
  if (!lm_setting_get(LM_SETTING_CUDNN_ENABLED)) return lm_fail(LM_E_MISSING, "cudnn.enabled is false");
  if (lm_setting_get(LM_SETTING_CUDNN_DETERMINISTIC) && !getenv("CUBLAS_WORKSPACE_CONFIG"))
    return lm_fail(LM_E_MISSING, "cudnn.deterministic is true, but CUBLAS_WORKSPACE_CONFIG (:4096:2) is not set");
  return LM_OK;
}

static lm_status make_rnn_key(int dtype, int cell, bool bidirectional, bool bias, int64_t layers, int64_t input,
                              int64_t hidden, lm_cudnn_rnn_key *out) {
  bool small = layers <= 1024 && input <= INT32_MAX && hidden <= INT32_MAX / 2;
  if (!small || input == 0 || hidden == 0) return lm_fail(LM_E_MISSING, "cuDNN does not support these sizes");
  *out = (lm_cudnn_rnn_key){.dtype = dtype,
                            .cell = cell,
                            .bidirectional = bidirectional,
                            .bias = bias,
                            .tf32 = dtype == LM_F32 && lm_setting_get(LM_SETTING_CUDNN_TF32),
                            .layers = (int32_t)layers,
                            .input = (int32_t)input,
                            .hidden = (int32_t)hidden};
  return LM_OK;
}

/* Makes a result whose size only the slot knows. */
static lm_status new_result(lm_dtype dtype, lm_device device, int64_t size, lm_tensor **out) {
  NEED(lm_tensor_empty(dtype, device, 1, &size, LM_CONTIGUOUS, out));
  return lm_use_write(lm_tensor_used(*out), lm_stream_current(device));
}

/* ---- weights */

/* Copies weights to their positions in the packed space, in one launch for up to LM_CAT_BLOCKS of them. */
static lm_status pack_rnn_weights(lm_tensor *const *weights, const lm_cudnn_rnn *r, lm_tensor *packed, void *stream) {
  int item = (int)lm_dtype_size(packed->dtype), unit = LM_MAX_UNIT;
  unit = lm_unit_for(unit, (int64_t)(uintptr_t)packed->data);
  unit = lm_unit_for(unit, (int64_t)r->weight_bytes);
  int64_t filled = 0;
  for (int i = 0; i < r->weights; i++) {
    unit = lm_unit_for(unit, weights[i]->numel * item);
    unit = lm_unit_for(unit, r->position[i] * item);
    unit = lm_unit_for(unit, (int64_t)(uintptr_t)weights[i]->data);
    filled += weights[i]->numel;
  }
  if (filled < packed->numel)
    NEED(lm_cuda_check(lm_set_bytes(packed->data, 0, r->weight_bytes, stream), "cudaMemsetAsync"));
  for (int done = 0; done < r->weights; done += LM_CAT_BLOCKS) {
    lm_cat_block blocks[LM_CAT_BLOCKS];
    int n = r->weights - done < LM_CAT_BLOCKS ? r->weights - done : LM_CAT_BLOCKS;
    for (int i = 0; i < n; i++) {
      const lm_tensor *w = weights[done + i];
      blocks[i] = (lm_cat_block){w->data, w->numel * item / unit, r->position[done + i] * item / unit};
    }
    NEED(LAUNCH("join", lm_cat_blocks(stream, unit, 1, (int64_t)r->weight_bytes / unit, n, blocks, packed->data)));
  }
  return LM_OK;
}

static lm_status pack_weights(const void *args, lm_tensor *const *out_, lm_cuda_frame *f) {
  lm_status status;
  const lm_recurrent_weights_args *a = args;
  lm_tensor **out = (lm_tensor **)out_; /* results are allocated here: cuDNN decides their sizes */
  const lm_tensor *first = a->weights.v[0];
  const int n = a->weights.n, directions = a->bidirectional ? 2 : 1;
  lm_tensor **dense = lm_calloc((size_t)n, sizeof *dense), *packed = NULL, *indices = NULL;
  lm_cudnn *cudnn;
  lm_cudnn_rnn *r;
  lm_cudnn_rnn_key key;
  if (!dense) return LM_E_OOM;
  TRY(check_wanted());
  TRY(make_rnn_key(first->dtype, a->cell, a->bidirectional, a->bias, n / (directions * (a->bias ? 4 : 2)),
                   first->size[1], a->weights.v[1]->size[1], &key));
  TRY(lm_cudnn_take(f, &cudnn));
  TRY(lm_cudnn_rnn_get(cudnn, &key, &r));
  int64_t count = (int64_t)(r->weight_bytes / lm_dtype_size(first->dtype)), tensors = n;
  TRY(new_result(first->dtype, f->device, count, &packed));
  TRY(lm_cudnn_rnn_weight_slots(cudnn, r, packed->data));
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 1, &tensors, LM_CONTIGUOUS, &indices));
  for (int i = 0; i < n; i++) {
    lm_tensor *w = a->weights.v[i];
    if (lm_is_contiguous(w)) {
      dense[i] = lm_retain(w);
    } else {
      TRY(lm_tensor_empty(w->dtype, w->device, w->ndim, w->size, LM_CONTIGUOUS, &dense[i]));
      TRY(lm_cuda_copy(w, dense[i]));
    }
    ((int64_t *)indices->data)[i] = r->position[i];
  }
  TRY(pack_rnn_weights(dense, r, packed, f->stream));
  out[0] = packed;
  out[1] = indices;
  packed = indices = NULL;
done:
  for (int i = 0; i < n; i++) lm_cuda_release(dense[i]);
  lm_free(dense);
  lm_cuda_release(packed);
  lm_release(indices);
  return status;
}

lm_status lm_cuda_recurrent_weights(const void *args, lm_tensor *const *out) {
  const lm_recurrent_weights_args *a = args;
  return lm_cuda_run(pack_weights, a->weights.v[0]->device, args, out);
}

/* ---- networks */

/* Sets lengths[i] to the number of steps that have more than i sequences, and *steps. The caller frees *out. */
static lm_status read_lengths(const lm_tensor *x, const lm_tensor *h0, const lm_tensor *sizes, int **out, int *steps) {
  int64_t batch = h0->size[1], n = sizes ? sizes->size[0] : x->size[0] / batch;
  const int64_t *size = sizes ? (const int64_t *)sizes->data : NULL;
  while (size && n > 0 && size[n - 1] == 0) n--;
  if (n > 65535 || batch * h0->size[2] > INT32_MAX) return lm_fail(LM_E_MISSING, "cuDNN does not support these sizes");
  int *lengths = lm_calloc((size_t)batch, sizeof *lengths);
  if (!lengths) return LM_E_OOM;
  for (int64_t i = 0; i < batch; i++) lengths[i] = (int)n;
  for (int64_t t = 1; size && t < n; t++) {
    for (int64_t i = size[t]; i < size[t - 1]; i++) lengths[i] = (int)t;
  }
  *out = lengths;
  *steps = (int)n;
  return LM_OK;
}

/* Describes a pass, with operands made dense and aligned for cuDNN. */
static lm_status begin(lm_cuda_frame *f, lm_tensor *x, lm_tensor *weights, lm_tensor *h0, lm_tensor *c0,
                       const lm_tensor *batch_sizes, int cell, bool bidirectional, bool bias, lm_cudnn_rnn_call *o) {
  lm_cudnn_rnn_key key;
  lm_cudnn_rnn *r;
  *o = (lm_cudnn_rnn_call){.device = f->device, .batch = (int)h0->size[1]};
  NEED(make_rnn_key(x->dtype, cell, bidirectional, bias, h0->size[0] / (bidirectional ? 2 : 1), x->size[1], h0->size[2],
                    &key));
  NEED(lm_cudnn_take(f, &o->cudnn));
  NEED(lm_cudnn_rnn_get(o->cudnn, &key, &r));
  o->rnn = r;
  if ((size_t)weights->numel * lm_dtype_size(x->dtype) != r->weight_bytes) {
    NEED(lm_fail_value(lm_op_running(), "weights",
                       lm_text("a result of recurrent_weights for x %s and h0 %s", lm_shape_of(x), lm_shape_of(h0)),
                       lm_shape_of(weights)));
  }
  NEED(read_lengths(x, h0, batch_sizes, &o->lengths, &o->steps));
  NEED(lm_cuda_lay_out(f, x, LM_CONTIGUOUS, true, &x));
  NEED(lm_cuda_lay_out(f, weights, LM_CONTIGUOUS, true, &weights));
  NEED(lm_cuda_lay_out(f, h0, LM_CONTIGUOUS, true, &h0));
  if (c0) NEED(lm_cuda_lay_out(f, c0, LM_CONTIGUOUS, true, &c0));
  o->x = x->data;
  o->weights = weights->data;
  o->h0 = h0->data;
  o->c0 = c0 ? c0->data : NULL;
  return LM_OK;
}

lm_status lm_cuda_recurrent_network(const lm_recurrent_network_args *a, lm_tensor *const *out_, lm_cuda_frame *f) {
  lm_status status;
  lm_tensor **out = (lm_tensor **)out_, *reserve = NULL;
  lm_cudnn_rnn_call o = {.lengths = NULL};
  TRY(check_wanted()); /* backward follows this pass's choice */
  TRY(begin(f, a->x, a->weights, a->h0, a->c0, a->batch_sizes, a->cell, a->bidirectional, a->bias, &o));
  o.y = out[0]->data;
  o.h = out[1]->data;
  o.c = a->c0 ? out[2]->data : NULL;
  if (a->keep) TRY(lm_cudnn_rnn_reserve(&o, &o.reserve_bytes));
  TRY(new_result(LM_U8, f->device, (int64_t)o.reserve_bytes, &reserve));
  o.reserve = a->keep ? reserve->data : NULL;
  TRY(lm_cudnn_rnn_run(&o, false));
  out[3] = reserve;
  reserve = NULL;
done:
  if (status == LM_E_MISSING && lm_log_on(LM_LOG_OP)) lm_log(LM_LOG_OP, "recurrent_network: %s", lm_error());
  lm_free(o.lengths);
  lm_cuda_release(reserve);
  return status;
}

/* Returns t's memory, dense and aligned, or zeros if t is NULL. */
static lm_status dense_or_zeros(lm_cuda_frame *f, lm_tensor *t, const lm_tensor *like, const void **out) {
  lm_tensor *dense;
  if (t) {
    NEED(lm_cuda_lay_out(f, t, LM_CONTIGUOUS, true, &dense));
  } else {
    NEED(lm_cuda_take_tensor(f, like->dtype, like->ndim, like->size, &dense));
    NEED(lm_cuda_check(lm_set_bytes(dense->data, 0, lm_nbytes(dense), f->stream), "cudaMemsetAsync"));
  }
  *out = dense->data;
  return LM_OK;
}

/* Runs backward. cuDNN writes on the forward pass's memory, so it gets a copy: backward may be called again. */
lm_status lm_cuda_recurrent_network_backward(const lm_recurrent_network_backward_args *a, lm_tensor *const *out,
                                             lm_cuda_frame *f) {
  lm_status status;
  lm_tensor *y, *reserve;
  lm_cudnn_rnn_call o;
  TRY(begin(f, a->x, a->weights, a->h0, a->c0, a->batch_sizes, a->cell, a->bidirectional, a->bias, &o));
  TRY(lm_cudnn_rnn_reserve(&o, &o.reserve_bytes));
  if (lm_nbytes(a->work) < o.reserve_bytes || !lm_is_contiguous(a->work)) {
    TRY(lm_fail_value(lm_op_running(), "work", "a result of recurrent_network with keep = true", lm_shape_of(a->work)));
  }
  TRY(lm_cuda_lay_out(f, a->y, LM_CONTIGUOUS, true, &y));
  TRY(dense_or_zeros(f, a->grad_y, a->y, &o.grad_y));
  TRY(dense_or_zeros(f, a->grad_h, a->h0, &o.grad_h));
  if (a->c0) TRY(dense_or_zeros(f, a->grad_c, a->c0, &o.grad_c));
  TRY(lm_cuda_take_like(f, a->work, LM_U8, &reserve));
  TRY(lm_cuda_copy(a->work, reserve));
  TRY(lm_cuda_check(lm_set_bytes(out[1]->data, 0, lm_nbytes(out[1]), f->stream), "cudaMemsetAsync"));
  o.y = y->data;
  o.reserve = reserve->data;
  o.grad_x = out[0]->data;
  o.grad_weights = out[1]->data;
  o.grad_h0 = out[2]->data;
  o.grad_c0 = a->c0 ? out[3]->data : NULL;
  TRY(lm_cudnn_rnn_run(&o, true));
done:
  lm_free(o.lengths);
  return status;
}
