/* Creates a part's issuer, the record of its enqueued calls, returns its failure and device, and waits for its calls.
 */
#include "distributed/group/enqueued_calls.h"

#include "base/mem.h"
#include "base/thread.h"
#include "distributed/group/world_core.h"

lm_status lm_issuer_new(lm_group_core *core, lm_part *part) {
  lm_issuer *is = lm_calloc(1, sizeof *is);
  if (!is) return LM_E_OOM;
  is->core = core;
  is->g = part->g;
  is->ring_g = *part->g;
  is->ring_g.part += LM_PARTS;
  is->device = LM_NO_DEVICE;
  is->last = &is->first;
  is->kick = -1;
  atomic_init(&is->rc, 1);
  pthread_mutex_init(&is->calling, NULL);
  pthread_mutex_init(&is->lock, NULL);
  lm_cond_init(&is->changed);
  part->issuer = is;
  return LM_OK;
}

void lm_issuer_retain(lm_issuer *is) { atomic_fetch_add_explicit(&is->rc, 1, memory_order_relaxed); }

void lm_issuer_release(lm_issuer *is) {
  if (!is || atomic_fetch_sub_explicit(&is->rc, 1, memory_order_acq_rel) != 1) return;
  pthread_cond_destroy(&is->changed);
  pthread_mutex_destroy(&is->lock);
  pthread_mutex_destroy(&is->calling);
  lm_free(is);
}

lm_status lm_issuer_check(lm_issuer *is) {
  LM_LOCKED(&is->lock);
  return lm_error_restore(&is->failed);
}

void lm_issuer_hold(lm_issuer *is, bool hold) {
  hold ? pthread_mutex_lock(&is->calling) : pthread_mutex_unlock(&is->calling);
}

/* Returns this rank's device of a kind: the thread's current one if not the first, else the one at its local rank. */
static lm_device own_device(const lm_issuer *is, int kind) {
  const lm_world *w = is->core->world;
  int count = lm_device_count(kind), chosen = LM_DEVICE_ORDINAL(lm_device_current(kind));
  if (count == 0) return LM_NO_DEVICE;
  return LM_DEVICE(kind, chosen > 0 || !w || kind == LM_CPU ? chosen : w->local_rank % count);
}

lm_device lm_issuer_device(lm_issuer *is) {
  pthread_mutex_lock(&is->lock);
  lm_device device = is->device;
  pthread_mutex_unlock(&is->lock);
  for (int kind = 0; kind < LM_DEVICE_KINDS && device == LM_NO_DEVICE; kind++)
    if (is->g->table->kinds >> kind & 1) device = own_device(is, kind);
  return device;
}

/* Returns true if a call has not ended yet. Called with is->lock locked. */
static bool has_work(const lm_issuer *is, bool p2p_too) {
  for (const lm_work *w = is->first; w; w = w->next)
    if (p2p_too || !lm_is_p2p(w)) return true;
  return false;
}

lm_status lm_issuer_wait(lm_issuer *is, bool p2p_too) {
  pthread_mutex_lock(&is->lock);
  is->hosts++;
  if (is->started && is->first) lm_wakeup_fd_signal(is->kick);
  while (is->failed.status == LM_OK && has_work(is, p2p_too)) pthread_cond_wait(&is->changed, &is->lock);
  is->hosts--;
  pthread_mutex_unlock(&is->lock);
  return lm_issuer_check(is);
}
