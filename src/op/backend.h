/* What a device has to bring: a table of kernels. Plug-in header; it may still change, and LM_BACKEND_ABI with it.
 *
 * The op layer has checked every argument, allocated every output (dense) and resolved defaults
 * before a slot is called: dims are 0..ndim-1, dims lists are sorted and complete (all dims where
 * none were given), tensors are on this device with the dtypes the op documents. Inputs may be
 * strided; what else a family's slots may rely on is said at the head of its op/<family>.c. A slot
 * that is NULL is a clear error for the caller. */
#pragma once

#include "abi.h"
#include "device/driver.h"
#include "op/op.h"

enum { LM_POINTWISE_MAX_IN = 4, LM_POINTWISE_MAX_NUMBERS = 4 };

/* Elementwise kernels: an op's forward, LM_OP_<op>, or the fused gradient of one, LM_GRAD_<op>_<argument>. */
typedef struct lm_pointwise {
  int kernel;
  lm_dtype compute; /* LM_F32, LM_F64 or LM_I64: what the arithmetic is done in */
  int nin;
  const lm_tensor *in[LM_POINTWISE_MAX_IN]; /* sizes and strides as out's: already broadcast (stride 0), any dtype */
  lm_tensor *out;                           /* any dtype; may be strided, and may be one of `in` */
  double number[LM_POINTWISE_MAX_NUMBERS];  /* the op's F arguments in order */
  int64_t in_stride[LM_POINTWISE_MAX_IN][LM_MAX_DIMS]; /* strides of each input along out's dims, 0 where broadcast */
} lm_pointwise;

typedef lm_status (*lm_kernel)(const void *args, lm_tensor *const *out);

/* One step of an optimizer over many tensors at once (optim/optim.h says which fields it reads). */
struct lm_optim_step;

typedef struct lm_backend {
  int abi; /* LM_BACKEND_ABI */
  const lm_driver *driver;
  lm_kernel op[LM_SLOT_COUNT]; /* ops that compute and families of them; args is the op's or the family's struct */
  lm_status (*pointwise)(const lm_pointwise *job);
  /* Convert and copy between two tensors of this device of equal sizes, any strides and dtypes. */
  lm_status (*copy)(const lm_tensor *src, lm_tensor *dst);
  lm_status (*optim)(const struct lm_optim_step *step);
  /* For norms of many tensors: the sum over all tensors of |x|^p (p = infinity: the largest |x|) into out, 0-d
   * float64 on their device. */
  lm_status (*norms)(int n, lm_tensor *const *tensors, double p, lm_tensor *out);
  /* lm_rescale's (optim/rescale.h): to[i] = from[i] * factor, dense and alike in layout; *found, 0-d float32, becomes 1
   * where a value of `from` is infinite or NaN, and else stays; NULL: nobody asks. */
  lm_status (*rescale)(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found);
  void (*set_threads)(int n);
  int (*get_threads)(void);
  /* Whether results of conv2d in this dtype are better laid out contiguous. NULL: channels-last, for all. */
  bool (*conv_contiguous)(lm_dtype dtype);
  /* Of a library it stands on ("cudnn"), as that counts; 0 for others. May be NULL. */
  int64_t (*version)(const char *library);
} lm_backend;

/* Also registers the driver, whose name says the kind. What the constructor or lm_backend_plugin of a plug-in calls. */
LM_API lm_status lm_backend_register(const lm_backend *backend);

/* A plug-in luminary_backend_<name>.so exports this function, which registers its table. */
#define LM_BACKEND_PLUGIN "lm_backend_plugin"
typedef lm_status lm_backend_plugin_fn(void);

/* A value that a kernel may not take, found on the device after the call had returned. The op layer words it. */
enum { LM_BAD_NONE, LM_BAD_INDEX, LM_BAD_LABEL, LM_BAD_DIVISION, LM_BAD_PIVOT };
/* kind at position (from 1, in the flattened argument) is value, and must be in 1 to limit. */
#define LM_EARLIER_CALL "earlier call of " /* how its message begins, before "OP: " */
LM_API lm_status lm_bad_value(int kind, int op, int64_t position, int64_t value, int64_t limit);
/* The words of it; from_end: negative indices are fine. */
LM_API lm_status lm_bad_index(const char *op, const char *what, int64_t value, int64_t position, int64_t limit,
                              bool from_end);
/* What this thread is running, for messages of backends: "add", "SGD"; NULL outside. Its id, or -1. */
LM_API const char *lm_op_running(void);
LM_API int lm_op_running_id(void);
/* NULL, with a message, if the device's kind has no backend loaded. */
LM_API const lm_backend *lm_backend_of(lm_device device);
