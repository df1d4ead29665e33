/* Runs pooling: images as planes, windows as two axes. The kernels are kernels/pooling.cu. */
#include "pooling.h"

#include "backend/cuda/cuda.h"
#include "base/message.h"

/* Describes images; contiguous ones are planes of one channel each. A tensor with C = 1, or H = W = 1, fits both
 * layouts: then the layout of the larger tensor decides, and the smaller one fits it too. */
static lm_status describe_pooling(const lm_tensor *in, const lm_tensor *out, lm_pooling_job *job) {
  const lm_tensor *image = lm_is_contiguous(in) ? out : in;
  bool interleaved = lm_is_channels_last(image) && !lm_is_contiguous(image);
  *job = (lm_pooling_job){.dtype = in->dtype,
                          .planes = interleaved ? in->size[0] : in->size[0] * in->size[1],
                          .c = interleaved ? (int32_t)in->size[1] : 1,
                          .src = in->data,
                          .dst = out->data};
  for (int k = 0; k < 2; k++) {
    const lm_tensor *t = k == 0 ? in : out;
    if (t->size[2] > INT32_MAX || t->size[3] > INT32_MAX || t->size[2] * t->size[3] >= LM_POOLING_PLANE_MAX / job->c)
      return lm_fail_value(lm_op_running(), "an image", "less than 2^31 elements on CUDA", lm_shape_of(t));
  }
  return LM_OK;
}

/* Sets both axes to sliding windows. in, out: tensors with the input's and with the windows' sizes. */
static lm_status slide_lines(lm_pooling_job *job, const lm_tensor *in, const lm_tensor *out, const int64_t *kernel,
                             const int64_t *stride, const int64_t *padding, const int64_t *dilation) {
  for (int i = 0; i < 2; i++) { /* vertical, horizontal */
    int64_t step = out->size[2 + i] > 1 ? stride[i] : 1, apart = dilation ? dilation[i] : 1;
    if (in->size[2 + i] + 3 * padding[i] + step + kernel[i] * apart > INT32_MAX)
      return lm_fail_value(lm_op_running(), "windows", "less than 2^31 elements on CUDA",
                           lm_text("kernel_size %lld, dilation %lld, padding %lld", (long long)kernel[i],
                                   (long long)apart, (long long)padding[i]));
    *(i ? &job->x : &job->y) = (lm_pooling_line){.in = (int32_t)in->size[2 + i],
                                                 .out = (int32_t)out->size[2 + i],
                                                 .kernel = (int32_t)kernel[i],
                                                 .stride = (int32_t)step,
                                                 .padding = (int32_t)padding[i],
                                                 .dilation = (int32_t)apart};
  }
  return LM_OK;
}

/* Sets both axes to windows that share the input evenly. */
static void adapt_lines(lm_pooling_job *job, const lm_tensor *in, const lm_tensor *out) {
  job->y = (lm_pooling_line){.in = (int32_t)in->size[2], .out = (int32_t)out->size[2], .dilation = 1};
  job->x = (lm_pooling_line){.in = (int32_t)in->size[3], .out = (int32_t)out->size[3], .dilation = 1};
}

lm_status lm_cuda_max_pool2d(const lm_max_pool2d_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_pooling_job job;
  NEED(describe_pooling(a->x, out[0], &job));
  NEED(slide_lines(&job, a->x, out[0], a->kernel_size, a->stride, a->padding, a->dilation));
  if (out[1]) job.indices = (int64_t *)out[1]->data;
  if (out[2]) job.taps = (uint8_t *)out[2]->data;
  return LAUNCH("max", lm_pooling_max(&job, f->stream));
}

lm_status lm_cuda_adaptive_max_pool2d(const lm_adaptive_max_pool2d_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_pooling_job job;
  NEED(describe_pooling(a->x, out[0], &job));
  adapt_lines(&job, a->x, out[0]);
  job.indices = (int64_t *)out[1]->data;
  return LAUNCH("max", lm_pooling_max(&job, f->stream));
}

lm_status lm_cuda_max_pool2d_backward(const lm_max_pool2d_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *dx = out[0];
  lm_pooling_job job;
  void *sums;
  NEED(describe_pooling(a->grad, dx, &job));
  if (a->indices->dtype == LM_U8)
    job.taps = (uint8_t *)a->indices->data;
  else
    job.indices = (int64_t *)a->indices->data;
  job.bad_kind = LM_BAD_INDEX;
  NEED(lm_cuda_bad(dx->device, &job.bad));
  if (a->kernel_size[0] > 0) {
    NEED(slide_lines(&job, dx, a->grad, a->kernel_size, a->stride, a->padding, a->dilation));
    NEED(LAUNCH("max_back", lm_pooling_max_back(&job, f->stream)));
  } else {
    adapt_lines(&job, dx, a->grad);
    NEED(lm_cuda_take_sums(f, dx, &sums));
    NEED(LAUNCH("max_scatter", lm_pooling_max_scatter(&job, sums, f->stream)));
  }
  return LM_OK;
}

/* Averages sliding windows or, without a kernel, adaptive ones, or computes their gradients. */
static lm_status pool_means(const lm_tensor *src, const lm_tensor *dst, bool backward, const int64_t *kernel,
                            const int64_t *stride, const int64_t *padding, bool count_padding, int64_t divisor,
                            lm_cuda_frame *f) {
  lm_pooling_job job;
  const lm_tensor *in = backward ? dst : src, *out = backward ? src : dst;
  NEED(describe_pooling(src, dst, &job));
  if (kernel) {
    NEED(slide_lines(&job, in, out, kernel, stride, padding, NULL));
    job.count_padding = count_padding;
    if (divisor != LM_NO_INT) job.y.divisor = (int32_t)divisor, job.x.divisor = 1; /* for every window */
  } else {
    adapt_lines(&job, in, out);
  }
  return backward ? LAUNCH("avg_back", lm_pooling_avg_back(&job, f->stream))
                  : LAUNCH("avg", lm_pooling_avg(&job, f->stream));
}

lm_status lm_cuda_avg_pool2d(const lm_avg_pool2d_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return pool_means(a->x, out[0], false, a->kernel_size, a->stride, a->padding, a->count_include_pad,
                    a->divisor_override, f);
}

lm_status lm_cuda_avg_pool2d_backward(const lm_avg_pool2d_backward_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return pool_means(a->grad, out[0], true, a->kernel_size, a->stride, a->padding, a->count_include_pad,
                    a->divisor_override, f);
}

lm_status lm_cuda_adaptive_avg_pool2d(const lm_adaptive_avg_pool2d_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  return pool_means(a->x, out[0], false, NULL, NULL, NULL, false, LM_NO_INT, f);
}

lm_status lm_cuda_adaptive_avg_pool2d_backward(const lm_adaptive_avg_pool2d_backward_args *a, lm_tensor *const *out,
                                               lm_cuda_frame *f) {
  return pool_means(a->grad, out[0], true, NULL, NULL, NULL, false, LM_NO_INT, f);
}
