/* One message of the kernel's, whole or not at all: a heading, bytes and descriptors. More descriptors than one takes
 * go in a socket of their own, which is sent instead. Private to mp/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Which follow: the body, or one descriptor more, first of all, of a memory file that holds it; the other descriptors,
 * or one of a socket in which they are. */
enum { LM_BODY_IN_FILE = 1, LM_FDS_IN_SOCKET = 2 };

typedef struct lm_datagram_header {
  uint32_t magic, nfds, flags, reserved;
  uint64_t number;
} lm_datagram_header;

typedef struct lm_received_fds { /* descriptors that came; -1: taken */
  int *fd;
  uint32_t n, next;
} lm_received_fds;

int lm_received_fds_take(lm_received_fds *l); /* -1: there is no more */
void lm_received_fds_close(lm_received_fds *l);

/* *sent is false, and nothing was sent, where there is no room. */
lm_status lm_datagram_send(int fd, const lm_datagram_header *h, const void *body, size_t n, const int *fds, bool *sent);
/* The next one, if there is one: *got. *n: room in body, then what came. *closed: none will come. LM_E_OOM, and it
 * stays where it is, while there are not enough free descriptors for it. */
lm_status lm_datagram_receive(int fd, lm_datagram_header *h, void *body, size_t *n, lm_received_fds *l, bool *got,
                              bool *closed);
/* The next one's heading; it stays where it is. False if there is none. All 0 where that is not one of ours, or none
 * will come. */
bool lm_datagram_peek(int fd, lm_datagram_header *h);
lm_status lm_datagram_error(int error); /* the error for a socket's errno; 0: its other end is closed */
lm_status lm_envelope_foreign(int fd);  /* the error for a message that is not one of ours */
lm_status lm_datagram_malformed(void);  /* the error for one of ours whose fields are wrong */
