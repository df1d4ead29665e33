#include "distributed/net/auth.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

enum { VERSION = 1, NONCE = 32, MAC = 32, CHALLENGE = 3 + NONCE, HEAD = NONCE + 4, TIMEOUT = 5 };

_Static_assert(sizeof((lm_auth *)0)->in == HEAD + LM_HELLO_MAX + MAC, "room for nonce, hello and proof");

static void auth_ready(void) {
  int code = sodium_init(); /* idempotent and thread-safe */
  (void)code;
}

lm_status lm_key_make(const char *token, const char *job, lm_key *out) {
  auth_ready();
  const char *kind = token ? "luminary token" : "luminary job", *text = token ? token : job ? job : "";
  if (token && !*token) return lm_fail(LM_E_ARG, "LM_TOKEN must not be empty");
  crypto_generichash_state h;
  crypto_generichash_init(&h, NULL, 0, sizeof out->bytes);
  crypto_generichash_update(&h, (const unsigned char *)kind, strlen(kind) + 1);
  crypto_generichash_update(&h, (const unsigned char *)text, strlen(text));
  crypto_generichash_final(&h, out->bytes, sizeof out->bytes);
  return LM_OK;
}

void lm_random_hex(char *out, int n) {
  static const char digits[] = "0123456789abcdef";
  auth_ready();
  for (int i = 0; i < n; i++) {
    unsigned char byte;
    randombytes_buf(&byte, 1);
    *out++ = digits[byte >> 4];
    *out++ = digits[byte & 15];
  }
  *out = 0;
}

static void auth_prove(const lm_key *key, const char *role, const unsigned char *a, const unsigned char *b,
                       const void *hello, size_t n, unsigned char out[MAC]) {
  crypto_generichash_state h;
  crypto_generichash_init(&h, key->bytes, sizeof key->bytes, MAC);
  crypto_generichash_update(&h, (const unsigned char *)role, strlen(role) + 1);
  crypto_generichash_update(&h, a, NONCE);
  crypto_generichash_update(&h, b, NONCE);
  if (n > 0) crypto_generichash_update(&h, hello, n);
  crypto_generichash_final(&h, out, MAC);
}

lm_status lm_auth_connect(int fd, const lm_key *key, const void *hello, size_t n, const lm_deadline *p) {
  unsigned char challenge[CHALLENGE], out[HEAD + LM_HELLO_MAX + MAC], wanted[MAC], got[MAC];
  uint32_t size = (uint32_t)n;
  if (n > LM_HELLO_MAX)
    return lm_fail(LM_E_ARG, "handshake: hello must have at most %d bytes, got %zu", LM_HELLO_MAX, n);
  auth_ready();
  NEED(lm_net_read(fd, challenge, sizeof challenge, p));
  if (memcmp(challenge, "LM", 2) != 0)
    return lm_fail(LM_E_IO, "the server there is not Luminary; another program uses that port");
  if (challenge[2] != VERSION)
    return lm_fail(LM_E_IO, "handshake: the other side has version %d, this process version %d", challenge[2], VERSION);
  const unsigned char *a = challenge + 3;
  randombytes_buf(out, NONCE);
  memcpy(out + NONCE, &size, sizeof size);
  if (n > 0) memcpy(out + HEAD, hello, n);
  auth_prove(key, "connector", a, out, hello, n, out + HEAD + n);
  NEED(lm_net_write(fd, out, HEAD + n + MAC, p));
  NEED(lm_net_read(fd, got, sizeof got, p));
  auth_prove(key, "acceptor", a, out, hello, n, wanted);
  if (sodium_memcmp(got, wanted, MAC) != 0)
    return lm_fail(LM_E_STATE,
                   "it belongs to another job or has another token; LM_TOKEN (without one, the job's id) must be the "
                   "same on all ranks");
  return LM_OK;
}

static lm_status write_now(int fd, const void *data, size_t n) {
  ssize_t put = send(fd, data, n, MSG_NOSIGNAL); /* a new connection's buffer has room */
  return put == (ssize_t)n ? LM_OK : lm_fail(LM_E_IO, "handshake: %s", put < 0 ? strerror(errno) : "no room");
}

lm_status lm_auth_start(lm_auth *a, int fd, const lm_key *key) {
  unsigned char challenge[CHALLENGE] = {'L', 'M', VERSION};
  auth_ready();
  a->key = key;
  a->deadline = lm_seconds() + TIMEOUT;
  a->got = a->hello_n = 0;
  randombytes_buf(a->nonce, sizeof a->nonce);
  memcpy(challenge + 3, a->nonce, NONCE);
  return write_now(fd, challenge, sizeof challenge);
}

lm_status lm_auth_step(lm_auth *a, int fd, bool *done) {
  *done = false;
  for (;;) {
    uint32_t n = 0; /* size of the hello */
    if (a->got >= HEAD) memcpy(&n, a->in + NONCE, sizeof n);
    if (n > LM_HELLO_MAX) return lm_fail(LM_E_IO, "handshake: malformed hello");
    size_t whole = HEAD + n + MAC;
    if (a->got == whole) {
      unsigned char mac[MAC] = {0};
      auth_prove(a->key, "connector", a->nonce, a->in, a->in + HEAD, n, mac);
      bool proved = sodium_memcmp(mac, a->in + HEAD + n, MAC) == 0;
      if (proved)
        auth_prove(a->key, "acceptor", a->nonce, a->in, a->in + HEAD, n, mac);
      else
        memset(mac, 0, sizeof mac);
      lm_status status = write_now(fd, mac, sizeof mac);
      if (!proved) return lm_fail(LM_E_STATE, "handshake: wrong token");
      a->hello_n = n;
      *done = status == LM_OK;
      return status;
    }
    ssize_t got = recv(fd, a->in + a->got, (a->got < HEAD ? HEAD : whole) - a->got, 0);
    if (got > 0)
      a->got += (size_t)got;
    else if (got == 0)
      return lm_fail(LM_E_IO, "handshake: connection closed");
    else if (errno == EAGAIN)
      return LM_OK;
    else if (errno != EINTR)
      return lm_fail(LM_E_IO, "handshake: %s", strerror(errno));
  }
}
