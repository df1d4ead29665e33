/* Defines the status that every core function returns, and records the message that belongs to a failure.
 *
 * A function that can fail returns lm_status and leaves its message, worded for the author of the Lua script, in a
 * thread-local buffer. TRY jumps to the function's one `done:` label, where it releases everything it owns. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

typedef enum lm_status {
  LM_OK = 0,
  LM_E_ARG,     /* an invalid value */
  LM_E_SHAPE,   /* sizes that do not match */
  LM_E_DTYPE,   /* a dtype that the op does not support */
  LM_E_DEVICE,  /* devices that differ, or a device that does not exist */
  LM_E_INDEX,   /* an index or a label out of range */
  LM_E_OOM,     /* out of memory: the binding collects garbage and tries again */
  LM_E_IO,      /* the operating system refused, or a file is malformed */
  LM_E_STATE,   /* a call at the wrong time */
  LM_E_MISSING, /* a feature that is not built, or not implemented for this device */
  LM_E_LUA,     /* an error that a Lua callback raised; the binding holds its value */
} lm_status;

#if defined(__GNUC__)
#define LM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define LM_PRINTF(f, a)
#endif

/* Everything a plug-in or the binding may call is exported; the rest of the core is hidden. */
#define LM_API __attribute__((visibility("default")))

/* Replaces control characters, which a terminal would obey, by '?', UTF-8's too; newlines and tabs stay. */
LM_API void lm_make_printable(char *text);

/* Formats as snprintf, for messages: makes the text printable and cuts its middle if it is too long, since the reason
 * is at the end, often after a path. */
LM_API void lm_write(char *out, size_t capacity, const char *format, ...) LM_PRINTF(3, 4);
LM_API void lm_write_v(char *out, size_t capacity, const char *format, va_list args) LM_PRINTF(3, 0);

/* Does as lm_write_v for the arguments after `format`, the last named parameter of a variadic function. */
#define LM_WRITE_ARGS(out, capacity, format)  \
  do {                                        \
    va_list args_;                            \
    va_start(args_, format);                  \
    lm_write_v(out, capacity, format, args_); \
    va_end(args_);                            \
  } while (0)

/* Returns foreign text for a message: at most `most` bytes (200), cut between characters and followed by "...", control
 * characters as '?'. Each thread keeps the last four results. */
LM_API const char *lm_ellipsize(const char *text, size_t most);

/* Copies n bytes as text to out; zero bytes become \0, as Lua writes them. */
LM_API void lm_write_bytes(char *out, size_t capacity, const char *bytes, size_t n);
/* Writes a line to standard error in one write, so that lines of several threads and processes do not mix. A line of
 * more than 4,094 bytes loses its middle. */
LM_API void lm_print_stderr(const char *format, ...) LM_PRINTF(1, 2);

/* Records a message of at most 1023 bytes, formatted by lm_write, and returns the status. */
LM_API lm_status lm_fail(lm_status status, const char *format, ...) LM_PRINTF(2, 3);
/* Returns this thread's last message, valid until its next lm_fail. */
LM_API const char *lm_error(void);
/* A failure to report later, since calls in between may record their own message. */
typedef struct lm_saved_error {
  lm_status status;
  char message[1024];
} lm_saved_error;
LM_API void lm_error_save(lm_status status, lm_saved_error *out); /* stores status with this thread's last message */
LM_API lm_status lm_error_restore(const lm_saved_error *saved);   /* returns its status, which may be LM_OK */
/* Puts "prefix: " before the last message, unless it begins with that word already; returns the status. */
LM_API lm_status lm_fail_in(lm_status status, const char *prefix);

/* Pass a failure on: NEED returns at once; TRY jumps to the label `done`, for a function that has something to
 * release. */
#define NEED(call)                    \
  do {                                \
    lm_status need_ = (call);         \
    if (need_ != LM_OK) return need_; \
  } while (0)
#define TRY(call)                              \
  do {                                         \
    if ((status = (call)) != LM_OK) goto done; \
  } while (0)
