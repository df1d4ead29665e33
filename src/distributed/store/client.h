/* Connects a member to the store; a C thread serves the connection and also accepts incoming links.
 *
 * The thread records failures and goodbyes, and counts them in `news`, so that a waiting loop needs to check one number
 * only. All functions may be called from any thread. */
#pragma once

#include <stdatomic.h>

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"
#include "distributed/store/protocol.h"

typedef struct lm_client lm_client;
struct lm_link_listener;

typedef struct lm_client_config {
  int rank, size, generation;
  double heartbeat_timeout;          /* seconds; 0: off */
  lm_member self;                    /* sent with JOIN */
  struct lm_link_listener *incoming; /* served by the client's thread; outlives it */
} lm_client_config;

/* Starts a client on fd, which is authenticated, and sends JOIN. Takes fd over, also on error. */
lm_status lm_client_open(const lm_client_config *config, int fd, lm_client **out);
/* Waits for WELCOME. *again is true if the store is of an earlier generation, so that a retry makes sense. */
lm_status lm_client_welcome(lm_client *c, const lm_deadline *p, bool *again);
/* Says goodbye with `completed` (pairs of u32 group and u64 seq; may be NULL), and ends the thread, in 0.5 s at most.
 * Later requests fail; a second call does nothing. */
void lm_client_leave(lm_client *c, const lm_bytes *completed);
void lm_client_free(lm_client *c); /* leaves first; c may be NULL */

const lm_member *lm_client_member(const lm_client *c, int rank); /* valid after WELCOME; own entry always */

/* ---- keys and values; functions that wait call p's check */

lm_status lm_client_set(lm_client *c, const char *key, const void *data, size_t n);
lm_status lm_client_get(lm_client *c, const char *key, bool wait, const lm_deadline *p, bool *found, void **data,
                        size_t *n);
lm_status lm_client_add(lm_client *c, const char *key, int64_t delta, const lm_deadline *p, int64_t *out);
/* Reports that this rank has closed the group; once all ranks of the world have, the store deletes the group's keys. */
lm_status lm_client_forget(lm_client *c, uint32_t group);

/* ---- health */

/* Returns the number of failures and goodbyes received so far. */
unsigned lm_client_news(const lm_client *c);
/* Returns the cause, which does not change any more; NULL: none is known. */
const lm_failure *lm_client_cause(const lm_client *c);
int lm_client_wake_fd(const lm_client *c); /* descriptor to poll; readable once there is a cause */
/* Reports a failure and returns the cause: the store's answer or, if none comes within `seconds`, `failure` itself. */
const lm_failure *lm_client_fail(lm_client *c, const lm_failure *failure, double seconds);
/* Waits until lm_client_news differs from `news`, at most `seconds`; returns the cause or NULL. */
const lm_failure *lm_client_await(lm_client *c, unsigned news, double seconds);
/* Returns true if `rank` has said goodbye, at *at (lm_seconds()); its last seq completed in `group`, and last call. */
bool lm_client_left(lm_client *c, int rank, uint32_t group, double *at, uint64_t *completed, lm_ticket *last);
/* Stores the call entered last, for heartbeats and the goodbye. */
void lm_client_entered(lm_client *c, uint32_t group, const lm_ticket *ticket);
/* Stores a call that this rank passed without waiting for the others, for the next heartbeat, so that a rank that waits
 * in another call of that seq learns of the mismatch. */
void lm_client_passed(lm_client *c, uint32_t group, const lm_ticket *ticket);
void lm_client_waiting(lm_client *c, uint32_t group, const lm_ticket *ticket);
void lm_client_resumed(lm_client *c, uint32_t group, uint64_t seq);
/* Returns those of `ranks` (n of them, in the world) that have not entered the call; none if the store does not answer
 * within `seconds`. n = 0 with seq 0: all that have not joined. The caller frees *out (lm_missing_free). */
void lm_client_missing(lm_client *c, uint32_t group, uint64_t seq, int n, const int *ranks, double seconds,
                       lm_missing *out);
