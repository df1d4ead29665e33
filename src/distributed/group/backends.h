/* The backends of a group: its text ("gloo", "cpu:gloo,cuda:nccl") and the parts it makes. Private to distributed/. */
#pragma once

#include "distributed/group/group_core.h"
#include "distributed/store/protocol.h"

typedef struct lm_backends {
  int n;
  struct {
    const lm_group_table *table;
    unsigned kinds; /* devices it serves, 1 << kind */
  } part[LM_PARTS];
  char text[LM_BACKEND_TEXT]; /* the same however it was written */
} lm_backends;

/* The GPUs that this rank reports to the others: none without the plug-in for nccl. Loads nothing where there is no
 * driver. */
void lm_world_gpu_ids(lm_gpu_ids *out);
/* Loads the plug-ins. */
lm_status lm_backends_parse(const char *text, lm_backends *out);
/* The core's parts, not yet open; its g must be filled in except the table. */
void lm_parts_make(lm_group_core *core, const lm_backends *backends);
/* Collective, on all ranks of the world: cuts the parts out of the world's first group where they can be, and opens
 * them on the group's members. Nothing is left after an error. */
lm_status lm_parts_open(lm_group_core *core);
/* The last ones first. */
void lm_parts_close(lm_group_core *core);
