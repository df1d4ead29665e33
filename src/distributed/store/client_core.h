/* The insides of a client, shared by client.c (the connection and its thread), client_keys.c (questions to the store)
 * and client_health.c (who failed, who left). */
#pragma once

#include <pthread.h>

#include "distributed/store/client.h"

typedef struct lm_question { /* lies on the asking thread's stack */
  uint32_t id;
  bool done, found;
  void *data; /* NULL and n > 0: there was no memory for it */
  size_t n;
  struct lm_question *next;
} lm_question;

typedef struct lm_departure {
  bool gone;
  double at;
  lm_bytes completed; /* pairs of u32 group and u64 seq */
  uint32_t group;
  lm_ticket last;
} lm_departure;

typedef enum lm_phase { LM_JOINING, LM_JOINED, LM_REFUSED, LM_AHEAD, LM_CUT } lm_phase;

struct lm_client {
  int rank, size;
  double heartbeat_timeout;
  struct lm_incoming *incoming;
  int wakeup_fd; /* wakes the thread */
  int wake;      /* readable for good once there is a cause */
  pthread_t thread;
  bool running;
  _Atomic unsigned news;
  _Atomic bool failed;
  lm_failure cause; /* written once, before `failed` */

  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t changed;
  int fd; /* -1: there is no store (any more) */
  lm_phase phase;
  char why[512]; /* of LM_REFUSED and LM_CUT */
  lm_member *members;
  lm_bytes out;
  size_t sent; /* of out */
  lm_question *questions;
  uint32_t last_id;
  lm_departure *left; /* [size] */
  uint32_t entered_group;
  lm_ticket entered;
  bool moved;       /* since the last heartbeat */
  unsigned npassed; /* and what it then passed, the newest few */
  struct {
    uint32_t group;
    lm_ticket ticket;
  } passed[4];
  bool leaving;

  lm_bytes in; /* the thread's own, down to the end */
  double last_received, last_heartbeat,
      last_turn; /* lm_seconds() of: the last bytes, the last heartbeat, the last turn */
};

/* All with the lock held. begin returns the place for end, which sends what the socket takes and leaves the rest to the
 * thread. */
size_t lm_client_begin(lm_client *c, lm_message kind);
lm_status lm_client_end(lm_client *c, size_t at);
/* A message of a call this rank is in, or was. */
void lm_client_report(lm_client *c, lm_message kind, uint32_t group, const lm_ticket *ticket);
/* Waits until something changes or `until`, 50 ms at most. */
void lm_client_wait_briefly(lm_client *c, double until);
/* The first one counts. */
void lm_client_take_cause(lm_client *c, const lm_failure *failure);
void lm_client_note_left(lm_client *c, lm_reader *fields);
void lm_client_reply(lm_client *c, lm_reader *fields);
