/* Publishes and finds the store's address by a job's init_method. Private to distributed/. */
#pragma once

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

typedef struct lm_locator {
  enum { LM_BY_ADDRESS, LM_BY_FILE, LM_BY_TORCHRUN, LM_BY_PMIX } by;
  char host[LM_ADDRESS_MAX];     /* LM_BY_ADDRESS: the store's host */
  int port;                      /* LM_BY_ADDRESS: the store's port */
  char torchrun[LM_ADDRESS_MAX]; /* LM_BY_TORCHRUN: address of torchrun's store */
  char path[1024];               /* the file's path, or torchrun's or PMIx's key */
  int fd;                        /* LM_BY_FILE: the file that rank 0 has published and locked; else -1 */
} lm_locator;

typedef struct lm_location {
  char address[LM_ADDRESS_MAX];
  char nonce[40]; /* random text of a published store; "" with LM_BY_ADDRESS */
} lm_location;

/* Parses init_method. generation: the world's; each world has its own PMIx key, since PMIx values cannot be deleted.
 * LM_E_ARG with the expected form if it is malformed. */
lm_status lm_locator_parse(const char *init_method, int generation, lm_locator *out);
/* Returns the host that rank 0's store listens on; "": every interface, published under the machine's most likely
 * address. */
lm_status lm_locator_host(const lm_locator *l, char host[LM_ADDRESS_MAX], const lm_deadline *p);
/* Publishes the address of rank 0's listening store, unless init_method contains it. Replaces a file of an ended job;
 * LM_E_STATE if that job still runs (its file is locked), LM_E_ARG if anything else is there. */
lm_status lm_locator_publish(lm_locator *l, const lm_location *at, const lm_deadline *p);
/* Finds the published address, on the other ranks. LM_E_IO: nothing yet, or nothing complete. LM_E_ARG: another file is
 * at the path or, without a token, the file belongs to another user or others may write to it. */
lm_status lm_locator_find(const lm_locator *l, const char *token, lm_location *at, const lm_deadline *p);
/* Removes rank 0's published file, if any, at the end of the world. Until then it keeps other jobs away, whose ranks
 * could join this job by mistake. */
void lm_locator_withdraw(lm_locator *l, const lm_location *at);
/* Returns the handshake's key, which contains a published store's nonce: so a store left over from another job, even
 * one with the same token, is rejected. If only the job's user can read the nonce (a file, PMIx), it also keeps out
 * processes when there is no token. */
lm_status lm_locator_key(const lm_locator *l, const lm_location *at, const char *token, const char *job, lm_key *out);
