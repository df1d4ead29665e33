/* Optimizer steps and norms of many tensors in few launches. All functions enqueue on the stream and return a
 * cudaError_t. */
#ifndef LM_KERNELS_OPTIM_H
#define LM_KERNELS_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tensors of one dtype, by value in the kernel's arguments, which have room for 4 KB. Elements are dealt out in chunks,
 * one a block: tensor i has chunks first[i] to first[i + 1] - 1 of all. */
enum {
  LM_OPTIM_TENSORS = 64,
  LM_OPTIM_CHUNK = 4096, /* elements */
  LM_NORM_TENSORS = 128,
  LM_NORMS_CHUNK = 16384,
};

typedef struct lm_optim_table {
  int n;
  uint32_t first[LM_OPTIM_TENSORS + 1];
  int64_t numel[LM_OPTIM_TENSORS];
  void *param[LM_OPTIM_TENSORS], *state0[LM_OPTIM_TENSORS], *state1[LM_OPTIM_TENSORS], *state2[LM_OPTIM_TENSORS];
  const void *grad[LM_OPTIM_TENSORS];
} lm_optim_table;

/* What optim_update.h takes, as numbers; the kernel makes its coefficients of them. */
typedef struct lm_sgd_step {
  double sign, lr, weight_decay, momentum, dampening;
  int mode; /* LM_SGD_… */
} lm_sgd_step;

typedef struct lm_adam_step {
  double sign, lr, weight_decay, beta1, beta2, eps;
  int decay; /* LM_ADAM_… */
  bool amsgrad;
  double step_size, inverse_correction2; /* lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */
  const double *corrections;             /* device memory with these two instead, or NULL */
} lm_adam_step;

int lm_optim_sgd(int dtype, const lm_optim_table *table, const lm_sgd_step *step, void *stream);
int lm_optim_adam(int dtype, const lm_optim_table *table, const lm_adam_step *step, void *stream);
/* out[2]: step_size and inverse_correction2 of step t + *replayed, which lies in device memory. */
int lm_optim_corrections(double lr, double beta1, double beta2, int64_t t, const int64_t *replayed, double *out,
                         void *stream);

typedef struct lm_norm_table {
  int n;
  uint32_t first[LM_NORM_TENSORS + 1];
  int64_t numel[LM_NORM_TENSORS];
  const void *data[LM_NORM_TENSORS];
} lm_norm_table;

/* part[k]: the sum of |x|^p (p infinity: the largest |x|) of the table's k-th chunk. */
int lm_optim_norms(int dtype, const lm_norm_table *table, double p, double *part, void *stream);
/* *out: all of parts joined. */
int lm_optim_norms_join(const double *part, int64_t n, double p, double *out, void *stream);

#ifdef __cplusplus
}
#endif

#endif
