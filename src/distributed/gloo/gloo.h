/* The plug-in's door. */
#ifndef LM_GLOO_GLOO_H
#define LM_GLOO_GLOO_H

#include "distributed/group/group.h"

LM_API const lm_group_table *lm_group_plugin(void);

#endif
