/* Sums gradients in the graph and in a leaf's .grad. */
#include <string.h>

#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "op/op.h"
#include "op_entries.h"

/* Returns true if t is a view of all elements of a base that only t holds: the result of a reshape in the graph. */
static bool has_own_base(const lm_tensor *t) {
  const lm_tensor *base = lm_view_base(t);
  return base && base->storage == t->storage && base->numel == t->numel && !t->grad->node && !base->grad &&
         atomic_load_explicit(&base->rc, memory_order_acquire) == 1;
}

/* Returns true if t may be written: nobody else holds t or its memory, and no two elements share memory. */
static bool is_ours(lm_tensor *t) {
  return atomic_load_explicit(&t->rc, memory_order_acquire) == 1 &&
         atomic_load_explicit(&t->storage->rc, memory_order_acquire) == (has_own_base(t) ? 2 : 1) &&
         !t->storage->foreign_release && lm_is_dense(t);
}

/* Drops t's record of its base if only t holds that base, since a .grad must not be a view. */
static void leave_own_base(lm_tensor *t) {
  if (!has_own_base(t)) return;
  lm_grad_free(t->grad);
  t->grad = NULL;
}

bool lm_gradient_take(lm_tensor *g) {
  if (!is_ours(g)) return false;
  leave_own_base(g);
  return true;
}

static void replace(lm_tensor **g, lm_tensor *with) {
  lm_release(*g);
  *g = with;
}

/* Computes sum += g without recording. */
static lm_status add_into(lm_tensor *sum, lm_tensor *g) {
  LM_OWNED *same = NULL;
  return lm_op_run_inplace(LM_OP_add, &(lm_add_args){.x = sum, .other = g, .alpha = 1}, &same);
}

lm_status lm_sum_gradient(lm_tensor **sum, lm_tensor *g, bool create_graph) {
  LM_OWNED *added = g, *total = NULL;
  if (!*sum) {
    *sum = lm_tensor_take(&added);
    return LM_OK;
  }
  if (!create_graph && is_ours(*sum)) return add_into(*sum, g);
  if (!create_graph && is_ours(g)) {
    NEED(add_into(g, *sum));
    total = lm_tensor_take(&added);
  } else {
    NEED(lm_call(LM_OP_add, &(lm_add_args){.x = *sum, .other = g, .alpha = 1}, &total));
  }
  replace(sum, lm_tensor_take(&total));
  return LM_OK;
}

lm_status lm_sum_part_gradient(const lm_node *n, lm_tensor *sum, lm_tensor *g, bool *added) {
  const lm_op *op = &lm_ops[n->op];
  LM_OWNED *part = NULL;
  lm_args_union args;
  *added = sum && is_ours(sum) && sum->dtype == g->dtype && sum->device == g->device;
  if (!*added) return LM_OK;
  memcpy(&args, n->payload, op->size);
  LM_ARG_TENSOR(&args, op->tensor[0]) = sum;
  NEED(lm_op_run((lm_op_id)n->op, &args, &part));
  return add_into(part, g);
}

lm_status lm_fit_gradient(const lm_meta *meta, lm_tensor **g) {
  lm_tensor *fitted;
  bool same = (*g)->ndim == meta->ndim;
  for (int d = 0; same && d < meta->ndim; d++) same = (*g)->size[d] == meta->size[d];
  if (!same) {
    lm_sum_to_size_args args = {.x = *g, .size = {.n = meta->ndim}};
    memcpy(args.size.v, meta->size, sizeof(int64_t) * meta->ndim);
    NEED(lm_call(LM_OP_sum_to_size, &args, &fitted));
    replace(g, fitted);
  }
  if ((*g)->dtype != meta->dtype || (*g)->device != meta->device) {
    lm_to_copy_args args = {.x = *g, .dtype = meta->dtype, .device = meta->device, .memory_format = LM_PRESERVE};
    NEED(lm_call(LM_OP_to_copy, &args, &fitted));
    replace(g, fitted);
  }
  return LM_OK;
}

/* ---- gradient buffers */

/* Returns the number of other headers that use the gradient buffer's storage. */
static int header_count(const lm_tensor *grad_buffer) {
  return atomic_load_explicit(&grad_buffer->storage->rc, memory_order_acquire) - 1;
}

lm_tensor *lm_leaf_grad_buffer(const lm_node *leaf) {
  lm_watch *w = leaf->out[0].watch;
  lm_tensor *grad_buffer = NULL;
  pthread_mutex_lock(&w->lock);
  if (w->grad_buffer && !w->grad && !w->orphaned && header_count(w->grad_buffer) == 0)
    grad_buffer = lm_retain(w->grad_buffer);
  /* A hook may keep the gradient it gets, which must not be .grad then. */
  for (const lm_hook_entry *h = w->hooks; h && grad_buffer; h = h->next) {
    if (h->after) continue;
    lm_release(grad_buffer);
    grad_buffer = NULL;
  }
  pthread_mutex_unlock(&w->lock);
  return grad_buffer;
}

/* Returns true if g uses the gradient buffer's memory, and nobody else does. */
static bool is_in_grad_buffer(const lm_tensor *g, const lm_tensor *grad_buffer) {
  return grad_buffer && g->storage == grad_buffer->storage && g->data == grad_buffer->data &&
         g->dtype == grad_buffer->dtype && lm_has_strides(g, grad_buffer->stride) &&
         atomic_load_explicit(&g->rc, memory_order_acquire) == 1 && header_count(grad_buffer) == 1;
}

/* Copies g into the leaf's gradient buffer if that is free; else into memory with the leaf's strides, or contiguous if
 * the leaf is not dense. */
static lm_status copy_as_leaf(const lm_node *leaf, lm_tensor *g, lm_tensor **out) {
  lm_tensor like = *g; /* only its sizes and strides are used */
  LM_OWNED *result = NULL, *same = NULL;
  lm_tensor *grad_buffer = leaf->out[0].watch->grad_buffer;
  memcpy(like.stride, leaf->payload, sizeof(int64_t) * g->ndim);
  if (grad_buffer && header_count(grad_buffer) == 0 && grad_buffer->dtype == g->dtype &&
      grad_buffer->device == g->device && lm_same_shape(grad_buffer, g)) {
    NEED(lm_alias(grad_buffer, &result));
  } else if (!lm_is_dense(&like)) {
    NEED(lm_tensor_empty(g->dtype, g->device, g->ndim, g->size, LM_CONTIGUOUS, &result));
  } else {
    NEED(lm_tensor_empty_like(&like, g->dtype, g->device, &result));
  }
  NEED(lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = result, .src = g}, &same));
  *out = lm_tensor_take(&result);
  return LM_OK;
}

lm_status lm_leaf_accumulate(lm_node *leaf, lm_tensor *g, bool create_graph) {
  lm_status status = LM_OK;
  lm_watch *w = leaf->out[0].watch;
  lm_tensor *next = NULL;
  pthread_mutex_lock(&w->lock);
  if (w->orphaned) goto done;
  if (!w->grad) {
    if (is_in_grad_buffer(g, w->grad_buffer)) {
      lm_bump(g, LM_OP_add);
      w->grad = g;
      g = NULL;
    } else if (is_ours(g) && (create_graph || lm_has_strides(g, leaf->payload))) {
      leave_own_base(g);
      w->grad = g;
      g = NULL;
    } else if (create_graph) {
      TRY(lm_call(LM_OP_clone, &(lm_clone_args){g, LM_PRESERVE}, &w->grad));
    } else {
      TRY(copy_as_leaf(leaf, g, &w->grad));
    }
  } else if (create_graph || lm_requires_grad(w->grad) || lm_overlaps_itself(w->grad)) {
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
  LM_OWNED *copy = NULL;
  NEED(lm_call(LM_OP_clone, &(lm_clone_args){g, LM_PRESERVE}, &copy));
  pthread_mutex_lock(&w->lock);
  lm_status status = w->orphaned ? LM_OK : lm_sum_gradient(&w->grad, lm_tensor_take(&copy), create_graph);
  pthread_mutex_unlock(&w->lock);
  return status;
}
