#include "base/status.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_size_limit.h"
#include "base/log.h"
#include "base/message.h"
#include "base/thread.h"

enum { MESSAGE_BYTES = 1024, SIGN_BYTES = 48, ELLIPSIZE_BYTES = 200, LINE_BYTES = 4096 };
static _Thread_local char message[MESSAGE_BYTES];

static int is_inside(char byte) { return (byte & 0xC0) == 0x80; } /* true within a UTF-8 character */

static bool is_control(char byte) { return (unsigned char)byte < ' ' || byte == 127; }

/* Returns the bytes of the character at `at` if a terminal obeys it, or if it hides or turns the text around it:
 * control characters, U+0080 to U+009F, U+200B, U+2028 to U+202E, U+2060 to U+2069, U+FEFF. Else 0. */
static size_t unsafe_bytes(const char *at) {
  const unsigned char a = (unsigned char)at[0], b = a ? (unsigned char)at[1] : 0, c = b ? (unsigned char)at[2] : 0;
  if (a == 0xC2 && (b & 0xE0) == 0x80) return 2;
  if (a == 0xE2 && b == 0x80 && (c == 0x8B || (c >= 0xA8 && c <= 0xAE))) return 3;
  if ((a == 0xE2 && b == 0x81 && c >= 0xA0 && c <= 0xA9) || (a == 0xEF && b == 0xBB && c == 0xBF)) return 3;
  return is_control(at[0]) && a != '\n' && a != '\t';
}

void lm_make_printable(char *text) {
  char *out = text;
  for (const char *at = text; *at;) {
    size_t n = unsafe_bytes(at);
    *out++ = n ? '?' : *at;
    at += n ? n : 1;
  }
  *out = 0;
}

const char *lm_ellipsize(const char *text, size_t most) {
  static _Thread_local char texts[4][ELLIPSIZE_BYTES + sizeof "..."];
  static _Thread_local unsigned turn;
  char *out = texts[turn++ % 4];
  size_t n = most < ELLIPSIZE_BYTES ? most : ELLIPSIZE_BYTES, end = strnlen(text, n + 1);
  bool cut = end > n;
  if (cut) {
    for (end = n; end > 0 && n - end < 3 && is_inside(text[end]);) end--;
    if (is_inside(text[end])) end = n; /* the text is not UTF-8 */
  }
  for (size_t i = 0; i < end; i++) out[i] = is_control(text[i]) ? '?' : text[i];
  strcpy(out + end, cut ? "..." : "");
  lm_make_printable(out);
  return out;
}

/* Writes the ends of `whole`, which is too long for out, and between them the number of bytes left out. */
static void write_ends(char *out, size_t capacity, const char *whole, size_t bytes) {
  char sign[SIGN_BYTES];
  size_t head = (capacity - SIGN_BYTES) / 2, tail = capacity - SIGN_BYTES - head;
  while (head > 0 && is_inside(whole[head])) head--;
  while (tail > 0 && is_inside(whole[bytes - tail])) tail--;
  int n = snprintf(sign, sizeof sign, " ...(%zu bytes)... ", bytes - head - tail);
  memcpy(out, whole, head);
  memcpy(out + head, sign, (size_t)n);
  memcpy(out + head + (size_t)n, whole + bytes - tail, tail + 1);
}

static locale_t plain;

__attribute__((constructor)) static void make_plain(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

locale_t lm_plain_numbers_begin(void) { return plain ? uselocale(plain) : (locale_t)0; }
void lm_plain_numbers_end(locale_t *before) { uselocale(*before); /* 0 changes nothing */ }

void lm_write_v(char *out, size_t capacity, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  LM_PLAIN_NUMBERS(locale);
  int n = vsnprintf(out, capacity, format, args);
  if (n >= (int)capacity && capacity > 2 * SIGN_BYTES) {
    char *whole = malloc((size_t)n + 1); /* outside the counted heap: the message may be about lack of memory */
    if (whole) {
      vsnprintf(whole, (size_t)n + 1, format, again);
      write_ends(out, capacity, whole, (size_t)n);
    }
    free(whole);
  }
  if (capacity > 0 && n < 0) out[0] = 0;
  if (capacity > 0) lm_make_printable(out);
  va_end(again);
}

void lm_write(char *out, size_t capacity, const char *format, ...) { LM_WRITE_ARGS(out, capacity, format); }

void lm_write_bytes(char *out, size_t capacity, const char *bytes, size_t n) {
  char *text = malloc(2 * n + 1), *at = text;
  for (size_t i = 0; text && i < n; i++) {
    if (bytes[i] == 0) *at++ = '\\';
    *at++ = bytes[i] ? bytes[i] : '0';
  }
  if (text) *at = 0;
  lm_write(out, capacity, "%s", text ? text : "");
  free(text);
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*_Atomic log_function)(void *user, const char *line);
static void *log_user;

void lm_set_log(void (*log)(void *user, const char *line), void *user) {
  LM_LOCKED(&log_lock);
  log_function = log;
  log_user = user;
}

/* Passes the line to the function of lm_set_log; returns false if there is none. */
static bool print_to_log(const char *line) {
  if (!log_function) return false;
  LM_LOCKED(&log_lock);
  void (*log)(void *, const char *) = log_function;
  if (log) log(log_user, line);
  return log != NULL;
}

void lm_print_stderr(const char *format, ...) {
  char line[LINE_BYTES];
  LM_WRITE_ARGS(line, sizeof line - 1, format);
  if (print_to_log(line)) return;
  size_t n = strlen(line);
  line[n] = '\n'; /* over the NUL */
  lm_file_limit limit;
  lm_file_limit_begin(&limit);
  ssize_t written = write(STDERR_FILENO, line, n + 1);
  lm_file_limit_end(&limit);
  (void)written; /* there is nowhere to report a failure */
}

lm_status lm_fail(lm_status status, const char *format, ...) {
  char text[MESSAGE_BYTES]; /* the last message may be among the arguments */
  LM_WRITE_ARGS(text, sizeof text, format);
  strcpy(message, text);
  return status;
}

const char *lm_error(void) { return message; }

void lm_error_save(lm_status status, lm_saved_error *out) {
  _Static_assert(sizeof out->message == MESSAGE_BYTES, "a whole message");
  out->status = status;
  strcpy(out->message, status == LM_OK ? "" : message);
}

lm_status lm_error_restore(const lm_saved_error *saved) {
  if (saved->status != LM_OK) strcpy(message, saved->message);
  return saved->status;
}

lm_status lm_fail_in(lm_status status, const char *prefix) {
  size_t n = strlen(prefix);
  bool begins = strncmp(message, prefix, n) == 0 && !isalnum((unsigned char)message[n]) && message[n] != '_';
  return begins ? status : lm_fail(status, "%s: %s", prefix, message);
}
