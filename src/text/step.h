/* Describes one normalizer, pre-tokenizer, post-processor or decoder of a tokenizer.json. */
#pragma once

#include "text/pattern.h"
#include "text/pieces.h"

/* Lists each kind of step, its section of tokenizer.json and its name there. */
#define LM_STEP_KINDS(X)                                         \
  X(LM_NORM_BERT, "normalizer", "BertNormalizer")                \
  X(LM_NORM_STRIP, "normalizer", "Strip")                        \
  X(LM_NORM_STRIP_ACCENTS, "normalizer", "StripAccents")         \
  X(LM_NORM_NFC, "normalizer", "NFC")                            \
  X(LM_NORM_NFD, "normalizer", "NFD")                            \
  X(LM_NORM_NFKC, "normalizer", "NFKC")                          \
  X(LM_NORM_NFKD, "normalizer", "NFKD")                          \
  X(LM_NORM_LOWERCASE, "normalizer", "Lowercase")                \
  X(LM_NORM_NMT, "normalizer", "Nmt")                            \
  X(LM_NORM_CHARSMAP, "normalizer", "Precompiled")               \
  X(LM_NORM_REPLACE, "normalizer", "Replace")                    \
  X(LM_NORM_PREPEND, "normalizer", "Prepend")                    \
  X(LM_NORM_BYTE_LEVEL, "normalizer", "ByteLevel")               \
  X(LM_PRE_BERT, "pre_tokenizer", "BertPreTokenizer")            \
  X(LM_PRE_BYTE_LEVEL, "pre_tokenizer", "ByteLevel")             \
  X(LM_PRE_DELIMITER, "pre_tokenizer", "CharDelimiterSplit")     \
  X(LM_PRE_METASPACE, "pre_tokenizer", "Metaspace")              \
  X(LM_PRE_WHITESPACE, "pre_tokenizer", "Whitespace")            \
  X(LM_PRE_WHITESPACE_SPLIT, "pre_tokenizer", "WhitespaceSplit") \
  X(LM_PRE_PUNCTUATION, "pre_tokenizer", "Punctuation")          \
  X(LM_PRE_SPLIT, "pre_tokenizer", "Split")                      \
  X(LM_PRE_DIGITS, "pre_tokenizer", "Digits")                    \
  X(LM_PRE_FIXED_LENGTH, "pre_tokenizer", "FixedLength")         \
  X(LM_POST_BYTE_LEVEL, "post_processor", "ByteLevel")           \
  X(LM_POST_BERT, "post_processor", "BertProcessing")            \
  X(LM_POST_ROBERTA, "post_processor", "RobertaProcessing")      \
  X(LM_POST_TEMPLATE, "post_processor", "TemplateProcessing")    \
  X(LM_DECODE_BPE, "decoder", "BPEDecoder")                      \
  X(LM_DECODE_BYTE_LEVEL, "decoder", "ByteLevel")                \
  X(LM_DECODE_WORDPIECE, "decoder", "WordPiece")                 \
  X(LM_DECODE_METASPACE, "decoder", "Metaspace")                 \
  X(LM_DECODE_BYTE_FALLBACK, "decoder", "ByteFallback")          \
  X(LM_DECODE_FUSE, "decoder", "Fuse")                           \
  X(LM_DECODE_STRIP, "decoder", "Strip")                         \
  X(LM_DECODE_REPLACE, "decoder", "Replace")                     \
  X(LM_DECODE_CTC, "decoder", "CTC")

typedef enum lm_step_kind {
#define X(kind, ...) kind,
  LM_STEP_KINDS(X)
#undef X
      LM_STEP_NONE /* no operation; also the number of kinds */
} lm_step_kind;

typedef struct lm_template { /* one element of a template for a text or a pair */
  int sequence;              /* 0: the text, 1: the pair, -1: token `id` */
  int32_t id, type_id;
} lm_template;

typedef enum lm_prepend { LM_PREPEND_ALWAYS, LM_PREPEND_FIRST, LM_PREPEND_NEVER } lm_prepend;

typedef struct lm_step {
  lm_step_kind kind;
  lm_string text, word; /* content, prefix, replacement, …; CTC's delimiter */
  lm_pattern *pattern;  /* pattern of Split, Replace and the steps that cut by a fixed one */
  lm_behavior behavior;
  lm_prepend prepend;
  /* Two numbers and four switches; lua/luminary/text/tokenizer_json.lua says what they mean for each kind. */
  int32_t first, second;
  bool on[4];
  uint32_t *units; /* Precompiled's double array, whose values are byte positions in `text` */
  size_t nunits;
  lm_template *single, *pair; /* for post-processors */
  size_t nsingle, npair;
} lm_step;

/* Reads a precompiled_charsmap from n bytes of base64 (normalize_charsmap.c); empty, it makes the step a no-op. */
LM_API lm_status lm_step_set_charsmap(lm_step *s, const char *base64, size_t n);

lm_status lm_normalize(const lm_step *s, lm_pieces *p);
lm_status lm_pre_tokenize(const lm_step *s, lm_pieces *p);

/* Applies NFC, NFD, NFKC or NFKD to a piece (normalize_forms.c). */
lm_status lm_normalize_form(const void *step, lm_rewrite *r);
/* Applies SentencePiece's precompiled rules to a piece (normalize_charsmap.c). */
lm_status lm_normalize_charsmap(const void *step, lm_rewrite *r);
/* Replaces each byte of a piece by its GPT-2 character (lm_char_of_byte). */
lm_status lm_bytes_as_characters(const void *step, lm_rewrite *r);
