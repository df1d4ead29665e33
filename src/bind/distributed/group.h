/* Worlds and groups as Lua holds them. A world closes its groups, and a group what stands on it (works, reducers), in
 * that order whatever the collector takes first; a state that closes says goodbye for its ranks. */
#pragma once

#include "bind/bind.h"
#include "distributed/group/world.h"

/* What stands on a world or a group and has to end before it, whichever of the handles the collector takes first.
 * Begins a userdata; close(userdata) is called when the other is about to close. */
typedef struct lm_dependent {
  struct lm_dependent *next, **pprev; /* in a list, if pprev */
  void (*close)(void *userdata);
} lm_dependent;
void lm_dependent_join(lm_dependent **list, lm_dependent *d);
void lm_dependent_leave(lm_dependent *d); /* twice is fine */
void lm_dependents_close(lm_dependent **list);

typedef struct lm_world_handle {
  lm_world *world; /* NULL once closed */
  lm_dependent *groups;
  lm_lua *s;
} lm_world_handle;
/* Closes the world whose handle is at i; false if it is none. */
bool lm_world_close_at(lua_State *L, int i);
/* Open; raises. */
lm_world_handle *lm_need_world(lua_State *L, int i, const char *fn);

/* The group of the handle at i; NULL if it is none or has been closed. */
lm_group *lm_to_group(lua_State *L, int i);
/* The same for calls on it: says what is wrong with the handle, and fails if a rank of its world has failed. */
lm_status lm_read_group(lua_State *L, const lm_lua *s, int i, const char *fn, lm_group **out);
/* d stands on the group whose handle is at i. */
void lm_group_carries(lua_State *L, int i, lm_dependent *d);
