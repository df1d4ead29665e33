/* Declares a client's state, shared by client.c (the connection and its thread), client_keys.c (requests to the store)
 * and client_health.c (failures, departed ranks). */
#pragma once

#include <pthread.h>

#include "distributed/net/framed_stream.h"
#include "distributed/store/client.h"

typedef struct lm_client_request { /* a request, on the requesting thread's stack */
  uint32_t id;
  bool done, found;
  void *data; /* the value, zero-terminated; NULL if found is set: out of memory */
  size_t n;
  struct lm_client_request *next;
} lm_client_request;

typedef struct lm_departure {
  bool gone;          /* true once the rank has said goodbye */
  double at;          /* lm_seconds() of that */
  lm_bytes completed; /* pairs of u32 group and u64 seq completed last */
  uint32_t group;     /* id of the group of its last call */
  lm_ticket last;     /* ticket of its last call */
} lm_departure;

typedef enum lm_phase { LM_JOINING, LM_JOINED, LM_REFUSED, LM_AHEAD, LM_CUT } lm_phase;

struct lm_client {
  lm_framed_stream stream; /* to the store; `in` is used by the thread alone, the rest needs the lock */
  lm_loop loop;            /* the thread's; others only wake it */
  int rank, size;
  double heartbeat_timeout;
  struct lm_link_listener *incoming;
  int wake; /* readable forever once there is a cause */
  pthread_t thread;
  bool running;
  _Atomic unsigned news;
  _Atomic bool failed;
  lm_failure cause; /* written once, before `failed` */

  pthread_mutex_t lock; /* guards the fields up to `leaving` */
  pthread_cond_t changed;
  lm_phase phase;
  char why[512]; /* reason of LM_REFUSED and LM_CUT */
  lm_member *members;
  lm_client_request *questions;
  uint32_t last_id;
  lm_departure *left; /* [size] */
  uint32_t entered_group;
  lm_ticket entered;
  bool moved;       /* true if a call was entered since the last heartbeat */
  unsigned npassed; /* number of calls passed since then; the last 4 are in `passed` */
  struct {
    uint32_t group;
    lm_ticket ticket;
  } passed[4];
  bool leaving;

  /* lm_seconds() of the last bytes, the last heartbeat, the last turn; used by the thread alone */
  double last_received, last_heartbeat, last_turn;
};

static inline bool lm_client_is_connected(const lm_client *c) { return c->stream.watch.fd >= 0; }
/* Begin and end a message. end sends as much as the socket takes, and the thread sends the rest. All functions
 * here need the lock. */
size_t lm_client_begin(lm_client *c, lm_message kind);
lm_status lm_client_end(lm_client *c, size_t at);
/* Sends a message of the given kind about a call. */
void lm_client_report(lm_client *c, lm_message kind, uint32_t group, const lm_ticket *ticket);
/* Waits until `changed` is signaled or `until`, at most 50 ms. */
void lm_client_wait_briefly(lm_client *c, double until);
/* Sets the cause unless there is one. */
void lm_client_take_cause(lm_client *c, const lm_failure *failure);
void lm_client_note_left(lm_client *c, lm_reader *fields);
void lm_client_reply(lm_client *c, lm_reader *fields);
