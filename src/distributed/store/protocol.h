/* Defines the messages between members and the store, after auth.h's handshake (with an empty hello). A message is a
 * frame of at most LM_MESSAGE_MAX bytes: a uint8 kind, and fields as base/bytes.h writes them. A side that
 * receives a malformed message closes the connection. */
#pragma once

#include "base/bytes.h"
#include "device/device.h"
#include "distributed/net/framed_stream.h"
#include "distributed/net/socket.h"
#include "distributed/store/failure.h"
#include "distributed/store/ticket.h"

enum { LM_PROTOCOL = 5, LM_MESSAGE_MAX = 64 << 20 };

typedef enum lm_message {
  /* member to store */
  LM_M_JOIN = 1, /* u32 LM_PROTOCOL, u32 rank, u32 size, u32 generation, member; answered by WELCOME once all ranks have
                    joined, by REFUSED, or by AHEAD */
  LM_M_SET,      /* string key, string value */
  LM_M_GET,      /* u32 id, string key, u8 wait; answered by REPLY, with wait 1 once the key is set */
  LM_M_ADD,      /* u32 id, string key, u64 delta; answered by REPLY with the sum as decimal text */
  LM_M_FORGET,  /* u32 group: closed here; once all ranks of the world sent it, the keys "group/<id>/…" are deleted */
  LM_M_ALIVE,   /* u32 group, ticket of the call entered last (zeros: none); sent each second or more often */
  LM_M_PASSED,  /* u32 group, ticket of a call that this rank passed without waiting for the others */
  LM_M_WAITING, /* u32 group, ticket of a call that this rank has waited in for 100 ms */
  LM_M_RESUMED, /* u32 group, u64 seq of a call that this rank no longer waits in */
  LM_M_MISSING, /* u32 id, u32 group, u64 seq, u32 n, n x u32 rank in the world; answered by REPLY with the ranks of
                   these that have not entered that call: u32 n, n x party (ranks that have not joined last), text
                   refusal. seq 0 with n = 0 requests all ranks that have not joined */
  LM_M_FAIL,    /* failure; the first one becomes the cause, which FAILURE sends to all */
  LM_M_GOODBYE, /* u32 n, n x (u32 group, u64 seq last completed), u32 group, ticket of the call entered last. Then the
                   member closes */
  /* store to member */
  LM_M_WELCOME, /* u32 size, for each rank a member: text host name, text host id, text unix address, text tcp address,
                   GPUs (u32 n, n x u64) */
  LM_M_REFUSED, /* text: the reason; final */
  LM_M_AHEAD,   /* the store is of an earlier generation: the member closes and tries again later */
  LM_M_REPLY,   /* u32 id, u8 found, string value */
  LM_M_PULSE,   /* the store's heartbeat, as often as ALIVE */
  LM_M_FAILURE, /* failure: the cause */
  LM_M_LEFT,    /* u32 rank that said goodbye, then GOODBYE's fields */
  LM_M_LAST = LM_M_LEFT
} lm_message;

/* The GPUs that a rank may use with nccl, as hashes of their UUIDs: its device if it chose one, else all visible ones,
 * of which it takes the one at its local rank. */
typedef struct lm_gpu_ids {
  uint32_t n;
  uint64_t id[LM_DEVICE_MAX];
} lm_gpu_ids;

typedef struct lm_member {
  char host[64], host_id[64], unix_address[LM_ADDRESS_MAX], tcp_address[LM_ADDRESS_MAX];
  lm_gpu_ids gpu_ids; /* empty without GPUs or nccl, or if nccl is not offered */
} lm_member;
void lm_put_member(lm_bytes *b, const lm_member *m);
void lm_get_member(lm_reader *r, lm_member *out);

/* Begin and end a message in b: begin returns the offset of its length, and end fills the length in. */
size_t lm_message_begin(lm_bytes *b, lm_message kind);
void lm_message_end(lm_bytes *b, size_t at);
/* Returns kind and fields of the next received message, as lm_stream_next does. LM_E_IO: malformed. */
lm_status lm_message_next(lm_framed_stream *s, lm_message *kind, lm_reader *fields, bool *complete);
