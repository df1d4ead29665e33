/* Loads oneDNN's plug-in, if there is one, at its first use, and calls it. oneDNN writes machine code: where a system
 * refuses that (MemoryDenyWriteExecute of systemd, SELinux), our own kernels compute all, as they do without it. */
#include <sys/mman.h>

#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/onednn/onednn.h"
#include "base/plugin.h"

static lm_onednn_table onednn;

static bool may_write_code(void) {
  enum { BYTES = 4096 };
  void *page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return true; /* a lack of memory is reported where it matters */
  bool may = mprotect(page, BYTES, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
  munmap(page, BYTES);
  return may;
}

static lm_status load_onednn(void *nothing) {
  static const lm_plugin_family family = {"cpu", LM_VAR_BACKEND_PATH, "lm_onednn_plugin", "library", 64 << 20};
  void (*plugin)(lm_onednn_table *) = NULL;
  char path[LM_PLUGIN_PATH];
  (void)nothing;
  if (!may_write_code()) return LM_OK;
  NEED(lm_plugin_load(&family, "onednn", (void **)&plugin, path));
  if (!plugin) return LM_OK;
  onednn.f32 = lm_pointwise_loops_of(LM_F32);
  plugin(&onednn);
  return LM_OK;
}

static lm_status need_onednn(void) {
  static _Atomic bool loaded;
  return lm_load_once(&loaded, load_onednn, NULL);
}

/* Asks the CPU first, which takes no library. Intel's vdpbf16ps does half the arithmetic of the float32 instructions in
 * the same time (88 against 178 GF/s a core on an Emerald Rapids): only tiles (AMX) win there, as oneDNN knows. */
bool lm_dnn_has_bf16(void) {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && need_onednn() == LM_OK && onednn.has_bf16;
#else
  return false;
#endif
}

lm_status lm_dnn_gemm_bf16(const lm_cpu_gemm_job *job, bool *done) {
  *done = false;
  NEED(need_onednn());
  return onednn.gemm_bf16 ? onednn.gemm_bf16(job, done) : LM_OK;
}

lm_status lm_dnn_conv(const lm_conv_job *job, bool *done) {
  *done = false;
  NEED(need_onednn());
  return onednn.conv ? onednn.conv(job, done) : LM_OK;
}
