/* Parses a group's backend text ("gloo", "cpu:gloo,cuda:nccl") and opens its parts. Private to distributed/. */
#pragma once

#include "distributed/group/group_core.h"

typedef struct lm_backends {
  int n;
  struct {
    const lm_group_table *table;
    unsigned kinds; /* device kinds it serves, 1 << kind */
  } part[LM_PARTS];
  char text[LM_BACKEND_TEXT]; /* normalized text, with devices in the order of their kinds */
} lm_backends;

/* Parses `text` and loads the plug-ins it names. */
lm_status lm_backends_parse(const char *text, lm_backends *out);
/* Initializes the core's parts without opening them; core->g must be filled in except its table. */
void lm_parts_make(lm_group_core *core, const lm_backends *backends);
/* Splits the parts off the world's first group where possible, and opens them on the group's members. Collective over
 * the world. Closes everything on error. */
lm_status lm_parts_open(lm_group_core *core, int color);
/* Closes the parts in reverse order. */
void lm_parts_close(lm_group_core *core);
