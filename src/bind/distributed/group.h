/* Declares Lua's handles of worlds and groups. A closing world first closes its groups, and a group its works and
 * reducers, whichever the collector frees first; a state that closes reports that its ranks leave. */
#pragma once

#include "bind/bind.h"
#include "distributed/group/world.h"

/* A group, work or reducer that must be closed before its world or group, whichever the collector frees first. First
 * member of a userdata; close(userdata) is called when the world or group is about to close. */
typedef struct lm_dependent {
  struct lm_dependent *next, **pprev; /* pprev: NULL outside a list */
  void (*close)(void *userdata);
} lm_dependent;
void lm_dependent_join(lm_dependent **list, lm_dependent *d);
void lm_dependent_leave(lm_dependent *d); /* a second call does nothing */
void lm_dependents_close(lm_dependent **list);

typedef struct lm_world_handle {
  lm_world *world; /* NULL once closed */
  lm_dependent *groups;
  lm_lua *s;
} lm_world_handle;
/* Closes the world whose handle is at i; returns false if the value is no world. */
bool lm_world_close_at(lua_State *L, int i);
/* Returns the open world at i, or raises. */
lm_world_handle *lm_need_world(lua_State *L, int i, const char *fn, const char *arg);

/* Returns the group of the handle at i; NULL if the value is no group or is closed. */
lm_group *lm_to_group(lua_State *L, int i);
/* Reads the group at i for a call on it; fails for other values, a closed group, and a world in which a rank failed. */
lm_status lm_read_group(lua_State *L, const lm_lua *s, int i, const char *fn, lm_group **out);
/* Adds d to the dependents of the group whose handle is at i. */
void lm_group_carries(lua_State *L, int i, lm_dependent *d);
