/* What every core function returns, and the message that goes with a failure.
 *
 * A function that can fail returns lm_status and leaves its message, worded for the person
 * who wrote the Lua script, in a thread-local buffer. TRY jumps to the function's one `done:`
 * label, where everything it owns is released. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

typedef enum lm_status {
  LM_OK = 0,
  LM_E_ARG,     /* a value that makes no sense */
  LM_E_SHAPE,   /* sizes that do not fit */
  LM_E_DTYPE,   /* a dtype the op does not take */
  LM_E_DEVICE,  /* devices that differ, or one that is not there */
  LM_E_INDEX,   /* an index or a label out of range */
  LM_E_OOM,     /* out of memory: the binding collects garbage and tries once more */
  LM_E_IO,      /* the operating system refused, or a file is not what it should be */
  LM_E_STATE,   /* called at the wrong time */
  LM_E_MISSING, /* not built, not implemented for this device */
  LM_E_LUA,     /* a Lua callback raised; the binding holds the value */
} lm_status;

#if defined(__GNUC__)
#define LM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define LM_PRINTF(f, a)
#endif

/* Everything a plug-in or the binding may call is exported; the rest of the core is hidden. */
#define LM_API __attribute__((visibility("default")))

/* Replaces by '?' what a terminal would obey: control characters except newline and tab, those of UTF-8 too. */
LM_API void lm_make_printable(char *text);

/* As snprintf, for messages: printable; what does not fit loses its middle: a reason stands at the end, often after a
 * path. */
LM_API void lm_write(char *out, size_t capacity, const char *format, ...) LM_PRINTF(3, 4);
LM_API void lm_write_v(char *out, size_t capacity, const char *format, va_list args) LM_PRINTF(3, 0);

/* Text of somebody's in a message: at most `most` bytes (200), of which a cut leaves whole characters and a "...",
 * control characters as '?'. Four of them are valid at a time on a thread. */
LM_API const char *lm_ellipsize(const char *text, size_t most);

/* n bytes as text: zero bytes as Lua writes them, \0. */
LM_API void lm_write_bytes(char *out, size_t capacity, const char *bytes, size_t n);
/* Writes a line to standard error, in one piece, so that lines of several threads and processes do not mix. One of more
 * than 4,094 bytes loses its middle. */
LM_API void lm_print_stderr(const char *format, ...) LM_PRINTF(1, 2);

/* Record a message (of at most 1023 bytes, as lm_write) and give the status back. */
LM_API lm_status lm_fail(lm_status status, const char *format, ...) LM_PRINTF(2, 3);
/* The last message of this thread. Valid until the next lm_fail on this thread. */
LM_API const char *lm_error(void);
/* A failure to report later: what comes in between may fail with words of its own. */
typedef struct lm_saved_error {
  lm_status status;
  char message[1024];
} lm_saved_error;
LM_API void lm_error_save(lm_status status, lm_saved_error *out); /* status, with this thread's last message */
LM_API lm_status lm_error_restore(const lm_saved_error *saved);   /* its status, which may be LM_OK */
/* Put "prefix: " before the last message, unless it begins with that word already; the status passes through. */
LM_API lm_status lm_fail_in(lm_status status, const char *prefix);

/* A failure is passed on: at once, or, where a function has something to release, through its label `done`. */
#define NEED(call)                    \
  do {                                \
    lm_status need_ = (call);         \
    if (need_ != LM_OK) return need_; \
  } while (0)
#define TRY(call)                              \
  do {                                         \
    if ((status = (call)) != LM_OK) goto done; \
  } while (0)
