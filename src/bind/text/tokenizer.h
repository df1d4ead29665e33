/* Declares the reader of a tokenizer's plan for tokenizer.c. */
#pragma once

#include "bind/bind.h"
#include "text/tokenizer.h"

/* Reads the plan at 1 into *(lm_tokenizer **)arg, which the caller frees even if it fails (read_tokenizer.c). */
lm_status lm_tokenizer_read_plan(lua_State *L, lm_lua *s, void *arg);
