#include "distributed/net/node_links.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/net/acceptor.h"
#include "distributed/net/framed_stream.h"

enum { UNSENT_MAX = 4 * LM_NODE_MESSAGE_MAX, HANDSHAKES = 256, WHY = 256 };

static const double naming_time = 5; /* seconds to look up the name of a host */

/* A connection attempt, run by a thread; the thread and the link own it together. */
typedef struct connecting {
  _Atomic int references;
  _Atomic bool abandoned;
  lm_key key;
  char address[LM_ADDRESS_MAX];
  double seconds;
  int finished; /* write end of a pipe, which the thread closes once fd and why are set */
  int fd;       /* -1: the attempt failed */
  char why[WHY];
} connecting;

typedef struct node_link {
  lm_framed_stream stream;
  lm_node_links *links;
  int id;
  connecting *connecting; /* the attempt, until it ends; the stream's socket is the pipe's read end then. Else NULL */
  bool opened, ended;     /* an event is due */
  bool reported;          /* true once its end was reported: freed at the next call */
  char why[WHY];
  struct node_link *next;
} node_link;

struct lm_node_links {
  lm_loop loop;
  lm_acceptor acceptor;
  int ids;
  lm_key key;
  node_link *first, *current; /* all; the last event's link, which may have another message */
};

/* ---- links */

static node_link *links_find(lm_node_links *l, int id) {
  node_link *k = l->first;
  while (k && k->id != id) k = k->next;
  return k;
}

static void connecting_release(connecting *c) {
  if (atomic_fetch_sub(&c->references, 1) > 1) return;
  if (c->fd >= 0) close(c->fd);
  lm_free(c);
}

static void link_free(lm_node_links *l, node_link *k) {
  LM_UNLINK(l->first, k);
  if (l->current == k) l->current = NULL;
  if (k->connecting) {
    atomic_store(&k->connecting->abandoned, true);
    connecting_release(k->connecting);
  }
  lm_stream_free(&k->stream);
  lm_free(k);
}

/* Creates a link without a socket; NULL when out of memory. */
static node_link *link_new(lm_node_links *l) {
  node_link *k = lm_calloc(1, sizeof *k);
  if (!k) return NULL;
  *k = (node_link){.stream = {.watch.fd = -1, .loop = &l->loop}, .links = l, .id = ++l->ids, .next = l->first};
  return l->first = k;
}

/* ---- events of the loop, one in each call of lm_node_links_next */

static void link_end(node_link *k, const char *why) {
  if (!k->ended) lm_write(k->why, sizeof k->why, "%s", why);
  k->ended = true;
}

static void link_received(lm_framed_stream *stream, ssize_t n) {
  node_link *k = (node_link *)stream; /* through its first member */
  k->links->current = k;
  if (n <= 0 || k->stream.in.failed) link_end(k, n < 0 ? strerror(errno) : n == 0 ? "" : "out of memory");
}

static void link_accepted(void *ctx, int fd, lm_reader hello) {
  lm_node_links *l = ctx;
  (void)hello;
  node_link *k = link_new(l);
  if (k && lm_stream_watch(&k->stream, &l->loop, fd, link_received) == LM_OK) {
    k->opened = true;
    l->current = k;
    return;
  }
  close(fd);
  if (k) link_free(l, k);
}

/* Takes over the connection of an attempt that has ended. */
static void link_connected(lm_watch *w, uint32_t events) {
  (void)events;
  node_link *k = (node_link *)w; /* through its first members */
  connecting *c = k->connecting;
  k->connecting = NULL;
  k->links->current = k;
  lm_loop_end(&k->links->loop, w);
  k->opened = c->fd >= 0 && lm_stream_watch(&k->stream, &k->links->loop, c->fd, link_received) == LM_OK;
  if (!k->opened) {
    link_end(k, c->fd >= 0 ? lm_error() : c->why);
  } else {
    lm_net_tune(c->fd, 0);
    c->fd = -1;
  }
  connecting_release(c);
}

/* ---- the set of links */

lm_status lm_node_links_new(const char *token, const char *job, lm_node_links **out) {
  lm_status status;
  *out = NULL;
  lm_node_links *l = lm_calloc(1, sizeof *l);
  if (!l) return LM_E_OOM;
  l->loop.epoll = l->loop.wakeup_fd = -1;
  l->acceptor = (lm_acceptor){
      .watch.fd = -1, .loop = &l->loop, .key = &l->key, .most = HANDSHAKES, .accepted = link_accepted, .ctx = l};
  TRY(lm_key_make(token, job, &l->key));
  TRY(lm_loop_open(&l->loop));
  *out = l;
  l = NULL;
done:
  lm_node_links_free(l);
  return status;
}

void lm_node_links_free(lm_node_links *l) {
  if (!l) return;
  while (l->first) link_free(l, l->first);
  lm_acceptor_close(&l->acceptor);
  lm_loop_close(&l->loop);
  lm_free(l);
}

int lm_node_links_fd(const lm_node_links *l) { return l->loop.epoll; }

void lm_node_links_close(lm_node_links *l, int link) {
  node_link *k = links_find(l, link);
  if (k) link_free(l, k);
}

/* ---- opening */

lm_status lm_node_links_listen(lm_node_links *l, const char *address, bool *listens) {
  char host[LM_ADDRESS_MAX];
  int port, listener;
  *listens = false;
  NEED(lm_net_split(address, host, &port));
  lm_node_links_stop_listening(l);
  NEED(lm_net_listen_here(host, port, &listener));
  *listens = listener >= 0;
  lm_status status = *listens ? lm_acceptor_listen(&l->acceptor, listener) : LM_OK;
  if (status != LM_OK) close(listener);
  return status;
}

void lm_node_links_stop_listening(lm_node_links *l) { lm_loop_end(&l->loop, &l->acceptor.watch); }

static lm_status check_abandoned(void *ctx) {
  const connecting *c = ctx;
  return atomic_load(&c->abandoned) ? lm_fail(LM_E_STATE, "nobody waits for it") : LM_OK;
}

static void *connect_body(void *arg) {
  connecting *c = arg;
  lm_deadline p = {.deadline = lm_seconds() + naming_time + c->seconds,
                   .per_address = c->seconds,
                   .wake_fd = -1,
                   .check = check_abandoned,
                   .ctx = c};
  int fd = -1, finished = c->finished;
  lm_status status = lm_net_connect(c->address, &p, &fd);
  p.deadline = lm_seconds() + c->seconds;
  if (status == LM_OK) status = lm_auth_connect(fd, &c->key, "", 0, &p);
  if (status != LM_OK) lm_write(c->why, sizeof c->why, "%s", lm_error());
  if (status != LM_OK && fd >= 0) close(fd);
  c->fd = status == LM_OK ? fd : -1;
  connecting_release(c);
  close(finished);
  return NULL;
}

lm_status lm_node_links_connect(lm_node_links *l, const char *address, double seconds, int *link) {
  lm_status status;
  int ends[2] = {-1, -1};
  node_link *k = link_new(l);
  connecting *c = k ? lm_calloc(1, sizeof *c) : NULL;
  *link = 0;
  if (!c) TRY(LM_E_OOM);
  k->connecting = c;
  c->fd = -1;
  c->key = l->key;
  c->seconds = seconds;
  atomic_store(&c->references, 2);
  if (strlen(address) >= sizeof c->address) TRY(lm_fail(LM_E_ARG, "'%s': address is too long", address));
  memcpy(c->address, address, strlen(address) + 1);
  if (lm_fds_above_stdio(pipe2(ends, O_CLOEXEC | O_NONBLOCK), ends) != 0)
    TRY(lm_fail_cannot(LM_E_IO, "create a pipe", errno));
  TRY(lm_loop_add(&l->loop, &k->stream.watch, ends[0], link_connected));
  ends[0] = -1;
  c->finished = ends[1];
  TRY(lm_thread_start_detached("lm-connect", connect_body, c));
  *link = k->id;
  return LM_OK;
done:
  if (c) connecting_release(c); /* the thread's reference */
  if (k) link_free(l, k);
  lm_close_all(ends, 2);
  return status;
}

/* ---- messages and events */

lm_status lm_node_links_send(lm_node_links *l, int link, const char *text, size_t n) {
  if (n > LM_NODE_MESSAGE_MAX) return lm_fail(LM_E_ARG, "a message of %zu bytes is too long for a link", n);
  node_link *k = links_find(l, link);
  if (!k || k->connecting || k->ended) return LM_OK;
  lm_put_string(&k->stream.out, text, n);
  if (!k->stream.out.failed && lm_stream_unsent(&k->stream) <= UNSENT_MAX) {
    lm_stream_send(&k->stream);
  } else { /* the peer reads nothing */
    shutdown(k->stream.watch.fd, SHUT_RDWR);
    lm_bytes_free(&k->stream.out);
    k->stream.sent = 0;
  }
  return LM_OK;
}

/* Returns in *out the current link's next event; false if there is none. */
static bool next_of_current(lm_node_links *l, lm_node_event *out) {
  node_link *k = l->current;
  lm_reader frame;
  bool complete = false;
  if (k && k->reported) link_free(l, k);
  if (!l->current) return false;
  if (k->opened) {
    k->opened = false;
    *out = (lm_node_event){.kind = LM_NODE_OPENED, .link = k->id};
    return true;
  }
  if (lm_stream_next(&k->stream, LM_NODE_MESSAGE_MAX, &frame, &complete) != LM_OK) {
    link_end(k, "malformed message");
    lm_stream_drop_input(&k->stream);
  }
  if (complete) {
    *out =
        (lm_node_event){.kind = LM_NODE_MESSAGE, .link = k->id, .text = frame.at, .n = (size_t)(frame.end - frame.at)};
    return true;
  }
  k->reported = k->ended;
  if (k->ended)
    *out = (lm_node_event){.kind = LM_NODE_CLOSED, .link = k->id, .text = k->why, .n = strlen(k->why)};
  else
    l->current = NULL;
  return k->ended;
}

lm_status lm_node_links_next(lm_node_links *l, lm_node_event *out) {
  *out = (lm_node_event){.kind = LM_NODE_NONE};
  lm_acceptor_keep_time(&l->acceptor, lm_seconds());
  while (!next_of_current(l, out) && lm_loop_wait(&l->loop, 0, 1) > 0) lm_loop_dispatch(&l->loop);
  return LM_OK;
}
