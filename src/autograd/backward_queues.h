/* Declares the state of a backward pass that runs on several threads, shared by backward_queues.c, which passes
 * gradients and requests between their queues, and backward_devices.c, which runs the queues. */
#pragma once

#include <pthread.h>

#include "autograd/backward_pass.h"

enum { LM_MAX_DEVICE_QUEUES = 64 };

typedef struct lm_queue_part { /* a gradient that another queue has left */
  lm_edge to;                  /* borrowed */
  int device_queue;
  lm_tensor *sum;
  struct lm_queue_part *next;
} lm_queue_part;

typedef struct lm_main_thread_request { /* a node or leaf that the calling thread must run */
  lm_node *node;                        /* the node, whose queue waits with the request on its stack; or NULL */
  lm_leaf_state *leaf;
  uint64_t number;
  int device_queue;
  lm_status status;
  enum { LM_REQUEST_WAITS, LM_REQUEST_RUNS, LM_REQUEST_DONE } state;
  struct lm_main_thread_request *next;
} lm_main_thread_request;

typedef struct lm_device_queue {
  lm_device device;
  lm_node **node; /* the nodes, latest first */
  int n, next;    /* next: index of the node that runs, or runs next */
  lm_stream *stream;
  struct worker *worker; /* NULL: run by the calling thread */
  pthread_cond_t wake;   /* signaled if its next node may be ready, its request done, or the pass failed */
} lm_device_queue;

typedef struct lm_parallel_pass {
  lm_pass *run;
  pthread_t caller;
  lm_dtype default_dtype;
  int threads;          /* limit for each queue's CPU kernels; 0: unchanged */
  pthread_mutex_t lock; /* guards all fields below, and waits_for of the pass's nodes and leaves */
  lm_queue_part *parts;
  lm_main_thread_request *main_thread_requests; /* sorted, next first */
  bool ordered;
  bool main_thread_waits; /* true while it waits for progress of other queues */
  int busy;               /* number of worker queues still running */
  lm_saved_error failed;
  int ndevice_queues;
  lm_device_queue device_queue[LM_MAX_DEVICE_QUEUES];
} lm_parallel_pass;

/* Returns the index of the device's queue; 0 if it has none. */
int lm_parallel_pass_queue_of(const lm_parallel_pass *t, lm_device device);
/* Makes the calling thread run n, and waits until that is done. */
lm_status lm_parallel_pass_send_node(lm_parallel_pass *t, int device_queue, lm_node *n);
