/* Pooling: the windows of each axis once as tables, then rows shared among threads. The arithmetic is
 * isa/pooling.c. */
#include "backend/cpu/isa/pooling.h"

#include <omp.h>

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "device/alloc.h"

static lm_status axis_new(lm_pool_axis *axis, int64_t in, int64_t out, bool inverse) {
  int32_t *block = lm_malloc((size_t)(3 * out + (inverse ? 2 * in : 0)) * sizeof *block);
  if (!block) return LM_E_OOM;
  *axis = (lm_pool_axis){in, out, 1, block, block + out, block + 2 * out, block + 3 * out, block + 3 * out + in};
  return LM_OK;
}

static void axis_free(lm_pool_axis *axis) { lm_free(axis->begin); }

static void axis_slide(lm_pool_axis *axis, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                       bool count_padding) {
  axis->step = dilation;
  for (int64_t o = 0; o < axis->out; o++) {
    int64_t from = o * stride - padding, begin = from, end = from + (kernel - 1) * dilation + 1;
    int64_t padded = (end < axis->in + padding ? end : axis->in + padding) - from;
    if (begin < 0) begin += (-begin + dilation - 1) / dilation * dilation;
    if (end > axis->in) end = axis->in;
    axis->begin[o] = (int32_t)begin;
    axis->end[o] = (int32_t)end;
    axis->count[o] = (int32_t)(count_padding ? padded : end - begin);
  }
}

/* Every window divides by the same. */
static void set_divisor(lm_pool_job *job, int64_t divisor) {
  if (divisor == LM_NO_INT) return;
  for (int64_t o = 0; o < job->y.out; o++) job->y.count[o] = (int32_t)divisor;
  for (int64_t o = 0; o < job->x.out; o++) job->x.count[o] = 1;
}

static void axis_adapt(lm_pool_axis *axis) {
  for (int64_t o = 0; o < axis->out; o++) {
    axis->begin[o] = (int32_t)(o * axis->in / axis->out);
    axis->end[o] = (int32_t)(((o + 1) * axis->in + axis->out - 1) / axis->out);
    axis->count[o] = axis->end[o] - axis->begin[o];
  }
}

/* Which windows each place lies in; begin and end grow with o. */
static void axis_invert(lm_pool_axis *axis) {
  int64_t first = 0, last = 0;
  for (int64_t i = 0; i < axis->in; i++) {
    while (first < axis->out && axis->end[first] <= i) first++;
    while (last < axis->out && axis->begin[last] <= i) last++;
    axis->first[i] = (int32_t)first;
    axis->last[i] = (int32_t)(last > first ? last : first);
  }
}

/* Each thread takes one range of the units, and its own piece of the scratch. */
static int64_t run(lm_pool_loop loop, const lm_pool_job *job, int64_t units, int threads, char *scratch, size_t piece) {
  if (threads < 2) return loop(job, 0, units, scratch);
  int64_t found = 0;
#pragma omp parallel num_threads(threads) reduction(+ : found)
  {
    int64_t n = omp_get_num_threads(), me = omp_get_thread_num();
    found += loop(job, units * me / n, units * (me + 1) / n, scratch ? scratch + (size_t)me * piece : NULL);
  }
  return found;
}

static int share(int64_t elements) { return lm_cpu_share((double)elements * 0.25); }

/* image: [N, C, H, W]. Contiguous images are planes of one channel each. */
static void set_planes(lm_pool_job *job, const lm_tensor *image) {
  bool interleaved = lm_is_channels_last(image) && !lm_is_contiguous(image);
  job->planes = interleaved ? image->size[0] : image->size[0] * image->size[1];
  job->c = interleaved ? image->size[1] : 1;
}

/* Sizes of one can make it fit both layouts (C = 1, or H = W = 1): the larger of the two decides, and the
 * smaller fits any layout then, or has the other's. */
static void set_planes_of(lm_pool_job *job, const lm_tensor *in, const lm_tensor *out) {
  set_planes(job, lm_is_contiguous(in) ? out : in);
}

lm_status lm_cpu_max_pool2d(const void *args, lm_tensor *const *out) {
  const lm_max_pool2d_args *a = args;
  lm_status status = LM_OK;
  lm_pool_job job = {.src = a->x->data, .dst = out[0]->data, .places = (int64_t *)out[1]->data, .blocks = 1};
  set_planes_of(&job, a->x, out[0]);
  TRY(axis_new(&job.y, a->x->size[2], out[0]->size[2], false));
  TRY(axis_new(&job.x, a->x->size[3], out[0]->size[3], false));
  axis_slide(&job.y, a->kernel_size[0], a->stride[0], a->padding[0], a->dilation[0], false);
  axis_slide(&job.x, a->kernel_size[1], a->stride[1], a->padding[1], a->dilation[1], false);
  run(LM_ISA_PICK(lm_pool_loops)->max[a->x->dtype], &job, job.planes * job.y.out,
      share(out[0]->numel * a->kernel_size[0] * a->kernel_size[1]), NULL, 0);
done:
  axis_free(&job.y);
  axis_free(&job.x);
  return status;
}

lm_status lm_cpu_max_pool2d_backward(const void *args, lm_tensor *const *out) {
  const lm_max_pool2d_backward_args *a = args;
  lm_status status = LM_OK;
  lm_tensor *dx = out[0];
  lm_pool_job job = {.src = a->grad->data, .dst = dx->data, .places = (int64_t *)a->places->data, .blocks = 1};
  job.y.in = dx->size[2], job.y.out = a->grad->size[2];
  job.x.in = dx->size[3], job.x.out = a->grad->size[3];
  set_planes_of(&job, a->grad, dx);
  int threads = share(dx->numel + 4 * a->grad->numel);
  /* Few images: share their channels, in blocks of whole cache lines. */
  if (job.planes < threads && job.c >= 32) {
    job.blocks = (threads + job.planes - 1) / (job.planes ? job.planes : 1);
    if (job.blocks > job.c / 16) job.blocks = job.c / 16;
  }
  void *scratch = NULL;
  int64_t width = (job.c + job.blocks - 1) / job.blocks;
  size_t piece = 0, bytes = 0;
  if (lm_dtype_size(dx->dtype) < sizeof(float)) {
    piece = (size_t)(job.y.in * job.x.in * width) * sizeof(float);
    bytes = piece * (size_t)threads;
    TRY(lm_device_alloc(dx->device, bytes, &scratch));
  }
  int64_t bad =
      run(LM_ISA_PICK(lm_pool_loops)->max_back[dx->dtype], &job, job.planes * job.blocks, threads, scratch, piece);
  if (bad)
    status = lm_fail(LM_E_INDEX, "max_pool2d_backward: %lld of places are not between 1 and %lld (H * W)",
                     (long long)bad, (long long)(job.y.in * job.x.in));
done:
  if (scratch) lm_device_free(dx->device, scratch, bytes);
  return status;
}

lm_status lm_cpu_avg_pool2d(const void *args, lm_tensor *const *out) {
  const lm_avg_pool2d_args *a = args;
  lm_status status = LM_OK;
  lm_pool_job job = {.src = a->x->data, .dst = out[0]->data};
  set_planes_of(&job, a->x, out[0]);
  TRY(axis_new(&job.y, a->x->size[2], out[0]->size[2], false));
  TRY(axis_new(&job.x, a->x->size[3], out[0]->size[3], false));
  axis_slide(&job.y, a->kernel_size[0], a->stride[0], a->padding[0], 1, a->count_include_pad);
  axis_slide(&job.x, a->kernel_size[1], a->stride[1], a->padding[1], 1, a->count_include_pad);
  set_divisor(&job, a->divisor_override);
  run(LM_ISA_PICK(lm_pool_loops)->avg[a->x->dtype], &job, job.planes * job.y.out,
      share(out[0]->numel * a->kernel_size[0] * a->kernel_size[1]), NULL, 0);
done:
  axis_free(&job.y);
  axis_free(&job.x);
  return status;
}

lm_status lm_cpu_adaptive_avg_pool2d(const void *args, lm_tensor *const *out) {
  const lm_adaptive_avg_pool2d_args *a = args;
  lm_status status = LM_OK;
  lm_pool_job job = {.src = a->x->data, .dst = out[0]->data};
  set_planes_of(&job, a->x, out[0]);
  TRY(axis_new(&job.y, a->x->size[2], out[0]->size[2], false));
  TRY(axis_new(&job.x, a->x->size[3], out[0]->size[3], false));
  axis_adapt(&job.y);
  axis_adapt(&job.x);
  run(LM_ISA_PICK(lm_pool_loops)->avg[a->x->dtype], &job, job.planes * job.y.out, share(a->x->numel + out[0]->numel),
      NULL, 0);
done:
  axis_free(&job.y);
  axis_free(&job.x);
  return status;
}

lm_status lm_cpu_avg_pool2d_backward(const void *args, lm_tensor *const *out) {
  const lm_avg_pool2d_backward_args *a = args;
  lm_status status = LM_OK;
  lm_tensor *dx = out[0];
  lm_pool_job job = {.src = a->grad->data, .dst = dx->data};
  set_planes_of(&job, a->grad, dx);
  TRY(axis_new(&job.y, dx->size[2], a->grad->size[2], true));
  TRY(axis_new(&job.x, dx->size[3], a->grad->size[3], true));
  axis_slide(&job.y, a->kernel_size[0], a->stride[0], a->padding[0], 1, a->count_include_pad);
  axis_slide(&job.x, a->kernel_size[1], a->stride[1], a->padding[1], 1, a->count_include_pad);
  set_divisor(&job, a->divisor_override);
  axis_invert(&job.y);
  axis_invert(&job.x);
  run(LM_ISA_PICK(lm_pool_loops)->avg_back[dx->dtype], &job, job.planes * job.y.in, share(2 * dx->numel), NULL, 0);
done:
  axis_free(&job.y);
  axis_free(&job.x);
  return status;
}

lm_status lm_cpu_adaptive_avg_pool2d_backward(const void *args, lm_tensor *const *out) {
  const lm_adaptive_avg_pool2d_backward_args *a = args;
  lm_status status = LM_OK;
  lm_tensor *dx = out[0];
  lm_pool_job job = {.src = a->grad->data, .dst = dx->data};
  set_planes_of(&job, a->grad, dx);
  TRY(axis_new(&job.y, dx->size[2], a->grad->size[2], true));
  TRY(axis_new(&job.x, dx->size[3], a->grad->size[3], true));
  axis_adapt(&job.y);
  axis_adapt(&job.x);
  axis_invert(&job.y);
  axis_invert(&job.x);
  run(LM_ISA_PICK(lm_pool_loops)->avg_back[dx->dtype], &job, job.planes * job.y.in,
      share(2 * (dx->numel + a->grad->numel)), NULL, 0);
done:
  axis_free(&job.y);
  axis_free(&job.x);
  return status;
}
