/* Implements the client side of PyTorch's TCPStore: a request is a byte with its kind, numbers little-endian, strings
 * as uint64 length and bytes. A connection starts with VALIDATE. */
#include "distributed/store/torchrun.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "distributed/net/interface.h"

enum { VALIDATE = 0, SET = 1, GET = 3, WAIT = 6, MAGIC = 0x3C85F7CE, STOP_WAITING = 0 };

static void put_text(lm_bytes *b, const char *s) {
  lm_put_u64(b, strlen(s));
  lm_put(b, s, strlen(s));
}

static lm_status torchrun_reach(const char *address, const lm_deadline *p, int *fd) {
  lm_status status = lm_net_connect(address, p, fd);
  if (status != LM_E_IO) return status;
  char which[LM_ADDRESS_MAX + 48];
  snprintf(which, sizeof which, "cannot reach torchrun's store at %s", address);
  return lm_fail_in(status, which);
}

lm_status lm_torchrun_seen_from(const char *address, char host[LM_ADDRESS_MAX], const lm_deadline *p) {
  int fd;
  lm_status status = torchrun_reach(address, p, &fd);
  if (status != LM_OK) return status;
  status = lm_net_configured_host(fd, address, host);
  close(fd);
  return status;
}

/* Connects, sets `key` to `value` unless that is NULL, and waits until the key is set. The caller closes *fd. */
static lm_status torchrun_ask(const char *address, const char *key, const char *value, const lm_deadline *p, int *fd) {
  lm_status status = LM_OK;
  LM_OWNED_BYTES b = {0};
  uint8_t reply = STOP_WAITING;
  NEED(torchrun_reach(address, p, fd));
  lm_put_u8(&b, VALIDATE);
  lm_put_u32(&b, MAGIC);
  if (value) {
    lm_put_u8(&b, SET);
    put_text(&b, key);
    put_text(&b, value);
  }
  lm_put_u8(&b, WAIT);
  lm_put_u64(&b, 1);
  put_text(&b, key);
  if (b.failed) return LM_E_OOM;
  NEED(lm_net_write(*fd, b.data, b.n, p));
  NEED(lm_net_read(*fd, &reply, sizeof reply, p));
  if (reply != STOP_WAITING) status = lm_fail(LM_E_IO, "the server at %s is not torchrun's store", address);

  return status;
}

lm_status lm_torchrun_set(const char *address, const char *key, const char *value, const lm_deadline *p) {
  LM_OWNED_FD fd = -1;
  return torchrun_ask(address, key, value, p, &fd);
}

lm_status lm_torchrun_get(const char *address, const char *key, char *value, size_t capacity, const lm_deadline *p) {
  LM_OWNED_BYTES b = {0};
  uint64_t n = 0;
  LM_OWNED_FD fd = -1;
  NEED(torchrun_ask(address, key, NULL, p, &fd));
  lm_put_u8(&b, GET);
  put_text(&b, key);
  if (b.failed) return LM_E_OOM;
  NEED(lm_net_write(fd, b.data, b.n, p));
  NEED(lm_net_read(fd, &n, sizeof n, p));
  if (n >= capacity) n = capacity - 1;
  NEED(lm_net_read(fd, value, (size_t)n, p));
  value[n] = 0;
  return LM_OK;
}
