#include "backend/cuda/libraries/cudnn_conv.h"

typedef cudnnBackendDescriptor_t descriptor;
typedef cudnnBackendAttributeName_t attribute;

/* Names of tensors in a graph and its variant pack. */
enum { ID_X = 'x', ID_W = 'w', ID_Y = 'y', ID_BIAS = 'b', ID_SUM = 's' };

/* Returns a dense [n, c, h, w] in the key's layout. ID_SUM exists only inside the graph, in the arithmetic's type. */
static descriptor tensor(lm_cudnn_graph *g, const lm_cudnn_key *key, int64_t id, int64_t n, int64_t c, int64_t h,
                         int64_t w) {
  const bool inside = id == ID_SUM;
  const int64_t size[4] = {n, c, h, w};
  const int64_t first[4] = {c * h * w, h * w, w, 1}, last[4] = {c * h * w, 1, w * c, c};
  return lm_cudnn_tensor(g, inside ? LM_CUDNN_INSIDE : LM_CUDNN_MEMORY, id,
                         inside ? lm_cudnn_compute_type(key->dtype) : lm_cudnn_type(key->dtype), size,
                         key->channels_last ? last : first);
}

/* The operation of each pass and its attributes' names. */
static const struct {
  cudnnBackendDescriptorType_t type;
  attribute x, w, y, how, alpha, beta;
} operations[] = {
    [LM_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [LM_CONV_INPUT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [LM_CONV_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static void add_convolution(lm_cudnn_graph *g, const lm_cudnn_key *key, descriptor x, descriptor w, descriptor y) {
  const lm_conv_shape *shape = &key->shape;
  const int64_t dims = 2;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const cudnnDataType_t type = lm_cudnn_compute_type(key->dtype);
  const bool wide = key->dtype == LM_F64;
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const cudnnBackendAttributeType_t factor = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  descriptor how = lm_cudnn_new(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, shape->stride);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, shape->padding);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, shape->padding);
  lm_cudnn_set(g, how, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, shape->dilation);
  lm_cudnn_finish(g, how);
  descriptor op = lm_cudnn_new(g, operations[key->pass].type);
  lm_cudnn_set_part(g, op, operations[key->pass].how, how);
  lm_cudnn_set_part(g, op, operations[key->pass].x, x);
  lm_cudnn_set_part(g, op, operations[key->pass].w, w);
  lm_cudnn_set_part(g, op, operations[key->pass].y, y);
  lm_cudnn_set(g, op, operations[key->pass].alpha, factor, 1, wide ? (const void *)&wide_one : &one);
  lm_cudnn_set(g, op, operations[key->pass].beta, factor, 1, wide ? (const void *)&wide_zero : &zero);
  lm_cudnn_finish_op(g, op);
}

lm_status lm_cudnn_conv_search(const lm_cudnn_target *target, const lm_cudnn_key *key, lm_cudnn_search *s) {
  const lm_conv_shape *c = &key->shape;
  *s = (lm_cudnn_search){.target = *target, .allow = {key->dtype, key->tf32, key->deterministic}};
  lm_cudnn_graph *g = &s->graph;
  descriptor x = tensor(g, key, ID_X, c->n, c->c, c->h, c->w);
  descriptor w = tensor(g, key, ID_W, c->k, c->c / c->groups, c->kh, c->kw);
  descriptor y = tensor(g, key, ID_Y, c->n, c->k, c->oh, c->ow);
  if (key->bias) {
    descriptor bias = tensor(g, key, ID_BIAS, 1, c->k, 1, 1), sum = tensor(g, key, ID_SUM, c->n, c->k, c->oh, c->ow);
    add_convolution(g, key, x, w, sum);
    lm_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, lm_cudnn_compute_type(key->dtype), -1, sum, bias, NULL, y);
  } else {
    add_convolution(g, key, x, w, y);
  }
  return lm_cudnn_search_ready(s);
}

lm_status lm_cudnn_convolve(cudnnHandle_t handle, const lm_cudnn_plan *plan, const void *x, const void *w,
                            const void *y, const void *bias, void *workspace) {
  return lm_cudnn_execute(handle, plan, bias ? 4 : 3, (const int64_t[]){ID_X, ID_W, ID_Y, ID_BIAS},
                          (const void *const[]){x, w, y, bias}, workspace);
}
