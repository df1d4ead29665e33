/* What Lua states of several processes and threads have in common: ends of sockets and words in shared memory. Nothing
 * of it has a name; it goes when the last one who has it ends, however that happens. A copy goes to another state with
 * a message (channel.h). */
#pragma once

#include "mp/shared_tensors.h"

typedef enum lm_handle_kind {
  LM_CONNECTION = 1,
  LM_QUEUE,
  LM_LOCK,
  LM_FLAG,
  LM_SEMAPHORE,
  LM_HANDLE_KINDS
} lm_handle_kind;

enum { LM_HANDLE_SOCKETS = 2 };

typedef struct lm_handle {
  lm_handle_kind kind;
  int fd[LM_HANDLE_SOCKETS];  /* to read from, and to write to; a connection has one for both. -1: none, or closed */
  lm_segment *words;          /* of a queue, lock, flag or semaphore */
  struct lm_backlog *backlog; /* of a queue: what waits for room in the socket (queue.h) */
  int depth;                  /* of a lock or semaphore: how often it is held through this handle */
} lm_handle;

/* Takes the sockets over, and the segment's reference, also by an error. */
LM_API lm_status lm_handle_of(lm_handle_kind kind, const int *fds, lm_segment *words, lm_handle **out);
/* Of a kind that has words, zeroed ones. */
LM_API lm_status lm_handle_with_words(lm_handle_kind kind, const int *fds, lm_handle **out);
/* Another one for the same thing, with sockets of its own. */
LM_API lm_status lm_handle_copy(const lm_handle *h, lm_handle **out);
void lm_close_all(const int *fds, int n); /* but those that are -1 */
LM_API int lm_handle_sockets(lm_handle_kind kind);
/* Closes the sockets and restores the memory. NULL is fine. */
LM_API void lm_handle_free(lm_handle *h);
