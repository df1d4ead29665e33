/* Computes attention to keys and values in pages. For C and CUDA. */
#pragma once

#include <stdint.h>

#include "bad_values.h"
#include "c_linkage.h"

/* query: [tokens, heads, width] and y: [tokens, heads, value_width] of float; keys and values: [rows, key_heads, …] of
 * dtype, or rows of blocks of `kind`; pages: [sequences, entries], sequence and position: [tokens], all from 1. Reports
 * what is out of range as bad_kind. scale, window and cap are those of the op. */
typedef struct lm_paged_attention_job {
  int dtype, kind, bad_kind;
  int64_t tokens, heads, key_heads, width, value_width, sequences, entries, page_size, count, window;
  int64_t key_bytes, value_bytes; /* bytes of a head's row */
  float scale, cap;
  const float *query;
  const char *keys, *values;
  const int64_t *pages, *sequence, *position;
  float *y;
} lm_paged_attention_job;

/* Enqueues on the stream, returns a cudaError_t. `count` is the number of pages. */
LM_C int lm_k_paged_attention(const lm_paged_attention_job *job, lm_bad bad, void *stream);
