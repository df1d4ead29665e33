/* Allocates gradient buckets with ncclMemAlloc and registers them with the communicator of all ranks: collectives then
 * access them without a copy, and NVLink switches may reduce them.
 *
 * A piece may outlive its group, and the group its pieces. It is registered at the first collective after its creation,
 * and deregistered before it is freed or the communicator ends; an abort drops registrations by itself. A thread frees
 * it once no enqueued work uses it, since tensors are released under locks that an abort needs. NCCL reads its
 * registrations during a call, so pieces freed meanwhile wait for the next call. */
#include "base/environment_variable.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "device/driver.h"
#include "device/graph.h"
#include "distributed/nccl/nccl.h"

/* Functions of NCCL 2.19 and later; NULL with older libraries. */
#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommRegister
#pragma weak ncclCommDeregister

struct lm_nccl_piece {
  lm_nccl *s; /* NULL once the group is closed */
  lm_device device;
  void *data;
  size_t bytes;
  void *handle; /* handle of its registration with `comm`; NULL: none */
  ncclComm_t comm;
  bool known; /* true once registered, or refused by NCCL */
  bool freed; /* true once its tensor is freed and no enqueued work uses it */
  lm_nccl_piece *next;
};

/* Guards all pieces; taken before a group's lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Frees a list of pieces. Called with no lock held: ncclMemFree waits for the device, which a call of a failed group
 * may hold up until lm_nccl_abort gets that group's lock. */
static void pieces_free(lm_nccl_piece *p) {
  for (lm_nccl_piece *next; p; p = next) {
    next = p->next;
    if (lm_device_enter(p->device) == LM_OK) ncclMemFree(p->data);
    lm_free(p);
  }
}

/* Deregisters a piece. Called with both locks held, while no call is in progress. */
static void deregister(lm_nccl *s, lm_nccl_piece *p) {
  if (p->handle && !s->aborted) ncclCommDeregister(p->comm, p->handle);
  p->handle = NULL;
}

/* Deregisters the pieces of freed tensors, unless a call or an abort may still use them, and returns their list for
 * pieces_free. Called with both locks held. */
static lm_nccl_piece *take_freed(lm_nccl *s) {
  lm_nccl_piece *taken = NULL;
  for (lm_nccl_piece **at = &s->pieces; *at && !s->aborted && !s->calling;) {
    lm_nccl_piece *p = *at;
    if (!p->freed) {
      at = &p->next;
      continue;
    }
    deregister(s, p);
    *at = p->next;
    p->next = taken;
    taken = p;
  }
  return taken;
}

/* Waits for all work on the device by freeing memory, which the driver does only then. Its synchronize would take
 * kernels' reported errors from the threads that wait for them. */
static bool wait_until_idle(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  int ordinal = lm_device_physical(device);
  void *any = NULL;
  while (!lm_graph_block()) lm_sleep(1e-3); /* memory must not be freed during a graph capture */
  lm_status status = driver->alloc(ordinal, 1, &any);
  if (status == LM_OK) driver->free(ordinal, any, 1);
  lm_graph_unblock();
  return status == LM_OK;
}

static void *run_free(void *arg) {
  lm_nccl_piece *p = arg;
  if (!wait_until_idle(p->device)) return NULL; /* leaks: the GPU is out of memory, or failed */
  pthread_mutex_lock(&lock);
  lm_nccl *s = p->s;
  p->freed = true;
  if (s) {
    pthread_mutex_lock(&s->lock);
    p = take_freed(s);
    pthread_mutex_unlock(&s->lock);
  } else {
    p->next = NULL;
  }
  pthread_mutex_unlock(&lock);
  pieces_free(p);
  return NULL;
}

/* Frees a piece on a new thread; if none can be created, it leaks. */
static void piece_release(void *owner) { lm_thread_start_detached("lm-nccl-free", run_free, owner); }

void lm_nccl_register_new(lm_nccl *s, ncclComm_t whole) {
  pthread_mutex_lock(&lock);
  pthread_mutex_lock(&s->lock);
  lm_nccl_piece *freed = take_freed(s);
  for (lm_nccl_piece *p = s->pieces; p && !s->aborted; p = p->next) {
    if (p->known) continue;
    ncclResult_t result = ncclCommRegister(whole, p->data, p->bytes, &p->handle);
    if (result != ncclSuccess) {
      p->handle = NULL;
      lm_log(LM_LOG_DIST, "nccl: %zu bytes are not registered: %s", p->bytes, ncclGetErrorString(result));
    }
    p->comm = whole;
    p->known = true;
  }
  pthread_mutex_unlock(&s->lock);
  pthread_mutex_unlock(&lock);
  pieces_free(freed);
}

void lm_nccl_deregister_all(lm_nccl *s) {
  pthread_mutex_lock(&lock);
  pthread_mutex_lock(&s->lock);
  for (lm_nccl_piece *p = s->pieces; p; p = p->next) deregister(s, p);
  pthread_mutex_unlock(&s->lock);
  pthread_mutex_unlock(&lock);
}

void lm_nccl_leave_pieces(lm_nccl *s, bool ended) {
  lm_nccl_piece *freed = NULL;
  pthread_mutex_lock(&lock);
  for (lm_nccl_piece *p = s->pieces, *next; p; p = next) {
    next = p->next;
    p->s = NULL;
    if (!p->freed || !ended) continue;
    p->next = freed;
    freed = p;
  }
  s->pieces = NULL;
  pthread_mutex_unlock(&lock);
  pieces_free(freed);
}

lm_status lm_nccl_memory(lm_group *g, lm_dtype dtype, lm_device device, int64_t n, lm_tensor **out) {
  lm_nccl *s = g->state;
  size_t bytes = (size_t)n * lm_dtype_size(dtype);
  void *data = NULL;
  *out = NULL;
  if (!lm_variable_is_on(LM_VAR_NCCL_REGISTER, false) || lm_graph_capturing()) return LM_OK;
  if (!ncclMemAlloc || !ncclMemFree || !ncclCommRegister || !ncclCommDeregister) return LM_OK;
  NEED(lm_device_enter(device));
  lm_nccl_piece *p = lm_calloc(1, sizeof *p);
  if (!p) return LM_E_OOM;
  ncclResult_t result = ncclMemAlloc(&data, bytes);
  if (result != ncclSuccess) {
    lm_log(LM_LOG_DIST, "nccl: no registered memory of %zu bytes: %s", bytes, ncclGetErrorString(result));
    lm_free(p);
    return LM_OK;
  }
  *p = (lm_nccl_piece){.s = s, .device = device, .data = data, .bytes = bytes};
  pthread_mutex_lock(&lock);
  p->next = s->pieces;
  s->pieces = p;
  pthread_mutex_unlock(&lock);
  return lm_tensor_foreign(dtype, device, 1, &n, data, bytes, piece_release, p, out);
}
