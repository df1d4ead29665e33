/* Declares the recording of ops that record_ops.c makes and plan.c reads. */
#pragma once

#include "bind/bind.h"

/* Returns the recording at i; raises for other values. */
const lm_tape *lm_need_tape(lua_State *L, int i, const char *fn);
