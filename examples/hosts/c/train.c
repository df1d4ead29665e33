/* Trains a network in a C program through luminary.h. The network and its training step are train_step.lua's; data,
 * loop and files are the program's.
 *
 *   train LUA_FILE STEPS WEIGHTS
 *
 * Learns which points of the plane lie within a circle, prints the loss, and saves the weights. */
#include <luminary.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 256 };

/* Fills a batch: points of [-2, 2]², and label 1 within the unit circle, else 2 (labels count from 1). */
static void draw(float *points, int64_t *labels, unsigned *state) {
  for (int i = 0; i < POINTS; i++) {
    float square = 0;
    for (int k = 0; k < 2; k++) {
      *state = *state * 1103515245u + 12345u;
      float v = (float)(*state >> 8 & 0xffff) / 16384.0f - 2.0f;
      points[2 * i + k] = v;
      square += v * v;
    }
    labels[i] = square < 1 ? 1 : 2;
  }
}

static lum_status train(lum_model *model, int steps) {
  static float points[2 * POINTS];
  static int64_t labels[POINTS];
  const int64_t shape[] = {POINTS, 2};
  lum_tensor *batch[2] = {NULL, NULL}, *loss = NULL;
  unsigned state = 1;
  /* Two tensors over the program's memory serve for all batches. */
  lum_status status = lum_tensor_from_memory(LUM_FLOAT32, 2, shape, NULL, points, sizeof points, NULL, NULL, &batch[0]);
  if (status == LUM_OK) {
    status = lum_tensor_from_memory(LUM_INT64, 1, shape, NULL, labels, sizeof labels, NULL, NULL, &batch[1]);
  }
  for (int step = 1; status == LUM_OK && step <= steps; step++) {
    double value = 0;
    draw(points, labels, &state);
    status = lum_model_call(model, "train_step", 2, batch, 1, &loss, NULL);
    if (status == LUM_OK) status = lum_tensor_item(loss, &value);
    if (status == LUM_OK && (step == 1 || step % 100 == 0)) printf("step %d: loss %.3f\n", step, value);
    lum_tensor_free(loss);
  }
  lum_tensor_free(batch[0]);
  lum_tensor_free(batch[1]);
  return status;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: train LUA_FILE STEPS WEIGHTS\n");
    return 2;
  }
  lum_session *session = NULL;
  lum_model *model = NULL;
  lum_manual_seed(1);
  lum_status status = lum_session_new(NULL, &session);
  if (status == LUM_OK) status = lum_model_load(session, argv[1], NULL, &model);
  if (status == LUM_OK) status = train(model, atoi(argv[2]));
  if (status == LUM_OK) status = lum_model_save(model, argv[3]);
  if (status != LUM_OK) fprintf(stderr, "%s: %s\n", lum_status_name(status), lum_message(NULL));
  lum_model_free(model);
  lum_session_free(session);
  return status != LUM_OK;
}
