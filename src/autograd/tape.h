/* Declares tapes: lists of the ops that a function calls, in order, from which plans (plan/) and writers of model files
 * are made.
 *
 * A tape records calls as the binding makes them: an op that consists of others is one step. It retains the tensors of
 * its steps, so that a tensor's address identifies a value until the tape is freed. */
#pragma once

#include "autograd/autograd.h"
#include "base/address_map.h"

enum { LM_TAPE_MOST = 100000 }; /* steps of a tape */

typedef struct lm_tape_step {
  lm_op_id op;
  bool in_place;    /* true for x:add_(…) and the like */
  bool dynamic;     /* true if results depend on the function's inputs or on random numbers */
  const char *line; /* interned line of the script, or NULL */
  void *args;       /* the op's argument struct; its tensors, and those of its list, are retained */
  lm_tensor *out[LM_MAX_OUTS];
} lm_tape_step;

typedef struct lm_tape {
  int ninputs, nsteps, nread, nrefusals;
  bool is_full; /* true if calls beyond LM_TAPE_MOST were left out */
  bool shares;  /* true if a step reads a tensor from outside that has the memory of an input */
  size_t step_capacity, read_capacity;
  lm_tensor **input; /* headers of the tape, over the memory of the function's inputs */
  lm_tape_step *step;
  lm_address_map maker;  /* number of the last step that returned a tensor, from 1; 0 for an input */
  lm_address_map memory; /* 1 for a storage that steps wrote in place, else 0 for an input's */
  lm_tensor **read;      /* tensors that depend on no input, whose values became Lua values; retained */
  char refusal[256];     /* sentence that says why the steps do not stand for the function; "" if they do */
} lm_tape;

/* Creates a tape for a function of these inputs. The function is called with the headers in `input`, so that an input
 * is neither taken for another nor for a tensor that the function has. */
lm_status lm_tape_new(int ninputs, lm_tensor *const *inputs, lm_tape **out);
void lm_tape_free(lm_tape *tape); /* tape may be NULL */
/* Sets the tape that this thread's calls of ops go to, or NULL; returns the one before. */
lm_tape *lm_tape_swap(lm_tape *tape);
LM_API lm_tape *lm_tape_current(void);
/* Adds a call that was made. Out of memory, and too many steps, are noted in `refusal`. */
void lm_tape_add(lm_tape *tape, lm_op_id op, const void *args, bool in_place, lm_tensor *const *out);
/* Notes that the script reads the values of t as Lua values; `how` names the method. */
LM_API void lm_tape_note_read(lm_tensor *t, const char *how);
/* Notes a call of a function, of that name, that is no op and changes or returns tensors. */
LM_API void lm_tape_note_call(const char *name);
/* Notes the first reason why the steps do not stand for the function. */
LM_API void lm_tape_refuse(lm_tape *tape, const char *format, ...) LM_PRINTF(2, 3);
/* Returns true if t's values depend on the inputs or on random numbers, or are written by a step. */
LM_API bool lm_tape_is_dynamic(const lm_tape *tape, const lm_tensor *t);
/* Returns true if a call with these arguments draws random numbers. */
LM_API bool lm_call_is_random(lm_op_id op, const void *args);
/* Calls f for each slot of a tensor in an argument struct: tensor arguments, then those of the list. */
typedef void (*lm_tensor_slot_fn)(void *ctx, lm_tensor **slot);
void lm_each_tensor_slot(lm_op_id op, void *args, lm_tensor_slot_fn f, void *ctx);
/* Returns a copy of an argument struct that owns its list's array and borrows its tensors; NULL if out of memory. */
void *lm_args_copy(lm_op_id op, const void *args);
void lm_args_free(lm_op_id op, void *args); /* args may be NULL */
