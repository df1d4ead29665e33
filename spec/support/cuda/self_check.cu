/* Checks the fake CUDA runtime: kernels here are compiled into it too (CMakeLists.txt), and this file, built by nvcc,
 * runs them with the fake preloaded. `self_check NAME` runs one check and prints "ok"; what went wrong is on stderr. */
#include "mma.cuh"

/* ---- kernels ---- */

LM_KERNEL void check_sum(double *out, const double *in, int64_t n) {
  __shared__ double capacity[LM_WARP];
  double sum = 0;
  for (int64_t i = lm_thread(); i < n; i += lm_threads()) sum += in[i];
  sum = lm_block_reduce(sum, lm_add_of(), capacity);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}

template <typename T>
LM_KERNEL void check_reverse(T *x) {
  LM_DYNAMIC_SHARED(T, copy);
  copy[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}
template LM_KERNEL void check_reverse<double>(double *);

struct check_pair {
  double value;
  int place;
};

LM_KERNEL void check_warp(int *out) {
  int lane = lm_lane();
  check_pair pair = {(lane * 7 % 32) * 1.0, lane};
  pair = lm_warp_reduce(pair, [](check_pair a, check_pair b) { return a.value > b.value ? a : b; });
  out[lane] = pair.place;
  out[32 + lane] = __shfl_up_sync(LM_ALL_LANES, lane, 1, 8);
  out[64 + lane] = __shfl_down_sync(LM_ALL_LANES, lane, 3);
  out[96 + lane] = (int)__ballot_sync(LM_ALL_LANES, lane % 3 == 0);
  if (lane % 2) out[128 + lane] = __shfl_xor_sync(0xaaaaaaaau, lane, 2);
}

LM_KERNEL void check_divider(int *wrong, lm_divider d, uint32_t first) {
  uint32_t n = first + (uint32_t)lm_thread(), rest, quotient = lm_divide_rest(n, d, &rest);
  if (quotient != n / d.divisor || rest != n % d.divisor) atomicAdd(wrong, 1);
}

LM_KERNEL void check_long_divider(int *wrong, lm_long_divider d, int64_t first) {
  int64_t n = first + lm_thread();
  if (lm_long_divide(n, d) != n / d.divisor) atomicAdd(wrong, 1);
}

LM_KERNEL void check_set(float *x, float value, int64_t n) {
  for (int64_t i = lm_thread(); i < n; i += lm_threads()) x[i] = value;
}

LM_KERNEL void check_add(float *x, const float *y) { *x += *y; }

/* Lets some threads leave before what the others wait in. */
LM_KERNEL void check_divergent(int *out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

LM_KERNEL void check_absent_lane(int *out) {
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = __shfl_sync(LM_ALL_LANES, (int)threadIdx.x, 0);
}

LM_KERNEL void check_unset(float *out) {
  __shared__ float never[4];
  if (threadIdx.x == 9) never[0] = 1;
  out[threadIdx.x] = never[threadIdx.x % 4];
}

LM_KERNEL void check_behind_shared() {
  LM_DYNAMIC_SHARED(int, capacity);
  capacity[threadIdx.x] = 1;
}

/* Writes the first elements in every block; or reads what the block before it writes. */
LM_KERNEL void check_same_place(int *out) { out[threadIdx.x] = (int)blockIdx.x; }
LM_KERNEL void check_neighbor(int *x) {
  int64_t i = lm_thread();
  x[i] = i > 0 ? x[i - 1] + 1 : 0;
}

/* Accesses that may look like a race: bytes of one word, atomics, and blocks that read the same. */
LM_KERNEL void check_no_race(uint8_t *bytes, int *sum, const int *in) {
  bytes[lm_thread()] = (uint8_t)in[threadIdx.x];
  atomicAdd(sum, in[threadIdx.x]);
}

/* Depends on the order of blocks, and of threads: wrong on a device, whatever it writes. */
LM_KERNEL void check_last(int *out) {
  if (threadIdx.x == 0) atomicExch(out, (int)blockIdx.x);
  atomicExch(out + 1, (int)threadIdx.x);
}

LM_KERNEL void check_misaligned(uint4 *out, const char *in) { *out = *(const uint4 *)(in + threadIdx.x); }

LM_KERNEL void check_cast(int64_t *out, const float *in) { out[threadIdx.x] = (int64_t)in[threadIdx.x]; }

/* Writes 1 where a * b + c is rounded once. */
LM_KERNEL void check_contraction(int *out, float a, float b, float c) { *out = a * b + c != 0; }

/* c = a b by a warp, of [16, 16] and [16, 8], counting what is not where PTX's manual has it, by formulas of its own:
 * of element i of a, of b and of c. And what is in place of b before its copy is waited for. */
template <class T>
LM_KERNEL void check_matrices(const T *a, const T *b, float *c, int *wrong, T *early) {
  __shared__ lm_pack<T, 8> tile[16 * 4];
  T *in_a = tile->v, *in_b = tile[16 * 2].v; /* lines of 16 */
  int lane = lm_lane(), g = lane / 4, t = lane % 4;
  lm_copy_begin(in_a + lane * 8, a + lane * 8, true);
  lm_copy_begin(in_b + lane * 8, b + lane / 2 * 8, lane % 2 == 0);
  early[lane] = in_b[lane * 8];
  lm_copies_wait();
  __syncthreads();
  uint32_t x[4], y[4];
  float sums[4] = {};
  lm_load_matrices<false>(x, in_a + lane % 16 * 16 + lane / 16 * 8);
  lm_load_matrices<true>(y, in_b + lane % 16 * 16 + lane / 16 * 8);
  for (int i = 0; i < 8; i++) {
    int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8, column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    if ((uint16_t)(x[i / 2] >> i % 2 * 16) != in_a[row * 16 + column].bits) atomicAdd(wrong, 1);
  }
  for (int i = 0; i < 4; i++) {
    int row = t * 2 + (i & 1) + (i >= 2 ? 8 : 0);
    if ((uint16_t)(y[i / 2] >> i % 2 * 16) != in_b[row * 16 + g].bits) atomicAdd(wrong, 1);
  }
  if (y[2] != 0 || y[3] != 0) atomicAdd(wrong, 1); /* columns that are not there */
  lm_mma<T>(sums, x, y);
  for (int i = 0; i < 4; i++) c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = sums[i];
  if (lm_pack_two<T>(1, -2) != ((uint32_t)lm_put<T>(-2.0f).bits << 16 | lm_put<T>(1.0f).bits)) atomicAdd(wrong, 1);
}
template LM_KERNEL void check_matrices<lm_f16>(const lm_f16 *, const lm_f16 *, float *, int *, lm_f16 *);
template LM_KERNEL void check_matrices<lm_bf16>(const lm_bf16 *, const lm_bf16 *, float *, int *, lm_bf16 *);

LM_KERNEL void __launch_bounds__(64) check_bounded(int *out) { out[threadIdx.x] = 1; }

/* ---- checks ---- */

#ifndef LM_HOST_KERNELS

#if __has_include(<cudnn.h>) && __has_include(<cufft.h>)
#include <cudnn.h>
#include <cufft.h>
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define NEED(condition)                                                                                             \
  do {                                                                                                              \
    if (!(condition)) {                                                                                             \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, cudaGetErrorName(cudaPeekAtLastError())); \
      exit(1);                                                                                                      \
    }                                                                                                               \
  } while (0)
#define OK(call) NEED((int)(call) == 0)

typedef long (*count_function)(const char *);
typedef void (*fail_function)(const char *, long, int);
typedef void (*reset_function)(void);

static void *fake(const char *name) {
  void *p = dlsym(RTLD_DEFAULT, name);
  NEED(p);
  return p;
}

static long live(const char *what) { return ((count_function)fake("lm_fake_live"))(what); }

static void *device_memory(size_t bytes) {
  void *p;
  OK(cudaMalloc(&p, bytes));
  return p;
}

static void *pinned_memory(size_t bytes) {
  void *p;
  OK(cudaMallocHost(&p, bytes));
  return p;
}

static cudaStream_t make_stream() {
  cudaStream_t s;
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}

static void barriers() {
  enum { N = 10000 };
  double *in = (double *)pinned_memory(N * sizeof *in), *d = (double *)device_memory((N + 1) * sizeof *d), sum,
         want = 0;
  for (int i = 0; i < N; i++) want += in[i] = i % 17;
  OK(cudaMemset(d, 0, sizeof *d));
  OK(cudaMemcpyAsync(d + 1, in, N * sizeof *in, cudaMemcpyHostToDevice, 0));
  OK(lm_launch(check_sum, lm_blocks(N, 256, 7), 256, 0, NULL, d, d + 1, N));
  OK(cudaMemcpy(&sum, d, sizeof sum, cudaMemcpyDeviceToHost));
  NEED(sum == want);

  OK(lm_launch(check_reverse<double>, 1, 100, 100 * sizeof *d, NULL, d + 1));
  OK(cudaMemcpy(in, d + 1, 100 * sizeof *d, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 100; i++) NEED(in[i] == (99 - i) % 17);
  int *wrong = (int *)d, count;
  OK(cudaMemset(wrong, 0, sizeof *wrong));
  for (uint32_t divisor : {1u, 2u, 3u, 7u, 64u, 641u, 65537u, 2147483647u}) {
    for (uint32_t first : {0u, 4000000u, 2147483648u - 512u}) {
      OK(lm_launch(check_divider, 1, 512, 0, NULL, wrong, lm_divider_make(divisor), first));
    }
  }
  for (int64_t divisor : {1l, 3l, 49l, 641l, 1073741824l, 1073741789l, 1l << 40}) {
    for (int64_t first : {(int64_t)0, (int64_t)4294967000, divisor * 4097 - 100, INT64_MAX - 512}) {
      if (first >= 0) OK(lm_launch(check_long_divider, 1, 512, 0, NULL, wrong, lm_long_divider_make(divisor), first));
    }
  }
  OK(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
  NEED(count == 0);
  for (int64_t n : {0, 5, 7, 100, 12345}) {
    for (int64_t parts : {1, 3, 7, 64}) {
      lm_shares shares = lm_shares_make(n, parts);
      NEED(lm_share_begin(shares, 0) == 0 && lm_share_begin(shares, parts) == n);
      for (int64_t k = 0; k < parts; k++) {
        int64_t size = lm_share_begin(shares, k + 1) - lm_share_begin(shares, k);
        NEED(size == n / parts || size == n / parts + 1);
      }
    }
  }
  OK(cudaFree(d));
  OK(cudaFreeHost(in));
}

static void shuffles() {
  int *d = (int *)device_memory(160 * sizeof *d), out[160];
  OK(lm_launch(check_warp, 1, 32, 0, NULL, d));
  OK(cudaMemcpy(out, d, sizeof out, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; i++) {
    NEED(out[i] == 9); /* 9 * 7 % 32 = 31 */
    NEED(out[32 + i] == (i % 8 ? i - 1 : i));
    NEED(out[64 + i] == (i + 3 < 32 ? i + 3 : i));
    NEED(out[96 + i] == (int)0x49249249);
    if (i % 2) NEED(out[128 + i] == (i ^ 2));
  }
  OK(cudaFree(d));
}

/* Tests products of integers, whose sums are exact. */
template <class T>
static void matrices_of(uint16_t (*bits)(float)) {
  struct {
    float c[16 * 8];
    int wrong;
    uint16_t early[32], a[16 * 16], b[16 * 8];
  } *p = (decltype(p))pinned_memory(sizeof *p);
  auto at = [](int i) { return (float)(i * 7 % 23 - 11); };
  for (int i = 0; i < 256; i++) p->a[i] = bits(at(i));
  for (int i = 0; i < 128; i++) p->b[i] = bits(at(3 * i + 1));
  p->wrong = 0;
  OK(lm_launch(check_matrices<T>, 1, 32, 0, NULL, (const T *)p->a, (const T *)p->b, p->c, &p->wrong, (T *)p->early));
  OK(cudaDeviceSynchronize());
  NEED(p->wrong == 0);
  for (int row = 0; row < 16; row++) {
    for (int column = 0; column < 8; column++) {
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += at(row * 16 + k) * at(3 * (k * 8 + column) + 1);
      NEED(p->c[row * 8 + column] == sum);
    }
  }
  for (int i = 0; i < 32; i++) NEED(p->early[i] == 0xffff);
  OK(cudaFreeHost(p));
}

static void matrices() {
  matrices_of<lm_f16>([](float v) { return __half_as_ushort(__float2half_rn(v)); });
  matrices_of<lm_bf16>([](float v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); });
}

/* Tests that nothing happens before somebody waits, in an order that shows a missing wait. */
static void lazy() {
  cudaStream_t a = make_stream(), b = make_stream();
  cudaEvent_t set;
  OK(cudaEventCreateWithFlags(&set, cudaEventDisableTiming));
  float *d = (float *)device_memory(sizeof *d), *h = (float *)pinned_memory(sizeof *h);
  *h = 5;
  OK(lm_launch(check_set, 1, 32, 0, a, d, 1.0f, 1));
  OK(cudaMemcpyAsync(h, d, sizeof *h, cudaMemcpyDeviceToHost, b));
  NEED(*h == 5 && cudaStreamQuery(b) == cudaErrorNotReady && cudaGetLastError() == cudaErrorNotReady);
  OK(cudaDeviceSynchronize());
  NEED(*h != *h); /* b went first and read what cudaMalloc gave */

  OK(lm_launch(check_set, 1, 32, 0, a, d, 2.0f, 1));
  OK(cudaEventRecord(set, a));
  OK(cudaStreamWaitEvent(b, set, 0));
  OK(cudaMemcpyAsync(h, d, sizeof *h, cudaMemcpyDeviceToHost, b));
  NEED(cudaEventQuery(set) == cudaErrorNotReady);
  OK(cudaStreamSynchronize(b));
  NEED(*h == 2);
  OK(cudaEventQuery(set));

  float pageable = 7; /* read at the call */
  OK(cudaMemcpyAsync(d, &pageable, sizeof pageable, cudaMemcpyHostToDevice, a));
  pageable = 8;
  OK(cudaMemcpyAsync(&pageable, d, sizeof pageable, cudaMemcpyDeviceToHost, a));
  NEED(pageable == 7);
  OK(cudaEventDestroy(set));
  OK(cudaStreamDestroy(a));
  OK(cudaStreamDestroy(b));
  OK(cudaFree(d));
  OK(cudaFreeHost(h));
}

static void capture() {
  cudaStream_t a = make_stream(), b = make_stream();
  cudaEvent_t fork, join;
  OK(cudaEventCreate(&fork));
  OK(cudaEventCreate(&join));
  float *d = (float *)device_memory(2 * sizeof *d), h[2] = {1, 0};
  OK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamCaptureStatus status;
  OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(fork, a));
  OK(cudaStreamWaitEvent(b, fork, 0));
  OK(lm_launch(check_set, 1, 32, 0, b, d + 1, 3.0f, 1));
  OK(cudaEventRecord(join, b));
  OK(cudaStreamWaitEvent(a, join, 0));
  OK(lm_launch(check_add, 1, 1, 0, a, d, d + 1));
  OK(cudaStreamIsCapturing(b, &status));
  NEED(status == cudaStreamCaptureStatusActive);
  OK(cudaStreamEndCapture(a, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; i++) OK(cudaGraphLaunch(exec, a));
  OK(cudaStreamSynchronize(a));
  OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
  NEED(h[0] == 7 && h[1] == 3);
  OK(cudaGraphExecDestroy(exec));

  OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  void *p;
  NEED(cudaMalloc(&p, 8) == cudaErrorStreamCaptureUnsupported);
  NEED(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
  OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  OK(cudaEventRecord(fork, a));
  OK(cudaStreamWaitEvent(b, fork, 0));
  OK(lm_launch(check_add, 1, 1, 0, b, d, d + 1));
  NEED(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureUnjoined);
  (void)cudaGetLastError();
  OK(cudaStreamDestroy(a));
  OK(cudaStreamDestroy(b));
  OK(cudaEventDestroy(fork));
  OK(cudaEventDestroy(join));
  OK(cudaFree(d));
}

/* Expects a fault that shows at the wait, not at the launch, stays, and is forgotten on demand. */
static void need_fault(int code) {
  NEED(cudaDeviceSynchronize() == code);
  NEED(cudaDeviceSynchronize() == code && cudaGetLastError() == code);
  ((reset_function)fake("lm_fake_reset"))();
  (void)cudaGetLastError();
}

static void faults() {
  int *d = (int *)device_memory(64 * sizeof *d);
  OK(lm_launch(check_divergent, 1, 64, 0, NULL, d));
  need_fault(cudaErrorLaunchFailure);
  OK(lm_launch(check_absent_lane, 1, 32, 0, NULL, d));
  need_fault(cudaErrorLaunchFailure);
  OK(lm_launch(check_set, 1, 32, 0, NULL, (float *)d, 0.0f, 65));
  need_fault(cudaErrorIllegalAddress);
  OK(lm_launch(check_behind_shared, 1, 32, 31 * sizeof(int), NULL));
  need_fault(cudaErrorIllegalAddress);
  NEED(lm_launch(check_set, 1, 2048, 0, NULL, (float *)d, 0.0f, 1) == cudaErrorInvalidConfiguration);
  NEED(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == 0);

  float h[32];
  OK(lm_launch(check_unset, 1, 32, 0, NULL, (float *)d));
  OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
  NEED(h[1] != h[1] && h[31] != h[31]);
  OK(cudaFree(d));
  OK(lm_launch(check_divergent, 1, 32, 0, NULL, d));
  need_fault(cudaErrorIllegalAddress); /* freed */
}

static void order() {
  int *d = (int *)device_memory(2 * sizeof *d), last[2];
  for (int i = 0; i < 4; i++) {
    OK(lm_launch(check_last, 50, 40, 0, NULL, d));
    OK(cudaMemcpy(last, d, sizeof last, cudaMemcpyDeviceToHost));
    printf("block %d, thread %d\n", last[0], last[1]);
  }
  OK(cudaFree(d));
}

/* Tests bodies that are checked. */
static void checked() {
  int *d = (int *)device_memory(256 * sizeof *d), one = 0;
  OK(cudaMemset(d, 0, 256 * sizeof *d));
  OK(lm_launch(check_no_race, 4, 31, 0, NULL, (uint8_t *)d, d + 64, d + 128));
  OK(cudaDeviceSynchronize());
  OK(lm_launch(check_same_place, 2, 32, 0, NULL, d));
  need_fault(cudaErrorLaunchFailure);
  OK(lm_launch(check_same_place, 1, 32, 0, NULL, d));
  OK(lm_launch(check_same_place, 1, 32, 0, NULL, d)); /* another launch comes after it */
  OK(cudaDeviceSynchronize());
  OK(lm_launch(check_neighbor, 2, 32, 0, NULL, d));
  need_fault(cudaErrorLaunchFailure);
  OK(lm_launch(check_misaligned, 1, 1, 0, NULL, (uint4 *)d, (const char *)(d + 4)));
  OK(cudaDeviceSynchronize());
  OK(lm_launch(check_misaligned, 1, 1, 0, NULL, (uint4 *)d, (const char *)(d + 1)));
  need_fault(cudaErrorMisalignedAddress);
  float in[2] = {3.5f, 1e19f};
  OK(cudaMemcpy(d, in, sizeof in, cudaMemcpyHostToDevice));
  OK(lm_launch(check_cast, 1, 1, 0, NULL, (int64_t *)(d + 4), (const float *)d));
  OK(cudaDeviceSynchronize());
  OK(lm_launch(check_cast, 1, 2, 0, NULL, (int64_t *)(d + 4), (const float *)d));
  need_fault(cudaErrorLaunchFailure);
  float a = 1 + 0x1p-12f; /* a * a is 1 + 2^-11 + 2^-24, and rounded without the last */
  OK(lm_launch(check_contraction, 1, 1, 0, NULL, d, a, a, -(1 + 0x1p-11f)));
  OK(cudaMemcpy(&one, d, sizeof one, cudaMemcpyDeviceToHost));
  printf("contracted: %d\n", one);
  OK(cudaFree(d));
}

/* Tests a table by which check_set has 255 registers, and check_add 40 bytes of local memory and
 * no launch bounds. */
static void limits() {
  float *d = (float *)device_memory(1024 * sizeof *d);
  struct cudaFuncAttributes is;
  OK(lm_launch(check_bounded, 1, 64, 0, NULL, (int *)d));
  NEED(lm_launch(check_bounded, 1, 96, 0, NULL, (int *)d) == cudaErrorLaunchOutOfResources);
  NEED(cudaGetLastError() == cudaErrorLaunchOutOfResources);
  OK(lm_launch(check_set, 1, 256, 0, NULL, d, 0.0f, 1));
  NEED(lm_launch(check_set, 1, 288, 0, NULL, d, 0.0f, 1) == cudaErrorLaunchOutOfResources);
  (void)cudaGetLastError();
  OK(cudaFuncGetAttributes(&is, (const void *)check_set));
  NEED(is.numRegs == 255 && is.maxThreadsPerBlock == 256 && is.localSizeBytes == 0);
  OK(cudaFuncGetAttributes(&is, (const void *)check_add));
  NEED(is.numRegs == 10 && is.maxThreadsPerBlock == 256 && is.localSizeBytes == 40);
  OK(cudaFuncGetAttributes(&is, (const void *)check_bounded));
  NEED(is.maxThreadsPerBlock == 64);
  int blocks;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)check_set, 128, 0));
  NEED(blocks == 2);
  OK(cudaDeviceSynchronize());
  OK(cudaFree(d));
}

/* Tests LM_FAKE_CUDA_IMAGE=0. */
static void image() {
  float *d = (float *)device_memory(sizeof *d);
  struct cudaFuncAttributes is;
  NEED(lm_launch(check_set, 1, 32, 0, NULL, d, 0.0f, 1) == cudaErrorNoKernelImageForDevice);
  NEED(cudaFuncGetAttributes(&is, (const void *)check_set) == cudaErrorNoKernelImageForDevice);
  (void)cudaGetLastError();
  OK(cudaDeviceSynchronize());
  OK(cudaFree(d));
}

/* Tests LM_FAKE_CUDA_PAGEABLE=1: a copy from pageable memory reads what is there at the copy's turn. */
static void pageable() {
  cudaStream_t s = make_stream();
  float *d = (float *)device_memory(sizeof *d), here = 7, back = 0;
  OK(cudaMemcpyAsync(d, &here, sizeof here, cudaMemcpyHostToDevice, s));
  here = 8;
  OK(cudaStreamSynchronize(s));
  OK(cudaMemcpy(&back, d, sizeof back, cudaMemcpyDeviceToHost));
  NEED(back == 8);
  int reaches;
  OK(cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, 0));
  NEED(reaches == 1);
  OK(cudaStreamDestroy(s));
  OK(cudaFree(d));
}

static void failing() {
  ((fail_function)fake("lm_fake_fail"))("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void *a = device_memory(100), *b;
  NEED(cudaMalloc(&b, 100) == cudaErrorMemoryAllocation && cudaGetLastError() == cudaErrorMemoryAllocation);
  b = device_memory(100);
  NEED(live("memory") == 2);
  ((fail_function)fake("lm_fake_fail"))(NULL, 1, cudaErrorUnknown);
  NEED(cudaFree(a) == cudaErrorUnknown && live("memory") == 1);
  OK(cudaFree(b));
  size_t available, total;
  OK(cudaMemGetInfo(&available, &total));
  NEED(cudaMalloc(&a, total + 1) == cudaErrorMemoryAllocation && available == total);
  NEED(((count_function)fake("lm_fake_call_count"))("cudaMalloc") == 4);
}

/* Tests LM_FAKE_CUDA_DEVICES=3 with CUDA_VISIBLE_DEVICES=2,0. */
static void devices() {
  int count, can, bus[2];
  OK(cudaGetDeviceCount(&count));
  NEED(count == 2);
  for (int i = 0; i < 2; i++) OK(cudaDeviceGetAttribute(&bus[i], cudaDevAttrPciBusId, i));
  NEED(bus[0] == bus[1] + 2);
  NEED(cudaSetDevice(2) == cudaErrorInvalidDevice);
  float *zero = (float *)device_memory(sizeof *zero), *one, h = 3;
  cudaStream_t s = make_stream();
  OK(cudaSetDevice(1));
  one = (float *)device_memory(sizeof *one);
  NEED(lm_launch(check_set, 1, 32, 0, s, one, 1.0f, 1) == cudaErrorInvalidResourceHandle); /* device 0's */
  OK(lm_launch(check_set, 1, 32, 0, NULL, one, 1.0f, 1));
  OK(lm_launch(check_add, 1, 1, 0, NULL, one, zero));
  need_fault(cudaErrorIllegalAddress);
  OK(cudaDeviceCanAccessPeer(&can, 1, 0));
  OK(cudaDeviceEnablePeerAccess(0, 0));
  NEED(can && cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
  OK(cudaMemcpy(zero, &h, sizeof h, cudaMemcpyHostToDevice));
  OK(lm_launch(check_add, 1, 1, 0, NULL, one, zero));
  OK(cudaMemcpyPeerAsync(zero, 0, one, 1, sizeof h, NULL));
  OK(cudaMemcpy(&h, zero, sizeof h, cudaMemcpyDefault));
  NEED(h == 4);
  OK(cudaStreamDestroy(s));
  OK(cudaFree(zero));
  OK(cudaFree(one));
}

/* Tests ids of cuDNN, which begin at 1, parts that are finished before their wholes, and cuFFT's work area, set even
 * for 0 bytes. */
static void libraries() {
#if __has_include(<cudnn.h>) && __has_include(<cufft.h>)
#define CALL(name) ((decltype(&name))fake(#name))
  cudnnBackendDescriptor_t d, op;
  int64_t size[4] = {1, 1, 4, 4}, stride[4] = {16, 16, 4, 1}, align = 16;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  for (int64_t id = 0; id < 2; id++) {
    OK(CALL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &d));
    OK(CALL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    OK(CALL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    OK(CALL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size));
    OK(CALL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride));
    OK(CALL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
    OK(CALL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &op));
    NEED(CALL(cudnnBackendSetAttribute)(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d) ==
         CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    NEED((CALL(cudnnBackendFinalize)(d) == CUDNN_STATUS_SUCCESS) == (id == 1));
    OK(CALL(cudnnBackendDestroyDescriptor)(op));
    OK(CALL(cudnnBackendDestroyDescriptor)(d));
  }
  cufftHandle plan;
  long long n = 4;
  size_t bytes = 1;
  cufftComplex *x = (cufftComplex *)device_memory(4 * sizeof *x);
  OK(CALL(cufftCreate)(&plan));
  OK(CALL(cufftSetAutoAllocation)(plan, 0));
  OK(CALL(cufftMakePlanMany64)(plan, 1, &n, &n, 1, 4, &n, 1, 4, CUFFT_C2C, 1, &bytes));
  NEED(bytes == 0);
  NEED(CALL(cufftExecC2C)(plan, x, x, CUFFT_FORWARD) == CUFFT_EXEC_FAILED);
  OK(CALL(cufftSetWorkArea)(plan, NULL));
  OK(CALL(cufftExecC2C)(plan, x, x, CUFFT_FORWARD));
  OK(cudaDeviceSynchronize());
  OK(CALL(cufftDestroy)(plan));
  OK(cudaFree(x));
#endif
}

/* Ends the process. */
static void touch() {
  float *d = (float *)device_memory(4);
  *d = 1;
}

static const struct {
  const char *name;
  void (*run)();
} CHECKS[] = {{"barriers", barriers}, {"shuffles", shuffles},   {"matrices", matrices}, {"lazy", lazy},
              {"capture", capture},   {"faults", faults},       {"failing", failing},   {"devices", devices},
              {"checked", checked},   {"order", order},         {"limits", limits},     {"image", image},
              {"pageable", pageable}, {"libraries", libraries}, {"touch", touch}};

int main(int count, char **args) {
  for (auto &check : CHECKS) {
    if (count != 2 || strcmp(args[1], check.name) != 0) continue;
    check.run();
    for (const char *what : {"memory", "pinned", "stream", "event", "graph"}) NEED(live(what) == 0);
    printf("ok\n");
    return 0;
  }
  fprintf(stderr, "self_check: which of its checks?\n");
  return 2;
}

#endif
