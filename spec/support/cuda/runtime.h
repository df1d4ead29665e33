/* Declares what the files of the fake runtime share. Two locks: `state` guards all bookkeeping and is held
 * briefly; `turn` belongs to the thread that runs queued work. A thread that holds `state` never waits for `turn`. */
#ifndef LM_FAKE_RUNTIME_H
#define LM_FAKE_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake.h"
#include "launch.cuh"

enum { LM_FAKE_MAX_DEVICES = 16 };

/* ---- control.cc ---- */

extern std::recursive_mutex lm_fake_state;
typedef std::lock_guard<std::recursive_mutex> lm_fake_guard;

/* Keeps `code` as the thread's last error and returns it. */
cudaError_t lm_fake_result(int code);
/* The fault that every later call reports; 0 if none. */
extern int lm_fake_sticky;
/* The first line of a runtime call that may fail, and that of one which releases something whatever it returns. */
#define LM_FAKE_CALL()                                            \
  do {                                                            \
    int lm_fake_code_ = lm_fake_begin(__func__);                  \
    if (lm_fake_code_ != 0) return lm_fake_result(lm_fake_code_); \
  } while (0)
int lm_fake_begin(const char *name);
void lm_fake_trace(const char *text); /* on stderr, if that is requested */
/* The first line of what LM_FAKE_CUDA_NULL makes do nothing. */
#define LM_FAKE_WORK()                    \
  do {                                    \
    if (lm_fake_null) return cudaSuccess; \
    LM_FAKE_CALL();                       \
  } while (0)
long lm_fake_setting(const char *name, long otherwise);

/* ---- device.cc ---- */

int lm_fake_devices(); /* visible ones */
int lm_fake_current(); /* this thread's device */
int lm_fake_physical(int device);
/* Opens a device's context, as a call that works on the device does: lm_fake_live("context"). */
void lm_fake_open_context(int device);
/* Bits of the devices whose memory work on `device` may touch: its own and its enabled peers'. */
unsigned lm_fake_reach(int device);
bool lm_fake_peers(int device, int other);
/* Devices read memory that nobody has pinned by themselves, and so when the copy's turn comes: LM_FAKE_CUDA_PAGEABLE.
 */
bool lm_fake_reaches_pageable();

/* ---- memory.cc ---- */

typedef struct lm_fake_place {
  enum { PAGEABLE, PINNED, DEVICE, FREED } kind; /* FREED: inside a device's range, in no allocation */
  int device;
  char *base;
  size_t bytes; /* the allocation's */
} lm_fake_place;
lm_fake_place lm_fake_place_of(const void *p);
/* Makes the memory of exactly these devices accessible. Needs the turn. */
void lm_fake_open(unsigned devices);
size_t lm_fake_memory_total();
bool lm_fake_has_ipc(); /* memory and events can be shared with other processes: LM_FAKE_CUDA_IPC */
/* Returns the device whose address range holds p, allocated or not; -1. Safe in a signal handler. */
int lm_fake_range_of(const void *p);
/* Returns all devices' address ranges; *bytes is 0 before the first allocation. */
char *lm_fake_ranges(size_t *bytes);

/* ---- grid.cc ---- */

struct lm_fake_kernel {
  std::string name;                              /* for people */
  const void *body;                              /* NULL: no host body */
  std::vector<std::pair<void *, size_t>> shared; /* the kernel's __shared__ variables */
  size_t static_shared, dynamic_limit;           /* bytes */
  int most_threads, registers, local;            /* a block's; a thread's; bytes of a thread's local memory */
};
/* Runs the grid, or the work, on stacks of its own; a fault or a barrier not met by all ends it. Returns a cudaError_t.
 * Need the turn. */
int lm_fake_run_grid(const lm_fake_kernel &kernel, void (*call)(const void *, void *const *), void *const *args,
                     dim3 grid, dim3 block, size_t shared);
int lm_fake_run_work(const std::function<void()> &work, const char *name);
/* Queues a launch of a kernel whose `count` parameters have these sizes (launch.cc). */
cudaError_t lm_fake_launch(const std::shared_ptr<lm_fake_kernel> &kernel, void (*call)(const void *, void *const *),
                           int count, const size_t *size, void *const *args, dim3 grid, dim3 block, size_t shared,
                           cudaStream_t handle);
/* Makes every later bad access report what it was. */
void lm_fake_catch_faults();
/* Return whether the thread runs a kernel's body, and record that it did what it may not, which ends the grid. */
bool lm_fake_is_in_kernel();
void lm_fake_kernel_fault(int code, const char *text);

/* ---- cupti.cc ---- */

uint64_t lm_fake_nanoseconds();
/* Records for CUPTI's readers, if there are some, that this ran since `start`, a time of lm_fake_nanoseconds. */
void lm_fake_record_activity(const char *name, uint64_t start);

/* ---- checks.cc: of bodies that are compiled with checks (CMakeLists.txt) ---- */

void lm_fake_check_launch(); /* forgets the accesses of other launches */
void lm_fake_check_block(uint32_t block);

/* ---- stream.cc ---- */

typedef std::shared_ptr<struct CUstream_st> lm_fake_stream;
typedef std::shared_ptr<struct lm_fake_capture> lm_fake_capture_ref;

struct lm_fake_op {
  std::function<int()> run;
  unsigned devices; /* devices whose memory it touches */
};

/* A point at which a stream waits for work that others do (the fake of NCCL). */
struct lm_fake_gate {
  lm_fake_stream stream;
  uint64_t place; /* index of the wait among the stream's operations */
  bool passed;
};
typedef std::shared_ptr<lm_fake_gate> lm_fake_gate_ref;

struct lm_fake_queued {
  lm_fake_op op;
  lm_fake_gate_ref gate;                                  /* instead of op: nothing later is done until it was passed */
  std::shared_ptr<const std::vector<lm_fake_op>> graph;   /* instead of op: a graph's, in order */
  std::vector<std::pair<lm_fake_stream, uint64_t>> waits; /* waits until that many operations of each stream are done */
};

struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  uint64_t id;
  int device, priority;
  unsigned flags;
  bool legacy;
  std::deque<lm_fake_queued> queue;
  uint64_t queued, done; /* operations ever queued, ever done */
  long launches;
  std::map<CUstream_st *, long> waits; /* number of waits for each other stream */
  bool busy;                           /* a thread is at the first of the queue */
  lm_fake_capture_ref capture;
  std::vector<int> tail; /* the captured nodes that the next one follows */
};

/* Finds a stream; NULL if there is none. Needs the state lock. */
lm_fake_stream lm_fake_find_stream(cudaStream_t handle);
/* Queues or captures. Needs the state lock; the caller ends with lm_fake_settle once it has let go of it. */
int lm_fake_push(const lm_fake_stream &stream, lm_fake_queued work);
void lm_fake_settle(const lm_fake_stream &stream); /* in eager mode, does the work */
/* Does the stream's work up to its `upto`th operation; that of a device, or all (-1). Not under the state lock. Without
 * `wait` it may return false: a gate, or another thread, stands in the way. */
bool lm_fake_drain(const lm_fake_stream &stream, uint64_t upto, bool wait);
void lm_fake_drain_device(int device);

/* Makes the stream wait until that many operations of another one are done; returns a cudaError_t. */
int lm_fake_wait_push(const lm_fake_stream &stream, const lm_fake_stream &on, uint64_t upto);
/* Queues a gate; returns a cudaError_t. */
int lm_fake_gate_push(const lm_fake_stream &stream, lm_fake_gate_ref *out);
void lm_fake_gate_reach(const lm_fake_gate_ref &gate);  /* does what stands before it */
void lm_fake_gate_pass(const lm_fake_gate_ref &gate);   /* from any thread, before it is reached too */
void lm_fake_gate_follow(const lm_fake_gate_ref &gate); /* does what stands behind it, up to the next */
/* Does work at once, with the memory of these devices in reach. */
void lm_fake_at_gate(unsigned devices, const std::function<void()> &work, const char *name);

/* ---- graph.cc ---- */

struct lm_fake_node {
  lm_fake_op op;
  std::vector<int> after;
};
struct lm_fake_capture {
  uint64_t id;
  cudaStreamCaptureMode mode;
  unsigned long thread;
  CUstream_st *origin;
  std::vector<lm_fake_stream> streams;
  std::vector<lm_fake_node> nodes;
  bool invalid, ended;
};
/* Ends the capture and returns its error, if one now forbids this thread unsafe calls; else returns 0. */
int lm_fake_unsafe();
/* Returns the same for a call that concerns this very stream, if it is being captured. */
int lm_fake_unsafe_on(const lm_fake_stream &stream);
/* Returns the error of work for a legacy stream while a stream that synchronizes with it is captured; else 0. */
int lm_fake_legacy_conflict(int device);
int lm_fake_capture_node(const lm_fake_stream &stream, lm_fake_op op);

#endif
