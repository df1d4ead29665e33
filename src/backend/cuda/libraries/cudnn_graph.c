#include "backend/cuda/libraries/cudnn_graph.h"

#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "op/kernels.h"

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
  return lm_fail_call(status, lm_op_running(), call, code, cudnnGetErrorString((cudnnStatus_t)code), why);
}

static bool is_unsupported_code(int code) { return CUDNN_STATUS_CATEGORY(code) == CUDNN_STATUS_NOT_SUPPORTED; }

static void destroy_descriptor(descriptor *d) {
  if (*d) cudnnBackendDestroyDescriptor(*d);
  *d = NULL;
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

/* ---- the graph */

void lm_cudnn_set(lm_cudnn_graph *g, descriptor d, attribute name, cudnnBackendAttributeType_t type, int64_t count,
                  const void *value) {
  if (g->status == LM_OK) g->status = CUDNN(cudnnBackendSetAttribute(d, name, type, count, value));
}

void lm_cudnn_set_part(lm_cudnn_graph *g, descriptor d, attribute name, descriptor part) {
  lm_cudnn_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

descriptor lm_cudnn_new(lm_cudnn_graph *g, cudnnBackendDescriptorType_t type) {
  descriptor d = NULL;
  if (g->status == LM_OK) g->status = CUDNN(cudnnBackendCreateDescriptor(type, &d));
  if (g->status == LM_OK) g->part[g->parts++] = d;
  return d;
}

void lm_cudnn_finish(lm_cudnn_graph *g, descriptor d) {
  if (g->status == LM_OK) g->status = CUDNN(cudnnBackendFinalize(d));
}

void lm_cudnn_finish_op(lm_cudnn_graph *g, descriptor op) {
  lm_cudnn_finish(g, op);
  if (g->status == LM_OK) g->op[g->ops++] = op;
}

descriptor lm_cudnn_tensor(lm_cudnn_graph *g, lm_cudnn_kind kind, int64_t id, cudnnDataType_t type, const int64_t *size,
                           const int64_t *stride) {
  const int64_t align = kind == LM_CUDNN_WORD ? (int64_t)sizeof(int64_t) : LM_CUDNN_ALIGN;
  const bool yes = true;
  descriptor d = lm_cudnn_new(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
  lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
  lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
  if (kind == LM_CUDNN_INSIDE) lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
  if (kind == LM_CUDNN_NUMBER) lm_cudnn_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
  lm_cudnn_finish(g, d);
  return d;
}

void lm_cudnn_pointwise(lm_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, int64_t axis,
                        descriptor x, descriptor b, descriptor t, descriptor y) {
  descriptor how = lm_cudnn_new(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  lm_cudnn_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  lm_cudnn_set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  if (axis >= 0) lm_cudnn_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  lm_cudnn_finish(g, how);
  descriptor op = lm_cudnn_new(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  lm_cudnn_set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  lm_cudnn_set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) lm_cudnn_set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t) lm_cudnn_set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  lm_cudnn_set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  lm_cudnn_finish_op(g, op);
}

lm_status lm_cudnn_search_ready(lm_cudnn_search *s) {
  lm_cudnn_graph *g = &s->graph;
  g->whole = lm_cudnn_new(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  lm_cudnn_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->ops, g->op);
  if (s->target.handle)
    lm_cudnn_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &s->target.handle);
  lm_cudnn_finish(g, g->whole);
  return g->status;
}

static void drop_configs(lm_cudnn_search *s) {
  for (int i = 0; i < s->configs; i++) destroy_descriptor(&s->config[i]);
  s->configs = s->at = 0;
}

void lm_cudnn_search_end(lm_cudnn_search *s) {
  drop_configs(s);
  lm_cudnn_graph *g = &s->graph;
  while (g->parts > 0) destroy_descriptor(&g->part[--g->parts]);
}

/* ---- engines */

static lm_status set_attribute(descriptor d, attribute name, cudnnBackendAttributeType_t type, int64_t count,
                               const void *value) {
  return CUDNN(cudnnBackendSetAttribute(d, name, type, count, value));
}

static lm_status set_descriptor(descriptor d, attribute name, descriptor value) {
  return set_attribute(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

lm_status lm_cudnn_search_ask(lm_cudnn_search *s, cudnnBackendHeurMode_t mode) {
  __attribute__((cleanup(destroy_descriptor))) descriptor heuristics = NULL;
  int64_t found = 0;
  drop_configs(s);
  NEED(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics)));
  NEED(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, s->graph.whole));
  NEED(set_attribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
  if (s->target.properties) NEED(set_descriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, s->target.properties));
  int code = cudnnBackendFinalize(heuristics);
  if (is_unsupported_code(code)) return LM_OK;
  NEED(lm_cuda_check_cudnn(code, "cudnnBackendFinalize"));
  while (s->configs < LM_CUDNN_CONFIGS) {
    NEED(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &s->config[s->configs])));
    s->configs++;
  }
  code = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  LM_CUDNN_CONFIGS, &found, s->config);
  if (is_unsupported_code(code)) found = 0;
  if (!is_unsupported_code(code)) NEED(lm_cuda_check_cudnn(code, "cudnnBackendGetAttribute"));
  while (s->configs > found) destroy_descriptor(&s->config[--s->configs]);
  return LM_OK;
}

/* Sets *out to true if the engine's arithmetic is allowed. */
static lm_status is_allowed(const lm_cudnn_search *s, descriptor config, bool *out) {
  __attribute__((cleanup(destroy_descriptor))) descriptor engine = NULL;
  cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t found = 0;
  NEED(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)));
  NEED(CUDNN(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found,
                                      &engine)));
  found = 0;
  NEED(CUDNN(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                      CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &found, note)));
  *out = true;
  for (int i = 0; i < found; i++) {
    switch (note[i]) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* in float32 that is TF32 */
        if (s->allow.dtype == LM_F32 && !s->allow.tf32) *out = false;
        break;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        if (s->allow.deterministic) *out = false;
        break;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: /* to float16, whose range is smaller; not to TF32 */
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: /* loses several digits */ *out = false; break;
      default: break;
    }
  }
  return LM_OK;
}

/* Makes a plan, which owns the config on success. *code: cuDNN's status when it refuses the plan. */
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
  destroy_descriptor(&plan.plan);
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
      NEED(lm_cudnn_search_ask(s, modes[s->mode++]));
      continue;
    }
    descriptor *config = &s->config[s->at++];
    bool good = false;
    int code = 0;
    NEED(is_allowed(s, *config, &good));
    if (!good) continue;
    NEED(make_plan(s, *config, out, &code));
    if (out->plan) *config = NULL;
    if (code && !is_unsupported_code(code) && !s->failed) s->failed = code;
  }
  if (!out->plan && s->failed) status = lm_cuda_check_cudnn(s->failed, "cudnnBackendFinalize");
  return status;
}

void lm_cudnn_plan_free(lm_cudnn_plan *plan) {
  destroy_descriptor(&plan->plan);
  destroy_descriptor(&plan->config);
}

/* ---- running */

lm_status lm_cudnn_execute(cudnnHandle_t handle, const lm_cudnn_plan *plan, int count, const int64_t *id,
                           const void *const *data, void *workspace) {
  __attribute__((cleanup(destroy_descriptor))) descriptor pack = NULL;
  NEED(CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack)));
  NEED(set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, id));
  NEED(set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data));
  NEED(set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
  NEED(CUDNN(cudnnBackendFinalize(pack)));
  return CUDNN(cudnnBackendExecute(handle, plan->plan, pack));
}
