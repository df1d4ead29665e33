/* The record of a call that this rank waits in: since when, until when, whether anybody was notified. Private to
 * distributed/. */
#pragma once

#include "distributed/group/group_core.h"

/* A call that runs on this thread: what lm_group_ticket and lm_group_check look at. */
typedef struct lm_waiting {
  lm_group_core *core;
  lm_ticket ticket;
  double since, deadline, timeout; /* lm_seconds() */
  double test;                     /* when lm_group_check has to do more than look at `news` */
  unsigned news;                   /* failures and goodbyes that this call has seen */
  int peer;                        /* whose goodbye ends it: a rank of the group, or one of the two below */
  bool reported, warned;
  lm_issuer *issuer; /* of a call that is being enqueued: what fails others of its kind fails it too */
  bool issued;       /* a thread of ours watches what was enqueued */
  struct lm_waiting *outer;
} lm_waiting;

enum { LM_PEER_ALL = -2, LM_PEER_ANY = -1 }; /* ANY: ends when all others are gone */

/* begin makes it the thread's current call; end takes it away, notes its seq as completed if it was,
 * and notifies the store that the wait is over if it had been given. Both without a system call as a rule. begin sets
 * `peer` to ALL, or ANY for a send or receive, whose caller may name the peer afterwards. */
void lm_waiting_begin(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket, double timeout);
void lm_waiting_end(lm_waiting *w, bool completed);
/* This rank continues from a numbered call without having heard from the others: who waits in another one of that
 * number would not hear of it. */
void lm_call_passed(lm_group_core *core, const lm_ticket *ticket);
/* For a look in passing at a send or receive that nobody waits for: there is no end to its time, and nobody is
 * notified. */
void lm_waiting_look(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket);
void lm_waiting_looked(lm_waiting *w);
/* For a call that was enqueued and runs by itself, on the thread that watches it: as begin, but where this rank was
 * last is not given again. Ended by lm_waiting_end. */
void lm_waiting_watch(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket, double timeout);
/* What this rank enqueued has failed by itself ("ncclRemoteError: …"). As lm_group_lost: a second for the cause to
 * become known, else this rank's failure is the cause. */
lm_status lm_group_broken(lm_group *g, const char *how);
