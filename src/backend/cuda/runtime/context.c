#include "backend/cuda/runtime/context.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/alloc.h"
#include "device/graph.h"

/* ---- errors */

enum { FORKED = -1 };    /* not a CUDA error: this process is the child of one that used CUDA */
static _Atomic int lost; /* error that ended the context; every later call returns it */

static void lose_context(void) { atomic_store(&lost, FORKED); }
void lm_cuda_watch_forks(void) { pthread_atfork(NULL, NULL, lose_context); }

static bool is_fatal(int error) {
  enum { CONTAINED = 226, TENSOR_MEMORY_LEAK = 721, EXTERNAL_DEVICE = 911 }; /* older toolkits lack these names */
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorNvlinkUncorrectable:
    case CONTAINED:
    case TENSOR_MEMORY_LEAK:
    case cudaErrorLaunchFailure:
    case EXTERNAL_DEVICE:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

void lm_cuda_forget_error(void) { cudaGetLastError(); }

/* Returns the running op's prefix, "add: ", or "". */
static const char *op_prefix(char text[64]) {
  const char *op = lm_op_running();
  snprintf(text, 64, "%s%s", op ? op : "", op ? ": " : "");
  return text;
}

/* Returns advice about an error, or NULL. */
static const char *remedy(int error, char text[160]) {
  int ordinal = 0, major = 0, minor = 0;
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      cudaGetDevice(&ordinal);
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
      snprintf(text, 160,
               "luminary_backend_cuda.so has no code for compute capability %d.%d; build it with "
               "CUDAARCHS=%d%d scripts/setup",
               major, minor, major, minor);
      return text;
    default: return is_fatal(error) ? "the CUDA context is lost; restart the process" : NULL;
  }
}

lm_status lm_cuda_check(int error, const char *call) {
  if (error == cudaSuccess) return LM_OK;
  char advice[160];
  lm_cuda_forget_error();
  if (is_fatal(error)) atomic_store(&lost, error);
  lm_status status = error == cudaErrorMemoryAllocation ? LM_E_OOM : LM_E_STATE;
  lm_fail_call(status, lm_op_running(), call, error, cudaGetErrorName((cudaError_t)error),
               cudaGetErrorString((cudaError_t)error));
  const char *what_to_do = remedy(error, advice);
  return what_to_do ? lm_remedy(status, "%s", what_to_do) : status;
}

lm_status lm_cuda_check_launch(int error, const char *kernel) {
  if (error == cudaSuccess) return LM_OK;
  char call[96];
  snprintf(call, sizeof call, "cudaLaunchKernel of %s", kernel);
  return lm_cuda_check(error, call);
}

static lm_status check_alive(void) {
  int error = atomic_load_explicit(&lost, memory_order_relaxed);
  if (error == 0) return LM_OK;
  char op[64];
  if (error == FORKED)
    return lm_fail(LM_E_STATE,
                   "%sthis process was forked after it used CUDA, and CUDA works only in its parent; fork before the "
                   "first use, or start processes by lm.mp",
                   op_prefix(op));
  return lm_fail(LM_E_STATE, "%sthe CUDA context was lost by an earlier error %d (%s); restart the process",
                 op_prefix(op), error, cudaGetErrorName((cudaError_t)error));
}

/* ---- the current card */

static _Thread_local int selected; /* the card that this thread selected last: ordinal + 1; 0: none yet */
static _Atomic int latest;         /* latest `selected` of any thread; 0: none yet */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the facts and the report slots */
static lm_cuda_facts facts[LM_DEVICE_MAX];
static _Atomic bool known[LM_DEVICE_MAX];

/* Reads a card's facts, without a context. */
static lm_status read_facts(int ordinal) {
  enum { OLDEST = 8 }; /* compute capability that kernels are compiled for */
  char op[64];
  int l2 = 0;
  lm_cuda_facts f = {0};
  static struct cudaDeviceProp properties; /* guarded by `lock` */
  NEED(CUDA(cudaDeviceGetAttribute(&f.processors, cudaDevAttrMultiProcessorCount, ordinal)));
  NEED(CUDA(cudaDeviceGetAttribute(&f.major, cudaDevAttrComputeCapabilityMajor, ordinal)));
  NEED(CUDA(cudaDeviceGetAttribute(&f.minor, cudaDevAttrComputeCapabilityMinor, ordinal)));
  NEED(CUDA(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, ordinal)));
  NEED(CUDA(cudaGetDeviceProperties(&properties, ordinal)));
  snprintf(f.name, sizeof f.name, "%s", properties.name);
  if (f.major < OLDEST)
    NEED(lm_fail(LM_E_DEVICE, "%sthe compute capability of %s must be at least %d.0, got %d.%d", op_prefix(op), f.name,
                 OLDEST, f.major, f.minor));
  f.l2 = (size_t)l2;
  facts[ordinal] = f;
  return LM_OK;
}

static lm_status learn_facts(int ordinal) {
  lm_status status = LM_OK;
  if (atomic_load_explicit(&known[ordinal], memory_order_acquire)) return LM_OK;
  LM_LOCKED(&lock);
  if (!atomic_load(&known[ordinal])) status = read_facts(ordinal);
  if (status == LM_OK) atomic_store_explicit(&known[ordinal], true, memory_order_release);
  return status;
}

/* Returns true if the card is the thread's current one; a host program can have made another current. */
static bool is_current(int ordinal) {
  int now;
  return selected == ordinal + 1 && cudaGetDevice(&now) == cudaSuccess && now == ordinal;
}

lm_status lm_cuda_select(int ordinal) {
  NEED(check_alive());
  if (is_current(ordinal)) return LM_OK;
  NEED(learn_facts(ordinal));
  NEED(CUDA(cudaSetDevice(ordinal)));
  selected = ordinal + 1;
  atomic_store_explicit(&latest, selected, memory_order_relaxed);
  return LM_OK;
}

/* Selects any card. A thread that has selected none would get a context on the first card. */
lm_status lm_cuda_select_any(void) {
  if (selected) return check_alive();
  int ordinal = atomic_load_explicit(&latest, memory_order_relaxed) - 1;
  return lm_cuda_select(ordinal >= 0 ? ordinal : lm_device_physical(lm_device_current(LM_CUDA)));
}

lm_status lm_cuda_relax(int *mode) {
  enum cudaStreamCaptureMode exchanged = cudaStreamCaptureModeRelaxed;
  lm_status status = lm_graph_capturing() ? CUDA(cudaThreadExchangeStreamCaptureMode(&exchanged)) : LM_OK;
  *mode = exchanged;
  return status;
}

void lm_cuda_unrelax(int mode) {
  enum cudaStreamCaptureMode exchanged = mode;
  if (lm_graph_capturing()) cudaThreadExchangeStreamCaptureMode(&exchanged);
}

const lm_cuda_facts *lm_cuda_facts_of(lm_device device) { return &facts[lm_device_physical(device)]; }

lm_status lm_cuda_enter(lm_device device, void **stream) {
  NEED(lm_cuda_select(lm_device_physical(device)));
  lm_stream *s = lm_stream_current(device);
  if (!s) return LM_E_STATE; /* stream_create set the message */
  *stream = s->native;
  return LM_OK;
}

/* ---- scratch */

lm_status lm_cuda_scratch(lm_device device, size_t bytes, lm_cuda_memory *out) {
  *out = (lm_cuda_memory){.device = device, .bytes = bytes};
  return bytes > 0 ? lm_device_alloc(device, bytes, &out->p) : LM_OK;
}

/* Records that the current stream was given work, so that threads which reuse its memory on another stream wait. */
static void note_given(lm_device device) {
  lm_stream *s = lm_stream_current(device);
  if (s) lm_stream_touch(s);
}

void lm_cuda_scratch_done(const lm_cuda_memory *memory) {
  if (!memory->p) return;
  note_given(memory->device);
  lm_device_free(memory->device, memory->p, memory->bytes);
}

void lm_cuda_release(lm_tensor *t) {
  if (!t) return;
  note_given(t->device);
  lm_release(t);
}

/* ---- bad values */

typedef struct report_slot {
  void *stream;
  lm_bad_record *record, *device_records;
  unsigned *claim, *device_claim;
} report_slot;

enum { MAX_REPORTS = LM_STREAM_MAX * 8 }; /* most streams of a card, which may be several devices */
typedef struct gpu {
  int n;
  report_slot at[MAX_REPORTS];             /* slots in the order of the streams' creation */
  lm_bad_record *records, *device_records; /* [MAX_REPORTS] in pinned memory */
  unsigned *claims, *device_claims;
  _Atomic bool together;
} gpu;

static gpu gpus[LM_DEVICE_MAX]; /* never freed */
static _Atomic(report_slot *) by_stream[LM_DEVICE_MAX][LM_STREAM_MAX];

/* Allocates the records; requires the lock. The host resets each slot by itself: streams may wait or be captured. */
static lm_status allocate_bad_records(gpu *c) {
  lm_status status = LM_OK;
  lm_bad_record *records = NULL;
  size_t bytes = MAX_REPORTS * (sizeof *records + sizeof(unsigned));
  if (c->records) return LM_OK;
  TRY(CUDA(cudaHostAlloc((void **)&records, bytes, cudaHostAllocMapped | cudaHostAllocPortable)));
  memset(records, 0, bytes);
  TRY(CUDA(cudaHostGetDevicePointer((void **)&c->device_records, records, 0)));
  c->claims = (unsigned *)(records + MAX_REPORTS);
  c->device_claims = (unsigned *)(c->device_records + MAX_REPORTS);
  c->records = records;
done:
  if (status != LM_OK && records) cudaFreeHost(records);
  return status;
}

lm_status lm_cuda_report_slot_new(int ordinal, void *stream) {
  gpu *c = &gpus[ordinal];
  LM_LOCKED(&lock);
  lm_status status = allocate_bad_records(c);
  if (status == LM_OK && c->n == MAX_REPORTS) {
    status = lm_fail(LM_E_STATE, "stream: cannot create more than %d streams of a device", MAX_REPORTS);
  } else if (status == LM_OK) {
    int i = c->n++;
    c->at[i] = (report_slot){stream, c->records + i, c->device_records + i, c->claims + i, c->device_claims + i};
  }
  return status;
}

static report_slot *find_slot(lm_stream *s) {
  gpu *c = &gpus[lm_device_physical(s->device)];
  LM_LOCKED(&lock);
  report_slot *p = c->at;
  while (p->stream != s->native) p++;
  return p;
}

lm_status lm_cuda_bad(lm_device device, lm_bad *out) {
  lm_stream *s = lm_stream_current(device);
  if (!s) return LM_E_STATE;
  _Atomic(report_slot *) *at = &by_stream[LM_DEVICE_ORDINAL(device)][s->id];
  report_slot *p = atomic_load_explicit(at, memory_order_acquire);
  if (!p) atomic_store_explicit(at, p = find_slot(s), memory_order_release);
  *out = (lm_bad){p->device_claim, p->device_records, lm_op_running_id()};
  return LM_OK;
}

void lm_cuda_resolve_all(int ordinal) { atomic_store(&gpus[ordinal].together, true); }

lm_status lm_cuda_resolve(int ordinal, void *stream) {
  lm_bad_record found = {0};
  gpu *c = &gpus[ordinal];
  bool all = !stream || atomic_load(&c->together);
  pthread_mutex_lock(&lock);
  for (report_slot *p = c->at; p < c->at + c->n; p++) {
    if (!(all || p->stream == stream)) continue;
    if (__atomic_load_n(&p->record->kind, __ATOMIC_ACQUIRE) == LM_BAD_NONE) continue; /* written last, by a kernel */
    if (found.kind == LM_BAD_NONE) found = *p->record;
    __atomic_store_n(&p->record->kind, LM_BAD_NONE, __ATOMIC_RELAXED);
    __atomic_store_n(p->claim, 0, __ATOMIC_RELEASE); /* from here on kernels may claim the record again */
  }
  pthread_mutex_unlock(&lock);
  if (found.kind == LM_BAD_NONE) return LM_OK;
  return lm_fail_bad_value(found.kind, found.op, found.position, found.value, found.limit);
}
