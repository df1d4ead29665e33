/* Copies past the caches. A result too large for them, in memory that was not just read, is written with half the
 * traffic so: an ordinary store first fetches the line that it replaces. */
#ifndef LM_CPU_STREAM_COPY_H
#define LM_CPU_STREAM_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Bytes of a whole result, of one in memory that no cache holds (lm_age), of a line of cache. */
enum { LM_STREAM_LEAST = 3 << 20, LM_STREAM_LEAST_COLD = 512 << 10, LM_STREAM_LINE = 64 };

static inline bool lm_stream_pays(size_t bytes_of_result) { return bytes_of_result >= LM_STREAM_LEAST; }

/* Lines that `dst` fills by part only are stored as usual. Each thread that copied calls lm_stream_end. */
static inline void lm_stream_copy(void *dst, const void *src, size_t bytes) {
  char *to = dst;
  const char *from = src;
#ifdef __SSE2__
  size_t head = (size_t) - (uintptr_t)to % LM_STREAM_LINE;
  if (bytes < head + LM_STREAM_LINE) head = bytes;
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= LM_STREAM_LINE; bytes -= LM_STREAM_LINE, to += LM_STREAM_LINE, from += LM_STREAM_LINE) {
    for (int i = 0; i < LM_STREAM_LINE; i += 16)
      _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
  }
#endif
  memcpy(to, from, bytes);
}

static inline void lm_copy_or_stream(bool streams, void *dst, const void *src, size_t bytes) {
  if (streams) {
    lm_stream_copy(dst, src, bytes);
  } else {
    memcpy(dst, src, bytes);
  }
}

/* What was streamed is seen by others from here on. */
static inline void lm_stream_end(void) {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

#endif
