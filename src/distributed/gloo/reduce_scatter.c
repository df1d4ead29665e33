#include "distributed/gloo/reduce_scatter.h"

#include <string.h>

#include "base/mem.h"
#include "integers.h"

enum { SEGMENT = 256 << 10, SLOT = 1 };

typedef struct ring {
  lm_transport *e;
  int from, to; /* neighbors */
  size_t bytes, segments;
  const lm_fold *fold;
  lm_request **received, **sent; /* [segments] */
} ring;

static size_t begin_of(size_t segment) { return segment * SEGMENT; }
static size_t bytes_of(const ring *r, size_t segment) {
  size_t left = r->bytes - begin_of(segment);
  return left < SEGMENT ? left : SEGMENT;
}

static lm_status send_segment(ring *r, size_t i, const char *part) {
  return lm_transport_send(r->e, r->to, SLOT, part + begin_of(i), bytes_of(r, i), &r->sent[i]);
}

/* Until the memory that segment i was sent from may change. */
static lm_status wait_sent(ring *r, size_t i) {
  lm_status status = r->sent[i] ? lm_transport_wait(r->e, r->sent[i]) : LM_OK;
  lm_transport_forget(r->e, r->sent[i]);
  r->sent[i] = NULL;
  return status;
}

/* Part p starts at the rank after p and goes once around: each rank adds its own to what comes and passes it on,
 * segment by segment, and at rank p it is complete. So in round k comes part rank - 2 - k, which continues in round k +
 * 1; what comes is kept in two buffers in turn, as one is still being sent while the other fills. */
static lm_status go_around(ring *r, int rank, int size, char *out, char *const buffer[2], char *const *in) {
  for (size_t i = 0; i < r->segments; i++) NEED(send_segment(r, i, in[(rank + size - 1) % size]));
  for (int k = 0; k < size - 1; k++) {
    char *here = buffer[k & 1];
    const char *own = in[(rank + 2 * size - 2 - k) % size];
    bool last = k == size - 2;
    for (size_t i = 0; i < r->segments; i++)
      NEED(lm_transport_recv(r->e, r->from, SLOT, here + begin_of(i), bytes_of(r, i), &r->received[i]));
    for (size_t i = 0; i < r->segments; i++) {
      size_t at = begin_of(i);
      NEED(lm_transport_wait(r->e, r->received[i]));
      lm_transport_forget(r->e, r->received[i]);
      r->received[i] = NULL;
      NEED(wait_sent(r, i)); /* the other buffer is `out`, or what the next round receives into */
      r->fold->into(r->fold, (last ? out : here) + at, here + at, own + at, bytes_of(r, i) / r->fold->element);
      if (!last) NEED(send_segment(r, i, here));
    }
  }
  return LM_OK;
}

static bool overlap(const char *a, const char *b, size_t bytes) { return a < b + bytes && b < a + bytes; }

lm_status lm_ring_reduce_scatter(lm_transport *e, int rank, int size, void *out, char *const *in, size_t n,
                                 const lm_fold *fold) {
  lm_status status = LM_OK;
  size_t bytes = n * fold->element, segments = lm_ceil_div(bytes, SEGMENT);
  if (size == 1) {
    memmove(out, in[0], bytes);
    return LM_OK;
  }
  ring r = {e, (rank + size - 1) % size, (rank + 1) % size, bytes, segments, fold, NULL, NULL};
  bool out_is_free = true, begun = false;
  for (int i = 0; i < size; i++) out_is_free &= !overlap(out, in[i], bytes);
  char *scratch = lm_malloc(out_is_free ? bytes : 2 * bytes);
  r.received = lm_calloc(2 * segments, sizeof *r.received);
  if (!scratch || !r.received) TRY(LM_E_OOM);
  r.sent = r.received + segments;
  TRY(lm_transport_begin(e));
  begun = true;
  TRY(go_around(&r, rank, size, out, (char *const[2]){scratch, out_is_free ? out : scratch + bytes}, in));
done:
  for (size_t i = 0; r.received && i < 2 * segments; i++) lm_transport_forget(e, r.received[i]);
  if (begun) lm_transport_end(e);
  lm_free(r.received);
  lm_free(scratch);
  return status;
}
