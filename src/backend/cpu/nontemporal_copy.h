/* Copies past the caches, by non-temporal stores. They halve the traffic of a result in memory that the caches do not
 * hold, since an ordinary store first fetches the line that it replaces. Memory in the caches is written several times
 * as fast by ordinary stores, and the next op finds it there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "backend/cpu/isa.h"
#include "base/cache_size.h"

enum { LM_NONTEMPORAL_LINE = 64 }; /* bytes of a cache line */

/* Returns true if a result of `bytes` should bypass the caches. Memory of smaller ones is used again before it leaves
 * them (bind/gc_step.c). */
static inline bool lm_use_nontemporal(size_t bytes) { return bytes > lm_cached_result_bytes(); }

/* Loops of isa/fill.c. lines: copies whole lines, to a dst at the beginning of one, by the widest stores available.
 * blocks: copies whole blocks of LM_COPY_BLOCK bytes, each loaded before it is stored. */
struct lm_nontemporal_loops {
  void (*lines)(void *dst, const void *src, size_t bytes);
  void (*blocks)(void *dst, const void *src, size_t bytes);
};
enum { LM_COPY_BLOCK = 256 }; /* bytes */
LM_ISA_DECLARE(struct lm_nontemporal_loops, lm_nontemporal_loops);

/* Copies past the caches, except lines that `dst` fills in part. Each thread that copied calls lm_nontemporal_fence. */
static inline void lm_nontemporal_copy(void *dst, const void *src, size_t bytes) {
  char *to = dst;
  const char *from = src;
  size_t head = (size_t) - (uintptr_t)to % LM_NONTEMPORAL_LINE;
  if (bytes < head + LM_NONTEMPORAL_LINE) head = bytes;
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  size_t whole = bytes & ~(size_t)(LM_NONTEMPORAL_LINE - 1);
  if (whole > 0) LM_ISA_PICK(lm_nontemporal_loops)->lines(to, from, whole);
  memcpy(to + whole, from + whole, bytes - whole);
}

/* Copies like memcpy, but in blocks if dst is 1 to 63 bytes ahead of src modulo a page. There each load waits for the
 * store before it, and rep movsb, which glibc before 2.39 uses for long runs, takes 14 times as long on Zen 3 and 4
 * (glibc bug 30994). */
static inline void lm_copy_run(void *dst, const void *src, size_t bytes) {
  enum { PAGE = 4096 };
  const size_t ahead = ((uintptr_t)dst - (uintptr_t)src) % PAGE;
  size_t done = 0;
  if (ahead > 0 && ahead < LM_NONTEMPORAL_LINE && bytes >= LM_COPY_BLOCK) {
    done = bytes / LM_COPY_BLOCK * LM_COPY_BLOCK;
    LM_ISA_PICK(lm_nontemporal_loops)->blocks(dst, src, done);
  }
  memcpy((char *)dst + done, (const char *)src + done, bytes - done);
}

static inline void lm_nontemporal_copy_if_large(bool streams, void *dst, const void *src, size_t bytes) {
  if (streams) {
    lm_nontemporal_copy(dst, src, bytes);
  } else {
    lm_copy_run(dst, src, bytes);
  }
}

/* Makes this thread's non-temporal stores visible to others before its later stores. */
static inline void lm_nontemporal_fence(void) {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/* A writer of contiguous pieces of any lengths; those that bypass the caches are stored as whole lines. */
typedef struct lm_nontemporal_writer {
  char *to; /* address of the next piece, or of a line that is not full yet */
  bool streams;
  uint8_t head, have; /* bytes before the first whole line; bytes in `line` */
  _Alignas(LM_NONTEMPORAL_LINE) char line[LM_NONTEMPORAL_LINE];
} lm_nontemporal_writer;

static inline void lm_nontemporal_open(lm_nontemporal_writer *w, void *to, bool streams) {
  w->to = to;
  w->streams = streams;
  w->head = (uint8_t)((size_t) - (uintptr_t)to % LM_NONTEMPORAL_LINE);
  w->have = 0;
}

static inline void lm_nontemporal_write(lm_nontemporal_writer *w, const void *src, size_t bytes) {
  const char *from = src;
  if (!w->streams) {
    lm_copy_run(w->to, from, bytes);
    w->to += bytes;
    return;
  }
  if (w->head > 0) {
    size_t part = bytes < w->head ? bytes : w->head;
    memcpy(w->to, from, part);
    w->to += part, from += part, bytes -= part;
    w->head -= (uint8_t)part;
  }
  if (w->have > 0) {
    size_t capacity = (size_t)LM_NONTEMPORAL_LINE - w->have, part = bytes < capacity ? bytes : capacity;
    memcpy(w->line + w->have, from, part);
    from += part, bytes -= part;
    w->have += (uint8_t)part;
    if (w->have < LM_NONTEMPORAL_LINE) return;
    LM_ISA_PICK(lm_nontemporal_loops)->lines(w->to, w->line, LM_NONTEMPORAL_LINE);
    w->to += LM_NONTEMPORAL_LINE;
  }
  size_t whole = bytes & ~(size_t)(LM_NONTEMPORAL_LINE - 1);
  if (whole > 0) LM_ISA_PICK(lm_nontemporal_loops)->lines(w->to, from, whole);
  w->to += whole;
  w->have = (uint8_t)(bytes - whole);
  memcpy(w->line, from + whole, w->have);
}

/* Stores the buffered elements without a fence, for a caller that opens the writer at another address next. */
static inline void lm_nontemporal_finish(lm_nontemporal_writer *w) {
  if (!w->streams) return;
  memcpy(w->to, w->line, w->have);
  w->to += w->have;
  w->have = 0;
}

static inline void lm_nontemporal_close(lm_nontemporal_writer *w) {
  lm_nontemporal_finish(w);
  if (w->streams) lm_nontemporal_fence();
}
