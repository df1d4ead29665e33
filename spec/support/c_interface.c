/* Calls every function of luminary.h, and checks what it returns: c_interface FOLDER [interpret]. The folder has the
 * files that spec/c_interface/c_interface_spec.lua writes. Prints "ok", or each check that failed. */
#include <luminary.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
static const char *folder;
static lum_session_options session_options = LUM_SESSION_OPTIONS;

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      printf("line %d: %s is false; message: %s\n", __LINE__, #condition, lum_message(NULL)); \
      failures++;                                                                             \
    }                                                                                         \
  } while (0)
#define OK(call) CHECK((call) == LUM_OK)
/* Checks the status and a part of the message. */
#define FAILS(status, part, call)                                                                    \
  do {                                                                                               \
    lum_status got = (call);                                                                         \
    if (got != (status) || !strstr(lum_message(NULL), part)) {                                       \
      printf("line %d: %s: got %s: %s\n", __LINE__, #call, lum_status_name(got), lum_message(NULL)); \
      failures++;                                                                                    \
    }                                                                                                \
  } while (0)

static const char *path(const char *name) {
  static _Thread_local char text[4][512];
  static _Thread_local int turn;
  turn = (turn + 1) % 4;
  snprintf(text[turn], sizeof text[turn], "%s/%s", folder, name);
  return text[turn];
}

static void count(void *user) { __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST); }

static lum_tensor *floats(float *data, int64_t rows, int64_t columns, int *released) {
  lum_tensor *t = NULL;
  const int64_t shape[] = {rows, columns};
  OK(lum_tensor_from_memory(LUM_FLOAT32, 2, shape, NULL, data, (size_t)(rows * columns) * sizeof *data,
                            released ? count : NULL, released, &t));
  return t;
}

static void check_library(void) {
  lum_dtype dtype;
  CHECK(strchr(lum_version(), '.') != NULL);
  CHECK(strcmp(lum_status_name(LUM_E_SHAPE), "LUM_E_SHAPE") == 0);
  CHECK(strcmp(lum_status_name((lum_status)99), "LUM_E_UNKNOWN") == 0);
  CHECK(strcmp(lum_dtype_name(LUM_BFLOAT16), "bfloat16") == 0 && lum_dtype_size(LUM_BFLOAT16) == 2);
  CHECK(strcmp(lum_dtype_name(LUM_NO_DTYPE), "none") == 0 && lum_dtype_size((lum_dtype)99) == 0);
  OK(lum_dtype_find("int64", &dtype));
  CHECK(dtype == LUM_INT64);
  FAILS(LUM_E_DTYPE, "float", lum_dtype_find("flaot32", &dtype));
  CHECK(dtype == LUM_NO_DTYPE);
  FAILS(LUM_E_DTYPE, "", lum_dtype_find(NULL, &dtype));
  OK(lum_set_num_threads(2));
  CHECK(lum_get_num_threads() == 2);
  OK(lum_set_num_threads(1));
  FAILS(LUM_E_ARGUMENT, "must be", lum_set_num_threads(-1));
  CHECK(lum_device_count("cpu") == 1 && lum_device_count("nothing") == 0 && lum_device_count(NULL) == 0);
  OK(lum_device_check("cpu"));
  FAILS(LUM_E_DEVICE, "nothing", lum_device_check("nothing"));
  if (lum_device_count("cuda") == 0) FAILS(LUM_E_DEVICE, "cuda", lum_device_check("cuda:0"));
  OK(lum_device_synchronize("cpu"));
  FAILS(LUM_E_DEVICE, "nothing", lum_device_synchronize("nothing"));
  CHECK(lum_device_memory("nothing") == 0);
  lum_manual_seed(1);
}

static void check_tensors(void) {
  float data[6] = {1, 2, 3, 4, 5, 6}, copy[6];
  double value;
  int released = 0;
  size_t before = lum_device_memory("cpu");
  lum_tensor *t = floats(data, 2, 3, &released), *u = NULL, *v = NULL;
  CHECK(lum_tensor_dtype(t) == LUM_FLOAT32 && lum_tensor_ndim(t) == 2 && lum_tensor_numel(t) == 6);
  CHECK(lum_tensor_shape(t)[0] == 2 && lum_tensor_strides(t)[0] == 3 && lum_tensor_bytes(t) == sizeof data);
  CHECK(strcmp(lum_tensor_device(t), "cpu") == 0 && lum_tensor_data(t) == data && lum_tensor_is_contiguous(t) == 1);

  /* A view of the columns, over the same memory. */
  const int64_t turned[] = {3, 2}, strides[] = {1, 3}, far[] = {1, 4};
  OK(lum_tensor_from_memory(LUM_FLOAT32, 2, turned, strides, data, sizeof data, count, &released, &u));
  CHECK(lum_tensor_is_contiguous(u) == 0);
  OK(lum_tensor_read(u, copy, sizeof copy));
  CHECK(copy[0] == 1 && copy[1] == 4 && copy[2] == 2);
  FAILS(LUM_E_ARGUMENT, "bytes", lum_tensor_read(u, copy, 4));
  FAILS(LUM_E_ARGUMENT, "memory must be an address", lum_tensor_read(u, NULL, sizeof copy));
  FAILS(LUM_E_ARGUMENT, "tensor must not be NULL", lum_tensor_read(NULL, copy, sizeof copy));
  FAILS(LUM_E_ARGUMENT, "tensor must not be NULL", lum_tensor_write(NULL, copy, sizeof copy));
  FAILS(LUM_E_ARGUMENT, "tensor must not be NULL", lum_tensor_to(NULL, LUM_NO_DTYPE, NULL, &v));
  FAILS(LUM_E_ARGUMENT, "tensor must not be NULL", lum_tensor_item(NULL, &(double){0}));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_tensor_item(u, NULL));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_tensor_to(t, LUM_FLOAT64, NULL, NULL));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_tensor_new(LUM_FLOAT64, 0, NULL, NULL, NULL));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_dtype_find("int8", NULL));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_session_new(NULL, NULL));
  copy[0] = 10;
  OK(lum_tensor_write(u, copy, sizeof copy));
  CHECK(data[0] == 10 && data[3] == 4);
  FAILS(LUM_E_ARGUMENT, "bytes", lum_tensor_write(u, copy, 4));
  OK(lum_tensor_to(u, LUM_FLOAT64, "cpu", &v));
  CHECK(((double *)lum_tensor_data(v))[1] == 4 && lum_tensor_is_contiguous(v) == 1);
  lum_tensor_free(v);
  OK(lum_tensor_to(t, LUM_NO_DTYPE, NULL, &v));
  CHECK(v == t);
  lum_tensor_free(v);
  FAILS(LUM_E_ARGUMENT, "dtype", lum_tensor_to(t, (lum_dtype)77, NULL, &v));
  FAILS(LUM_E_DEVICE, "nothing", lum_tensor_to(t, LUM_NO_DTYPE, "nothing", &v));
  CHECK(v == NULL);
  FAILS(LUM_E_SHAPE, "one element", lum_tensor_item(t, &value));
  CHECK(released == 0);
  CHECK(lum_tensor_retain(t) == t);
  lum_tensor_free(t);
  lum_tensor_free(t);
  lum_tensor_free(u);
  CHECK(released == 2);

  /* Each failure releases the memory. */
  const int64_t wide[] = {2, 400}, negative[] = {-2};
  released = 0;
  FAILS(LUM_E_ARGUMENT, "at least 3200 bytes",
        lum_tensor_from_memory(LUM_FLOAT32, 2, wide, NULL, data, sizeof data, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "within",
        lum_tensor_from_memory(LUM_FLOAT32, 2, turned, far, data, sizeof data, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "aligned",
        lum_tensor_from_memory(LUM_FLOAT32, 1, turned, NULL, (char *)data + 1, 20, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "", lum_tensor_from_memory(LUM_FLOAT32, 1, negative, NULL, data, 4, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "ndim", lum_tensor_from_memory(LUM_FLOAT32, 9, wide, NULL, data, 4, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "shape", lum_tensor_from_memory(LUM_FLOAT32, 1, NULL, NULL, data, 4, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "out", lum_tensor_from_memory(LUM_FLOAT32, 1, turned, NULL, data, 12, count, &released, NULL));
  FAILS(LUM_E_ARGUMENT, "data", lum_tensor_from_memory(LUM_FLOAT32, 1, turned, NULL, NULL, 12, count, &released, &t));
  FAILS(LUM_E_ARGUMENT, "dtype",
        lum_tensor_from_memory((lum_dtype)-3, 1, turned, NULL, data, 12, count, &released, &t));
  CHECK(released == 9 && t == NULL);

  OK(lum_tensor_new(LUM_INT64, 0, NULL, NULL, &t));
  OK(lum_tensor_item(t, &value));
  CHECK(value == 0 && lum_tensor_ndim(t) == 0);
  int64_t seven = 7;
  OK(lum_tensor_write(t, &seven, sizeof seven));
  OK(lum_tensor_item(t, &value));
  CHECK(value == 7);
  lum_tensor_free(t);
  OK(lum_tensor_new(LUM_FLOAT32, 2, wide, "cpu", &t));
  CHECK(lum_device_memory("cpu") > before);
  lum_tensor_free(t);
  FAILS(LUM_E_DEVICE, "nothing", lum_tensor_new(LUM_FLOAT32, 2, wide, "nothing", &t));
  lum_tensor_free(NULL);
}

static lum_model *load(lum_session *s, const char *name, const char *weights) {
  lum_model *m = NULL;
  lum_model_options options = LUM_MODEL_OPTIONS;
  options.weights = weights ? path(weights) : NULL;
  OK(lum_model_load(s, path(name), &options, &m));
  return m;
}

static void check_models(lum_session *s) {
  float data[4] = {1, 2, 3, 4}, out[2];
  int released = 0;
  size_t n = 9;
  lum_tensor *x = floats(data, 2, 2, &released), *outputs[3] = {NULL}, *weight = NULL;
  lum_model *m = load(s, "linear.lua", "linear.safetensors");
  lum_value_info info = LUM_VALUE_INFO;
  lum_model *other = NULL;

  CHECK(lum_model_input_count(m) == 1 && lum_model_output_count(m) == 2);
  OK(lum_model_input(m, 0, &info));
  CHECK(strcmp(info.name, "x") == 0 && info.dtype == LUM_FLOAT32 && info.ndim == 2);
  CHECK(info.shape[0] == -1 && info.shape[1] == 2 && info.size == sizeof info);
  OK(lum_model_output(m, 1, &info));
  CHECK(strcmp(info.name, "twice") == 0 && info.dtype == LUM_NO_DTYPE && info.ndim == -1);
  FAILS(LUM_E_ARGUMENT, "from 0 to 0", lum_model_input(m, 1, &info));
  FAILS(LUM_E_ARGUMENT, "info must not be NULL", lum_model_input(m, 0, NULL));
  FAILS(LUM_E_ARGUMENT, "info->size", lum_model_output(m, 0, &(lum_value_info){0}));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_model_load(s, path("model.lua"), NULL, NULL));
  FAILS(LUM_E_ARGUMENT, "from 0 to 1", lum_model_output(m, -1, &info));
  FAILS(LUM_E_ARGUMENT, "set by LUM_MODEL_OPTIONS, got 0",
        lum_model_load(s, path("model.lua"), &(lum_model_options){.device = "zzz"}, &other));
  lum_value_info old = LUM_VALUE_INFO; /* as a program has it that knows the name alone */
  old.size = offsetof(lum_value_info, dtype);
  OK(lum_model_input(m, 0, &old));
  CHECK(strcmp(old.name, "x") == 0 && old.ndim == -1);

  /* y = x · [1 2] + 0.5: 5.5 and 11.5; the second output is twice that. */
  OK(lum_model_run(m, 1, &x, 3, outputs, &n));
  CHECK(n == 2 && outputs[2] == NULL && lum_tensor_ndim(outputs[0]) == 2);
  OK(lum_tensor_read(outputs[0], out, sizeof out));
  CHECK(out[0] == 5.5f && out[1] == 11.5f);
  OK(lum_tensor_read(outputs[1], out, sizeof out));
  CHECK(out[0] == 11 && out[1] == 23);
  lum_tensor_free(outputs[0]);
  lum_tensor_free(outputs[1]);
  OK(lum_model_run(m, 1, &x, 1, outputs, NULL)); /* fewer than it returns */
  lum_tensor_free(outputs[0]);
  OK(lum_model_run(m, 1, &x, 0, NULL, &n));
  CHECK(n == 2);

  const char *in[] = {"x", "x"}, *names[] = {"twice", "y"}, *none[] = {"z"};
  lum_tensor *both[] = {x, x};
  OK(lum_model_run_named(m, 1, in, &x, 2, names, outputs));
  OK(lum_tensor_read(outputs[0], out, sizeof out));
  CHECK(out[0] == 11);
  lum_tensor_free(outputs[0]);
  lum_tensor_free(outputs[1]);
  FAILS(LUM_E_ARGUMENT, "unknown input 'z'; the model has x", lum_model_run_named(m, 1, none, &x, 2, names, outputs));
  FAILS(LUM_E_ARGUMENT, "unknown output 'z'", lum_model_run_named(m, 1, in, &x, 1, none, outputs));
  FAILS(LUM_E_ARGUMENT, "'x' is missing", lum_model_run_named(m, 0, NULL, NULL, 1, names, outputs));
  FAILS(LUM_E_ARGUMENT, "'x' is given twice", lum_model_run_named(m, 2, in, both, 1, names, outputs));
  CHECK(outputs[0] == NULL);

  /* Errors of ops have their codes, in sentences with the sizes. */
  lum_tensor *wrong = floats(data, 1, 4, NULL), *nothing = NULL;
  FAILS(LUM_E_SHAPE, "[1, 4]", lum_model_run(m, 1, &wrong, 1, outputs, &n));
  CHECK(n == 0 && strcmp(lum_message(s), lum_message(NULL)) == 0);
  FAILS(LUM_E_ARGUMENT, "NULL", lum_model_run(m, 1, &nothing, 1, outputs, &n));
  FAILS(LUM_E_ARGUMENT, "NULL", lum_model_run(m, 1, &x, 1, NULL, &n));
  FAILS(LUM_E_ARGUMENT, "at most 1024", lum_model_run(m, 5000, &x, 1, outputs, &n));
  FAILS(LUM_E_ARGUMENT, "NULL", lum_model_run(NULL, 1, &x, 1, outputs, &n));
  lum_tensor_free(wrong);

  /* A parameter is the model's own memory. */
  OK(lum_model_tensor(m, "bias", &weight));
  out[0] = 1.5f;
  OK(lum_tensor_write(weight, out, sizeof(float)));
  OK(lum_model_run(m, 1, &x, 1, outputs, &n));
  OK(lum_tensor_read(outputs[0], out, sizeof out));
  CHECK(out[0] == 6.5f);
  lum_tensor_free(outputs[0]);
  lum_tensor_free(weight);
  FAILS(LUM_E_ARGUMENT, "no parameter or buffer 'b'", lum_model_tensor(m, "b", &weight));
  OK(lum_model_save(m, path("saved.safetensors")));
  FAILS(LUM_E_FILE, "nowhere", lum_model_save(m, path("nowhere/saved.safetensors")));
  OK(lum_model_load_weights(m, path("linear.safetensors")));
  OK(lum_model_run(m, 1, &x, 1, outputs, &n));
  OK(lum_tensor_read(outputs[0], out, sizeof out));
  CHECK(out[0] == 5.5f);
  lum_tensor_free(outputs[0]);
  OK(lum_model_to(m, "cpu"));
  FAILS(LUM_E_DEVICE, "nothing", lum_model_to(m, "nothing"));
  FAILS(LUM_E_ARGUMENT, "NULL", lum_model_to(m, NULL));

  /* Nothing in the session refers to the input any more. */
  CHECK(released == 0);
  lum_tensor_free(x);
  CHECK(released == 1);
  lum_model_free(m);
  lum_model_free(NULL);
}

static void check_functions(lum_session *s) {
  float data[2] = {3, 4};
  double value;
  size_t n;
  lum_tensor *x = floats(data, 1, 2, NULL), *outputs[4] = {NULL};
  lum_model *m = load(s, "functions.lua", NULL);
  OK(lum_model_call(m, "values", 1, &x, 4, outputs, &n));
  CHECK(n == 3 && lum_tensor_dtype(outputs[0]) == LUM_FLOAT64 && lum_tensor_dtype(outputs[1]) == LUM_BOOL);
  OK(lum_tensor_item(outputs[0], &value));
  CHECK(value == 2.5);
  OK(lum_tensor_item(outputs[1], &value));
  CHECK(value == 1 && outputs[2] == x); /* the input itself */
  for (int i = 0; i < 3; i++) lum_tensor_free(outputs[i]);
  OK(lum_model_call(m, "nothing", 0, NULL, 4, outputs, &n));
  CHECK(n == 0);
  FAILS(LUM_E_SCRIPT, "output 2 must be a tensor, a number or a boolean, got string 'text'",
        lum_model_call(m, "text", 0, NULL, 4, outputs, &n));
  CHECK(outputs[0] == NULL && n == 0);
  FAILS(LUM_E_SCRIPT, "functions.lua:5: on purpose", lum_model_call(m, "fails", 0, NULL, 4, outputs, &n));
  FAILS(LUM_E_SCRIPT, "a table", lum_model_call(m, "fails_oddly", 0, NULL, 4, outputs, &n));
  FAILS(LUM_E_SCRIPT, "a table", lum_model_call(m, "fails_with_0", 0, NULL, 4, outputs, &n));
  FAILS(LUM_E_ARGUMENT, "no function 'absent'; it has drop_view, fails, fails_oddly, fails_with_0, keep",
        lum_model_call(m, "absent", 0, NULL, 4, outputs, &n));
  FAILS(LUM_E_ARGUMENT, "only functions", lum_model_run(m, 1, &x, 1, outputs, &n));
  FAILS(LUM_E_ARGUMENT, "nn.Module", lum_model_save(m, path("none.safetensors")));
  /* A script that keeps an input cannot reach the program's memory later. */
  OK(lum_model_call(m, "keep", 1, &x, 0, NULL, &n));
  lum_tensor_free(x);
  FAILS(LUM_E_ARGUMENT, "was an argument of a call from C", lum_model_call(m, "kept", 0, NULL, 4, outputs, &n));
  lum_model_free(m);
}

/* Checks the statuses of ONNX models that are missing, malformed or unsupported, and of other inputs, if the
 * installation reads ONNX. */
static int reads_onnx;

static void check_onnx(lum_session *s) {
  lum_model *m = NULL;
  lum_tensor *x = NULL, *y = NULL;
  float values[] = {1e6F, 1e6F, 1e6F, 1e6F};
  lum_status status = lum_model_load(s, path("negative.onnx"), NULL, &m);
  if (status == LUM_E_MISSING) return;
  reads_onnx = 1;
  CHECK(status == LUM_OK);
  x = floats(values, 2, 2, NULL);
  OK(lum_model_run(m, 1, &x, 1, &y, NULL));
  CHECK(((float *)lum_tensor_data(y))[3] == -1e6F);
  lum_tensor_free(y);
  lum_tensor_free(x);
  x = floats(values, 1, 4, NULL);
  FAILS(LUM_E_SHAPE, "shape [N, 2], got [1, 4]", lum_model_run(m, 1, &x, 1, &y, NULL));
  lum_tensor_free(x);
  OK(lum_tensor_new(LUM_INT64, 2, (const int64_t[]){1, 2}, NULL, &x));
  FAILS(LUM_E_DTYPE, "must be float32, got int64", lum_model_run(m, 1, &x, 1, &y, NULL));
  lum_tensor_free(x);
  FAILS(LUM_E_ARGUMENT, "is missing", lum_model_run(m, 0, NULL, 1, &y, NULL));
  const int64_t shape[] = {(int64_t)1 << 38, 2}, strides[] = {0, 0}; /* elements of one number */
  OK(lum_tensor_from_memory(LUM_FLOAT32, 2, shape, strides, values, sizeof values, NULL, NULL, &x));
  FAILS(LUM_E_MEMORY, "cannot allocate 2.0 TiB", lum_model_run(m, 1, &x, 1, &y, NULL));
  lum_tensor_free(x);
  lum_model_free(m);
  FAILS(LUM_E_MISSING, "cannot run 1 kind of nodes: 1 \xc3\x97 Bar",
        lum_model_load(s, path("unsupported.onnx"), NULL, &m));
  FAILS(LUM_E_FILE, "none.onnx", lum_model_load(s, path("none.onnx"), NULL, &m));
}

static void check_bad_files(lum_session *s) {
  lum_model *m = NULL;
  lum_model_options options = LUM_MODEL_OPTIONS;
  FAILS(LUM_E_FILE, "absent.lua': No such file", lum_model_load(s, path("absent.lua"), NULL, &m));
  FAILS(LUM_E_FILE, "directory", lum_model_load(s, folder, NULL, &m));
  FAILS(LUM_E_SCRIPT, "cut.lua:", lum_model_load(s, path("cut.lua"), NULL, &m));
  FAILS(LUM_E_SCRIPT, "got 7", lum_model_load(s, path("number.lua"), NULL, &m));
  FAILS(LUM_E_FILE, "bytecode", lum_model_load(s, path("bytecode.lua"), NULL, &m));
  FAILS(LUM_E_ARGUMENT, "expected a Lua file", lum_model_load(s, path("linear.safetensors"), NULL, &m));
  FAILS(LUM_E_ARGUMENT, "NULL", lum_model_load(s, NULL, NULL, &m));
  FAILS(LUM_E_ARGUMENT, "NULL", lum_model_load(NULL, path("linear.lua"), NULL, &m));
  const char *weights[] = {"absent.safetensors", "cut.safetensors", "hostile.safetensors", "other.safetensors"};
  const char *words[] = {"No such file", "cut.safetensors", "hostile.safetensors", "size mismatch"};
  for (int i = 0; i < 4; i++) {
    options.weights = path(weights[i]);
    FAILS(LUM_E_FILE, words[i], lum_model_load(s, path("linear.lua"), &options, &m));
  }
  options.weights = NULL;
  options.device = "nothing";
  FAILS(LUM_E_DEVICE, "nothing", lum_model_load(s, path("linear.lua"), &options, &m));
  check_onnx(s);
  lum_status status = lum_model_load(s, path("cut.onnx"), NULL, &m);
  CHECK((status == LUM_E_FILE || status == LUM_E_MISSING) && strstr(lum_message(s), "cut.onnx"));
  CHECK(m == NULL);
}

/* ---- many threads */

typedef struct turn {
  pthread_t thread;
  lum_session *shared; /* NULL: a session of its own */
  lum_model *model;
  int good;
} turn;

static void *take_turn(void *argument) {
  turn *t = argument;
  lum_session *s = t->shared;
  lum_model *m = t->model;
  if (!s) {
    OK(lum_session_new(&session_options, &s));
    m = load(s, "linear.lua", "linear.safetensors");
  }
  for (int i = 0; i < 20; i++) {
    float data[2] = {(float)i, 1}, out;
    lum_tensor *x = floats(data, 1, 2, NULL), *y = NULL;
    lum_status status = lum_model_run(m, 1, &x, 1, &y, NULL);
    if (status == LUM_OK) status = lum_tensor_read(y, &out, sizeof out);
    t->good += status == LUM_OK && out == (float)i + 2.5f;
    lum_tensor_free(x);
    lum_tensor_free(y);
    if (i % 5 == 0) FAILS(LUM_E_ARGUMENT, "no function", lum_model_call(m, "absent", 0, NULL, 0, NULL, NULL));
  }
  if (!t->shared) {
    lum_model_free(m);
    lum_session_free(s);
  }
  return NULL;
}

static void check_threads(int n, lum_session *shared) {
  turn turns[32];
  lum_model *m = shared ? load(shared, "linear.lua", "linear.safetensors") : NULL;
  for (int i = 0; i < n; i++) {
    turns[i] = (turn){.shared = shared, .model = m};
    CHECK(pthread_create(&turns[i].thread, NULL, take_turn, &turns[i]) == 0);
  }
  for (int i = 0; i < n; i++) {
    pthread_join(turns[i].thread, NULL);
    CHECK(turns[i].good == 20);
  }
  lum_model_free(m);
}

static void check_two_sessions(lum_session *s) {
  lum_session *other = NULL;
  double value[2];
  OK(lum_session_new(&session_options, &other));
  lum_model *a = load(s, "number_1.lua", NULL), *b = load(other, "number_2.lua", NULL);
  lum_tensor *y[2] = {NULL};
  OK(lum_model_run(a, 0, NULL, 1, &y[0], NULL));
  OK(lum_model_run(b, 0, NULL, 1, &y[1], NULL));
  for (int i = 0; i < 2; i++) {
    OK(lum_tensor_item(y[i], &value[i]));
    lum_tensor_free(y[i]);
  }
  CHECK(value[0] == 1 && value[1] == 2);
  /* Each keeps its own message. */
  lum_model_call(a, "first", 0, NULL, 0, NULL, NULL);
  lum_model_call(b, "second", 0, NULL, 0, NULL, NULL);
  CHECK(strstr(lum_message(s), "'first'") != NULL);
  CHECK(strstr(lum_message(other), "'second'") != NULL && strstr(lum_message(NULL), "'second'") != NULL);
  lum_model_free(a);
  lum_session_free(other); /* before its model */
  OK(lum_model_run(b, 0, NULL, 1, &y[1], NULL));
  lum_tensor_free(y[1]);
  lum_model_free(b);
}

static void note_line(void *user, const char *line) {
  if (strstr(line, "on purpose")) count(user);
}

static lum_session *called;
static void call_back(void *user) {
  (void)user;
  FAILS(LUM_E_STATE, "in a call of the session", lum_session_collect(called));
}

static void check_log_and_callbacks(lum_session *s) {
  int lines = 0;
  float data[2] = {1, 2};
  lum_tensor *x = NULL;
  const int64_t shape[] = {2};
  lum_model *m = load(s, "functions.lua", NULL);
  lum_set_log(note_line, &lines);
  OK(lum_model_call(m, "warns", 0, NULL, 0, NULL, NULL));
  lum_set_log(NULL, NULL);
  CHECK(lines == 1);
  called = s;
  OK(lum_tensor_from_memory(LUM_FLOAT32, 1, shape, NULL, data, sizeof data, call_back, NULL, &x));
  OK(lum_model_call(m, "keep_view", 1, &x, 0, NULL, NULL));
  lum_tensor_free(x);                                         /* the script has a view of it */
  OK(lum_model_call(m, "drop_view", 0, NULL, 0, NULL, NULL)); /* which calls call_back */
  lum_model_free(m);
}

/* ---- conversations: chat and chat.gguf are one model, with the options GREEDY */

#define GREEDY "{\"temperature\": 0, \"max_new_tokens\": 8}"

typedef struct heard {
  char text[256];
  int pieces, most; /* most: the number of pieces after which the answer ends, or 0 */
  lum_session *session;
} heard;

static int hear(void *user, const char *text) {
  heard *h = user;
  strncat(h->text, text, sizeof h->text - strlen(h->text) - 1);
  if (h->session) FAILS(LUM_E_STATE, "in a call of the session", lum_session_collect(h->session));
  return ++h->pieces == h->most;
}

static void *converse(void *arg) {
  lum_session *s = NULL;
  lum_chat *chat = NULL;
  OK(lum_session_new(&session_options, &s));
  OK(lum_chat_open(s, path("chat.gguf"), GREEDY, &chat));
  OK(lum_chat_say(chat, "Hello", hear, arg));
  lum_session_free(s); /* before its conversation */
  OK(lum_chat_say(chat, "And?", hear, arg));
  lum_chat_free(chat);
  return NULL;
}

static void check_chats(lum_session *s) {
  heard first = {.session = s}, cut = {.most = 1}, others[3] = {{.most = 0}};
  lum_chat *chat = NULL;
  pthread_t threads[3];
  FAILS(LUM_E_ARGUMENT, "path must not be NULL", lum_chat_open(s, NULL, NULL, &chat));
  FAILS(LUM_E_ARGUMENT, "out must not be NULL", lum_chat_open(s, "x", NULL, NULL));
  FAILS(LUM_E_ARGUMENT, "must not be NULL", lum_chat_open(NULL, "x", NULL, &chat));
  FAILS(LUM_E_FILE, "No such file or directory", lum_chat_open(s, path("none.gguf"), NULL, &chat));
  FAILS(LUM_E_FILE, "negative.onnx", lum_chat_open(s, path("negative.onnx"), NULL, &chat));
  FAILS(LUM_E_ARGUMENT, "malformed JSON", lum_chat_open(s, path("chat"), "{", &chat));
  FAILS(LUM_E_ARGUMENT, "options must be a JSON object, got 3", lum_chat_open(s, path("chat"), "3", &chat));
  FAILS(LUM_E_ARGUMENT, "must not be NULL", lum_chat_say(NULL, "x", NULL, NULL));
  CHECK(chat == NULL);
  FAILS(LUM_E_FILE, "unknown option 'temp'", lum_chat_open(s, path("chat"), "{\"temp\": 1}", &chat));
  OK(lum_chat_open(s, path("chat"), GREEDY, &chat));
  FAILS(LUM_E_ARGUMENT, "there is no message", lum_chat_say(chat, NULL, NULL, NULL));
  FAILS(LUM_E_ARGUMENT, "malformed JSON", lum_chat_add(chat, "{\"role\""));
  FAILS(LUM_E_ARGUMENT, "message must not be NULL", lum_chat_add(chat, NULL));
  FAILS(LUM_E_ARGUMENT, "message.role must be a string", lum_chat_add(chat, "{}"));
  OK(lum_chat_say(chat, "Hello", hear, &first));
  OK(lum_chat_say(chat, "And?", hear, &first));
  CHECK(first.pieces > 2 && strlen(first.text) > 4);
  OK(lum_chat_reset(chat));
  OK(lum_chat_add(chat, "{\"role\": \"user\", \"content\": \"Hello\"}"));
  OK(lum_chat_say(chat, NULL, hear, &cut));
  CHECK(cut.pieces == 1 && cut.text[0] && strncmp(cut.text, first.text, strlen(cut.text)) == 0);
  OK(lum_chat_say(chat, "x", NULL, NULL));
  lum_chat_free(chat);
  lum_chat_free(NULL);
  for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, converse, &others[i]) == 0);
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
    CHECK(strcmp(others[i].text, first.text) == 0);
  }
}

static void *load_onnx(void *arg) {
  lum_session *s = NULL;
  lum_model *m = NULL;
  lum_status *status = arg;
  *status = lum_session_new(&session_options, &s);
  if (!*status) *status = lum_model_load(s, path("negative.onnx"), NULL, &m);
  lum_model_free(m);
  lum_session_free(s);
  return NULL;
}

/* .onnx files are read on the stack that the header promises, and on the smallest that sessions take. */
static void check_small_stacks(void) {
  static const int kilobytes[] = {64, 128};
  for (int i = 0; i < 2; i++) {
    pthread_t id;
    pthread_attr_t attributes;
    lum_status status = LUM_E_STATE;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, (size_t)kilobytes[i] << 10) == 0);
    CHECK(pthread_create(&id, &attributes, load_onnx, &status) == 0);
    pthread_join(id, NULL);
    CHECK(status == LUM_OK || !reads_onnx);
    pthread_attr_destroy(&attributes);
  }
}

static void *wait_for_fifo(void *model) {
  lum_model_call(model, "waits", 0, NULL, 0, NULL, NULL);
  return NULL;
}

/* A thread that is canceled within a call leaves a session that refuses calls. */
static void check_cancel(void) {
  pthread_t id;
  void *result = NULL;
  lum_session *s;
  OK(lum_session_new(&session_options, &s));
  lum_model *m = load(s, "functions.lua", NULL);
  CHECK(pthread_create(&id, NULL, wait_for_fifo, m) == 0);
  pthread_cancel(id);
  pthread_join(id, &result);
  CHECK(result == PTHREAD_CANCELED);
  for (int i = 0; i < 2; i++) {
    FAILS(LUM_E_STATE, "a thread ended within a call of the session; free it and make another one",
          lum_model_call(m, "nothing", 0, NULL, 0, NULL, NULL));
  }
  lum_model_free(m);
  lum_session_free(s);
}

int main(int argc, char **argv) {
  lum_session *s = NULL;
  folder = argc > 1 ? argv[1] : ".";
  session_options.interpret = argc > 2;
  check_library();
  check_tensors();
  FAILS(LUM_E_ARGUMENT, "NULL", lum_session_collect(NULL));
  lum_session_options elsewhere = LUM_SESSION_OPTIONS;
  elsewhere.interpret = session_options.interpret;
  elsewhere.lua_folder = "";
  FAILS(LUM_E_FILE, "cannot open '/luminary/init.lua': No such file", lum_session_new(&elsewhere, &s));
  elsewhere.lua_folder = "/x/?;/%;?";
  FAILS(LUM_E_ARGUMENT, "lua_folder must be a path without ';' and '?', got", lum_session_new(&elsewhere, &s));
  char *endless = calloc(1, 100001);
  memset(endless, '/', 100000);
  elsewhere.lua_folder = endless;
  FAILS(LUM_E_FILE, "File name too long", lum_session_new(&elsewhere, &s));
  free(endless);
  setenv("LM_LUA_FOLDER", "/nowhere", 1);
  FAILS(LUM_E_FILE, "cannot open '/nowhere/luminary/init.lua': No such file", lum_session_new(NULL, &s));
  unsetenv("LM_LUA_FOLDER");
  elsewhere.lua_folder = "/nowhere"; /* a rock that the machine has does not answer, either */
  FAILS(LUM_E_FILE, "cannot open '/nowhere/luminary/init.lua': No such file", lum_session_new(&elsewhere, &s));
  elsewhere.size = sizeof elsewhere.size; /* a program that knows no options */
  if (!session_options.interpret) {
    OK(lum_session_new(&elsewhere, &s));
    lum_session_free(s);
  }
  lum_session_free(NULL);
  FAILS(LUM_E_ARGUMENT, "set by LUM_SESSION_OPTIONS, got 0", lum_session_new(&(lum_session_options){0}, &s));
  OK(lum_session_new(&session_options, &s));
  if (s) {
    CHECK(strcmp(lum_message(s), "") == 0);
    check_models(s);
    check_functions(s);
    check_bad_files(s);
    check_two_sessions(s);
    check_chats(s);
    check_log_and_callbacks(s);
    check_threads(session_options.interpret ? 3 : 20, NULL);
    check_threads(session_options.interpret ? 3 : 20, s);
    OK(lum_session_collect(s));
    lum_session_free(s);
  }
  if (!session_options.interpret) check_small_stacks(); /* valgrind takes some of it */
  if (!session_options.interpret) check_cancel();       /* the session's memory is lost, as valgrind sees */
  if (failures == 0) printf("ok\n");
  return failures > 0;
}
