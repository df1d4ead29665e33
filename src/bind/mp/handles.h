/* Converts messages and handles of lm.mp between C and Lua, for worker_handle.c and handles.c. */
#pragma once

#include "bind/bind.h"
#include "mp/channel.h"

/* Returns the open handle at i; NULL for other values. */
lm_handle *lm_to_handle(lua_State *L, int i);

/* Reads text, list of tensors and list of handles (nil: none) at i to i + 2, borrowed. Free *out, after errors too. */
lm_status lm_message_content_read(lua_State *L, const lm_lua *s, int i, const char *fn, lm_message_content *out);
void lm_message_content_free(lm_message_content *c);

/* Pushes a userdata that owns the message put into it, and returns its slot. */
lm_mp_message **lm_mp_message_held(lua_State *L, lm_lua *s);
/* Pushes the message's text, list of tensors and list of handles, and frees the message; returns 3. */
int lm_mp_message_push(lua_State *L, lm_lua *s, lm_mp_message **held);
