#include "backend/cuda/libraries/cufft.h"

#include <cuda_runtime_api.h>
#include <cufft.h>
#include <string.h>

#include "backend/cuda/libraries/lazy_library.h"
#include "backend/cuda/libraries/plan_cache.h"
#include "backend/known/plan_searches.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/graph.h"

#define FUNCTIONS(X)        \
  X(cufftCreate)            \
  X(cufftDestroy)           \
  X(cufftSetAutoAllocation) \
  X(cufftMakePlanMany64)    \
  X(cufftSetStream)         \
  X(cufftSetWorkArea) X(cufftExecC2C) X(cufftExecR2C) X(cufftExecC2R) X(cufftExecZ2Z) X(cufftExecD2Z) X(cufftExecZ2D)
LM_LAZY_LIBRARY(library, fft, FUNCTIONS, "cufft", LM_FILE_OF("libcufft.so.", CUFFT_VER_MAJOR));

static const char *error_name(int code) {
  switch (code) {
    case CUFFT_INVALID_PLAN: return "CUFFT_INVALID_PLAN";
    case CUFFT_ALLOC_FAILED: return "CUFFT_ALLOC_FAILED";
    case CUFFT_INVALID_TYPE: return "CUFFT_INVALID_TYPE";
    case CUFFT_INVALID_VALUE: return "CUFFT_INVALID_VALUE";
    case CUFFT_INTERNAL_ERROR: return "CUFFT_INTERNAL_ERROR";
    case CUFFT_EXEC_FAILED: return "CUFFT_EXEC_FAILED";
    case CUFFT_SETUP_FAILED: return "CUFFT_SETUP_FAILED";
    case CUFFT_INVALID_SIZE: return "CUFFT_INVALID_SIZE";
    case CUFFT_INVALID_DEVICE: return "CUFFT_INVALID_DEVICE";
    case CUFFT_NOT_SUPPORTED: return "CUFFT_NOT_SUPPORTED";
    default: return "CUFFT_UNKNOWN";
  }
}

static lm_status check_cufft(int code, const char *call) {
  if (code == CUFFT_SUCCESS) return LM_OK;
  lm_status status = code == CUFFT_ALLOC_FAILED                                  ? LM_E_OOM
                     : code == CUFFT_INVALID_SIZE || code == CUFFT_NOT_SUPPORTED ? LM_E_MISSING
                                                                                 : LM_E_STATE;
  const char *name = strrchr(call, '.') ? strrchr(call, '.') + 1 : call;
  return lm_fail_call(status, lm_op_running(), name, code, error_name(code), NULL);
}
#define FFT(name, ...) check_cufft((int)fft.name(__VA_ARGS__), #name)

/* ---- plans */

/* A plan's key, in which every byte counts. */
typedef struct plan_key {
  int64_t n, lines, step, x_apart, y_apart;
  int32_t type, unused;
} plan_key;
LM_KEY_WITHOUT_PADDING(plan_key, unused);

typedef struct plan {
  struct plan *next;
  plan_key key;
  cufftHandle handle;
  size_t workspace;
  bool in_graph; /* a captured graph may run it at any time: never freed */
} plan;

enum { MAX_PLANS = 64 }; /* most plans of a card outside graphs; the least recently used one is freed */

/* A card's plans. The lock is held while a plan gets its stream and workspace and is enqueued, as one step. */
static struct gpu {
  pthread_mutex_t lock;
  plan *plans; /* the last used first */
} gpus[LM_DEVICE_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void make_locks(void) {
  for (int i = 0; i < LM_DEVICE_MAX; i++) pthread_mutex_init(&gpus[i].lock, NULL);
}

static int type_of(const lm_cuda_fft_job *job) {
  bool wide = job->dtype == LM_F64;
  switch (job->kind) {
    case LM_FFT_C2C: return wide ? CUFFT_Z2Z : CUFFT_C2C;
    case LM_FFT_R2C: return wide ? CUFFT_D2Z : CUFFT_R2C;
    default: return wide ? CUFFT_Z2D : CUFFT_C2R;
  }
}

/* Finds the key's plan, which becomes the first, or NULL. */
static plan *find_plan(struct gpu *c, const plan_key *key) {
  for (plan **at = &c->plans; *at; at = &(*at)->next) {
    plan *p = *at;
    if (memcmp(&p->key, key, sizeof *key) != 0) continue;
    *at = p->next;
    p->next = c->plans;
    c->plans = p;
    return p;
  }
  return NULL;
}

/* Frees the oldest plan of too many. Waits for kernels that still read its tables; no capture may run meanwhile. */
static lm_status drop_oldest(struct gpu *c) {
  plan **oldest = NULL, *p;
  int others = 0;
  for (plan **at = &c->plans; *at; at = &(*at)->next) {
    if ((*at)->in_graph) continue;
    others++;
    oldest = at;
  }
  if (others < MAX_PLANS) return LM_OK;
  NEED(CUDA(cudaDeviceSynchronize()));
  p = *oldest;
  *oldest = p->next;
  lm_status status = FFT(cufftDestroy, p->handle);
  lm_free(p);
  return status;
}

static lm_status make_plan(const plan_key *key, plan **out) {
  lm_status status;
  long long n = key->n, half = key->n / 2 + 1;
  bool to_half = key->type == CUFFT_R2C || key->type == CUFFT_D2Z;
  bool from_half = key->type == CUFFT_C2R || key->type == CUFFT_Z2D;
  plan *p = lm_calloc(1, sizeof *p);
  if (!p) return LM_E_OOM;
  p->key = *key;
  lm_plan_search_count();
  p->handle = -1;
  TRY(FFT(cufftCreate, &p->handle));
  TRY(FFT(cufftSetAutoAllocation, p->handle, 0));
  TRY(FFT(cufftMakePlanMany64, p->handle, 1, &n, from_half ? &half : &n, key->step, key->x_apart, to_half ? &half : &n,
          key->step, key->y_apart, (cufftType)key->type, key->lines, &p->workspace));
  *out = p;
  p = NULL;
done:
  if (p && p->handle != -1) fft.cufftDestroy(p->handle);
  lm_free(p);
  return status;
}

/* Makes a plan, which takes memory from the driver and may load code: that would break any capture. */
static lm_status new_plan(struct gpu *c, const plan_key *key, plan **out) {
  lm_status status;
  if (lm_graph_capturing())
    return lm_fail(
        LM_E_STATE,
        "%s: cannot make a cuFFT plan for %lld lines of %lld during a graph capture; run the same once before "
        "the capture",
        lm_op_running(), (long long)key->lines, (long long)key->n);
  if (!lm_graph_block())
    return lm_fail(LM_E_MISSING, "%s: cannot make a plan while another thread captures a graph", lm_op_running());
  TRY(drop_oldest(c));
  TRY(make_plan(key, out));
  (*out)->next = c->plans;
  c->plans = *out;
done:
  lm_graph_unblock();
  return status;
}

static lm_status execute(const plan *p, const lm_cuda_fft_job *job) {
  int direction = job->inverse ? CUFFT_INVERSE : CUFFT_FORWARD;
  switch (p->key.type) {
    case CUFFT_C2C: return FFT(cufftExecC2C, p->handle, job->x, job->y, direction);
    case CUFFT_R2C: return FFT(cufftExecR2C, p->handle, job->x, job->y);
    case CUFFT_C2R: return FFT(cufftExecC2R, p->handle, job->x, job->y);
    case CUFFT_Z2Z: return FFT(cufftExecZ2Z, p->handle, job->x, job->y, direction);
    case CUFFT_D2Z: return FFT(cufftExecD2Z, p->handle, job->x, job->y);
    default: return FFT(cufftExecZ2D, p->handle, job->x, job->y);
  }
}

lm_status lm_cuda_fft(const lm_cuda_fft_job *job, void *stream) {
  NEED(lm_lazy_load(&library));
  pthread_once(&once, make_locks);
  struct gpu *c = &gpus[lm_device_physical(job->device)];
  plan_key key = {.n = job->n,
                  .lines = job->lines,
                  .step = job->step,
                  .x_apart = job->x_apart,
                  .y_apart = job->y_apart,
                  .type = type_of(job)};
  LM_LOCKED(&c->lock);
  LM_CUDA_SCRATCH workspace = {0};
  plan *p = find_plan(c, &key);
  if (!p) NEED(new_plan(c, &key, &p));
  if (lm_graph_capturing()) p->in_graph = true;
  NEED(lm_cuda_scratch(job->device, p->workspace, &workspace));
  NEED(FFT(cufftSetWorkArea, p->handle, workspace.p)); /* required even for 0 bytes: the plan owns no other workspace */
  NEED(FFT(cufftSetStream, p->handle, stream));
  return execute(p, job);
}
