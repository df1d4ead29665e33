/* Where the store is, by what a job was started with. Private to distributed/. */
#pragma once

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

typedef struct lm_locator {
  enum { LM_BY_ADDRESS, LM_BY_FILE, LM_BY_TORCHRUN, LM_BY_PMIX } by;
  char host[LM_ADDRESS_MAX]; /* BY_ADDRESS: of the store */
  int port;
  char torchrun[LM_ADDRESS_MAX]; /* BY_TORCHRUN: torchrun's store */
  char path[1024];               /* the file, or torchrun's or PMIx's key */
  int fd;                        /* BY_FILE: the file that rank 0 has published and holds a lock on; else -1 */
} lm_locator;

typedef struct lm_location {
  char address[LM_ADDRESS_MAX];
  char nonce[40]; /* of this store, unless its address was known beforehand; "" then */
} lm_location;

/* generation: of the world. What PMIx was given cannot be taken back, so each world has a key of its own there. The
 * error says what would do. */
lm_status lm_locator_of(const char *init_method, int generation, lm_locator *out);
/* Rank 0: on which of this machine's addresses the store should listen, "" for all of them and the likeliest to be
 * given. */
lm_status lm_locator_host(const lm_locator *l, char host[LM_ADDRESS_MAX], const lm_deadline *p);
/* Rank 0, once its store listens at `at`: where the others look, if they have to. A file of a job that is over is
 * replaced; LM_E_STATE if its job continues, as its lock shows, and LM_E_ARG if anything else is there. */
lm_status lm_locator_publish(lm_locator *l, const lm_location *at, const lm_deadline *p);
/* The others: LM_E_IO if there is nothing yet, or nothing whole; LM_E_ARG if something else is where the file should
 * come to be, or without a token a file that is another user's or that others may write to. */
lm_status lm_locator_find(const lm_locator *l, const char *token, lm_location *at, const lm_deadline *p);
/* Rank 0, when the world ends: until then a file keeps other jobs away, whose ranks could be taken for this one's. Does
 * nothing where no file was published. */
void lm_locator_withdraw(lm_locator *l, const lm_location *at);
/* The key of the handshake. A store that was published has its nonce in the key: one that is left over from another
 * job, even of the same token, proves to be another. Where only the job's own user can read it (a file, PMIx), the
 * nonce is also a secret that keeps out whoever has no token either. */
lm_status lm_locator_key(const lm_locator *l, const lm_location *at, const char *token, const char *job, lm_key *out);
