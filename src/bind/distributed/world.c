/* Worlds and groups as Lua holds them. A world closes its groups, and a group what stands on it (works, reducers),
 * in that order whatever the collector takes first; a state that closes says goodbye for its ranks. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bind/bind.h"
#include "distributed/group/world.h"
#include "distributed/store/pmix.h"
#include "distributed/store/words.h"

typedef struct world_box {
  lm_world *world; /* NULL once closed */
  lm_user *groups;
  lm_lua *s;
} world_box;

typedef struct group_box {
  lm_user user; /* of its world */
  lm_group *group;
  world_box *world; /* NULL: solo. The handle's environment keeps it alive */
  lm_user *users;
} group_box;

static int gc_world(lua_State *L), gc_group(lua_State *L);
static const lm_object_type world_type = {"luminary.world", sizeof(world_box), gc_world},
                            group_type = {"luminary.group", sizeof(group_box), gc_group};

/* ---- lists of what has to end first */

static void join(lm_user **list, lm_user *user) {
  user->next = *list;
  user->pprev = list;
  if (user->next) user->next->pprev = &user->next;
  *list = user;
}

void lm_user_leave(lm_user *user) {
  if (!user->pprev) return;
  *user->pprev = user->next;
  if (user->next) user->next->pprev = user->pprev;
  user->pprev = NULL;
}

static void close_users(lm_user **list) {
  while (*list) {
    lm_user *user = *list;
    lm_user_leave(user);
    user->close(user);
  }
}

/* ---- handles */

static void close_group(lm_user *user) {
  group_box *box = (group_box *)user;
  lm_user_leave(user);
  close_users(&box->users);
  lm_group *group = box->group;
  box->group = NULL;
  lm_group_close(group);
}

static void close_world(world_box *box) {
  if (!box->world) return;
  close_users(&box->groups);
  lm_world *world = box->world;
  box->world = NULL;
  box->s->worlds--;
  lm_world_close(world);
}

static int gc_world(lua_State *L) {
  world_box *box = lm_to_object(L, 1, &world_type);
  if (box) close_world(box);
  return 0;
}

static int gc_group(lua_State *L) {
  group_box *box = lm_to_object(L, 1, &group_type);
  if (box && box->group) close_group(&box->user);
  return 0;
}

static group_box *new_group(lua_State *L) {
  group_box *box = lm_object_new(L, &group_type);
  box->user.close = close_group;
  return box;
}

static world_box *world_at(lua_State *L, int i, const char *fn) {
  world_box *box = lm_to_object(L, i, &world_type);
  if (!box || !box->world) lm_raise_text(L, "%s: %s", fn, box ? "the process group was destroyed" : "a world expected");
  return box;
}

lm_group *lm_to_group(lua_State *L, const lm_lua *s, int i) {
  (void)s;
  group_box *box = lm_to_object(L, i, &group_type);
  return box ? box->group : NULL;
}

lm_status lm_read_group(lua_State *L, const lm_lua *s, int i, const char *fn, lm_group **out) {
  group_box *box = lm_to_object(L, i, &group_type);
  if (!box) return lm_fail(LM_E_ARG, "%s: a process group expected, got %s", fn, lm_got(L, s, i));
  if (!box->group) return lm_fail(LM_E_STATE, "%s: this process group was destroyed", fn);
  if (box->world) {
    lm_status status = lm_world_check(box->world->world);
    if (status != LM_OK) return lm_fail_in(status, fn);
  }
  *out = box->group;
  return LM_OK;
}

void lm_group_join(lua_State *L, int i, lm_user *user) {
  group_box *box = lm_to_object(L, i, &group_type);
  if (box) join(&box->users, user);
}

/* ---- worlds */

static lm_status text_field(lua_State *L, const lm_lua *s, const char *fn, const char *name, const char **out) {
  if (!lm_field(L, 1, name)) return LM_OK;
  lm_status status = lm_read_text(L, s, lua_gettop(L), fn, name, out); /* the table keeps it alive */
  lua_pop(L, 1);
  return status;
}

static lm_status int_field(lua_State *L, const lm_lua *s, const char *fn, const char *name, int *out) {
  int64_t v = 0;
  if (!lm_field(L, 1, name)) return lm_fail(LM_E_ARG, "%s: %s is missing", fn, name);
  lm_status status = lm_read_int(L, s, lua_gettop(L), fn, name, &v);
  lua_pop(L, 1);
  if (status == LM_OK && (v < INT32_MIN || v > INT32_MAX)) {
    return lm_fail(LM_E_ARG, "%s: %s: %lld is out of range", fn, name, (long long)v);
  }
  *out = (int)v;
  return status;
}

static lm_status seconds_field(lua_State *L, const lm_lua *s, const char *fn, const char *name, double *out) {
  if (!lm_field(L, 1, name)) return lm_fail(LM_E_ARG, "%s: %s is missing", fn, name);
  lm_status status = lm_read_number(L, s, lua_gettop(L), fn, name, out);
  lua_pop(L, 1);
  return status;
}

/* Once a process, whichever of its threads is rank 0 first. */
static void say_without_token(const lm_world_config *c) {
  static _Atomic bool said;
  /* Where only the job's own user can read where the store is, what stands there with it is a secret. */
  bool secret = strncmp(c->init_method, "pmix:", 5) == 0 || strncmp(c->init_method, "file:", 5) == 0;
  if (c->rank != 0 || c->token || secret || atomic_exchange(&said, true)) return;
  fprintf(stderr,
          "luminary: no LM_TOKEN is set: the job's id alone ('%s') keeps strays out of this process group; "
          "`luminary run` makes a token, or set LM_TOKEN to a secret on all ranks\n",
          c->job && *c->job ? c->job : c->init_method);
}

/* dist_open{init_method, rank, size, timeout, heartbeat_timeout, offers_nccl [, job] [, token]} -> world */
static int bind_open(lua_State *L) {
  static const char *const names[] = {"init_method",       "rank",        "size", "timeout",
                                      "heartbeat_timeout", "offers_nccl", "job",  "token"};
  const char *fn = "init_process_group";
  lm_lua *s = LM_STATE(L);
  lm_world_config c = {.init_method = NULL, .generation = s->worlds_before};
  lm_status status;
  lua_settop(L, 1);
  world_box *box = lm_object_new(L, &world_type);
  box->s = s;
  if (lua_type(L, 1) != LUA_TTABLE) return lm_raise_text(L, "%s: a table expected", fn);
  TRY(lm_check_options(L, 1, fn, 8, names));
  TRY(text_field(L, s, fn, "init_method", &c.init_method));
  TRY(text_field(L, s, fn, "job", &c.job));
  TRY(text_field(L, s, fn, "token", &c.token));
  TRY(int_field(L, s, fn, "rank", &c.rank));
  TRY(int_field(L, s, fn, "size", &c.size));
  TRY(seconds_field(L, s, fn, "timeout", &c.timeout));
  TRY(seconds_field(L, s, fn, "heartbeat_timeout", &c.heartbeat_timeout));
  lua_getfield(L, 1, "offers_nccl");
  c.offers_nccl = lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (!c.init_method) return lm_raise_text(L, "%s: init_method is missing", fn);
  s->worlds++; /* its line is told, to whom it may have to wait for */
  lm_note_line(L, s);
  status = lm_world_open(&c, &box->world);
  if (status != LM_OK) s->worlds--;
  TRY(status);
  s->worlds_before++;
  say_without_token(&c);
  return 1;
done:
  return lm_raise(L, status);
}

/* dist_pmix() -> true, or false and why this process cannot meet others by PMIx */
static int bind_pmix(lua_State *L) {
  bool there = lm_pmix_is_there() == LM_OK;
  lua_pushboolean(L, there);
  if (there) return 1;
  lua_pushstring(L, lm_error());
  return 2;
}

/* dist_close(world or group); a second time is fine */
static int bind_close(lua_State *L) {
  world_box *world = lm_to_object(L, 1, &world_type);
  group_box *group = lm_to_object(L, 1, &group_type);
  if (!world && !group) return lm_raise_text(L, "dist_close: a world or a group expected");
  if (world) close_world(world);
  if (group && group->group) close_group(&group->user);
  return 0;
}

/* dist_world(world) -> rank, size, rank on its host, ranks there */
static int bind_world(lua_State *L) {
  const lm_world *w = world_at(L, 1, "dist_world")->world;
  lua_pushinteger(L, lm_world_rank(w));
  lua_pushinteger(L, lm_world_size(w));
  lua_pushinteger(L, lm_world_local_rank(w));
  lua_pushinteger(L, lm_world_local_size(w));
  return 4;
}

/* dist_host(world, rank) -> its host's name */
static int bind_host(lua_State *L) {
  const lm_world *w = world_at(L, 1, "dist_host")->world;
  int64_t rank = 0;
  lm_status status = lm_read_int(L, LM_STATE(L), 2, "dist_host", "rank", &rank);
  if (status != LM_OK) return lm_raise(L, status);
  if (rank < 0 || rank >= lm_world_size(w)) {
    return lm_raise_text(L, "dist_host: there is no rank %lld", (long long)rank);
  }
  lua_pushstring(L, lm_world_host(w, (int)rank));
  return 1;
}

/* ---- health */

/* dist_check(world): raises if a rank has failed */
static int bind_check(lua_State *L) {
  lm_status status = lm_world_check(world_at(L, 1, "dist_check")->world);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

static const char *failure_name(lm_failure_kind kind) {
  static const char *const names[] = {"none", "error", "died", "frozen", "mismatch", "absent", "left", "unreachable"};
  _Static_assert(sizeof names / sizeof *names == LM_FAILURE_KINDS, "a name for each");
  return (unsigned)kind < LM_FAILURE_KINDS ? names[kind] : "none";
}

static void set_number(lua_State *L, const char *key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}

static void set_text(lua_State *L, const char *key, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

static void push_party(lua_State *L, const lm_party *p) {
  static const char *const standings[] = {"", "not joined", "no call", "waits", "came", "last in", "left", "died"};
  _Static_assert(sizeof standings / sizeof *standings == LM_STANDINGS, "a name for each");
  lua_createtable(L, 0, 6);
  set_number(L, "rank", p->rank);
  set_text(L, "host", p->host);
  if (p->standing != LM_NOT_KNOWN) set_text(L, "standing", standings[p->standing]);
  if (p->seconds > 0) set_number(L, "seconds", p->seconds);
  if (!p->call.what[0]) return;
  set_text(L, "call", p->call.what);
  set_text(L, "where", p->call.where);
}

/* dist_cause(world) -> nil while all is well, else {kind, told_by, where, message, text, rank, host, who, other}; of
 * `other`, as of `who`: {rank, host, standing, seconds, call, where}, as far as they are known */
static int bind_cause(lua_State *L) {
  world_box *box = world_at(L, 1, "dist_cause");
  lm_failure f;
  char text[1024];
  if (!lm_world_cause(box->world, &f)) return 0;
  lua_createtable(L, 0, 9);
  set_text(L, "kind", failure_name(f.kind));
  set_number(L, "told_by", f.told_by);
  set_text(L, "where", f.where);
  set_text(L, "message", f.message);
  set_text(L, "text", lm_failure_text(&f, text, sizeof text));
  set_number(L, "rank", f.who.rank);
  set_text(L, "host", f.who.host);
  push_party(L, &f.who);
  lua_setfield(L, -2, "who");
  if (f.other.rank >= 0) {
    push_party(L, &f.other);
    lua_setfield(L, -2, "other");
  }
  return 1;
}

/* dist_fail(world, where, message): tells all ranks that this one failed */
static int bind_fail(lua_State *L) {
  world_box *box = world_at(L, 1, "dist_fail");
  if (lua_type(L, 2) != LUA_TSTRING || lua_type(L, 3) != LUA_TSTRING) {
    return lm_raise_text(L, "dist_fail: a world and two strings expected");
  }
  char message[LM_FAILURE_MESSAGE];
  lm_write_bytes(message, sizeof message, lua_tostring(L, 3), lua_objlen(L, 3));
  lm_world_fail(box->world, lua_tostring(L, 2), message);
  return 0;
}

/* ---- groups */

/* dist_has(backend, who asks) -> as get_backend will say it; raises if there is no such backend, naming what there is
 */
static int bind_has(lua_State *L) {
  char text[LM_GROUP_TEXT];
  const char *backend, *fn = lm_to_text(L, 2);
  if (!fn) return lm_raise_text(L, "dist_has: two names expected");
  lm_status status = lm_read_text(L, LM_STATE(L), 1, fn, "backend", &backend);
  if (status != LM_OK) return lm_raise(L, status);
  status = lm_group_backend_check(backend, text);
  if (status != LM_OK) return lm_raise(L, lm_fail_in(status, fn));
  lua_pushstring(L, text);
  return 1;
}

/* dist_backend(world) -> the default one, which all ranks agree on */
static int bind_backend(lua_State *L) {
  const char *backend;
  lm_status status = lm_world_backend(world_at(L, 1, "dist_backend")->world, &backend);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushstring(L, backend);
  return 1;
}

static int bind_solo(lua_State *L) {
  group_box *box = new_group(L);
  lm_status status = lm_group_solo(&box->group);
  return status == LM_OK ? 1 : lm_raise(L, status);
}

/* The list of ranks at 3. */
static lm_status open_group(lua_State *L, const lm_lua *s, group_box *box) {
  lm_status status;
  int64_t rank;
  double timeout = 0;
  int n = (int)lua_objlen(L, 3);
  int *ranks = lm_malloc((size_t)n * sizeof *ranks);
  if (!ranks) return LM_E_OOM;
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 3, i + 1);
    TRY(lm_read_int(L, s, lua_gettop(L), "new_group", "a rank", &rank));
    lua_pop(L, 1);
    ranks[i] = rank < 0 || rank > INT32_MAX ? -1 : (int)rank;
  }
  if (!lua_isnil(L, 4)) TRY(lm_read_number(L, s, 4, "new_group", "timeout", &timeout));
  TRY(lm_group_new(box->world->world, lua_tostring(L, 2), n, ranks, timeout, &box->group));
done:
  lm_free(ranks);
  return status;
}

/* dist_group(world, backend, ranks in the world ascending [, timeout]) -> group, or nil for a rank outside it */
static int bind_group(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 4);
  world_box *world = world_at(L, 1, "new_group");
  if (!lm_to_text(L, 2) || lua_type(L, 3) != LUA_TTABLE) {
    return lm_raise_text(L, "new_group: a backend and a list of ranks expected");
  }
  group_box *box = new_group(L); /* 5 */
  box->world = world;
  lua_createtable(L, 1, 0);
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, 5);
  lm_note_line(L, s);
  lm_status status = lm_world_check(world->world);
  if (status == LM_OK) status = open_group(L, s, box);
  if (status != LM_OK) return lm_raise(L, status);
  if (!box->group) return 0;
  join(&world->groups, &box->user);
  lua_settop(L, 5);
  return 1;
}

/* dist_members(group) -> this rank in it, its size, its members' ranks in the world */
static int bind_members(lua_State *L) {
  const lm_group *g = lm_to_group(L, LM_STATE(L), 1);
  if (!g) return lm_raise_text(L, "dist_members: a process group expected");
  lua_pushinteger(L, g->rank);
  lua_pushinteger(L, g->size);
  lua_createtable(L, g->size, 0);
  for (int i = 0; i < g->size; i++) {
    lua_pushinteger(L, g->ranks ? g->ranks[i] : i);
    lua_rawseti(L, -2, i + 1);
  }
  return 3;
}

/* nccl_version() -> 22809, or nil and why the group that uses NCCL is not there */
static int bind_nccl_version(lua_State *L) {
  const lm_group_table *table;
  if (lm_group_table_find("nccl", &table) == LM_OK && table->version) {
    lua_pushinteger(L, table->version());
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, lm_error());
  return 2;
}

const luaL_Reg lm_dist_functions[] = {
    {"dist_open", bind_open},
    {"dist_close", bind_close},
    {"dist_world", bind_world},
    {"dist_host", bind_host},
    {"dist_check", bind_check},
    {"dist_cause", bind_cause},
    {"dist_fail", bind_fail},
    {"dist_has", bind_has},
    {"dist_solo", bind_solo},
    {"dist_group", bind_group},
    {"dist_members", bind_members},
    {"dist_pmix", bind_pmix},
    {"nccl_version", bind_nccl_version},
    {"dist_backend", bind_backend},
    {NULL, NULL},
};
