/* Declares a device's table of kernels. Plug-in header; it may still change, and LM_BACKEND_ABI with it.
 *
 * The op layer has checked every argument, allocated every output (dense) and resolved defaults before it calls a
 * kernel: dims are 0..ndim-1, lists of dims are sorted and complete (all dims if none were given), tensors are on this
 * device with the dtypes the op documents. Inputs may be strided; the head of op/<family>.c says what else a family's
 * kernels may rely on. A kernel that is NULL is an error for the caller. */
#pragma once

#include "device/driver.h"
#include "op/op.h"

enum { LM_POINTWISE_MAX_IN = 4, LM_POINTWISE_MAX_NUMBERS = 4 };

/* A call of an elementwise kernel: an op's forward, LM_OP_<op>, or a fused gradient, LM_GRAD_<op>_<argument>. */
typedef struct lm_pointwise {
  int kernel;
  lm_dtype compute; /* dtype of the arithmetic: LM_F32, LM_F64 or LM_I64 */
  int nin;
  const lm_tensor *in[LM_POINTWISE_MAX_IN];            /* inputs of any dtype, not broadcast: see in_stride */
  lm_tensor *out;                                      /* the result, of any dtype; may be strided, may be in `in` */
  double number[LM_POINTWISE_MAX_NUMBERS];             /* the op's F arguments in order */
  int64_t in_stride[LM_POINTWISE_MAX_IN][LM_MAX_DIMS]; /* each input's strides along out's dims, 0 in a broadcast dim */
} lm_pointwise;

typedef lm_status (*lm_kernel)(const void *args, lm_tensor *const *out);

/* One step of an optimizer over many tensors at once (optim/optim.h describes its fields). */
struct lm_optim_step;
struct lm_group;

typedef struct lm_backend {
  int abi; /* must equal LM_BACKEND_ABI (op/backend.h) */
  const lm_driver *driver;
  const lm_kernel *op; /* [LM_SLOT_COUNT] kernels of ops and families; args is the op's or the family's struct */
  lm_status (*pointwise)(const lm_pointwise *job);
  /* Converts and copies between two tensors of this device of equal sizes, any strides and dtypes. */
  lm_status (*copy)(const lm_tensor *src, lm_tensor *dst);
  lm_status (*optim)(const struct lm_optim_step *step);
  /* Sums |x|^p over all elements of all tensors (p = infinity: takes the largest |x|) into out, 0-d float64 on their
   * device. */
  lm_status (*norms)(int n, lm_tensor *const *tensors, double p, lm_tensor *out);
  /* Sets to[i] = from[i] * factor (lm_rescale), dense and in one layout. Sets *found, 0-d float32, to 1 if a value of
   * `from` is infinite or NaN, else leaves it; found may be NULL. */
  lm_status (*rescale)(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found);
  /* Prepare a group (op/group.h) as one kernel, run it, and add up partial sums, as lm_group_prepare, lm_group_run and
   * lm_group_sum_parts declare. May be NULL. */
  lm_status (*group_prepare)(lm_device device, struct lm_group *g);
  lm_status (*group_run)(const struct lm_group *g, lm_tensor *const *operand);
  lm_status (*sum_parts)(int n, lm_tensor *const *from, lm_tensor *const *to);
  void (*set_threads)(int n);
  int (*get_threads)(void);
  /* True if conv2d's results in this dtype should be contiguous. NULL: always channels-last. */
  bool (*conv_contiguous)(lm_dtype dtype);
  /* Returns the version of a library ("cudnn") in its own numbering; 0 if unknown. May be NULL. */
  int64_t (*version)(const char *library);
} lm_backend;

/* Registers a backend and its driver, which names the kind; called by constructors or a plug-in's lm_backend_plugin. */
LM_API lm_status lm_backend_register(const lm_backend *backend);

/* A plug-in luminary_backend_<name>.so exports this function, which registers its table. */
#define LM_BACKEND_PLUGIN "lm_backend_plugin"
typedef lm_status lm_backend_plugin_fn(void);

/* Kinds of invalid values that a kernel finds on the device after the call returned. The op layer words the error. */
enum { LM_BAD_NONE, LM_BAD_INDEX, LM_BAD_LABEL, LM_BAD_DIVISION, LM_BAD_PIVOT };
/* Returns the error for `value` at `position` (from 1, in the flattened argument), which must be in 1 to limit. */
#define LM_EARLIER_CALL "earlier call of " /* prefix of its message, before "OP: " */
LM_API lm_status lm_fail_bad_value(int kind, int op, int64_t position, int64_t value, int64_t limit);
/* Returns the error for a bad index or label; from_end: negative indices are valid. */
LM_API lm_status lm_fail_bad_index(const char *op, const char *what, int64_t value, int64_t position, int64_t limit,
                                   bool from_end);
/* Return the name of what this thread runs, for messages ("add", "SGD"; NULL outside), and its op id, or -1. */
LM_API const char *lm_op_running(void);
LM_API int lm_op_running_id(void);
/* Returns the backend of the device; NULL, with a message, if none is loaded. */
LM_API const lm_backend *lm_backend_of(lm_device device);
