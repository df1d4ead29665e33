#include "base/log.h"
#include "base/environment_variable.h"
#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, WARNING_BYTES = 3072 };

static const char *const topic_names[LM_LOG_TOPICS] = {"op", "dist", "alloc", "trace"};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool on[LM_LOG_TOPICS]; /* written once, before any reader returns from pthread_once */
static struct timespec start;

/* One write a line, so that lines of several threads and processes do not mix. */
static void write_line(const char *line, size_t bytes) {
  ssize_t written = write(STDERR_FILENO, line, bytes);
  (void)written; /* there is nowhere to complain to */
}

static void turn_on(const char *name, size_t length) {
  bool all = length == 3 && memcmp(name, "all", 3) == 0, known = all;
  for (int i = 0; i < LM_LOG_TOPICS; i++)
    if (all || (strlen(topic_names[i]) == length && memcmp(topic_names[i], name, length) == 0)) on[i] = known = true;
  if (known || length == 0) return;
  char line[LINE_BYTES];
  int n = snprintf(line, sizeof line, "LM_LOG: no topic '%.*s'; there are op, dist, alloc, trace and all\n",
                   (int)(length < 64 ? length : 64), name);
  write_line(line, (size_t)n);
}

static void read_environment(void) {
  clock_gettime(CLOCK_MONOTONIC, &start);
  const char *wanted = lm_variable_get(LM_VAR_LOG);
  while (wanted && *wanted) {
    size_t length = strcspn(wanted, ",");
    turn_on(wanted, length);
    wanted += length + (wanted[length] == ',');
  }
}

/* Formats into `capacity` bytes, printable, and returns how many are used; a text that is too long ends after a whole
 * character of UTF-8, with "...". */
LM_PRINTF(3, 0) static size_t put_text(char *out, size_t capacity, const char *format, va_list args) {
  int n = vsnprintf(out, capacity, format, args);
  if (n < 0) return 0;
  if ((size_t)n >= capacity) {
    size_t end = capacity - 4;
    while (end > 0 && ((unsigned char)out[end] & 0xC0) == 0x80) end--;
    memcpy(out + end, "...", 4);
  }
  lm_make_printable(out);
  return strlen(out);
}

/* Formats into what is left of a line that has n bytes, and writes it. */
LM_PRINTF(3, 0) static void finish_line(char *line, int n, const char *format, va_list args) {
  size_t bytes = (size_t)n + put_text(line + n, LINE_BYTES - (size_t)n, format, args);
  line[bytes] = '\n'; /* over the NUL */
  write_line(line, bytes + 1);
}

void lm_print_stderr(const char *format, ...) {
  char line[LINE_BYTES];
  va_list args;
  va_start(args, format);
  finish_line(line, 0, format, args);
  va_end(args);
}

static _Thread_local char warning[WARNING_BYTES];
static _Thread_local bool waiting;

void lm_warn(const char *format, ...) {
  va_list args;
  va_start(args, format);
  put_text(warning, sizeof warning, format, args);
  va_end(args);
  waiting = true;
}

const char *lm_take_warning(void) {
  const char *taken = waiting ? warning : NULL;
  waiting = false;
  return taken;
}

bool lm_log_on(lm_topic topic) {
  pthread_once(&once, read_environment);
  return on[topic];
}

void lm_log(lm_topic topic, const char *format, ...) {
  if (!lm_log_on(topic)) return;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  double seconds = (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) * 1e-9;
  char line[LINE_BYTES];
  int n = snprintf(line, sizeof line, "[%s %.6f] ", topic_names[topic], seconds);
  va_list args;
  va_start(args, format);
  finish_line(line, n, format, args);
  va_end(args);
}
