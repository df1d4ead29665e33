/* Stands for CUPTI's activity records: the kernels, copies and fills that ran, with the host's time for the device's.
 */
#include <string.h>
#include <time.h>

#include <set>

#include "runtime.h"

uint64_t lm_fake_nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#if __has_include(<cupti.h>)
#include <cupti.h>

namespace {
struct ran {
  CUpti_ActivityKind kind;
  const char *name; /* kept for good: readers see it after the record */
  uint64_t start, end;
};
struct recorder {
  std::set<int> enabled;
  std::set<std::string> names;
  std::vector<ran> list;
  CUpti_BuffersCallbackRequestFunc request;
  CUpti_BuffersCallbackCompleteFunc complete;
};
recorder &r = *new recorder; /* lives as long as the process */

enum { STEP = sizeof(CUpti_ActivityKernel10) }; /* bytes of each record in a buffer, the largest kind */
}  // namespace

void lm_fake_record_activity(const char *name, uint64_t start) {
  lm_fake_guard lock(lm_fake_state);
  if (r.enabled.empty()) return;
  CUpti_ActivityKind kind = strcmp(name, "a copy") == 0     ? CUPTI_ACTIVITY_KIND_MEMCPY
                            : strcmp(name, "a memset") == 0 ? CUPTI_ACTIVITY_KIND_MEMSET
                                                            : CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  if (r.enabled.count(kind))
    r.list.push_back({kind, r.names.insert(name).first->c_str(), start, lm_fake_nanoseconds()});
}

extern "C" LM_FAKE_API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                                  CUpti_BuffersCallbackCompleteFunc complete) {
  lm_fake_guard lock(lm_fake_state);
  r.request = request, r.complete = complete;
  return CUPTI_SUCCESS;
}

extern "C" LM_FAKE_API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  lm_fake_guard lock(lm_fake_state);
  r.enabled.insert(kind);
  return CUPTI_SUCCESS;
}

/* Hands out everything in buffers of the reader's. */
extern "C" LM_FAKE_API CUptiResult cuptiActivityFlushAll(uint32_t) {
  lm_fake_guard lock(lm_fake_state);
  for (size_t at = 0; at < r.list.size();) {
    uint8_t *buffer = NULL;
    size_t size = 0, most = 0, used = 0;
    r.request(&buffer, &size, &most);
    if (!buffer || size < STEP) return CUPTI_ERROR_OUT_OF_MEMORY;
    for (; at < r.list.size() && used + STEP <= size; at++, used += STEP) {
      const ran &each = r.list[at];
      memset(buffer + used, 0, STEP);
      if (each.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        CUpti_ActivityMemcpy6 *m = (CUpti_ActivityMemcpy6 *)(buffer + used);
        m->kind = each.kind, m->start = each.start, m->end = each.end;
      } else if (each.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        CUpti_ActivityMemset4 *m = (CUpti_ActivityMemset4 *)(buffer + used);
        m->kind = each.kind, m->start = each.start, m->end = each.end;
      } else {
        CUpti_ActivityKernel10 *k = (CUpti_ActivityKernel10 *)(buffer + used);
        k->kind = each.kind, k->start = each.start, k->end = each.end, k->name = each.name;
      }
    }
    r.complete(NULL, 0, buffer, size, used);
  }
  r.list.clear();
  return CUPTI_SUCCESS;
}

extern "C" LM_FAKE_API CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, CUpti_Activity **record) {
  uint8_t *next = *record ? (uint8_t *)*record + STEP : buffer;
  if (next + STEP > buffer + size) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity *)next;
  return CUPTI_SUCCESS;
}
#else
void lm_fake_record_activity(const char *, uint64_t) {}
#endif
