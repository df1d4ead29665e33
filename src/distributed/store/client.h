/* A member's side of the store: one connection, served by a C thread that also takes incoming links.
 *
 * What the thread learns (who failed, who left) is kept here; `news` counts it, so that a waiting loop needs to look at
 * one number. Everything may be called from any thread. */
#pragma once

#include <stdatomic.h>

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"
#include "distributed/store/protocol.h"

typedef struct lm_client lm_client;
struct lm_incoming;

typedef struct lm_client_config {
  int rank, size, generation;
  double heartbeat_timeout;     /* 0: off */
  lm_member self;               /* sent with JOIN */
  struct lm_incoming *incoming; /* served by the client's thread; outlives it */
} lm_client_config;

/* fd: authenticated; the client's from now on, also after an error. Sends JOIN. */
lm_status lm_client_open(const lm_client_config *config, int fd, lm_client **out);
/* Waits for WELCOME. *again: the store is of an earlier generation, and another attempt makes sense. */
lm_status lm_client_welcome(lm_client *c, const lm_deadline *p, bool *again);
/* Says goodbye with what is in `completed` (pairs of u32 group and u64 seq), and ends the thread. Bounded: 0.5 s. What
 * is called later fails. Once is enough. */
void lm_client_leave(lm_client *c, const lm_bytes *completed);
void lm_client_free(lm_client *c); /* after leave; NULL is fine */

const lm_member *lm_client_member(const lm_client *c, int rank); /* after WELCOME */

/* ---- key and value; waiting ones poll p */

lm_status lm_client_set(lm_client *c, const char *key, const void *data, size_t n);
lm_status lm_client_get(lm_client *c, const char *key, bool wait, const lm_deadline *p, bool *found, void **data,
                        size_t *n);
lm_status lm_client_add(lm_client *c, const char *key, int64_t delta, const lm_deadline *p, int64_t *out);
/* This rank is done with the group: once all ranks of the world are, the store forgets the group's keys. */
lm_status lm_client_forget(lm_client *c, uint32_t group);

/* ---- health */

/* Failures and goodbyes heard of so far; from 0. */
unsigned lm_client_news(const lm_client *c);
/* The cause once it is known, else NULL. It does not change any more. */
const lm_failure *lm_client_cause(const lm_client *c);
int lm_client_wake_fd(const lm_client *c); /* readable once there is a cause */
/* Reports to the store, waits (`seconds` at most) for its verdict, and takes `failure` for the cause if none comes. */
const lm_failure *lm_client_fail(lm_client *c, const lm_failure *failure, double seconds);
/* Waits `seconds` at most, or less if there is news; the cause as far as it is known. */
const lm_failure *lm_client_await(lm_client *c, unsigned news, double seconds);
/* Whether `rank` has said goodbye; if so when, the last seq it completed in `group`, and its last call. */
bool lm_client_left(lm_client *c, int rank, uint32_t group, double *at, uint64_t *completed, lm_ticket *last);
/* The call entered last, for heartbeats and the goodbye. */
void lm_client_entered(lm_client *c, uint32_t group, const lm_ticket *ticket);
/* A call this rank continues from without having heard from the others: given with the next heartbeat, so that whoever
 * waits in another one of that number hears of it. */
void lm_client_passed(lm_client *c, uint32_t group, const lm_ticket *ticket);
void lm_client_waiting(lm_client *c, uint32_t group, const lm_ticket *ticket);
void lm_client_resumed(lm_client *c, uint32_t group, uint64_t seq);
/* Who of `ranks` (in the world) has not come to that call; nobody if the store does not say within `seconds`. n = 0:
 * who has not joined. */
void lm_client_missing(lm_client *c, uint32_t group, uint64_t seq, int n, const int *ranks, double seconds,
                       lm_missing *out);
