/* Shares between the files of this folder: handles of lm.mp as userdata, and Lua states on threads of their own. */
#pragma once

#include "bind/bind.h"
#include "mp/channel.h"

/* Returns the open handle at i; NULL for other values. */
lm_handle *lm_to_handle(lua_State *L, int i);
/* Pushes a userdata that owns the handle put into it, and returns its slot. Before, collects garbage, which may hold
 * descriptors, if fewer than some are free. */
lm_handle **lm_handle_slot(lua_State *L);

/* ---- lua_thread.c: a Lua state on its own thread */
typedef struct lm_lua_thread lm_lua_thread;
/* Runs a chunk of Lua on a new thread, with a connection in the global LM_CHANNEL, which the thread frees, as does a
 * failed call. The caller releases *out by lm_lua_thread_forget. */
lm_status lm_lua_thread_start(const char *chunk, int nice, lm_handle *connection, lm_lua_thread **out);
/* Raises an error in the thread at about its next line; compiled loops do not notice. */
void lm_lua_thread_interrupt(lm_lua_thread *t);
bool lm_lua_thread_wait(lm_lua_thread *t, double seconds); /* returns true if it has ended */
const char *lm_lua_thread_error(const lm_lua_thread *t);   /* the chunk's error, or ""; valid once it has ended */
void lm_lua_thread_forget(lm_lua_thread *t);               /* releases t; the thread runs on if it has not ended */
