/* Resizes images by two passes of weighted sums, first along x, then along y.
 *
 * Weights are those of ATen's upsampling (UpSampleKernel.cpp), which are Pillow's: with antialiasing the filter is
 * stretched by a scale above 1. For uint8 they are int16 numbers over a power of two, and the first pass rounds its
 * result. Sums run over rows, so the pass along x transposes strips of rows. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mem.h"
#include "base/message.h"
#include "image/transform_job.h"

enum { HEIGHT, WIDTH, MODE, ANTIALIAS, TOP, LEFT, FROM_HEIGHT, FROM_WIDTH };

lm_status lm_plan_resize(lm_image_job *job) {
  int64_t mode, antialias, top, left;
  lm_status status = LM_OK;
  NEED(lm_image_integer(job, HEIGHT, "height", 1, LM_MAX_SIDE, &job->y.h));
  NEED(lm_image_integer(job, WIDTH, "width", 1, LM_MAX_SIDE, &job->y.w));
  NEED(lm_image_integer(job, MODE, "interpolation", LM_RESIZE_NEAREST, LM_RESIZE_BICUBIC, &mode));
  NEED(lm_image_integer(job, ANTIALIAS, "antialias", 0, 1, &antialias));
  NEED(lm_image_integer(job, TOP, "top", 0, job->x.h - 1, &top));
  NEED(lm_image_integer(job, LEFT, "left", 0, job->x.w - 1, &left));
  const double *v = job->v;
  if (!(v[FROM_HEIGHT] > 0 && v[FROM_HEIGHT] <= (double)(job->x.h - top)) ||
      !(v[FROM_WIDTH] > 0 && v[FROM_WIDTH] <= (double)(job->x.w - left))) {
    status = lm_fail_value(
        "resize", "crop", lm_text("within the image of %lld x %lld", (long long)job->x.h, (long long)job->x.w),
        lm_text("{%lld, %lld, %g, %g}", (long long)top, (long long)left, v[FROM_HEIGHT], v[FROM_WIDTH]));
  }
  return status;
}

/* ---- weights */

static double triangle_filter(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }

/* Returns the cubic convolution kernel (Keys, "Cubic convolution interpolation for digital image processing", 1981). */
static double cubic_filter(double x, double a) {
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static lm_status taps_alloc(lm_taps *t, int64_t out, int64_t most, size_t bytes) {
  size_t ints = 2 * (size_t)out * sizeof *t->first;
  *t = (lm_taps){.out = out, .most = most};
  t->first = lm_malloc(ints + (size_t)out * (size_t)most * bytes);
  if (!t->first) return LM_E_OOM;
  t->count = t->first + out;
  t->weight = (char *)t->first + ints;
  return LM_OK;
}

/* Computes the weights in double into w, `most` for each output. */
static void weights_antialias(lm_taps *t, double *w, int64_t in, double scale, bool bicubic) {
  double stretch = scale > 1 ? scale : 1, support = (bicubic ? 2 : 1) * stretch;
  for (int64_t o = 0; o < t->out; o++) {
    double center = scale * ((double)o + 0.5), total = 0, *own = w + o * t->most;
    int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
    if (first < 0) first = 0;
    if (first > in - 1) first = in - 1;
    if (end > in) end = in;
    if (end - first > t->most) end = first + t->most;
    if (end <= first) end = first + 1;
    t->first[o] = first, t->count[o] = end - first;
    for (int64_t k = 0; k < end - first; k++) {
      double x = ((double)(first + k) - center + 0.5) / stretch;
      own[k] = bicubic ? cubic_filter(x, -0.5) : triangle_filter(x);
      total += own[k];
    }
    for (int64_t k = 0; k < end - first && total != 0; k++) own[k] /= total;
  }
}

/* Uses two or four neighbors at any scale; those beyond the border are the border's pixels. */
static void weights_plain(lm_taps *t, double *w, int64_t in, double scale, bool bicubic) {
  for (int64_t o = 0; o < t->out; o++) {
    double at = scale * ((double)o + 0.5) - 0.5, *own = w + o * t->most;
    if (!bicubic && at < 0) at = 0;
    int64_t floor_at = (int64_t)floor(at), first = floor_at - (bicubic ? 1 : 0), end = first + t->most;
    double part = at - (double)floor_at;
    int64_t low = first < 0 ? 0 : first > in - 1 ? in - 1 : first, high = end > in ? in : end;
    t->first[o] = low, t->count[o] = high - low > 0 ? high - low : 1;
    for (int64_t k = 0; k < t->most; k++) own[k] = 0;
    for (int64_t k = 0; k < t->most; k++) {
      int64_t i = first + k;
      i = i < 0 ? 0 : i > in - 1 ? in - 1 : i;
      own[i - low] += bicubic ? cubic_filter(part + 1 - (double)k, -0.75) : k == 0 ? 1 - part : part;
    }
  }
}

/* Makes the weights that resize `extent` pixels, of which the last may count in part, to `out`. */
static lm_status taps_make(lm_taps *t, double extent, int64_t out, lm_dtype dtype, bool bicubic, bool antialias) {
  int64_t in = (int64_t)ceil(extent);
  double scale = extent / (double)out, largest = 0;
  int64_t most = bicubic ? 4 : 2;
  LM_FREED double *w = NULL;
  if (antialias) most = 2 * (int64_t)ceil((bicubic ? 2 : 1) * (scale > 1 ? scale : 1)) + 1;
  NEED(taps_alloc(t, out, most, dtype == LM_U8 ? sizeof(int16_t) : lm_dtype_size(dtype)));
  w = lm_malloc((size_t)out * (size_t)most * sizeof *w);
  if (!w) return LM_E_OOM;
  if (antialias) {
    weights_antialias(t, w, in, scale, bicubic);
  } else {
    weights_plain(t, w, in, scale, bicubic);
  }
  for (int64_t o = 0; o < out; o++)
    for (int64_t k = 0; k < t->count[o]; k++) largest = fmax(largest, w[o * most + k]);
  for (t->bits = 0; t->bits < 22; t->bits++) {
    if ((int)(0.5 + largest * (1 << (t->bits + 1))) >= 1 << 15) break;
  }
  for (int64_t o = 0; o < out; o++) {
    for (int64_t i = o * most; i < o * most + t->count[o]; i++) {
      if (dtype == LM_U8) {
        ((int16_t *)t->weight)[i] = (int16_t)((w[i] < 0 ? -0.5 : 0.5) + w[i] * (1 << t->bits));
      } else if (dtype == LM_F32) {
        ((float *)t->weight)[i] = (float)w[i];
      } else {
        ((double *)t->weight)[i] = w[i];
      }
    }
  }
  return LM_OK;
}

/* ---- the passes */

typedef struct resizing {
  const lm_image_job *job;
  const lm_pixel_loops *loops;
  lm_planes from; /* the part to resize */
  lm_taps across, down;
  bool along_x, along_y;
  int64_t bytes, strip;            /* bytes of an element; rows transposed at a time, a vector's worth */
  size_t middle, columns, results; /* bytes of scratch per task */
  int64_t bands, tall;             /* bands of a plane; rows of a band */
  const int64_t *column;           /* nearest input column of each output */
  bool exact;
} resizing;

static void rows_along_x(const resizing *r, const char *src, int64_t rows, char *dst, int64_t dst_row, char *scratch) {
  char *columns = scratch, *results = scratch + r->columns;
  int64_t w = r->from.w, out = r->across.out, sstep = r->from.row / r->bytes;
  for (int64_t y = 0; y < rows; y += r->strip) {
    int64_t part = rows - y < r->strip ? rows - y : r->strip;
    r->loops->transpose(columns, r->strip, src + y * r->from.row, sstep, part, w);
    r->loops->weigh(results, r->strip, columns, r->strip, 0, r->strip, &r->across, 0, out);
    r->loops->transpose(dst + y * dst_row, dst_row / r->bytes, results, r->strip, out, part);
  }
}

static void resize_rows(const resizing *r, int64_t image, int64_t channel, int64_t low, int64_t high, char *scratch) {
  const lm_planes *y = &r->job->y;
  char *dst = lm_row_of(y, image, channel, low);
  if (!r->along_y) {
    rows_along_x(r, lm_row_of(&r->from, image, channel, low), high - low, dst, y->row, scratch);
    return;
  }
  const lm_taps *t = &r->down;
  int64_t first = t->first[low], end = t->first[high - 1] + t->count[high - 1], step = r->from.row;
  const char *src = lm_row_of(&r->from, image, channel, first);
  if (r->along_x) {
    char *middle = scratch + r->columns + r->results;
    step = y->w * r->bytes;
    rows_along_x(r, src, end - first, middle, step, scratch);
    src = middle;
  }
  r->loops->weigh(dst, y->row / r->bytes, src, step / r->bytes, first, y->w, t, low, high);
}

static void resize_tasks(void *ctx, int64_t first, int64_t last) {
  const resizing *r = ctx;
  int64_t height = r->job->y.h, c = r->from.c;
  char *own = lm_scratch();
  if (own) memset(own, 0, r->columns); /* a partial strip also computes its unused rows */
  for (int64_t task = first; task < last; task++) {
    int64_t plane = task / r->bands, low = task % r->bands * r->tall;
    int64_t high = low + r->tall < height ? low + r->tall : height;
    if (low < high) resize_rows(r, plane / c, plane % c, low, high, own);
  }
}

static lm_status resize_weighted(resizing *r, bool bicubic, bool antialias) {
  const lm_planes *y = &r->job->y, *x = &r->from;
  lm_dtype dtype = x->dtype;
  lm_status status = LM_OK;
  r->along_x = r->job->v[FROM_WIDTH] != (double)y->w, r->along_y = r->job->v[FROM_HEIGHT] != (double)y->h;
  if (r->along_x) TRY(taps_make(&r->across, r->job->v[FROM_WIDTH], y->w, dtype, bicubic, antialias));
  if (r->along_y) TRY(taps_make(&r->down, r->job->v[FROM_HEIGHT], y->h, dtype, bicubic, antialias));
  /* Each plane is a task, or several bands of rows where there are few planes. */
  double values = (double)(x->n * x->c) * ((double)x->h * (double)y->w + (double)y->h * (double)y->w);
  double work = values * 0.3 * (double)r->bytes;
  int threads = lm_threads_for(work);
  int64_t planes = x->n * x->c, bands = planes >= 4 * threads ? 1 : threads, tall = lm_ceil_div(y->h, bands);
  r->bands = bands, r->tall = tall;
  int64_t most = 0; /* maximum number of input rows for a band */
  for (int64_t low = 0; low < y->h; low += tall) {
    int64_t last = (low + tall < y->h ? low + tall : y->h) - 1;
    int64_t rows = r->along_y ? r->down.first[last] + r->down.count[last] - r->down.first[low] : last + 1 - low;
    most = rows > most ? rows : most;
  }
  if (r->along_x) {
    size_t lanes = (size_t)r->strip * (size_t)r->bytes;
    r->columns = lanes * (size_t)x->w, r->results = lanes * (size_t)y->w;
    if (r->along_y) r->middle = (size_t)most * (size_t)y->w * (size_t)r->bytes;
  }
  TRY(lm_parallel(planes * bands, work, r->columns + r->results + r->middle, resize_tasks, r));
done:
  lm_free(r->across.first);
  lm_free(r->down.first);
  return status;
}

/* Returns the nearest input index, computed in float as ATen does, so that it is the same pixel. */
static int64_t nearest_to(int64_t o, int64_t in, int64_t out, bool exact) {
  float scale = (float)in / (float)out;
  int64_t i = (int64_t)(exact ? floorf(((float)o + 0.5f) * scale) : floorf((float)o * scale));
  return i < in - 1 ? i : in - 1;
}

static void take_rows(void *ctx, int64_t first, int64_t last) {
  const resizing *r = ctx;
  const lm_planes *y = &r->job->y, *x = &r->from;
  for (int64_t row = first; row < last; row++) {
    int64_t plane = row / y->h, h = row % y->h;
    const char *src = lm_row_of(x, plane / y->c, plane % y->c, nearest_to(h, x->h, y->h, r->exact));
    char *dst = lm_row_of(y, plane / y->c, plane % y->c, h);
#define GATHER(type) \
  for (int64_t i = 0; i < y->w; i++) ((type *)dst)[i] = ((const type *)src)[r->column[i]]
    if (x->w == y->w) {
      memcpy(dst, src, (size_t)(y->w * r->bytes));
    } else if (r->bytes == 1) {
      GATHER(uint8_t);
    } else if (r->bytes == 4) {
      GATHER(uint32_t);
    } else {
      GATHER(uint64_t);
    }
#undef GATHER
  }
}

static lm_status resize_nearest(resizing *r, bool exact) {
  const lm_planes *y = &r->job->y;
  LM_FREED int64_t *column = lm_malloc((size_t)y->w * sizeof *column);
  int64_t rows = y->n * y->c * y->h;
  if (!column) return LM_E_OOM;
  for (int64_t i = 0; i < y->w; i++) column[i] = nearest_to(i, r->from.w, y->w, exact);
  r->column = column, r->exact = exact;
  return lm_parallel(rows, (double)rows * (double)y->w * 0.5, 0, take_rows, r);
}

lm_status lm_run_resize(const lm_image_job *job) {
  const double *v = job->v;
  resizing r = {.job = job,
                .loops = LM_PIXEL_LOOPS(job->x.dtype),
                .from = job->x,
                .bytes = (int64_t)lm_dtype_size(job->x.dtype),
                .strip = job->x.dtype == LM_F64 ? 16 : 32};
  r.from.data = lm_row_of(&job->x, 0, 0, (int64_t)v[TOP]) + (int64_t)v[LEFT] * r.bytes;
  r.from.h = (int64_t)ceil(v[FROM_HEIGHT]), r.from.w = (int64_t)ceil(v[FROM_WIDTH]);
  bool same = v[FROM_HEIGHT] == (double)job->y.h && v[FROM_WIDTH] == (double)job->y.w;
  if (same || v[MODE] <= LM_RESIZE_NEAREST_EXACT) return resize_nearest(&r, v[MODE] == LM_RESIZE_NEAREST_EXACT);
  return resize_weighted(&r, v[MODE] == LM_RESIZE_BICUBIC, v[ANTIALIAS] != 0);
}
