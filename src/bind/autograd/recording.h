/* Declares the recording of ops that record_ops.c makes and plan.c reads. */
#pragma once

#include "bind/bind.h"
#include "plan/plan.h"

/* Returns the recording at i; raises for other values. */
lm_op_recording *lm_need_recorded(lua_State *L, int i, const char *fn, const char *arg);
