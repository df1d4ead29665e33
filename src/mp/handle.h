/* Manages objects that Lua states of several processes and threads share: ends of sockets and words in shared memory.
 * They have no names and disappear with their last user, however it ends. A message copies a handle to another state
 * (channel.h). */
#pragma once

#include <sys/types.h>

#include "mp/shared_tensors.h"

typedef enum lm_handle_kind {
  LM_CONNECTION = 1,
  LM_THREAD_CONNECTION, /* between threads of one process: messages pass by reference */
  LM_QUEUE,
  LM_LOCK,
  LM_SEMAPHORE,
  LM_HANDLE_KINDS
} lm_handle_kind;

enum { LM_HANDLE_SOCKETS = 2 };

typedef struct lm_handle {
  lm_handle_kind kind;
  pid_t process;              /* the one that created this handle; a fork's child has a copy of its memory */
  int fd[LM_HANDLE_SOCKETS];  /* for reading and for writing; a connection has one for both. -1: none, or closed */
  lm_segment *words;          /* shared state of a queue, lock or semaphore */
  struct lm_backlog *backlog; /* queues only: messages that wait for room in the socket (queue.h) */
  int depth;                  /* locks and semaphores: number of times it is held through this handle */
} lm_handle;

typedef struct lm_handle_trait {
  int sockets;
  size_t words;                  /* bytes of shared state; a semaphore has more, for its permits */
  void (*abandon)(lm_handle *h); /* releases, before h is freed, what is held through it; NULL: nothing is */
} lm_handle_trait;

extern const lm_handle_trait lm_handle_traits[LM_HANDLE_KINDS]; /* handle_kinds.c */

/* Creates a handle that owns the sockets and the segment's reference; on failure, closes and releases them. */
LM_API lm_status lm_handle_make(lm_handle_kind kind, const int *fds, lm_segment *words, lm_handle **out);
/* Creates a handle of a kind that has words, with zeroed ones. */
lm_status lm_handle_with_words(lm_handle_kind kind, const int *fds, lm_handle **out);
/* Creates another handle for the same object, with duplicated sockets. */
LM_API lm_status lm_handle_copy(const lm_handle *h, lm_handle **out);
int lm_handle_sockets(lm_handle_kind kind);
/* Releases a held lock or semaphore, closes the sockets and releases the memory. NULL is fine. */
LM_API void lm_handle_free(lm_handle *h);
