#include "distributed/store/protocol.h"

#include <string.h>

size_t lm_message_begin(lm_bytes *b, lm_message kind) {
  size_t at = b->n;
  lm_put_u32(b, 0);
  lm_put_u8(b, (uint8_t)kind);
  return at;
}

void lm_message_end(lm_bytes *b, size_t at) {
  if (b->failed) return;
  size_t n = b->n - at - sizeof(uint32_t);
  if (n > LM_MESSAGE_MAX) {
    b->failed = true;
    return;
  }
  uint32_t length = (uint32_t)n;
  memcpy(b->data + at, &length, sizeof length);
}

lm_status lm_message_next(lm_framed_stream *s, lm_message *kind, lm_reader *fields, bool *complete) {
  NEED(lm_stream_next(s, LM_MESSAGE_MAX, fields, complete));
  if (!*complete) return LM_OK;
  uint8_t k = lm_get_u8(fields);
  if (k < LM_M_JOIN || k > LM_M_LAST) return lm_fail(LM_E_IO, "malformed message: unknown kind %d", k);
  *kind = (lm_message)k;
  return LM_OK;
}

void lm_put_member(lm_bytes *b, const lm_member *m) {
  lm_put_text(b, m->host);
  lm_put_text(b, m->host_id);
  lm_put_text(b, m->unix_address);
  lm_put_text(b, m->tcp_address);
  lm_put_u32(b, m->gpu_ids.n);
  for (uint32_t i = 0; i < m->gpu_ids.n; i++) lm_put_u64(b, m->gpu_ids.id[i]);
}

void lm_get_member(lm_reader *r, lm_member *out) {
  lm_get_text(r, out->host, sizeof out->host);
  lm_get_text(r, out->host_id, sizeof out->host_id);
  lm_get_text(r, out->unix_address, sizeof out->unix_address);
  lm_get_text(r, out->tcp_address, sizeof out->tcp_address);
  out->gpu_ids.n = lm_get_u32(r);
  if (out->gpu_ids.n > LM_DEVICE_MAX) {
    out->gpu_ids.n = 0;
    r->failed = true;
  }
  for (uint32_t i = 0; i < out->gpu_ids.n; i++) out->gpu_ids.id[i] = lm_get_u64(r);
}
