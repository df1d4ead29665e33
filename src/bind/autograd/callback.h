/* Declares Lua functions that the core calls, for hooks.c and custom_function.c; implemented in callbacks.c. */
#pragma once

#include "bind/bind.h"

/* The core's reference to a Lua function, which its Lua state's tables hold by this address. First member of each kind
 * of callback. */
typedef struct lm_callback {
  lm_callbacks *owner;
  struct lm_callback *next;
} lm_callback;

/* Returns a callback of `bytes` bytes, zeroed except for the owner; NULL with a message. */
lm_callback *lm_callback_new(lm_callbacks *owner, size_t bytes);
/* Releases a callback from the core, on any thread; ctx: the callback. */
void lm_callback_release(void *ctx);
/* Set the function at i; kept alive until released, or while the table on top, popped by the second, holds it. */
void lm_callback_keep(lua_State *L, lm_callback *c, int i);
void lm_callback_keep_here(lua_State *L, lm_callback *c, int i);
/* Pushes the callback's function; pushes nothing and returns false if it was collected. */
bool lm_callback_push(lua_State *L, const void *c);
