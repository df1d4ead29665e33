#include "distributed/net/node_links.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

enum { CHUNK = 16 << 10, UNSENT_MAX = 4 * LM_NODE_MESSAGE_MAX, PROVING_MAX = 256, HEAD = 4, WHY = 256 };

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
  int id, fd;
  connecting *connecting; /* the attempt, until it ends; fd is the pipe's read end then. Else NULL */
  lm_auth *auth;          /* handshake of an accepted link until it is authenticated, else NULL */
  lm_bytes in, out;
  size_t sent; /* bytes of out */
  bool ended;
  char why[WHY];
  struct node_link *next;
} node_link;

struct lm_node_links {
  int epoll, listener, ids, nproving;
  lm_key key;
  node_link *first, *current; /* all; the last event's link, which may have another message */
  size_t taken;               /* size of the current link's message in the last event, dropped at the next */
  char why[WHY];              /* text of the last event */
  char chunk[CHUNK];
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
  if (k->auth) l->nproving--;
  if (k->connecting) {
    atomic_store(&k->connecting->abandoned, true);
    connecting_release(k->connecting);
  }
  if (k->fd >= 0) lm_net_close_watched(l->epoll, k->fd);
  lm_free(k->auth);
  lm_bytes_free(&k->in);
  lm_bytes_free(&k->out);
  lm_free(k);
}

static lm_status links_watch(lm_node_links *l, int op, int fd, void *data, bool writes) {
  struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = data};
  return epoll_ctl(l->epoll, op, fd, &event) == 0 ? LM_OK : lm_fail_cannot(LM_E_IO, "watch a connection", errno);
}

/* Creates a link; takes fd over, also on error. */
static lm_status link_new(lm_node_links *l, int fd, node_link **out) {
  node_link *k = lm_calloc(1, sizeof *k);
  if (!k) {
    close(fd);
    return LM_E_OOM;
  }
  *k = (node_link){.id = ++l->ids, .fd = fd, .next = l->first};
  l->first = *out = k;
  lm_status status = links_watch(l, EPOLL_CTL_ADD, fd, k, false);
  if (status != LM_OK) link_free(l, k);
  return status;
}

lm_status lm_node_links_new(const char *token, const char *job, lm_node_links **out) {
  lm_status status;
  *out = NULL;
  lm_node_links *l = lm_calloc(1, sizeof *l);
  if (!l) return LM_E_OOM;
  l->listener = -1;
  l->epoll = lm_fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
  if (l->epoll < 0) TRY(lm_fail_cannot(LM_E_IO, "create an epoll descriptor", errno));
  TRY(lm_key_of(token, job, &l->key));
  *out = l;
  l = NULL;
done:
  lm_node_links_free(l);
  return status;
}

void lm_node_links_free(lm_node_links *l) {
  if (!l) return;
  while (l->first) link_free(l, l->first);
  lm_node_links_stop_listening(l);
  if (l->epoll >= 0) close(l->epoll);
  lm_free(l);
}

int lm_node_links_fd(const lm_node_links *l) { return l->epoll; }

void lm_node_links_close(lm_node_links *l, int link) {
  node_link *k = links_find(l, link);
  if (k) link_free(l, k);
}

/* ---- opening */

lm_status lm_node_links_listen(lm_node_links *l, const char *address, bool *listens) {
  char host[LM_ADDRESS_MAX];
  int port;
  *listens = false;
  NEED(lm_net_split(address, host, &port));
  lm_node_links_stop_listening(l);
  NEED(lm_net_listen_here(host, port, &l->listener));
  *listens = l->listener >= 0;
  return *listens ? links_watch(l, EPOLL_CTL_ADD, l->listener, NULL, false) : LM_OK;
}

void lm_node_links_stop_listening(lm_node_links *l) {
  if (l->listener >= 0) close(l->listener);
  l->listener = -1;
}

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
  node_link *k = NULL;
  connecting *c = lm_calloc(1, sizeof *c);
  *link = 0;
  if (!c) return LM_E_OOM;
  c->fd = -1;
  atomic_store(&c->references, 1);
  if (strlen(address) >= sizeof c->address) TRY(lm_fail(LM_E_ARG, "'%s': address is too long", address));
  if (lm_fds_above_stdio(pipe2(ends, O_CLOEXEC | O_NONBLOCK), ends) != 0)
    TRY(lm_fail_cannot(LM_E_IO, "create a pipe", errno));
  memcpy(c->address, address, strlen(address) + 1);
  c->key = l->key;
  c->seconds = seconds;
  c->finished = ends[1];
  int end = ends[0];
  ends[0] = -1;
  TRY(link_new(l, end, &k));
  atomic_store(&c->references, 2);
  k->connecting = c;
  status = lm_thread_start_detached("lm-connect", connect_body, c);
  if (status != LM_OK) { /* no thread: its reference and its pipe end are released here */
    link_free(l, k);
    goto done;
  }
  *link = k->id;
  return LM_OK;
done:
  connecting_release(c);
  for (int i = 0; i < 2; i++) {
    if (ends[i] >= 0) close(ends[i]);
  }
  return status;
}

/* ---- events */

static void link_end(node_link *k, const char *why) {
  if (!k->ended) lm_write(k->why, sizeof k->why, "%s", why);
  k->ended = true;
}

/* Accepts a connection and starts its handshake; false if there are no descriptors, so that it waits. */
static bool accept_one(lm_node_links *l) {
  int fd = -1;
  node_link *k;
  if (lm_net_accept(l->listener, 0, &fd) != LM_OK) return false;
  if (fd < 0) return true;
  if (l->nproving >= PROVING_MAX) {
    close(fd);
    return true;
  }
  if (link_new(l, fd, &k) != LM_OK) return true;
  k->auth = lm_calloc(1, sizeof *k->auth);
  if (k->auth) l->nproving++;
  if (!k->auth || lm_auth_start(k->auth, fd, &l->key) != LM_OK) link_free(l, k);
  return true;
}

/* Drops accepted links whose handshake has timed out. */
static void drop_late(lm_node_links *l) {
  double now = lm_seconds();
  for (node_link *k = l->first, *next; l->nproving > 0 && k; k = next) {
    next = k->next;
    if (k->auth && k->auth->deadline < now) link_free(l, k);
  }
}

static bool finish_connecting(lm_node_links *l, node_link *k) {
  connecting *c = k->connecting;
  k->connecting = NULL;
  lm_net_close_watched(l->epoll, k->fd);
  k->fd = c->fd;
  c->fd = -1;
  if (k->fd >= 0) {
    lm_net_tune(k->fd, 0);
    if (links_watch(l, EPOLL_CTL_ADD, k->fd, k, false) != LM_OK) link_end(k, lm_error());
  } else {
    link_end(k, c->why);
  }
  connecting_release(c);
  return !k->ended;
}

/* Continues a link's handshake; true once it is authenticated. Frees the link if that fails. */
static bool prove(lm_node_links *l, node_link *k) {
  bool done;
  if (lm_auth_step(k->auth, k->fd, &done) != LM_OK) {
    link_free(l, k);
    return false;
  }
  if (!done) return false;
  lm_free(k->auth);
  k->auth = NULL;
  l->nproving--;
  return true;
}

static void link_read(lm_node_links *l, node_link *k) {
  ssize_t n = recv(k->fd, l->chunk, sizeof l->chunk, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) lm_put(&k->in, l->chunk, (size_t)n);
  if (n <= 0 || k->in.failed) link_end(k, n < 0 ? strerror(errno) : n == 0 ? "" : "out of memory");
}

static void link_flush(lm_node_links *l, node_link *k) {
  while (!k->ended && k->sent < k->out.n) {
    ssize_t n = send(k->fd, k->out.data + k->sent, k->out.n - k->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      shutdown(k->fd, SHUT_RDWR); /* link_read finds the end, after received data */
      k->sent = k->out.n;
      break;
    }
    k->sent += (size_t)n;
  }
  lm_bytes_shift(&k->out, k->sent);
  k->sent = 0;
  if (!k->ended) (void)links_watch(l, EPOLL_CTL_MOD, k->fd, k, k->out.n > 0);
}

lm_status lm_node_links_send(lm_node_links *l, int link, const char *text, size_t n) {
  if (n > LM_NODE_MESSAGE_MAX) return lm_fail(LM_E_ARG, "a message of %zu bytes is too long for a link", n);
  node_link *k = links_find(l, link);
  if (!k || k->connecting || k->auth || k->ended) return LM_OK;
  lm_put_string(&k->out, text, n);
  if (k->out.failed || k->out.n > UNSENT_MAX) { /* the peer reads nothing */
    shutdown(k->fd, SHUT_RDWR);
    k->out.n = 0;
    k->out.failed = false;
    return LM_OK;
  }
  link_flush(l, k);
  return LM_OK;
}

/* Returns in *out the current link's next complete message, or its end; false if there is neither. */
static bool next_of_current(lm_node_links *l, lm_node_event *out) {
  node_link *k = l->current;
  if (!k) return false;
  lm_bytes_shift(&k->in, l->taken);
  l->taken = 0;
  uint32_t n = 0;
  if (k->in.n >= HEAD) {
    lm_reader r = lm_reader_of(k->in.data, HEAD);
    n = lm_get_u32(&r);
    if (n > LM_NODE_MESSAGE_MAX) {
      link_end(k, "malformed message");
      k->in.n = n = 0;
    }
  }
  if (k->in.n >= HEAD + (size_t)n && k->in.n > 0) {
    l->taken = HEAD + (size_t)n;
    *out = (lm_node_event){.kind = LM_NODE_MESSAGE, .link = k->id, .text = k->in.data + HEAD, .n = n};
    return true;
  }
  l->current = NULL;
  if (!k->ended) return false;
  memcpy(l->why, k->why, sizeof l->why);
  *out = (lm_node_event){.kind = LM_NODE_CLOSED, .link = k->id, .text = l->why, .n = strlen(l->why)};
  link_free(l, k);
  return true;
}

lm_status lm_node_links_next(lm_node_links *l, lm_node_event *out) {
  struct epoll_event event;
  *out = (lm_node_event){.kind = LM_NODE_NONE};
  drop_late(l);
  while (!next_of_current(l, out)) {
    int n = epoll_wait(l->epoll, &event, 1, 0);
    if (n < 0 && errno != EINTR) return lm_fail_cannot(LM_E_IO, "wait for other nodes", errno);
    if (n <= 0) return LM_OK;
    node_link *k = event.data.ptr;
    if (!k) {
      if (!accept_one(l)) return LM_OK;
      continue;
    }
    bool opened = false;
    if (k->connecting) {
      opened = finish_connecting(l, k);
    } else if (k->auth) {
      opened = prove(l, k);
      if (!opened) continue;
    } else {
      if (event.events & EPOLLOUT) link_flush(l, k);
      if (event.events & ~(uint32_t)EPOLLOUT) link_read(l, k);
    }
    l->current = k;
    l->taken = 0;
    if (!opened) continue;
    *out = (lm_node_event){.kind = LM_NODE_OPENED, .link = k->id};
    return LM_OK;
  }
  return LM_OK;
}
