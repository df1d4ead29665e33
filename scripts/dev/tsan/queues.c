/* Queues, locks and flags of lm.mp used by many threads at once, each with handles of its own. Meant for
 * ThreadSanitizer; see tsan/run. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/autograd.h"
#include "mp/lock.h"
#include "mp/queue.h"
#include "mp/semaphore.h"

enum { WRITERS = 3, READERS = 3, EACH = 1500, CAPACITY = 40 };

#define EXPECT(what)                                                      \
  do {                                                                    \
    if (!(what)) {                                                        \
      fprintf(stderr, "tsan_queues: line %d: not %s\n", __LINE__, #what); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

typedef struct common {
  lm_handle *queue, *results, *lock, *go;
  int64_t guarded; /* guarded by the lock */
  _Atomic int64_t sum;
} common;

static lm_handle *copy(const lm_handle *h) {
  lm_handle *out;
  EXPECT(lm_handle_copy(h, &out) == LM_OK);
  return out;
}

static void put(lm_handle *h, int64_t v) {
  lm_packed_message *l;
  lm_tensor *t = NULL;
  char text[32];
  int which, n = snprintf(text, sizeof text, "%lld", (long long)v);
  if (v % 7 == 0) {
    EXPECT(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){3}, LM_CONTIGUOUS, &t) == LM_OK);
    for (int i = 0; i < 3; i++) ((int64_t *)(void *)t->data)[i] = v;
    EXPECT(lm_share(1, &t, &which) == LM_OK);
  }
  lm_mp_message c = {.text = (char *)text, .n = (size_t)n, .ntensors = t != NULL, .tensors = &t};
  EXPECT(lm_packed_message_new(LM_QUEUE, &c, &l) == LM_OK);
  bool sent = false;
  while (!sent) EXPECT(lm_queue_put(h, l, v % 2, 1, &sent) == LM_OK);
  lm_release(t);
}

static int64_t get(lm_handle *h) {
  lm_mp_message *p = NULL;
  while (!p) EXPECT(lm_queue_get(h, 1, NULL, &p) == LM_OK);
  char text[32] = "";
  memcpy(text, p->text, p->n < sizeof text ? p->n : sizeof text - 1);
  int64_t v = atoll(text);
  if (p->ntensors) EXPECT(((int64_t *)(void *)p->tensors[0]->data)[2] == v);
  lm_mp_message_free(p);
  return v;
}

static void count(lm_handle *lock, common *all) {
  lm_acquire_result got = LM_ACQUIRE_TIMEOUT;
  while (got == LM_ACQUIRE_TIMEOUT) EXPECT(lm_lock_acquire(lock, 0.1, &got) == LM_OK);
  EXPECT(got == LM_ACQUIRE_OK);
  all->guarded++;
  EXPECT(lm_lock_release(lock) == LM_OK);
}

static void *write_all(void *arg) {
  common *all = arg;
  lm_handle *q = copy(all->queue), *go = copy(all->go), *lock = copy(all->lock);
  while (lm_semaphore_value(go) == 0) lm_semaphore_wait(go, 0, 1);
  for (int i = 1; i <= EACH; i++) {
    put(q, i);
    count(lock, all);
  }
  lm_handle_free(q);
  lm_handle_free(go);
  lm_handle_free(lock);
  return NULL;
}

static void *read_all(void *arg) {
  common *all = arg;
  lm_handle *q = copy(all->queue), *results = copy(all->results), *lock = copy(all->lock);
  for (int64_t v; (v = get(q)) != 0;) {
    all->sum += v;
    count(lock, all);
    put(results, v); /* without a capacity: some wait in memory */
    EXPECT(lm_queue_done(q) == LM_OK);
  }
  EXPECT(lm_queue_done(q) == LM_OK);
  lm_handle_free(q);
  lm_handle_free(results);
  lm_handle_free(lock);
  return NULL;
}

int main(void) {
  common all = {0};
  pthread_t id[WRITERS + READERS];
  EXPECT(lm_queue_new(CAPACITY, &all.queue) == LM_OK);
  EXPECT(lm_queue_new(0, &all.results) == LM_OK);
  EXPECT(lm_lock_new(&all.lock) == LM_OK);
  EXPECT(lm_semaphore_new(0, &all.go) == LM_OK);
  for (int i = 0; i < WRITERS; i++) EXPECT(pthread_create(&id[i], NULL, write_all, &all) == 0);
  for (int i = 0; i < READERS; i++) EXPECT(pthread_create(&id[WRITERS + i], NULL, read_all, &all) == 0);
  EXPECT(lm_semaphore_release(all.go, false) == LM_OK);
  int64_t sum = 0;
  for (int i = 0; i < WRITERS * EACH; i++) sum += get(all.results);
  for (int i = 0; i < WRITERS; i++) pthread_join(id[i], NULL);
  for (int i = 0; i < READERS; i++) put(all.queue, 0);
  for (int i = 0; i < READERS; i++) pthread_join(id[WRITERS + i], NULL);
  bool done;
  EXPECT(lm_queue_wait_done(all.queue, 5, &done) == LM_OK && done);
  EXPECT(sum == (int64_t)WRITERS * EACH * (EACH + 1) / 2 && all.sum == sum);
  EXPECT(all.guarded == 2 * WRITERS * EACH && lm_queue_size(all.queue) == 0);
  lm_handle_free(all.queue);
  lm_handle_free(all.results);
  lm_handle_free(all.lock);
  lm_handle_free(all.go);
  puts("tsan_queues: all values came");
  return 0;
}
