/* Follows the calls of a script: begins, matches, runs and leaves segments. */
#include "plan/follow.h"

#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/mem.h"
#include "plan/compiled.h"
#include "plan/passes.h"

/* Segments; recordings in a row, to which a run adds a quarter; calls that were recorded, one after the other, which
 * have a reason. */
enum { MOST = 64, CREDIT = 32, UNSTEADY = 4, MOST_RESTS = 256 };

/* ---- running */

/* Runs the segment's steps, whose events were all called. Without memory for one of them the segment stays to be
 * continued there, once garbage is collected, unless `ends`. */
static lm_status run_segment(lm_compiled *c, bool ends) {
  lm_segment *g = c->now, **at = &c->segments;
  if (c->collect && !g->holds_scores && lm_segment_holds_scores(g)) {
    c->collect(c->collect_ctx);
    g->holds_scores = lm_segment_holds_scores(g);
  }
  lm_status status = lm_segment_run(g);
  if (status == LM_E_OOM && !ends) return status;
  if (status == LM_E_STATE) lm_segment_refuse(g, "%s", lm_error());
  lm_compiled_forget_call(c, g);
  while (*at != g) at = &(*at)->next;
  *at = g->next;
  g->next = c->segments;
  c->segments = g;
  c->now = NULL;
  c->mode = AT_START;
  c->ran++;
  if (c->credit < CREDIT) c->credit += 0.25;
  return status;
}

typedef struct refilling {
  const lm_segment *g;
  const int *in;
} refilling;

static void refill_slot(void *ctx, lm_tensor **slot) {
  refilling *r = ctx;
  const int in = *r->in++;
  *slot = in == NONE ? NULL : in < NONE ? lm_segment_number(r->g, in)->number : r->g->instance[in].t;
}

/* Calls again, now with values, what was called since the segment began. */
static lm_status call_again(lm_compiled *c, lm_segment *g, const lm_segment_event *e) {
  if (e->is_pause) {
    if (c->mode == RECORDING && !lm_compiled_record_pause(c)) lm_segment_refuse(c->now, "out of memory");
    return LM_OK;
  }
  if (e->is_backward) {
    lm_tensor *roots[2 * 64] = {NULL};
    const int n = e->nout;
    for (int i = 0; i < 2 * n; i++) refill_slot(&(refilling){g, &e->in[i]}, &roots[i]);
    const lm_backward_args a = {.nroots = n, .roots = roots, .grads = roots + n, .retain_graph = e->retains};
    return c->mode == RECORDING ? lm_compiled_record_backward(c, &a) : lm_compiled_backward_plain(c, &a);
  }
  lm_tensor *into[LM_MAX_OUTS] = {NULL}, *out[LM_MAX_OUTS] = {NULL};
  refilling r = {g, e->in};
  lm_each_tensor_slot(e->op, e->args, refill_slot, &r);
  for (int k = 0; k < e->nout; k++)
    if (e->out[k] != NONE && e->same[k] == NONE) into[k] = g->instance[e->out[k]].t;
  lm_status status = c->mode == RECORDING ? lm_compiled_record_call(c, e->op, e->args, e->in_place, into, out)
                                          : lm_compiled_call_plain(c, e->op, e->args, e->in_place, out);
  for (int k = 0; k < e->nout && status == LM_OK; k++) {
    if (c->mode != RECORDING && into[k] && out[k]) lm_header_become(into[k], &out[k]);
    lm_release(out[k]);
  }
  return status;
}

/* Leaves the segment in which a call was not as recorded: calls again one by one what was called so far, recorded as
 * the begin of another segment. */
static lm_status diverge(lm_compiled *c, bool records) {
  lm_segment *g = c->now;
  const lm_dtype dtype = lm_default_dtype();
  const lm_device device = lm_default_device();
  const lm_autocast cast = lm_autocast_get();
  const bool grad = lm_grad_enabled();
  const uint32_t scope = lm_autocast_scope();
  lm_draw drawn[2];
  int part = 0;
  lm_segment_get_drawn(g, drawn);
  lm_status status = lm_segment_undo_steps(g);
  if (!records || !lm_compiled_record(c)) c->mode = AS_IS, c->now = NULL;
  if (scope == 0) lm_autocast_enter(cast); /* so that weights are cast once */
  for (int i = 0; i < c->at && status == LM_OK; i++) {
    const lm_segment_event *e = &g->event[i];
    lm_set_default_dtype(e->default_dtype);
    lm_set_default_device(e->default_device);
    lm_autocast_set(e->cast);
    lm_set_grad_enabled(!e->no_grad);
    for (; part < g->nparts && g->part[part].begin == e->nsteps; part++) lm_segment_set_drawn(g, g->part[part].drawn);
    if (e->scope == NEXT_SCOPE) lm_autocast_forget();
    c->again = e;
    status = call_again(c, g, e);
    c->again = NULL;
    if ((e->is_pause || e->may_fail) && lm_segment_steps_after(g, i) == g->done) lm_segment_set_drawn(g, drawn);
  }
  lm_set_default_dtype(dtype);
  lm_set_default_device(device);
  if (scope == 0)
    lm_autocast_leave(cast);
  else if (scope != c->scope)
    lm_autocast_forget();
  lm_autocast_set(cast);
  lm_set_grad_enabled(grad);
  lm_compiled_forget_call(c, g);
  return status;
}

/* ---- calls */

static lm_status follow_call(lm_follower *f, lm_op_id id, const void *args, bool in_place, lm_tensor **out);

static lm_status pass_pause(lm_compiled *c);
static lm_status pass_event(lm_compiled *c, lm_tensor **out, bool *failed);

/* Sets c->now to a segment that begins with the call, the last used first; false if there is none. */
static bool find_segment(lm_compiled *c, lm_op_id id, const void *args, bool in_place, bool runs_as_is) {
  for (lm_segment *g = c->segments; g; g = g->next) {
    if (g->runs_as_is != runs_as_is || g->nevents == 0) continue;
    c->now = g;
    if (lm_compiled_is_event(c, &g->event[0], id, args, in_place)) return true;
    lm_compiled_forget_call(c, g);
  }
  c->now = NULL;
  return false;
}

/* Begins a segment with a call: one that begins like that, or a new one. */
static lm_status begin_segment(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  c->scope = 0;
  if (find_segment(c, id, args, in_place, false)) {
    bool failed;
    c->mode = MATCHING;
    c->at = 0;
    NEED(pass_event(c, out, &failed));
    if (!failed) return LM_OK;
    NEED(diverge(c, true));
    return follow_call(&c->follower, id, args, in_place, out);
  }
  bool waits = false;
  if (!find_segment(c, id, args, in_place, true)) {
    lm_compiled_note_begin(c, id, args, in_place);
  } else {
    lm_segment *g = c->now;
    lm_compiled_forget_call(c, g);
    waits = --g->patience > 0;
    if (!waits) g->patience = g->waits = g->waits > 0 ? 2 * g->waits : 4;
  }
  if (!waits && lm_compiled_record(c)) return lm_compiled_record_call(c, id, args, in_place, NULL, out);
  c->mode = AS_IS;
  c->now = NULL;
  return lm_compiled_call_plain(c, id, args, in_place, out);
}

typedef struct called { /* a call of an op */
  lm_op_id id;
  bool in_place;
  const void *args;
} called;

static bool is_called(lm_compiled *c, const lm_segment_event *e, const void *call) {
  const called *o = call;
  return lm_compiled_is_event(c, e, o->id, o->args, o->in_place);
}

static bool is_backward_called(lm_compiled *c, const lm_segment_event *e, const void *call) {
  return lm_compiled_is_backward_event(c, e, call);
}

/* Returns the results of the event c->at, which was called; runs it if values may make it fail. `failed`: they did. */
static lm_status pass_event(lm_compiled *c, lm_tensor **out, bool *failed) {
  const lm_segment_event *e = &c->now->event[c->at];
  *failed = false;
  NEED(lm_compiled_return_results(c, e, out));
  for (int k = 0; k < e->nout; k++)
    if (e->out[k] != NONE) c->now->instance[e->out[k]].has_history = e->histories >> k & 1;
  *failed = e->may_fail && lm_event_can_fail(c->now, c->at) &&
            lm_segment_run_to(c->now, lm_segment_steps_after(c->now, c->at)) != LM_OK;
  for (int k = 0; k < e->nout && *failed; k++) lm_release(lm_tensor_take(&out[k]));
  c->at += !*failed;
  if (!*failed) lm_compiled_note_scope(c);
  return LM_OK;
}

static lm_status match_call(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  NEED(pass_pause(c));
  const called call = {id, in_place, args};
  bool ends = c->at == c->now->nevents, failed = false;
  if ((!ends && is_called(c, &c->now->event[c->at], &call)) || lm_compiled_change_segment(c, is_called, &call)) {
    NEED(pass_event(c, out, &failed));
    if (!failed) return LM_OK;
    ends = false;
  }
  if (!ends && !failed) lm_compiled_note_call(c, &c->now->event[c->at], id, args, in_place);
  if (!ends) NEED(diverge(c, true)); /* after a failure the call itself fails, as it does without a recording */
  if (!ends) return follow_call(&c->follower, id, args, in_place, out);
  NEED(run_segment(c, false));
  return begin_segment(c, id, args, in_place, out);
}

static void note_use(void *ctx, lm_tensor **slot) {
  if (*slot) lm_compiled_refuse_open(ctx, *slot);
}

static lm_status follow_call(lm_follower *f, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  lm_compiled *c = (lm_compiled *)f;
  if (c->nopen > 0 && lm_grad_enabled()) lm_each_tensor_slot(id, (void *)args, note_use, c);
  switch (c->mode) {
    case AS_IS: return lm_compiled_call_plain(c, id, args, in_place, out);
    case RECORDING: return lm_compiled_record_call(c, id, args, in_place, NULL, out);
    case MATCHING: return match_call(c, id, args, in_place, out);
    default: return begin_segment(c, id, args, in_place, out);
  }
}

static lm_status follow_backward(lm_follower *f, const lm_backward_args *a) {
  lm_compiled *c = (lm_compiled *)f;
  if (a->nroots > 64) NEED(f->settle(f));
  for (int i = 0; i < a->nroots; i++) lm_compiled_refuse_open(c, a->roots[i]);
  if (c->mode == RECORDING && a->nroots <= 64) return lm_compiled_record_backward(c, a);
  if (c->mode == MATCHING) {
    NEED(pass_pause(c));
    if ((c->at < c->now->nevents && lm_compiled_is_backward_event(c, &c->now->event[c->at], a)) ||
        lm_compiled_change_segment(c, is_backward_called, a)) {
      const lm_segment_event *e = &c->now->event[c->at];
      if (e->delivers) NEED(lm_segment_run_to(c->now, e->nsteps)); /* computes what hooks may read */
      lm_compiled_note_scope(c);
      c->at++;
      return e->delivers ? run_segment(c, true) : LM_OK;
    }
    if (c->at < c->now->nevents) lm_compiled_note_backward(c, &c->now->event[c->at]);
    NEED(diverge(c, true)); /* at its end too: backward needs the graph, which a segment does not make */
    return follow_backward(f, a);
  }
  return lm_compiled_backward_plain(c, a);
}

static bool has_backward(const lm_follower *f) {
  const lm_compiled *c = (const lm_compiled *)f;
  const int n = c->mode == MATCHING ? c->at : c->mode == RECORDING ? c->now->nevents : 0;
  return n > 0 && lm_segment_has_backward(c->now, n);
}

/* Ends the segment that is recorded, or the calls that run as they are. */
static lm_status stop_following(lm_compiled *c, lm_status status) {
  if (c->mode == RECORDING) lm_compiled_finish_recording(c);
  c->mode = AT_START;
  c->now = NULL;
  return status;
}

/* Runs the steps before a pause, if the next event is one. */
static lm_status pass_pause(lm_compiled *c) {
  const lm_segment_event *e = &c->now->event[c->at];
  if (c->at == c->now->nevents || !e->is_pause) return LM_OK;
  c->at++;
  return lm_segment_run_to(c->now, e->nsteps);
}

static lm_status follow_settle(lm_follower *f) {
  lm_compiled *c = (lm_compiled *)f;
  lm_status status = LM_OK;
  if (c->mode == MATCHING) {
    NEED(pass_pause(c));
    if (c->at < c->now->nevents && c->at > 0 && c->now->event[c->at - 1].is_pause) return LM_OK;
    status = c->at == c->now->nevents ? run_segment(c, false) : diverge(c, true);
    if (c->mode == MATCHING) return status;
  }
  if (c->mode == RECORDING && lm_compiled_record_pause(c)) return status;
  return stop_following(c, status);
}

static lm_status follow_leave(lm_follower *f) {
  lm_compiled *c = (lm_compiled *)f;
  lm_status status = LM_OK;
  if (c->mode == MATCHING) status = c->at == c->now->nevents ? run_segment(c, false) : diverge(c, true);
  if (c->mode == MATCHING) return status;
  status = stop_following(c, status);
  if (lm_grad_enabled()) lm_compiled_refuse_open(c, NULL);
  return status;
}

/* ---- the function */

lm_status lm_compiled_new(bool exact, lm_compiled **out) {
  lm_compiled *c = *out = lm_calloc(1, sizeof *c);
  if (!c) return LM_E_OOM;
  c->follower = (lm_follower){follow_call, follow_backward, follow_settle, follow_leave, has_backward, true};
  lm_compiled_set_recorder(c);
  c->credit = CREDIT;
  c->is_exact = exact;
  return LM_OK;
}

void lm_compiled_set_collect(lm_compiled *c, void (*collect)(void *), void *ctx) {
  c->collect = collect;
  c->collect_ctx = ctx;
}

void lm_compiled_free(lm_compiled *c) {
  if (!c) return;
  for (lm_segment *g = c->segments, *next; g; g = next) {
    next = g->next;
    lm_segment_free(g);
  }
  lm_free(c->noted);
  lm_free(c->delivered);
  lm_free(c->open);
  lm_free(c->instance_of.entry);
  lm_free(c->buffer_of.entry);
  lm_free(c->number_of.entry);
  lm_free(c->bound.entry);
  lm_free(c);
}

bool lm_compiled_begin(lm_compiled *c) {
  if (c->rest > 0) {
    c->rest--;
    return false;
  }
  if (lm_follower_current() || lm_tape_current() || lm_tensors_watched || lm_anomaly() || lm_recompute_is_active())
    return false;
  lm_segment **at = &c->segments;
  for (int i = 0; *at && i < MOST; i++) at = &(*at)->next;
  while (*at) {
    lm_segment *g = *at;
    *at = g->next;
    lm_segment_free(g);
  }
  c->mode = AT_START;
  c->recordings_before = c->recordings;
  c->made_before = c->made;
  c->ran_before = c->ran;
  atomic_fetch_add(&lm_compiled_calls, 1);
  lm_follower_swap(&c->follower);
  return true;
}

lm_status lm_compiled_end(lm_compiled *c, bool failed, void (*collect)(void *), void *ctx) {
  lm_status status = LM_OK;
  if (c->mode == MATCHING) status = c->at == c->now->nevents ? run_segment(c, false) : diverge(c, !failed);
  if (status == LM_E_OOM && c->mode == MATCHING) {
    collect(ctx);
    status = run_segment(c, true);
  }
  if (c->mode == RECORDING) lm_compiled_finish_recording(c);
  c->now = NULL;
  c->mode = AT_START;
  c->follower.wants_lines = c->recordings > c->recordings_before;
  c->unsteady = c->made > c->made_before || c->ran == c->ran_before ? c->unsteady + 1 : 0;
  if (c->unsteady == 0) c->difference[0] = 0;
  if (c->ran > c->ran_before || c->credit >= 1)
    c->rests = 0;
  else
    c->rest = c->rests = c->rests == 0 ? 8 : c->rests < MOST_RESTS ? 2 * c->rests : MOST_RESTS;
  lm_follower_swap(NULL);
  if (c->nopen == 0) atomic_fetch_sub(&lm_compiled_calls, 1); /* else lm_compiled_decide does, after the collection */
  return status;
}

bool lm_compiled_has_open(const lm_compiled *c) { return c->nopen > 0; }

void lm_compiled_decide(lm_compiled *c) {
  lm_compiled_refuse_open(c, NULL);
  for (int i = 0; i < c->nopen; i++)
    if (!lm_segment_has_backward(c->open[i].segment, c->open[i].segment->nevents))
      lm_segment_refuse(c->open[i].segment, LM_GRAPH_DROPPED);
  lm_tensors_watched = NULL;
  c->nopen = 0;
  atomic_fetch_sub(&lm_compiled_calls, 1);
}

lm_compiled_state lm_compiled_get_state(const lm_compiled *c) {
  lm_compiled_state s = {.recordings = c->recordings, .runs = c->ran, .changes = c->changes};
  for (const lm_segment *g = c->segments; g; g = g->next) {
    s.segments += !g->runs_as_is;
    if (!g->runs_as_is && g->reason[0]) s.reason = g->reason;
  }
  if (c->unsteady >= UNSTEADY && c->difference[0])
    s.reason = c->difference;
  else if (c->unsteady >= UNSTEADY && c->segments && c->segments->reason[0])
    s.reason = c->segments->reason, s.line = c->segments->line;
  if (c->reason[0]) s.reason = c->reason, s.line = c->line;
  return s;
}

static const lm_segment *segment_at(const lm_compiled *c, int i) {
  const lm_segment *g = c->segments;
  while (g && (g->runs_as_is || i-- > 0)) g = g->next;
  return g;
}

void lm_compiled_set_explained(lm_compiled *c) { c->explains = true; }

bool lm_compiled_explain(const lm_compiled *c, int i, bool is_planned, lm_bytes *out, const char **line) {
  const lm_segment *g = segment_at(c, i);
  if (!g) return false;
  *line = g->line;
  if (is_planned)
    lm_segment_write(g, true, out);
  else
    lm_put(out, g->recorded.data, g->recorded.n);
  return true;
}
