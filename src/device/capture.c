/* Tracks which graph each thread captures, and lets calls that would break a capture be prevented or refused. */
#include "base/message.h"
#include "device/stream_core.h"

static _Thread_local lm_graph *capturing;
static _Atomic int under_way; /* number of captures of all threads */
pthread_rwlock_t lm_captures = PTHREAD_RWLOCK_INITIALIZER;

void lm_capture_enter(lm_graph *g) {
  capturing = g;
  under_way++;
}

void lm_capture_leave(void) {
  under_way--;
  capturing = NULL;
}

lm_graph *lm_graph_capturing(void) { return capturing; }

bool lm_graph_block(void) {
  pthread_rwlock_rdlock(&lm_captures);
  if (under_way == 0) return true;
  pthread_rwlock_unlock(&lm_captures);
  return false;
}

void lm_graph_unblock(void) { pthread_rwlock_unlock(&lm_captures); }

lm_status lm_graph_forbids(const char *call) {
  if (!capturing) return LM_OK;
  return lm_fail(LM_E_STATE,
                 "graph: cannot call %s during capture, when nothing of the graph has run; move it out of the graph",
                 call);
}

lm_status lm_graph_refuse(lm_device captured, lm_device other) {
  return lm_fail(
      LM_E_STATE,
      "graph: cannot run work on %s during a capture on %s; a graph is of one device, so nn.DataParallel cannot "
      "be captured",
      lm_device_name(other), lm_device_name(captured));
}
