/* Sends messages (a text, tensors and handles) over sockets between Lua states, in several processes or in one. Between
 * processes the kernel moves a message completely or not at all, so any number of states may use one socket and be
 * killed meanwhile. Tensors' memory is sent as descriptors, and a long text as a memory file, so sending never waits
 * for the other side to read. A message to another thread of this process is only an address (LM_THREAD_CONNECTION). */
#pragma once

#include "base/bytes.h"
#include "mp/handle.h"
#include "mp/ipc.h"

typedef struct lm_mp_message {
  char *text;
  size_t n;
  int ntensors, nhandles;
  lm_tensor **tensors;
  lm_handle **handles;
  struct lm_mp_message *next; /* used while the message passes to another thread */
} lm_mp_message;

/* ---- message.c */

/* Creates a message with c's text, new tensors over the same memory (lm_share_again) and copied handles. */
lm_status lm_mp_message_new(const lm_mp_message *c, lm_mp_message **out);
/* Creates a message with that text and NULL for each tensor and handle; NULL when out of memory. */
lm_mp_message *lm_mp_message_empty(const char *text, size_t n, int ntensors, int nhandles);
LM_API void lm_mp_message_free(lm_mp_message *p); /* NULL is fine */
/* Enters a message whose address a socket will carry into a list, and removes it on arrival: false for an address that
 * is not in the list, since others may write to the socket's descriptor by mistake. */
void lm_mp_message_depart(lm_mp_message *p);
bool lm_mp_message_arrive(const lm_mp_message *p);

/* ---- packed_message.c */

/* A message in its sent form. It keeps references to its contents: the caller may free them. */
typedef struct lm_packed_message {
  struct lm_packed_message *next; /* used while the message waits for room in a queue (queue.c) */
  bool is_passed;                 /* goes to another thread by reference */
  lm_mp_message *contents;        /* keeps the descriptors open */
  lm_ipc_export *ipc_export;
  lm_segment *file; /* holds the body if it is long */
  lm_bytes body;    /* u32 numbers of tensors, files, refcounts, handles; then tensors, handles, text */
  int *fds;         /* the first is reserved for the body's file */
  uint32_t nfds;
} lm_packed_message;

/* Packs a message, which the caller keeps, for a handle of that kind. For other processes its tensors must be shared
 * (shared_tensors.h). Their requires_grad flags are included; their gradients and history are not. */
LM_API lm_status lm_packed_message_new(lm_handle_kind kind, const lm_mp_message *c, lm_packed_message **out);
LM_API void lm_packed_message_free(lm_packed_message *l); /* NULL is fine */
/* Sends the message and its `number` if there is room; *sent is false otherwise. LM_E_IO "connection closed" if the
 * receiver is gone. */
lm_status lm_packed_message_send(int fd, lm_packed_message *l, uint64_t number, bool *sent);
/* Receives the next message; *out is NULL if there is none, and *closed is true if none will follow. LM_E_OOM if this
 * process has too many open descriptors; the message then stays in the socket. */
lm_status lm_packed_message_receive(int fd, lm_mp_message **out, bool *closed);

/* ---- channel.c */

/* Creates both ends of a connection, LM_CONNECTION or LM_THREAD_CONNECTION; NULLs on failure. */
LM_API lm_status lm_connection_pair(lm_handle_kind kind, lm_handle *out[2]);
/* Creates a Unix socket at `path`, a new file, that listens. Nobody accepts: a client's connection ends when the handle
 * and all its copies are closed, which is what it waits for. The file stays. */
LM_API lm_status lm_listener_new(const char *path, lm_handle **out);
/* Waits until a socket has something to read (or its end), or room: at most `seconds`, or until a signal arrives. */
LM_API lm_status lm_channel_wait(int fd, short events, double seconds, bool *ready);

/* Sends l; *sent is false if there was no room within `seconds`, or a signal arrived. The caller keeps l. */
LM_API lm_status lm_connection_put(const lm_handle *h, lm_packed_message *l, double seconds, bool *sent);
/* Receives the next message; *out is NULL if none arrived within `seconds`, or before a signal, or, with *closed, if
 * none will follow. */
LM_API lm_status lm_connection_get(const lm_handle *h, double seconds, lm_mp_message **out, bool *closed);
/* Frees passed messages that this end has not received, before it is closed. */
void lm_connection_abandon(lm_handle *h);
