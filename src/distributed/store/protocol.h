/* What members and the store say to each other, after auth.h's handshake (the store's hello is empty). A message is
 * uint32 length of what follows (at most LM_MESSAGE_MAX), uint8 kind, fields as base/bytes.h writes them. A side that
 * receives nonsense closes the connection. */
#pragma once

#include "base/bytes.h"
#include "device/device.h"
#include "distributed/net/socket.h"
#include "distributed/store/failure.h"
#include "distributed/store/ticket.h"

enum { LM_PROTOCOL = 5, LM_MESSAGE_MAX = 64 << 20 };

typedef enum lm_message {
  /* member to store */
  LM_M_JOIN = 1, /* u32 LM_PROTOCOL, u32 rank, u32 size, u32 generation, member; answered by WELCOME once all are there,
                    by REFUSED, or by AHEAD */
  LM_M_SET,      /* string key, string value */
  LM_M_GET,      /* u32 id, string key, u8 wait; answered by REPLY, with wait once it is set */
  LM_M_ADD,      /* u32 id, string key, u64 delta; REPLY with the sum as decimal text */
  LM_M_FORGET,   /* u32 group: this member is done with it; when all of the world are, its keys "group/<id>/…" go */
  LM_M_ALIVE,    /* u32 group, ticket: each second or more often, with the call entered last (group 0, zeros if none) */
  LM_M_PASSED,   /* u32 group, ticket: continued from it without having heard from the others */
  LM_M_WAITING,  /* u32 group, ticket: has waited in it for 100 ms */
  LM_M_RESUMED,  /* u32 group, u64 seq: waits there no more */
  LM_M_MISSING, /* u32 id, u32 group, u64 seq, u32 n, n x u32 rank in the world: REPLY with those of these that have not
                   come to that call and where they are: u32 n, n x party (those that have not joined last), text
                   refusal. seq 0 with n = 0: who has not joined */
  LM_M_FAIL,    /* failure; a first one becomes the cause. Answered by FAILURE (the cause) to all */
  LM_M_GOODBYE, /* u32 n, n x (u32 group, u64 seq last completed), u32 group, ticket of the call entered last. Then the
                   member closes */
  /* store to member */
  LM_M_WELCOME, /* u32 size, for each rank a member: text host name, text host id, text unix address, text tcp address,
                   GPUs (u32 n, n x u64) */
  LM_M_REFUSED, /* text: why; final */
  LM_M_AHEAD,   /* this store is of an earlier generation: close, try again a little later */
  LM_M_REPLY,   /* u32 id, u8 found, string value */
  LM_M_PULSE,   /* as often as ALIVE */
  LM_M_FAILURE, /* failure: the cause */
  LM_M_LEFT,    /* u32 rank, then GOODBYE's fields */
  LM_M_LAST = LM_M_LEFT
} lm_message;

/* The GPUs a rank may use with nccl, by hashes of their UUIDs: its device, where it has chosen one, else all it sees,
 * of which it takes the one at its local rank. */
typedef struct lm_gpu_ids {
  uint32_t n;
  uint64_t id[LM_DEVICE_MAX];
} lm_gpu_ids;

typedef struct lm_member {
  char host[64], host_id[64], unix_address[LM_ADDRESS_MAX], tcp_address[LM_ADDRESS_MAX];
  lm_gpu_ids gpu_ids; /* none: it sees none, or has no nccl, or does not offer it */
} lm_member;
void lm_put_member(lm_bytes *b, const lm_member *m);
void lm_get_member(lm_reader *r, lm_member *out);

/* begin returns the place of the length; end fills it in. */
size_t lm_message_begin(lm_bytes *b, lm_message kind);
void lm_message_end(lm_bytes *b, size_t at);
/* If `in` starts with a whole message: its kind and fields, and how many bytes it takes in *used; *used = 0 if more is
 * needed. LM_E_IO: nonsense. */
lm_status lm_message_next(const lm_bytes *in, lm_message *kind, lm_reader *fields, size_t *used);
