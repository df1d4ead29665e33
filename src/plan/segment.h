/* Declares segments: runs of a script's calls between two points at which it needs values. A segment is recorded once:
 * as events, which are what the script calls, and as steps, which are the ops that ran, those of backward too. Later
 * calls that are the same events run the steps, once the values are needed.
 *
 * A value is a place in a buffer, which is one storage's memory. Buffers come from outside (an event's argument, a
 * leaf's .grad), are made by steps, or are constants: of a plan, memory that each call reads as it is. An instance is a
 * header that the script sees: an argument from outside, or a result. */
#pragma once

#include "base/address_map.h"
#include "base/bytes.h"
#include "op/elementwise_chain.h"
#include "op/op_recorder.h"
#include "plan/follow.h"
#include "tensor/generator.h"

typedef struct lm_place {
  lm_dtype dtype;
  uint8_t ndim;
  lm_device device;
  int64_t at; /* bytes from the buffer's begin */
  int64_t size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
} lm_place;

typedef struct lm_segment_value {
  lm_tensor *number; /* a Lua number, of the latest call, retained; else NULL */
  bool is_read;      /* true for a number that decides which steps there are, or whether one fails */
  int buffer, next;  /* next: of the buffer's values; -1: none */
  lm_place place;
  lm_tensor *t; /* while the steps run; of a constant's value, kept */
} lm_segment_value;

typedef enum lm_buffer_origin { LM_FROM_EVENT, LM_FROM_GRAD, LM_FROM_STEP, LM_UNWRITTEN, LM_CONSTANT } lm_buffer_origin;

typedef struct lm_segment_buffer {
  lm_buffer_origin origin;
  int first;    /* its last added value */
  int made;     /* index of the first step that makes it; -1: none */
  int last_use; /* index of the last step that reads it */
  bool is_kept; /* true if its values are needed after the steps */
  size_t bytes;
  lm_device device;
  lm_storage *storage, *pending; /* while a call runs, retained; pending: of results without values */
  int64_t shift;                 /* bytes from what was recorded to the call, as to the next batch */
  uint32_t version;              /* version of memory from outside at a pause, of a constant when it was recorded */
  bool was_made;                 /* true if a step of this call has made it */
  bool is_written;               /* true if a step writes to it in place */
  bool is_result;                /* true if it becomes a leaf's .grad, or is a result of a plan */
  bool depends;                  /* true if calls of a plan may differ in it */
  bool is_packed;                /* true for a constant of which kernels keep what they pack */
  bool is_taken;                 /* true if a step's result takes its memory */
  bool has_parts;                /* true while it is to become sums of partial sums */
  uint32_t writes_replaced;      /* number of steps that wrote to it in place and now make it, for its version */
} lm_segment_buffer;

typedef struct lm_segment_instance {
  int value;
  bool is_outside;  /* true for an argument from outside */
  bool is_leaf;     /* true if it requires grad */
  bool any_history; /* true for an argument that only ops without a gradient read: it may have a history or none */
  bool is_result;   /* true for a plan's */
  bool is_kept;     /* while a call runs: somebody holds it, so that it gets its values */
  bool has_history; /* while a call runs: true if it has a history by now */
  bool is_freed;    /* true if it has a history, which backward has freed: */
  /* Names of the op that made its history, of that at a pause, of that whose saved tensors backward needs first. */
  const char *maker, *paused, *freed;
  bool without_grad; /* true for a view that was made within no_grad */
  int base;          /* instance that it is a view of; -1: none */
  lm_tensor *t;      /* while a call runs; retained unless it is recorded */
} lm_segment_instance;

typedef struct lm_segment_step {
  lm_op_id op; /* -1: an elementwise kernel of a gradient */
  int kernel;
  lm_run_form form;
  bool widens;     /* lm_halves_widen while it ran */
  bool is_chained; /* true for a step of a row, whose steps are computed together */
  bool joins;      /* true if that before it is in its row */
  bool is_removed; /* true until lm_segment_drop_removed */
  int overwrites;  /* value whose memory the result takes, unless somebody holds it; -1: none */
  int group;       /* number of its group from 1; 0: none */
  uint8_t
      chunks; /* LM_BY_CHUNKS: of a layer that is computed by chunks; LM_BEFORE_CHUNKS, LM_AFTER_CHUNKS: see there */
  int leaf;   /* number from 1 of the leaf whose memory for gradients its result may take; 0: none */
  int nin, nout;
  void *args; /* the op's struct, or an array of numbers */
  int *in;    /* indices of values; -1: NULL */
  int out[LM_MAX_OUTS];
} lm_segment_step;

enum { LM_BEFORE_CHUNKS = 1, LM_BY_CHUNKS, LM_AFTER_CHUNKS };

typedef struct lm_score_chunks { /* steps of a linear layer with cross entropy, whose gradients are dx, dw and db */
  int scores, forward, backward, dx, dw, db; /* db: -1: none */
  int end;                                   /* step after the last of them; those between run before or after all */
} lm_score_chunks;

typedef struct lm_segment_leaf { /* a leaf whose .grad a backward pass sets or adds to; values, -1: nil */
  int instance, before, after;
  int at;       /* step after which the gradient, which is `after`, is delivered */
  bool is_last; /* true if nothing reads a delivered gradient later */
} lm_segment_leaf;

typedef struct lm_segment_event {
  bool is_backward, in_place, retains; /* retains: of backward, retain_graph */
  bool is_pause;                       /* true for no call: values are needed, before backward has used the graph */
  bool may_fail;                       /* true if values may make it fail, so that its steps run at once */
  bool is_real;                        /* true if floating tensors make an integer do as another number would */
  bool delivers; /* true for backward with hooks of leaves, which get the gradients; it ends the segment and runs */
  int nsteps;    /* number of steps before it */
  lm_op_id op;
  bool no_grad;
  lm_autocast cast;
  int scope; /* relation of autocast's scope to that of the event before */
  lm_dtype default_dtype;
  lm_device default_device;
  void *args;
  void *step_args; /* the struct of the elementwise step that alone reads its numbers, or NULL */
  int nin, nout;
  int *in;               /* instances; -1: NULL; below: ~index of a value that is a number. Of backward: roots, grads */
  int out[LM_MAX_OUTS];  /* instances; -1: NULL */
  uint8_t histories;     /* bit k: the k-th result has a history then */
  int same[LM_MAX_OUTS]; /* index in `in` of the argument that the result is; -1: another header */
  int first_leaf, nleaves;
} lm_segment_event;

typedef struct lm_segment_fold { /* a batch norm that was folded into a weight; the tensors are constants */
  lm_tensor *from[6];            /* weight, bias, running_mean, running_var, weight and bias of the norm, or NULL */
  double eps;
  lm_tensor *folded[2]; /* weight, bias */
} lm_segment_fold;

typedef struct lm_segment_undo { /* a copy of a value from outside, before a step wrote to it */
  int value;
  uint32_t version; /* version of its memory then */
  lm_tensor *before;
} lm_segment_undo;

typedef struct lm_segment_sum { /* partial sums that are to be added up before the value is read */
  int value;
  lm_tensor *parts;
} lm_segment_sum;

typedef struct lm_segment_part { /* steps that ran at once */
  int begin;
  lm_draw drawn[2]; /* random states of the CPU and the segment's GPU before them */
} lm_segment_part;

typedef struct lm_segment {
  struct lm_segment *next; /* next of a list, in which the last used are first */
  int nvalues, nbuffers, ninstances, nsteps, nevents, nleaves;
  size_t value_capacity, buffer_capacity, instance_capacity, step_capacity, event_capacity, leaf_capacity;
  lm_segment_value *value;
  lm_segment_buffer *buffer;
  lm_segment_instance *instance;
  lm_segment_step *step;
  lm_segment_event *event;
  lm_segment_leaf *leaf;
  lm_segment_undo *undo; /* while a call runs and has paused */
  int nundo, done;       /* done: number of steps that have run */
  size_t undo_capacity;
  lm_segment_sum *sum; /* while a call runs */
  int nsums;
  size_t sum_capacity;
  lm_segment_part *part; /* while a call runs: what has run so far */
  int nparts;
  size_t part_capacity;
  struct lm_pass *pass; /* while a call delivers gradients */
  int delivered;        /* index of the leaf whose gradient is delivered next */
  lm_segment_fold *fold;
  int nfolds;
  size_t fold_capacity;
  uint64_t *reached; /* for each instance: bits of the leaves that its history leads to */
  int words;         /* numbers for an instance in `reached` */
  lm_chain *chain;
  struct lm_segment_group *group; /* plan/group.h */
  int ngroups;
  size_t group_capacity;
  lm_score_chunks *chunks;
  int nchunks;
  size_t chunks_capacity;
  lm_bytes recorded;      /* steps as recorded, if they are to be explained */
  lm_device device;       /* GPU of its tensors; the CPU if none is on a GPU */
  lm_device graph_device; /* device of tensors that require grad; LM_NO_DEVICE: there are none */
  bool is_exact;          /* true if passes keep the bits of eager ops on every device */
  bool is_fixed;          /* true if no place may shift, since one counts from the memory's begin */
  bool runs_as_is;        /* true if its calls run one by one */
  bool holds_scores;      /* true if scores were held that garbage did not hold */
  int patience, waits;    /* calls that run as they are before it is recorded again; how many the next time */
  const char *line;       /* line of the script at its last event; interned, or NULL */
  char reason[200];       /* why it runs as it is */
} lm_segment;

void lm_segment_free(lm_segment *g); /* g may be NULL */
/* Drops what a call holds. */
void lm_segment_reset(lm_segment *g);
/* Drops the headers and the memory that a call has of a buffer. */
void lm_segment_drop_buffer(lm_segment *g, lm_segment_buffer *b);
/* Notes the first reason why the segment runs as it is. */
void lm_segment_refuse(lm_segment *g, const char *format, ...) LM_PRINTF(2, 3);

/* ---- segment.c */
/* Makes a buffer's memory, if it has none: that of a result, or that no step writes before it is read. */
lm_status lm_segment_need_storage(lm_segment_buffer *b, bool is_result);
/* Returns in *out the header of a value, borrowed; makes its memory as lm_segment_need_storage does. */
lm_status lm_segment_header(lm_segment *g, int v, bool is_result, lm_tensor **out);
/* shift: bytes from what was recorded to a call. lm_place_fits: the strides of dims of one element may differ. */
bool lm_place_fits(const lm_place *p, int64_t shift, const lm_tensor *t);
bool lm_place_is(const lm_place *p, int64_t shift, const lm_tensor *t);
bool lm_place_equals(const lm_place *a, const lm_place *b);
bool lm_place_is_contiguous(const lm_place *p);
int64_t lm_place_numel(const lm_place *p);
/* Returns in *out the value of a buffer at t's place, added if it is new. */
lm_status lm_segment_value_at(lm_segment *g, int buffer, const lm_tensor *t, int *out);
/* Returns in *out the value of a buffer at a place, added if it is new. */
lm_status lm_segment_place(lm_segment *g, int buffer, const lm_place *place, int *out);
/* Returns in *out a contiguous value in another shape. */
lm_status lm_segment_reshape(lm_segment *g, int v, int ndim, const int64_t *size, int *out);
/* Makes t, retained, the header of a constant's value, unless it has one. */
void lm_segment_set_constant(lm_segment *g, int v, lm_tensor *t);
lm_status lm_segment_add_number(lm_segment *g, lm_tensor *number, int *out);
lm_status lm_segment_new_buffer(lm_segment *g, lm_buffer_origin origin, const lm_storage *s, int *out);
/* Returns the index of the first argument, tensors aside, from `from` on that differs in two structs of an op, or -1.
 */
int lm_args_difference(lm_op_id op, const void *a, const void *b, int from);
bool lm_numbers_equal(const lm_tensor *a, const lm_tensor *b);

/* Makes step i another op before the segment has run. args: copied, tensors aside; in, out: values. */
lm_status lm_segment_replace_step(lm_segment *g, int i, lm_op_id op, const void *args, int nin, const int *in, int nout,
                                  const int *out);
/* Removes a step before the segment has run. */
void lm_segment_remove_step(lm_segment *g, int step);
/* Drops the steps that are marked as removed, before the segment has run. */
void lm_segment_drop_removed(lm_segment *g);
/* Returns the value of the number that an event's input is, which is no instance. */
lm_segment_value *lm_segment_number(const lm_segment *g, int in);
/* Returns true if backward is among the first n events. */
bool lm_segment_has_backward(const lm_segment *g, int n);
/* Returns the number of instances that the first n events have. */
int lm_segment_count_instances(const lm_segment *g, int n);
/* Returns the number of steps up to the end of an event. */
int lm_segment_steps_after(const lm_segment *g, int event);
/* Returns the end of the part that begins with a step: calls may pause or fail between parts. */
int lm_segment_part_end(const lm_segment *g, int begin);

/* ---- step_values.c */
/* Returns true for an op whose result's shape depends on values. */
bool lm_step_shape_depends(lm_op_id id, const void *args);
/* Returns true if values may make a step fail: indices, labels, matrices, parameters of distributions, divisors. */
bool lm_step_may_fail(const lm_segment *g, const lm_segment_step *s);
/* Returns true if values may make a step of an event fail, as far as they are known by now. */
bool lm_event_can_fail(const lm_segment *g, int event);

/* ---- explain.c */
/* Appends a line for each step. is_planned: leaves out views, and marks steps that are computed with that before. */
void lm_segment_write(const lm_segment *g, bool is_planned, lm_bytes *out);

/* ---- segment_run.c */
/* Sets each buffer's last use. */
void lm_segment_set_last_uses(lm_segment *g);
/* Finds last uses and rows. */
lm_status lm_segment_plan(lm_segment *g);
/* Runs the steps, for which buffers from outside have storages. Then results that somebody holds have values, and
 * leaves have their gradients. */
lm_status lm_segment_run(lm_segment *g);
/* Read and set the random states of the CPU and the segment's GPU; drawn[2]. */
void lm_segment_get_drawn(const lm_segment *g, lm_draw *drawn);
void lm_segment_set_drawn(const lm_segment *g, const lm_draw *drawn);
/* Runs the first n steps, after which results that somebody holds have values; lm_segment_undo_steps may follow. */
lm_status lm_segment_run_to(lm_segment *g, int n);
/* Undoes what steps wrote to memory from outside. LM_E_STATE if others have written to it since. */
lm_status lm_segment_undo_steps(lm_segment *g);
