/* Adding gradients up: on their way through the graph, and in a leaf's .grad. */
#include <string.h>

#include "autograd/node.h"
#include "op/op.h"

/* Nobody else holds t or its memory, and every element is there once: it may be written to. */
static bool is_ours(lm_tensor *t) {
  return atomic_load_explicit(&t->rc, memory_order_acquire) == 1 &&
         atomic_load_explicit(&t->storage->rc, memory_order_acquire) == 1 && !t->storage->foreign_release &&
         lm_is_dense(t);
}

/* sum += g without recording. */
static lm_status add_into(lm_tensor *sum, lm_tensor *g) {
  lm_tensor *same;
  lm_status status = lm_op_run_inplace(LM_OP_add, &(lm_add_args){.x = sum, .other = g, .alpha = 1}, &same);
  if (status == LM_OK) lm_release(same);
  return status;
}

lm_status lm_sum_gradient(lm_tensor **sum, lm_tensor *g, bool create_graph) {
  lm_status status = LM_OK;
  lm_tensor *total = NULL;
  if (!*sum) {
    *sum = g;
    return LM_OK;
  }
  if (!create_graph && is_ours(*sum)) {
    TRY(add_into(*sum, g));
  } else if (!create_graph && is_ours(g)) {
    TRY(add_into(g, *sum));
    total = *sum;
    *sum = g;
    g = total;
  } else {
    TRY(lm_call(LM_OP_add, &(lm_add_args){.x = *sum, .other = g, .alpha = 1}, &total));
    lm_release(*sum);
    *sum = total;
  }
done:
  lm_release(g);
  return status;
}

static void replace(lm_tensor **g, lm_tensor *with) {
  lm_release(*g);
  *g = with;
}

lm_status lm_fit_gradient(const lm_meta *meta, lm_tensor **g) {
  lm_status status = LM_OK;
  lm_tensor *fitted;
  bool same = (*g)->ndim == meta->ndim;
  for (int d = 0; same && d < meta->ndim; d++) same = (*g)->size[d] == meta->size[d];
  if (!same) {
    lm_sum_to_size_args args = {.x = *g, .size = {.n = meta->ndim}};
    memcpy(args.size.v, meta->size, sizeof(int64_t) * meta->ndim);
    TRY(lm_call(LM_OP_sum_to_size, &args, &fitted));
    replace(g, fitted);
  }
  if ((*g)->dtype != meta->dtype || (*g)->device != meta->device) {
    lm_to_copy_args args = {*g, (lm_dtype)meta->dtype, meta->device, LM_PRESERVE};
    TRY(lm_call(LM_OP_to_copy, &args, &fitted));
    replace(g, fitted);
  }
done:
  return status;
}

static bool has_strides(const lm_tensor *t, const int64_t *stride) {
  for (int d = 0; d < t->ndim; d++) {
    if (t->size[d] > 1 && t->stride[d] != stride[d]) return false;
  }
  return true;
}

/* A copy of g laid out in memory as its leaf, or contiguous where the leaf is not dense. */
static lm_status copy_as_leaf(const lm_node *leaf, lm_tensor *g, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor like = *g, *result = NULL, *same = NULL; /* sizes and strides only */
  memcpy(like.stride, leaf->payload, sizeof(int64_t) * g->ndim);
  if (!lm_is_dense(&like)) {
    TRY(lm_tensor_empty((lm_dtype)g->dtype, g->device, g->ndim, g->size, LM_CONTIGUOUS, &result));
  } else {
    TRY(lm_tensor_empty_like(&like, (lm_dtype)g->dtype, g->device, &result));
  }
  TRY(lm_op_run(LM_OP_copy_, &(lm_copy__args){result, g}, &same));
  lm_release(same);
  *out = result;
  result = NULL;
done:
  lm_release(result);
  return status;
}

lm_status lm_leaf_accumulate(lm_node *leaf, lm_tensor *g, bool create_graph) {
  lm_status status = LM_OK;
  lm_watch *w = leaf->out[0].watch;
  lm_tensor *next = NULL;
  pthread_mutex_lock(&w->lock);
  if (w->orphaned) goto done;
  if (!w->grad) {
    if (is_ours(g) && (create_graph || has_strides(g, leaf->payload))) {
      w->grad = g;
      g = NULL;
    } else if (create_graph) {
      TRY(lm_call(LM_OP_clone, &(lm_clone_args){g, LM_PRESERVE}, &w->grad));
    } else {
      TRY(copy_as_leaf(leaf, g, &w->grad));
    }
  } else if (create_graph || w->grad->grad || lm_overlaps_itself(w->grad)) {
    TRY(lm_call(LM_OP_add, &(lm_add_args){w->grad, g, 1}, &next));
    replace(&w->grad, next);
  } else {
    TRY(add_into(w->grad, g));
  }
done:
  pthread_mutex_unlock(&w->lock);
  lm_release(g);
  return status;
}

lm_status lm_watch_keep(lm_watch *w, lm_tensor *g, bool create_graph) {
  lm_status status = LM_OK;
  lm_tensor *copy = NULL;
  TRY(lm_call(LM_OP_clone, &(lm_clone_args){g, LM_PRESERVE}, &copy));
  pthread_mutex_lock(&w->lock);
  if (w->orphaned) {
    lm_release(copy);
  } else {
    status = lm_sum_gradient(&w->grad, copy, create_graph);
  }
  pthread_mutex_unlock(&w->lock);
done:
  return status;
}
