#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/graph.h"
#include "device/segments.h"
#include "mp/ipc_core.h"

static lm_storage *root_of(const lm_tensor *t) { return t->storage->whole ? t->storage->whole : t->storage; }

lm_status lm_ipc_check(const lm_tensor *t) {
  const lm_storage *root = root_of(t);
  const lm_ipc_imported *b = lm_ipc_imported_of(root);
  bool of_graph;
  if (LM_DEVICE_KIND(t->device) == LM_CPU || root->bytes == 0) return LM_OK;
  if (!lm_ipc_is_supported(t->device))
    return lm_fail(LM_E_DEVICE, "memory on %s cannot be shared with another process; send x:cpu()",
                   lm_device_name(t->device));
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE, "a tensor on %s cannot be sent to another process while a graph is captured",
                   lm_device_name(t->device));
  if (b) return lm_ipc_owner_has_ended(b->owners[0]) ? lm_ipc_owner_error(t->device) : LM_OK;
  if (root->foreign_release || !lm_segments_base(t->device, root->data, &of_graph))
    return lm_fail(LM_E_DEVICE,
                   "memory on %s that Luminary did not allocate cannot be shared with another process; "
                   "send x:clone()",
                   lm_device_name(t->device));
  if (of_graph)
    return lm_fail(LM_E_STATE,
                   "memory of a captured graph, which its replays write, cannot be shared with another "
                   "process; send x:clone()");
  return LM_OK;
}

struct lm_ipc_export {
  lm_ipc_exported *exported;
  int write_end; /* writing end of the pipe that keeps the export alive */
  uint32_t nrefcounts;
  lm_ipc_refcount **refcounts; /* one for each owner of memory in it that this process imported; held until freed */
};

void lm_ipc_export_free(lm_ipc_export *l) {
  if (!l) return;
  for (uint32_t i = 0; i < l->nrefcounts; i++) lm_ipc_refcount_release(l->refcounts[i]);
  if (l->write_end >= 0) close(l->write_end); /* the ipc thread releases the export */
  lm_free(l->refcounts);
  lm_free(l);
}

static uint32_t refcount_index(const lm_ipc_export *l, const lm_ipc_refcount *of) {
  uint32_t i = 0;
  while (i < l->nrefcounts && l->refcounts[i] != of) i++;
  return i + 1; /* 0: the message's own pipe */
}

static struct lm_ipc_exported_event *event_of(const lm_ipc_exported *l, lm_device device) {
  int i = 0;
  while (i < l->nevents && l->events[i].device != device) i++;
  return i < l->nevents ? &l->events[i] : NULL;
}

static bool lies_on_device(const lm_tensor *t) { return LM_DEVICE_KIND(t->device) != LM_CPU && t->storage->bytes > 0; }

lm_status lm_ipc_export_new(int n, lm_tensor *const *tensors, lm_ipc_export **out) {
  lm_status status = LM_OK;
  int fds[2] = {-1, -1}, count = 0;
  lm_ipc_exported *export = NULL;
  lm_ipc_export *l = NULL;
  *out = NULL;
  for (int i = 0; i < n; i++) {
    TRY(lm_ipc_check(tensors[i]));
    count += lies_on_device(tensors[i]);
  }
  if (count == 0) return LM_OK;
  TRY(lm_ipc_thread_start());
  export = lm_calloc(1, sizeof *export);
  l = lm_calloc(1, sizeof *l);
  if (export) *export = (lm_ipc_exported){.fd = -1, .tensors = lm_calloc((size_t)n, sizeof *export->tensors)};
  if (export) export->events = lm_calloc((size_t)count, sizeof *export->events);
  if (l) *l = (lm_ipc_export){.write_end = -1, .refcounts = lm_calloc((size_t)count, sizeof *l->refcounts)};
  if (!export || !l || !export->tensors || !export->events || !l->refcounts) TRY(LM_E_OOM);
  if (lm_fds_above_stdio(pipe2(fds, O_CLOEXEC), fds) != 0) TRY(lm_fail_cannot(LM_E_OOM, "create a pipe", errno));
  export->fd = fds[0];
  l->write_end = fds[1];
  for (; export->n < n; export->n++) {
    if (lies_on_device(tensors[export->n])) export->tensors[export->n] = lm_retain(tensors[export->n]);
  }
  for (int i = 0; i < n; i++) {
    if (!lies_on_device(tensors[i])) continue;
    if (!event_of(export, tensors[i]->device)) TRY(lm_ipc_exported_record_event(export, tensors[i]->device));
    lm_ipc_imported *b = lm_ipc_imported_of(root_of(tensors[i]));
    if (b && refcount_index(l, b->owners[0]) > l->nrefcounts)
      l->refcounts[l->nrefcounts++] = lm_ipc_refcount_retain(b->owners[0]);
  }
  l->exported = export;
  pthread_mutex_lock(&lm_ipc_thread.lock);
  int failed = epoll_ctl(lm_ipc_thread.epoll_fd, EPOLL_CTL_ADD, export->fd, &(struct epoll_event){.data.ptr = export});
  if (!failed) {
    export->number = ++lm_ipc_thread.latest;
    export->next = lm_ipc_thread.exported_list;
    lm_ipc_thread.exported_list = export;
    lm_ipc_thread.nexported++;
  }
  pthread_mutex_unlock(&lm_ipc_thread.lock);
  if (failed) TRY(lm_fail_cannot(LM_E_OOM, "watch a pipe", errno));
  *out = l;
  export = NULL;
  l = NULL;
done:
  lm_ipc_exported_free(export);
  lm_ipc_export_free(l);
  return status;
}

uint32_t lm_ipc_export_descriptors(const lm_ipc_export *l, int *fds) {
  if (!l) return 0;
  fds[0] = l->write_end;
  for (uint32_t i = 0; i < l->nrefcounts; i++) fds[i + 1] = l->refcounts[i]->fd;
  return l->nrefcounts + 1;
}

lm_status lm_ipc_export_put(const lm_ipc_export *l, int index, lm_bytes *out) {
  const lm_tensor *t = l->exported->tensors[index];
  const lm_storage *root = root_of(t);
  const lm_ipc_imported *b = lm_ipc_imported_of(root);
  const struct lm_ipc_exported_event *e = event_of(l->exported, t->device);
  uint64_t within = (uint64_t)((char *)t->storage->data - (char *)root->data);
  lm_ipc_tensor_header m = {.refcount = b ? refcount_index(l, b->owners[0]) : 0, .has_event = e->event != NULL};
  if (b) {
    m.at = b->at;
  } else {
    bool of_graph;
    char *base = lm_segments_base(t->device, root->data, &of_graph);
    m.at.exported = l->exported->number;
    m.at.index = (uint32_t)index;
    m.at.offset = (uint64_t)((char *)root->data - base);
    memcpy(m.at.owner, lm_ipc_thread.self, sizeof lm_ipc_thread.self);
    NEED(lm_driver_of(t->device)->ipc_export(lm_device_physical(t->device), base, m.at.handle));
  }
  m.at.offset += within;
  memcpy(m.sender, lm_ipc_thread.self, sizeof lm_ipc_thread.self);
  memcpy(m.event, e->handle, sizeof m.event);
  lm_put(out, &m, sizeof m);
  return LM_OK;
}
