/* What the files of this folder share. */
#pragma once

#include "bind/bind.h"
#include "text/tokenizer.h"

/* read_tokenizer.c: of the plan at 1, into *(lm_tokenizer **)arg, which is the caller's even where it fails. */
lm_status lm_tokenizer_read_plan(lua_State *L, lm_lua *s, void *arg);
