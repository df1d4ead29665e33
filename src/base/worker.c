#include "base/worker.h"

#include <stdatomic.h>

static _Thread_local bool worker;
static _Thread_local int limit;

void lm_worker_begin(void) { worker = true; }
bool lm_is_worker(void) { return worker; }

int lm_busy_threads(int change) {
  static _Atomic int busy;
  return atomic_fetch_add(&busy, change) + change;
}

void lm_set_thread_limit(int n) { limit = n; }
int lm_thread_limit(void) { return limit; }
