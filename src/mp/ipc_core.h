/* Private to ipc_export.c (memory that this process exports), ipc_import.c (memory that it has of others) and
 * ipc_refcount.c (the thread that watches both). */
#pragma once

#include <pthread.h>

#include "device/driver.h"
#include "mp/ipc.h"

enum { LM_IPC_PROCESS_ID = 16 /* bytes */ };

typedef struct lm_ipc_exported { /* what one message exported */
  uint64_t number;
  int fd; /* of the pipe's reading end */
  int n, nevents;
  lm_tensor **tensors; /* NULL for those on the CPU */
  struct lm_ipc_exported_event {
    lm_device device;
    void *event; /* NULL: the device has none for other processes, or no more */
    char handle[LM_IPC_BYTES];
  } * events; /* one a device */
  struct lm_ipc_exported *next;
} lm_ipc_exported;

typedef struct lm_ipc_refcount { /* a writing end that came with a message */
  int rc, fd;
} lm_ipc_refcount;

typedef struct lm_ipc_location { /* where memory is, for any process */
  char owner[LM_IPC_PROCESS_ID];
  uint64_t exported;
  uint32_t index;            /* in it */
  char handle[LM_IPC_BYTES]; /* of the segment */
  uint64_t offset;           /* there */
} lm_ipc_location;

/* What a message holds of a tensor, in memory layout: both processes are on one machine. */
typedef struct lm_ipc_tensor_header {
  char sender[LM_IPC_PROCESS_ID];
  lm_ipc_location at;
  uint32_t refcount; /* the owner's, among the message's */
  uint32_t has_event;
  char event[LM_IPC_BYTES]; /* to wait for */
} lm_ipc_tensor_header;

/* The owner of a storage over imported memory; for memory of this process, the event to wait for. */
typedef struct lm_ipc_imported {
  lm_ipc_location at;
  struct mapping *map;    /* NULL: memory of this process */
  lm_ipc_refcount *of[2]; /* of the owner, and of the message */
  lm_device device;
  lm_storage *storage; /* valid while the release runs */
  uint64_t used;
  void *mark;
  struct lm_ipc_imported *next;
} lm_ipc_imported;

extern struct lm_ipc_thread {
  pthread_mutex_t lock; /* of what follows, and of leases' counts */
  lm_ipc_exported *exported_list;
  lm_ipc_imported *returned; /* to be given back */
  int nexported, nreturned;
  int wakeup_fd;   /* wakes the thread */
  uint64_t latest; /* loan's number */
  char self[LM_IPC_PROCESS_ID];
} lm_ipc_thread;

/* ---- ipc_refcount.c */

/* Once it has returned well, the thread runs and this process has its id. */
lm_status lm_ipc_thread_start(void);

/* ---- ipc_export.c */

void lm_ipc_exported_free(lm_ipc_exported *l); /* NULL is fine */
/* Whether all events are reached, which a stream of another process may still wait for. */
bool lm_ipc_exported_is_done(const lm_ipc_exported *l);

/* ---- ipc_import.c */

lm_ipc_refcount *lm_ipc_refcount_retain(lm_ipc_refcount *l);
void lm_ipc_refcount_release(lm_ipc_refcount *l);         /* NULL is fine */
lm_ipc_imported *lm_ipc_imported_of(const lm_storage *s); /* NULL: it is this process's own */
/* Whether the process that owns the memory has ended. */
bool lm_ipc_owner_has_ended(const lm_ipc_refcount *l);
lm_status lm_ipc_owner_error(lm_device device); /* the error then */
/* The memory is returned once the device is done with it; false: not yet. */
bool lm_ipc_imported_return(lm_ipc_imported *b);
