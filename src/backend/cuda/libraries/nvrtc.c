#include "backend/cuda/libraries/nvrtc.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/libraries/lazy_library.h"
#include "backend/cuda/libraries/plan_cache.h"
#include "backend/cuda/runtime/context.h"
#include "base/descriptor.h"
#include "base/environment_variable.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "generated_prelude.inc"

/* clang-format off */
#define COMPILER(X)                                                                                             \
  X(nvrtcCompileProgram) X(nvrtcCreateProgram) X(nvrtcDestroyProgram) X(nvrtcGetCUBIN) X(nvrtcGetCUBINSize)      \
  X(nvrtcGetErrorString) X(nvrtcGetNumSupportedArchs) X(nvrtcGetPTX) X(nvrtcGetPTXSize) X(nvrtcGetProgramLog)    \
  X(nvrtcGetProgramLogSize) X(nvrtcGetSupportedArchs) X(nvrtcVersion)
/* clang-format on */
#define DRIVER(X) X(cuLaunchKernel) X(cuModuleLoadData) X(cuModuleGetFunction)
LM_LAZY_LIBRARY(compiler, nvrtc, COMPILER, "nvrtc", LM_FILE_OF("libnvrtc.so.", LM_NVRTC_MAJOR));
LM_LAZY_LIBRARY(driver_library, driver, DRIVER, "cuda", "libcuda.so.1");

struct lm_cuda_code {
  lm_cached head;
  struct {
    uint64_t hash[2]; /* hashes of the text */
    int64_t ordinal;
  } key;
  CUfunction kernel;
  bool failed;
  char reason[400]; /* why it failed */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `codes`, and is held while one is compiled */
static lm_cache codes;

/* ---- files */

/* The begin of a file of the cache; machine code, or PTX, follows. */
typedef struct file_head {
  char magic[8];
  uint64_t hash[2];    /* hashes of the text */
  uint64_t bytes, sum; /* size and hash of the code */
} file_head;
static const char magic[8] = "LMCODE1";

/* Sets `path` to the folder of compiled kernels and makes it; false if there is none. */
static bool find_folder(char path[400]) {
  const char *given = lm_variable_get(LM_VAR_KERNEL_CACHE), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = 0;
  if (given)
    n = snprintf(path, 400, "%s", given);
  else if (cache && *cache == '/')
    n = snprintf(path, 400, "%s/luminary", cache);
  else if (home && *home == '/')
    n = snprintf(path, 400, "%s/.cache/luminary", home);
  if (n <= 0 || n >= 400) return false;
  for (char *at = path + 1; *at; at++) {
    if (*at != '/') continue;
    *at = '\0';
    mkdir(path, 0700);
    *at = '/';
  }
  struct stat info;
  mkdir(path, 0700);
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

static bool find_file(const lm_cuda_code *c, const char *arch, char path[600]) {
  char folder[400];
  int major = 0, minor = 0;
  nvrtc.nvrtcVersion(&major, &minor);
  if (!find_folder(folder)) return false;
  snprintf(path, 600, "%s/%016llx-%s-%d.%d", folder, (unsigned long long)c->key.hash[0], arch, major, minor);
  return true;
}

/* Reads a file of the cache; false, and out is empty, if it is absent, broken or of another text. */
static bool read_file(const lm_cuda_code *c, const char *path, lm_bytes *out) {
  file_head head;
  char block[4096];
  LM_OWNED_FD fd = lm_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd < 0 || read(fd, &head, sizeof head) != sizeof head || memcmp(head.magic, magic, sizeof magic) != 0 ||
      memcmp(head.hash, c->key.hash, sizeof head.hash) != 0)
    return false;
  for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;) lm_put(out, block, (size_t)n);
  if (!out->failed && out->n == head.bytes && lm_hash(LM_NO_HASH, out->data, out->n) == head.sum) return true;
  lm_bytes_free(out);
  return false;
}

/* Writes a file of the cache; without room or permission there is none. */
static void write_file(const lm_cuda_code *c, const char *path, const lm_bytes *code) {
  char temporary[640];
  file_head head = {.bytes = code->n, .sum = lm_hash(LM_NO_HASH, code->data, code->n)};
  memcpy(head.magic, magic, sizeof magic);
  memcpy(head.hash, c->key.hash, sizeof head.hash);
  snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
  LM_OWNED_FD fd = lm_fd_above_stdio(open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd < 0) return;
  const bool is_written =
      write(fd, &head, sizeof head) == sizeof head && write(fd, code->data, code->n) == (ssize_t)code->n;
  if (!is_written || rename(temporary, path) != 0) remove(temporary);
}

/* ---- compiling */

static lm_status check_compiler(int code, const char *call) {
  if (code == NVRTC_SUCCESS) return LM_OK;
  return lm_fail(LM_E_MISSING, "%s: %s", call, nvrtc.nvrtcGetErrorString((nvrtcResult)code));
}
#define NVRTC(call) check_compiler((int)nvrtc.call, #call)

/* Sets `arch` to the card's own, "sm_90", or to the newest before it that this NVRTC knows, as PTX. */
static lm_status choose_arch(lm_device device, char arch[32]) {
  const lm_cuda_facts *facts = lm_cuda_facts_of(device);
  const int wanted = facts->major * 10 + facts->minor;
  int n = 0, best = 0, list[128];
  NEED(NVRTC(nvrtcGetNumSupportedArchs(&n)));
  if (n > (int)(sizeof list / sizeof *list)) return lm_fail(LM_E_MISSING, "NVRTC knows too many architectures");
  NEED(NVRTC(nvrtcGetSupportedArchs(list)));
  for (int i = 0; i < n; i++)
    if (list[i] <= wanted && list[i] > best) best = list[i];
  if (best == 0)
    return lm_fail(LM_E_MISSING, "NVRTC does not know compute capability %d.%d", facts->major, facts->minor);
  snprintf(arch, 32, "%s_%d", best == wanted ? "sm" : "compute", best);
  return LM_OK;
}

static lm_status compile_program(nvrtcProgram program, const char *arch, lm_bytes *out) {
  const char *prefix = "--gpu-architecture=";
  char target[64];
  size_t n = 0;
  snprintf(target, sizeof target, "%s%s", prefix, arch);
  const char *options[] = {target, "--std=c++17", "--device-as-default-execution-space", "--disable-warnings"};
  const bool is_ptx = strncmp(arch, "compute", 7) == 0;
  int code = nvrtc.nvrtcCompileProgram(program, 4, options);
  if (code == NVRTC_ERROR_COMPILATION) {
    LM_OWNED_BYTES log = {0};
    NEED(NVRTC(nvrtcGetProgramLogSize(program, &n)));
    if (!lm_list_grow(&log.data, &log.capacity, n + 1, 1)) return LM_E_OOM;
    NEED(NVRTC(nvrtcGetProgramLog(program, log.data)));
    return lm_fail(LM_E_MISSING, "NVRTC: %.300s", log.data);
  }
  NEED(check_compiler(code, "nvrtcCompileProgram"));
  NEED(is_ptx ? NVRTC(nvrtcGetPTXSize(program, &n)) : NVRTC(nvrtcGetCUBINSize(program, &n)));
  if (!lm_list_grow(&out->data, &out->capacity, n, 1)) return LM_E_OOM;
  out->n = n;
  return is_ptx ? NVRTC(nvrtcGetPTX(program, out->data)) : NVRTC(nvrtcGetCUBIN(program, out->data));
}

static lm_status compile_text(const char *text, size_t bytes, const char *arch, lm_bytes *out) {
  LM_OWNED_BYTES whole = {0};
  nvrtcProgram program;
  lm_put(&whole, prelude, sizeof prelude - 1);
  lm_put(&whole, text, bytes);
  lm_put_u8(&whole, 0);
  if (whole.failed) return LM_E_OOM;
  NEED(NVRTC(nvrtcCreateProgram(&program, whole.data, "group.cu", 0, NULL, NULL)));
  lm_status status = compile_program(program, arch, out);
  nvrtc.nvrtcDestroyProgram(&program);
  return status;
}

static lm_status check_driver(int code, const char *call) {
  if (code == CUDA_SUCCESS) return LM_OK;
  return lm_fail_call(code == CUDA_ERROR_OUT_OF_MEMORY ? LM_E_OOM : LM_E_STATE, lm_op_running(), call, code, "CUresult",
                      "an error of the driver");
}

/* Loads code into the current card's context. Without relaxing, that would end a capture. */
static lm_status load_module(lm_cuda_code *c, const lm_bytes *code) {
  int mode;
  CUmodule module;
  NEED(lm_cuda_relax(&mode));
  lm_status status = check_driver((int)driver.cuModuleLoadData(&module, code->data), "cuModuleLoadData");
  if (status == LM_OK)
    status = check_driver((int)driver.cuModuleGetFunction(&c->kernel, module, "lm_group"), "cuModuleGetFunction");
  lm_cuda_unrelax(mode);
  return status == LM_E_STATE ? LM_E_MISSING : status; /* the kernels of the ops then run one by one */
}

static lm_status make_code(lm_device device, lm_cuda_code *c, const char *text, size_t bytes) {
  LM_OWNED_BYTES code = {0};
  char arch[32], path[600];
  NEED(lm_lazy_load(&compiler));
  NEED(lm_lazy_load(&driver_library));
  NEED(choose_arch(device, arch));
  const bool has_file = find_file(c, arch, path);
  if (has_file && read_file(c, path, &code) && load_module(c, &code) == LM_OK) return LM_OK;
  lm_bytes_free(&code);
  NEED(compile_text(text, bytes, arch, &code));
  NEED(load_module(c, &code));
  if (has_file) write_file(c, path, &code);
  return LM_OK;
}

lm_status lm_cuda_compile(lm_device device, const char *text, size_t bytes, const lm_cuda_code **out) {
  void *stream;
  const uint64_t hash = lm_hash(LM_NO_HASH, prelude, sizeof prelude);
  LM_FREED lm_cuda_code *fresh = lm_calloc(1, sizeof *fresh);
  if (!fresh) return LM_E_OOM;
  fresh->key.hash[0] = lm_hash(hash, text, bytes);
  fresh->key.hash[1] = lm_hash(~hash, text, bytes);
  fresh->key.ordinal = lm_device_physical(device);
  NEED(lm_cuda_enter(device, &stream));
  LM_LOCKED(&lock);
  lm_cuda_code *c = lm_cache_find(&codes, &fresh->key, sizeof fresh->key);
  if (!c) {
    lm_status status = make_code(device, fresh, text, bytes);
    if (status != LM_OK && status != LM_E_MISSING) return status;
    fresh->failed = status != LM_OK;
    if (fresh->failed) snprintf(fresh->reason, sizeof fresh->reason, "%s", lm_error());
    lm_cache_put(&codes, &fresh->head, sizeof fresh->key);
    c = fresh;
    fresh = NULL;
  }
  *out = c;
  return c->failed ? lm_fail(LM_E_MISSING, "%s", c->reason) : LM_OK;
}

lm_status lm_cuda_launch_code(const lm_cuda_code *code, int64_t blocks, int threads, void *parameters, size_t bytes,
                              void *stream) {
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return check_driver((int)driver.cuLaunchKernel(code->kernel, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0,
                                                 (CUstream)stream, NULL, extra),
                      "cuLaunchKernel");
}
