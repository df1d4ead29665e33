#include "base/log.h"
#include "base/clock.h"
#include "base/environment_variable.h"
#include "base/status.h"

#include <pthread.h>
#include <string.h>

#include "integers.h"

enum { TEXT_BYTES = 4000, WARNING_BYTES = 3072 };

static const char *const topic_names[LM_LOG_TOPICS] = {"op", "dist", "alloc", "trace"};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int64_t start; /* monotonic time of the first use, in nanoseconds; lines show seconds since then */
_Atomic uint32_t lm_tracing = LM_TRACE_UNREAD;

static void turn_on(const char *name, size_t length) {
  bool all = length == 3 && memcmp(name, "all", 3) == 0, known = all;
  for (int i = 0; i < LM_LOG_TOPICS; i++)
    if (all || (strlen(topic_names[i]) == length && memcmp(topic_names[i], name, length) == 0)) {
      atomic_fetch_or(&lm_tracing, 1u << i);
      known = true;
    }
  if (known || length == 0) return;
  lm_print_stderr("LM_LOG: no topic '%.*s'; there are op, dist, alloc, trace and all", (int)lm_min(length, 64), name);
}

static void read_environment(void) {
  start = lm_nanoseconds();
  const char *wanted = lm_variable_get(LM_VAR_LOG);
  while (wanted && *wanted) {
    size_t length = strcspn(wanted, ",");
    turn_on(wanted, length);
    wanted += length + (wanted[length] == ',');
  }
  atomic_fetch_and(&lm_tracing, ~(uint32_t)LM_TRACE_UNREAD);
}

static _Thread_local char warning[WARNING_BYTES];
static _Thread_local bool waiting;

void lm_warn(const char *format, ...) {
  LM_WRITE_ARGS(warning, sizeof warning, format);
  waiting = true;
}

const char *lm_take_warning(void) {
  const char *taken = waiting ? warning : NULL;
  waiting = false;
  return taken;
}

bool lm_log_on(lm_topic topic) {
  if (lm_traces(LM_TRACE_UNREAD)) pthread_once(&once, read_environment);
  return lm_traces(1u << topic);
}

void lm_log(lm_topic topic, const char *format, ...) {
  if (!lm_log_on(topic)) return;
  double seconds = (double)(lm_nanoseconds() - start) * 1e-9;
  char text[TEXT_BYTES];
  LM_WRITE_ARGS(text, sizeof text, format);
  lm_print_stderr("[%s %.6f] %s", topic_names[topic], seconds, text);
}
