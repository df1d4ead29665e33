/* Sends and receives single kernel messages, complete or not at all: a header, bytes and descriptors. More descriptors
 * than one message can carry are put into a socket, which is sent instead. Private to mp/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Flags: the first descriptor is a memory file that holds the body; the other descriptors are inside one socket; the
 * number is the address of an lm_mp_message. */
enum { LM_BODY_IN_FILE = 1, LM_FDS_IN_SOCKET = 2, LM_BODY_PASSED = 4 };

typedef struct lm_datagram_header {
  uint32_t magic, nfds, flags, reserved;
  uint64_t number;
} lm_datagram_header;

typedef struct lm_received_fds { /* received descriptors; -1: taken */
  int *fd;
  uint32_t n, next;
} lm_received_fds;

/* Creates two connected sockets. */
lm_status lm_datagram_pair(int fd[2]);

int lm_received_fds_take(lm_received_fds *l); /* -1 if none is left */
void lm_received_fds_close(lm_received_fds *l);

/* Sends a message; *sent is false, and nothing was sent, if there is no room. */
lm_status lm_datagram_send(int fd, const lm_datagram_header *h, const void *body, size_t n, const int *fds, bool *sent);
/* Receives the next message. *got: there was one. *n: capacity of body, then its size. *closed: none will follow.
 * LM_E_OOM if too few descriptors are free; the message then stays in the socket. */
lm_status lm_datagram_receive(int fd, lm_datagram_header *h, void *body, size_t *n, lm_received_fds *l, bool *got,
                              bool *closed);
/* Reads the next message's header without receiving it; all 0 for a foreign message or the end of the stream. Returns
 * false if there is none. */
bool lm_datagram_peek(int fd, lm_datagram_header *h);
lm_status lm_datagram_error(int error); /* the error for a socket's errno; 0: its other end is closed */
lm_status lm_datagram_foreign(int fd);  /* the error for a message of another sender */
lm_status lm_datagram_malformed(void);  /* the error for a message with invalid fields */
