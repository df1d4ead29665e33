/* Declarations of include/luminary.h as they were when libluminary_c.so.1 was first released: never changed. */
#ifndef LUMINARY_H
#define LUMINARY_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define LUM_API __attribute__((visibility("default")))
#else
#define LUM_API
#endif
typedef enum lum_status {
  LUM_OK = 0,
  LUM_E_ARGUMENT = 1,
  LUM_E_SHAPE = 2,
  LUM_E_DTYPE = 3,
  LUM_E_DEVICE = 4,
  LUM_E_INDEX = 5,
  LUM_E_MEMORY = 6,
  LUM_E_FILE = 7,
  LUM_E_STATE = 8,
  LUM_E_MISSING = 9,
  LUM_E_SCRIPT = 10
} lum_status;
typedef enum lum_dtype {
  LUM_NO_DTYPE = -1,
  LUM_BOOL = 0,
  LUM_UINT8 = 1,
  LUM_INT8 = 2,
  LUM_INT16 = 3,
  LUM_UINT16 = 4,
  LUM_INT32 = 5,
  LUM_INT64 = 6,
  LUM_FLOAT16 = 7,
  LUM_BFLOAT16 = 8,
  LUM_FLOAT32 = 9,
  LUM_FLOAT64 = 10
} lum_dtype;
enum { LUM_MAX_DIMS = 8 };
typedef struct lum_session lum_session;
typedef struct lum_model lum_model;
typedef struct lum_tensor lum_tensor;
LUM_API const char *lum_version(void);
LUM_API const char *lum_status_name(lum_status status);
LUM_API const char *lum_message(const lum_session *session);
LUM_API void lum_set_log(void (*log)(void *user, const char *line), void *user);
LUM_API lum_status lum_set_num_threads(int n);
LUM_API int lum_get_num_threads(void);
LUM_API void lum_manual_seed(uint64_t seed);
LUM_API int lum_device_count(const char *kind);
LUM_API lum_status lum_device_check(const char *device);
LUM_API lum_status lum_device_synchronize(const char *device);
LUM_API size_t lum_device_memory(const char *device);
LUM_API const char *lum_dtype_name(lum_dtype dtype);
LUM_API size_t lum_dtype_size(lum_dtype dtype);
LUM_API lum_status lum_dtype_find(const char *name, lum_dtype *out);
LUM_API lum_status lum_tensor_from_memory(lum_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                                          void *data, size_t bytes, void (*release)(void *user), void *user,
                                          lum_tensor **out);
LUM_API lum_status lum_tensor_new(lum_dtype dtype, int ndim, const int64_t *shape, const char *device,
                                  lum_tensor **out);
LUM_API lum_tensor *lum_tensor_retain(lum_tensor *tensor);
LUM_API void lum_tensor_free(lum_tensor *tensor);
LUM_API lum_dtype lum_tensor_dtype(const lum_tensor *tensor);
LUM_API int lum_tensor_ndim(const lum_tensor *tensor);
LUM_API const int64_t *lum_tensor_shape(const lum_tensor *tensor);
LUM_API const int64_t *lum_tensor_strides(const lum_tensor *tensor);
LUM_API int64_t lum_tensor_numel(const lum_tensor *tensor);
LUM_API size_t lum_tensor_bytes(const lum_tensor *tensor);
LUM_API const char *lum_tensor_device(const lum_tensor *tensor);
LUM_API int lum_tensor_is_contiguous(const lum_tensor *tensor);
LUM_API void *lum_tensor_data(const lum_tensor *tensor);
LUM_API lum_status lum_tensor_to(lum_tensor *tensor, lum_dtype dtype, const char *device, lum_tensor **out);
LUM_API lum_status lum_tensor_read(const lum_tensor *tensor, void *to, size_t bytes);
LUM_API lum_status lum_tensor_write(lum_tensor *tensor, const void *from, size_t bytes);
LUM_API lum_status lum_tensor_item(const lum_tensor *tensor, double *out);
typedef struct lum_session_options {
  size_t size;
  const char *lua_folder;
  int interpret;
} lum_session_options;
#define LUM_SESSION_OPTIONS \
  { sizeof(lum_session_options), NULL, 0 }
LUM_API lum_status lum_session_new(const lum_session_options *options, lum_session **out);
LUM_API void lum_session_free(lum_session *session);
LUM_API lum_status lum_session_collect(lum_session *session);
typedef struct lum_model_options {
  size_t size;
  const char *weights;
  const char *device;
} lum_model_options;
#define LUM_MODEL_OPTIONS \
  { sizeof(lum_model_options), NULL, NULL }
typedef struct lum_value_info {
  size_t size;
  const char *name;
  lum_dtype dtype;
  int ndim;
  int64_t shape[LUM_MAX_DIMS];
} lum_value_info;
#define LUM_VALUE_INFO                                    \
  {                                                       \
    sizeof(lum_value_info), NULL, LUM_NO_DTYPE, -1, { 0 } \
  }
LUM_API lum_status lum_model_load(lum_session *session, const char *path, const lum_model_options *options,
                                  lum_model **out);
LUM_API void lum_model_free(lum_model *model);
LUM_API lum_status lum_model_run(lum_model *model, size_t n, lum_tensor *const *inputs, size_t capacity,
                                 lum_tensor **outputs, size_t *count);
LUM_API lum_status lum_model_run_named(lum_model *model, size_t n, const char *const *input_names,
                                       lum_tensor *const *inputs, size_t n_outputs, const char *const *output_names,
                                       lum_tensor **outputs);
LUM_API lum_status lum_model_call(lum_model *model, const char *function, size_t n, lum_tensor *const *inputs,
                                  size_t capacity, lum_tensor **outputs, size_t *count);
LUM_API int lum_model_input_count(const lum_model *model);
LUM_API int lum_model_output_count(const lum_model *model);
LUM_API lum_status lum_model_input(const lum_model *model, int i, lum_value_info *info);
LUM_API lum_status lum_model_output(const lum_model *model, int i, lum_value_info *info);
LUM_API lum_status lum_model_tensor(lum_model *model, const char *name, lum_tensor **out);
LUM_API lum_status lum_model_to(lum_model *model, const char *device);
LUM_API lum_status lum_model_load_weights(lum_model *model, const char *path);
LUM_API lum_status lum_model_save(lum_model *model, const char *path);
#ifdef __cplusplus
}
#endif
#endif
