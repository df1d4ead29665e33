/* A collective, send or receive on its way from the entry point (collective.c, send_recv.c) to the group. Private to
 * distributed/.
 *
 * A call owns headers of all its tensors, over the memory that those had which the script gave and, where these are
 * strided, the dense ones the group sees instead. It can wait in a queue and run on another thread. */
#pragma once

#include "device/recorder.h"
#include "distributed/group/collective.h"
#include "distributed/group/group_core.h"

typedef struct lm_written { /* memory of the script's that the call writes */
  lm_tensor *user;
  lm_tensor *dense; /* what the group writes: user itself, or what user becomes at the end */
} lm_written;

typedef struct lm_exchange {
  lm_group_core *core;
  const lm_part *part; /* of the group: who does it */
  lm_group *g;         /* the part's */
  lm_collective kind;
  lm_reduce_op op;
  int root;
  int peer, tag; /* of a send or receive */
  bool scaled;   /* all_reduce: by `scale`, on the way */
  double scale;
  bool empty;   /* nothing to move: ranks only meet */
  bool host;    /* of a part that enqueues: done when the host knows it, since what it writes lies on the host */
  lm_tensor *t; /* dense; NULL for all_to_all and barrier */
  int n;        /* entries of in and out, where there are any: the group's size */
  lm_tensor **in, **out; /* [n] dense */
  int nwritten;
  lm_written *written; /* [nwritten] */
  double timeout;
  const char *line; /* the script's, for traces; NULL: not noted */
  lm_ticket ticket;
} lm_exchange;

/* ---- call.c */

/* The start of every call: a cause that is known already, the part that serves tensors of t's device (NULL: there is no
 * tensor), a table without this entry, the timeout set for this call. c is to be cleared whatever comes back. */
lm_status lm_call_begin(lm_exchange *c, lm_group *g, lm_collective kind, const lm_tensor *t);
void lm_call_clear(lm_exchange *c); /* leaves core, kind and ticket */
/* A device, a dtype or a layout that the group or the call does not take. */
lm_status lm_call_check(const lm_exchange *c, const lm_tensor *t, bool write);
/* A rank that is not in the group. */
lm_status lm_call_check_rank(const lm_exchange *c, int rank);
/* What the group is given for t. A tensor to be read is copied if it is strided or shares memory with one to be
 * written, so those must be reported first; `keep`: what t holds is read too. */
lm_status lm_call_read(lm_exchange *c, lm_tensor *t, lm_tensor **dense);
lm_status lm_call_write(lm_exchange *c, lm_tensor *t, bool keep, lm_tensor **dense);
/* The ticket, except its seq. t: whose dtype and sizes have to agree on all ranks, or NULL. */
void lm_call_name(lm_exchange *c, const lm_tensor *t);
/* That that many calls before this one were refused has to agree too: else this one meets another rank's next. */
void lm_call_name_refused(lm_exchange *c, uint64_t refused);
/* The device a stand-in lies on for a tensor of one that the part does not take; LM_NO_DEVICE if there is none. */
lm_device lm_call_device(const lm_exchange *c, lm_device device);
/* Strided tensors get what was written, versions grow. Passes `status` on unless that fails. */
lm_status lm_call_written(lm_exchange *c, lm_status status);
/* The name of a rank of the group in the world. */
int lm_call_world_rank(const lm_exchange *c, int rank);

/* ---- async_work.c */

struct lm_work {
  _Atomic int rc;
  _Atomic bool done;      /* outcome and peer are final */
  lm_saved_error outcome; /* of an issued one at first what the group's function returned, once that is `enqueued` */
  int peer;               /* of a finished receive */
  lm_queue *queue;        /* NULL if it was issued */
  lm_issuer *issuer;      /* NULL unless it was */
  lm_exchange call;
  lm_request *request; /* of a send or receive */
  bool busy;           /* a thread is at it; the queue's lock */
  lm_work *next;       /* in a list of the queue, or of the issuer */

  /* Of issued ones. What the call sets once it is made has the issuer's lock; the rest is the watching thread's. */
  lm_event *event; /* behind it in its stream */
  bool enqueued;
  bool sent, matched; /* its ticket has gone to the next rank; the one of the rank before has come and agrees */
};

struct lm_queue {
  _Atomic int rc; /* the group's, and one a work */
  pthread_mutex_t lock;
  pthread_cond_t more, posting, finished;

  pthread_t thread; /* runs queued calls */
  bool started, closing;
  lm_work *first, *last; /* waiting, behind the one that runs */
  int pending;           /* with the one that runs */

  pthread_t carrier;      /* drives sends and receives while nobody waits for them */
  bool carrying, arrived; /* arrived: it is to end */
  lm_work *posted;        /* under way, each with a reference: they continue if the script drops them */
};

/* The group's queue, made when first asked for; borrowed. */
lm_status lm_queue_of(lm_group_core *core, lm_queue **out);
/* Takes c's contents over, also if it fails: assigns the call its seq and runs it, or queues it. */
lm_status lm_call_send(lm_exchange *c, lm_work **work);
/* A thread of the group's own: no signals. */
lm_status lm_queue_thread(lm_queue *q, bool *started, pthread_t *thread, void *(*run)(void *queue));
/* Takes c's contents over. One of the two is NULL. */
lm_status lm_work_new(lm_queue *q, lm_issuer *issuer, lm_exchange *c, lm_work **out);
/* Begins the span of a call, where calls are traced: its collective, and the bytes of this rank's tensors. device:
 * whose current stream gets the call; LM_NO_DEVICE: none. */
void lm_call_trace(lm_span *span, const lm_exchange *c, lm_device device);
/* Calls the group's function: of a send or receive, where these only enqueue. */
lm_status lm_call_dispatch(const lm_exchange *c);
/* Keeps the outcome; of a failure, with this thread's message. Returns the tensors back. */
void lm_work_finish(lm_work *w, lm_status status);
static inline bool lm_work_is_done(const lm_work *w) { return atomic_load_explicit(&w->done, memory_order_acquire); }
/* What w ended with, as this thread's error. */
lm_status lm_work_outcome(const lm_work *w);

/* ---- send_recv.c */

/* As lm_work_wait and lm_work_done, for a send or receive. */
lm_status lm_p2p_wait(lm_work *w, double seconds);
bool lm_p2p_done(lm_work *w);
static inline bool lm_is_p2p(const lm_work *w) { return w->call.kind == LM_SEND || w->call.kind == LM_RECV; }
/* The end of the group: sends get a few seconds to leave, receives are abandoned. */
void lm_p2p_close(lm_queue *q);
