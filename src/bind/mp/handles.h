/* Declares messages and handles of lm.mp as Lua values, for worker_handle.c and handles.c. */
#pragma once

#include "bind/bind.h"
#include "mp/channel.h"

/* Returns the open handle at i; NULL if there is none. */
lm_handle *lm_to_handle(lua_State *L, int i);

/* Reads the text at i, the list of tensors at i + 1 and of handles at i + 2 (nil: none). Always free *out. */
lm_status lm_message_content_read(lua_State *L, const lm_lua *s, int i, const char *fn, lm_message_content *out);
void lm_message_content_free(lm_message_content *c);

/* Pushes a slot that owns the message stored in it. */
lm_mp_message **lm_mp_message_held(lua_State *L, lm_lua *s);
/* Pushes text, list of tensors and list of handles of the message, and empties the slot; returns 3. */
int lm_mp_message_push(lua_State *L, lm_lua *s, lm_mp_message **held);
