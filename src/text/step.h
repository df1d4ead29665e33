/* One normalizer, pre-tokenizer, post-processor or decoder of a tokenizer, as it stands in tokenizer.json. */
#pragma once

#include "text/pattern.h"
#include "text/pieces.h"

typedef struct lm_string {
  char *data; /* with a closing zero */
  size_t n;
} lm_string;

lm_status lm_text_copy(lm_string *to, const char *text, size_t n);

typedef enum lm_step_kind {
  LM_STEP_NONE, /* does nothing */
  /* normalizers */
  LM_NORM_BERT,
  LM_NORM_STRIP,
  LM_NORM_STRIP_ACCENTS,
  LM_NORM_NFC,
  LM_NORM_NFD,
  LM_NORM_NFKC,
  LM_NORM_NFKD,
  LM_NORM_LOWERCASE,
  LM_NORM_NMT,
  LM_NORM_CHARSMAP,
  LM_NORM_REPLACE,
  LM_NORM_PREPEND,
  LM_NORM_BYTE_LEVEL,
  /* pre-tokenizers */
  LM_PRE_BERT,
  LM_PRE_BYTE_LEVEL,
  LM_PRE_DELIMITER,
  LM_PRE_METASPACE,
  LM_PRE_WHITESPACE,
  LM_PRE_WHITESPACE_SPLIT,
  LM_PRE_PUNCTUATION,
  LM_PRE_SPLIT,
  LM_PRE_DIGITS,
  LM_PRE_FIXED_LENGTH,
  /* post-processors */
  LM_POST_BYTE_LEVEL,
  LM_POST_BERT,
  LM_POST_ROBERTA,
  LM_POST_TEMPLATE,
  /* decoders */
  LM_DECODE_BPE,
  LM_DECODE_BYTE_LEVEL,
  LM_DECODE_WORDPIECE,
  LM_DECODE_METASPACE,
  LM_DECODE_BYTE_FALLBACK,
  LM_DECODE_FUSE,
  LM_DECODE_STRIP,
  LM_DECODE_REPLACE,
  LM_DECODE_CTC,
} lm_step_kind;

typedef struct lm_template { /* what a sequence or a pair becomes, one after the other */
  int sequence;              /* 0 or 1; -1: a token */
  int32_t id, type_id;
} lm_template;

typedef enum lm_prepend { LM_PREPEND_ALWAYS, LM_PREPEND_FIRST, LM_PREPEND_NEVER } lm_prepend;

typedef struct lm_step {
  lm_step_kind kind;
  lm_string text, word; /* content, prefix, replacement, …; CTC's delimiter */
  lm_pattern *pattern;  /* of Split and Replace; the regular expression or the space of the others */
  lm_behavior behavior;
  lm_prepend prepend;
  /* Two numbers and four switches, which mean what the reader of each kind says (read_json.c). */
  int32_t first, second;
  bool on[4];
  uint32_t *units; /* Precompiled: the double array, and in `text` what it points to */
  size_t nunits;
  lm_template *single, *pair; /* of post-processors */
  size_t nsingle, npair;
} lm_step;

void lm_step_free(lm_step *s);

lm_status lm_normalize(const lm_step *s, lm_pieces *p);
lm_status lm_pre_tokenize(const lm_step *s, lm_pieces *p);

/* normalize_forms.c: NFC, NFD, NFKC, NFKD. */
lm_status lm_normalize_form(const void *step, lm_rewrite *r);
/* normalize_charsmap.c: SentencePiece's rules. */
lm_status lm_normalize_charsmap(const void *step, lm_rewrite *r);
/* Characters for bytes. */
lm_status lm_bytes_as_characters(const void *step, lm_rewrite *r);
