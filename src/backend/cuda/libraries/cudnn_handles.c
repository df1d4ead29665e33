#include "backend/cuda/libraries/cudnn_handles.h"

#include "backend/cuda/runtime/context.h"
#include "base/mem.h"
#include "base/thread.h"
#include "device/graph.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came_back = PTHREAD_COND_INITIALIZER;
static lm_cudnn *idle[LM_DEVICE_MAX]; /* indexed by physical ordinal, last used first, as its plans are likeliest */
static int handle_count[LM_DEVICE_MAX];

static void put_idle(int ordinal, lm_cudnn *c) {
  LM_LOCKED(&lock);
  c->next = idle[ordinal];
  idle[ordinal] = c;
  pthread_cond_broadcast(&came_back);
}

static lm_status make_handle(int ordinal, lm_cudnn **out) {
  LM_FREED lm_cudnn *c = lm_calloc(1, sizeof *c);
  if (!c) return LM_E_OOM;
  int mode;
  NEED(lm_cuda_relax(&mode));
  lm_status status = CUDNN(cudnnCreate(&c->handle));
  lm_cuda_unrelax(mode);
  if (status != LM_OK) return status;
  pthread_mutex_lock(&lock);
  handle_count[ordinal]++;
  pthread_mutex_unlock(&lock);
  *out = c;
  c = NULL;
  return status;
}

/* Returns NULL if no handle is idle, or, with `wait`, if none exists. */
static lm_cudnn *take_idle(int ordinal, bool wait) {
  LM_LOCKED(&lock);
  while (wait && !idle[ordinal] && handle_count[ordinal] > 0) pthread_cond_wait(&came_back, &lock);
  lm_cudnn *c = idle[ordinal];
  if (c) idle[ordinal] = c->next;
  return c;
}

static void put_back(lm_device device, void *c) { put_idle(lm_device_physical(device), c); }

lm_status lm_cudnn_take(lm_cuda_frame *f, lm_cudnn **out) {
  lm_status status = LM_OK;
  int ordinal = lm_device_physical(f->device);
  lm_cudnn *c = take_idle(ordinal, false);
  bool alone = !c && lm_graph_block();
  if (!c && !alone) c = take_idle(ordinal, true);
  if (!c) status = make_handle(ordinal, &c);
  if (alone) lm_graph_unblock();
  if (status != LM_OK) return status;
  f->handle = *out = c;
  f->put = put_back;
  if (c->stream == f->stream) return LM_OK;
  NEED(CUDNN(cudnnSetStream(c->handle, f->stream)));
  c->stream = f->stream;
  return LM_OK;
}

lm_status lm_cudnn_prepare(int ordinal) {
  lm_cudnn *c = NULL;
  pthread_mutex_lock(&lock);
  bool there = handle_count[ordinal] > 0;
  pthread_mutex_unlock(&lock);
  lm_status status = there ? LM_OK : make_handle(ordinal, &c);
  if (c) put_idle(ordinal, c);
  return status;
}
