/* Kernels by name: the host stubs of programs built by nvcc, and the same kernels' bodies compiled into this library.
 * Bodies and their __shared__ variables (statics of the body) are found in this file's own symbol table. */
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

enum {
  STATIC_SHARED_MAX = 49152,
  SHARED_MAX = 232448,
  PARAMETER_ALIGN = 16,
  THREADS_PER_SM = 2048,
  BLOCKS_PER_SM = 32,
  REGISTERS = 65536,    /* registers of a multiprocessor, and the most of a block */
  WARP_REGISTERS = 256, /* a warp gets a multiple of them */
  USUAL_REGISTERS = 32, /* assumed of a kernel that was not measured */
  UNBOUND_THREADS = 256 /* fit with any number of registers, which a kernel without launch bounds may have elsewhere */
};

namespace {
struct variable {
  void *address;
  size_t bytes;
};
struct resources {
  int registers, local, threads; /* a thread's; a thread's bytes; most of a block, or 0 */
};
struct registry {
  std::map<std::string, resources> measured;                     /* LM_FAKE_CUDA_REGISTERS, by mangled name */
  std::map<std::string, const void *> bodies;                    /* functions by mangled name */
  std::map<const void *, std::string> names;                     /* mangled names of functions */
  std::map<std::string, std::vector<variable>> statics;          /* statics of each function, by mangled name */
  std::map<const void *, std::shared_ptr<lm_fake_kernel>> known; /* kernels by stub, or body */
};
}  // namespace

/* Finds the function of "_ZZ" <function> "E" <name>, a static in it. Its mangled name is "_Z" <function>. The name's
 * length is a number after the last E before which a function is known; kernels being few, all splits are tried. */
static std::string function_of(const registry &r, const char *symbol) {
  std::string text(symbol + 3);
  for (size_t e = text.rfind('E'); e != std::string::npos && e > 0; e = text.rfind('E', e - 1)) {
    std::string name = "_Z" + text.substr(0, e);
    if (e + 1 < text.size() && text[e + 1] >= '0' && text[e + 1] <= '9' && r.bodies.count(name)) return name;
  }
  return "";
}

static void read_symbols(registry &r, const char *file, uintptr_t base) {
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0) return;
  size_t size = (size_t)info.st_size;
  const char *image = (const char *)mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (image == MAP_FAILED) return;
  const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)image;
  const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(image + header->e_shoff);
  for (int s = 0; s < header->e_shnum; s++) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)(image + sections[s].sh_offset);
    const char *strings = image + sections[sections[s].sh_link].sh_offset;
    size_t count = sections[s].sh_size / sizeof *symbols;
    for (size_t i = 0; i < count; i++) {
      const char *name = strings + symbols[i].st_name;
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC || symbols[i].st_shndx == SHN_UNDEF) continue;
      r.bodies[name] = (const void *)(base + symbols[i].st_value);
      r.names[(const void *)(base + symbols[i].st_value)] = name;
    }
    for (size_t i = 0; i < count; i++) {
      const char *name = strings + symbols[i].st_name;
      int section = symbols[i].st_shndx;
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_OBJECT || section == SHN_UNDEF || section >= header->e_shnum)
        continue;
      if (strncmp(name, "_ZZ", 3) != 0 || sections[section].sh_type != SHT_NOBITS) continue;
      std::string function = function_of(r, name);
      if (function.empty()) continue;
      r.statics[function].push_back({(void *)(base + symbols[i].st_value), symbols[i].st_size});
    }
  }
  munmap((void *)image, size);
}

/* Reads the lines "name registers local threads" that scripts/dev/kernel_registers wrote. */
static void read_measured(registry &r, const char *path) {
  char name[4096];
  resources of;
  FILE *file = path ? fopen(path, "r") : NULL;
  while (file && fscanf(file, "%4095s %d %d %d", name, &of.registers, &of.local, &of.threads) == 4)
    r.measured[name] = of;
  if (file) fclose(file);
}

static registry &get() {
  static registry *r = [] {
    registry *made = new registry;
    Dl_info here;
    if (dladdr((void *)read_symbols, &here)) read_symbols(*made, here.dli_fname, (uintptr_t)here.dli_fbase);
    read_measured(*made, getenv("LM_FAKE_CUDA_REGISTERS"));
    if (made->bodies.empty()) fprintf(stderr, "fake cuda: no symbol table in %s; is it stripped?\n", here.dli_fname);
    return made;
  }();
  return *r;
}

/* Returns the number of registers that a block of that many threads takes. */
static int registers_of(const lm_fake_kernel &kernel, int threads) {
  int warps = (threads + LM_WARP - 1) / LM_WARP, each = kernel.registers * LM_WARP;
  return warps * ((each + WARP_REGISTERS - 1) / WARP_REGISTERS * WARP_REGISTERS);
}

/* Sets a kernel's limits from the table: nvcc reports few of them to the runtime. */
static void set_limits(lm_fake_kernel &kernel, const std::string &name, int bound) {
  const registry &r = get();
  auto measured = r.measured.find(name);
  resources is = measured == r.measured.end() ? resources{USUAL_REGISTERS, 0, 0} : measured->second;
  int unbound = measured == r.measured.end() ? (int)LM_MAX_BLOCK : (int)UNBOUND_THREADS;
  if (bound <= 0) bound = is.threads > 0 ? is.threads : unbound;
  kernel.most_threads = bound;
  kernel.registers = is.registers;
  kernel.local = is.local;
  while (registers_of(kernel, kernel.most_threads) > REGISTERS) kernel.most_threads -= LM_WARP;
}

static std::shared_ptr<lm_fake_kernel> make_kernel(const std::string &name, int bound = 0) {
  registry &r = get();
  auto kernel = std::make_shared<lm_fake_kernel>();
  char *readable = abi::__cxa_demangle(name.c_str(), NULL, NULL, NULL);
  kernel->name = readable ? readable : name;
  free(readable);
  auto body = r.bodies.find(name);
  kernel->body = body == r.bodies.end() ? NULL : body->second;
  kernel->static_shared = 0;
  kernel->dynamic_limit = STATIC_SHARED_MAX;
  for (auto &v : r.statics[name]) {
    kernel->shared.push_back({v.address, v.bytes});
    kernel->static_shared += v.bytes;
  }
  set_limits(*kernel, name, bound);
  return kernel;
}

/* Finds a kernel by nvcc's stub, or by a body of this library; NULL if there is none. Needs the state lock. */
static std::shared_ptr<lm_fake_kernel> find_kernel(const void *function) {
  registry &r = get();
  auto known = r.known.find(function);
  if (known != r.known.end()) return known->second;
  auto name = r.names.find(function);
  if (name == r.names.end()) return NULL;
  return r.known[function] = make_kernel(name->second);
}

/* The parameters of a launch, kept until it runs, perhaps many times. */
typedef struct launch {
  std::shared_ptr<lm_fake_kernel> kernel;
  void (*call)(const void *, void *const *);
  std::vector<max_align_t> storage;
  std::vector<void *> args;
  dim3 grid, block;
  size_t shared;
} launch;

/* Returns false with LM_FAKE_CUDA_IMAGE=0: the program has no code for the device. */
static bool has_image() { return lm_fake_setting("LM_FAKE_CUDA_IMAGE", 1) != 0; }

static int check_launch(const lm_fake_kernel *kernel, dim3 grid, dim3 block, size_t shared) {
  if (!kernel) return cudaErrorInvalidDeviceFunction;
  if (!has_image()) return cudaErrorNoKernelImageForDevice;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  if (threads == 0 || block.x > LM_MAX_BLOCK || block.y > LM_MAX_BLOCK || block.z > 64 || threads > LM_MAX_BLOCK ||
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT_MAX || grid.y > 65535 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (threads > (uint64_t)kernel->most_threads) {
    fprintf(stderr, "fake cuda: %s has blocks of at most %d threads (%d registers), not %d\n", kernel->name.c_str(),
            kernel->most_threads, kernel->registers, (int)threads);
    return cudaErrorLaunchOutOfResources;
  }
  if (shared > kernel->dynamic_limit || shared + kernel->static_shared > SHARED_MAX ||
      (kernel->dynamic_limit <= STATIC_SHARED_MAX && shared + kernel->static_shared > STATIC_SHARED_MAX)) {
    return cudaErrorInvalidValue;
  }
  if (!kernel->body) {
    fprintf(stderr, "fake cuda: %s was not compiled for the host\n", kernel->name.c_str());
    return cudaErrorInvalidDeviceFunction;
  }
  return 0;
}

cudaError_t lm_fake_launch(const std::shared_ptr<lm_fake_kernel> &kernel, void (*call)(const void *, void *const *),
                           int count, const size_t *size, void *const *args, dim3 grid, dim3 block, size_t shared,
                           cudaStream_t handle) {
  lm_fake_stream stream;
  {
    lm_fake_guard lock(lm_fake_state);
    stream = lm_fake_find_stream(handle);
    int code = check_launch(kernel.get(), grid, block, shared);
    if (code == 0 && (!stream || stream->device != lm_fake_current())) code = cudaErrorInvalidResourceHandle;
    if (code != 0) return lm_fake_result(code);
    lm_fake_trace(kernel->name.c_str());
    auto l = std::make_shared<launch>();
    l->kernel = kernel, l->call = call, l->grid = grid, l->block = block, l->shared = shared;
    size_t total = 0;
    for (int i = 0; i < count; i++) total += (size[i] + PARAMETER_ALIGN - 1) / PARAMETER_ALIGN;
    l->storage.resize(total * PARAMETER_ALIGN / sizeof(max_align_t) + 1);
    char *at = (char *)l->storage.data();
    for (int i = 0; i < count; i++) {
      memcpy(at, args[i], size[i]);
      l->args.push_back(at);
      at += (size[i] + PARAMETER_ALIGN - 1) / PARAMETER_ALIGN * PARAMETER_ALIGN;
    }
    lm_fake_queued queued = {};
    auto run = [l] { return lm_fake_run_grid(*l->kernel, l->call, l->args.data(), l->grid, l->block, l->shared); };
    queued.op = {run, lm_fake_reach(stream->device)};
    code = lm_fake_push(stream, queued);
    if (code != 0) return lm_fake_result(code);
    lm_fake_count("blocks", (long)grid.x * grid.y * grid.z);
    stream->launches++;
  }
  lm_fake_settle(stream);
  return cudaSuccess;
}

extern "C" {

LM_FAKE_API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                         cudaStream_t handle) {
  LM_FAKE_WORK();
  std::shared_ptr<lm_fake_kernel> kernel;
  const lm_launch_info *info = (const lm_launch_info *)args[-1];
  {
    lm_fake_guard lock(lm_fake_state);
    kernel = find_kernel(function);
    int code = check_launch(kernel.get(), grid, block, shared);
    if (code != 0) return lm_fake_result(code);
    if (info->magic != LM_LAUNCH_MAGIC) {
      fprintf(stderr, "fake cuda: %s was not launched by lm_launch\n", kernel->name.c_str());
      return lm_fake_result(cudaErrorInvalidDeviceFunction);
    }
  }
  return lm_fake_launch(kernel, info->call, info->count, info->size, args, grid, block, shared, handle);
}

LM_FAKE_API cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attr, int value) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  auto kernel = find_kernel(function);
  if (!kernel) return lm_fake_result(cudaErrorInvalidDeviceFunction);
  if (!has_image()) return lm_fake_result(cudaErrorNoKernelImageForDevice);
  if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess; /* preferences */
  if (value < 0 || (size_t)value + kernel->static_shared > SHARED_MAX) return lm_fake_result(cudaErrorInvalidValue);
  kernel->dynamic_limit = (size_t)value;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  auto kernel = find_kernel(function);
  if (!kernel) return lm_fake_result(cudaErrorInvalidDeviceFunction);
  if (!has_image()) return lm_fake_result(cudaErrorNoKernelImageForDevice);
  memset(out, 0, sizeof *out);
  out->sharedSizeBytes = kernel->static_shared;
  out->maxDynamicSharedSizeBytes = (int)kernel->dynamic_limit;
  out->maxThreadsPerBlock = kernel->most_threads;
  out->numRegs = kernel->registers;
  out->localSizeBytes = (size_t)kernel->local;
  out->ptxVersion = out->binaryVersion = 90;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                               int block, size_t shared, unsigned) {
  LM_FAKE_CALL();
  lm_fake_guard lock(lm_fake_state);
  auto kernel = find_kernel(function);
  if (!kernel) return lm_fake_result(cudaErrorInvalidDeviceFunction);
  if (block <= 0) return lm_fake_result(cudaErrorInvalidValue);
  int threads = (block + LM_WARP - 1) / LM_WARP * LM_WARP;
  int most = THREADS_PER_SM / threads, fit = (int)(SHARED_MAX / (shared + kernel->static_shared + 1024));
  if (most > BLOCKS_PER_SM) most = BLOCKS_PER_SM;
  if (most > REGISTERS / registers_of(*kernel, block)) most = REGISTERS / registers_of(*kernel, block);
  *blocks = block > kernel->most_threads ? 0 : most < fit ? most : fit;
  return cudaSuccess;
}

LM_FAKE_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block,
                                                                      size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block, shared, 0);
}

/* ---- what nvcc's host code calls ---- */

LM_FAKE_API void **__cudaRegisterFatBinary(void *) {
  static void *handle;
  return &handle;
}
LM_FAKE_API void __cudaRegisterFatBinaryEnd(void **) {}
LM_FAKE_API void __cudaUnregisterFatBinary(void **) {}
LM_FAKE_API char __cudaInitModule(void **) { return 1; }
LM_FAKE_API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

/* Registers a kernel; bound: of __launch_bounds__, or -1. */
LM_FAKE_API void __cudaRegisterFunction(void **, const char *stub, char *, const char *name, int bound, uint3 *,
                                        uint3 *, dim3 *, dim3 *, int *) {
  lm_fake_guard lock(lm_fake_state);
  get().known[stub] = make_kernel(name, bound);
}

/* Refuse <<<>>>, which knows no sizes of its parameters: only lm_launch does. */
LM_FAKE_API unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, struct CUstream_st *) { return 1; }
LM_FAKE_API cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *) {
  return lm_fake_result(cudaErrorNotSupported);
}
LM_FAKE_API cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function) {
  *out = (cudaKernel_t)function;
  return cudaSuccess;
}
LM_FAKE_API cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t) {
  return lm_fake_result(cudaErrorNotSupported);
}

}  // extern "C"
