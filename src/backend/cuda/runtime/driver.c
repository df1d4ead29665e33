/* Implements the core's driver by the CUDA runtime: memory, copies, streams, events, capture. Cards: context.c. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/cublas.h"
#include "backend/cuda/libraries/cudnn_handles.h"
#include "backend/cuda/runtime/context.h"
#include "backend/cuda/runtime/nvtx.h"
#include "backend/cuda/runtime/properties.h"
#include "base/thread.h"
#include "device/alloc.h"

/* ---- available cards */

static char why[512];

/* Returns the number of cards. A process may have more streams than the 8 hardware queues that CUDA takes by default:
 * one of the ops, and one of each process group. Streams that share a queue wait for each other. */
static int count(void) {
  int n = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* which CUDA reads at its first call */
  cudaError_t error = cudaGetDeviceCount(&n);
  if (error == cudaSuccess && n > 0) {
    lm_cuda_watch_forks();
    return n;
  }
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  lm_cuda_forget_error();
  snprintf(why, sizeof why, "CUDA: %s (cudaGetDeviceCount: error %d (%s): %s)%s%.64s%s",
           error == cudaErrorInsufficientDriver ? "no driver is loaded, or it is too old"
           : error == cudaErrorNoDevice         ? "the driver has no device"
           : error == cudaSuccess               ? "there is no device"
                                                : "the driver does not answer",
           (int)error, cudaGetErrorName(error), cudaGetErrorString(error), visible ? "; CUDA_VISIBLE_DEVICES is '" : "",
           visible ? visible : "", visible ? "'" : "");
  return 0;
}

static const char *why_none(void) { return why; }

/* ---- memory */

static lm_status cuda_alloc(int ordinal, size_t bytes, void **out) {
  int mode;
  *out = NULL;
  NEED(lm_cuda_select(ordinal));
  NEED(lm_cuda_relax(&mode));
  lm_status status = CUDA(cudaMalloc(out, bytes));
  lm_cuda_unrelax(mode);
  if (status != LM_OK) *out = NULL;
  return status;
}

/* Frees memory; cudaFree waits until nothing uses it. */
static void cuda_free(int ordinal, void *p, size_t bytes) {
  (void)bytes;
  if (lm_cuda_select(ordinal) == LM_OK && cudaFree(p) != cudaSuccess) lm_cuda_forget_error();
}

static lm_status memory(int ordinal, size_t *left, size_t *total) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? CUDA(cudaMemGetInfo(left, total)) : status;
}

static lm_status host_alloc(size_t bytes, void **out) {
  int mode;
  *out = NULL;
  NEED(lm_cuda_select_any());
  NEED(lm_cuda_relax(&mode));
  lm_status status = CUDA(cudaHostAlloc(out, bytes, cudaHostAllocPortable));
  lm_cuda_unrelax(mode);
  if (status != LM_OK) *out = NULL;
  return status;
}

static void host_free(void *p) {
  if (lm_cuda_select_any() == LM_OK && cudaFreeHost(p) != cudaSuccess) lm_cuda_forget_error();
}

/* ---- copies */

static bool can_access_peer(int ordinal, int peer) {
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, ordinal, peer) != cudaSuccess) lm_cuda_forget_error();
  return can != 0;
}

/* Enables peer access at a pair's first copy; cards that cannot reach each other's memory copy through the host. */
static void open_peer(int ordinal, int peer) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static bool tried[LM_DEVICE_MAX][LM_DEVICE_MAX];
  LM_LOCKED(&lock);
  if (!tried[ordinal][peer]) {
    tried[ordinal][peer] = true;
    if (can_access_peer(ordinal, peer) && cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess) lm_cuda_forget_error();
  }
}

/* Sets *early to true if the driver copies unpinned memory to its own buffer before the call returns, without a wait
 * for the stream: up to 64 KiB (CUDA's "API synchronization behavior"), on cards that cannot reach such memory by
 * themselves and read it later. */
static lm_status is_read_at_once(int ordinal, const void *src, size_t bytes, bool *early) {
  enum { UNKNOWN, YES, NO, MOST = 64 << 10 };
  static _Atomic int buffered[LM_DEVICE_MAX];
  struct cudaPointerAttributes memory;
  int known = atomic_load_explicit(&buffered[ordinal], memory_order_relaxed), reaches = 0;
  *early = false;
  if (bytes > MOST) return LM_OK;
  if (known == UNKNOWN) {
    NEED(CUDA(cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, ordinal)));
    known = reaches ? NO : YES;
    atomic_store_explicit(&buffered[ordinal], known, memory_order_relaxed);
  }
  if (known == NO) return LM_OK;
  NEED(CUDA(cudaPointerGetAttributes(&memory, src)));
  *early = memory.type == cudaMemoryTypeUnregistered;
  return LM_OK;
}

/* Copies through pinned memory a source that the driver would read only later, so that nobody waits for the stream's
 * earlier work. *staged: bytes copied so far. Pinned blocks are kept, so there is a limit; pinned sources need no
 * second copy unless they are small. */
static lm_status stage(lm_stream *s, char *dst, const char *src, size_t bytes, size_t *staged) {
  enum { PIECE = 16 << 20, LIMIT = 256 << 20, SMALL = 1 << 20 };
  if (bytes > SMALL && lm_is_pinned(src)) return LM_OK;
  while (*staged < bytes && *staged < LIMIT) {
    void *piece;
    size_t n = bytes - *staged < PIECE ? bytes - *staged : PIECE;
    lm_status status = lm_pinned_alloc(n, &piece);
    if (status != LM_OK) return status == LM_E_OOM ? LM_OK : status;
    memcpy(piece, src + *staged, n);
    status = CUDA(cudaMemcpyAsync(dst + *staged, piece, n, cudaMemcpyHostToDevice, s->native));
    lm_pinned_use(piece, s);
    lm_pinned_free(piece);
    NEED(status);
    *staged += n;
  }
  return LM_OK;
}

static lm_status copy_cuda_bytes(void *stream, lm_device to, void *dst, lm_device from, const void *src, size_t bytes,
                                 bool later) {
  size_t staged = 0;
  bool to_gpu = LM_DEVICE_KIND(to) == LM_CUDA, from_gpu = LM_DEVICE_KIND(from) == LM_CUDA;
  int ordinal = lm_device_physical(to_gpu ? to : from), source = lm_device_physical(from);
  NEED(lm_cuda_select(ordinal));
  if (to_gpu && !from_gpu && !later && bytes > 0) NEED(is_read_at_once(ordinal, src, bytes, &later));
  lm_stream *current = to_gpu && !from_gpu && !later ? lm_stream_current(to) : NULL;
  if (current && current->native == stream) NEED(stage(current, dst, src, bytes, &staged));
  if (staged == bytes) return LM_OK;
  if (to_gpu && from_gpu && source != ordinal) {
    open_peer(ordinal, source);
    NEED(CUDA(cudaMemcpyPeerAsync(dst, ordinal, src, source, bytes, stream)));
  } else {
    enum cudaMemcpyKind kind = !to_gpu     ? cudaMemcpyDeviceToHost
                               : !from_gpu ? cudaMemcpyHostToDevice
                                           : cudaMemcpyDeviceToDevice;
    NEED(CUDA(cudaMemcpyAsync((char *)dst + staged, (const char *)src + staged, bytes - staged, kind, stream)));
  }
  if (later || (to_gpu && from_gpu)) return LM_OK;
  NEED(CUDA(cudaStreamSynchronize(stream)));
  return lm_cuda_resolve(ordinal, stream);
}

static lm_status synchronize(int ordinal) {
  NEED(lm_cuda_select(ordinal));
  NEED(CUDA(cudaDeviceSynchronize()));
  return lm_cuda_resolve(ordinal, NULL);
}

/* ---- streams */

static lm_status stream_create(int ordinal, int priority, void **out) {
  lm_status status;
  cudaStream_t stream = NULL;
  TRY(lm_cuda_select(ordinal));
  TRY(CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority)));
  TRY(lm_cuda_report_slot_new(ordinal, stream));
  *out = stream;
  stream = NULL;
done:
  if (stream) cudaStreamDestroy(stream);
  return status;
}

static lm_status priorities(int ordinal, int *least, int *greatest) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? CUDA(cudaDeviceGetStreamPriorityRange(least, greatest)) : status;
}

static lm_status stream_synchronize(int ordinal, void *stream) {
  NEED(lm_cuda_select(ordinal));
  NEED(CUDA(cudaStreamSynchronize(stream)));
  return lm_cuda_resolve(ordinal, stream);
}

static lm_status is_done(cudaError_t answer, const char *call, bool *done) {
  *done = answer == cudaSuccess;
  if (answer != cudaErrorNotReady) return lm_cuda_check((int)answer, call);
  lm_cuda_forget_error();
  return LM_OK;
}

static lm_status stream_query(int ordinal, void *stream, bool *done) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? is_done(cudaStreamQuery(stream), "cudaStreamQuery", done) : status;
}

/* ---- events */

static lm_status event_create(int ordinal, bool timing, void **event) {
  NEED(lm_cuda_select(ordinal));
  return CUDA(cudaEventCreateWithFlags((cudaEvent_t *)event, timing ? cudaEventDefault : cudaEventDisableTiming));
}

static void event_destroy(int ordinal, void *event) {
  if (lm_cuda_select(ordinal) == LM_OK && cudaEventDestroy(event) != cudaSuccess) lm_cuda_forget_error();
}

static lm_status event_record(int ordinal, void *event, void *stream) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? CUDA(cudaEventRecord(event, stream)) : status;
}

static lm_status event_wait(int ordinal, void *event, void *stream) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? CUDA(cudaStreamWaitEvent(stream, event, 0)) : status;
}

static lm_status event_query(int ordinal, void *event, bool *done) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? is_done(cudaEventQuery(event), "cudaEventQuery", done) : status;
}

static lm_status event_synchronize(int ordinal, void *event) {
  NEED(lm_cuda_select(ordinal));
  NEED(CUDA(cudaEventSynchronize(event)));
  return lm_cuda_resolve(ordinal, NULL);
}

static lm_status event_elapsed(void *from, void *to, double *milliseconds) {
  float elapsed = 0;
  NEED(lm_cuda_select_any());
  lm_status status = CUDA(cudaEventElapsedTime(&elapsed, from, to));
  *milliseconds = (double)elapsed;
  return status;
}

/* ---- capture */

static lm_status capture_begin(int ordinal, void *stream) {
  NEED(lm_cuda_select(ordinal));
  NEED(lm_cuda_blas_prepare(ordinal));
  NEED(lm_cudnn_prepare(ordinal));
  lm_cuda_resolve_all(ordinal);
  return CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

static lm_status capture_end(int ordinal, void *stream, void **graph) {
  lm_status status;
  cudaGraph_t captured = NULL;
  TRY(lm_cuda_select(ordinal));
  TRY(CUDA(cudaStreamEndCapture(stream, &captured)));
  if (graph) TRY(CUDA(cudaGraphInstantiate((cudaGraphExec_t *)graph, captured, 0)));
done:
  if (captured && cudaGraphDestroy(captured) != cudaSuccess) lm_cuda_forget_error();
  if (status != LM_OK && graph) *graph = NULL;
  return status;
}

static lm_status graph_launch(int ordinal, void *graph, void *stream) {
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? CUDA(cudaGraphLaunch(graph, stream)) : status;
}

static void graph_destroy(int ordinal, void *graph) {
  if (lm_cuda_select(ordinal) == LM_OK && cudaGraphExecDestroy(graph) != cudaSuccess) lm_cuda_forget_error();
}

/* ---- other processes */

/* Adds a probable cause to the runtime's message about a handle that was not made or not opened. */
static lm_status explain(lm_status status, const char *why_not) {
  lm_saved_error said;
  if (status == LM_OK) return LM_OK;
  lm_error_save(status, &said);
  return lm_fail(status, "%.700s; %s", said.message, why_not);
}

static lm_status ipc_export(int ordinal, void *p, char handle[LM_IPC_BYTES]) {
  cudaIpcMemHandle_t ipc_handle;
  _Static_assert(sizeof ipc_handle == LM_IPC_BYTES, "a handle's size");
  NEED(lm_cuda_select(ordinal));
  NEED(explain(CUDA(cudaIpcGetMemHandle(&ipc_handle, p)),
               "CUDA does not let other processes share this memory here (WSL and some containers and drivers have no "
               "CUDA IPC); send x:cpu()"));
  memcpy(handle, &ipc_handle, sizeof ipc_handle);
  return LM_OK;
}

static lm_status ipc_open(int ordinal, const char handle[LM_IPC_BYTES], void **p) {
  cudaIpcMemHandle_t ipc_handle;
  memcpy(&ipc_handle, handle, sizeof ipc_handle);
  NEED(lm_cuda_select(ordinal));
  return explain(
      CUDA(cudaIpcOpenMemHandle(p, ipc_handle, cudaIpcMemLazyEnablePeerAccess)),
      "the process that sent it must be alive and share this one's IPC namespace (containers: --ipc=host in both); "
      "or send x:cpu()");
}

static void ipc_close(int ordinal, void *p) {
  if (lm_cuda_select(ordinal) == LM_OK && cudaIpcCloseMemHandle(p) != cudaSuccess) lm_cuda_forget_error();
}

static lm_status ipc_event_create(int ordinal, void **event) {
  int has = 0;
  *event = NULL;
  NEED(lm_cuda_select(ordinal));
  NEED(CUDA(cudaDeviceGetAttribute(&has, cudaDevAttrIpcEventSupport, ordinal)));
  if (!has) return LM_OK;
  return CUDA(cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming | cudaEventInterprocess));
}

static lm_status ipc_event_export(int ordinal, void *event, char handle[LM_IPC_BYTES]) {
  cudaIpcEventHandle_t ipc_handle;
  _Static_assert(sizeof ipc_handle == LM_IPC_BYTES, "a handle's size");
  NEED(lm_cuda_select(ordinal));
  NEED(CUDA(cudaIpcGetEventHandle(&ipc_handle, event)));
  memcpy(handle, &ipc_handle, sizeof ipc_handle);
  return LM_OK;
}

static lm_status ipc_event_open(int ordinal, const char handle[LM_IPC_BYTES], void **event) {
  cudaIpcEventHandle_t ipc_handle;
  memcpy(&ipc_handle, handle, sizeof ipc_handle);
  lm_status status = lm_cuda_select(ordinal);
  return status == LM_OK ? CUDA(cudaIpcOpenEventHandle((cudaEvent_t *)event, ipc_handle)) : status;
}

/* The segment sizes are those PyTorch documents for its CUDA allocator. */
const lm_driver lm_cuda_driver = {
    .abi = LM_DRIVER_ABI,
    .name = "cuda",
    .rules = {.round = 512,
              .small_limit = 1 << 20,
              .small_segment = 2 << 20,
              .large_segment = 20 << 20,
              .large_limit = 10 << 20,
              .large_round = 2 << 20},
    .count = count,
    .why_none = why_none,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .memory = memory,
    .copy = copy_cuda_bytes,
    .synchronize = synchronize,
    .enter = lm_cuda_select,
    .stream_create = stream_create,
    .priorities = priorities,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .properties = lm_cuda_properties,
    .can_access_peer = can_access_peer,
    .range_push = lm_nvtx_push,
    .range_pop = lm_nvtx_pop,
    .range_mark = lm_nvtx_mark,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .ipc_export = ipc_export,
    .ipc_open = ipc_open,
    .ipc_close = ipc_close,
    .ipc_event_create = ipc_event_create,
    .ipc_event_export = ipc_event_export,
    .ipc_event_open = ipc_event_open,
};
