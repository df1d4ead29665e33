#include "backend/cuda/runtime/properties.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/runtime/context.h"

/* clang-format off */
/* Fields of cudaDeviceProp: numbers, and arrays of them. */
#define NUMBERS(X)                                                                                                    \
  X(luidDeviceNodeMask) X(totalGlobalMem) X(sharedMemPerBlock) X(regsPerBlock) X(warpSize) X(memPitch)                \
  X(maxThreadsPerBlock) X(totalConstMem) X(major) X(minor) X(textureAlignment) X(texturePitchAlignment)               \
  X(multiProcessorCount) X(integrated) X(canMapHostMemory) X(maxTexture1D) X(maxTexture1DMipmap)                      \
  X(maxTextureCubemap) X(maxSurface1D) X(maxSurfaceCubemap) X(surfaceAlignment) X(concurrentKernels) X(ECCEnabled)    \
  X(pciBusID) X(pciDeviceID) X(pciDomainID) X(tccDriver) X(asyncEngineCount) X(unifiedAddressing) X(memoryBusWidth)   \
  X(l2CacheSize) X(persistingL2CacheMaxSize) X(maxThreadsPerMultiProcessor) X(streamPrioritiesSupported)              \
  X(globalL1CacheSupported) X(localL1CacheSupported) X(sharedMemPerMultiprocessor) X(regsPerMultiprocessor)           \
  X(managedMemory) X(isMultiGpuBoard) X(multiGpuBoardGroupID) X(hostNativeAtomicSupported) X(pageableMemoryAccess)    \
  X(concurrentManagedAccess) X(computePreemptionSupported) X(canUseHostPointerForRegisteredMem) X(cooperativeLaunch)  \
  X(sharedMemPerBlockOptin) X(pageableMemoryAccessUsesHostPageTables) X(directManagedMemAccessFromHost)               \
  X(maxBlocksPerMultiProcessor) X(accessPolicyMaxWindowSize) X(reservedSharedMemPerBlock) X(hostRegisterSupported)    \
  X(sparseCudaArraySupported) X(hostRegisterReadOnlySupported) X(timelineSemaphoreInteropSupported)                   \
  X(memoryPoolsSupported) X(gpuDirectRDMASupported) X(gpuDirectRDMAFlushWritesOptions)                                \
  X(gpuDirectRDMAWritesOrdering) X(memoryPoolSupportedHandleTypes) X(deferredMappingCudaArraySupported)               \
  X(ipcEventSupported) X(clusterLaunch) X(unifiedFunctionPointers)
#define LATER_NUMBERS(X)                                                                                              \
  X(deviceNumaConfig) X(deviceNumaId) X(mpsEnabled) X(hostNumaId) X(gpuPciDeviceID) X(gpuPciSubsystemID)              \
  X(hostNumaMultinodeIpcSupported)
#define ARRAYS(X)                                                                                                     \
  X(maxThreadsDim) X(maxGridSize) X(maxTexture2D) X(maxTexture2DMipmap) X(maxTexture2DLinear) X(maxTexture2DGather)   \
  X(maxTexture3D) X(maxTexture3DAlt) X(maxTexture1DLayered) X(maxTexture2DLayered) X(maxTextureCubemapLayered)        \
  X(maxSurface2D) X(maxSurface3D) X(maxSurface1DLayered) X(maxSurface2DLayered) X(maxSurfaceCubemapLayered)
/* Properties without a field. */
#define ATTRIBUTES(X)                                                                                                 \
  X(clockRate, ClockRate) X(memoryClockRate, MemoryClockRate) X(computeMode, ComputeMode)                             \
  X(kernelExecTimeout, KernelExecTimeout) X(gpuOverlap, GpuOverlap)                                                   \
  X(singleToDoublePrecisionPerfRatio, SingleToDoublePrecisionPerfRatio)                                               \
  X(canFlushRemoteWrites, CanFlushRemoteWrites) X(memSyncDomainCount, MemSyncDomainCount)                             \
  X(maxTexture1DLinearWidth, MaxTexture1DLinearWidth)
#define LATER_ATTRIBUTES(X)                                                                                           \
  X(d3D12CigSupported, D3D12CigSupported) X(vulkanCigSupported, VulkanCigSupported)                                   \
  X(hostNumaMemoryPoolsSupported, HostNumaMemoryPoolsSupported)                                                       \
  X(hostMemoryPoolsSupported, HostMemoryPoolsSupported)                                                               \
  X(onlyPartialHostNativeAtomicSupported, OnlyPartialHostNativeAtomicSupported)
/* clang-format on */

typedef struct sink {
  void (*put)(void *ctx, const lm_property *p);
  void *ctx;
} sink;

static void put_number(const sink *s, const char *name, double number) {
  s->put(s->ctx, &(lm_property){.name = name, .kind = LM_PROPERTY_NUMBER, .number = number});
}

static void put_text(const sink *s, const char *name, const char *text) {
  s->put(s->ctx, &(lm_property){.name = name, .kind = LM_PROPERTY_TEXT, .text = text});
}

static void put_array(const sink *s, const char *name, int n, const int *v) {
  char text[64];
  int at = 0;
  for (int i = 0; i < n; i++) at += snprintf(text + at, sizeof text - (size_t)at, i ? ", %d" : "%d", v[i]);
  put_text(s, name, text);
}

/* Reports the UUID in the form of `nvidia-smi -L`. */
static void put_uuid(const sink *s, const cudaUUID_t *uuid) {
  char text[48] = "GPU";
  int at = 3;
  for (int i = 0; i < 16; i++) {
    bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    at += snprintf(text + at, sizeof text - (size_t)at, dash ? "-%02x" : "%02x", (unsigned char)uuid->bytes[i]);
  }
  put_text(s, "uuid", text);
}

/* Reports the card's number in CUDA_VISIBLE_DEVICES if that lists numbers; a card listed by UUID has none here. */
static void put_physical_index(const sink *s, int ordinal) {
  const char *at = getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; at && i < ordinal; i++) {
    at = strchr(at, ',');
    if (at) at++;
  }
  if (!getenv("CUDA_VISIBLE_DEVICES")) {
    put_number(s, "physicalIndex", ordinal);
    return;
  }
  char *end = NULL;
  long index = at ? strtol(at, &end, 10) : -1;
  if (at && end != at && (*end == ',' || *end == 0)) put_number(s, "physicalIndex", (double)index);
}

/* Reads an attribute; false if the driver does not know it, being older than the toolkit of the build. */
static bool has_attribute(enum cudaDeviceAttr attribute, int ordinal, int *value) {
  if (cudaDeviceGetAttribute(value, attribute, ordinal) == cudaSuccess) return true;
  lm_cuda_forget_error();
  return false;
}

lm_status lm_cuda_properties(int ordinal, void (*put)(void *ctx, const lm_property *p), void *ctx) {
  sink s = {put, ctx};
  char bus[32] = "", luid[20] = "";
  int value;
  struct cudaDeviceProp p;
  NEED(CUDA(cudaGetDeviceProperties(&p, ordinal)));
  NEED(CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal)));
  put_text(&s, "name", p.name);
  put_uuid(&s, &p.uuid);
  put_text(&s, "pciBusId", bus);
  put_physical_index(&s, ordinal);
  for (int i = 0; i < 8; i++) snprintf(luid + 2 * i, 3, "%02x", (unsigned char)p.luid[i]);
  put_text(&s, "luid", luid);
#define X(field) put_number(&s, #field, (double)p.field);
  NUMBERS(X)
#if CUDART_VERSION >= 13000
  LATER_NUMBERS(X)
#endif
#undef X
#define X(field) put_array(&s, #field, sizeof p.field / sizeof *p.field, p.field);
  ARRAYS(X)
#undef X
#define X(name, attribute) \
  if (has_attribute(cudaDevAttr##attribute, ordinal, &value)) put_number(&s, #name, value);
  ATTRIBUTES(X)
#if CUDART_VERSION >= 13000
  LATER_ATTRIBUTES(X)
#endif
#undef X
  return LM_OK;
}
