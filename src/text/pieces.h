/* Holds a text while it becomes tokens: its current form, each byte's span in the original, and its pieces. Normalizers
 * rewrite the pieces, pre-tokenizers cut them; pieces that are added tokens stay unchanged.
 *
 * Spans follow the rules of Hugging Face's `tokenizers` (tokenizer/normalizer.rs), so that offsets agree: an inserted
 * character has the span of the one before it. */
#pragma once

#include "base/mem.h"
#include "base/status.h"
#include "text/characters.h"
#include "text/work.h"

/* Limit of a text in bytes. Normalization may lengthen it to 64 times its bytes plus 1 MiB, within this limit. */
enum { LM_TEXT_MAX = 1 << 28 };

typedef struct lm_span {
  uint32_t from, to; /* byte range of the original */
} lm_span;

typedef struct lm_piece {
  uint32_t at, n; /* bytes */
  uint32_t shift; /* first byte of the piece in the original */
  int32_t id;     /* id of the added token that the piece is, or -1 */
} lm_piece;

typedef struct lm_aligned {
  char *text;
  lm_span *span;
  size_t n, capacity;
} lm_aligned;

typedef struct lm_cut { /* a part of a piece, as byte range */
  uint32_t from, to;
  int32_t id; /* 1 for a match of the pre-tokenizer, 0 for text between; an added token's id or -1 for LM_CUT_IDS */
} lm_cut;

typedef struct lm_pieces {
  lm_aligned now, next;
  lm_piece *piece, *next_piece;
  size_t count, piece_capacity, next_count, next_capacity;
  lm_cut *cut; /* cuts of the current piece */
  size_t cuts, cut_capacity;
  size_t max_bytes;      /* limit on the text's bytes */
  uint64_t work;         /* steps left (work.h) */
  bool failed, too_long; /* failed: out of memory or, if too_long, beyond max_bytes */
} lm_pieces;

/* Starts with one piece: all n bytes of a text, which must be valid UTF-8. */
lm_status lm_pieces_begin(lm_pieces *p, const char *text, size_t n);
void lm_pieces_free(lm_pieces *p);

/* ---- rewriting */
typedef struct lm_rewrite {
  lm_pieces *pieces;
  const char *text; /* the piece, n bytes */
  const lm_span *span;
  size_t n, at; /* at: bytes read so far */
  uint32_t shift;
} lm_rewrite;

typedef lm_status (*lm_rewriter)(const void *with, lm_rewrite *r);
/* Calls f for each piece that is no added token, and replaces the piece by the text that f writes. */
lm_status lm_pieces_rewrite(lm_pieces *p, lm_rewriter f, const void *with);

/* Skips `characters` characters of the piece, without writing. */
void lm_rewrite_skip(lm_rewrite *r, size_t characters);
/* Writes c in place of the next character (change 0) or of the next one and -change more; inserts it (change 1). */
void lm_rewrite_put(lm_rewrite *r, uint32_t c, int change);
/* Copies the next n bytes unchanged. */
void lm_rewrite_keep(lm_rewrite *r, size_t n);
/* Writes a text in place of the next n bytes; each of its characters has the span of the last of these bytes. */
void lm_rewrite_replace(lm_rewrite *r, size_t n, const char *text, size_t text_n);
/* Writes a text before a piece of which nothing has been read. */
void lm_rewrite_prepend(lm_rewrite *r, const char *text, size_t n);

/* ---- cutting */
/* Appends a cut; the cuts of a piece must be in order. */
void lm_cut_put(lm_pieces *p, size_t from, size_t to, int32_t id);

typedef lm_status (*lm_cutter)(const void *with, lm_pieces *p, const char *text, size_t n);
/* Cuts each piece that is no added token: f writes its cuts, and the non-empty ones become pieces. With LM_CUT_IDS, the
 * cuts' ids are those of added tokens; else cuts must cover the piece, and `behavior` says what becomes of matches. */
typedef enum lm_behavior {
  LM_CUT_REMOVED,
  LM_CUT_ISOLATED,
  LM_CUT_WITH_PREVIOUS,
  LM_CUT_WITH_NEXT,
  LM_CUT_CONTIGUOUS,
  LM_CUT_IDS,
} lm_behavior;
lm_status lm_pieces_cut(lm_pieces *p, lm_cutter f, const void *with, lm_behavior behavior, bool invert);
