/* Makes and closes process groups, and lists their members. */
#include "bind/distributed/group.h"
#include "base/mem.h"

typedef struct group_handle {
  lm_dependent of_world;
  lm_group *group;        /* NULL once closed */
  lm_world_handle *world; /* NULL: solo. The handle's environment keeps the world alive */
  lm_dependent *dependents;
} group_handle;

static void close_group(void *object) {
  group_handle *handle = object;
  if (!handle->group) return;
  lm_dependent_leave(&handle->of_world);
  lm_dependents_close(&handle->dependents);
  lm_group *group = handle->group;
  handle->group = NULL;
  lm_group_close(group);
}
static const lm_object_type group_type = {
    "luminary.group", sizeof(group_handle), close_group, "a process group", NULL, NULL};

/* Closes a world or group; a second call does nothing. */
LM_FUNCTION(dist_close) {
  if (!lm_world_close_at(L, 1)) close_group(lm_need_object(L, 1, &group_type, "dist_close"));
  return 0;
}

lm_group *lm_to_group(lua_State *L, int i) {
  const group_handle *handle = lm_to_object(L, i, &group_type);
  return handle ? handle->group : NULL;
}

lm_status lm_read_group(lua_State *L, const lm_lua *s, int i, const char *fn, lm_group **out) {
  const group_handle *handle = lm_to_object(L, i, &group_type);
  if (!handle) return lm_fail_arg(L, s, i, fn, "group", "a process group");
  if (!handle->group) return lm_fail(LM_E_STATE, "%s: this process group was destroyed", fn);
  if (handle->world) {
    lm_status status = lm_world_check(handle->world->world);
    if (status != LM_OK) return lm_fail_in(status, fn);
  }
  *out = handle->group;
  return LM_OK;
}

void lm_group_carries(lua_State *L, int i, lm_dependent *d) {
  group_handle *handle = lm_to_object(L, i, &group_type);
  if (handle) lm_dependent_join(&handle->dependents, d);
}

static group_handle *new_group(lua_State *L) {
  group_handle *handle = lm_object_new(L, &group_type);
  handle->of_world.close = close_group;
  return handle;
}

/* Returns the name that get_backend returns for a backend; raises in the name of `who`, with the list of available
 * ones, if there is no such backend. */
LM_FUNCTION(dist_has, (any, backend), (text, who)) {
  char text[LM_GROUP_TEXT];
  lm_return_as(L, who, lm_group_backend_check(lm_need_text(L, backend, who, "backend"), text), 0);
  return lm_return_text(L, text);
}

LM_FUNCTION(dist_solo) {
  lm_need(L, lm_group_solo(&new_group(L)->group));
  return 1;
}

/* Opens the group that the list at 3 has for this rank. */
static lm_status open_group(lua_State *L, const lm_lua *s, group_handle *handle) {
  lm_status status;
  int64_t number;
  double timeout = 0;
  int n = (int)lua_objlen(L, 3);
  int *numbers = lm_malloc((size_t)n * sizeof *numbers);
  if (!numbers) return LM_E_OOM;
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 3, i + 1);
    TRY(lm_read_int(L, s, lua_gettop(L), "new_group", "the number of a group", &number));
    lua_pop(L, 1);
    numbers[i] = number < 0 || number > INT32_MAX ? -1 : (int)number;
  }
  TRY(LM_READ_ARGS(L, s, 4, "new_group", {"timeout", LM_ARG_F | LM_OR_NIL, &timeout}));
  TRY(lm_groups_new(handle->world->world, lua_tostring(L, 2), n, numbers, timeout, lm_to_group(L, 5), &handle->group));
done:
  lm_free(numbers);
  return status;
}

/* Returns this rank's group, or nil. numbers: for each rank of the world the number of its group, or 0; twin: nil, or a
 * group whose members make the new one, its twin, alone (lm_groups_new). */
LM_FUNCTION_AS(dist_group, "new_group", (world, world), (text, backend), (table, numbers), (any, timeout),
               (any, twin)) {
  lm_lua *s = LM_STATE(L);
  group_handle *handle = new_group(L); /* 6 */
  handle->world = world;
  lm_object_keeps(L, 1);
  lm_note_line(L, s);
  lm_need(L, lm_world_check(world->world));
  lm_need(L, open_group(L, s, handle));
  if (!handle->group) return 0;
  lm_dependent_join(&world->groups, &handle->of_world);
  lua_settop(L, 6);
  return 1;
}

/* dist_members(group) -> this process's rank in it, its size, the list of its members' ranks in the world */
LM_FUNCTION(dist_members) {
  const lm_group *g = lm_to_group(L, 1);
  if (!g) return lm_raise_text(L, "dist_members: expected a process group");
  lua_pushinteger(L, g->rank);
  lua_pushinteger(L, g->size);
  lua_createtable(L, g->size, 0);
  for (int i = 0; i < g->size; i++) {
    lua_pushinteger(L, g->ranks ? g->ranks[i] : i);
    lua_rawseti(L, -2, i + 1);
  }
  return 3;
}

/* nccl_version() -> 22809, or nil and the reason why NCCL is not available */
LM_FUNCTION(nccl_version) {
  const lm_group_table *table;
  if (lm_group_table_find("nccl", &table) == LM_OK && table->version) { return lm_return_int(L, table->version()); }
  lua_pushnil(L);
  lua_pushstring(L, lm_error());
  return 2;
}
