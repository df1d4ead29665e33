/* Pools images: builds tables of the windows of each axis, then shares rows among threads. The arithmetic is in
 * isa/pooling.c. */
#include "backend/cpu/isa/pooling.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "base/message.h"
#include "op_args_convolution.h"

/* Returns an axis whose tables begin at *tables, which moves to their end. Without `inverse` it has no tables of
 * `in`. */
static lm_pooling_axis axis_of(int64_t in, int64_t out, bool inverse, int32_t **tables) {
  int32_t *t = *tables;
  *tables += 3 * out + (inverse ? 2 * in : 0);
  return (lm_pooling_axis){in, out, 1, t, t + out, t + 2 * out, t + 3 * out, t + 3 * out + in};
}

static void axis_slide(lm_pooling_axis *axis, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                       bool count_padding) {
  axis->step = dilation;
  for (int64_t o = 0; o < axis->out; o++) {
    int64_t from = o * stride - padding, begin = from, end = from + (kernel - 1) * dilation + 1;
    int64_t padded = (end < axis->in + padding ? end : axis->in + padding) - from;
    if (begin < 0) begin += lm_round_up(-begin, dilation);
    if (end > axis->in) end = axis->in;
    axis->begin[o] = (int32_t)begin;
    axis->end[o] = (int32_t)end;
    axis->count[o] = (int32_t)(count_padding ? padded : end - begin);
  }
}

/* Makes every window divide by `divisor`, unless that is LM_NO_INT. */
static void set_divisor(lm_pooling_work *job, int64_t divisor) {
  if (divisor == LM_NO_INT) return;
  for (int64_t o = 0; o < job->y.out; o++) job->y.count[o] = (int32_t)divisor;
  for (int64_t o = 0; o < job->x.out; o++) job->x.count[o] = 1;
}

static void axis_adapt(lm_pooling_axis *axis) {
  for (int64_t o = 0; o < axis->out; o++) {
    axis->begin[o] = (int32_t)(o * axis->in / axis->out);
    axis->end[o] = (int32_t)lm_ceil_div((o + 1) * axis->in, axis->out);
    axis->count[o] = axis->end[o] - axis->begin[o];
  }
}

/* Sets the range of windows that contain each index of the image; begin and end grow with o. */
static void axis_invert(lm_pooling_axis *axis) {
  int64_t first = 0, last = 0;
  for (int64_t i = 0; i < axis->in; i++) {
    while (first < axis->out && axis->end[first] <= i) first++;
    while (last < axis->out && axis->begin[last] <= i) last++;
    axis->first[i] = (int32_t)first;
    axis->last[i] = (int32_t)(last > first ? last : first);
  }
}

/* Estimates one thread's nanoseconds. */
static double pool_ns(int64_t elements) { return (double)elements * 0.25; }

/* Sets job's planes and channels for image [N, C, H, W]. Contiguous images are planes of one channel each. */
static void set_planes(lm_pooling_work *job, const lm_tensor *image) {
  bool interleaved = lm_is_channels_last(image) && !lm_is_contiguous(image);
  job->planes = interleaved ? image->size[0] : image->size[0] * image->size[1];
  job->c = interleaved ? image->size[1] : 1;
}

/* Sets job's planes and channels by `in`, or by `out` if `in` is contiguous: sizes of one (C = 1, or H = W = 1) can
 * make `in` fit both layouts, and `out` then decides. */
static void set_planes_of(lm_pooling_work *job, const lm_tensor *in, const lm_tensor *out) {
  set_planes(job, lm_is_contiguous(in) ? out : in);
}

/* Sliding windows, or, without a kernel, windows that share the image evenly. */
typedef struct windows {
  const int64_t *kernel, *stride, *padding, *dilation; /* down and across; dilation NULL: 1 */
  bool count_padding;
  int64_t divisor;          /* LM_NO_INT: each window's number of positions */
  const lm_tensor *relu_of; /* the image, if its ReLU is pooled */
} windows;

/* Pools the image src into dst, which has an element a window; with `backward` src has those and dst is the image. */
static lm_status pool_2d(lm_parallel_fn *loop, const lm_tensor *src, const lm_tensor *dst, int64_t *indices,
                         const windows *w, bool backward, double work) {
  lm_pooling_work job = {.src = src->data, .dst = dst->data, .indices = indices, .blocks = 1};
  if (w->relu_of) job.relu_of = w->relu_of->data;
  lm_pooling_axis *axes[2] = {&job.y, &job.x};
  const lm_tensor *in = backward ? dst : src, *out = backward ? src : dst;
  set_planes_of(&job, src, dst);
  LM_WORKSPACE(int32_t, memory, 3 * (out->size[2] + out->size[3]) + (backward ? 2 * (in->size[2] + in->size[3]) : 0));
  int32_t *tables = memory;
  for (int i = 0; i < 2; i++) {
    *axes[i] = axis_of(in->size[2 + i], out->size[2 + i], backward, &tables);
    if (w->kernel) {
      axis_slide(axes[i], w->kernel[i], w->stride[i], w->padding[i], w->dilation ? w->dilation[i] : 1,
                 w->count_padding);
    } else {
      axis_adapt(axes[i]);
    }
    if (backward) axis_invert(axes[i]);
  }
  if (w->kernel) set_divisor(&job, w->divisor);
  size_t row = 16 * (size_t)(job.x.in > job.x.out ? job.x.in : job.x.out);
  return lm_parallel(job.planes * (backward ? job.y.in : job.y.out), work, row, loop, &job);
}

lm_status lm_cpu_max_pool2d(const lm_max_pool2d_args *a, lm_tensor *const *out) {
  windows w = {a->kernel_size, a->stride, a->padding, a->dilation, false, LM_NO_INT, NULL};
  return pool_2d(LM_ISA_PICK(lm_pooling_loops)->max[a->x->dtype], a->x, out[0], out[1] ? (int64_t *)out[1]->data : NULL,
                 &w, false, pool_ns(out[0]->numel * a->kernel_size[0] * a->kernel_size[1]));
}

lm_status lm_cpu_adaptive_max_pool2d(const lm_adaptive_max_pool2d_args *a, lm_tensor *const *out) {
  return pool_2d(LM_ISA_PICK(lm_pooling_loops)->max[a->x->dtype], a->x, out[0], (int64_t *)out[1]->data, &(windows){0},
                 false, pool_ns(a->x->numel + out[0]->numel));
}

lm_status lm_cpu_max_pool2d_backward(const lm_max_pool2d_backward_args *a, lm_tensor *const *out) {
  lm_tensor *dx = out[0];
  lm_pooling_work job = {.src = a->grad->data, .dst = dx->data, .indices = (int64_t *)a->indices->data, .blocks = 1};
  job.y.in = dx->size[2], job.y.out = a->grad->size[2];
  job.x.in = dx->size[3], job.x.out = a->grad->size[3];
  set_planes_of(&job, a->grad, dx);
  double work = pool_ns(dx->numel + 4 * a->grad->numel);
  int threads = lm_threads_for(work);
  /* Few images: threads share their channels, in blocks of whole cache lines. */
  if (job.planes < threads && job.c >= 32) {
    job.blocks = (threads + job.planes - 1) / (job.planes ? job.planes : 1);
    if (job.blocks > job.c / 16) job.blocks = job.c / 16;
  }
  size_t width = (size_t)((job.c + job.blocks - 1) / job.blocks), scratch = 0;
  if (lm_dtype_size(dx->dtype) < sizeof(float)) scratch = (size_t)(job.y.in * job.x.in) * width * sizeof(float);
  NEED(lm_parallel(job.planes * job.blocks, work, scratch, LM_ISA_PICK(lm_pooling_loops)->max_back[dx->dtype], &job));
  if (!job.bad) return LM_OK;
  return lm_fail_value("max_pool2d_backward", "indices",
                       lm_text("from 1 to %lld (H * W)", (long long)(job.y.in * job.x.in)),
                       lm_text("%lld that are not", (long long)job.bad));
}

/* Computes means over the windows of w or, with {0} over windows that share the image evenly. */
static lm_status pool_means(const lm_tensor *src, const lm_tensor *dst, const windows *w, bool backward) {
  const struct lm_pooling_loops *loops = LM_ISA_PICK(lm_pooling_loops);
  const int64_t elements = !w->kernel ? (backward ? 2 : 1) * (src->numel + dst->numel)
                                      : dst->numel * (backward ? 2 : w->kernel[0] * w->kernel[1]);
  return pool_2d((backward ? loops->avg_back : loops->avg)[dst->dtype], src, dst, NULL, w, backward, pool_ns(elements));
}

lm_status lm_cpu_avg_pool2d(const lm_avg_pool2d_args *a, lm_tensor *const *out) {
  windows w = {a->kernel_size, a->stride, a->padding, NULL, a->count_include_pad, a->divisor_override, NULL};
  return pool_means(a->x, out[0], &w, false);
}

lm_status lm_cpu_avg_pool2d_backward(const lm_avg_pool2d_backward_args *a, lm_tensor *const *out) {
  windows w = {a->kernel_size, a->stride, a->padding, NULL, a->count_include_pad, a->divisor_override, NULL};
  return pool_means(a->grad, out[0], &w, true);
}

lm_status lm_cpu_relu_avg_pool2d(const lm_relu_avg_pool2d_args *a, lm_tensor *const *out) {
  windows w = {a->kernel_size, a->stride, a->padding, NULL, a->count_include_pad, a->divisor_override, a->x};
  return pool_means(a->x, out[0], &w, false);
}

lm_status lm_cpu_relu_avg_pool2d_backward(const lm_relu_avg_pool2d_backward_args *a, lm_tensor *const *out) {
  windows w = {a->kernel_size, a->stride, a->padding, NULL, a->count_include_pad, a->divisor_override, a->x};
  return pool_means(a->grad, out[0], &w, true);
}

lm_status lm_cpu_adaptive_avg_pool2d(const lm_adaptive_avg_pool2d_args *a, lm_tensor *const *out) {
  return pool_means(a->x, out[0], &(windows){0}, false);
}

lm_status lm_cpu_adaptive_avg_pool2d_backward(const lm_adaptive_avg_pool2d_backward_args *a, lm_tensor *const *out) {
  return pool_means(a->grad, out[0], &(windows){0}, true);
}
