/* One element's update by each optimizer, as PyTorch documents them. For C and CUDA; includes nothing
 * from src/. Loops call them with constant `decay`, `mode` and `amsgrad`, so that the branches go.
 *
 * g: gradient; p: parameter; other pointers: the parameter's state. sign is -1 to maximize.
 * Everything is computed in float, in double for double parameters. */
#ifndef LM_KERNELS_OPTIM_UPDATE_H
#define LM_KERNELS_OPTIM_UPDATE_H

#include <math.h>

#ifndef LM_DEVICE_CODE
#if defined(__CUDACC__)
#define LM_DEVICE_CODE __host__ __device__ static inline
#else
#define LM_DEVICE_CODE static inline
#endif
#endif

/* What momentum does to SGD: nothing; the buffer is made from the first gradient; it is used; the
 * gradient looks ahead by it (Nesterov). FIRST with NESTEROV is both. */
enum { LM_SGD_PLAIN, LM_SGD_FIRST, LM_SGD_MOMENTUM, LM_SGD_NESTEROV, LM_SGD_NESTEROV_FIRST };
/* What weight decay does to Adam: nothing; it adds to the gradient; it shrinks the parameter (AdamW). */
enum { LM_ADAM_NO_DECAY, LM_ADAM_L2, LM_ADAM_DECOUPLED };

/* SGD:  g = sign * g + weight_decay * p;  m = momentum * m + (1 - dampening) * g, at first m = g;
 *       p = p - lr * (m, or g + momentum * m with Nesterov, or g without momentum)
 * Adam: g = sign * g + weight_decay * p, or p = p * (1 - lr * weight_decay) when decoupled;
 *       m = m + (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2;
 *       p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *       with the largest v so far in v's place for amsgrad */
#define LM_OPTIM_UPDATES(real, suffix, square_root)                                                               \
  typedef struct lm_sgd_##suffix {                                                                                \
    real sign, lr, weight_decay, momentum, fresh; /* fresh: 1 - dampening */                                      \
  } lm_sgd_##suffix;                                                                                              \
                                                                                                                  \
  LM_DEVICE_CODE void lm_sgd_update_##suffix(const lm_sgd_##suffix *c, int decay, int mode, real g, real *p,      \
                                             real *m) {                                                           \
    g *= c->sign;                                                                                                 \
    if (decay) g += c->weight_decay * *p;                                                                         \
    if (mode == LM_SGD_FIRST || mode == LM_SGD_NESTEROV_FIRST) *m = g;                                            \
    if (mode == LM_SGD_MOMENTUM || mode == LM_SGD_NESTEROV) *m = c->momentum * *m + c->fresh * g;                 \
    if (mode == LM_SGD_MOMENTUM || mode == LM_SGD_FIRST) g = *m;                                                  \
    if (mode == LM_SGD_NESTEROV || mode == LM_SGD_NESTEROV_FIRST) g += c->momentum * *m;                          \
    *p -= c->lr * g;                                                                                              \
  }                                                                                                               \
                                                                                                                  \
  typedef struct lm_adam_##suffix {                                                                               \
    real sign, weight_decay, shrink;     /* shrink: 1 - lr * weight_decay */                                      \
    real fresh1, beta2, fresh2, eps;     /* fresh: 1 - beta */                                                    \
    real step_size, inverse_correction2; /* lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */                          \
  } lm_adam_##suffix;                                                                                             \
                                                                                                                  \
  LM_DEVICE_CODE void lm_adam_update_##suffix(const lm_adam_##suffix *c, int decay, int amsgrad, real g, real *p, \
                                              real *m, real *v, real *largest) {                                  \
    g *= c->sign;                                                                                                 \
    if (decay == LM_ADAM_L2) g += c->weight_decay * *p;                                                           \
    if (decay == LM_ADAM_DECOUPLED) *p *= c->shrink;                                                              \
    *m += c->fresh1 * (g - *m);                                                                                   \
    *v = c->beta2 * *v + c->fresh2 * g * g;                                                                       \
    real second = *v;                                                                                             \
    if (amsgrad) *largest = second = *largest > second ? *largest : second; /* a NaN in v stays */                \
    *p -= c->step_size * *m / (square_root(second) * c->inverse_correction2 + c->eps);                            \
  }

LM_OPTIM_UPDATES(float, f32, sqrtf)
LM_OPTIM_UPDATES(double, f64, sqrt)
#undef LM_OPTIM_UPDATES

#endif
