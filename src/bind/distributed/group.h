/* Declares Lua handles of worlds and groups. A world closes its groups, and a group its dependents (works, reducers),
 * in that order whatever the collector frees first. A closing Lua state reports that its ranks leave. */
#pragma once

#include "bind/bind.h"
#include "distributed/group/world.h"

/* A dependent of a world or group, which must end before that, whichever handle the collector frees first. First member
 * of a userdata; close(userdata) is called when the world or group is about to close. */
typedef struct lm_dependent {
  struct lm_dependent *next, **pprev; /* in a list, if pprev is set */
  void (*close)(void *userdata);
} lm_dependent;
void lm_dependent_join(lm_dependent **list, lm_dependent *d);
void lm_dependent_leave(lm_dependent *d); /* may be called twice */
void lm_dependents_close(lm_dependent **list);

typedef struct lm_world_handle {
  lm_world *world; /* NULL once closed */
  lm_dependent *groups;
  lm_lua *s;
} lm_world_handle;
/* Closes the world whose handle is at i; false if there is none. */
bool lm_world_close_at(lua_State *L, int i);
/* Returns the open world's handle at i; raises. */
lm_world_handle *lm_need_world(lua_State *L, int i, const char *fn);

/* Returns the group of the handle at i; NULL if it is none or has been closed. */
lm_group *lm_to_group(lua_State *L, int i);
/* Does the same for a collective call: fails for a bad handle, or if a rank of its world has failed. */
lm_status lm_read_group(lua_State *L, const lm_lua *s, int i, const char *fn, lm_group **out);
/* Makes d a dependent of the group whose handle is at i. */
void lm_group_carries(lua_State *L, int i, lm_dependent *d);
