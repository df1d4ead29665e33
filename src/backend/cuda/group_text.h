/* Declares the text of a group's kernel, and how it is launched. */
#pragma once

#include "backend/cuda/cuda.h"
#include "base/bytes.h"
#include "op/group.h"

typedef struct lm_group_launch {
  int64_t rows, columns;             /* sizes of the space */
  int pack;                          /* neighboring elements of a thread */
  int lanes, threads;                /* threads of a row, and of a block */
  int held;                          /* packs of a row that a thread holds; 0: it reads them again for each reduction */
  int64_t tiles;                     /* blocks along a row */
  int64_t blocks;                    /* blocks along the rows */
  int nsums;                         /* members that are sums of rows, of which each block stores a part */
  bool is_packed[LM_GROUP_OPERANDS]; /* true for operands that move by 16 bytes, to which they must be aligned */
} lm_group_launch;

/* Appends the text of the kernel, lm_group. Its parameter has a pointer or number of 8 bytes for each operand, the
 * numbers of each member whose kernel takes some, and the lm_blocks_drawn of each member that draws. */
lm_status lm_group_text(const lm_group *g, int processors, lm_group_launch *l, lm_bytes *out);
/* Returns the number of numbers that a member is passed with the launch. */
int lm_group_numbers(const lm_group_member *m);
