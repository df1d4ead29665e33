/* Mutual proof of the job's token: challenge and response with libsodium's keyed hash. Nothing secret crosses the wire,
 * and a process without the token learns only that this is the protocol.
 *
 *   acceptor  -> connector   "LM" version, nonce A
 *   connector -> acceptor    nonce B, hello, mac(key, "connector", A, B, hello)
 *   acceptor  -> connector   mac(key, "acceptor", A, B, hello), or zeros if the connector's was wrong
 *
 * `hello` is what the connector says of itself (at most LM_HELLO_MAX bytes). */
#pragma once

#include <stdint.h>

#include "base/bytes.h"
#include "distributed/net/socket.h"

enum { LM_HELLO_MAX = 512 };

typedef struct lm_key {
  unsigned char bytes[32];
} lm_key;

/* From the token if there is one, else from the job's id. */
lm_status lm_key_of(const char *token, const char *job, lm_key *out);
/* n random bytes as 2n hex digits and a closing zero. */
void lm_random_hex(char *out, int n);

/* The connector's side. LM_E_STATE: the other side has another token (or none); LM_E_IO: closed, garbage, or out of
 * time. */
lm_status lm_auth_connect(int fd, const lm_key *key, const void *hello, size_t n, const lm_deadline *p);

/* The acceptor's, for an event loop: start writes the challenge, step reads what is there. */
typedef struct lm_auth {
  const lm_key *key;
  double deadline; /* 5 s after the start: the loop drops it then */
  unsigned char nonce[32];
  unsigned char in[32 + 4 + LM_HELLO_MAX + 32];
  size_t got;
  size_t hello_n; /* once done: the hello is at lm_auth_hello */
} lm_auth;
lm_status lm_auth_start(lm_auth *a, int fd, const lm_key *key);
/* An error means: close it. */
lm_status lm_auth_step(lm_auth *a, int fd, bool *done);
static inline const void *lm_auth_hello(const lm_auth *a) { return a->in + 32 + 4; }
