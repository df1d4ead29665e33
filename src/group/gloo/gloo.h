/* The plug-in's door. */
#ifndef LM_GROUP_GLOO_H
#define LM_GROUP_GLOO_H

#include "dist/group.h"

LM_API const lm_group_table *lm_group_plugin(void);

#endif
