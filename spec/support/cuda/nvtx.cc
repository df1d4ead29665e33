/* Stands for a tool for NVTX: with this library's path in NVTX_INJECTION64_PATH it gets the program's ranges. */
#include <nvtx3/nvToolsExt.h>

#include <string>

#include "runtime.h"

namespace {
std::string &ranges = *new std::string; /* lives as long as the process */

void add(const char *what, const char *name) {
  lm_fake_guard lock(lm_fake_state);
  ranges += (ranges.empty() ? "" : ",") + std::string(what) + name;
}
int push(const char *name) {
  add("push ", name);
  return 0;
}
int pop() {
  add("pop", "");
  return 0;
}
void mark(const char *name) { add("mark ", name); }
}  // namespace

extern "C" LM_FAKE_API int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const NvtxExportTableCallbacks *callbacks = (const NvtxExportTableCallbacks *)table_of(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned size;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  *table[NVTX_CBID_CORE_MarkA] = (NvtxFunctionPointer)mark;
  return 1;
}

LM_FAKE_API const char *lm_fake_ranges(void) {
  lm_fake_guard lock(lm_fake_state);
  static thread_local std::string text;
  text = ranges;
  return text.c_str();
}
