/* Counting calls, making them fail, counting what lives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

std::recursive_mutex lm_fake_state;
int lm_fake_sticky;
const bool lm_fake_null = lm_fake_setting("LM_FAKE_CUDA_NULL", 0) != 0;
static thread_local int last_error;

namespace {
struct rule {
  std::string name; /* "" is any */
  long left;
  int code;
};
struct control {
  std::map<std::string, long> calls, live;
  std::vector<rule> rules;
  long all = 0;
  bool trace = false;
};
}  // namespace

static void parse_rules(control &c, const char *text) {
  for (std::string rest = text; !rest.empty();) {
    size_t comma = rest.find(',');
    std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    char name[100];
    long nth;
    int code;
    if (sscanf(one.c_str(), "%99[^:]:%ld:%d", name, &nth, &code) != 3) {
      fprintf(stderr, "fake cuda: LM_FAKE_CUDA_FAIL: \"%s\" is not name:nth:code\n", one.c_str());
      continue;
    }
    c.rules.push_back({strcmp(name, "*") == 0 ? "" : name, nth, code});
  }
}

/* Returns the state, never destroyed: libraries make calls until the process is gone. */
static control &get() {
  static control *c = [] {
    control *made = new control;
    if (const char *text = getenv("LM_FAKE_CUDA_FAIL")) parse_rules(*made, text);
    made->trace = lm_fake_setting("LM_FAKE_CUDA_TRACE", 0) != 0;
    return made;
  }();
  return *c;
}

long lm_fake_setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtol(text, NULL, 10) : otherwise;
}

cudaError_t lm_fake_result(int code) {
  if (code != 0) last_error = code;
  return (cudaError_t)code;
}

extern "C" int lm_fake_enter(const char *name) {
  lm_fake_guard lock(lm_fake_state);
  control &c = get();
  c.all++;
  c.calls[name]++;
  int code = 0;
  for (size_t i = 0; i < c.rules.size();) {
    rule &r = c.rules[i];
    if (!(r.name.empty() || r.name == name) || --r.left > 0) {
      i++;
      continue;
    }
    code = r.code;
    c.rules.erase(c.rules.begin() + (long)i);
  }
  if (c.trace) fprintf(stderr, "fake cuda: %s%s\n", name, code ? " fails" : "");
  return code;
}

void lm_fake_trace(const char *text) {
  lm_fake_guard lock(lm_fake_state);
  if (get().trace) fprintf(stderr, "fake cuda:   %s\n", text);
}

int lm_fake_begin(const char *name) {
  int code = lm_fake_enter(name);
  lm_fake_guard lock(lm_fake_state);
  return code ? code : lm_fake_sticky;
}

extern "C" void lm_fake_fail(const char *name, long nth, int code) {
  lm_fake_guard lock(lm_fake_state);
  control &c = get();
  if (nth > 0) {
    c.rules.push_back({name ? name : "", nth, code});
    return;
  }
  for (size_t i = c.rules.size(); i-- > 0;) {
    if (!name || c.rules[i].name == name) c.rules.erase(c.rules.begin() + (long)i);
  }
}

extern "C" long lm_fake_call_count(const char *name) {
  lm_fake_guard lock(lm_fake_state);
  if (!name) return get().all;
  auto found = get().calls.find(name);
  return found == get().calls.end() ? 0 : found->second;
}

extern "C" const char *lm_fake_call_names(void) {
  lm_fake_guard lock(lm_fake_state);
  static thread_local std::string names;
  names.clear();
  for (auto &call : get().calls) names += (names.empty() ? "" : ",") + call.first;
  return names.c_str();
}

extern "C" void lm_fake_count(const char *what, long by) {
  lm_fake_guard lock(lm_fake_state);
  get().live[what] += by;
}

extern "C" long lm_fake_live(const char *what) {
  lm_fake_guard lock(lm_fake_state);
  return get().live[what];
}

extern "C" void lm_fake_reset(void) {
  lm_fake_guard lock(lm_fake_state);
  lm_fake_sticky = 0;
}

/* ---- errors ---- */

extern "C" {

LM_FAKE_API cudaError_t cudaGetLastError(void) {
  cudaError_t code = cudaPeekAtLastError();
  last_error = 0;
  return code;
}

LM_FAKE_API cudaError_t cudaPeekAtLastError(void) {
  lm_fake_guard lock(lm_fake_state);
  return (cudaError_t)(lm_fake_sticky ? lm_fake_sticky : last_error);
}

static const struct {
  cudaError_t code;
  const char *name, *text;
} ERRORS[] = {
#define E(name, text) \
  { name, #name, text }
    E(cudaSuccess, "no error"),
    E(cudaErrorInvalidValue, "invalid argument"),
    E(cudaErrorMemoryAllocation, "out of memory"),
    E(cudaErrorInitializationError, "initialization error"),
    E(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    E(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    E(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    E(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    E(cudaErrorInvalidDeviceFunction, "invalid device function"),
    E(cudaErrorDeviceUninitialized, "invalid device context"),
    E(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    E(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    E(cudaErrorInvalidDevice, "invalid device ordinal"),
    E(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    E(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    E(cudaErrorNotReady, "device not ready"),
    E(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    E(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    E(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    E(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    E(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    E(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    E(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    E(cudaErrorLaunchFailure, "unspecified launch failure"),
    E(cudaErrorMisalignedAddress, "misaligned address"),
    E(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    E(cudaErrorNotPermitted, "operation not permitted"),
    E(cudaErrorNotSupported, "operation not supported"),
    E(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    E(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    E(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    E(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    E(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    E(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    E(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream"),
    E(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    E(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"),
    E(cudaErrorUnknown, "unknown error"),
#undef E
};

LM_FAKE_API const char *cudaGetErrorName(cudaError_t code) {
  for (auto &e : ERRORS) {
    if (e.code == code) return e.name;
  }
  return "unrecognized error code";
}

LM_FAKE_API const char *cudaGetErrorString(cudaError_t code) {
  for (auto &e : ERRORS) {
    if (e.code == code) return e.text;
  }
  return "unrecognized error code";
}

}  // extern "C"
