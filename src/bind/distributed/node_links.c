/* Binds links between the launchers of a job (distributed/net/node_links.h). Only `luminary run` uses them.
 *
 *   node_links(job [, token])    an object; its methods:
 *     :fd()                      readable if :next() may return something
 *     :listen("host:port")       true if it listens; false if the host is another machine, or the port in use
 *     :stop_listening()
 *     :connect("host:port", seconds)   the link's number
 *     :send(link, text)          :drop(link)
 *     :next()                    nothing, or "opened", link; "message", link, text; "closed", link, reason
 *     :close()
 */
#include "distributed/net/node_links.h"
#include "bind/bind.h"

static const char fn[] = "node_links";

static void free_links(void *object) {
  lm_node_links **l = object;
  lm_node_links_free(*l);
  *l = NULL;
}

static const lm_object_type links_type;

static lm_node_links *self(lua_State *L) { return lm_need_held(L, 1, &links_type, fn); }

static int bind_fd(lua_State *L) { return lm_return_int(L, lm_node_links_fd(self(L))); }

static int bind_listen(lua_State *L) {
  bool listens = false;
  lm_node_links *l = self(L);
  lm_need(L, lm_node_links_listen(l, lm_need_text(L, 2, fn, "address"), &listens));
  return lm_return_bool(L, listens);
}

static int bind_stop_listening(lua_State *L) {
  lm_node_links_stop_listening(self(L));
  return 0;
}

static int bind_connect(lua_State *L) {
  int link = 0;
  lm_node_links *l = self(L);
  const char *address = lm_need_text(L, 2, fn, "address");
  lm_need(L, lm_node_links_connect(l, address, lm_need_number(L, 3, fn, "seconds"), &link));
  return lm_return_int(L, link);
}

static int bind_send(lua_State *L) {
  size_t n;
  lm_node_links *l = self(L);
  const char *text = lm_need_string(L, 3, fn, "text", &n);
  lm_need(L, lm_node_links_send(l, (int)lm_need_int(L, 2, fn, "link"), text, n));
  return 0;
}

static int bind_drop(lua_State *L) {
  lm_node_links *l = self(L);
  lm_node_links_close(l, (int)lm_need_int(L, 2, fn, "link"));
  return 0;
}

static int bind_next(lua_State *L) {
  static const char *const names[] = {"", "opened", "message", "closed"};
  lm_node_event event;
  lm_need(L, lm_node_links_next(self(L), &event));
  if (event.kind == LM_NODE_NONE) return 0;
  lua_pushstring(L, names[event.kind]);
  lua_pushinteger(L, event.link);
  lua_pushlstring(L, event.n ? event.text : "", event.n);
  return 3;
}

static int bind_close(lua_State *L) {
  free_links(lm_need_object(L, 1, &links_type, fn));
  return 0;
}

static const luaL_Reg methods[] = {
    {"fd", bind_fd},           {"listen", bind_listen}, {"stop_listening", bind_stop_listening},
    {"connect", bind_connect}, {"send", bind_send},     {"drop", bind_drop},
    {"next", bind_next},       {"close", bind_close},   {NULL, NULL}};
static const lm_object_type links_type = {"luminary.node_links", sizeof(lm_node_links *), free_links, "node links",
                                          methods};

LM_FUNCTION(node_links) {
  const char *job = lm_need_text(L, 1, fn, "job"),
             *token = lua_isnoneornil(L, 2) ? NULL : lm_need_text(L, 2, fn, "token");
  lm_need(L, lm_node_links_new(token, job, lm_object_new(L, &links_type)));
  return 1;
}
