/* Authenticates both ends of a connection by the job's token: challenge and response with libsodium's keyed hash. No
 * secret is sent, and a process without the token learns only that this is the protocol.
 *
 *   acceptor  -> connector   "LM" version, nonce A
 *   connector -> acceptor    nonce B, hello, mac(key, "connector", A, B, hello)
 *   acceptor  -> connector   mac(key, "acceptor", A, B, hello), or zeros if the connector's was wrong
 *
 * `hello` is the connector's message about itself, at most LM_HELLO_MAX bytes. */
#pragma once

#include <stdint.h>

#include "base/bytes.h"
#include "distributed/net/socket.h"

enum { LM_HELLO_MAX = 512 };

typedef struct lm_key {
  unsigned char bytes[32];
} lm_key;

/* Derives the key from the token or, if that is NULL, from the job's id. LM_E_ARG: the token is empty. */
lm_status lm_key_make(const char *token, const char *job, lm_key *out);
/* Writes n random bytes as 2n hex digits and a closing zero. */
void lm_random_hex(char *out, int n);

/* Runs the connector's side. LM_E_STATE: the other side has another token (or none); LM_E_IO: connection closed, other
 * protocol, or timed out. */
lm_status lm_auth_connect(int fd, const lm_key *key, const void *hello, size_t n, const lm_deadline *p);

/* State of the acceptor's side, for an event loop: start writes the challenge, step reads available bytes. */
typedef struct lm_auth {
  const lm_key *key;
  double deadline; /* lm_seconds() at which the loop drops it, 5 s after the start */
  unsigned char nonce[32];
  unsigned char in[32 + 4 + LM_HELLO_MAX + 32];
  size_t got;
  size_t hello_n; /* size of the hello, once done; lm_auth_hello returns its address */
} lm_auth;
lm_status lm_auth_start(lm_auth *a, int fd, const lm_key *key);
/* Continues a handshake; *done is true once the connector is authenticated. After an error the caller closes fd. */
lm_status lm_auth_step(lm_auth *a, int fd, bool *done);
static inline const void *lm_auth_hello(const lm_auth *a) { return a->in + 32 + 4; }
