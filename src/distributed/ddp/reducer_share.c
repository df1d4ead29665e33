/* Broadcasts a model's parameters and buffers, packing many small tensors into one message. */
#include <string.h>

#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"
#include "distributed/group/collective.h"
#include "op_entries.h"

static const size_t most_bytes = (size_t)32 << 20; /* bytes in one message, unless one tensor is larger */

/* Returns in *out a contiguous view, of t's dtype and shape, at byte offset `at` of the message. */
static lm_status message_part(lm_tensor *message, size_t at, const lm_tensor *t, lm_tensor **out) {
  return lm_tensor_part(message, t->dtype, t->ndim, t->size, at, out);
}

static lm_status broadcast(lm_group *g, lm_tensor *t, int root) {
  return lm_collective_start(g, &(lm_group_call){.kind = LM_BROADCAST, .t = t, .root = root}, NULL);
}

static lm_status copy_all(int n, lm_tensor *const *t, lm_tensor *message, bool in) {
  lm_status status = LM_OK;
  size_t at = 0;
  for (int i = 0; i < n; i++) {
    lm_tensor *p = NULL;
    if (t[i]->numel == 0) continue;
    NEED(message_part(message, at, t[i], &p));
    status = in ? lm_copy(t[i], p) : lm_copy(p, t[i]);
    lm_release(p);
    if (status != LM_OK) return status;
    if (!in) lm_bump(t[i], LM_OP_copy_);
    at += lm_whole_lines(lm_nbytes(t[i]));
  }
  return status;
}

static lm_status share_message(lm_group *g, int n, lm_tensor *const *t, size_t bytes, int root) {
  LM_OWNED *message = NULL;
  int64_t size = (int64_t)bytes;
  NEED(lm_tensor_empty(LM_U8, t[0]->device, 1, &size, LM_CONTIGUOUS, &message));
  if (g->rank == root) {
    if (LM_DEVICE_KIND(message->device) == LM_CPU) memset(message->data, 0, bytes); /* zeroes the padding */
    NEED(copy_all(n, t, message, true));
  }
  NEED(broadcast(g, message, root));
  if (g->rank != root) NEED(copy_all(n, t, message, false));
  return LM_OK;
}

lm_status lm_broadcast_tensors(lm_group *g, int n, lm_tensor *const *t, int root) {
  for (int first = 0; first < n;) {
    size_t bytes = 0;
    int end = first;
    for (; end < n && t[end]->device == t[first]->device; end++) {
      size_t more = lm_whole_lines(lm_nbytes(t[end]));
      if (bytes > 0 && bytes + more > most_bytes) break;
      bytes += more;
    }
    if (bytes > 0) NEED(share_message(g, end - first, t + first, bytes, root));
    first = end;
  }
  return LM_OK;
}

lm_status lm_broadcast_bytes(lm_group *g, int root, const void *data, size_t n, char **out, size_t *out_n) {
  LM_OWNED *length = NULL, *body = NULL;
  int64_t size = (int64_t)n;
  LM_FREED char *copy = NULL;
  *out = NULL;
  NEED(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 0, NULL, LM_CONTIGUOUS, &length));
  memcpy(length->data, &size, sizeof size);
  NEED(broadcast(g, length, root));
  memcpy(&size, length->data, sizeof size);
  copy = lm_calloc((size_t)size + 1, 1);
  if (!copy) return LM_E_OOM;
  if (size > 0) {
    NEED(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, &body));
    if (g->rank == root) memcpy(body->data, data, n);
    NEED(broadcast(g, body, root));
    memcpy(copy, body->data, (size_t)size);
  }
  *out = copy;
  *out_n = (size_t)size;
  copy = NULL;
  return LM_OK;
}

void lm_publish_failure(lm_group *g, const char *message) {
  if (g->core->world) lm_world_fail(g->core->world, lm_where(), message); /* without a world there are no other ranks */
}
