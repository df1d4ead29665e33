/* Sends messages (a text, tensors and handles) over sockets between Lua states, in several processes or in one. Between
 * processes the kernel moves a message completely or not at all, so any number of states may use one socket and be
 * killed meanwhile. Tensors' memory is sent as descriptors, and a long text as a memory file, so sending never waits
 * for the other side to read. */
#pragma once

#include "mp/handle.h"

typedef struct lm_mp_message {
  char *text;
  size_t n;
  int ntensors, nhandles;
  lm_tensor **tensors;
  lm_handle **handles;
  struct lm_mp_message *next; /* used while the message passes to another thread */
} lm_mp_message;

/* The contents of a message to send; owned by the caller. */
typedef struct lm_message_content {
  const char *text;
  size_t n;
  int ntensors, nhandles;
  lm_tensor *const *tensors;
  lm_handle *const *handles;
} lm_message_content;

/* ---- message.c */

/* Creates a message with new tensors over the same memory (lm_share_again) and copied handles, for lm_channel_pass. */
LM_API lm_status lm_mp_message_new(const lm_message_content *c, lm_mp_message **out);
/* Creates a message with that text and NULL for each tensor and handle; NULL when out of memory. */
lm_mp_message *lm_mp_message_empty(const char *text, size_t n, int ntensors, int nhandles);
LM_API void lm_mp_message_free(lm_mp_message *p); /* NULL is fine */

/* ---- packed_message.c */

/* A message in its sent form. It keeps references to its contents: the caller may free them. */
typedef struct lm_packed_message lm_packed_message;
/* Packs a message. Its tensors must be shared (shared_tensors.h). Their requires_grad flags are included; their
 * gradients and history are not. */
LM_API lm_status lm_packed_message_new(const lm_message_content *c, lm_packed_message **out);
LM_API void lm_packed_message_free(lm_packed_message *l); /* NULL is fine */
/* Sends the message and its `number` if there is room; *sent is false otherwise. LM_E_IO "connection closed" if the
 * receiver is gone. */
LM_API lm_status lm_packed_message_send(int fd, lm_packed_message *l, uint64_t number, bool *sent);
LM_API uint32_t lm_packed_message_descriptors(const lm_packed_message *l);
/* Receives the next message; *out is NULL if there is none, and *closed is true if none will follow. LM_E_OOM if this
 * process has too many open descriptors; the message then stays in the socket. */
LM_API lm_status lm_packed_message_receive(int fd, lm_mp_message **out, bool *closed);
/* Reads the next message's number without receiving it; 0 for a foreign message. Returns false if there is none. */
LM_API bool lm_packed_message_peek(int fd, uint64_t *number);

/* ---- channel.c */

LM_API lm_status lm_connection_pair(lm_handle *out[2]);
/* Creates a Unix socket at `path`, a new file, that listens. Nobody accepts: a client's connection ends when the handle
 * and all its copies are closed, which is what it waits for. The file stays. */
LM_API lm_status lm_listener_new(const char *path, lm_handle **out);
/* Waits until a socket has something to read (or its end), or room: at most `seconds` (< 0: no limit), or until a
 * signal arrives. */
LM_API lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready);

/* Sends to this process's worker or parent; waits at most 10 s for room. */
LM_API lm_status lm_channel_send(int fd, const lm_message_content *c);
/* Sends a pointer to a message to another thread of this process, which then owns it. After an error the caller
 * does. */
LM_API lm_status lm_channel_pass(int fd, lm_mp_message *message);
/* Receives the next message; waits at most `seconds` (< 0: no limit), or until a signal. *out is NULL if none has
 * arrived, or, with *closed, if none will follow. `passed`: the other side uses lm_channel_pass. */
LM_API lm_status lm_channel_receive(int fd, bool passed, double seconds, lm_mp_message **out, bool *closed);
/* Closes fd and frees messages that were passed and never received. */
LM_API void lm_channel_close(int fd, bool passed);
