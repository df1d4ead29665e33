/* Lists the nodes of an autograd graph:
 * graph_nodes(x [, list]) -> list of {name, line, is_leaf, dtype, shape, edges = list of indices into the list, false
 * for none}, the node of x first; with `list`, also the index of each of its tensors' nodes, or false */
#include "base/message.h"
#include "bind/bind.h"

enum { NODES = 3, INDEX = 4, ORDER = 5 };

/* Pushes the node's index in NODES, the next free one for a new node, or false for NULL. */
static void push_index(lua_State *L, const struct lm_node *node) {
  lua_pushlightuserdata(L, (void *)node);
  lua_rawget(L, INDEX);
  if (!node || !lua_isnil(L, -1)) {
    if (!node) {
      lua_pop(L, 1);
      lua_pushboolean(L, 0);
    }
    return;
  }
  int i = (int)lua_objlen(L, ORDER) + 1;
  lua_pop(L, 1);
  lua_pushlightuserdata(L, (void *)node);
  lua_rawseti(L, ORDER, i);
  lua_pushlightuserdata(L, (void *)node);
  lua_pushinteger(L, i);
  lua_rawset(L, INDEX);
  lua_pushinteger(L, i);
}

static void push_node(lua_State *L, const struct lm_node *node) {
  const lm_graph_node d = lm_graph_describe(node);
  lua_createtable(L, 0, 6);
  lm_set_text(L, "name", d.name);
  if (d.line) lm_set_text(L, "line", d.line);
  lm_set_flag(L, "is_leaf", d.is_leaf);
  lm_set_text(L, "dtype", lm_dtype_name(d.dtype));
  lua_createtable(L, d.ndim, 0);
  for (int i = 0; i < d.ndim; i++) {
    lua_pushnumber(L, (double)d.size[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "shape");
  lua_createtable(L, d.nedge, 0);
  for (int k = 0; k < d.nedge; k++) {
    push_index(L, lm_graph_edge(node, k));
    lua_rawseti(L, -2, k + 1);
  }
  lua_setfield(L, -2, "edges");
}

LM_FUNCTION_AS(graph_nodes, "graph", (tensor, x), (any, list)) {
  const struct lm_node *root = lm_graph_node_of(x);
  if (!root)
    return lm_raise_text(L, "graph: x must require grad; none of its inputs does, or it was made within no_grad");
  lua_newtable(L);
  lua_newtable(L);
  lua_newtable(L);
  push_index(L, root);
  lua_pop(L, 1);
  for (int i = 1; i <= (int)lua_objlen(L, ORDER); i++) {
    lua_rawgeti(L, ORDER, i);
    const struct lm_node *node = lua_touserdata(L, -1);
    lua_pop(L, 1);
    push_node(L, node);
    lua_rawseti(L, NODES, i);
  }
  lua_pushvalue(L, NODES);
  if (lua_type(L, 2) != LUA_TTABLE) return 1;
  int n = (int)lua_objlen(L, 2);
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 2, i);
    lm_tensor *t = lm_to_tensor(L, LM_STATE(L), lua_gettop(L));
    const struct lm_node *node = t ? lm_graph_node_of(t) : NULL;
    lua_pop(L, 1);
    lua_pushlightuserdata(L, (void *)node);
    lua_rawget(L, INDEX);
    if (!lua_isnil(L, -1)) {
      lua_rawseti(L, -2, i);
    } else {
      lua_pop(L, 1);
      lua_pushboolean(L, 0);
      lua_rawseti(L, -2, i);
    }
  }
  return 2;
}
