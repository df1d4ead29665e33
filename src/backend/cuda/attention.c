/* Computes attention, and draws its dropout. Half precision takes cuDNN's fused attention if that accepts it; its
 * dropout has its own masks. The rest takes kernels/attention.cu or, on tensor cores, attention_mma.cu. */
#include "attention.h"

#include <math.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/cudnn_choice.h"
#include "backend/cuda/libraries/cudnn_handles.h"
#include "backend/cuda/runtime/context.h"
#include "backend/known/plan_searches.h"
#include "backend/known/setting.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/graph.h"
#include "op/nn/attention.h"
#include "paged_attention.h"

static lm_attention_side side_of(const lm_tensor *t) {
  return (lm_attention_side){t->data, t->stride[0], t->stride[1], t->stride[2]};
}

static bool all_packed(int n, const lm_tensor *const *t) {
  bool in_packs = true;
  for (int k = 0; k < n; k++) in_packs = in_packs && lm_attention_is_packed(t[k]);
  return in_packs;
}

/* Returns dropout's threshold in the kernels: a weight is kept if its word's upper 24 bits reach it. */
static uint32_t threshold_of(double p) { return (uint32_t)ceil(p * 0x1p24); }
static double keep_scale_of(double p) { return p < 1 ? 1 / (1 - p) : 0; }

static lm_attention_job describe_attention(const lm_attention_args *a, const lm_tensor *out, const lm_tensor *log_sum) {
  const lm_tensor *query = a->query, *key = a->key, *value = a->value, *mask = a->attn_mask;
  lm_attention_job job = {
      .dtype = query->dtype,
      .tf32 = query->dtype == LM_F32 && lm_setting_get(LM_SETTING_MATMUL_TF32),
      .causal = a->is_causal,
      .in_packs = all_packed(4, (const lm_tensor *[]){query, key, value, out}),
      .samples = query->size[0],
      .heads = query->size[1],
      .key_heads = key->size[1],
      .shared = key->size[1] > 0 ? query->size[1] / key->size[1] : 1,
      .queries = query->size[2],
      .keys = key->size[2],
      .width = query->size[3],
      .value_width = value->size[3],
      .scale = a->scale,
      .query = side_of(query),
      .key = side_of(key),
      .value = side_of(value),
      .out = side_of(out),
      .log_sum = log_sum->data,
      .mask = mask ? mask->data : NULL,
      .mask_is_bool = mask && mask->dtype == LM_BOOL,
      .draw = a->draw ? (const uint64_t *)a->draw->data : NULL,
      .threshold = threshold_of(a->dropout_p),
      .keep_scale = a->draw ? keep_scale_of(a->dropout_p) : 1,
  };
  for (int d = 0; mask && d < 4; d++) job.mask_stride[d] = mask->stride[d];
  return job;
}

/* ---- cuDNN */

/* One pass through cuDNN. */
typedef struct call {
  lm_cudnn_run run;
  lm_cudnn *cudnn;
  lm_cudnn_attention_key key;
  double scale;
  const void *data[LM_CUDNN_ALL];
} call;

static lm_status execute(const lm_cudnn_run *run, const lm_cudnn_plan *plan, void *workspace) {
  const call *c = (const call *)run;
  return lm_cudnn_attend(c->cudnn->handle, plan, &c->key, c->scale, c->data, workspace);
}

/* Returns true if cuDNN may compute this call; with dropout or a mask the op's `fused` decides. Before version OLDEST,
 * cuDNN's backward pass needed a mask behind the last key, and the first versions another number for hidden scores. */
static bool is_for_cudnn(const lm_attention_args *a, const lm_attention_job *job, bool backward) {
  enum { OLDEST = 91501 };
  const lm_tensor *mask = a->attn_mask;
  if (!job->in_packs || (uintptr_t)job->log_sum % LM_CUDNN_ALIGN != 0 || cudnnGetVersion() < OLDEST) return false;
  if (mask && (mask->dtype != job->dtype || mask->stride[3] != 1 || !lm_attention_is_packed(mask))) return false;
  if (mask || a->draw) return a->fused;
  return lm_attention_fuses(a->query, a->key, a->value, mask, a->is_causal, a->dropout_p, backward);
}

/* Sets the sides and their strides (for a dim of size 1, a dense tensor's). Returns false if another stride is 0. */
static bool set_sides(call *c, const lm_attention_job *job) {
  const lm_attention_side *const sides[] = {
      [LM_CUDNN_QUERY] = &job->query, [LM_CUDNN_KEY] = &job->key,      [LM_CUDNN_VALUE] = &job->value,
      [LM_CUDNN_OUT] = &job->out,     [LM_CUDNN_GRAD] = &job->grad,    [LM_CUDNN_DQUERY] = &job->dquery,
      [LM_CUDNN_DKEY] = &job->dkey,   [LM_CUDNN_DVALUE] = &job->dvalue};
  bool good = true;
  for (int which = LM_CUDNN_QUERY; which < (c->key.backward ? LM_CUDNN_SIDES : LM_CUDNN_GRAD); which++) {
    const lm_attention_side *side = sides[which];
    lm_cudnn_attention_size of = lm_cudnn_attention_size_of(&c->key, which);
    int64_t *stride = c->key.stride[which];
    stride[2] = of.rows > 1 ? side->row : of.width;
    stride[1] = of.heads > 1 ? side->head : of.rows * stride[2];
    stride[0] = c->key.samples > 1 ? side->sample : of.heads * stride[1];
    c->data[which] = side->data;
    good = good && stride[0] > 0 && stride[1] > 0 && stride[2] > 0;
  }
  return good;
}

/* Returns true if a plan is worth making. A plan is compiled for each length, which takes longer than many passes of
 * our own kernels; so it is made when a length comes a second time. It is made at once with cudnn.benchmark, in a
 * captured graph, which is replayed, and with cudnn.deterministic, since then no result may depend on earlier calls. */
static bool is_worth_a_plan(bool came_before) {
  return came_before || lm_graph_capturing() || lm_setting_get(LM_SETTING_CUDNN_DETERMINISTIC) ||
         lm_setting_get(LM_SETTING_CUDNN_BENCHMARK);
}

/* Returns the key's entry, added to the cache if it is new; *came_before: false if it is. */
static lm_cudnn_attention_found *find_entry(call *c, bool *came_before) {
  lm_cache *cache = &c->cudnn->attentions;
  lm_cudnn_attention_found *found = lm_cache_find(cache, &c->key, sizeof c->key);
  *came_before = found != NULL;
  if (found) return found;
  found = lm_calloc(1, sizeof *found);
  if (!found) return NULL;
  found->key = c->key;
  lm_cache_put(cache, &found->head, sizeof c->key);
  return found;
}

static void log_plan(const lm_cudnn_attention_found *found) {
  if (!lm_log_on(LM_LOG_OP)) return;
  lm_log(LM_LOG_OP, "cuDNN: %s for attention of %lld queries and %lld keys, %lld and %lld numbers each",
         found->plan.plan ? "a plan" : "no plan", (long long)found->key.queries, (long long)found->key.keys,
         (long long)found->key.width, (long long)found->key.value_width);
}

/* Makes the first available plan for the key, without running it. */
static lm_status make_plan(cudnnHandle_t handle, lm_cudnn_attention_found *found) {
  lm_cudnn_search s;
  lm_cudnn_target target = {.handle = handle};
  lm_plan_search_count();
  lm_status status = lm_cudnn_attention_search(&target, &found->key, &s);
  if (status == LM_OK) status = lm_cudnn_search_next(&s, &found->plan);
  lm_cudnn_search_end(&s);
  if (status == LM_E_MISSING) status = LM_OK;
  found->searched = status == LM_OK;
  if (found->searched) log_plan(found);
  return status;
}

/* Decides before the first pass whether cuDNN or our kernels draw dropout's masks, for both passes. Makes both plans,
 * since a proposed plan can still be refused; the backward plan is for a gradient with the result's layout. Does so
 * without gradients too, since a checkpoint's first pass must draw what its second pass draws. */
static lm_status decide(const call *forward, lm_cudnn_attention_found *found) {
  lm_status status = LM_OK;
  int mode;
  bool came_before;
  call back = *forward;
  back.key.backward = true;
  memcpy(back.key.stride[LM_CUDNN_GRAD], back.key.stride[LM_CUDNN_OUT], sizeof back.key.stride[0]);
  memcpy(back.key.stride[LM_CUDNN_DQUERY], back.key.stride[LM_CUDNN_QUERY], 3 * sizeof back.key.stride[0]);
  lm_cudnn_attention_found *backward = find_entry(&back, &came_before);
  if (!backward) return LM_E_OOM;
  NEED(lm_cuda_relax(&mode));
  if (!backward->searched) status = make_plan(forward->cudnn->handle, backward);
  if (status == LM_OK && backward->plan.plan) status = make_plan(forward->cudnn->handle, found);
  lm_cuda_unrelax(mode);
  found->searched = status == LM_OK;
  return status;
}

/* Sets *out to true if cuDNN draws the dropout masks for this call. */
static lm_status draws(const call *c, bool *out) {
  call forward = *c;
  bool came_before;
  forward.key.backward = false;
  memset(forward.key.stride[LM_CUDNN_GRAD], 0, (LM_CUDNN_SIDES - LM_CUDNN_GRAD) * sizeof forward.key.stride[0]);
  lm_cudnn_attention_found *found = find_entry(&forward, &came_before);
  if (!found) return LM_E_OOM;
  if (!found->searched) NEED(decide(&forward, found));
  *out = found->plan.plan != NULL;
  return LM_OK;
}

/* Finds a plan for the key and stores it; computes the result with the plan, if there is one. */
static lm_status find_plan(call *c, lm_cudnn_attention_found *found) {
  int mode;
  lm_cudnn_search s;
  lm_cudnn_target target = {.handle = c->cudnn->handle};
  NEED(lm_cuda_relax(&mode)); /* engines are compiled and loaded by this call */
  lm_status status = lm_cudnn_choose(&s, lm_cudnn_attention_search(&target, &c->key, &s), &c->run, false, &found->plan);
  lm_cuda_unrelax(mode);
  if (status != LM_OK) return status;
  log_plan(found);
  found->searched = true;
  return status;
}

/* Computes a pass by cuDNN; *done_ is false if cuDNN does not take it. */
static lm_status by_cudnn(lm_cuda_frame *f, const lm_attention_job *job, double dropout_p, bool backward, bool *done_) {
  void *sums;
  size_t bytes = (size_t)(job->samples * job->heads * job->queries * job->width) * sizeof(float);
  call c = {.run = {f->device, execute},
            .scale = job->scale,
            .key = {.samples = job->samples,
                    .heads = job->heads,
                    .key_heads = job->key_heads,
                    .queries = job->queries,
                    .keys = job->keys,
                    .width = job->width,
                    .value_width = job->value_width,
                    .dropout_p = dropout_p,
                    .dtype = job->dtype,
                    .causal = job->causal,
                    .backward = backward}};
  *done_ = false;
  if (!set_sides(&c, job)) return LM_OK;
  c.data[LM_CUDNN_LOG_SUM] = job->log_sum;
  if (job->mask) {
    c.data[LM_CUDNN_BIAS] = job->mask;
    memcpy(c.key.bias, job->mask_stride, sizeof c.key.bias);
  }
  NEED(lm_cudnn_take(f, &c.cudnn));
  bool came_before, by_draw = job->draw != NULL;
  if (by_draw) {
    c.data[LM_CUDNN_SEED] = job->draw;
    c.data[LM_CUDNN_OFFSET] = job->draw + 1;
    NEED(draws(&c, &came_before));
    if (!came_before) return LM_OK;
  }
  lm_cudnn_attention_found *found = find_entry(&c, &came_before);
  if (!found) return LM_E_OOM;
  if (!by_draw && (found->searched ? !found->plan.plan : !is_worth_a_plan(came_before))) return LM_OK;
  if (backward) {
    NEED(lm_cuda_take(f, bytes, &sums));
    c.data[LM_CUDNN_SUMS] = sums;
    c.data[LM_CUDNN_DOTS] = job->dots;
  }
  NEED(found->searched ? lm_cudnn_run_plan(&c.run, &found->plan) : find_plan(&c, found));
  *done_ = found->plan.plan != NULL;
  if (by_draw && !*done_)
    return lm_fail(LM_E_MISSING, "attention_backward: cuDNN has no plan to go with the forward pass");
  return LM_OK;
}

/* ---- ops */

lm_status lm_cuda_attention(const lm_attention_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  bool done_ = false;
  lm_attention_job job = describe_attention(a, out[0], out[1]);
  if (is_for_cudnn(a, &job, false)) NEED(by_cudnn(f, &job, a->dropout_p, false, &done_));
  if (!done_) NEED(LAUNCH("lm_attention_forward", lm_k_attention(&job, f->stream)));
  return LM_OK;
}

lm_status lm_cuda_attention_backward(const lm_attention_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_attention_args forward = {a->query, a->key,       a->value, a->attn_mask, a->is_causal,
                                     a->scale, a->dropout_p, a->draw,  a->fused};
  bool done_ = false;
  lm_attention_job job = describe_attention(&forward, a->out, a->log_sum);
  job.in_packs = job.in_packs && all_packed(4, (const lm_tensor *[]){a->grad, out[0], out[1], out[2]});
  job.grad = side_of(a->grad);
  job.dquery = side_of(out[0]);
  job.dkey = side_of(out[1]);
  job.dvalue = side_of(out[2]);
  NEED(lm_cuda_take(f, lm_nbytes(a->log_sum), &job.dots));
  if (is_for_cudnn(&forward, &job, true)) NEED(by_cudnn(f, &job, a->dropout_p, true, &done_));
  if (!done_) NEED(LAUNCH("lm_attention_backward", lm_k_attention_backward(&job, f->stream)));
  return LM_OK;
}

lm_status lm_cuda_attention_draw(const lm_attention_draw_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  const lm_draw taken = lm_attention_take(a->query, a->key);
  return LAUNCH("lm_attention_draw_put", lm_k_attention_draw((uint64_t *)out[0]->data, taken.seed, taken.offset,
                                                             lm_generator_extra(), f->stream));
}

lm_status lm_cuda_dropout_by_draw(const lm_dropout_by_draw_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return LAUNCH("lm_dropout_drawn", lm_k_dropout_by_draw(a->x->dtype, a->x->data, out[0]->data, a->x->numel,
                                                         (const uint64_t *)a->draw->data, threshold_of(a->p),
                                                         keep_scale_of(a->p), f->stream));
}

lm_status lm_cuda_paged_attention(const lm_paged_attention_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *keys, *values;
  lm_bad bad;
  if (out[0]->numel == 0) return LM_OK;
  NEED(lm_cuda_bad(f->device, &bad));
  NEED(lm_cuda_lay_out(f, a->keys, LM_CONTIGUOUS, true, &keys));
  NEED(lm_cuda_lay_out(f, a->values, LM_CONTIGUOUS, true, &values));
  const int64_t bytes = (int64_t)lm_dtype_size(keys->dtype);
  const lm_paged_attention_job job = {.dtype = keys->dtype,
                                      .kind = a->kind,
                                      .bad_kind = LM_BAD_INDEX,
                                      .tokens = a->query->size[0],
                                      .heads = a->query->size[1],
                                      .key_heads = keys->size[1],
                                      .width = a->query->size[2],
                                      .value_width = out[0]->size[2],
                                      .sequences = a->pages->size[0],
                                      .entries = a->pages->size[1],
                                      .page_size = a->page_size,
                                      .count = keys->size[0] / a->page_size,
                                      .window = a->window,
                                      .key_bytes = keys->size[2] * bytes,
                                      .value_bytes = values->size[2] * bytes,
                                      .scale = (float)a->scale,
                                      .cap = (float)a->cap,
                                      .query = (const float *)a->query->data,
                                      .keys = keys->data,
                                      .values = values->data,
                                      .pages = (const int64_t *)a->pages->data,
                                      .sequence = (const int64_t *)a->sequence->data,
                                      .position = (const int64_t *)a->position->data,
                                      .y = (float *)out[0]->data};
  return LAUNCH("paged_attention", lm_k_paged_attention(&job, bad, f->stream));
}
