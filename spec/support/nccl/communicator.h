/* A stand-in for NCCL, a part of the fake CUDA runtime (spec/support/cuda/fake.h): ranks are threads or processes of
 * one machine, whose data goes through unix sockets named by the unique id. What it shows is that the group "nccl"
 * drives the interface rightly; it is no evidence about NCCL.
 *
 * As with NCCL, nothing is checked between ranks: another count, dtype or collective on one of them makes all hang or
 * returns garbage. A communicator's collectives run in the order of their calls, each where its stream has come to it,
 * on a thread of the communicator's that does the streams' work before it: ranks get on though nobody waits for them.
 *
 * Calls are counted, traced and made to fail as the fake runtime's (lm_fake_fail, LM_FAKE_CUDA_FAIL=ncclAllReduce:3:2,
 * the code a ncclResult_t); lm_fake_live counts "communicator" and "registration". More is given by
 * lm_fake_nccl, and by the environment as LM_FAKE_NCCL=name=number[,...]:
 *
 * - polls: what a non-blocking communicator was asked for is done at the (n+1)th ncclCommGetAsyncError (2).
 * - async: the nth ncclCommGetAsyncError from now on finds ncclRemoteError, and so do later ones.
 * - stuck: the nth collective or group of sends from now on never ends, unless its communicator is aborted.
 * - lost: with 1 a rank that is gone is found out (ncclRemoteError) where its data is waited for; else that hangs.
 * - newer: with 1 two ranks on one card are reported in the words of NCCL 2.29 and later.
 * - connect: with 1 a non-blocking communicator stays in progress at its first collective until all its ranks have
 *   called theirs, and at the first sends of two ranks until both have called: connections are made at first use.
 * - eager: sends of at most n bytes end before they are received, from memory that ends with the communicator (0).
 * - slots: n of these sends to one rank at most are not received yet; the next one waits (8).
 *
 * NCCL_COMM_BLOCKING is obeyed as NCCL does: 0 or 1 stands above what a program configures.
 * NCCL_LAUNCH_ORDER_IMPLICIT is, too: with 1 a launch waits until the device's last one has begun.
 * lm_fake_live counts as "exposed" what NCCL starts a thread for on a thread that takes signals: so would NCCL's. */
#ifndef LM_FAKE_NCCL_H
#define LM_FAKE_NCCL_H

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <set>

#include "mesh.h"
#include "runtime.h"

extern "C" LM_FAKE_API int lm_fake_nccl(const char *knob, long value); /* 0; -1: no such knob */

struct lm_nccl_knobs {
  std::atomic<long> polls{2}, async{0}, stuck{0}, lost{0}, newer{0}, connect{0}, eager{0}, slots{8};
};
lm_nccl_knobs &lm_nccl_settings();
/* Counts a knob's number down: true when that comes to 0. */
bool lm_nccl_countdown(std::atomic<long> &knob);

/* An enqueued call of one rank. */
struct lm_nccl_op {
  enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SENDS } kind;
  const void *send;
  void *recv;
  size_t count; /* elements; of one rank, where each has a part */
  ncclDataType_t dtype;
  ncclRedOp_t op;
  bool scaled; /* inputs are multiplied by scale */
  double scale;
  int root;
  struct p2p {
    bool sending;
    void *data;
    size_t bytes;
    int peer;
  };
  std::vector<p2p> sends;              /* for SENDS */
  std::vector<lm_fake_stream> streams; /* the call waits for them, and they for it */
  std::vector<lm_fake_gate_ref> gates;
  bool stuck;
};

struct ncclComm {
  std::string name;
  int rank, size, device;
  bool blocking;
  int one_thread_ranks; /* number of its ranks that its creating thread must serve in one group */
  unsigned long creator;
  lm_mesh mesh;
  std::set<int> to, from; /* ranks to and from which sends have a way: its thread's, or the connecting one's */
  lm_mesh post, boot;     /* for sends, apart from collectives; for connections */
  bool joined;            /* true once a collective has connected all ranks */
  std::atomic<bool> aborted{false};

  /* Under lm_nccl_lock. */
  bool dead;    /* destroyed or aborted: the handle is invalid */
  bool busy;    /* a thread of it, or of a child, is at work */
  bool closing; /* true once no more calls will come */
  bool ended;   /* true once its thread has ended */
  long polls;   /* before what was asked for is done */
  std::function<ncclResult_t()> asked;
  ncclResult_t error;
  std::deque<lm_nccl_op> queue;
  std::vector<lm_fake_gate_ref> open;                     /* gates nobody has passed */
  std::map<void *, std::pair<char *, size_t>> registered; /* memory by handle */
  int splits;
  std::shared_ptr<ncclComm> child;                     /* being split off it */
  std::map<int, std::deque<std::vector<char>>> outbox; /* sends that are not received yet, by rank */
  std::set<int> carried;                               /* ranks whose outbox has a thread */
  int helpers;                                         /* number of these threads, and of the connecting one */
  bool over;                                           /* true once they must end */
};
typedef std::shared_ptr<ncclComm> lm_nccl_comm;

extern std::mutex &lm_nccl_lock;
extern std::condition_variable &lm_nccl_changed;
typedef std::unique_lock<std::mutex> lm_nccl_guard;

/* Keeps the text for ncclGetLastError and returns the code. */
ncclResult_t lm_nccl_error(ncclResult_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Starts a thread, where NCCL does. */
void lm_nccl_threads();

/* Makes a rank and starts its thread, which first finds the others by `name`. Under the lock. `color` and `key` are of
 * a split: the rank continues with those of its color (a negative one: not at all), in the order of their keys. */
lm_nccl_comm lm_nccl_start(const std::string &name, int size, int rank, int device, bool blocking, bool split,
                           int color, int key);
/* Puts the op's gates on its streams and hands it to the thread. Under the lock. */
ncclResult_t lm_nccl_enqueue(const lm_nccl_comm &comm, lm_nccl_op op);
void lm_nccl_abort(const lm_nccl_comm &comm);
/* Starts to connect the ranks that these calls need, as far as they are not; it is busy until then. Under the lock. */
void lm_nccl_connect(const lm_nccl_comm &comm, const std::vector<lm_nccl_op> &ops);

/* ---- reduce.cc */

size_t lm_nccl_size_of(ncclDataType_t dtype); /* 0: no such dtype */
/* Does x[i] *= scale, in the dtype's own arithmetic. */
void lm_nccl_scale(ncclDataType_t dtype, void *x, size_t n, double scale);
/* Does into[i] = into[i] op from[i]; the sum for ncclAvg. */
void lm_nccl_combine(ncclDataType_t dtype, ncclRedOp_t op, void *into, const void *from, size_t n);
void lm_nccl_divide(ncclDataType_t dtype, void *x, size_t n, int by);
bool lm_nccl_is_float(ncclDataType_t dtype);

#endif
