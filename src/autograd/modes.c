/* Stores the modes of a thread: recording, autocast, recomputation of a part, anomaly detection. */
#include "autograd/record_graph.h"

_Thread_local lm_modes lm_modes_here;
static _Thread_local bool anomaly;

bool lm_grad_enabled(void) { return !lm_modes_here.no_grad; }
void lm_set_grad_enabled(bool on) { lm_modes_here.no_grad = !on; }
lm_autocast lm_autocast_get(void) { return lm_modes_here.cast; }
void lm_autocast_set(lm_autocast mode) {
  lm_modes_here.cast = mode;
  lm_halves_widen = mode.on & LM_WIDENS;
}

lm_autocast lm_widen_begin(void) {
  lm_autocast before = lm_modes_here.cast;
  lm_autocast_set((lm_autocast){.on = LM_WIDENS, .keeps = before.keeps});
  return before;
}

lm_modes lm_modes_swap(lm_modes m) {
  lm_modes earlier = lm_modes_here;
  lm_modes_here = m;
  lm_autocast_set(m.cast);
  return earlier;
}

bool lm_anomaly(void) { return anomaly; }
void lm_set_anomaly(bool on) { anomaly = on; }
