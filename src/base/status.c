#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };
static _Thread_local char message[MESSAGE_BYTES];

lm_status lm_fail(lm_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  return status;
}

const char *lm_error(void) { return message; }

lm_status lm_fail_in(lm_status status, const char *prefix) {
  char inner[MESSAGE_BYTES];
  memcpy(inner, message, sizeof inner);
  snprintf(message, sizeof message, "%s: %.*s", prefix, (int)sizeof inner - 64, inner);
  return status;
}
