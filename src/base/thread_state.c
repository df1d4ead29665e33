#include "base/thread_state.h"

#include <stdatomic.h>

#include "base/mapping_guard.h"

static _Thread_local bool script_thread;
static _Thread_local int limit;

void lm_script_thread_begin(void) {
  script_thread = true;
  lm_truncation_begin();
}
bool lm_is_script_thread(void) { return script_thread; }

int lm_busy_threads(int change) {
  static _Atomic int busy;
  return atomic_fetch_add(&busy, change) + change;
}

void lm_set_thread_limit(int n) { limit = n; }
int lm_thread_limit(void) { return limit; }
