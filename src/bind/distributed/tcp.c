/* Connects, listens, sends and receives over TCP (distributed/net/), each for a limited time. Only `luminary doctor`
 * uses it.
 *
 *   tcp_connect("host:port", seconds)   an object with the methods below; nil and the reason
 *   tcp_listen(port)                    one that accepts from every interface, and its address; nil and the reason
 *     :accept (seconds)                 another object, and the address of its peer; nothing if none came
 *     :send(text, seconds [, n])        true if all of it was sent; with n, again and again, n bytes in all
 *     :receive(n, seconds [, drop])     the n bytes, of drop = true ""; nil if they did not come
 *     :close()
 *   interfaces()                        lines "name address bits" (lm_net_list_interfaces)
 */
#include <poll.h>
#include <unistd.h>

#include "base/message.h"
#include "bind/bind.h"
#include "distributed/net/interface.h"

static const char fn[] = "tcp";
enum { CHUNK = 1 << 20, BYTES_MAX = 1 << 28 };

typedef struct tcp_socket {
  bool open;
  int fd;
} tcp_socket;

static void tcp_close_socket(void *object) {
  tcp_socket *s = object;
  if (s->open) close(s->fd);
  s->open = false;
}

LM_LIST(lm_methods_of_tcp);
static const lm_object_type tcp_type = {"luminary.tcp_socket", sizeof(tcp_socket), tcp_close_socket, "a socket",
                                        LM_METHODS_OF(tcp)};

LM_READER(lm_deadline, deadline) {
  return (lm_deadline){.deadline = lm_seconds() + lm_need_number(L, i, fn, "seconds"), .wake_fd = -1};
}

LM_READER(size_t, size) {
  int64_t n = lm_need_int(L, i, fn, arg);
  if (n < 0 || n > BYTES_MAX) lm_raise(L, lm_fail_int(fn, arg, "from 0 to 268435456", n));
  return (size_t)n;
}

LM_READER(int, tcp_fd) {
  const tcp_socket *s = lm_need_object(L, i, &tcp_type, fn);
  if (!s->open) lm_raise(L, lm_fail_value(fn, "the socket", "open", "a closed one"));
  return s->fd;
}

LM_OBJECT_METHOD(tcp, accept, fn, (tcp_fd, listener), (deadline, p)) {
  char host[LM_ADDRESS_MAX] = "";
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  tcp_socket *s = lm_object_new(L, &tcp_type);
  s->open = lm_net_await(listener, POLLIN, &p) == LM_OK && lm_net_accept(listener, 0, &s->fd) == LM_OK && s->fd >= 0;
  if (!s->open) return 0;
  if (getpeername(s->fd, (struct sockaddr *)&a, &n) == 0) (void)lm_net_numeric((struct sockaddr *)&a, n, host);
  lua_pushstring(L, host);
  return 2;
}

LM_OBJECT_METHOD(tcp, send, fn, (tcp_fd, fd), (string, text), (deadline, p), (size, n, text.n)) {
  bool sent = true;
  for (size_t left = n, part; sent && text.n > 0 && left > 0; left -= part) {
    part = left < text.n ? left : text.n;
    sent = lm_net_write(fd, text.text, part, &p) == LM_OK;
  }
  return lm_return_bool(L, sent);
}

LM_OBJECT_METHOD(tcp, receive, fn, (tcp_fd, fd), (size, n), (deadline, p), (flag, drop)) {
  size_t size = drop && n > CHUNK ? CHUNK : n;
  char *data = lua_newuserdata(L, size);
  for (size_t left = n, part; left > 0; left -= part) {
    part = left < size ? left : size;
    if (lm_net_read(fd, data, part, &p) != LM_OK) return 0;
  }
  lua_pushlstring(L, data, drop ? 0 : n);
  return 1;
}

LM_OBJECT_METHOD(tcp, close, fn) { return lm_object_close(L, &tcp_type, fn); }

/* Returns nil and the last message. */
static int tcp_refused(lua_State *L) {
  lua_pushnil(L);
  lua_pushstring(L, lm_error());
  return 2;
}

LM_FUNCTION_AS(tcp_connect, fn, (text, address), (deadline, p)) {
  p.per_address = p.deadline - lm_seconds();
  tcp_socket *s = lm_object_new(L, &tcp_type);
  s->open = lm_net_connect(address, &p, &s->fd) == LM_OK;
  if (s->open) lm_net_tune(s->fd, 0);
  return s->open ? 1 : tcp_refused(L);
}

LM_FUNCTION_AS(tcp_listen, fn, (int, port)) {
  char address[LM_ADDRESS_MAX];
  tcp_socket *s = lm_object_new(L, &tcp_type);
  s->open = lm_net_listen("", (int)port, &s->fd, address) == LM_OK;
  if (!s->open) return tcp_refused(L);
  lua_pushstring(L, address);
  return 2;
}

LM_FUNCTION(interfaces) {
  lm_bytes *lines = lm_buffer_new(L);
  lm_net_list_interfaces(lines);
  if (lines->failed) lm_raise(L, LM_E_OOM);
  lua_pushlstring(L, lines->n ? lines->data : "", lines->n);
  return 1;
}
