/* A loader's way of batches in C: threads that gather rows of shared tensors, are asked for them by channel and pass
 * them on, and somebody who uses them, lets them go, or leaves in the midst; several such loaders side by side. Meant
 * for ThreadSanitizer; see tsan/run. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread_state.h"
#include "data/gather_batch.h"
#include "mp/channel.h"
#include "op_entries.h"
#include "tensor/generator.h"

enum { LOADERS = 3, WORKERS = 3, ROWS = 500, WIDTH = 700, BATCH = 64, BATCHES = 60, PASSES = 6, AHEAD = 4 };

static _Atomic int wrong;

#define EXPECT(what)                                                      \
  do {                                                                    \
    if (!(what)) {                                                        \
      fprintf(stderr, "tsan_loader: line %d: not %s\n", __LINE__, #what); \
      wrong++;                                                            \
    }                                                                     \
  } while (0)

static lm_device cpu(void) { return LM_DEVICE(LM_CPU, 0); }

/* ---- a worker: its first message is the set, two tensors; then each is the sample numbers of a batch */

static void send(const lm_handle *h, const char *text, size_t n, int ntensors, lm_tensor *const *tensors, bool *sent) {
  lm_packed_message *l;
  lm_mp_message c = {.text = (char *)text, .n = n, .ntensors = ntensors, .tensors = (lm_tensor **)tensors};
  EXPECT(lm_packed_message_new(LM_THREAD_CONNECTION, &c, &l) == LM_OK);
  *sent = false;
  lm_connection_put(h, l, 1, sent); /* fails if nobody is there any more */
  lm_packed_message_free(l);
}

static lm_mp_message *receive(const lm_handle *h) {
  lm_mp_message *message = NULL;
  bool closed = false;
  while (!message && !closed) EXPECT(lm_connection_get(h, 1, &message, &closed) == LM_OK);
  return message;
}

static void *work(void *arg) {
  lm_handle *h = arg;
  bool sent;
  lm_script_thread_begin();
  lm_mp_message *set = receive(h), *request;
  while (set && (request = receive(h))) {
    lm_tensor *made[2] = {NULL, NULL};
    lm_generator_set(NULL, cpu(), (lm_draw){strtoull(request->text, NULL, 10), 0});
    EXPECT(lm_rows_gather(set->tensors[0], request->tensors[0], LM_F32, 1, 0, &made[0]) == LM_OK);
    EXPECT(lm_rows_gather(set->tensors[1], request->tensors[0], LM_NO_DTYPE, 1, 0, &made[1]) == LM_OK);
    send(h, request->text, request->n, 2, made, &sent);
    lm_release(made[0]);
    lm_release(made[1]);
    lm_mp_message_free(request);
  }
  lm_mp_message_free(set);
  lm_handle_free(h);
  return NULL;
}

/* ---- a loader */

typedef struct loader {
  lm_tensor *images, *labels;
  pthread_t worker[WORKERS];
  lm_handle *connection[WORKERS];
} loader;

static void ask(loader *l, const lm_tensor *order, int k) {
  char text[24];
  lm_tensor *numbers = NULL;
  bool sent;
  int64_t size = BATCH, stride = 1;
  EXPECT(lm_tensor_view((lm_tensor *)order, 1, &size, &stride, (int64_t)k * BATCH % (ROWS - BATCH), &numbers) == LM_OK);
  snprintf(text, sizeof text, "%d", k);
  send(l->connection[k % WORKERS], text, strlen(text) + 1, 1, &numbers, &sent);
  lm_release(numbers);
}

static void use(const lm_tensor *order, int k, const lm_mp_message *reply) {
  const int64_t *number = (const int64_t *)order->data + (int64_t)k * BATCH % (ROWS - BATCH);
  const float *image = (const float *)reply->tensors[0]->data;
  const int64_t *label = (const int64_t *)reply->tensors[1]->data;
  EXPECT(atoi(reply->text) == k);
  for (int i = 0; i < BATCH; i++) {
    EXPECT(label[i] == number[i]);
    const float *row = image + (int64_t)i * WIDTH;
    EXPECT(row[0] == (float)(number[i] % 200) && row[WIDTH - 1] == row[0]);
  }
}

static void pass(loader *l, uint64_t seed, int leave_after) {
  lm_tensor *order = NULL;
  int sent = 0;
  EXPECT(lm_permutation(ROWS, seed, &order) == LM_OK);
  for (int w = 0; w < WORKERS; w++) {
    lm_handle *ends[2];
    lm_tensor *set[] = {l->images, l->labels};
    bool set_sent;
    EXPECT(lm_connection_pair(LM_THREAD_CONNECTION, ends) == LM_OK);
    EXPECT(pthread_create(&l->worker[w], NULL, work, ends[1]) == 0);
    l->connection[w] = ends[0];
    send(ends[0], "", 1, 2, set, &set_sent);
    EXPECT(set_sent);
  }
  for (int k = 0; k < leave_after; k++) {
    for (; sent < BATCHES && sent < k + WORKERS * AHEAD; sent++) ask(l, order, sent);
    lm_mp_message *reply = receive(l->connection[k % WORKERS]);
    if (reply) use(order, k, reply);
    lm_mp_message_free(reply);
  }
  for (int w = 0; w < WORKERS; w++) lm_handle_free(l->connection[w]); /* with what nobody has received */
  lm_release(order);
  for (int w = 0; w < WORKERS; w++) pthread_join(l->worker[w], NULL);
}

static void *load(void *arg) {
  loader *l = arg;
  for (int p = 0; p < PASSES; p++) pass(l, (uint64_t)p, p % 2 ? BATCHES : BATCHES / 3);
  return NULL;
}

int main(void) {
  lm_tensor *images = NULL, *labels = NULL;
  int64_t size[] = {ROWS, WIDTH};
  EXPECT(lm_tensor_empty(LM_U8, cpu(), 2, size, LM_CONTIGUOUS, &images) == LM_OK);
  EXPECT(lm_tensor_empty(LM_I64, cpu(), 1, size, LM_CONTIGUOUS, &labels) == LM_OK);
  if (wrong) return 1;
  for (int i = 0; i < ROWS; i++) {
    memset(images->data + (size_t)i * WIDTH, (i + 1) % 200, WIDTH);
    ((int64_t *)labels->data)[i] = i + 1;
  }
  pthread_t thread[LOADERS];
  loader l[LOADERS];
  for (int i = 0; i < LOADERS; i++) {
    l[i] = (loader){.images = images, .labels = labels};
    EXPECT(pthread_create(&thread[i], NULL, load, &l[i]) == 0);
  }
  for (int i = 0; i < LOADERS; i++) pthread_join(thread[i], NULL);
  lm_release(images);
  lm_release(labels);
  if (!wrong) puts("tsan_loader: all batches were right");
  return wrong != 0;
}
