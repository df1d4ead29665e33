/* Declares groups of a segment's steps, which a device computes as one kernel each. */
#pragma once

#include "op/group.h"
#include "plan/segment.h"

/* Elements that steps go over, as sizes of a contiguous tensor. */
typedef struct lm_group_space {
  int ndim;
  int64_t size[LM_MAX_DIMS], numel;
  int64_t columns; /* elements of a row, for steps that reduce rows or sum them; 0: any */
} lm_group_space;

typedef struct lm_group_form { /* a group as one kernel */
  lm_group group;
  int value[LM_GROUP_OPERANDS]; /* the operands' values */
  bool is_prepared;
} lm_group_form;

typedef struct lm_segment_group {
  int first, nsteps;
  bool is_casts; /* true for copies in another dtype that depend on none of each other */
  lm_group_space space;
  lm_group_form *form[2]; /* [0] stores what other steps need, [1] what the script sees, too; may be NULL */
} lm_segment_group;

void lm_group_form_free(lm_group_form *form); /* form may be NULL */

/* ---- group_members.c */
/* Sets the space of a step that a group may have; false for one that none may have. */
bool lm_group_space_of(const lm_segment *g, const lm_segment_step *s, lm_group_space *out);
/* Divides dims of `space` so that its sizes and those of `with` are products of neighbors; false if they cannot be. */
bool lm_group_space_join(lm_group_space *space, const lm_group_space *with);
/* Writes n steps as members; LM_E_MISSING if they do not make up a group. stores[b]: buffer b is needed after them. */
lm_status lm_group_write(const lm_segment *g, int n, const int *step, const lm_group_space *space, const bool *stores,
                         lm_group_form *out);

/* ---- group.c */
/* Finds groups, and moves their steps next to each other. */
lm_status lm_segment_group_steps(lm_segment *g);
/* Runs a group; false, and nothing was done, if its steps have to run one by one. */
bool lm_segment_group_run(lm_segment *g, lm_segment_group *group, lm_status *status);
/* Adds up the partial sums that groups have left, if one of n steps from `first` on reads or makes such a sum; n = 0:
 * in any case. */
lm_status lm_segment_add_parts(lm_segment *g, int first, int n);
