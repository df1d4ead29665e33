/* Records a user's function (lm.autograd.Function) as a node. */
#include <string.h>

#include "autograd/follow.h"
#include "autograd/record_graph.h"
#include "base/message.h"

/* Fails unless output i is a new, unrecorded tensor, or an input that ctx:mark_dirty allows to be written; a view that
 * the function made within no_grad counts as new. */
static lm_status check_output(const lm_custom *c, int i) {
  const lm_tensor *t = c->out[i];
  bool is_input = false;
  for (int k = 0; k < i; k++) {
    if (c->out[k] == t)
      return lm_fail_value(c->name, lm_text("results %d and %d", k + 1, i + 1), "different tensors", "the same");
  }
  for (int k = 0; k < c->nin; k++) is_input = is_input || c->in[k] == t;
  if (is_input && lm_requires_grad(t) && (t->grad->base || lm_is_leaf(t))) {
    return lm_remedy(lm_fail_value(c->name, lm_text("dirty result %d", i + 1), "the result of an op",
                                   t->grad->base ? "a view" : "a leaf that requires grad"),
                     "pass a clone()");
  }
  if (is_input) return LM_OK;
  if (lm_requires_grad(t) && !(t->grad->base && t->grad->without_grad)) {
    return lm_remedy(lm_fail_value(c->name, lm_text("result %d", i + 1), "outside of any graph", "a part of one"),
                     "return a clone()");
  }
  return LM_OK;
}

static lm_status new_node(const lm_custom *c, lm_node **out) {
  LM_OWNED_NODE *n = NULL;
  size_t name = strlen(c->name) + 1, arrays = (size_t)c->nsaved * (sizeof(lm_tensor *) + sizeof(uint32_t));
  NEED(lm_node_new(LM_NODE_CUSTOM, c->nout, c->nin, sizeof(lm_custom_state) + lm_round_up(name, 8) + arrays, &n));
  lm_custom_state *s = n->payload;
  memcpy(s->name, c->name, name);
  s->saved = (lm_tensor **)(s->name + lm_round_up(name, 8));
  s->version = (uint32_t *)(s->saved + c->nsaved);
  n->saves = c->nsaved > 0;
  for (; s->nsaved < c->nsaved; s->nsaved++) {
    NEED(lm_save(c->saved[s->nsaved], &s->saved[s->nsaved]));
    n->fetches = n->fetches || lm_is_placeholder(s->saved[s->nsaved]);
    s->version[s->nsaved] = lm_version(c->saved[s->nsaved]);
  }
  for (int k = 0; k < c->nin; k++) {
    NEED(lm_history(c->in[k], &n->edge[k]));
    lm_node_retain(n->edge[k].node);
  }
  *out = n;
  n = NULL;
  return LM_OK;
}

lm_status lm_custom_record(const lm_custom *c) {
  lm_status status = LM_OK;
  lm_node *n = NULL;
  lm_grad *m;
  bool any = false;
  for (int k = 0; k < c->nin; k++) any = any || (c->in[k] && lm_requires_grad(c->in[k]));
  if (!any || !lm_grad_enabled()) goto done;
  TRY(lm_leave());
  if (c->nout > UINT8_MAX)
    TRY(lm_fail_int(c->name, "the number of results", lm_text("at most %d", UINT8_MAX), c->nout));
  for (int i = 0; i < c->nout; i++) TRY(check_output(c, i));
  TRY(new_node(c, &n));
  TRY(lm_recompute_reserve());
  for (int i = 0; i < c->nout; i++) TRY(lm_grad_need(c->out[i], &m));
  for (int i = 0; i < c->nout; i++) { /* nothing fails from here on */
    lm_tensor *t = c->out[i];
    lm_meta_of(t, &n->out[i].meta);
    if (!lm_dtype_is_float(t->dtype)) continue;
    lm_release(t->grad->base);
    t->grad->base = NULL;
    lm_node_release(t->grad->node);
    t->grad->node = lm_node_retain(n);
    t->grad->slot = i;
  }
  lm_custom_state *s = n->payload;
  s->fn = c->fn;
  s->ctx = c->ctx;
  s->release = c->release;
  lm_recompute_add_node(n);
  lm_node_release(n);
  return LM_OK;
done:
  lm_node_release(n);
  if (c->release) c->release(c->ctx);
  return status;
}
