/* Captures a thread's work as a graph and replays it. A replay is ordered by explicit waits: it runs after all earlier
 * work of its device, and each later use of memory the graph touches (LM_USED_GRAPH) waits for it. */

#include "device/graph.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/segments.h"
#include "device/stream_core.h"

struct lm_graph {
  lm_device device;
  lm_stream *stream; /* the stream on which the capture began */
  lm_arena *arena;
  void *native;
  lm_graph *next; /* next in the list of freed graphs */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lm_graph *let_go; /* freed graphs; finalizers call no driver, so the next use of graphs destroys them */
/* Make a launch and its record atomic, by ordinal: a later launch must wait for an earlier one. */
static pthread_mutex_t launching[LM_DEVICE_MAX] = {[0 ... LM_DEVICE_MAX - 1] = PTHREAD_MUTEX_INITIALIZER};

lm_status lm_graph_join(lm_stream *s) {
  const lm_graph *capturing = lm_graph_capturing();
  if (!capturing) return LM_OK;
  if (capturing->device != s->device) return lm_graph_refuse(capturing->device, s->device);
  return lm_stream_capture(s) == capturing ? LM_OK : lm_stream_wait(s, capturing->stream);
}

void lm_graph_drain(void) {
  if (lm_graph_capturing()) return;
  pthread_mutex_lock(&lock);
  lm_graph *g = let_go;
  let_go = NULL;
  pthread_mutex_unlock(&lock);
  for (lm_graph *next; g; g = next) {
    next = g->next;
    lm_driver_of(g->device)->graph_destroy(lm_device_physical(g->device), g->native);
    lm_free(g);
  }
}

void lm_graph_free(lm_graph *g) {
  if (!g) return;
  lm_stream *launched = lm_stream_launched(g->device);
  lm_arena_retire(g->arena, launched ? LM_USED_BIT(launched->id) : 0);
  g->arena = NULL;
  if (!g->native) {
    lm_free(g);
    return;
  }
  LM_LOCKED(&lock);
  g->next = let_go;
  let_go = g;
}

static lm_stream_state *state_at(lm_device device, int id) { return (lm_stream_state *)lm_stream_by_id(device, id); }

static lm_status begin_on_stream(const lm_driver *driver, lm_graph *g) {
  lm_stream *s = g->stream;
  pthread_rwlock_wrlock(&lm_captures);
  lm_status status = driver->capture_begin(lm_device_physical(s->device), s->native);
  if (status == LM_OK) {
    atomic_store(&((lm_stream_state *)s)->capture, g);
    lm_capture_enter(g);
  }
  pthread_rwlock_unlock(&lm_captures);
  return status;
}

lm_status lm_graph_begin(lm_stream *s, lm_graph **out) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(s->device);
  lm_graph *g = NULL;
  *out = NULL;
  if (!driver->capture_begin) return lm_fail_missing("graph", lm_device_name(s->device));
  if (lm_graph_capturing()) return lm_fail(LM_E_STATE, "graph: cannot capture during another capture of this thread");
  lm_graph_drain();
  if (!(g = lm_calloc(1, sizeof *g))) return LM_E_OOM;
  g->device = s->device;
  g->stream = s;
  TRY(lm_arena_new(s->device, &g->arena));
  TRY(lm_device_synchronize(s->device));
  TRY(begin_on_stream(driver, g));
  lm_stream_touch(s); /* the first stream that waits for s then joins the capture */
  lm_arena_use(g->arena);
  *out = g;
  g = NULL;
done:
  lm_graph_free(g);
  return status;
}

lm_status lm_graph_gather(lm_graph *g) {
  lm_stream_state *o;
  for (int i = 0; (o = state_at(g->device, i)); i++)
    if (atomic_load(&o->capture) == g) NEED(lm_stream_wait(g->stream, &o->s));
  return LM_OK;
}

/* Ends the capture on its streams. Events recorded during it are invalid from then on. */
static void end_on_streams(lm_graph *g) {
  lm_stream_state *o;
  for (int i = 0; (o = state_at(g->device, i)); i++) {
    if (atomic_load(&o->capture) != g) continue;
    atomic_store(&o->capture, NULL);
    lm_stream_touch(&o->s);
  }
  lm_arena_use(NULL);
  lm_capture_leave();
}

/* Ends the capture and discards it; keeps the message of the earlier error. */
static void throw_away(lm_graph *g) {
  lm_saved_error first;
  lm_error_save(LM_E_STATE, &first);
  lm_driver_of(g->device)->capture_end(lm_device_physical(g->device), g->stream->native, NULL);
  lm_error_restore(&first);
}

lm_status lm_graph_end(lm_graph **at, bool keep) {
  lm_graph *g = *at;
  const lm_driver *driver = lm_driver_of(g->device);
  if (g != lm_graph_capturing()) return lm_fail(LM_E_STATE, "graph: a capture must end on the thread that began it");
  lm_status status = keep ? lm_graph_gather(g) : LM_OK;
  bool wanted = keep && status == LM_OK;
  if (wanted) {
    status = driver->capture_end(lm_device_physical(g->device), g->stream->native, &g->native);
  } else {
    throw_away(g);
  }
  end_on_streams(g);
  if (wanted && status == LM_OK) return LM_OK;
  lm_graph_free(g);
  *at = NULL;
  return status;
}

lm_status lm_graph_launch(lm_graph *g, lm_stream *s) {
  if (s->device != g->device)
    return lm_fail_value("graph", "the stream's device", lm_text("the graph's device %s", lm_device_name(g->device)),
                         lm_device_name(s->device));
  if (lm_graph_capturing()) return lm_fail(LM_E_STATE, "graph: cannot replay during a capture of this thread");
  lm_graph_drain();
  pthread_mutex_t *turn = &launching[LM_DEVICE_ORDINAL(s->device)];
  LM_LOCKED(turn);
  NEED(lm_stream_wait_mask(s, lm_stream_mask(s->device)));
  NEED(lm_driver_of(s->device)->graph_launch(lm_device_physical(s->device), g->native, s->native));
  lm_stream_touch(s);
  lm_stream_set_launched(s);
  return LM_OK;
}
