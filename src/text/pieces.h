/* A text on its way to tokens: as it has become so far, with the part of the original that each byte comes from, in
 * pieces. Normalizers rewrite the pieces, pre-tokenizers cut them; what an added token has taken is left alone.
 *
 * Where a character comes from follows the rules of Hugging Face's `tokenizers` (tokenizer/normalizer.rs), so that
 * offsets are the same: one that is added comes from where the one before it does. */
#pragma once

#include "base/mem.h"
#include "base/status.h"
#include "text/characters.h"
#include "text/work.h"

/* Bytes of a text. Normalization may lengthen it to 64 times its bytes plus 1 MiB, but not beyond this either. */
enum { LM_TEXT_MAX = 1 << 28 };

typedef struct lm_span {
  uint32_t from, to; /* bytes of the original */
} lm_span;

typedef struct lm_piece {
  uint32_t at, n; /* bytes */
  uint32_t shift; /* where the piece began in the original */
  int32_t id;     /* of the added token that it is, or -1 */
} lm_piece;

typedef struct lm_aligned {
  char *text;
  lm_span *span;
  size_t n, capacity;
} lm_aligned;

typedef struct lm_cut { /* part of a piece */
  uint32_t from, to;
  int32_t id; /* what pre-tokenizers looked for (1) or not (0); an added token or -1 */
} lm_cut;

typedef struct lm_pieces {
  lm_aligned now, next;
  lm_piece *piece, *made;
  size_t count, piece_capacity, nmade, made_capacity;
  lm_cut *cut; /* of the piece at work */
  size_t cuts, cut_capacity;
  size_t most;           /* bytes */
  uint64_t work;         /* how many steps are left */
  bool failed, too_long; /* out of memory; or because of most */
} lm_pieces;

/* One piece: all of the text. */
lm_status lm_pieces_begin(lm_pieces *p, const char *text, size_t n);
void lm_pieces_free(lm_pieces *p);

/* ---- rewriting */
typedef struct lm_rewrite {
  lm_pieces *pieces;
  const char *text; /* the piece, of n bytes */
  const lm_span *span;
  size_t n, at; /* at: up to where it was read */
  uint32_t shift;
} lm_rewrite;

typedef lm_status (*lm_rewriter)(const void *with, lm_rewrite *r);
/* f for each piece that is no added token. */
lm_status lm_pieces_rewrite(lm_pieces *p, lm_rewriter f, const void *with);

/* Moves on by that many characters of the piece. */
void lm_rewrite_skip(lm_rewrite *r, size_t characters);
/* The character c stands for the next one (change 0), for the next one and -change more, or is added (1). */
void lm_rewrite_put(lm_rewrite *r, uint32_t c, int change);
/* The next n bytes stay as they are. */
void lm_rewrite_keep(lm_rewrite *r, size_t n);
/* The next n bytes become a text whose characters all come from where the last of these bytes does. */
void lm_rewrite_replace(lm_rewrite *r, size_t n, const char *text, size_t text_n);
/* Before the piece, of which nothing was read. */
void lm_rewrite_prepend(lm_rewrite *r, const char *text, size_t n);

/* ---- cutting */
/* Adds a cut; those of a piece are in order. */
void lm_cut_put(lm_pieces *p, size_t from, size_t to, int32_t id);

typedef lm_status (*lm_cutter)(const void *with, lm_pieces *p, const char *text, size_t n);
/* f returns the cuts of each piece that is no added token, and the piece becomes those that are not empty. ids: of
 * added tokens. Otherwise the cuts cover the piece and `behavior` says what becomes of those that were looked for. */
typedef enum lm_behavior {
  LM_CUT_REMOVED,
  LM_CUT_ISOLATED,
  LM_CUT_WITH_PREVIOUS,
  LM_CUT_WITH_NEXT,
  LM_CUT_CONTIGUOUS,
  LM_CUT_IDS,
} lm_behavior;
lm_status lm_pieces_cut(lm_pieces *p, lm_cutter f, const void *with, lm_behavior behavior, bool invert);
