/* Runs collectives among the devices of one process with the device kind's library (NCCL), without a group. */
#include "base/message.h"
#include "device/graph.h"
#include "device/known.h"
#include "device/stream.h"
#include "distributed/group/collective.h"
#include "distributed/group/world.h"

/* Returns the device kind's backend with across_devices, or NULL. Cached, since DataParallel calls it in each step. */
static const lm_group_table *library_for(int kind) {
  static _Atomic(const lm_group_table *) found[LM_DEVICE_KINDS];
  static _Atomic bool missing[LM_DEVICE_KINDS];
  const lm_known_kind *known = lm_known_kind_of(kind);
  const lm_group_table *table = atomic_load(&found[kind]);
  if (table || !known || atomic_load(&missing[kind])) return table;
  if (lm_group_table_find(known->group, &table) == LM_OK && table->across_devices) {
    atomic_store(&found[kind], table);
    return table;
  }
  atomic_store(&missing[kind], true);
  return NULL;
}

/* Returns true if the tensors are two or more, alike, contiguous, and on different devices that the library takes. */
static bool devices_fit(const lm_group_table *table, int n, lm_tensor *const *t) {
  for (int i = 0; i < n; i++) {
    if (!(table->kinds >> LM_DEVICE_KIND(t[i]->device) & 1) || !lm_is_contiguous(t[i])) return false;
    if (t[i]->dtype != t[0]->dtype || t[i]->numel != t[0]->numel) return false;
    for (int j = 0; j < i; j++)
      if (lm_device_physical(t[i]->device) == lm_device_physical(t[j]->device)) return false;
  }
  return n > 1 && t[0]->numel > 0;
}

/* Orders the current stream of t's device after earlier uses of t. */
static lm_status devices_order(lm_tensor *t, bool writes) {
  lm_stream *s = lm_stream_current(t->device);
  if (!s) return LM_E_STATE; /* the driver has set the message */
  return writes ? lm_use_write(lm_tensor_used(t), s) : lm_use_read(lm_tensor_used(t), s);
}

lm_status lm_devices_collective(int n, lm_tensor *const *t, int root, bool reduce, bool *taken) {
  *taken = false;
  if (root < 0 || root >= n) return lm_fail_int("device_collective", "root", lm_text("from 1 to %d", n), root + 1);
  for (int i = 0; i < n; i++) /* the common case first, so that no library is loaded for the CPU */
    if (LM_DEVICE_KIND(t[i]->device) == LM_CPU) return LM_OK;
  const lm_group_table *table = library_for(LM_DEVICE_KIND(t[root]->device));
  if (!table || lm_graph_capturing() || !devices_fit(table, n, t)) return LM_OK;
  for (int i = 0; i < n; i++) NEED(devices_order(t[i], (i == root) == reduce));
  NEED(table->across_devices(n, t, root, reduce, taken));
  if (!*taken) return LM_OK;
  for (int i = 0; i < n; i++) {
    lm_stream_touch(lm_stream_current(t[i]->device));
    if ((i == root) == reduce) lm_bump(t[i], LM_BY_COLLECTIVE);
  }
  return LM_OK;
}
