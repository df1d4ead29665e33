/* Lua functions that the core calls, for hooks.c and custom_function.c; callbacks.c has them. */
#pragma once

#include "bind/bind.h"

/* What the core holds; the function lives in tables of its Lua state by this address. First in what a kind of callback
 * adds to it. */
typedef struct lm_callback {
  lm_callbacks *owner;
  struct lm_callback *next;
} lm_callback;

/* Zeros beyond the callback; NULL with a message. */
lm_callback *lm_callback_new(lm_callbacks *owner, size_t bytes);
/* For the core, on any thread: `ctx` is the callback. */
void lm_callback_release(void *ctx);
/* The function at i is the callback's, and kept alive: until it goes, or as long as the table on top has it. */
void lm_callback_keep(lua_State *L, lm_callback *c, int i);
void lm_callback_keep_here(lua_State *L, lm_callback *c, int i);
/* The function on the stack; false, and nothing, if it is gone. */
bool lm_callback_push(lua_State *L, const void *c);
