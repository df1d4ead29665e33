/* Runs a segment's steps. */
#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/message.h"
#include "op/pointwise.h"
#include "op/run.h"
#include "plan/group.h"
#include "plan/passes.h"

/* ---- planning */

void lm_segment_set_last_uses(lm_segment *g) {
  for (int b = 0; b < g->nbuffers; b++) g->buffer[b].made = g->buffer[b].last_use = -1;
  for (int i = 0; i < g->nsteps; i++) {
    const lm_segment_step *s = &g->step[i];
    if (lm_step_is_view(s)) continue;
    for (int k = 0; k < s->nin; k++)
      if (s->in[k] >= 0 && !g->value[s->in[k]].number) g->buffer[g->value[s->in[k]].buffer].last_use = i;
    for (int k = 0; k < s->nout; k++) {
      if (s->out[k] < 0) continue;
      lm_segment_buffer *b = &g->buffer[g->value[s->out[k]].buffer];
      b->last_use = i;
      if (b->made < 0) b->made = i;
    }
  }
}

static bool is_made_here(const lm_segment_buffer *b) { return b->origin == LM_FROM_STEP || b->origin == LM_UNWRITTEN; }

/* Finds what is needed after the steps: memory from outside, gradients, and instances that somebody else holds. Drops
 * what no longer is. */
static void keep_buffers(lm_segment *g) {
  for (int b = 0; b < g->nbuffers; b++) g->buffer[b].is_kept = !is_made_here(&g->buffer[b]);
  for (int i = 0; i < g->ninstances; i++) {
    lm_segment_instance *n = &g->instance[i];
    n->is_kept = n->is_result || (n->t && atomic_load_explicit(&n->t->rc, memory_order_acquire) > 1);
  }
  for (int i = g->ninstances - 1; i >= 0; i--) { /* a view comes after its base */
    lm_segment_instance *n = &g->instance[i];
    if (!n->is_kept || n->is_outside) continue;
    g->buffer[g->value[n->value].buffer].is_kept = true;
    if (n->base >= 0) g->instance[n->base].is_kept = true;
  }
  for (int i = 0; i < g->nleaves; i++)
    if (g->leaf[i].after >= 0) g->buffer[g->value[g->leaf[i].after].buffer].is_kept = true;
  for (int b = 0; b < g->nbuffers; b++)
    if (!g->buffer[b].is_kept && g->buffer[b].last_use < g->done) lm_segment_drop_buffer(g, &g->buffer[b]);
}

static void find_written(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++)
    for (int k = 0; k < g->step[i].nin; k++)
      if (lm_step_writes(&g->step[i], k) && g->step[i].in[k] >= 0)
        g->buffer[g->value[g->step[i].in[k]].buffer].is_written = true;
}

/* Returns the last step from `begin` on that writes to a buffer, or that it is in a row or group with; begin - 1: none
 * does. */
static int find_made(const lm_segment *g, int begin, int buffer) {
  int at = g->nsteps - 1;
  while (at >= begin && (lm_step_is_view(&g->step[at]) || !lm_step_changes(g, &g->step[at], buffer))) at--;
  if (at < begin) return at;
  while (at + 1 < g->nsteps && (g->step[at + 1].joins || lm_step_is_view(&g->step[at + 1]) ||
                                (g->step[at].group > 0 && g->step[at + 1].group == g->step[at].group)))
    at++;
  return at;
}

/* Returns the backward pass that delivers gradients, which is the last event; NULL: there is none. */
static const lm_segment_event *delivering(const lm_segment *g) {
  return g->nevents > 0 && g->event[g->nevents - 1].delivers ? &g->event[g->nevents - 1] : NULL;
}

/* Finds when gradients are delivered: each as soon as it and those before it are computed, so that hooks run in the
 * order of backward and can send gradients meanwhile. */
static void find_deliveries(lm_segment *g) {
  const lm_segment_event *e = delivering(g);
  for (int i = e ? e->first_leaf : g->nleaves; i < g->nleaves; i++) {
    lm_segment_leaf *leaf = &g->leaf[i];
    const int buffer = lm_buffer_of(g, leaf->after);
    int made = buffer < 0 ? e->nsteps - 1 : find_made(g, e->nsteps, buffer);
    leaf->is_last = buffer >= 0 && g->buffer[buffer].origin == LM_FROM_STEP && !lm_buffer_has_instance(g, buffer) &&
                    g->buffer[buffer].last_use <= made;
    for (int k = i + 1; k < g->nleaves && leaf->is_last; k++)
      leaf->is_last = lm_buffer_of(g, g->leaf[k].after) != buffer;
    leaf->at = i > e->first_leaf && made < leaf[-1].at ? leaf[-1].at : made;
    while (made >= e->nsteps && lm_step_is_view(&g->step[made])) made--;
    lm_segment_step *s = leaf->is_last && made >= e->nsteps ? &g->step[made] : NULL;
    if (s && s->group == 0 && !s->is_chained && s->overwrites < 0 && s->out[0] == leaf->after && !lm_step_writes(s, 0))
      s->leaf = i + 1;
  }
}

lm_status lm_segment_plan(lm_segment *g) {
  bool any = false;
  if (!g->is_exact && g->nevents > 0) NEED(lm_segment_mark_chunks(g));
  if (LM_DEVICE_KIND(g->device) == LM_CPU) {
    NEED(lm_segment_out_of_place(g));
    lm_segment_order(g);
    lm_segment_find_rows(g);
  } else if (!g->is_exact) {
    lm_segment_widen_results(g);
    NEED(lm_segment_join_gelu(g));
    NEED(lm_segment_join_sums(g));
    NEED(lm_segment_add_embeddings(g));
    NEED(lm_segment_group_steps(g));
  }
  NEED(lm_segment_add_chunks(g));
  lm_segment_set_last_uses(g);
  find_written(g);
  lm_segment_overwrite(g);
  find_deliveries(g);
  for (int i = 0; i < g->nsteps; i++) any = any || g->step[i].is_chained;
  return any && !g->chain ? lm_chain_new(&g->chain) : LM_OK;
}

/* ---- running */

typedef struct filling {
  lm_segment *g;
  const int *in;
  lm_status status;
} filling;

static void fill_slot(void *ctx, lm_tensor **slot) {
  filling *f = ctx;
  const int v = *f->in++;
  if (f->status == LM_OK) f->status = lm_segment_header(f->g, v, false, slot);
}

static lm_status run_kernel(lm_segment *g, int i, lm_tensor **out) {
  lm_segment_step *s = &g->step[i];
  if (s->op < 0) {
    lm_tensor *in[LM_POINTWISE_MAX_IN];
    for (int k = 0; k < s->nin; k++) NEED(lm_segment_header(g, s->in[k], false, &in[k]));
    return lm_pointwise_run(s->kernel, s->nin, in, s->args, NULL, out);
  }
  filling f = {g, s->in, LM_OK};
  lm_each_tensor_slot(s->op, s->args, fill_slot, &f);
  NEED(f.status);
  switch (s->form) {
    case LM_RUN_IN_PLACE: return lm_op_run_inplace(s->op, s->args, out);
    case LM_RUN_VISIBLE: return lm_op_run_visible(s->op, s->args, out);
    default: return lm_op_run(s->op, s->args, out);
  }
}

/* Makes t, which a step returned, the header of its value. Takes over the reference to t. */
static lm_status put_result(lm_segment *g, int v, lm_tensor *t, const char *name) {
  LM_OWNED *owned = t;
  if (v < 0 || !t) return LM_OK;
  lm_segment_value *value = &g->value[v];
  lm_segment_buffer *b = &g->buffer[value->buffer];
  if (!lm_place_fits(&value->place, b->shift, t) || (b->storage && b->storage != t->storage))
    return lm_fail(LM_E_STATE, "the shape or memory of %s's result is not as it was recorded", name);
  if (!b->storage) lm_storage_retain(b->storage = t->storage);
  b->was_made = true;
  if (!value->t) value->t = lm_tensor_take(&owned);
  return LM_OK;
}

static void drop_after(lm_segment *g, int value, int step) {
  if (value < 0 || g->value[value].number) return;
  lm_segment_buffer *b = &g->buffer[g->value[value].buffer];
  if (!b->is_kept && b->last_use == step) lm_segment_drop_buffer(g, b);
}

static void drop_unused(lm_segment *g, int i) {
  const lm_segment_step *s = &g->step[i];
  for (int k = 0; k < s->nin; k++) drop_after(g, s->in[k], i);
  for (int k = 0; k < s->nout; k++) drop_after(g, s->out[k], i);
  drop_after(g, s->overwrites, i);
}

/* Returns in *out the tensor whose memory becomes that of a step's result, borrowed; NULL: none. */
static lm_status find_overwritten(lm_segment *g, const lm_segment_step *s, lm_tensor **out) {
  *out = NULL;
  if (s->overwrites < 0 || g->buffer[g->value[s->overwrites].buffer].is_kept) return LM_OK;
  return lm_segment_header(g, s->overwrites, false, out);
}

/* Returns a new reference to memory that hooks of a leaf want its gradient in, which step s computes; else NULL. */
static lm_tensor *find_grad_buffer(lm_segment *g, const lm_segment_step *s) {
  const lm_node *leaf = s->leaf > 0 ? g->instance[g->leaf[s->leaf - 1].instance].t->grad->node : NULL;
  return leaf && leaf->out[0].watch && leaf->out[0].watch->grad_buffer ? lm_leaf_grad_buffer(leaf) : NULL;
}

static lm_status run_step(lm_segment *g, int i) {
  lm_segment_step *s = &g->step[i];
  lm_tensor *out[LM_MAX_OUTS] = {NULL};
  const char *name = lm_ops[s->op < 0 ? lm_pointwise_op(s->kernel) : s->op].name;
  lm_tensor *overwritten;
  LM_OWNED *grad_buffer = find_grad_buffer(g, s);
  NEED(find_overwritten(g, s, &overwritten));
  lm_tensor *into = grad_buffer ? grad_buffer : overwritten;
  if (s->widens) lm_halves_widen = true;
  if (into) lm_tensor_set_next_out(into);
  lm_status status = run_kernel(g, i, out);
  if (into) lm_tensor_set_next_out(NULL);
  if (s->widens) lm_halves_widen = false;
  NEED(status);
  if (overwritten && out[0] && out[0]->storage == overwritten->storage) atomic_store(&out[0]->storage->version, 0);
  if (grad_buffer && out[0] && out[0]->storage == grad_buffer->storage)
    g->buffer[lm_buffer_of(g, s->out[0])].shift =
        out[0]->data - (char *)out[0]->storage->data - g->value[s->out[0]].place.at;
  for (int k = 0; k < s->nout; k++) {
    lm_status put = put_result(g, s->out[k], out[k], name);
    if (status == LM_OK) status = put;
  }
  return status;
}

static lm_status run_between_chunks(lm_segment *g, const lm_score_chunks *c, int which) {
  for (int i = c->scores; i < c->end; i++)
    if (g->step[i].chunks == which) NEED(run_step(g, i));
  return LM_OK;
}

/* Computes a layer by chunks, and the steps between its steps; true if it did. n: number of steps that are to run. */
static bool run_chunks(lm_segment *g, int i, int n, lm_status *status) {
  const lm_score_chunks *c = g->nchunks > 0 ? lm_segment_chunks_at(g, i, n) : NULL;
  if (!c) return false;
  *status = lm_segment_add_parts(g, i, c->end - i);
  if (*status == LM_OK) *status = run_between_chunks(g, c, LM_BEFORE_CHUNKS);
  if (*status == LM_OK) *status = lm_segment_compute_chunks(g, c);
  if (*status == LM_OK) *status = run_between_chunks(g, c, LM_AFTER_CHUNKS);
  for (int k = i; k < c->end && *status != LM_OK; k++) /* so that all can run again */
    for (int o = 0; o < g->step[k].nout && !lm_step_is_view(&g->step[k]); o++)
      if (g->step[k].out[o] >= 0) lm_segment_drop_buffer(g, &g->buffer[lm_buffer_of(g, g->step[k].out[o])]);
  for (int k = i; k < c->end && *status == LM_OK; k++) drop_unused(g, k);
  g->done += *status == LM_OK ? c->end - i - 1 : 0;
  return true;
}

/* Runs the steps of the group that begins with step i; true if it did. */
static bool run_group(lm_segment *g, int i, lm_status *status) {
  lm_segment_group *group = g->step[i].group > 0 ? &g->group[g->step[i].group - 1] : NULL;
  if (!group || group->first != i || !lm_segment_group_run(g, group, status)) return false;
  for (int k = i; k < i + group->nsteps; k++) drop_unused(g, k);
  g->done += *status == LM_OK ? group->nsteps - 1 : 0;
  return true;
}

/* Computes a row. Its steps cannot run again if that fails, as those that lack memory for a result can; a plan's run
 * from its begin. */
static lm_status end_row(lm_segment *g) {
  const lm_status status = lm_chain_end(g->chain);
  return status == LM_OK || g->nevents == 0 ? status : LM_E_STATE;
}

/* Returns true if gradients are to be delivered before step i. */
static bool has_deliveries(const lm_segment *g, int i) {
  return g->pass && g->delivered < g->nleaves && g->leaf[g->delivered].at < i;
}

static lm_status deliver(lm_segment *g, int i) {
  if (has_deliveries(g, i)) NEED(lm_segment_add_parts(g, 0, 0));
  while (has_deliveries(g, i)) {
    const lm_segment_leaf *leaf = &g->leaf[g->delivered++];
    lm_tensor *grad;
    NEED(lm_segment_header(g, leaf->after, false, &grad));
    lm_retain(grad);
    if (leaf->is_last) lm_segment_drop_buffer(g, &g->buffer[lm_buffer_of(g, leaf->after)]);
    NEED(lm_deliver_gradient(g->pass, g->instance[leaf->instance].t, grad));
  }
  return LM_OK;
}

static lm_status run_steps(lm_segment *g, int n) {
  lm_status status = LM_OK;
  bool defers = false;
  for (; g->done < n && status == LM_OK; g->done += status == LM_OK) {
    const lm_segment_step *s = &g->step[g->done];
    if (lm_step_is_view(s)) continue;
    if (defers && !s->joins) status = end_row(g), defers = false;
    if (status == LM_OK && !defers) status = deliver(g, g->done);
    if (status != LM_OK) break;
    if (!defers && s->is_chained) lm_chain_begin(g->chain), defers = true;
    status = lm_segment_add_parts(g, g->done, s->group > 0 ? g->group[s->group - 1].nsteps : 1);
    if (status != LM_OK) break;
    if (run_chunks(g, g->done, n, &status) || run_group(g, g->done, &status)) continue;
    const int i = g->done;
    status = run_step(g, i);
    if (status == LM_OK) drop_unused(g, i);
  }
  if (defers) {
    const lm_status ended = end_row(g);
    if (status == LM_OK) status = ended;
  }
  if (status == LM_OK) status = deliver(g, g->done);
  if (status == LM_OK) status = lm_segment_add_parts(g, 0, 0);
  return status == LM_OK ? lm_truncation_check() : status;
}

/* Sets a result's history to what it is after the segment's backward passes. */
static lm_status set_freed_history(lm_segment *g, lm_segment_instance *n, bool is_last) {
  int nleaves = 0;
  lm_tensor **leaf = lm_calloc((size_t)g->nleaves + 1, sizeof *leaf);
  if (!leaf) return LM_E_OOM;
  for (int i = 0; i < g->nleaves; i++) {
    lm_tensor *t = g->instance[g->leaf[i].instance].t;
    const uint64_t reached = g->reached[(n - g->instance) * g->words + i / 64];
    if (reached >> i % 64 & 1 && t && t->grad && t->grad->node) leaf[nleaves++] = t;
  }
  const char *maker = !is_last && n->paused ? n->paused : n->maker;
  lm_status status = lm_set_freed_history(n->t, maker, n->freed ? n->freed : n->maker, nleaves, leaf);
  lm_free(leaf);
  return status;
}

/* Returns true if instance i has a history by now, its own or by a write to what it is a view of. */
static bool has_history(const lm_segment *g, int i) {
  int base = i;
  while (g->instance[i].is_freed && g->instance[base].base >= 0) base = g->instance[base].base;
  return g->instance[i].has_history || g->instance[base].has_history;
}

static lm_status give_values(lm_segment *g, bool is_last) {
  for (int i = 0; i < g->ninstances; i++) {
    lm_segment_instance *n = &g->instance[i];
    if (n->is_outside || !n->is_kept || !n->t) continue;
    lm_segment_buffer *b = &g->buffer[g->value[n->value].buffer];
    NEED(lm_segment_need_storage(b, false));
    if (n->t->storage != b->storage) lm_tensor_move(n->t, b->storage, g->value[n->value].place.at + b->shift);
    if ((is_last ? n->is_freed : has_history(g, i)) && !n->t->grad) NEED(set_freed_history(g, n, is_last));
  }
  for (int i = 0; i < g->ninstances; i++) {
    lm_segment_instance *n = &g->instance[i];
    if (n->is_outside || !n->is_kept || !n->t || n->base < 0 || n->t->grad || (!is_last && n->is_freed)) continue;
    NEED(lm_view_track(n->t, g->instance[n->base].t, NULL));
    n->t->grad->without_grad = n->without_grad;
  }
  return LM_OK;
}

/* Sets the gradients of the first n leaves. */
static lm_status set_gradients(lm_segment *g, int n) {
  for (int i = 0; i < n; i++) {
    const lm_segment_leaf *leaf = &g->leaf[i];
    if (leaf->after < 0 || (leaf->before >= 0 && g->value[leaf->before].buffer == g->value[leaf->after].buffer))
      continue;
    LM_OWNED *grad = NULL;
    const lm_place *p = &g->value[leaf->after].place;
    const lm_segment_buffer *b = &g->buffer[g->value[leaf->after].buffer];
    NEED(lm_tensor_at(b->storage, p->dtype, p->device, p->ndim, p->size, p->stride, p->at, &grad));
    atomic_fetch_add(&b->storage->version, b->writes_replaced);
    NEED(lm_set_grad(g->instance[leaf->instance].t, grad));
  }
  return LM_OK;
}

/* Copies what step s writes in memory from outside. */
static lm_status save_written(lm_segment *g, const lm_segment_step *s) {
  for (int k = 0; k < s->nin; k++) {
    if (!lm_step_writes(s, k) || s->in[k] < 0 || is_made_here(&g->buffer[g->value[s->in[k]].buffer])) continue;
    lm_tensor *t;
    NEED(lm_segment_header(g, s->in[k], false, &t));
    lm_segment_undo undo = {.value = s->in[k], .version = lm_version(t)};
    NEED(lm_op_run(LM_OP_clone, &(lm_clone_args){.x = t, .memory_format = LM_PRESERVE}, &undo.before));
    if (!LM_APPEND(g->undo, g->nundo, g->undo_capacity, undo)) {
      lm_release(undo.before);
      return LM_E_OOM;
    }
  }
  return LM_OK;
}

static lm_status save_for_undo(lm_segment *g, int n) {
  for (int i = g->done; i < n; i++) NEED(save_written(g, &g->step[i]));
  return LM_OK;
}

static lm_status run_part(lm_segment *g, int n, bool may_undo) {
  const bool widened = lm_halves_widen;
  lm_follower *follower = lm_follower_swap(NULL);
  lm_segment_part part = {.begin = g->done};
  if (g->nevents > 0) lm_segment_get_drawn(g, part.drawn);
  lm_halves_widen = false;
  keep_buffers(g);
  lm_status status = LM_APPEND(g->part, g->nparts, g->part_capacity, part) ? LM_OK : LM_E_OOM;
  if (status == LM_OK && may_undo) status = save_for_undo(g, n);
  if (status == LM_OK) status = run_steps(g, n);
  lm_halves_widen = widened;
  if (status == LM_OK) status = give_values(g, !may_undo);
  lm_follower_swap(follower);
  for (int b = 0; b < g->nbuffers && may_undo; b++)
    if (g->buffer[b].storage) g->buffer[b].version = atomic_load(&g->buffer[b].storage->version);
  return status;
}

void lm_segment_get_drawn(const lm_segment *g, lm_draw *drawn) {
  drawn[0] = lm_generator_get(NULL, LM_DEVICE(LM_CPU, 0));
  drawn[1] = lm_generator_get(NULL, g->device);
}

void lm_segment_set_drawn(const lm_segment *g, const lm_draw *drawn) {
  lm_generator_set(NULL, LM_DEVICE(LM_CPU, 0), drawn[0]);
  lm_generator_set(NULL, g->device, drawn[1]);
}

lm_status lm_segment_run_to(lm_segment *g, int n) { return run_part(g, n, true); }

/* Runs the steps of a backward pass whose gradients go to hooks. Nothing of it can run again. */
static lm_status run_delivering(lm_segment *g) {
  const lm_segment_event *e = delivering(g);
  lm_tensor **leaf = lm_malloc(((size_t)e->nleaves + 1) * sizeof *leaf);
  if (!leaf) return LM_E_OOM;
  for (int k = 0; k < e->nleaves; k++) leaf[k] = g->instance[g->leaf[e->first_leaf + k].instance].t;
  lm_follower *follower = lm_follower_swap(NULL);
  lm_status status = lm_delivery_begin(e->nleaves, leaf, &g->pass);
  lm_free(leaf);
  g->delivered = e->first_leaf;
  if (status == LM_OK) status = set_gradients(g, e->first_leaf); /* passes before it had these */
  if (status == LM_OK) status = run_part(g, g->nsteps, false);
  lm_pass *pass = g->pass;
  g->pass = NULL;
  status = lm_delivery_end(pass, status);
  lm_follower_swap(follower);
  return status;
}

lm_status lm_segment_run(lm_segment *g) {
  if (delivering(g)) return run_delivering(g);
  NEED(run_part(g, g->nsteps, false));
  return set_gradients(g, g->nleaves);
}

lm_status lm_segment_undo_steps(lm_segment *g) {
  lm_status status = LM_OK;
  bool is_as_before = true;
  for (int b = 0; b < g->nbuffers && g->done > 0; b++) {
    const lm_segment_buffer *buffer = &g->buffer[b];
    if (buffer->storage && !is_made_here(buffer))
      is_as_before = is_as_before && atomic_load(&buffer->storage->version) == buffer->version;
  }
  for (int i = 0; i < g->ninstances && g->done > 0; i++) {
    const lm_segment_instance *n = &g->instance[i];
    if (n->t && n->is_outside)
      is_as_before = is_as_before && n->t->storage == g->buffer[g->value[n->value].buffer].storage;
  }
  if (!is_as_before)
    return lm_fail(LM_E_STATE,
                   "compile: a tensor that forward used was changed before backward, and what follows is not as it was "
                   "recorded; read values after backward, or call the step without lm.compile");
  lm_follower *follower = lm_follower_swap(NULL);
  for (int i = g->nundo - 1; i >= 0 && status == LM_OK; i--) {
    LM_OWNED *same = NULL;
    lm_tensor *to;
    status = lm_segment_header(g, g->undo[i].value, false, &to);
    if (status == LM_OK) status = lm_op_run(LM_OP_copy_, &(lm_copy__args){.x = to, .src = g->undo[i].before}, &same);
    if (status == LM_OK) atomic_store(&to->storage->version, g->undo[i].version);
  }
  lm_follower_swap(follower);
  return status;
}
