/* Copies past the caches. A result in memory that they do not hold is written with half the traffic so: an ordinary
 * store first fetches the line that it replaces. What they hold is written several times as fast by ordinary stores,
 * and the next op finds it there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "backend/cpu/isa.h"
#include "base/cache_size.h"

enum { LM_NONTEMPORAL_LINE = 64 }; /* bytes of a line of cache */

/* Whether a result of that size goes past the caches. Memory of smaller ones is used again before it leaves them
 * (bind/gc_step.c). */
static inline bool lm_use_nontemporal(size_t bytes) { return bytes > lm_cached_result_bytes(); }

/* isa/fill.c. lines: whole lines, dst at the beginning of one, by the widest stores that there are. blocks: whole
 * blocks, each loaded before it is stored. */
struct lm_nontemporal_loops {
  void (*lines)(void *dst, const void *src, size_t bytes);
  void (*blocks)(void *dst, const void *src, size_t bytes);
};
enum { LM_COPY_BLOCK = 256 }; /* bytes */
LM_ISA_DECLARE(struct lm_nontemporal_loops, lm_nontemporal_loops);

/* Lines that `dst` fills by part only are stored as usual. Each thread that copied calls lm_nontemporal_fence. */
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

/* memcpy, by blocks where dst is 1 to 63 bytes ahead of src modulo a page. There each load waits for the store before
 * it, and rep movsb, which glibc before 2.39 uses for long runs, takes 14 times as long on Zen 3 and 4 (glibc bug
 * 30994). */
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

/* What was streamed is seen by others from here on. */
static inline void lm_nontemporal_fence(void) {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/* Pieces that lie one behind the other at the destination, of any lengths: past the caches as whole lines. */
typedef struct lm_nontemporal_writer {
  char *to; /* where the next piece goes, or, of a line that is not full yet, its beginning */
  bool streams;
  uint8_t head, have; /* bytes before the first whole line; in `line` */
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

/* What is left, without a fence: for who opens the writer elsewhere next. */
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
