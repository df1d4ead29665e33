#include "base/worker.h"

static _Thread_local bool worker;

void lm_worker_begin(void) { worker = true; }
bool lm_is_worker(void) { return worker; }
