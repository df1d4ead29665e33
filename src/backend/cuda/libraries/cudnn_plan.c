#include "backend/cuda/libraries/cudnn_plan.h"

#include <stdio.h>
#include <string.h>

#include "op/backend.h"

typedef cudnnBackendDescriptor_t descriptor;
typedef cudnnBackendAttributeName_t attribute;

lm_status lm_cuda_check_cudnn(int code, const char *call) {
  if (code == CUDNN_STATUS_SUCCESS) return LM_OK;
  char why[512] = "";
  cudnnGetLastErrorString(why, sizeof why);
  why[strcspn(why, "\n")] = '\0';
  lm_status status = LM_E_STATE;
  if (code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    status = LM_E_OOM;
  } else if (CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_NOT_SUPPORTED) {
    status = LM_E_MISSING;
  }
  const char *op = lm_op_running();
  return lm_fail(status, "%s%s%.*s: error %d (%s)%s%s", op ? op : "", op ? ": " : "", (int)strcspn(call, "("), call,
                 code, cudnnGetErrorString((cudnnStatus_t)code), why[0] ? ": " : "", why);
}

static bool unsupported(int code) { return CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_NOT_SUPPORTED; }

static void destroy(descriptor *d) {
  if (*d) cudnnBackendDestroyDescriptor(*d);
  *d = NULL;
}

/* ---- the graph */

/* A new descriptor that lives as long as the search. */
static lm_status new_descriptor(lm_cudnn_search *s, cudnnBackendDescriptorType_t type, descriptor *out) {
  lm_status status;
  TRY(CUDNN(cudnnBackendCreateDescriptor(type, out)));
  s->part[s->parts++] = *out;
done:
  return status;
}

static lm_status set_attribute(descriptor d, attribute name, cudnnBackendAttributeType_t type, int64_t count,
                               const void *value) {
  return CUDNN(cudnnBackendSetAttribute(d, name, type, count, value));
}

static lm_status set_descriptor(descriptor d, attribute name, descriptor value) {
  return set_attribute(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

cudnnDataType_t lm_cudnn_type(int dtype) {
  switch (dtype) {
    case LM_F16: return CUDNN_DATA_HALF;
    case LM_BF16: return CUDNN_DATA_BFLOAT16;
    case LM_F64: return CUDNN_DATA_DOUBLE;
    default: return CUDNN_DATA_FLOAT;
  }
}

cudnnDataType_t lm_cudnn_compute_type(int dtype) { return dtype == LM_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT; }

/* Names of tensors in a graph and in what is run. */
enum { ID_X = 'x', ID_W = 'w', ID_Y = 'y', ID_BIAS = 'b', ID_SUM = 's' };

/* Dense [n, c, h, w] in the key's layout. ID_SUM exists only inside the graph, in the type of the arithmetic. */
static lm_status describe_tensor(lm_cudnn_search *s, int64_t id, int64_t n, int64_t c, int64_t h, int64_t w,
                                 descriptor *out) {
  lm_status status;
  bool inside = id == ID_SUM;
  int64_t align = LM_CUDNN_ALIGN, size[4] = {n, c, h, w};
  int64_t first[4] = {c * h * w, h * w, w, 1}, last[4] = {c * h * w, 1, w * c, c};
  cudnnDataType_t type = inside ? lm_cudnn_compute_type(s->key.dtype) : lm_cudnn_type(s->key.dtype);
  TRY(new_descriptor(s, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
  TRY(set_attribute(*out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
  TRY(set_attribute(*out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
  TRY(set_attribute(*out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size));
  TRY(set_attribute(*out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->key.channels_last ? last : first));
  TRY(set_attribute(*out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
  if (inside) TRY(set_attribute(*out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside));
  TRY(CUDNN(cudnnBackendFinalize(*out)));
done:
  return status;
}

static lm_status convolution(lm_cudnn_search *s, descriptor *out) {
  lm_status status;
  const lm_conv_shape *shape = &s->key.shape;
  int64_t dims = 2;
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  cudnnDataType_t type = lm_cudnn_compute_type(s->key.dtype);
  TRY(new_descriptor(s, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, out));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, shape->stride));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, shape->padding));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, shape->padding));
  TRY(set_attribute(*out, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, shape->dilation));
  TRY(CUDNN(cudnnBackendFinalize(*out)));
done:
  return status;
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

static lm_status operation(lm_cudnn_search *s, descriptor x, descriptor w, descriptor y, descriptor how,
                           descriptor *out) {
  lm_status status;
  int pass = s->key.pass;
  bool wide = s->key.dtype == LM_F64;
  float one = 1, zero = 0;
  double wide_one = 1, wide_zero = 0;
  cudnnBackendAttributeType_t factor = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  TRY(new_descriptor(s, operations[pass].type, out));
  TRY(set_descriptor(*out, operations[pass].how, how));
  TRY(set_descriptor(*out, operations[pass].x, x));
  TRY(set_descriptor(*out, operations[pass].w, w));
  TRY(set_descriptor(*out, operations[pass].y, y));
  TRY(set_attribute(*out, operations[pass].alpha, factor, 1, wide ? (void *)&wide_one : (void *)&one));
  TRY(set_attribute(*out, operations[pass].beta, factor, 1, wide ? (void *)&wide_zero : (void *)&zero));
  TRY(CUDNN(cudnnBackendFinalize(*out)));
done:
  return status;
}

/* y = sum + bias */
static lm_status addition(lm_cudnn_search *s, descriptor sum, descriptor bias, descriptor y, descriptor *out) {
  lm_status status;
  descriptor how;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
  cudnnDataType_t type = lm_cudnn_compute_type(s->key.dtype);
  TRY(new_descriptor(s, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &how));
  TRY(set_attribute(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
  TRY(set_attribute(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type));
  TRY(CUDNN(cudnnBackendFinalize(how)));
  TRY(new_descriptor(s, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, out));
  TRY(set_descriptor(*out, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
  TRY(set_descriptor(*out, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sum));
  TRY(set_descriptor(*out, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias));
  TRY(set_descriptor(*out, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
  TRY(CUDNN(cudnnBackendFinalize(*out)));
done:
  return status;
}

lm_status lm_cudnn_search_begin(const lm_cudnn_target *target, const lm_cudnn_key *key, lm_cudnn_search *s) {
  lm_status status;
  const lm_conv_shape *c = &key->shape;
  descriptor x, w, y, bias, sum, how, op[2];
  *s = (lm_cudnn_search){.target = *target, .key = *key};
  TRY(describe_tensor(s, ID_X, c->n, c->c, c->h, c->w, &x));
  TRY(describe_tensor(s, ID_W, c->k, c->c / c->groups, c->kh, c->kw, &w));
  TRY(describe_tensor(s, ID_Y, c->n, c->k, c->oh, c->ow, &y));
  TRY(convolution(s, &how));
  if (key->bias) {
    TRY(describe_tensor(s, ID_BIAS, 1, c->k, 1, 1, &bias));
    TRY(describe_tensor(s, ID_SUM, c->n, c->k, c->oh, c->ow, &sum));
    TRY(operation(s, x, w, sum, how, &op[0]));
    TRY(addition(s, sum, bias, y, &op[1]));
  } else {
    TRY(operation(s, x, w, y, how, &op[0]));
  }
  TRY(new_descriptor(s, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &s->graph));
  TRY(set_attribute(s->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, key->bias ? 2 : 1, op));
  if (target->handle)
    TRY(set_attribute(s->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle));
  TRY(CUDNN(cudnnBackendFinalize(s->graph)));
done:
  return status;
}

static void drop_configs(lm_cudnn_search *s) {
  for (int i = 0; i < s->configs; i++) destroy(&s->config[i]);
  s->configs = s->at = 0;
}

void lm_cudnn_search_end(lm_cudnn_search *s) {
  drop_configs(s);
  while (s->parts > 0) destroy(&s->part[--s->parts]);
}

/* ---- engines */

/* The heuristics' next list into s->config; none is no error. */
static lm_status ask_heuristics(lm_cudnn_search *s, cudnnBackendHeurMode_t mode) {
  lm_status status;
  descriptor heuristics = NULL;
  int64_t found = 0;
  drop_configs(s);
  TRY(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics)));
  TRY(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, s->graph));
  TRY(set_attribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
  if (s->target.properties) TRY(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, s->target.properties));
  int code = cudnnBackendFinalize(heuristics);
  if (unsupported(code)) goto done;
  TRY(lm_cuda_check_cudnn(code, "cudnnBackendFinalize"));
  while (s->configs < LM_CUDNN_CONFIGS) {
    TRY(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &s->config[s->configs])));
    s->configs++;
  }
  code = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  LM_CUDNN_CONFIGS, &found, s->config);
  if (unsupported(code)) found = 0;
  if (!unsupported(code)) TRY(lm_cuda_check_cudnn(code, "cudnnBackendGetAttribute"));
  while (s->configs > found) destroy(&s->config[--s->configs]);
done:
  destroy(&heuristics);
  return status;
}

/* Whether the engine's arithmetic is what the key allows. */
static lm_status is_allowed(const lm_cudnn_search *s, descriptor config, bool *out) {
  lm_status status;
  descriptor engine = NULL;
  cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t found = 0;
  TRY(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)));
  TRY(CUDNN(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found,
                                     &engine)));
  found = 0;
  TRY(CUDNN(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                     CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &found, note)));
  *out = true;
  for (int i = 0; i < found; i++) {
    switch (note[i]) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* in float32 that is TF32 */
        if (s->key.dtype == LM_F32 && !s->key.tf32) *out = false;
        break;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        if (s->key.deterministic) *out = false;
        break;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: /* to float16, of a smaller range; TF32 does not count as such */
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: /* loses several digits */ *out = false; break;
      default: break;
    }
  }
done:
  destroy(&engine);
  return status;
}

/* Takes the config over on success. *code is what cuDNN said when it would not make the plan. */
static lm_status make_plan(const lm_cudnn_search *s, descriptor config, lm_cudnn_plan *out, int *code) {
  lm_status status;
  lm_cudnn_plan plan = {0};
  int64_t found = 0;
  TRY(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan.plan)));
  TRY(set_descriptor(plan.plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
  if (s->target.properties) {
    TRY(set_descriptor(plan.plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, s->target.properties));
  } else {
    TRY(set_attribute(plan.plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &s->target.handle));
  }
  *code = cudnnBackendFinalize(plan.plan);
  if (*code != CUDNN_STATUS_SUCCESS) goto done;
  TRY(CUDNN(cudnnBackendGetAttribute(plan.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &found,
                                     &plan.workspace)));
  plan.config = config;
  *out = plan;
  plan = (lm_cudnn_plan){0};
done:
  destroy(&plan.plan);
  return status;
}

lm_status lm_cudnn_search_next(lm_cudnn_search *s, lm_cudnn_plan *out) {
  static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
  enum { MODES = sizeof modes / sizeof *modes };
  lm_status status = LM_OK;
  *out = (lm_cudnn_plan){0};
  while (!out->plan) {
    if (s->at == s->configs) {
      if (s->mode == MODES) break;
      TRY(ask_heuristics(s, modes[s->mode++]));
      continue;
    }
    descriptor *config = &s->config[s->at++];
    bool good = false;
    int code = 0;
    TRY(is_allowed(s, *config, &good));
    if (!good) continue;
    TRY(make_plan(s, *config, out, &code));
    if (out->plan) *config = NULL;
    if (code && !unsupported(code) && !s->failed) s->failed = code;
  }
  if (!out->plan && s->failed) status = lm_cuda_check_cudnn(s->failed, "cudnnBackendFinalize");
done:
  return status;
}

void lm_cudnn_plan_free(lm_cudnn_plan *plan) {
  destroy(&plan->plan);
  destroy(&plan->config);
}

/* ---- running */

lm_status lm_cudnn_execute(cudnnHandle_t handle, const lm_cudnn_plan *plan, const void *x, const void *w, const void *y,
                           const void *bias, void *workspace) {
  lm_status status;
  descriptor pack = NULL;
  const int64_t id[4] = {ID_X, ID_W, ID_Y, ID_BIAS};
  const void *data[4] = {x, w, y, bias};
  int count = bias ? 4 : 3;
  TRY(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack)));
  TRY(set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, id));
  TRY(set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data));
  TRY(set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
  TRY(CUDNN(cudnnBackendFinalize(pack)));
  TRY(CUDNN(cudnnBackendExecute(handle, plan->plan, pack)));
done:
  destroy(&pack);
  return status;
}
