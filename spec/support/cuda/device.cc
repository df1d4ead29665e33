/* The devices: how many, what they say of themselves (an H200's figures as published), who sees whose memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static thread_local int current;
static bool peer[LM_FAKE_MAX_DEVICES][LM_FAKE_MAX_DEVICES]; /* [of][other], enabled */

namespace {
struct device_list {
  int count;
  int physical[LM_FAKE_MAX_DEVICES];
};
}  // namespace

/* Bytes that differ from device to device. */
static cudaUUID_t uuid_of(int physical) {
  cudaUUID_t uuid;
  for (int i = 0; i < 16; i++) uuid.bytes[i] = (char)(0x4c + 7 * i + physical);
  return uuid;
}

/* Returns the devices up to the first entry that names none, or one that was named before. */
static device_list visible() {
  long present = lm_fake_setting("LM_FAKE_CUDA_DEVICES", 1);
  if (present > LM_FAKE_MAX_DEVICES) present = LM_FAKE_MAX_DEVICES;
  device_list list = {};
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (; list.count < present; list.count++) list.physical[list.count] = list.count;
    return list;
  }
  bool taken[LM_FAKE_MAX_DEVICES] = {};
  while (*text) {
    size_t length = strcspn(text, ",");
    long index = -1;
    if (strncmp(text, "GPU-", 4) == 0) {
      std::string wanted;
      for (size_t i = 4; i < length; i++) wanted += text[i] == '-' ? "" : std::string(1, text[i]);
      for (int d = 0; d < present && index < 0; d++) {
        char hex[33];
        cudaUUID_t uuid = uuid_of(d);
        for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
        if (!wanted.empty() && strncmp(hex, wanted.c_str(), wanted.size()) == 0) index = d;
      }
    } else {
      char *end;
      index = strtol(text, &end, 10);
      if (end == text) index = -1;
    }
    if (index < 0 || index >= present || taken[index]) break;
    taken[index] = true;
    list.physical[list.count++] = (int)index;
    text += length;
    text += *text == ',';
  }
  return list;
}

static const device_list &devices() {
  static const device_list *list = new device_list(visible());
  return *list;
}

int lm_fake_devices() { return devices().count; }
int lm_fake_current() { return current; }
int lm_fake_physical(int device) { return devices().physical[device]; }

void lm_fake_open_context(int device) {
  static bool opened[LM_FAKE_MAX_DEVICES];
  lm_fake_guard lock(lm_fake_state);
  if (!opened[device]) lm_fake_count("context", 1);
  opened[device] = true;
}

bool lm_fake_peers(int device, int other) { return device == other || peer[device][other]; }

unsigned lm_fake_reach(int device) {
  unsigned mask = 0;
  for (int d = 0; d < lm_fake_devices(); d++) mask |= (unsigned)lm_fake_peers(device, d) << d;
  return mask;
}

bool lm_fake_reaches_pageable() { return lm_fake_setting("LM_FAKE_CUDA_PAGEABLE", 0) != 0; }

static bool has_peers() { return lm_fake_setting("LM_FAKE_CUDA_PEERS", 1) != 0; }

static int check(int device) {
  if (lm_fake_devices() == 0) return cudaErrorNoDevice;
  return device >= 0 && device < lm_fake_devices() ? 0 : cudaErrorInvalidDevice;
}

#define CHECK_DEVICE(device)                      \
  do {                                            \
    int code_ = check(device);                    \
    if (code_ != 0) return lm_fake_result(code_); \
  } while (0)

static int attribute(enum cudaDeviceAttr attr, int device) {
  switch (attr) {
    case cudaDevAttrPageableMemoryAccess: return lm_fake_reaches_pageable();
    case cudaDevAttrIpcEventSupport: return lm_fake_setting("LM_FAKE_CUDA_IPC", 1) == 1;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX:
    case cudaDevAttrMaxPitch: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1980000;       /* kHz */
    case cudaDevAttrMemoryClockRate: return 3201000; /* kHz */
    case cudaDevAttrGlobalMemoryBusWidth: return 6144;
    case cudaDevAttrL2CacheSize: return 62914560;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrTexturePitchAlignment: return 32;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrComputeCapabilityMajor: return (int)lm_fake_setting("LM_FAKE_CUDA_MAJOR", 9);
    case cudaDevAttrSingleToDoublePrecisionPerfRatio: return 2;
    case cudaDevAttrPciBusId: return 0x19 + lm_fake_physical(device);
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported: return 1;
    default: return 0;
  }
}

extern "C" {

LM_FAKE_API cudaError_t cudaGetDeviceCount(int *count) {
  LM_FAKE_CALL();
  *count = lm_fake_devices();
  return lm_fake_result(*count ? 0 : cudaErrorNoDevice);
}

LM_FAKE_API cudaError_t cudaSetDevice(int device) {
  LM_FAKE_CALL();
  CHECK_DEVICE(device);
  current = device;
  lm_fake_open_context(device);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  LM_FAKE_CALL();
  CHECK_DEVICE(device);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaGetDevice(int *device) {
  LM_FAKE_CALL();
  CHECK_DEVICE(0);
  *device = current;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
  LM_FAKE_CALL();
  CHECK_DEVICE(device);
  if (attr < 1 || attr >= cudaDevAttrMax) return lm_fake_result(cudaErrorInvalidValue);
  *value = attribute(attr, device);
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  LM_FAKE_CALL();
  CHECK_DEVICE(device);
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "Fake H200");
  prop->uuid = uuid_of(lm_fake_physical(device));
  prop->totalGlobalMem = lm_fake_memory_total();
  prop->memPitch = 2147483647;
  prop->totalConstMem = 65536;
  for (int i = 0; i < 3; i++) {
    prop->maxThreadsDim[i] = attribute((enum cudaDeviceAttr)(cudaDevAttrMaxBlockDimX + i), device);
    prop->maxGridSize[i] = attribute((enum cudaDeviceAttr)(cudaDevAttrMaxGridDimX + i), device);
  }
#define SAME(field, attr) prop->field = attribute(cudaDevAttr##attr, device)
  SAME(sharedMemPerBlock, MaxSharedMemoryPerBlock);
  SAME(sharedMemPerBlockOptin, MaxSharedMemoryPerBlockOptin);
  SAME(sharedMemPerMultiprocessor, MaxSharedMemoryPerMultiprocessor);
  SAME(reservedSharedMemPerBlock, ReservedSharedMemoryPerBlock);
  SAME(regsPerBlock, MaxRegistersPerBlock);
  SAME(regsPerMultiprocessor, MaxRegistersPerMultiprocessor);
  SAME(warpSize, WarpSize);
  SAME(maxThreadsPerBlock, MaxThreadsPerBlock);
  SAME(maxThreadsPerMultiProcessor, MaxThreadsPerMultiProcessor);
  SAME(maxBlocksPerMultiProcessor, MaxBlocksPerMultiprocessor);
  SAME(major, ComputeCapabilityMajor);
  SAME(minor, ComputeCapabilityMinor);
  SAME(multiProcessorCount, MultiProcessorCount);
  SAME(textureAlignment, TextureAlignment);
  SAME(texturePitchAlignment, TexturePitchAlignment);
  SAME(canMapHostMemory, CanMapHostMemory);
  SAME(concurrentKernels, ConcurrentKernels);
  SAME(ECCEnabled, EccEnabled);
  SAME(pciBusID, PciBusId);
  SAME(asyncEngineCount, AsyncEngineCount);
  SAME(unifiedAddressing, UnifiedAddressing);
  SAME(memoryBusWidth, GlobalMemoryBusWidth);
  SAME(l2CacheSize, L2CacheSize);
  SAME(streamPrioritiesSupported, StreamPrioritiesSupported);
  SAME(globalL1CacheSupported, GlobalL1CacheSupported);
  SAME(localL1CacheSupported, LocalL1CacheSupported);
  SAME(managedMemory, ManagedMemory);
  SAME(computePreemptionSupported, ComputePreemptionSupported);
  SAME(canUseHostPointerForRegisteredMem, CanUseHostPointerForRegisteredMem);
  SAME(hostRegisterSupported, HostRegisterSupported);
#undef SAME
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  LM_FAKE_CALL();
  CHECK_DEVICE(device);
  if (length < 13) return lm_fake_result(cudaErrorInvalidValue);
  snprintf(text, (size_t)length, "0000:%02X:00.0", attribute(cudaDevAttrPciBusId, device));
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
  LM_FAKE_CALL();
  unsigned domain, bus;
  if (sscanf(text, "%x:%x:", &domain, &bus) == 2 && domain == 0) {
    for (*device = 0; *device < lm_fake_devices(); ++*device) {
      if (attribute(cudaDevAttrPciBusId, *device) == (int)bus) return cudaSuccess;
    }
  }
  return lm_fake_result(cudaErrorInvalidValue);
}

LM_FAKE_API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) {
  LM_FAKE_CALL();
  CHECK_DEVICE(device);
  CHECK_DEVICE(other);
  *can = device != other && has_peers();
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags) {
  LM_FAKE_CALL();
  CHECK_DEVICE(other);
  lm_fake_guard lock(lm_fake_state);
  if (other == current) return lm_fake_result(cudaErrorInvalidDevice);
  if (flags != 0) return lm_fake_result(cudaErrorInvalidValue);
  if (!has_peers()) return lm_fake_result(cudaErrorPeerAccessUnsupported);
  if (peer[current][other]) return lm_fake_result(cudaErrorPeerAccessAlreadyEnabled);
  peer[current][other] = true;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDeviceDisablePeerAccess(int other) {
  LM_FAKE_CALL();
  CHECK_DEVICE(other);
  lm_fake_guard lock(lm_fake_state);
  if (!peer[current][other]) return lm_fake_result(cudaErrorPeerAccessNotEnabled);
  peer[current][other] = false;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  LM_FAKE_CALL();
  CHECK_DEVICE(current);
  *least = 0, *greatest = -5;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaDriverGetVersion(int *version) {
  LM_FAKE_CALL();
  *version = lm_fake_devices() > 0 ? CUDART_VERSION : 0;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaRuntimeGetVersion(int *version) {
  LM_FAKE_CALL();
  *version = CUDART_VERSION;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaProfilerStart(void) {
  LM_FAKE_CALL();
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaProfilerStop(void) {
  LM_FAKE_CALL();
  return cudaSuccess;
}

}  // extern "C"
