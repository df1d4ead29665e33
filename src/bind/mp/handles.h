/* Messages and handles of lm.mp as Lua values, for mp.c and handles.c. */
#pragma once

#include "bind/bind.h"
#include "mp/channel.h"

/* NULL if the value at i is none. */
lm_handle *lm_to_handle(lua_State *L, int i);

/* The text at i, the list of tensors at i + 1, of handles at i + 2 (nil: none). Forget it, after an error too. */
lm_status lm_message_content_read(lua_State *L, const lm_lua *s, int i, const char *fn, lm_message_content *out);
void lm_message_content_free(lm_message_content *c);

/* A slot for a message, on the stack, which owns what is put there. */
lm_mp_message **lm_mp_message_held(lua_State *L, lm_lua *s);
/* Text, list of tensors, list of handles: returns 3. */
int lm_mp_message_push(lua_State *L, lm_lua *s, lm_mp_message **held);
