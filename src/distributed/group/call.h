/* Carries a collective, send or receive from the entry point (collective.c, send_recv.c) to the backend. Private to
 * distributed/.
 *
 * A call owns views of the script's tensors and, for strided ones, the dense copies that the backend gets instead. It
 * can wait in a queue and run on another thread. */
#pragma once

#include "device/recorder.h"
#include "distributed/group/collective.h"
#include "distributed/group/group_core.h"

typedef struct lm_written { /* a tensor of the script that the call writes */
  lm_tensor *user;
  lm_tensor *dense; /* the tensor that the backend writes: user itself, or one that is copied to user at the end */
} lm_written;

typedef struct lm_exchange {
  lm_group_core *core;
  const lm_part *part; /* the backend that runs the call */
  lm_group *g;         /* the part's group */
  lm_group_call call;  /* with dense tensors, a reference each, in lists as long as the group */
  bool empty;          /* true if there is no data, so that the call is a barrier */
  bool host;           /* enqueued calls: true if the host waits for the end (a barrier, results for other devices) */
  int nwritten;
  lm_written *written; /* [nwritten] */
  double timeout;
  const char *line; /* the script's line for traces; NULL: unknown */
  lm_ticket ticket;
} lm_exchange;

/* ---- call.c */

/* Initializes c with `call` but its tensors: finds the part that serves their device (without: the first) and takes the
 * timeout set for this call. Fails if the world or a part has failed, or the backend lacks the collective. The caller
 * always clears c. */
lm_status lm_call_begin(lm_exchange *c, lm_group *g, const lm_group_call *call);
void lm_call_clear(lm_exchange *c); /* releases the tensors; keeps core, kind and ticket */
/* Fails if the backend or the call does not take t's device, dtype or layout. */
lm_status lm_call_check(const lm_exchange *c, const lm_tensor *t, bool write);
/* Fails if the group has no such rank. */
lm_status lm_call_check_rank(const lm_exchange *c, int rank);
/* Return in *dense, a new reference, the tensor that the backend gets for t. lm_call_read copies t if it is strided or
 * shares memory with a written tensor, so written ones come first; an all_gather's may be this rank's part of the
 * result. `keep`: the written tensor's values are read too. */
lm_status lm_call_read(lm_exchange *c, lm_tensor *t, lm_tensor **dense);
lm_status lm_call_write(lm_exchange *c, lm_tensor *t, bool keep, lm_tensor **dense);
/* Fills in the ticket except its seq. The dtype and sizes of t, if not NULL, must agree on all ranks. */
void lm_call_name(lm_exchange *c, const lm_tensor *t);
/* Adds to the ticket the number of refused earlier calls: if ranks differ in it, this call would meet a later one. */
void lm_call_name_refused(lm_exchange *c, uint64_t refused);
/* Returns the device of the copy for a tensor on a device that the part does not take; LM_NO_DEVICE: impossible. */
lm_device lm_call_device(const lm_exchange *c, lm_device device);
/* Copies dense results to the script's tensors and bumps their versions. Returns `status`, or the copy's error. */
lm_status lm_call_written(lm_exchange *c, lm_status status);
/* Returns the rank in the world of a rank of the group. */
int lm_call_world_rank(const lm_exchange *c, int rank);
/* Begins a trace span with the call's collective and this rank's bytes. device: the one whose current stream gets the
 * call, or LM_NO_DEVICE. */
void lm_call_trace(lm_span *span, const lm_exchange *c, lm_device device);

/* ---- work.c */

struct lm_work {
  _Atomic int rc;
  _Atomic bool done;      /* true once outcome and peer are final */
  lm_saved_error outcome; /* the final status; an enqueued call's is its function's until it is done */
  int peer;               /* the peer of a finished receive; -1: unknown */
  lm_queue *queue;        /* NULL for an enqueued call */
  lm_issuer *issuer;      /* NULL for other calls */
  lm_exchange exchange;
  lm_request *request; /* the backend's, for a send or receive */
  bool busy;           /* true while a thread drives the request; under the queue's lock */
  lm_work *next;       /* next in a list of the queue or issuer */

  /* Enqueued calls only. `enqueued` is under the issuer's lock; the watching thread alone uses the fields after it. */
  lm_event *event; /* recorded behind the call in its stream */
  bool enqueued;
  lm_request *heard;  /* the receive of the previous rank's ticket, in the issuer's ring */
  bool sent, matched; /* true once the ticket is on its way to the next rank; once the previous rank's agreed */
};

struct lm_queue {
  _Atomic int rc; /* references: the group's, and one for each work */
  pthread_mutex_t lock;
  pthread_cond_t more, posting, finished;

  pthread_t thread; /* runs queued calls */
  bool started, closing;
  lm_work *first, *last; /* waiting calls, without the running one */
  int pending;           /* number of calls, with the running one */

  pthread_t carrier;      /* drives sends and receives while no thread waits for them */
  bool carrying, arrived; /* true once it has started; once it must end */
  lm_work *posted;        /* unfinished ones, each with a reference: they continue if the script drops them */
};

/* Returns in *out the group's queue, created on first use; the group owns it. */
lm_status lm_group_queue_get(lm_group_core *core, lm_queue **out);
void lm_queue_release(lm_queue *q); /* q may be NULL */
/* Starts a thread of the queue unless *started; it takes no signals. */
lm_status lm_queue_thread(lm_queue *q, bool *started, pthread_t *thread, void *(*run)(void *queue));
/* Creates a work of a queue or of an issuer (the other is NULL). Takes c's contents over, also on error. */
lm_status lm_work_new(lm_queue *q, lm_issuer *issuer, lm_exchange *c, lm_work **out);
/* Calls the backend's function for c; sends and receives only if they enqueue. */
lm_status lm_call_dispatch(const lm_exchange *c);
/* Marks w as done with `status` and, for a failure, this thread's message. Releases the call's tensors. */
void lm_work_finish(lm_work *w, lm_status status);
static inline bool lm_work_is_done(const lm_work *w) { return atomic_load_explicit(&w->done, memory_order_acquire); }
/* Returns w's outcome, with its message as this thread's error. */
lm_status lm_work_outcome(const lm_work *w);

/* ---- send_recv.c */

/* Implements lm_collective_start for a send or receive. */
lm_status lm_p2p_start(lm_group *g, const lm_group_call *call, lm_work **work);

/* Implement lm_work_wait and lm_work_done for sends and receives that are not enqueued. */
lm_status lm_p2p_wait(lm_work *w, double seconds);
bool lm_p2p_done(lm_work *w);
static inline bool lm_kind_is_p2p(lm_collective kind) { return kind == LM_SEND || kind == LM_RECV; }
static inline bool lm_is_p2p(const lm_work *w) { return lm_kind_is_p2p(w->exchange.call.kind); }
/* Ends all sends and receives when the group closes: waits for sends, at most 5 s, and abandons receives. */
void lm_p2p_close(lm_queue *q);

/* ---- async_work.c */

/* Assigns the call its seq and runs or queues it. Takes c's contents over, also on error. */
lm_status lm_call_send(lm_exchange *c, lm_work **work);
