/* Returns the tensors that a user's function has saved for its backward. */
#include "autograd/node.h"
#include "base/message.h"

lm_node *lm_custom_node(const lm_tensor *out) {
  lm_node *n = out->grad ? out->grad->node : NULL;
  return n && n->kind == LM_NODE_CUSTOM ? n : NULL;
}

lm_status lm_custom_saved(lm_node *node, int i, int in, int out, lm_tensor **result) {
  lm_custom_state *c = node->payload;
  LM_OWNED *t = NULL;
  if (i < 0 || i >= c->nsaved)
    return lm_fail_int(c->name, "the index of a saved tensor", lm_text("from 1 to %d", c->nsaved), i + 1);
  if (!c->saved[i]) return lm_fail_freed(c->name);
  NEED(lm_alias(c->saved[i], &t)); /* a history on the node's own tensor would form a cycle */
  if (in >= 0) {
    NEED(lm_attach(t, node->edge[in]));
  } else if (out >= 0) {
    NEED(lm_attach(t, (lm_edge){node, out}));
  }
  *result = lm_tensor_take(&t);
  return LM_OK;
}
