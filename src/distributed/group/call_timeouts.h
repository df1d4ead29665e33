/* Records the call that a thread waits in: its ticket, start, deadline (the default timeout is in world.h), and the
 * failures it has seen. Private to distributed/. */
#pragma once

#include "distributed/group/group_core.h"

typedef enum lm_waiting_kind {
  LM_WAITING_UNTIL_DONE, /* a call that runs on this thread until it is done */
  LM_WAITING_FOR_A_TEST, /* a short test of a call, or its enqueueing: without a deadline and reports to the store */
  LM_WAITING_ENQUEUED    /* an enqueued call on the thread that watches it; reported when it was enqueued */
} lm_waiting_kind;

/* A call that runs on this thread, which lm_group_ticket and lm_group_check use. */
typedef struct lm_waiting {
  lm_group_core *core;
  lm_ticket ticket;
  double since, deadline, timeout; /* lm_seconds() of start and end; the time between in seconds */
  double test;                     /* lm_seconds() of the next full check; before it only `news` is compared */
  unsigned news;                   /* number of failures and goodbyes that this call has seen */
  int peer;                        /* the rank of the group whose goodbye ends it, or one of the two below */
  bool reported, warned;           /* true once the store knows of the wait; once the warning is printed */
  lm_issuer *issuer;               /* set while the call is being enqueued, so that the issuer's failure ends it */
  lm_waiting_kind kind;
  struct lm_waiting *outer;
} lm_waiting;

enum { LM_PEER_ALL = -2, LM_PEER_ANY = -1 }; /* ANY: ends when all others are gone */

/* Push and pop the thread's current call, usually without a system call. begin sets `peer` to ALL, or ANY for a send, a
 * receive or a test, whose caller may set the peer afterwards; timeout in seconds. end records the seq as completed if
 * `completed`, and notifies the store that a reported wait is over. */
void lm_waiting_begin(lm_waiting *w, lm_waiting_kind kind, lm_group_core *core, const lm_ticket *ticket,
                      double timeout);
void lm_waiting_end(lm_waiting *w, bool completed);
/* Reports to the store that this rank passed a numbered call without waiting for the others; otherwise a rank that
 * waits in another call of that seq would not learn of the mismatch. */
void lm_call_passed(lm_group_core *core, const lm_ticket *ticket);
/* Waits up to a second for the cause of a failure of this rank's enqueued calls (how: "ncclRemoteError: …") and returns
 * it as the error; if none becomes known, reports this rank's failure as the cause. */
lm_status lm_group_broken(lm_group *g, const char *how);
