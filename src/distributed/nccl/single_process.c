/* Runs reduce and broadcast between several GPUs of one process. The communicators of a set of GPUs are created
 * together and never freed. They are blocking, and one thread at a time uses them. */

#include "base/log.h"
#include "base/mem.h"
#include "device/stream.h"
#include "distributed/nccl/nccl.h"

typedef struct clique {
  uint64_t gpu_ids; /* bit i: the driver's ordinal i; the lowest is rank 0 */
  int n;
  bool works;
  struct clique *next;
  ncclComm_t comm[];
} clique;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static clique *known;

static int position_of(uint64_t gpu_ids, int gpu) { return __builtin_popcountll(gpu_ids & ((1ull << gpu) - 1)); }

/* Returns a GPU set's communicators; NULL: out of memory. Remembers failures, without a retry. Needs the lock. */
static clique *find_or_make_clique(uint64_t gpu_ids) {
  int ordinals[LM_DEVICE_MAX], n = 0;
  for (clique *q = known; q; q = q->next)
    if (q->gpu_ids == gpu_ids) return q;
  for (int gpu = 0; gpu < LM_DEVICE_MAX; gpu++)
    if (gpu_ids >> gpu & 1) ordinals[n++] = gpu;
  clique *q = lm_calloc(1, sizeof *q + (size_t)n * sizeof *q->comm);
  if (!q) return NULL;
  *q = (clique){.gpu_ids = gpu_ids, .n = n, .next = known};
  known = q;
  lm_nccl_prepare();
  ncclResult_t result = ncclCommInitAll(q->comm, n, ordinals);
  q->works = result == ncclSuccess;
  if (q->works) {
    lm_log(LM_LOG_DIST, "nccl %s: communicators for %d GPUs of this process", lm_nccl_version_text(), n);
  } else {
    lm_log(LM_LOG_DIST, "nccl %s: no communicators for %d GPUs of this process: %s: %s", lm_nccl_version_text(), n,
           ncclGetErrorString(result), ncclGetLastError(NULL));
  }
  return q;
}

static ncclResult_t clique_enqueue(const clique *q, int n, lm_tensor *const *t, const cudaStream_t *stream, int root,
                                   bool reduce, ncclDataType_t type, ncclRedOp_t sum) {
  int to = position_of(q->gpu_ids, lm_device_physical(t[root]->device));
  ncclResult_t result = ncclGroupStart();
  if (result != ncclSuccess) return result;
  for (int i = 0; i < n && result == ncclSuccess; i++) {
    ncclComm_t comm = q->comm[position_of(q->gpu_ids, lm_device_physical(t[i]->device))];
    result = reduce ? ncclReduce(t[i]->data, t[i]->data, (size_t)t[i]->numel, type, sum, to, comm, stream[i])
                    : ncclBroadcast(t[i]->data, t[i]->data, lm_nbytes(t[i]), ncclUint8, to, comm, stream[i]);
  }
  ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

lm_status lm_nccl_across_devices(int n, lm_tensor *const *t, int root, bool reduce, bool *taken) {
  lm_status status = LM_OK;
  const char *who = reduce ? "reduce_add" : "broadcast";
  uint64_t gpu_ids = 0;
  cudaStream_t stream[LM_DEVICE_MAX];
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t sum = ncclSum;
  *taken = false;
  if (reduce) {
    NEED(lm_nccl_type(who, t[0]->dtype, &type));
    NEED(lm_nccl_op(who, LM_REDUCE_SUM, t[0]->dtype, &sum));
  }
  for (int i = 0; i < n; i++) {
    lm_stream *current = lm_stream_current(t[i]->device);
    if (!current) return LM_E_DEVICE;
    lm_stream_touch(current);
    stream[i] = (cudaStream_t)current->native;
    gpu_ids |= 1ull << lm_device_physical(t[i]->device);
  }
  sigset_t signals;
  pthread_mutex_lock(&lock);
  lm_nccl_hold_signals(&signals);
  clique *q = find_or_make_clique(gpu_ids);
  if (q && q->works) {
    ncclResult_t result = clique_enqueue(q, n, t, stream, root, reduce, type, sum);
    *taken = result == ncclSuccess;
    if (!*taken) {
      status = lm_nccl_fail(who, result, ncclGetLastError(NULL));
      q->works = false; /* the state of its communicators is unknown */
      for (int i = 0; i < q->n; i++) ncclCommAbort(q->comm[i]);
      lm_device_enter(t[root]->device); /* after a failure any of the GPUs may be current */
    }
  }
  lm_nccl_let_signals(&signals);
  pthread_mutex_unlock(&lock);
  if (!q) status = LM_E_OOM;
  return status;
}
