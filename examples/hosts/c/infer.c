/* Runs a model in a C program through luminary.h: a .onnx file, or a Lua file with weights.
 *
 *   infer MODEL [WEIGHTS [THREADS]]
 *
 * Each thread has a session and loads the model, whose weights all of them share. It runs on a batch of two rows, made
 * of the thread's own memory, and prints the sizes and the first number of each output. */
#include <luminary.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 64, MOST_OUTPUTS = 8, LINE = 256 };

typedef struct job {
  pthread_t thread;
  const char *path, *weights;
  char text[MOST_OUTPUTS * LINE]; /* the results, or a failure */
  lum_status status;
} job;

/* Returns a tensor over new memory with rows for the model's first input; a size that it leaves open is 2. */
static lum_status make_input(const lum_model *model, lum_tensor **out) {
  int64_t shape[LUM_MAX_DIMS] = {2, 4}, n = 1;
  int ndim = 2;
  lum_value_info info = LUM_VALUE_INFO;
  if (lum_model_input_count(model) > 0 && lum_model_input(model, 0, &info) == LUM_OK && info.ndim >= 0) {
    ndim = info.ndim;
    for (int d = 0; d < ndim; d++) shape[d] = info.shape[d] < 0 ? 2 : info.shape[d];
  }
  for (int d = 0; d < ndim; d++) n *= shape[d];
  float *numbers = malloc((size_t)n * sizeof *numbers);
  for (int64_t i = 0; numbers && i < n; i++) numbers[i] = (float)(i % 7) - 3;
  /* The tensor frees the memory by `free` when nothing refers to it any more. */
  return lum_tensor_from_memory(LUM_FLOAT32, ndim, shape, NULL, numbers, numbers ? (size_t)n * sizeof *numbers : 0,
                                free, numbers, out);
}

static int describe(const lum_tensor *t, char *text, size_t room) {
  lum_tensor *first = NULL;
  double value = 0;
  int n = snprintf(text, room, "%s [", lum_dtype_name(lum_tensor_dtype(t)));
  for (int d = 0; d < lum_tensor_ndim(t); d++) {
    n += snprintf(text + n, room - (size_t)n, d ? ", %lld" : "%lld", (long long)lum_tensor_shape(t)[d]);
  }
  if (lum_tensor_numel(t) > 0 && lum_tensor_to((lum_tensor *)t, LUM_FLOAT64, "cpu", &first) == LUM_OK) {
    value = *(const double *)lum_tensor_data(first);
  }
  lum_tensor_free(first);
  return n + snprintf(text + n, room - (size_t)n, "] on %s: %.6f\n", lum_tensor_device(t), value);
}

static void *run(void *argument) {
  job *j = argument;
  lum_session *session = NULL;
  lum_model *model = NULL;
  lum_tensor *input = NULL, *outputs[MOST_OUTPUTS] = {NULL};
  size_t count = 0;
  int n = 0;
  lum_model_options options = LUM_MODEL_OPTIONS;
  options.weights = j->weights;
  j->status = lum_session_new(NULL, &session);
  if (j->status == LUM_OK) j->status = lum_model_load(session, j->path, &options, &model);
  if (j->status == LUM_OK) j->status = make_input(model, &input);
  if (j->status == LUM_OK) j->status = lum_model_run(model, 1, &input, MOST_OUTPUTS, outputs, &count);
  if (j->status != LUM_OK) snprintf(j->text, sizeof j->text, "%s", lum_message(NULL));
  for (size_t i = 0; i < count && i < MOST_OUTPUTS; i++) {
    n += describe(outputs[i], j->text + n, LINE);
    lum_tensor_free(outputs[i]);
  }
  lum_tensor_free(input);
  lum_model_free(model);
  lum_session_free(session);
  return NULL;
}

int main(int argc, char **argv) {
  static job jobs[MOST_THREADS];
  int threads = argc > 3 ? atoi(argv[3]) : 1, failed = 0;
  if (argc < 2 || argc > 4 || threads < 1 || threads > MOST_THREADS) {
    fprintf(stderr, "usage: infer MODEL [WEIGHTS [THREADS]], at most %d threads\n", MOST_THREADS);
    return 2;
  }
  if (threads > 1) lum_set_num_threads(1); /* the program has threads of its own */
  for (int i = 0; i < threads; i++) {
    jobs[i] = (job){.path = argv[1], .weights = argc > 2 && argv[2][0] ? argv[2] : NULL};
    if (pthread_create(&jobs[i].thread, NULL, run, &jobs[i]) != 0) return 1;
  }
  for (int i = 0; i < threads; i++) {
    job *j = &jobs[i];
    pthread_join(j->thread, NULL);
    if (j->status == LUM_OK) {
      printf("thread %d: %s", i + 1, j->text);
    } else {
      fprintf(stderr, "thread %d: %s: %s\n", i + 1, lum_status_name(j->status), j->text);
      failed = 1;
    }
  }
  return failed;
}
