/* Allocates from segments on devices whose driver has streams or rules for them, else from size classes. */
#include "device/alloc.h"

#include "base/message.h"
#include "base/thread.h"
#include "device/memory_count.h"
#include "device/segments.h"
#include "device/size_classes.h"
#include "device/stream_core.h"

lm_status lm_device_alloc_used(lm_device device, size_t bytes, void **out, lm_used *used) {
  const lm_driver *driver = lm_driver_of(device);
  uint64_t word = 0;
  *out = NULL;
  if (!driver) return lm_fail_no_device("memory", device);
  if (!lm_is_segmented(driver)) return lm_classes_alloc(driver, device, bytes, out);
  lm_stream *s = lm_stream_current(device);
  if (!s) return LM_E_STATE; /* the message is the driver's */
  lm_status status = lm_segments_alloc(device, bytes, s, out);
  if (s->native) word = s->id | LM_USED_BIT(s->id) | lm_stream_tag(s);
  if (status == LM_OK) atomic_store_explicit(used, word, memory_order_relaxed);
  return status;
}

void lm_device_free_used(lm_device device, void *p, size_t bytes, uint64_t used) {
  if (!p) return;
  if (lm_is_segmented(lm_driver_of(device))) {
    lm_segments_free(device, p, used);
  } else {
    lm_classes_free(device, p, bytes);
  }
}

lm_status lm_device_alloc(lm_device device, size_t bytes, void **out) {
  lm_used unused;
  return lm_device_alloc_used(device, bytes, out, &unused);
}

void lm_device_free(lm_device device, void *p, size_t bytes) { lm_device_free_used(device, p, bytes, 0); }

void lm_memory_empty_cache(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  if (!driver) return;
  if (!lm_is_segmented(driver)) {
    lm_classes_empty_cache(device);
    return;
  }
  lm_graph_drain();
  lm_segments_empty_cache(device);
  if (driver->host_alloc) lm_pinned_empty_cache();
}

lm_status lm_memory_set_fraction(lm_device device, double fraction) {
  static const char name[] = "set_per_process_memory_fraction";
  const lm_driver *driver = lm_driver_of(device);
  size_t left, total;
  if (!(fraction >= 0 && fraction <= 1)) return lm_fail_number(name, "fraction", "from 0 to 1", fraction);
  if (!driver || !driver->memory || !lm_is_segmented(driver)) return lm_fail_missing(name, lm_device_name(device));
  NEED(driver->memory(lm_device_physical(device), &left, &total));
  size_t limit = (size_t)((double)total * fraction);
  lm_memory_count *m = lm_memory_count_of(device);
  LM_LOCKED(&m->lock);
  m->limit = fraction == 1 ? 0 : limit ? limit : 1;
  return LM_OK;
}
