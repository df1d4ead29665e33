/* Declares references to Lua functions that the core calls, for hooks.c and custom_function.c (callbacks.c). */
#pragma once

#include "bind/bind.h"

/* The core's reference to a Lua function, which tables of its Lua state hold by this address. It is the first member of
 * each kind of callback. */
typedef struct lm_callback {
  lm_callbacks *owner;
  struct lm_callback *next;
} lm_callback;

/* Returns a callback of `bytes`, zeros beyond its first member; NULL with a message if it fails. */
lm_callback *lm_callback_new(lm_callbacks *owner, size_t bytes);
/* Releases the callback `ctx`. The core calls it, on any thread. */
void lm_callback_release(void *ctx);
/* Keeps the function at i alive until c is released; _here: while the table on top, which it pops, holds it. */
void lm_callback_keep(lua_State *L, lm_callback *c, int i);
void lm_callback_keep_here(lua_State *L, lm_callback *c, int i);
/* Pushes the callback's function; returns false, and pushes nothing, if it was collected. */
bool lm_callback_push(lua_State *L, const void *c);
