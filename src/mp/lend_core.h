/* The insides of lending, shared by lend.c (what this process lends), lend_borrowed.c (what it has of others) and
 * lend_keeper.c (the thread that looks after both). */
#ifndef LM_MP_LEND_CORE_H
#define LM_MP_LEND_CORE_H

#include <pthread.h>

#include "device/driver.h"
#include "mp/lend.h"

enum { LM_LENDER_ID = 16 /* bytes */ };

typedef struct lm_loan { /* what one letter lent */
  uint64_t number;
  int fd; /* of the pipe's reading end */
  int n, nevents;
  lm_tensor **tensors; /* NULL for those on the CPU */
  struct lm_loan_event {
    lm_device device;
    void *event; /* NULL: the device has none for other processes, or no more */
    char handle[LM_IPC_BYTES];
  } * events; /* one a device */
  struct lm_loan *next;
} lm_loan;

typedef struct lm_lease { /* a writing end that came with a letter */
  int rc, fd;
} lm_lease;

typedef struct lm_lent_at { /* where memory is, for any process */
  char owner[LM_LENDER_ID];
  uint64_t loan;
  uint32_t index;            /* in it */
  char handle[LM_IPC_BYTES]; /* of the segment */
  uint64_t offset;           /* there */
} lm_lent_at;

/* What goes along of a tensor, as it lies in memory: both processes are of one machine. */
typedef struct lm_lent_message {
  char sender[LM_LENDER_ID];
  lm_lent_at at;
  uint32_t lease; /* the owner's, among the letter's */
  uint32_t has_event;
  char event[LM_IPC_BYTES]; /* to wait for */
} lm_lent_message;

/* The owner of a storage over it; or what came with one's own, until it is waited for. */
typedef struct lm_borrowed {
  lm_lent_at at;
  struct mapping *map; /* NULL: one's own */
  lm_lease *of[2];     /* of the owner, and of the letter */
  lm_device device;
  lm_storage *storage; /* valid while the release runs */
  uint64_t used;
  void *mark;
  struct lm_borrowed *next;
} lm_borrowed;

extern struct lm_keeper {
  pthread_mutex_t lock; /* of what follows, and of leases' counts */
  lm_loan *loans;
  lm_borrowed *returned; /* to be given back */
  int nloans, nreturned;
  int wakeup_fd;   /* wakes the thread */
  uint64_t latest; /* loan's number */
  char self[LM_LENDER_ID];
} lm_keeper;

/* ---- lend_keeper.c */

/* Once it has returned well, the thread runs and this process has its id. */
lm_status lm_keeper_start(void);

/* ---- lend.c */

void lm_loan_free(lm_loan *l); /* NULL is fine */
/* Whether all events are reached, which a stream of another process may still wait for. */
bool lm_loan_is_over(const lm_loan *l);

/* ---- lend_borrowed.c */

lm_lease *lm_lease_retain(lm_lease *l);
void lm_lease_release(lm_lease *l);               /* NULL is fine */
lm_borrowed *lm_borrowed_of(const lm_storage *s); /* NULL: it is this process's own */
/* Whether the process that owns the memory has ended. */
bool lm_lender_has_gone(const lm_lease *l);
lm_status lm_lender_gone(lm_device device); /* the error then */
/* The memory goes back once the device is through with it; false: not yet. */
bool lm_borrowed_give_back(lm_borrowed *b);

#endif
