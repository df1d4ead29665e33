/* Links the launchers of a job across hosts (distributed/net/node_links.h). Only `luminary run` uses it.
 *
 *   node_links(job [, token])    an object with these methods:
 *     :fd()                      a descriptor, readable if :next() may return something
 *     :listen("host:port")       true; false if the host is another machine, or the port is in use
 *     :stop_listening()
 *     :connect("host:port", seconds)   the link's number
 *     :send(link, text)          :drop(link)
 *     :next()                    nothing, or "opened", link; "message", link, text; "closed", link, reason
 *     :close()
 */
#include "distributed/net/node_links.h"
#include "bind/bind.h"

static const char fn[] = "node_links";

LM_LIST(lm_methods_of_links);
LM_HELD_TYPE(links, lm_node_links, lm_node_links_free, "luminary.node_links", "node links", LM_METHODS_OF(links))

LM_OBJECT_METHOD(links, fd, fn, (links, l)) { return lm_return_int(L, lm_node_links_fd(l)); }

LM_OBJECT_METHOD(links, listen, fn, (links, l), (text, address)) {
  bool listens = false;
  lm_need(L, lm_node_links_listen(l, address, &listens));
  return lm_return_bool(L, listens);
}

LM_OBJECT_METHOD(links, stop_listening, fn, (links, l)) {
  lm_node_links_stop_listening(l);
  return 0;
}

LM_OBJECT_METHOD(links, connect, fn, (links, l), (text, address), (number, seconds)) {
  int link = 0;
  lm_need(L, lm_node_links_connect(l, address, seconds, &link));
  return lm_return_int(L, link);
}

LM_OBJECT_METHOD(links, send, fn, (links, l), (int, link), (string, text)) {
  return lm_return(L, lm_node_links_send(l, (int)link, text.text, text.n), 0);
}

LM_OBJECT_METHOD(links, drop, fn, (links, l), (int, link)) {
  lm_node_links_close(l, (int)link);
  return 0;
}

LM_OBJECT_METHOD(links, next, fn, (links, l)) {
  static const char *const names[] = {"", "opened", "message", "closed"};
  lm_node_event event;
  lm_need(L, lm_node_links_next(l, &event));
  if (event.kind == LM_NODE_NONE) return 0;
  lua_pushstring(L, names[event.kind]);
  lua_pushinteger(L, event.link);
  lua_pushlstring(L, event.n ? event.text : "", event.n);
  return 3;
}

LM_OBJECT_METHOD(links, close, fn) { return lm_object_close(L, &links_type, fn); }

LM_FUNCTION(node_links, (text, job), (text, token, NULL)) {
  return lm_return(L, lm_node_links_new(token, job, lm_object_new(L, &links_type)), 1);
}
