/* Sockets between Lua states, in several processes or in one, and the messages that go over them: a text, tensors and
 * handles. Between processes the kernel takes and returns a message complete or not at all, so any number
 * of states may send and receive at one socket and be killed meanwhile. Tensors' memory goes along as descriptors, and
 * a text that is long as a memory file, so a message of any size is sent without waiting for the other side to read. */
#pragma once

#include "mp/handle.h"

typedef struct lm_mp_message {
  char *text;
  size_t n;
  int ntensors, nhandles;
  lm_tensor **tensors;
  lm_handle **handles;
  struct lm_mp_message *next; /* while it is passed to another thread */
} lm_mp_message;

/* What a message is made of; owned by the caller. */
typedef struct lm_message_content {
  const char *text;
  size_t n;
  int ntensors, nhandles;
  lm_tensor *const *tensors;
  lm_handle *const *handles;
} lm_message_content;

LM_API lm_status lm_channel_pair(int fd[2]);
LM_API lm_status lm_connection_pair(lm_handle *out[2]);

/* ---- packed_message.c */

/* A message as it is sent. It keeps what it needs: the content may go. */
typedef struct lm_packed_message lm_packed_message;
/* The tensors must be shared (shared_tensors.h). Whether one requires a gradient goes along; its gradient and
 * history do not.
 */
LM_API lm_status lm_packed_message_new(const lm_message_content *c, lm_packed_message **out);
LM_API void lm_packed_message_free(lm_packed_message *l); /* NULL is fine */
/* Sends it if there is room: *sent says so. `number` goes along. LM_E_IO "connection closed" where the receiver is
 * gone. */
LM_API lm_status lm_packed_message_send(int fd, lm_packed_message *l, uint64_t number, bool *sent);
LM_API uint32_t lm_packed_message_descriptors(const lm_packed_message *l);
/* The next message, if one is there: *out is NULL else, and with *closed none will come. LM_E_OOM where this process
 * has too many descriptors open for it: then it stays where it is. */
LM_API lm_status lm_packed_message_receive(int fd, lm_mp_message **out, bool *closed);
/* The next message's number, 0 for one that is not one of ours; it stays where it is. False if there is none. */
LM_API bool lm_packed_message_peek(int fd, uint64_t *number);

/* ---- channel.c */

/* Waits until a socket has something to read (or its end), or room: `seconds` at most, < 0 as long as it takes, in
 * either case until a signal comes. */
LM_API lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready);

/* To one's worker or parent, who reads soon: waits 10 s at most. */
LM_API lm_status lm_channel_send(int fd, const lm_message_content *c);
/* To another thread of this process: the message itself changes hands. It stays yours after an error. */
LM_API lm_status lm_channel_pass(int fd, lm_mp_message *message);
/* The next message: `seconds` at most, < 0 as long as it takes or until a signal comes. *out is NULL if none has come
 * by then, or, with *closed, if none will. passed: what the other side does is lm_channel_pass. */
LM_API lm_status lm_channel_receive(int fd, bool passed, double seconds, lm_mp_message **out, bool *closed);
/* Closes it; messages that were passed and never received are freed. */
LM_API void lm_channel_close(int fd, bool passed);

/* A message of further tensors (lm_share_again) and further handles, for lm_channel_pass. */
LM_API lm_status lm_mp_message_new(const lm_message_content *c, lm_mp_message **out);
/* One of that text, and of tensors and handles that are still to come; NULL without memory. */
lm_mp_message *lm_mp_message_empty(const char *text, size_t n, int ntensors, int nhandles);
LM_API void lm_mp_message_free(lm_mp_message *p); /* NULL is fine */
