/* Shares internals of ipc_export.c and ipc_import.c (sending and receiving memory's locations), ipc_thread.c (the
 * thread that watches the memory) and, below them, ipc_memory.c (the memory's state). */
#pragma once

#include <pthread.h>

#include "device/driver.h"
#include "mp/ipc.h"

enum { LM_IPC_PROCESS_ID = 16 /* bytes */ };

typedef struct lm_ipc_exported { /* the tensors that one message exported */
  uint64_t number;
  int fd; /* the pipe's reading end */
  int n, nevents;
  lm_tensor **tensors; /* NULL for those on the CPU */
  struct lm_ipc_exported_event {
    lm_device device;
    void *event; /* NULL: the device has no event for other processes, or no more of them */
    char handle[LM_IPC_BYTES];
  } * events; /* one per device */
  struct lm_ipc_exported *next;
} lm_ipc_exported;

typedef struct lm_ipc_refcount { /* a pipe's writing end that a message carried, counted */
  int rc, fd;
} lm_ipc_refcount;

typedef struct lm_ipc_location { /* a location of memory that is valid in any process */
  char owner[LM_IPC_PROCESS_ID];
  uint64_t exported;
  uint32_t index;            /* tensor's index in the export */
  char handle[LM_IPC_BYTES]; /* driver's handle of the segment */
  uint64_t offset;           /* bytes from the segment's start */
} lm_ipc_location;

/* A tensor's entry in a message, in memory layout: both processes are on one machine. */
typedef struct lm_ipc_tensor_header {
  char sender[LM_IPC_PROCESS_ID];
  lm_ipc_location at;
  uint32_t refcount; /* index of the owner's pipe among the message's */
  uint32_t has_event;
  char event[LM_IPC_BYTES]; /* event to wait for before use */
} lm_ipc_tensor_header;

typedef struct lm_ipc_mapping { /* another process's memory, opened once */
  int rc, ordinal;
  lm_device device;
  char handle[LM_IPC_BYTES];
  char *base;
  struct lm_ipc_mapping *next;
} lm_ipc_mapping;

/* Keeps imported memory open for its storage; for memory of this process, keeps the sender's event. */
typedef struct lm_ipc_imported {
  lm_ipc_location at;
  lm_ipc_mapping *map;        /* mapping of the memory; NULL: it is this process's own */
  lm_ipc_refcount *owners[2]; /* pipes of the owner and of the message */
  lm_device device;
  lm_storage *storage; /* valid while the storage's release runs */
  uint64_t used;
  void *mark;
  struct lm_ipc_imported *next;
} lm_ipc_imported;

extern struct lm_ipc_thread {
  pthread_mutex_t lock; /* protects the fields below and the counts of lm_ipc_refcount */
  lm_ipc_exported *exported_list;
  lm_ipc_imported *returned; /* released; to be closed */
  int nexported, nreturned;
  int wakeup_fd;   /* wakes the thread */
  int epoll_fd;    /* waits for wakeup_fd (data.ptr NULL) and for the pipes of exports (their data.ptr) */
  uint64_t latest; /* number of the latest export */
  char self[LM_IPC_PROCESS_ID];
} lm_ipc_thread;

/* ---- ipc_memory.c */

lm_ipc_refcount *lm_ipc_refcount_retain(lm_ipc_refcount *l);
void lm_ipc_refcount_release(lm_ipc_refcount *l); /* NULL is fine */
/* Returns true if the process that owns the memory has ended. */
bool lm_ipc_owner_has_ended(const lm_ipc_refcount *l);
lm_status lm_ipc_owner_error(lm_device device); /* the error for that case */

/* Makes the current stream wait for the tensors' writers and records an event behind it. */
lm_status lm_ipc_exported_record_event(lm_ipc_exported *l, lm_device device);
void lm_ipc_exported_free(lm_ipc_exported *l); /* NULL is fine */
/* Returns true if all events are reached; until then a stream of another process may wait for one. */
bool lm_ipc_exported_is_done(const lm_ipc_exported *l);

/* Opens another process's memory, or returns a further reference to it. */
lm_status lm_ipc_mapping_open(lm_device device, const char *handle, lm_ipc_mapping **out);
lm_ipc_imported *lm_ipc_imported_of(const lm_storage *s); /* NULL: this process's own memory */
/* Releases a storage whose owner is an lm_ipc_imported: finalizers call it, so it calls no driver. */
void lm_ipc_imported_release(void *owner);
void lm_ipc_imported_queue_return(lm_ipc_imported *b); /* leaves b to the thread to close */
/* Closes the memory and frees b if the device has finished with it; false: not yet. */
bool lm_ipc_imported_return(lm_ipc_imported *b);

/* ---- ipc_thread.c */

/* Starts the watching thread and assigns this process's id, once. */
lm_status lm_ipc_thread_start(void);
