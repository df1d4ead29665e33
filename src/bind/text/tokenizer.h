/* Declares the function that tokenizer.c calls in read_tokenizer.c. */
#pragma once

#include "bind/bind.h"
#include "text/tokenizer.h"

/* Makes a tokenizer of the plan at 1 in *(lm_tokenizer **)arg, which the caller frees even after an error. */
lm_status lm_tokenizer_read_plan(lua_State *L, lm_lua *s, void *arg);
