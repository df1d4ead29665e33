/* Declares how the C interface (src/c_interface) calls Lua functions with tensors, without seeing bind's types. */
#pragma once

#include <lua.h>

#include "tensor/tensor.h"

/* The field of Lua's registry that has the function bind_host_call. */
#define LM_HOST_CALL "luminary.host_call"

/* A call: bind_host_call(lightuserdata of this, f, ...) calls f(..., in[0], ...). It raises nothing but Lua's own
 * "not enough memory". */
typedef struct lm_host_call {
  int n;
  lm_tensor *const *in; /* borrowed; once the call returns, Lua cannot reach them through the handles that it got */
  int capacity;
  lm_tensor **out; /* room for `capacity` results of f, which are tensors, the caller's to release; NULL: the results
                    * are bind_host_call's */
  int count;       /* the number of results of f */
  lm_status status;
  char message[1024];
} lm_host_call;

int lm_bind_host_call(lua_State *L);
/* Returns the status of the error at i if it is the last one that this thread raised; else LM_E_LUA (error.c). */
lm_status lm_raised_status(lua_State *L, int i);
