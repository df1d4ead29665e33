/* Stands for NVRTC and the driver's modules: kernels that are written at run time are compiled by the host's compiler
 * as the bodies of kernels/ are, into a shared object, whose bytes stand for the card's code.
 *   LM_FAKE_NVRTC_TEXTS=folder   where a copy of each text is left */
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime.h"

#if __has_include(<nvrtc.h>)
#include <nvrtc.h>

struct _nvrtcProgram {
  std::string text, log, code;
};

static bool write_whole(const std::string &path, const std::string &bytes) {
  FILE *f = fopen(path.c_str(), "wb");
  bool written = f && fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
  return f && fclose(f) == 0 && written;
}

static std::string read_whole(const std::string &path) {
  std::string bytes;
  char block[4096];
  FILE *f = fopen(path.c_str(), "rb");
  for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0;) bytes.append(block, n);
  if (f) fclose(f);
  return bytes;
}

/* Returns the text with a function NAME_call for each kernel, which calls it with its only parameter. */
static std::string with_calls(const std::string &text) {
  static const char mark[] = "extern \"C\" LM_KERNEL void ";
  std::string calls;
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    size_t open = text.find("(const ", at), bounds = text.find(") ", at);
    size_t begin = bounds < open ? bounds + 2 : at + sizeof mark - 1;
    std::string name = text.substr(begin, open - begin);
    std::string type = text.substr(open + 7, text.find(" a)", open) - open - 7);
    calls += "extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
             "_call(const void *, void *const *args) { " + name + "(*(const " + type + " *)args[0]); }\n";
  }
  return text + calls;
}

/* Runs the compiler without this library in it; returns its exit status. */
static int run_compiler(const std::string &source, const std::string &object, const std::string &log) {
  std::string flags = LM_FAKE_CXX_FLAGS;
  std::vector<std::string> words = {LM_FAKE_CXX};
  for (size_t at = 0; at < flags.size();) {
    size_t end = flags.find(' ', at);
    if (end == std::string::npos) end = flags.size();
    if (end > at) words.push_back(flags.substr(at, end - at));
    at = end + 1;
  }
  for (const char *word :
       {"-DLM_HOST_KERNELS=\"host.h\"", "-include", "written.h", "-x", "c++", "-std=c++17", "-O1", "-w", "-fPIC",
        "-shared", "-fno-gnu-unique", "-fvisibility=hidden", "-nodefaultlibs", "-o"}) /* without libtsan */
    words.push_back(word);
  words.push_back(object);
  words.push_back(source);
  std::vector<char *> argv, env;
  for (std::string &word : words) argv.push_back(&word[0]);
  argv.push_back(NULL);
  for (char **e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0) env.push_back(*e);
  env.push_back(NULL);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid;
  int status = -1;
  if (posix_spawnp(&pid, argv[0], &actions, NULL, argv.data(), env.data()) == 0) waitpid(pid, &status, 0);
  posix_spawn_file_actions_destroy(&actions);
  return status;
}

#define NVRTC_CALL()                                                     \
  do {                                                                   \
    if (lm_fake_enter(__func__) != 0) return NVRTC_ERROR_INTERNAL_ERROR; \
  } while (0)

extern "C" {

/* Returns a version of the code with checks, so that neither library runs what the other compiled. */
LM_FAKE_API nvrtcResult nvrtcVersion(int *major, int *minor) {
#ifdef LM_FAKE_CHECKED
  *major = 0, *minor = 2;
#else
  *major = 0, *minor = 1;
#endif
  return NVRTC_SUCCESS;
}
LM_FAKE_API const char *nvrtcGetErrorString(nvrtcResult) { return "a failure of the fake NVRTC"; }
LM_FAKE_API nvrtcResult nvrtcGetNumSupportedArchs(int *n) {
  *n = 3;
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcGetSupportedArchs(int *list) {
  list[0] = 75, list[1] = 80, list[2] = 90;
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *text, const char *, int, const char *const *,
                                           const char *const *) {
  NVRTC_CALL();
  *out = new _nvrtcProgram{text, "", ""};
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p) {
  delete *p;
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int, const char *const *) {
  NVRTC_CALL();
  static int count;
  const char *keep = getenv("LM_FAKE_NVRTC_TEXTS");
  char folder[] = "/tmp/fake_nvrtc.XXXXXX";
  if (keep) write_whole(keep + ("/" + std::to_string(getpid()) + "_" + std::to_string(count++) + ".cu"), p->text);
  if (!mkdtemp(folder)) return NVRTC_ERROR_PROGRAM_CREATION_FAILURE;
  std::string at = folder, source = at + "/text.cc", object = at + "/text.so", log = at + "/log";
  bool compiled = write_whole(source, with_calls(p->text)) && run_compiler(source, object, log) == 0;
  p->log = read_whole(log), p->code = read_whole(object);
  for (const std::string &path : {source, object, log}) remove(path.c_str());
  rmdir(folder);
  if (!compiled) fprintf(stderr, "fake cuda: a text of NVRTC's does not compile: %.2000s\n", p->log.c_str());
  return compiled ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
LM_FAKE_API nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n) {
  *n = p->log.size() + 1;
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *out) {
  memcpy(out, p->log.c_str(), p->log.size() + 1);
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *n) {
  *n = p->code.size();
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *out) {
  memcpy(out, p->code.data(), p->code.size());
  return NVRTC_SUCCESS;
}
LM_FAKE_API nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, size_t *n) { return nvrtcGetCUBINSize(p, n); }
LM_FAKE_API nvrtcResult nvrtcGetPTX(nvrtcProgram p, char *out) { return nvrtcGetCUBIN(p, out); }

/* ---- the driver's modules */

struct CUfunc_st {
  std::shared_ptr<lm_fake_kernel> kernel;
  void (*call)(const void *, void *const *);
};
struct CUmod_st {
  void *library;
  std::map<std::string, CUfunc_st> functions;
};

LM_FAKE_API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  LM_FAKE_ENTER(CUresult);
  int forbidden = lm_fake_forbidden();
  if (forbidden != 0) return (CUresult)forbidden;
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  if (memcmp(image, ELFMAG, SELFMAG) != 0 || header->e_machine != EM_X86_64) return CUDA_ERROR_INVALID_IMAGE;
  size_t n = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  char path[] = "/tmp/fake_module.XXXXXX"; /* a name of its own, by which dlopen knows libraries */
  int fd = mkostemp(path, O_CLOEXEC);
  void *library = fd >= 0 && write(fd, image, n) == (ssize_t)n ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) fprintf(stderr, "fake cuda: %s\n", dlerror());
  if (fd >= 0) close(fd), remove(path);
  if (!library) return CUDA_ERROR_INVALID_IMAGE;
  *out = new CUmod_st{library, {}};
  return CUDA_SUCCESS;
}
LM_FAKE_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  LM_FAKE_ENTER(CUresult);
  lm_fake_guard lock(lm_fake_state);
  CUfunc_st &f = module->functions[name];
  if (!f.call) {
    f.call = (void (*)(const void *, void *const *))dlsym(module->library, (std::string(name) + "_call").c_str());
    if (!f.call) return CUDA_ERROR_NOT_FOUND;
    f.kernel = std::make_shared<lm_fake_kernel>();
    f.kernel->name = name;
    f.kernel->body = (const void *)f.call;
    f.kernel->static_shared = 0, f.kernel->dynamic_limit = 49152;
    f.kernel->most_threads = LM_MAX_BLOCK, f.kernel->registers = 32, f.kernel->local = 0;
  }
  *out = &f;
  return CUDA_SUCCESS;
}
LM_FAKE_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                    unsigned bz, unsigned shared, CUstream stream, void **, void **extra) {
  if (lm_fake_null) return CUDA_SUCCESS;
  LM_FAKE_ENTER(CUresult);
  const void *parameters = NULL;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) parameters = extra[1];
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t *)extra[1];
  }
  return (CUresult)lm_fake_launch(f->kernel, f->call, 1, &bytes, (void *const *)&parameters, dim3(gx, gy, gz),
                                  dim3(bx, by, bz), shared, (cudaStream_t)stream);
}

}  // extern "C"
#endif
