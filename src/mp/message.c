/* Creates and frees messages between threads, which packed_message.c also unpacks to. */
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "mp/channel.h"

void lm_mp_message_free(lm_mp_message *p) {
  if (!p) return;
  for (int i = 0; i < p->ntensors; i++) lm_release(p->tensors[i]);
  for (int i = 0; i < p->nhandles; i++) lm_handle_free(p->handles[i]);
  lm_free(p->tensors);
  lm_free(p->handles);
  lm_free(p->text);
  lm_free(p);
}

lm_mp_message *lm_mp_message_empty(const char *text, size_t n, int ntensors, int nhandles) {
  lm_mp_message *p = lm_calloc(1, sizeof *p);
  if (p) {
    p->text = lm_malloc(n);
    p->tensors = lm_calloc((size_t)ntensors, sizeof *p->tensors);
    p->handles = lm_calloc((size_t)nhandles, sizeof *p->handles);
  }
  if (!p || !p->text || !p->tensors || !p->handles) {
    lm_mp_message_free(p);
    return NULL;
  }
  memcpy(p->text, text, n);
  p->n = n;
  p->ntensors = ntensors;
  p->nhandles = nhandles;
  return p;
}

lm_status lm_mp_message_new(const lm_mp_message *c, lm_mp_message **out) {
  lm_status status = LM_OK;
  *out = NULL;
  lm_mp_message *p = lm_mp_message_empty(c->text, c->n, c->ntensors, c->nhandles);
  if (!p) return LM_E_OOM;
  TRY(lm_share_again(c->ntensors, c->tensors, p->tensors));
  for (int i = 0; i < c->nhandles; i++) TRY(lm_handle_copy(c->handles[i], &p->handles[i]));
  *out = p;
  p = NULL;
done:
  lm_mp_message_free(p);
  return status;
}

/* ---- messages in transit to other threads, the newest first */

LM_MUTEX(lock);
static lm_mp_message *departed;

void lm_mp_message_depart(lm_mp_message *p) {
  LM_LOCKED(&lock);
  p->next = departed;
  departed = p;
}

bool lm_mp_message_arrive(const lm_mp_message *p) {
  LM_LOCKED(&lock);
  return LM_UNLINK(departed, p);
}
