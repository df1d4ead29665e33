/* Runs and trains Luminary's models from C and C++. Link with `pkg-config --cflags --libs luminary`, or with
 * luminary::luminary of CMake's find_package(luminary). docs/howto/c.md has a program, and a section for each function.
 *
 * Sessions. A session holds models. All functions may be called from any thread. Calls of one session wait for one
 * another, since a session has a lock: a program that computes on several threads at once makes a session for each of
 * them. Sessions share the memory of mapped weights, the compute threads, the allocator and the random generators.
 * Tensors belong to no session. Two threads may read one tensor at once; one that writes to it must be alone.
 *
 * Failures. A function that can fail returns a lum_status, and lum_message returns its sentence. Pointers that such a
 * function returns through `out` are NULL after a failure. NULL for a session, a model, a tensor or `out` is
 * LUM_E_ARGUMENT there; functions that return a tensor's dtype, sizes and so on need a tensor. Nothing aborts the
 * process, and nothing is printed, except warnings (lum_set_log).
 *
 * Compatibility. A program runs with every later library of the same soname. A struct begins with its own size, which
 * the initializers below set, so that later versions can add fields. Enums may get further values.
 *
 * A thread that calls these functions needs a stack of 128 KB. After fork() without exec() a child may use sessions
 * that no thread of the parent was in. Fork while no thread is in a call of any session: LuaJIT raises errors through
 * GCC's unwinder, whose lock fork() does not take, so that a child's first error could wait for it without end. */
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
  LUM_E_ARGUMENT = 1, /* an invalid value */
  LUM_E_SHAPE = 2,    /* sizes that do not match */
  LUM_E_DTYPE = 3,    /* a dtype that the function does not support */
  LUM_E_DEVICE = 4,   /* devices that differ, or a device that does not exist */
  LUM_E_INDEX = 5,    /* an index or a label out of range */
  LUM_E_MEMORY = 6,   /* out of memory */
  LUM_E_FILE = 7,     /* a file that cannot be opened, read or written, or is malformed */
  LUM_E_STATE = 8,    /* a call at the wrong time */
  LUM_E_MISSING = 9,  /* what this library lacks: a feature, code for a device, or what a valid model needs */
  LUM_E_SCRIPT = 10   /* an error in or from a model's Lua file */
} lum_status;

typedef enum lum_dtype {
  LUM_NO_DTYPE = -1,
  LUM_BOOL = 0, /* one byte, 0 or 1 */
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
typedef struct lum_chat lum_chat;

/* ---- the library */

/* Returns the library's version, "major.minor.patch". */
LUM_API const char *lum_version(void);
/* Returns a status as text, "LUM_E_SHAPE"; "LUM_E_UNKNOWN" for other numbers. */
LUM_API const char *lum_status_name(lum_status status);
/* Returns the message of a session's last failure, or of this thread's last one if it was of that session; with NULL of
 * this thread's last failure of any function. Never NULL, "" for none. Valid until this thread's next call of
 * lum_message or next failure. */
LUM_API const char *lum_message(const lum_session *session);
/* Calls log(user, line) for each line that the library would print to standard error: warnings, and topics that the
 * environment variable LM_LOG selects. It is called from any thread, by one at a time, and must not call functions of
 * this header. NULL prints to standard error again. */
LUM_API void lum_set_log(void (*log)(void *user, const char *line), void *user);
/* Sets the number of threads that compute on the CPU, of the whole process; 0: as many as there are cores. */
LUM_API lum_status lum_set_num_threads(int n);
LUM_API int lum_get_num_threads(void);
/* Seeds the random generators of all devices. */
LUM_API void lum_manual_seed(uint64_t seed);

/* ---- devices, named "cpu", "cuda" (the first GPU) or "cuda:1" */

/* Returns the number of devices of a kind, "cpu" or "cuda". */
LUM_API int lum_device_count(const char *kind);
/* Returns LUM_OK if a device can be used; the message of LUM_E_DEVICE says why it cannot. */
LUM_API lum_status lum_device_check(const char *device);
/* Waits until all work on a device is done. */
LUM_API lum_status lum_device_synchronize(const char *device);
/* Returns the bytes that tensors occupy on a device; 0 for an unknown one. */
LUM_API size_t lum_device_memory(const char *device);

/* ---- dtypes */

/* Returns "float32" and so on; "none" for LUM_NO_DTYPE and other numbers. */
LUM_API const char *lum_dtype_name(lum_dtype dtype);
/* Returns the bytes of an element; 0 for LUM_NO_DTYPE and other numbers. */
LUM_API size_t lum_dtype_size(lum_dtype dtype);
/* Finds a dtype by its name. */
LUM_API lum_status lum_dtype_find(const char *name, lum_dtype *out);

/* ---- tensors: counted references, which lum_tensor_free releases */

/* Makes a tensor over the caller's memory, without a copy: `bytes` bytes from `data`, aligned for the dtype. strides,
 * in elements and not negative, are NULL for rows without gaps. release(user), unless NULL, is called once, from any
 * thread, when nothing refers to the memory any more, or before this function returns a failure. A model that ran has
 * let go of its inputs, unless it keeps views of them. Do not call functions of a session from `release`. */
LUM_API lum_status lum_tensor_from_memory(lum_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                                          void *data, size_t bytes, void (*release)(void *user), void *user,
                                          lum_tensor **out);
/* Makes a tensor of zeros on a device, NULL for the CPU. */
LUM_API lum_status lum_tensor_new(lum_dtype dtype, int ndim, const int64_t *shape, const char *device,
                                  lum_tensor **out);
/* Adds a reference, for another lum_tensor_free; returns the tensor. */
LUM_API lum_tensor *lum_tensor_retain(lum_tensor *tensor);
/* Releases a reference; NULL does nothing. */
LUM_API void lum_tensor_free(lum_tensor *tensor);

LUM_API lum_dtype lum_tensor_dtype(const lum_tensor *tensor);
LUM_API int lum_tensor_ndim(const lum_tensor *tensor);
/* Return the sizes and the strides (in elements), ndim of each, valid as long as the tensor. */
LUM_API const int64_t *lum_tensor_shape(const lum_tensor *tensor);
LUM_API const int64_t *lum_tensor_strides(const lum_tensor *tensor);
/* Returns the number of elements. */
LUM_API int64_t lum_tensor_numel(const lum_tensor *tensor);
/* Returns the bytes of the elements, as lum_tensor_read writes them. */
LUM_API size_t lum_tensor_bytes(const lum_tensor *tensor);
/* Returns "cpu", "cuda:0" and so on. */
LUM_API const char *lum_tensor_device(const lum_tensor *tensor);
/* Returns 1 if the elements are in row-major order without gaps, else 0. */
LUM_API int lum_tensor_is_contiguous(const lum_tensor *tensor);
/* Returns the address of the first element; NULL for a tensor that is not on the CPU. Change a model's tensor by
 * lum_tensor_write, which the next run of the model notices. */
LUM_API void *lum_tensor_data(const lum_tensor *tensor);
/* Returns a tensor with another dtype and on another device, contiguous: a copy, or another reference if nothing
 * differs. LUM_NO_DTYPE and NULL keep what it has. */
LUM_API lum_status lum_tensor_to(lum_tensor *tensor, lum_dtype dtype, const char *device, lum_tensor **out);
/* Copies the elements, in row-major order, to memory of lum_tensor_bytes(tensor) bytes. */
LUM_API lum_status lum_tensor_read(const lum_tensor *tensor, void *to, size_t bytes);
/* Copies elements, in row-major order, from memory of lum_tensor_bytes(tensor) bytes into the tensor. */
LUM_API lum_status lum_tensor_write(lum_tensor *tensor, const void *from, size_t bytes);
/* Returns the value of a tensor with one element. */
LUM_API lum_status lum_tensor_item(const lum_tensor *tensor, double *out);

/* ---- sessions */

typedef struct lum_session_options {
  size_t size;
  const char *lua_folder; /* the folder with luminary/init.lua; NULL: LM_LUA_FOLDER, else the library's own */
  int interpret; /* 1: never makes machine code of Lua code, as valgrind and systems without executable data need */
} lum_session_options;
#define LUM_SESSION_OPTIONS \
  { sizeof(lum_session_options), NULL, 0 }

/* Makes a session. options: NULL for the defaults. */
LUM_API lum_status lum_session_new(const lum_session_options *options, lum_session **out);
/* Releases a session, which ends when its models are freed too; NULL does nothing. */
LUM_API void lum_session_free(lum_session *session);
/* Releases all memory that models left behind in the session, and the allocator's unused blocks. */
LUM_API lum_status lum_session_collect(lum_session *session);

/* ---- models */

typedef struct lum_model_options {
  size_t size;
  const char *weights; /* a file of weights (safetensors, .pt) for a Lua file's module; NULL for none */
  const char *device;  /* NULL: where the file puts the module, which is the CPU unless it says otherwise */
} lum_model_options;
#define LUM_MODEL_OPTIONS \
  { sizeof(lum_model_options), NULL, NULL }

/* An input or output as a model declares it. */
typedef struct lum_value_info {
  size_t size;
  const char *name;            /* valid as long as the model */
  lum_dtype dtype;             /* LUM_NO_DTYPE: not declared */
  int ndim;                    /* -1: not declared */
  int64_t shape[LUM_MAX_DIMS]; /* -1: any size */
} lum_value_info;
#define LUM_VALUE_INFO                                    \
  {                                                       \
    sizeof(lum_value_info), NULL, LUM_NO_DTYPE, -1, { 0 } \
  }

/* Loads a model from a .onnx file, or from a Lua file that returns an nn.Module, a function, or a table {model = module
 * or function, inputs = names, outputs = names, NAME = function, …}. Weights are mapped from their file, which all
 * sessions and processes share; training copies what it changes. A Lua file is a program, and has all of this process's
 * rights; files of weights and .onnx files are data. options: NULL for the defaults. */
LUM_API lum_status lum_model_load(lum_session *session, const char *path, const lum_model_options *options,
                                  lum_model **out);
/* Releases a model; NULL does nothing. */
LUM_API void lum_model_free(lum_model *model);
/* Runs a model in evaluation mode, without gradients. Writes at most `capacity` outputs, the caller's to free, and NULL
 * where the model returned fewer. *count, unless NULL: the number that it returned. An output that the model only
 * passes on or reshapes shares memory with the input or the parameter. */
LUM_API lum_status lum_model_run(lum_model *model, size_t n, lum_tensor *const *inputs, size_t capacity,
                                 lum_tensor **outputs, size_t *count);
/* Does as lum_model_run, with inputs and outputs by name: of outputs, those that `output_names` lists. */
LUM_API lum_status lum_model_run_named(lum_model *model, size_t n, const char *const *input_names,
                                       lum_tensor *const *inputs, size_t n_outputs, const char *const *output_names,
                                       lum_tensor **outputs);
/* Calls a function of the Lua file's table, such as a training step, with tensors. It returns tensors, numbers (which
 * become float64) or booleans. Outputs as lum_model_run's. */
LUM_API lum_status lum_model_call(lum_model *model, const char *function, size_t n, lum_tensor *const *inputs,
                                  size_t capacity, lum_tensor **outputs, size_t *count);
/* Return the number of declared inputs and outputs; 0 if the model declares none. */
LUM_API int lum_model_input_count(const lum_model *model);
LUM_API int lum_model_output_count(const lum_model *model);
/* Describe input or output i, which counts from 0. info->size must be set (LUM_VALUE_INFO). */
LUM_API lum_status lum_model_input(const lum_model *model, int i, lum_value_info *info);
LUM_API lum_status lum_model_output(const lum_model *model, int i, lum_value_info *info);
/* Returns a parameter or buffer by its name in the state dict. It shares the model's memory. */
LUM_API lum_status lum_model_tensor(lum_model *model, const char *name, lum_tensor **out);
/* Moves parameters and buffers to a device. */
LUM_API lum_status lum_model_to(lum_model *model, const char *device);
/* Loads weights into the module; the file has the names of the module's state dict. */
LUM_API lum_status lum_model_load_weights(lum_model *model, const char *path);
/* Saves the module's state dict. A crash leaves the old file or the new one. */
LUM_API lum_status lum_model_save(lum_model *model, const char *path);

/* ---- conversations with a language model */

/* Gets a piece of an answer as it is generated, in whole UTF-8 characters; valid during the call. Returns 0, or another
 * number to end the answer there. It runs on the thread of lum_chat_say, and must not call functions of its session. */
typedef int (*lum_on_text)(void *user, const char *text);

/* Opens a conversation with the model of a GGUF file or of a folder of Hugging Face's, whose weights are mapped, as a
 * model's are. options: a JSON object of the options of lm.chat, such as {"system": "Be brief.", "temperature": 0.7,
 * "max_new_tokens": 200, "context": 4096}; NULL for the defaults. Files of models are data; nothing is downloaded. */
LUM_API lum_status lum_chat_open(lum_session *session, const char *path, const char *options, lum_chat **out);
/* Appends a message of the user, unless NULL, generates the answer, and appends it. on_text gets it piece by piece. The
 * oldest turns are removed where the model's positions do not suffice. After a failure the message is removed. Other
 * calls of the session wait until the answer ends: conversations that answer at the same time need a session each. */
LUM_API lum_status lum_chat_say(lum_chat *chat, const char *message, lum_on_text on_text, void *user);
/* Appends a message of any role, a JSON object: {"role": "assistant", "content": "Hello."}. */
LUM_API lum_status lum_chat_add(lum_chat *chat, const char *message);
/* Removes all messages but the system's. */
LUM_API lum_status lum_chat_reset(lum_chat *chat);
/* Releases a conversation; NULL does nothing. */
LUM_API void lum_chat_free(lum_chat *chat);

#ifdef __cplusplus
}
#endif

#endif
