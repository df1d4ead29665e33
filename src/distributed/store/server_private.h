/* The store's inside: one thread with one epoll loop. Private to server*.c.
 *
 * A connection proves that it knows the token, says who it is (JOIN), and is then a member's until it closes. Handlers
 * never close one themselves: they mark it as gone, and the loop reaps it when the round's events are all handled, so
 * that an error published in the same instant in which its process ends is heard first. */
#pragma once

#include <stdatomic.h>

#include "distributed/net/auth.h"
#include "distributed/store/protocol.h"
#include "distributed/store/server.h"

enum {
  LM_KEY_MAX = 64 << 10,
  LM_VALUE_MAX = 32 << 20,
  LM_VALUES_MAX = 256 << 20, /* all keys and values together */
  LM_UNSENT_MAX = 256 << 20, /* a connection's */
  LM_KEY_SLOTS = 1024
};

typedef enum lm_conn_state { LM_CONN_PROVING, LM_CONN_JOINING, LM_CONN_MEMBER, LM_CONN_CLOSING } lm_conn_state;

typedef struct lm_conn {
  struct lm_conn *prev, *next; /* in list */
  struct lm_conn_list *list;
  int fd, rank; /* -1: none */
  lm_conn_state state;
  bool gone, dirty, watches_out;
  lm_failure_kind as; /* once gone: what becomes of its member; LM_FAILURE_DIED closes at once */
  const char *why;    /* in words, or NULL; static text */
  double deadline;    /* of proving and joining; of closing */
  double heard;       /* when bytes came last */
  lm_auth *auth;      /* while proving */
  lm_bytes in, out;
  size_t sent; /* of out */
  int waits;   /* keys it waits for */
  struct lm_conn *next_dirty;
} lm_conn;

typedef struct lm_conn_list {
  lm_conn *first, *last; /* the oldest first */
  int n;
} lm_conn_list;

typedef struct lm_member_call { /* a call that a member is in */
  uint32_t group;
  lm_ticket ticket;
  double since; /* when the store first heard of it */
} lm_member_call;

enum { LM_PASSED = 4 };

typedef struct lm_server_member { /* a rank */
  lm_conn *conn;                  /* while it is there */
  bool joined, left, died, frozen;
  lm_member who;
  lm_member_call last;  /* the call entered last; seq 0 and no text: none */
  lm_member_call *open; /* calls it has waited in for long, one a group */
  int n_open;
  size_t capacity;
  lm_member_call passed[LM_PASSED]; /* calls it continued from before it met the others, the newest few */
  unsigned n_passed;
} lm_server_member;

typedef struct lm_waiter {
  lm_conn *conn;
  uint32_t id;
  struct lm_waiter *next;
} lm_waiter;

typedef struct lm_entry { /* a key that is set, or waited for */
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
  int wake;
  char address[LM_ADDRESS_MAX];
  struct lm_server *next; /* among all of the process */

  /* the thread's own */
  int epoll, listener; /* listener: -1 once closed */
  int size, generation, max_pending;
  lm_key key;
  double heartbeat_timeout;
  double now, pulse_at, listen_at, silence_at; /* lm_seconds(); listen_at 0: is listening */
  lm_conn_list pending, members, closing, gone;
  lm_conn *dirty;
  bool welcomed;
  lm_server_member *member_table; /* [size] */
  int joined;
  char refusal[512]; /* why the last refused one was refused; "" */
  lm_failure cause;  /* kind NONE: all is well */
  double cause_at;
  lm_failure held; /* an effect whose cause may still come */
  double held_until;
  lm_entry *slots[LM_KEY_SLOTS];
  size_t stored;
  char chunk[64 << 10]; /* what is read goes here first */
};

/* ---- server_conn.c: connections */

/* After adding to c->out: it is sent at the end of the round. */
void lm_conn_queued(lm_server *s, lm_conn *c);
/* It is of no more use. `why` is static text. */
void lm_conn_drop(lm_server *s, lm_conn *c, lm_failure_kind as, const char *why);
void lm_conn_no_memory(lm_server *s, lm_conn *c);
/* Nothing more is read from it; it closes when what it has to hear is sent. */
void lm_conn_close_gently(lm_server *s, lm_conn *c);
/* Nobody new may come. */
void lm_server_close_listener(lm_server *s);
void lm_conn_move(lm_conn *c, lm_conn_list *list);
void lm_conn_free(lm_server *s, lm_conn *c);
/* What epoll says of it. */
void lm_conn_serve(lm_server *s, lm_conn *c, uint32_t events);
/* Ends a round: sends what is queued, and reaps dropped connections, which queues messages to others. */
void lm_conns_end_round(lm_server *s);
void lm_server_accept(lm_server *s);
void lm_server_listen(lm_server *s, bool on); /* off: until s->listen_at */

/* ---- handlers: false is nonsense */

/* server_members.c */
bool lm_server_join(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_goodbye(lm_server *s, lm_conn *c, lm_reader *r);
bool lm_server_fail(lm_server *s, lm_conn *c, lm_reader *r); /* FAIL */
void lm_server_lost(lm_server *s, lm_conn *c);               /* a member's connection is gone */
void lm_server_publish(lm_server *s, const lm_failure *failure);
/* Published in a moment, unless the cause of it comes first. Of several it is a mismatch, best in the store's view. */
void lm_server_hold(lm_server *s, const lm_failure *failure);
void lm_server_send_heartbeat(lm_server *s);
void lm_server_check_silent(lm_server *s); /* who has not been heard of */
void lm_server_publish_held(lm_server *s); /* time is up for what was held back */
void lm_server_abandoned(lm_server *s);
bool lm_server_is_done(const lm_server *s); /* released, and nobody is there who needs it */
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
/* To a question of that number. */
void lm_server_reply(lm_server *s, lm_conn *c, uint32_t id, bool found, const char *value, size_t n);
void lm_server_cancel_waits(lm_server *s, lm_conn *c);
void lm_server_free_keys(lm_server *s);
