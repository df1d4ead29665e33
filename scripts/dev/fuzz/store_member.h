/* A made-up member of the store, for spec/support/store/ and scripts/dev/fuzz/store.c: it speaks the protocol
 * and nothing else. */
#ifndef LM_STORE_MEMBER_H
#define LM_STORE_MEMBER_H

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "distributed/store/protocol.h"
#include "distributed/store/server.h"

typedef struct member {
  int fd;
  lm_framed_stream stream; /* holds what was received; it has no socket */
} member;

static inline lm_deadline patience_of(double seconds) {
  return (lm_deadline){.deadline = lm_seconds() + seconds, .wake_fd = -1};
}

static inline lm_status member_connect(member *m, const char *address, const lm_key *key) {
  lm_deadline p = patience_of(10);
  *m = (member){.fd = -1, .stream.watch.fd = -1};
  lm_status status = lm_net_connect(address, &p, &m->fd);
  if (status == LM_OK) lm_net_tune(m->fd, 0);
  if (status == LM_OK) status = lm_auth_connect(m->fd, key, NULL, 0, &p);
  if (status != LM_OK && m->fd >= 0) {
    close(m->fd);
    m->fd = -1;
  }
  return status;
}

static inline void member_close(member *m) {
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
  lm_stream_drop_input(&m->stream);
}

/* Sends what is in b, and empties it. */
static inline lm_status member_send(member *m, lm_bytes *b) {
  lm_deadline p = patience_of(10);
  lm_status status = b->failed ? LM_E_OOM : lm_net_write(m->fd, b->data, b->n, &p);
  lm_bytes_free(b);
  return status;
}

static inline void put_join(lm_bytes *b, int rank, int size, int generation) {
  lm_member self = {.host_id = "the same host", .unix_address = "unix:here", .tcp_address = "127.0.0.1:1"};
  self.gpu_ids = (lm_gpu_ids){.n = 1, .id = {7}};
  snprintf(self.host, sizeof self.host, "host%d", rank);
  size_t at = lm_message_begin(b, LM_M_JOIN);
  lm_put_u32(b, LM_PROTOCOL);
  lm_put_u32(b, (uint32_t)rank);
  lm_put_u32(b, (uint32_t)size);
  lm_put_u32(b, (uint32_t)generation);
  lm_put_member(b, &self);
  lm_message_end(b, at);
}

/* Receives the next message that is no PULSE; fields are valid until the next call. False: none in time, or the end. */
static inline bool member_receive(member *m, lm_message *kind, lm_reader *fields, double seconds) {
  lm_deadline p = patience_of(seconds);
  for (;;) {
    bool complete;
    if (lm_message_next(&m->stream, kind, fields, &complete) != LM_OK) return false;
    if (complete && *kind != LM_M_PULSE) return true;
    if (complete) continue;
    char chunk[64 << 10];
    if (lm_net_read(m->fd, chunk, 1, &p) != LM_OK) return false;
    ssize_t more = recv(m->fd, chunk + 1, sizeof chunk - 1, MSG_DONTWAIT);
    lm_put(&m->stream.in, chunk, 1 + (more > 0 ? (size_t)more : 0));
    if (m->stream.in.failed) return false;
  }
}

static inline bool member_expect(member *m, lm_message wanted, lm_reader *fields, double seconds) {
  lm_message kind;
  return member_receive(m, &kind, fields, seconds) && kind == wanted;
}

#endif
