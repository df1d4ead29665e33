/* Declares the store's state, used by one thread with an epoll loop. Private to server*.c.
 *
 * An authenticated connection sends JOIN, and is then a member's until it closes. Handlers never close one: they mark
 * it as gone, and the loop reaps it after all events of the round. So an error that a process publishes just before it
 * ends is handled before its death. */
#pragma once

#include <stdatomic.h>

#include "distributed/net/acceptor.h"
#include "distributed/net/framed_stream.h"
#include "distributed/store/protocol.h"
#include "distributed/store/server.h"

enum {
  LM_KEY_MAX = 64 << 10,
  LM_VALUE_MAX = 32 << 20,
  LM_VALUES_MAX = 256 << 20, /* bytes of all keys and values together */
  LM_UNSENT_MAX = 256 << 20, /* bytes queued for one connection; beyond that it is closed */
  LM_KEY_SLOTS = 1024
};

typedef enum lm_conn_state { LM_CONN_JOINING, LM_CONN_MEMBER, LM_CONN_CLOSING } lm_conn_state;

typedef struct lm_conn {
  lm_framed_stream stream;
  lm_server *server;
  struct lm_conn *prev, *next; /* neighbors in `list` */
  struct lm_conn_list *list;
  int rank; /* -1: none */
  lm_conn_state state;
  bool gone;
  lm_failure_kind as; /* once gone: its member's failure; LM_FAILURE_DIED closes at once */
  const char *why;    /* the failure's message, static text, or NULL */
  double deadline;    /* lm_seconds() by which it must have joined or, when closing, is closed */
  double heard;       /* lm_seconds() of the last bytes */
  int waits;          /* number of keys it waits for */
} lm_conn;

typedef struct lm_conn_list {
  lm_conn *first, *last; /* the oldest first */
  int n;
} lm_conn_list;

typedef struct lm_member_call { /* a call that a member is in */
  uint32_t group;
  lm_ticket ticket;
  double since; /* lm_seconds() when it was first reported */
} lm_member_call;

enum { LM_PASSED = 4 };

typedef struct lm_server_member { /* a rank */
  lm_conn *conn;                  /* NULL before it joins and after its connection closed */
  bool joined, left, died, frozen;
  lm_member who;
  lm_member_call last;  /* the call entered last; seq 0 and no text: none */
  lm_member_call *open; /* [n_open] calls that it has waited in for 100 ms, at most one for each group */
  int n_open;
  size_t capacity;
  lm_member_call passed[LM_PASSED]; /* the last calls that it passed without waiting for the others */
  unsigned n_passed;                /* number of such calls so far */
} lm_server_member;

typedef struct lm_waiter {
  lm_conn *conn;
  uint32_t id;
  struct lm_waiter *next;
} lm_waiter;

typedef struct lm_entry { /* a key that is set or waited for */
  struct lm_entry *next;
  uint64_t hash;
  lm_waiter *waiters;
  char *value; /* NULL: not set */
  size_t n, n_key;
  char key[];
} lm_entry;

struct lm_server {
  /* shared with the owner */
  _Atomic int references; /* the thread's and the owner's */
  _Atomic bool released, stopped;
  lm_loop loop; /* which the owner may wake */
  char address[LM_ADDRESS_MAX];
  struct lm_server *next; /* next in the process's list of servers */

  /* used by the thread alone */
  lm_acceptor acceptor; /* without a listener once all have joined */
  int size, generation;
  lm_key key;
  double heartbeat_timeout;
  double now, pulse_at, silence_at; /* lm_seconds() */
  lm_conn_list joining, members, closing, gone;
  bool welcomed;
  lm_server_member *member_table; /* [size] */
  int joined;
  char refusal[512]; /* reason of the last refusal; "": none */
  lm_failure cause;  /* kind NONE: no failure */
  double cause_at;   /* lm_seconds() of the cause */
  lm_failure held;   /* a failure held back, since its cause may still come; kind NONE: none */
  double held_until; /* lm_seconds() at which it becomes the cause */
  lm_entry *slots[LM_KEY_SLOTS];
  size_t stored; /* bytes of all entries and waiters */
};

/* ---- server_conn.c: connections */

/* Sends c->stream.out, to which the caller has added a message. */
void lm_conn_send(lm_server *s, lm_conn *c);
/* Marks c as gone, with its member's failure. `why` is static text or NULL. */
void lm_conn_drop(lm_server *s, lm_conn *c, lm_failure_kind as, const char *why);
void lm_conn_no_memory(lm_server *s, lm_conn *c);
/* Ignores further input, and closes once all output is sent, after 1 s at most. */
void lm_conn_close_gently(lm_server *s, lm_conn *c);
void lm_conn_leave_list(lm_conn *c);
void lm_conn_move(lm_conn *c, lm_conn_list *list);
/* Stops accepting and drops connections that have not joined. */
void lm_server_stop_accepting(lm_server *s);

/* ---- server_io.c, above all others but server.c */

void lm_conn_free(lm_server *s, lm_conn *c);
/* Reaps dropped connections in the order in which they were dropped: of several deaths the first is the cause. */
void lm_conns_reap(lm_server *s);
/* Takes over a connection that is authenticated; ctx is the server. */
void lm_server_admit(void *ctx, int fd, lm_reader hello);

/* ---- message handlers, which return false for a malformed message */

/* server_members.c */
bool lm_server_join(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_goodbye(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_fail(lm_server *s, lm_conn *c, lm_reader *r); /* handles FAIL */
void lm_server_lost(lm_server *s, lm_conn *c);               /* a closed connection: its rank failed, unless it left */
void lm_server_publish(lm_server *s, const lm_failure *failure);
/* Holds a failure back for 0.15 s, in which its cause may come. Of several keeps a mismatch, best the store's own. */
void lm_server_hold(lm_server *s, const lm_failure *failure);
void lm_server_send_heartbeat(lm_server *s);
void lm_server_check_silent(lm_server *s); /* reports members without a heartbeat as frozen */
void lm_server_publish_held(lm_server *s); /* publishes the held failure */
void lm_server_abandoned(lm_server *s);
bool lm_server_is_done(const lm_server *s); /* true if no member needs a released store any more */
void lm_server_free_members(lm_server *s);

/* server_calls.c */
bool lm_server_alive(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_passed(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_waiting(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_resumed(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_missing(lm_server *s, lm_conn *c, lm_reader *r);

/* server_keys.c */
bool lm_server_set(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_get(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_add(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_forget(lm_server *s, lm_conn *c, lm_reader *r);
/* Sends REPLY for the request with that id. */
void lm_server_reply(lm_server *s, lm_conn *c, uint32_t id, bool found, const char *value, size_t n);
void lm_server_cancel_waits(lm_server *s, lm_conn *c);
void lm_server_free_keys(lm_server *s);
