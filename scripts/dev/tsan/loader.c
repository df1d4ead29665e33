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
#include "mp/datagram.h"
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

static lm_status message_of(const char *text, size_t n, int ntensors, lm_tensor *const *tensors, lm_mp_message **out) {
  return lm_mp_message_new(&(lm_message_content){.text = text, .n = n, .ntensors = ntensors, .tensors = tensors}, out);
}

static void *work(void *arg) {
  int fd = (int)(intptr_t)arg;
  bool closed = false;
  lm_mp_message *set = NULL, *request = NULL;
  lm_script_thread_begin();
  EXPECT(lm_channel_receive(fd, true, -1, &set, &closed) == LM_OK);
  while (set && !closed && lm_channel_receive(fd, true, -1, &request, &closed) == LM_OK) {
    lm_tensor *made[2] = {NULL, NULL};
    lm_mp_message *reply = NULL;
    if (!request) continue;
    lm_generator_set(NULL, cpu(), (lm_draw){strtoull(request->text, NULL, 10), 0});
    EXPECT(lm_rows_gather(set->tensors[0], request->tensors[0], LM_F32, 1, 0, &made[0]) == LM_OK);
    EXPECT(lm_rows_gather(set->tensors[1], request->tensors[0], LM_NO_DTYPE, 1, 0, &made[1]) == LM_OK);
    EXPECT(message_of(request->text, request->n, 2, made, &reply) == LM_OK);
    if (reply && lm_channel_pass(fd, reply) != LM_OK) lm_mp_message_free(reply); /* nobody is there any more */
    lm_release(made[0]);
    lm_release(made[1]);
    lm_mp_message_free(request);
    request = NULL;
  }
  lm_mp_message_free(set);
  lm_channel_close(fd, true);
  return NULL;
}

/* ---- a loader */

typedef struct loader {
  lm_tensor *images, *labels;
  pthread_t worker[WORKERS];
  int fd[WORKERS];
} loader;

static void ask(loader *l, const lm_tensor *order, int k) {
  char text[24];
  lm_tensor *numbers = NULL;
  lm_mp_message *request = NULL;
  int64_t size = BATCH, stride = 1;
  EXPECT(lm_tensor_view((lm_tensor *)order, 1, &size, &stride, (int64_t)k * BATCH % (ROWS - BATCH), &numbers) == LM_OK);
  snprintf(text, sizeof text, "%d", k);
  EXPECT(message_of(text, strlen(text) + 1, 1, &numbers, &request) == LM_OK);
  if (lm_channel_pass(l->fd[k % WORKERS], request) != LM_OK) lm_mp_message_free(request);
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
    int fd[2];
    lm_tensor *set[] = {l->images, l->labels};
    lm_mp_message *message = NULL;
    EXPECT(lm_datagram_pair(fd) == LM_OK);
    EXPECT(pthread_create(&l->worker[w], NULL, work, (void *)(intptr_t)fd[1]) == 0);
    l->fd[w] = fd[0];
    EXPECT(message_of("", 1, 2, set, &message) == LM_OK);
    EXPECT(lm_channel_pass(fd[0], message) == LM_OK);
  }
  for (int k = 0; k < leave_after; k++) {
    for (; sent < BATCHES && sent < k + WORKERS * AHEAD; sent++) ask(l, order, sent);
    lm_mp_message *reply = NULL;
    bool closed = false;
    EXPECT(lm_channel_receive(l->fd[k % WORKERS], true, -1, &reply, &closed) == LM_OK);
    if (reply) use(order, k, reply);
    lm_mp_message_free(reply);
  }
  for (int w = 0; w < WORKERS; w++) lm_channel_close(l->fd[w], true); /* with what nobody has received */
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
