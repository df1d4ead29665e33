/* Checks a reducer and reports its failures, names its collectives and waits for them, and releases it. */
#include <stdio.h>

#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"

lm_status lm_reducer_publish(const lm_reducer *r, lm_status status) {
  if (r->g && r->g->core->world) lm_world_fail(r->g->core->world, lm_where(), lm_error());
  return status;
}

lm_status lm_reducer_usable(const lm_reducer *r) {
  if (!r->g) return lm_fail(LM_E_STATE, LM_DDP ": its process group was destroyed or the wrapper was freed");
  lm_status status = r->g->core->world ? lm_world_check(r->g->core->world) : LM_OK;
  return status == LM_OK ? status : lm_fail_in(status, LM_DDP);
}

/* ---- collectives */

uint64_t lm_reduce_hash(const lm_reducer *r, int part) {
  return lm_hash_number(lm_hash_number(r->hash, r->exchanges), (uint64_t)part);
}

void lm_reduce_name_bucket(const lm_reducer *r, int b, lm_ticket *t) {
  snprintf(t->what, sizeof t->what, "%s backward, bucket %d of %d", r->title, b + 1, r->nbuckets);
}

void lm_reduce_name(const lm_reducer *r, int b) {
  lm_ticket t;
  lm_reduce_name_bucket(r, b, &t);
  lm_collective_purpose(t.what, lm_reduce_hash(r, b + 1));
}

lm_status lm_reduce_wait(lm_work **w) {
  lm_status status = lm_work_wait(*w, -1);
  lm_work_release(*w);
  *w = NULL;
  return status == LM_OK ? status : lm_fail_in(status, LM_DDP);
}

/* ---- releasing */

void lm_buckets_free(int n, lm_bucket *bucket) {
  for (int b = 0; b < n && bucket; b++) {
    lm_work_release(bucket[b].work);
    lm_release(bucket[b].wire);
    lm_release(bucket[b].flat);
  }
  lm_free(bucket);
}

void lm_reducer_release(lm_reducer *r) {
  if (atomic_fetch_sub(&r->rc, 1) > 1) return;
  for (int i = 0; i < r->n && r->slot; i++) {
    lm_release(r->slot[i].view);
    lm_release(r->slot[i].param);
  }
  lm_buckets_free(r->nbuckets, r->bucket);
  lm_work_release(r->announcing);
  lm_release(r->sent);
  lm_release(r->heard);
  lm_free(r->factor);
  lm_free(r->parts);
  lm_shared_release(r->shared);
  lm_free(r->slot);
  lm_free(r->names);
  lm_free(r->arrived);
  lm_free(r->order);
  lm_free(r);
}
