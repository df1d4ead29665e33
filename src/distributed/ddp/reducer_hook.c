/* Runs communication hooks, which replace the all_reduce of full buckets: a 2-byte all_reduce, or a user's function. */
#include <string.h>

#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"
#include "op_entries.h"

static const char who[] = "register_comm_hook";

/* ---- registering */

static lm_status compare_names(lm_reducer *r, const char *name) {
  LM_FREED char *first = NULL;
  size_t n = 0;
  NEED(lm_broadcast_bytes(r->g, 0, name, strlen(name), &first, &n));
  if (strcmp(first, name) == 0) return LM_OK;
  lm_status status =
      lm_fail(LM_E_STATE, "%s: the hook must be the same on all ranks, got '%s' here and '%s' on rank %d", who, name,
              first, r->g->ranks ? r->g->ranks[0] : 0);
  lm_reducer_publish(r, status);
  return status;
}

lm_status lm_reducer_set_hook(lm_reducer *r, const lm_comm_hook *hook) {
  NEED(lm_reducer_usable(r));
  if (r->hooked) return lm_fail(LM_E_STATE, "%s: this model already has a hook", who);
  if (r->begun || r->exchanges > 0)
    return lm_fail(LM_E_STATE, "%s: gradients were already averaged; register the hook before the first backward()",
                   who);
  NEED(compare_names(r, hook->name));
  r->hook = *hook;
  r->hook.name = NULL; /* the caller's string may be gone later */
  r->hooked = true;
  if (!hook->call || !r->shared) return LM_OK;
  lm_status status = lm_buckets_make(r, r->order); /* moves them from shared memory to this rank's own */
  if (status != LM_OK) {
    r->hook.call = NULL;
    lm_reducer_publish(r, status); /* the other ranks would wait for this one */
  }
  return status;
}

bool lm_hook_takes(const lm_reducer *r, const lm_bucket *b) {
  if (r->hook.call) return true;
  return r->hooked && r->g->size > 1 && r->hook.wire < LM_DTYPE_COUNT &&
         lm_dtype_size(b->dtype) > lm_dtype_size(r->hook.wire);
}

/* ---- access to a bucket for a user's hook */

lm_status lm_reducer_buffer(const lm_reducer *r, int bucket, lm_tensor **out) {
  lm_tensor *flat = r->bucket[bucket].flat;
  return lm_tensor_view(flat, 1, flat->size, flat->stride, 0, out);
}

int lm_reducer_params(const lm_reducer *r) { return r->n; }

int lm_reducer_members(const lm_reducer *r, int bucket, int *param) {
  int n = 0;
  for (int k = 0; k < r->n; k++) {
    if (r->slot[r->order[k]].bucket == bucket) param[n++] = r->order[k];
  }
  return n;
}

lm_status lm_reducer_gradient(const lm_reducer *r, int i, lm_tensor **out) {
  const lm_slot *s = &r->slot[i];
  int64_t at = (int64_t)(s->at / lm_dtype_size(s->view->dtype));
  return lm_tensor_view(r->bucket[s->bucket].flat, s->view->ndim, s->view->size, s->view->stride, at, out);
}

/* Zeroes the padding between the bucket's gradients, where the hook's result of the last pass may have left values. */
static lm_status clear_gaps(lm_reducer *r, int bucket) {
  lm_status status = LM_OK;
  const lm_bucket *b = &r->bucket[bucket];
  int64_t element = (int64_t)lm_dtype_size(b->dtype), one = 1;
  for (int i = 0; i < r->n; i++) {
    const lm_slot *s = &r->slot[i];
    int64_t gap = (int64_t)(lm_whole_lines(s->bytes) - s->bytes) / element;
    lm_tensor *between = NULL;
    if (s->bucket != bucket || gap == 0) continue;
    NEED(lm_tensor_view(b->flat, 1, &gap, &one, (int64_t)(s->at + s->bytes) / element, &between));
    status = lm_fill_with_zeros(between);
    lm_release(between);
    if (status != LM_OK) return status;
  }
  return status;
}

static lm_status copy_content(lm_tensor *flat, lm_tensor *content) {
  lm_tensor *same = NULL;
  if (content->device != flat->device || !lm_same_shape(content, flat) || !lm_dtype_is_float(content->dtype)) {
    NEED(lm_fail(LM_E_SHAPE, "%s: the result of the hook must be %s %s on %s like its bucket, got %s %s on %s", who,
                 lm_dtype_name(flat->dtype), lm_shape_of(flat), lm_device_name(flat->device),
                 lm_dtype_name(content->dtype), lm_shape_of(content), lm_device_name(content->device)));
  }
  NEED(lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = flat, .src = content}, &same));
  lm_release(same);
  return LM_OK;
}

static lm_status hook_call(lm_reducer *r, int bucket, bool last) {
  LM_OWNED *content = NULL;
  NEED(r->hook.call(r->hook.ctx, bucket, last, &content));
  if (!r->g) NEED(lm_reducer_usable(r)); /* the hook closed the reducer */
  lm_bucket *b = &r->bucket[bucket];
  b->calls_again = !content && !last;
  if (content) NEED(copy_content(b->flat, content));
  return LM_OK;
}

/* ---- a pass */

lm_status lm_hook_start(lm_reducer *r, int bucket) {
  lm_bucket *b = &r->bucket[bucket];
  if (r->hook.call) {
    NEED(clear_gaps(r, bucket));
    return hook_call(r, bucket, false);
  }
  NEED(lm_op_run(LM_OP_to_copy, &(lm_to_copy_args){b->flat, r->hook.wire, b->device, LM_PRESERVE, false}, &b->wire));
  lm_reduce_name(r, bucket);
  return lm_collective_start(r->g, &(lm_group_call){.kind = LM_ALL_REDUCE, .t = b->wire}, &b->work);
}

lm_status lm_hook_finish(lm_reducer *r, int bucket) {
  lm_bucket *b = &r->bucket[bucket];
  if (r->hook.call) return b->calls_again ? hook_call(r, bucket, true) : LM_OK;
  NEED(lm_reduce_wait(&b->work));
  NEED(lm_copy(b->wire, b->flat));
  lm_release(b->wire);
  b->wire = NULL;
  return LM_OK;
}
