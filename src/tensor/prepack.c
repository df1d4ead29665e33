#include "tensor/prepack.h"

#include "base/thread.h"

/* A form that is kept, or will be. It shares its memory with calls that use it, so that another may replace it. */
typedef struct lm_prepack_entry {
  lm_prepack_key key;
  uint32_t version; /* the storage's, when the form was made */
  lm_tensor *memory;
  struct lm_prepack_entry *next;
} entry;

LM_MUTEX(lock); /* guards the lists of all storages */

void lm_prepack_keep(lm_storage *s) {
  lm_storage_retain(s);
  atomic_fetch_add(&s->prepack_users, 1);
}

void lm_prepack_drop(lm_storage *s) {
  entry *list = NULL;
  if (!s) return;
  pthread_mutex_lock(&lock);
  if (atomic_fetch_sub(&s->prepack_users, 1) == 1) list = s->prepacked, s->prepacked = NULL;
  pthread_mutex_unlock(&lock);
  for (entry *next; list; list = next) {
    next = list->next;
    lm_release(list->memory);
    lm_free(list);
  }
  lm_storage_release(s);
}

/* Returns the entry with that key, or NULL. The lock is held. */
static entry *find_prepacked(const lm_storage *s, const lm_prepack_key *key) {
  for (entry *e = s->prepacked; e; e = e->next)
    if (memcmp(&e->key, key, sizeof *key) == 0) return e;
  return NULL;
}

lm_status lm_prepack_take(const lm_tensor *t, const lm_prepack_key *key, size_t bytes, lm_prepack *form) {
  if (lm_prepack_is_kept(t)) {
    const uint32_t version = lm_version(t);
    pthread_mutex_lock(&lock);
    const entry *e = find_prepacked(t->storage, key);
    if (e && e->version == version) form->memory = lm_retain(e->memory);
    pthread_mutex_unlock(&lock);
    form->is_ready = form->memory != NULL;
    if (!form->is_ready) {
      form->added = lm_calloc(1, sizeof *form->added);
      if (!form->added) return LM_E_OOM;
      form->storage = t->storage;
      form->added->key = *key;
      form->added->version = version;
    }
  }
  if (!form->is_ready)
    NEED(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, (int64_t[]){(int64_t)bytes}, LM_CONTIGUOUS, &form->memory));
  form->data = form->memory->data;
  return LM_OK;
}

void lm_prepack_put(lm_prepack *form) {
  entry *added = form->added;
  if (!added) return;
  added->memory = lm_retain(form->memory);
  LM_LOCKED(&lock);
  entry *before = find_prepacked(form->storage, &added->key);
  if (before) {
    lm_tensor *memory = before->memory;
    before->memory = added->memory, before->version = added->version;
    added->memory = memory;
  } else if (atomic_load(&form->storage->prepack_users) > 0) {
    added->next = form->storage->prepacked;
    form->storage->prepacked = added;
    form->added = NULL;
  }
}

void lm_prepack_release(lm_prepack *form) {
  if (form->added) lm_release(form->added->memory);
  lm_free(form->added);
  lm_release(form->memory);
}
