/* Declares the passes over a segment's steps, in their order, and what they ask of steps. They keep the order of parts
 * (lm_segment_part_end). */
#pragma once

#include "op_entries.h"
#include "plan/segment.h"

/* ---- on the CPU */
/* Joins convolutions and linear layers with those that follow them, which rounds otherwise: in plans only. like: a
 * segment whose folded weights are taken where they were made of the same tensors, or NULL. */
lm_status lm_segment_join_layers(lm_segment *g, const lm_segment *like);

/* ---- on every device, unless the segment is exact */
/* Marks the steps of linear layers with cross entropy, which other passes leave as they are then. */
lm_status lm_segment_mark_chunks(lm_segment *g);
/* Notes those that are computed by chunks of rows, once other passes have moved steps. */
lm_status lm_segment_add_chunks(lm_segment *g);
/* Returns the chunks that begin with step i, if those of the first n steps can be computed so; else NULL. */
const lm_score_chunks *lm_segment_chunks_at(lm_segment *g, int i, int n);
/* Returns true if scores will be whole since somebody holds them. */
bool lm_segment_holds_scores(const lm_segment *g);
/* Computes them, once the steps before them have run. */
lm_status lm_segment_compute_chunks(lm_segment *g, const lm_score_chunks *c);

/* ---- on the CPU: they keep the bits */
/* Makes elementwise steps that write in place to memory of the segment steps with results of their own. */
lm_status lm_segment_out_of_place(lm_segment *g);
/* Moves elementwise steps to those whose values they read. */
void lm_segment_order(lm_segment *g);
/* Finds rows: elementwise steps, and a product before them, that are computed together. */
void lm_segment_find_rows(lm_segment *g);
/* Finds steps whose results can take the memory of a value that they are the last to read. */
void lm_segment_overwrite(lm_segment *g);

/* ---- on a GPU: they may change roundings, so that a segment that is exact has none of them */
/* Makes ops of halves write float32 where only a conversion reads their results. */
void lm_segment_widen_results(lm_segment *g);
/* Makes gelu_tanh and its gradient a part of the product whose result they read. */
lm_status lm_segment_join_gelu(lm_segment *g);
/* Adds an embedding's gradient to another gradient row by row. */
lm_status lm_segment_add_embeddings(lm_segment *g);
/* Makes sums over the rows of a gradient a result of the product that reads it. */
lm_status lm_segment_join_sums(lm_segment *g);

static inline bool lm_step_is_elementwise(const lm_segment_step *s) {
  return s->op < 0 || (lm_ops[s->op].kind == LM_POINTWISE && s->form != LM_RUN_IN_PLACE);
}

static inline bool lm_step_is_view(const lm_segment_step *s) { return s->op >= 0 && lm_ops[s->op].kind == LM_VIEW; }

/* Returns true for a product of two matrices, which is not computed by chunks. */
static inline bool lm_step_is_product(const lm_segment_step *s) {
  return s->chunks == 0 && (s->op == LM_OP_linear || s->op == LM_OP_mm || s->op == LM_OP_addmm);
}

/* Returns true if a step writes to its k-th tensor. */
static inline bool lm_step_writes(const lm_segment_step *s, int k) {
  if (s->op < 0) return false;
  const lm_op *op = &lm_ops[s->op];
  const bool enabled = op->writes_when < 0 || *(const bool *)((const char *)s->args + op->writes_when);
  return (k == 0 && (s->form == LM_RUN_IN_PLACE || op->kind == LM_WRITE)) ||
         (k < op->ntensor && enabled && op->writes >> k & 1);
}

/* Returns the place of a value that is no number. */
static inline const lm_place *lm_place_of(const lm_segment *g, int value) { return &g->value[value].place; }

/* Returns the buffer of a step's value; -1 for NULL and numbers. */
static inline int lm_buffer_of(const lm_segment *g, int value) { return value < 0 ? -1 : g->value[value].buffer; }

/* Returns true if the script may see a value of the buffer. */
static inline bool lm_buffer_has_instance(const lm_segment *g, int buffer) {
  for (int i = 0; i < g->ninstances; i++)
    if (g->value[g->instance[i].value].buffer == buffer) return true;
  return false;
}

/* Returns true if the script, an event or a gradient has a value in the buffer. */
static inline bool lm_buffer_is_visible(const lm_segment *g, int buffer) {
  for (int i = 0; i < g->nleaves; i++)
    if (g->leaf[i].after >= 0 && g->value[g->leaf[i].after].buffer == buffer) return true;
  return lm_buffer_has_instance(g, buffer);
}

static inline bool lm_step_reads(const lm_segment *g, const lm_segment_step *s, int buffer) {
  for (int k = 0; k < s->nin; k++)
    if (lm_buffer_of(g, s->in[k]) == buffer) return true;
  return false;
}

/* Returns true if a step makes the buffer, or writes to it. */
static inline bool lm_step_changes(const lm_segment *g, const lm_segment_step *s, int buffer) {
  for (int k = 0; k < s->nout; k++)
    if (lm_buffer_of(g, s->out[k]) == buffer) return true;
  for (int k = 0; k < s->nin; k++)
    if (lm_step_writes(s, k) && lm_buffer_of(g, s->in[k]) == buffer) return true;
  return false;
}

/* Returns the last step before i that changes the buffer; -1: none. */
static inline int lm_segment_maker(const lm_segment *g, int i, int buffer) {
  while (--i >= 0 && (lm_step_is_view(&g->step[i]) || !lm_step_changes(g, &g->step[i], buffer))) continue;
  return i;
}

/* Returns the only step after i that reads or writes the buffer, views aside; -1: none, or several. */
static inline int lm_segment_reader(const lm_segment *g, int i, int buffer) {
  int found = -1;
  for (int k = i + 1; k < g->nsteps; k++) {
    if (lm_step_is_view(&g->step[k]) || !lm_step_reads(g, &g->step[k], buffer)) continue;
    if (found >= 0) return -1;
    found = k;
  }
  return found;
}
