/* Loads oneDNN's plug-in at its first use, and calls it. */
#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/onednn/onednn.h"
#include "base/plugin.h"

static lm_onednn_table onednn;

static lm_status load(void *nothing) {
  static const lm_plugin_family family = {"cpu", LM_VAR_BACKEND_PATH, "lm_onednn_plugin", "library"};
  void (*plugin)(lm_onednn_table *) = NULL;
  (void)nothing;
  NEED(lm_plugin_need(&family, "onednn", (void **)&plugin));
  onednn.f32 = lm_pointwise_loops_of(LM_F32);
  plugin(&onednn);
  return LM_OK;
}

static lm_status need_onednn(void) {
  static _Atomic bool loaded;
  return lm_load_once(&loaded, load, NULL);
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
  NEED(need_onednn());
  return onednn.gemm_bf16(job, done);
}

lm_status lm_dnn_conv(const lm_conv_job *job, bool *done) {
  NEED(need_onednn());
  return onednn.conv(job, done);
}
