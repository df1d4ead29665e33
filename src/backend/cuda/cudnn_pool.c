#include "backend/cuda/cudnn_pool.h"

#include <pthread.h>

#include "backend/cuda/context.h"
#include "base/mem.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lm_cudnn *idle[LM_DEVICE_MAX]; /* by physical ordinal, the last used first: its plans are the likeliest */

static lm_status make(lm_cudnn **out) {
  lm_status status;
  lm_cudnn *c = lm_calloc(1, sizeof *c);
  if (!c) return LM_E_OOM;
  int mode;
  TRY(lm_cuda_relax(&mode));
  status = CUDNN(cudnnCreate(&c->handle));
  lm_cuda_unrelax(mode);
  if (status != LM_OK) goto done;
  *out = c;
  c = NULL;
done:
  lm_free(c);
  return status;
}

lm_status lm_cudnn_take(lm_device device, void *stream, lm_cudnn **out) {
  lm_status status = LM_OK;
  int ordinal = lm_device_physical(device);
  pthread_mutex_lock(&lock);
  lm_cudnn *c = idle[ordinal];
  if (c) idle[ordinal] = c->next;
  pthread_mutex_unlock(&lock);
  if (!c) TRY(make(&c));
  if (c->stream != stream) {
    TRY(CUDNN(cudnnSetStream(c->handle, stream)));
    c->stream = stream;
  }
  *out = c;
  c = NULL;
done:
  lm_cudnn_put(device, c);
  return status;
}

void lm_cudnn_put(lm_device device, lm_cudnn *c) {
  if (!c) return;
  int ordinal = lm_device_physical(device);
  pthread_mutex_lock(&lock);
  c->next = idle[ordinal];
  idle[ordinal] = c;
  pthread_mutex_unlock(&lock);
}
