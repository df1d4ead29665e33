/* Declares what the CUDA backend's files share. Each slot's contract is op/backend.h's; everything is enqueued on the
 * thread's current stream and nothing waits, except results whose size depends on values (nonzero).
 *
 * A family is a file here (checks of layout, geometry, scratch memory) over kernels/<family>.cu, whose header
 * kernels/<family>.h has plain C functions that launch and return a cudaError_t as int. No CUDA header is needed to
 * call them; streams are passed as void pointers. */
#pragma once

#include "backend/known/device_kinds.h"
#include "bad_values.h"
#include "op/backend.h"
#include "optim/optim.h"

/* Makes the device current on this thread; *stream is the native current stream. */
lm_status lm_cuda_enter(lm_device device, void **stream);
/* Converts a cudaError_t: "mm: cublasLtMatmul: error 700 (cudaErrorIllegalAddress): an illegal memory access…"; the op
 * is lm_op_running(). Out of memory is LM_E_OOM. */
lm_status lm_cuda_check(int error, const char *call);
#define CUDA(call) lm_cuda_check((int)(call), #call)
/* Converts a launch's error, by the kernel's name: "add: cudaLaunchKernel of add: error …". */
lm_status lm_cuda_check_launch(int error, const char *kernel);
#define LAUNCH(name, call) lm_cuda_check_launch((int)(call), name)

/* Memory for kernels of the current stream. As LM_CUDA_SCRATCH it is freed when the block ends, right after the launch
 * too: its next user comes later on the stream. No goto may jump over the declaration. */
typedef struct lm_cuda_memory {
  lm_device device;
  void *p; /* NULL for 0 bytes */
  size_t bytes;
} lm_cuda_memory;
#define LM_CUDA_SCRATCH __attribute__((cleanup(lm_cuda_scratch_done))) lm_cuda_memory
lm_status lm_cuda_scratch(lm_device device, size_t bytes, lm_cuda_memory *out);
void lm_cuda_scratch_done(const lm_cuda_memory *memory);

/* A slot's resources: lm_cuda_run makes the device current, and releases what the frame holds when the slot returns. */
enum { LM_CUDA_HELD = 16 };
typedef struct lm_cuda_frame {
  lm_device device;
  void *stream; /* the native current stream */
  int n, tensors;
  lm_cuda_memory scratch[LM_CUDA_HELD];
  lm_tensor *tensor[LM_CUDA_HELD];
  void *handle; /* a library's handle, returned by `put` */
  void (*put)(lm_device device, void *handle);
} lm_cuda_frame;
typedef lm_status lm_cuda_slot(const void *args, lm_tensor *const *out, lm_cuda_frame *f);
lm_status lm_cuda_run(lm_cuda_slot *slot, lm_device device, const void *args, lm_tensor *const *out);
/* Allocates memory for the slot's kernels; of 0 bytes *out is NULL. */
lm_status lm_cuda_take(lm_cuda_frame *f, size_t bytes, void **out);
/* Makes a contiguous tensor; lm_cuda_take_like: one laid out like another. */
lm_status lm_cuda_take_tensor(lm_cuda_frame *f, lm_dtype dtype, int ndim, const int64_t *size, lm_tensor **out);
lm_status lm_cuda_take_like(lm_cuda_frame *f, const lm_tensor *like, lm_dtype dtype, lm_tensor **out);
/* Allocates float32 sums for a result of 16 bits; else *out is NULL. */
lm_status lm_cuda_take_sums(lm_cuda_frame *f, const lm_tensor *result, void **out);

/* Releases a tensor that the slot has made for itself; NULL is allowed. */
void lm_cuda_release(lm_tensor *t);
/* Returns t if it has the format and begins at a multiple of LM_CUDA_ALIGN bytes, as cuBLASLt's biases and cuDNN's
 * operands must; else a tensor of the frame that does, with t's values if `read`. */
enum { LM_CUDA_ALIGN = 16 };
lm_status lm_cuda_lay_out(lm_cuda_frame *f, lm_tensor *t, lm_format format, bool read, lm_tensor **out);
/* Returns the current stream's record for bad values, with the running op filled in. */
lm_status lm_cuda_bad(lm_device device, lm_bad *out);
/* A device's properties that launches depend on, read once for each device. */
typedef struct lm_cuda_facts {
  int processors;   /* streaming multiprocessors */
  int major, minor; /* compute capability */
  size_t l2;        /* bytes */
  char name[256];
} lm_cuda_facts;
const lm_cuda_facts *lm_cuda_facts_of(lm_device device);
extern const lm_driver lm_cuda_driver; /* runtime/driver.c */

int64_t lm_cuda_version(const char *library); /* runtime/version.c */

lm_status lm_cuda_pointwise(const lm_pointwise *job);
/* Returns the name of a kernel's row, lm_row_<name> of kernels/pointwise_elements.cuh. */
const char *lm_cuda_row_name(int kernel);
lm_status lm_cuda_copy(const lm_tensor *src, lm_tensor *dst);
bool lm_cuda_conv_contiguous(lm_dtype dtype); /* conv.c */
lm_status lm_cuda_optim(const lm_optim_step *step);
lm_status lm_cuda_norms(int n, lm_tensor *const *tensors, double p, lm_tensor *out);
lm_status lm_cuda_group_prepare(lm_device device, struct lm_group *g); /* group.c */
lm_status lm_cuda_group_run(const struct lm_group *g, lm_tensor *const *operand);
lm_status lm_cuda_sum_parts(int n, lm_tensor *const *from, lm_tensor *const *to);
lm_status lm_cuda_rescale(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found);

/* clang-format off */
/* Slots that need a library which a build may lack. */
#ifdef LM_HAS_CUFFT
#define LM_CUDA_CUFFT(X) X(fft_c2c) X(fft_r2c) X(fft_c2r) X(stft_lines) X(overlap_add)
#else
#define LM_CUDA_CUFFT(X)
#endif
#ifdef LM_HAS_CUSOLVER
#define LM_CUDA_CUSOLVER(X)                                                                                           \
  X(inverse) X(det) X(slogdet) X(linalg_solve) X(linalg_lu_factor) X(linalg_lu_solve) X(lu_pivots_to_matrix)          \
  X(cholesky) X(linalg_solve_triangular) X(linalg_qr) X(linalg_eigh) X(linalg_eigvalsh) X(linalg_svd)                 \
  X(linalg_svdvals) X(linalg_pinv) X(linalg_lstsq)
#else
#define LM_CUDA_CUSOLVER(X)
#endif
#define LM_CUDA_KERNELS(X)                                                                                            \
  /* reduce.c, softmax.c, matmul.c, conv.c, scan.c, sort.c */                                                         \
  X(reduce) X(extreme_along) X(softmax_along) X(product) X(mm_with_sums) X(addmm_gelu) X(mm_gelu_backward) X(conv2d) X(conv2d_input) X(conv2d_weight) X(scan) X(topk)   \
  X(kth_along) X(searchsorted) X(randperm)                                                                            \
  /* loss.c, cat.c, index.c */                                                                                        \
  X(nll_loss) X(nll_loss_backward) X(cross_entropy_rows) X(cross_entropy_rows_backward) X(cat) X(gather) X(scatter_along) X(index_select) X(index_add) X(index_get)         \
  X(index_put_) X(nonzero) X(one_hot) X(embedding) X(embedding_backward) X(triangle)                                  \
  /* gather_weighted.c, grid_sample.c, boxes.c, ctc.c, pooling.c */                                                   \
  X(gather_weighted) X(gather_weighted_input) X(gather_weighted_weight) X(grid_sample) X(grid_sample_input)           \
  X(grid_sample_grid) X(roi_pool) X(nms_sorted) X(ctc_nll) X(ctc_nll_backward) X(adaptive_max_pool2d) X(max_pool2d)   \
  X(max_pool2d_backward) X(avg_pool2d) X(avg_pool2d_backward) X(adaptive_avg_pool2d) X(adaptive_avg_pool2d_backward)  \
  /* attention.c, norm.c, recurrent.c, fill.c, sample.c */                                                            \
  X(attention) X(attention_backward) X(attention_draw) X(dropout_by_draw) X(batch_normalize)                          \
  X(batch_normalize_backward) X(row_norm) X(row_norm_backward) X(recurrent_network) X(recurrent_network_backward)     \
  X(dropout) X(fill_) X(fill_random) X(arange) X(linspace) X(poisson) X(binomial) X(multinomial)                      \
  /* blocks.c, attention.c */                                                                                         \
  X(block_linear) X(expand_blocks) X(paged_attention)                                                                 \
  /* linalg/ */                                                                                                       \
  LM_CUDA_CUFFT(X) LM_CUDA_CUSOLVER(X)
/* clang-format on */

#define X(name)            \
  struct lm_##name##_args; \
  lm_status lm_cuda_##name(const struct lm_##name##_args *a, lm_tensor *const *out, lm_cuda_frame *f);
LM_CUDA_KERNELS(X)
#undef X
lm_status lm_cuda_recurrent_weights(const void *args, lm_tensor *const *out); /* allocates its results itself */
