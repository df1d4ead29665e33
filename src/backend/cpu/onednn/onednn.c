#include "backend/cpu/onednn/onednn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/onednn/guard.h"
#include "backend/cpu/onednn/onednn_version.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"

static dnnl_engine_t engine;
static dnnl_stream_t stream; /* has no state on a CPU: threads share it */
static dnnl_primitive_attr_t plain_attr;
static dnnl_status_t start_status;
static const struct lm_pointwise_loops *loops; /* the core's loops for float32 */

static dnnl_status_t make_attr(dnnl_primitive_attr_t *out) {
  dnnl_status_t status = dnnl_primitive_attr_create(out);
  /* We allocate scratch memory: otherwise threads could not run one primitive at the same time. */
  return status ? status : dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
}

static void start_onednn(void) {
  start_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
  if (!start_status) start_status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
  if (!start_status) start_status = make_attr(&plain_attr);
  /* Turns off oneDNN's cache, as this file keeps primitives; and version 2.6's returns a cached implementation even
   * where an iterator asks for another. */
  if (!start_status) start_status = dnnl_set_primitive_cache_capacity(0);
}

/* Starts oneDNN, once, before any other call into it. */
static lm_status begin(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_onednn);
  return lm_dnn_failed(start_status, "start");
}

/* ---- primitives that are ready to run, cached by what they compute */

enum { KEY = 20, ARGS = 4, CACHED = 256 };

typedef struct kernel {
  int64_t key[KEY];
  _Atomic int refs; /* the cache holds one */
  uint64_t used;    /* the cache's clock at the last use, under its lock */
  dnnl_primitive_t run;
  int nargs, arg[ARGS]; /* DNNL_ARG_* */
  lm_md desc[ARGS];     /* their layouts; owned by `run` and `pack`, as are the lm_md below */
  /* One argument may need a layout of oneDNN's own: `pack` converts it from `plain` before the run, or to it afterwards
   * if it is the result. */
  int packed; /* index of the argument that `pack` converts, or -1 */
  bool unpack;
  dnnl_primitive_t pack;
  lm_md plain;
  lm_md scratch, pack_scratch; /* zero size if not needed */
} kernel;

LM_MUTEX(cache_lock);
LM_MUTEX(creating); /* keeps oneDNN's own locks, which a fork does not take, out of a fork */
static struct {
  kernel *slot[CACHED];
  uint64_t clock;
} cache; /* guarded by cache_lock */

static void kernel_release(kernel *k) {
  if (!k || atomic_fetch_sub(&k->refs, 1) != 1) return;
  if (k->run) dnnl_primitive_destroy(k->run);
  if (k->pack) dnnl_primitive_destroy(k->pack);
  lm_free(k);
}

static void kernel_drop(kernel **k) { kernel_release(*k); }
/* Declares a kernel, NULL or one that the block holds until its end. */
#define LM_DNN_KERNEL __attribute__((cleanup(kernel_drop))) kernel

/* Returns a key's kernel, or NULL; *slot: the place for one, empty or the least recently used. The lock is held. */
static kernel *find_kernel(const int64_t *key, kernel ***slot) {
  *slot = NULL;
  for (int i = 0; i < CACHED; i++) {
    kernel **s = &cache.slot[i];
    if (*s && !memcmp((*s)->key, key, sizeof(*s)->key)) {
      (*s)->used = ++cache.clock;
      atomic_fetch_add(&(*s)->refs, 1);
      return *s;
    }
    if (!*slot || (**slot && (!*s || (*s)->used < (**slot)->used))) *slot = s;
  }
  return NULL;
}

static kernel *kernel_cached(const int64_t *key) {
  kernel **slot;
  LM_LOCKED(&cache_lock);
  return find_kernel(key, &slot);
}

/* Adds k to the cache. Two threads may have made the same kernel: the first one's stays. */
static void kernel_cache_put(kernel *k) {
  kernel **slot, *old = NULL;
  pthread_mutex_lock(&cache_lock);
  kernel *other = find_kernel(k->key, &slot);
  if (!other) {
    old = *slot;
    *slot = k;
    k->used = ++cache.clock;
    atomic_fetch_add(&k->refs, 1);
  }
  pthread_mutex_unlock(&cache_lock);
  kernel_release(other);
  kernel_release(old);
}

static lm_md description_of(const_dnnl_primitive_desc_t pd, dnnl_query_t what) {
  return dnnl_primitive_desc_query_md(pd, what, 0);
}

/* Makes a primitive. Descriptions are then queried from what it keeps itself: they live as long as it does. */
static lm_status primitive_new(const_dnnl_primitive_desc_t pd, dnnl_primitive_t *out,
                               const_dnnl_primitive_desc_t *kept_pd) {
  pthread_mutex_lock(&creating);
  dnnl_status_t created = dnnl_primitive_create(out, pd);
  pthread_mutex_unlock(&creating);
  DNN(created);
  return lm_dnn_failed(dnnl_primitive_get_primitive_desc(*out, kept_pd), "dnnl_primitive_get_primitive_desc");
}

/* The descriptions and arguments of a kernel's first three tensors. */
typedef struct kernel_args {
  dnnl_query_t query[3];
  int arg[3];
} kernel_args;

/* Makes the kernel that pd describes, of three arguments and maybe a bias. The caller releases it, even after a
 * failure. */
static lm_status kernel_new(const int64_t *key, const_dnnl_primitive_desc_t pd, const kernel_args *args, kernel **out) {
  const_dnnl_primitive_desc_t own;
  NEED(lm_dnn_guard_scratch());
  kernel *k = *out = lm_calloc(1, sizeof *k);
  if (!k) return LM_E_OOM;
  memcpy(k->key, key, sizeof k->key);
  k->refs = 1;
  k->packed = -1;
  NEED(primitive_new(pd, &k->run, &own));
  for (int i = 0; i < 3; i++) k->arg[i] = args->arg[i], k->desc[i] = description_of(own, args->query[i]);
  k->arg[3] = DNNL_ARG_BIAS;
  k->desc[3] = dnnl_primitive_desc_query_md(own, dnnl_query_weights_md, 1);
  k->nargs = 3;
  k->scratch = description_of(own, dnnl_query_scratchpad_md);
  return LM_OK;
}

/* Makes the conversion of argument `index`, which is plain in memory, if its description differs. */
static lm_status kernel_pack(kernel *k, int index, lm_md plain, bool unpack) {
  LM_DNN_DESC pd = NULL;
  const_dnnl_primitive_desc_t own;
  lm_md packed = k->desc[index];
  if (dnnl_memory_desc_equal(plain, packed)) return LM_OK;
  DNN(dnnl_reorder_primitive_desc_create(&pd, unpack ? packed : plain, engine, unpack ? plain : packed, engine,
                                         plain_attr));
  NEED(primitive_new(pd, &k->pack, &own));
  k->pack_scratch = description_of(own, dnnl_query_scratchpad_md);
  k->packed = index;
  k->unpack = unpack;
  k->plain = description_of(own, unpack ? dnnl_query_dst_md : dnnl_query_src_md);
  return LM_OK;
}

enum { ALIGN = 64 };
static size_t aligned_size(lm_md d) { return lm_round_up(dnnl_memory_desc_get_size(d), ALIGN); }

/* Returns true if kernel `by` packs its argument to the layout in which k needs the same one. */
static bool is_packed(const kernel *k, const kernel *by) {
  return by && k->pack && !k->unpack && by->packed == k->packed &&
         dnnl_memory_desc_equal(by->desc[by->packed], k->desc[k->packed]);
}

typedef struct argument {
  int arg; /* DNNL_ARG_* */
  lm_md desc;
  void *data;
} argument;

/* Arguments of a call, as oneDNN takes them. */
typedef struct memories {
  dnnl_exec_arg_t arg[ARGS + 1]; /* memory: NULL from the first one that was not made on */
} memories;

static void memories_drop(memories *m) {
  for (int i = 0; i <= ARGS; i++)
    if (m->arg[i].memory) dnnl_memory_destroy(m->arg[i].memory);
}

static lm_status execute(dnnl_primitive_t run, int n, const argument *arguments) {
  memories m __attribute__((cleanup(memories_drop))) = {0};
  for (int i = 0; i < n; i++) {
    m.arg[i].arg = arguments[i].arg;
    DNN(dnnl_memory_create(&m.arg[i].memory, arguments[i].desc, engine, arguments[i].data));
  }
  DNN(dnnl_primitive_execute(run, stream, n, m.arg));
  return lm_dnn_failed(dnnl_stream_wait(stream), "dnnl_stream_wait");
}

/* Converts k's argument number k->packed from `plain` to `packed`, its layout in the kernel; with k->unpack, back. */
static lm_status kernel_convert(const kernel *k, void *plain, void *packed, void *work) {
  const argument ours = {k->unpack ? DNNL_ARG_TO : DNNL_ARG_FROM, k->plain, plain};
  const argument own = {k->unpack ? DNNL_ARG_FROM : DNNL_ARG_TO, k->desc[k->packed], packed};
  return execute(k->pack, 3, (argument[]){ours, own, {DNNL_ARG_SCRATCHPAD, k->pack_scratch, work}});
}

/* Runs k. data: an address for each argument. packed: argument k->packed in the kernel's layout; NULL: converts it. */
static lm_status kernel_run(const kernel *k, void *const *data, void *packed) {
  const bool converts = k->pack && !packed;
  const size_t packed_bytes = converts ? aligned_size(k->desc[k->packed]) : 0;
  const size_t pack_bytes = converts ? aligned_size(k->pack_scratch) : 0;
  LM_WORKSPACE(char, own, packed_bytes + lm_max(aligned_size(k->scratch), pack_bytes));
  void *work = own ? own + packed_bytes : NULL;
  argument arguments[ARGS + 1];
  if (converts) packed = own;
  for (int i = 0; i < k->nargs; i++)
    arguments[i] = (argument){k->arg[i], k->desc[i], i == k->packed ? packed : data[i]};
  arguments[k->nargs] = (argument){DNNL_ARG_SCRATCHPAD, k->scratch, work};
  if (converts && !k->unpack) NEED(kernel_convert(k, data[k->packed], packed, work));
  NEED(execute(k->run, k->nargs + 1, arguments));
  return converts && k->unpack ? kernel_convert(k, data[k->packed], packed, work) : LM_OK;
}

/* ---- bfloat16 matrices */

static lm_status matrix_desc(lm_md *d, int64_t batch, int64_t rows, int64_t columns, lm_gemm_matrix m) {
  dnnl_dims_t size = {m.step ? batch : 1, rows, columns};
  dnnl_dims_t stride = {m.step ? m.step : rows * columns, m.transposed ? 1 : m.ld, m.transposed ? m.ld : 1};
  return lm_md_new(d, 3, size, dnnl_bf16, stride);
}

/* Returns true for a row or column whose elements lie apart: oneDNN 3.7 reads them as if they did not. */
static bool is_stepped_vector(lm_gemm_matrix m, int64_t rows, int64_t columns) {
  return m.ld > 1 && (m.transposed ? rows : columns) == 1;
}

/* The descriptions of a product and its attributes. */
typedef struct gemm_descs {
  lm_md md[3];
  dnnl_primitive_attr_t attr;
} gemm_descs;

static void gemm_descs_drop(gemm_descs *d) {
  if (d->attr) dnnl_primitive_attr_destroy(d->attr);
  for (int i = 0; i < 3; i++) lm_md_free(d->md[i]);
}

/* Sets *out to a kernel, or leaves it NULL if none exists. */
static lm_status make_gemm(const lm_cpu_gemm_job *job, const int64_t *key, kernel **out) {
  static const kernel_args args = {{dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                                   {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}};
  gemm_descs d __attribute__((cleanup(gemm_descs_drop))) = {0};
  LM_DNN_DESC pd = NULL;
  NEED(matrix_desc(&d.md[0], job->batch, job->m, job->k, job->a));
  NEED(matrix_desc(&d.md[1], job->batch, job->k, job->n, job->b));
  NEED(matrix_desc(&d.md[2], job->batch, job->m, job->n, (lm_gemm_matrix){.ld = job->ldc, .step = job->step_c}));
  DNN(make_attr(&d.attr));
  NEED(lm_dnn_matmul_desc(d.md, (float)job->alpha, (float)job->beta, engine, d.attr, &pd));
  if (!pd) return LM_OK;
  NEED(kernel_new(key, pd, &args, out));
  lm_log(LM_LOG_OP, "oneDNN %s: bfloat16 [%lld, %lld] times [%lld, %lld]", lm_dnn_name(pd), (long long)job->m,
         (long long)job->k, (long long)job->k, (long long)job->n);
  kernel_cache_put(*out);
  return LM_OK;
}

static lm_status gemm_bf16(const lm_cpu_gemm_job *job, bool *done_) {
  *done_ = false;
  if (job->batch > 1 && !job->a.step && !job->b.step) return LM_OK; /* oneDNN broadcasts one side only */
  if (is_stepped_vector(job->a, job->m, job->k) || is_stepped_vector(job->b, job->k, job->n) ||
      is_stepped_vector((lm_gemm_matrix){.ld = job->ldc}, job->m, job->n))
    return LM_OK;
  LM_DNN_GUARD(guard);
  LM_DNN_KERNEL *k = NULL;
  NEED(begin());
  int64_t key[KEY] = {
      100,       0,         job->batch, job->m,      job->n,      job->k,     job->a.transposed, job->b.transposed,
      job->a.ld, job->b.ld, job->ldc,   job->a.step, job->b.step, job->step_c};
  memcpy(&key[14], &job->alpha, sizeof job->alpha);
  memcpy(&key[15], &job->beta, sizeof job->beta);
  if (!(k = kernel_cached(key))) NEED(make_gemm(job, key, &k));
  if (k) NEED(kernel_run(k, (void *[]){(void *)job->a.data, (void *)job->b.data, job->c}, NULL));
  *done_ = k != NULL;
  return LM_OK;
}

/* ---- convolution */

/* Returns the padding after the last row or column, as far as the last window reaches. */
static int64_t padding_end(const lm_conv_shape *s, int i) {
  const int64_t in[2] = {s->h, s->w}, out[2] = {s->oh, s->ow}, kernel[2] = {s->kh, s->kw};
  int64_t after = (out[i] - 1) * s->stride[i] - s->padding[i] + (kernel[i] - 1) * s->dilation[i] + 1 - in[i];
  return after > 0 ? after : 0;
}

static void conv_forget(lm_conv_mds *d) {
  lm_md_free(d->x);
  lm_md_free(d->y);
  lm_md_free(d->w);
  lm_md_free(d->w_forward);
  lm_md_free(d->plain);
  lm_md_free(d->bias);
}

static lm_status conv_describe(const lm_conv_job *job, dnnl_data_type_t result, lm_conv_mds *d) {
  const lm_conv_shape *s = &job->shape;
  dnnl_data_type_t type = job->dtype == LM_BF16 ? dnnl_bf16 : dnnl_f32;
  /* The sum over a batch keeps more than bfloat16's 8 bits until it is converted. */
  dnnl_data_type_t sum_type = job->pass == LM_CONV_WEIGHT ? dnnl_f32 : type;
  const int64_t groups = s->groups, c = s->c / groups, filter = s->kh * s->kw;
  dnnl_dims_t x = {s->n, s->c, s->h, s->w}, x_stride = {s->h * s->w * s->c, 1, s->w * s->c, s->c};
  dnnl_dims_t y = {s->n, s->k, s->oh, s->ow}, y_stride = {s->oh * s->ow * s->k, 1, s->ow * s->k, s->k};
  dnnl_dims_t w = {groups, s->k / groups, c, s->kh, s->kw};
  dnnl_dims_t w_stride = {s->k / groups * c * filter, c * filter, filter, s->kw, 1};
  const int first = groups > 1 ? 0 : 1; /* one group has no dim of its own */
  NEED(lm_md_new(&d->x, 4, x, type, x_stride));
  NEED(lm_md_new(&d->y, 4, y, type, y_stride));
  NEED(lm_md_new(&d->w, 5 - first, w + first, sum_type, NULL));
  NEED(lm_md_new(&d->w_forward, 5 - first, w + first, type, NULL));
  NEED(lm_md_new(&d->plain, 5 - first, w + first, job->pass == LM_CONV_WEIGHT ? result : type, w_stride + first));
  if (job->bias) NEED(lm_md_new(&d->bias, 1, &s->k, type, (dnnl_dims_t){1}));
  for (int i = 0; i < 2; i++) {
    d->stride[i] = s->stride[i];
    d->padding[i] = s->padding[i];
    d->padding_end[i] = padding_end(s, i);
    d->dilation[i] = s->dilation[i] - 1; /* oneDNN counts the gaps */
  }
  return LM_OK;
}

/* Returns true if an older kernel beats oneDNN's first choice, its newest one, brgconv. It is up to 1.9 times faster:
 * with AVX-512 for short rows or one channel; with AVX2, for which version 3 has brgconv too, for channels that do not
 * fill a vector, and for so few pixels that the slower packing of weights for brgconv matters. A rule and not a
 * measurement, so that the same program computes the same bits every time. */
static bool prefers_jit(const lm_conv_job *job, const char *first) {
  const lm_conv_shape *s = &job->shape;
  if (job->pass != LM_CONV_FORWARD || job->dtype != LM_F32 || strncmp(first, "brg", 3) != 0) return false;
  if (strstr(first, "1x1")) return false;
  if (strstr(first, ":avx512")) return s->ow <= 4 || s->c == 1;
  return s->c / s->groups % 8 != 0 || s->n * s->oh * s->ow < 64;
}

/* Returns true for 2.6.3's 1x1 kernels for AVX2 that skip pixels, with channels that do not fill a vector: they compute
 * wrong gradients of weights, and spoil the heap. */
static bool is_faulty(const lm_conv_job *job, const char *name) {
  const lm_conv_shape *s = &job->shape;
  return strstr(name, "1x1") && (s->stride[0] > 1 || s->stride[1] > 1) && s->c / s->groups % 8 != 0;
}

/* Returns true if no kernel is sound: 2.6.3's for bfloat16 read beyond lines for gradients of weights whose taps are
 * apart, which makes garbage and infinities. */
static bool has_no_sound_one(const lm_conv_job *job) {
  const lm_conv_shape *s = &job->shape;
  return job->dtype == LM_BF16 && job->pass == LM_CONV_WEIGHT && (s->dilation[0] > 1 || s->dilation[1] > 1);
}

/* Chooses an implementation; *out is NULL if only the reference one, which takes seconds, or faulty ones exist. */
static lm_status conv_choose(const lm_conv_job *job, const lm_conv_mds *d, dnnl_primitive_desc_t *out) {
  LM_DNN_DESC first = NULL;
  *out = NULL;
  if (has_no_sound_one(job)) return LM_OK;
  NEED(lm_dnn_conv_desc(job->pass, d, "", engine, plain_attr, &first));
  if (!first || strstr(lm_dnn_name(first), "ref")) return LM_OK;
  bool faulty = is_faulty(job, lm_dnn_name(first));
  if (faulty || prefers_jit(job, lm_dnn_name(first)))
    NEED(lm_dnn_conv_desc(job->pass, d, "jit:", engine, plain_attr, out));
  if (*out || faulty) return LM_OK;
  *out = first;
  first = NULL;
  return LM_OK;
}

/* The descriptions and arguments of x, w and y, in this order, for each pass. */
static const kernel_args conv_args[] = {
    [LM_CONV_FORWARD] = {{dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                         {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}},
    [LM_CONV_INPUT] = {{dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
                       {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}},
    [LM_CONV_WEIGHT] = {{dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md},
                        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}},
};

static lm_status make_conv(const lm_conv_job *job, dnnl_data_type_t result, const int64_t *key, kernel **out) {
  lm_conv_mds d __attribute__((cleanup(conv_forget))) = {0};
  LM_DNN_DESC pd = NULL;
  LM_DNN_KERNEL *k = NULL;
  NEED(conv_describe(job, result, &d));
  NEED(conv_choose(job, &d, &pd));
  if (!pd) return LM_OK;
  NEED(kernel_new(key, pd, &conv_args[job->pass], &k));
  if (job->bias) k->nargs = 4;
  NEED(kernel_pack(k, 1, d.plain, job->pass == LM_CONV_WEIGHT));
  const lm_conv_shape *s = &job->shape;
  static const char *const pass[] = {"conv2d", "conv2d_input", "conv2d_weight"};
  lm_log(LM_LOG_OP, "oneDNN %s: %s x [%lld, %lld, %lld, %lld], weight [%lld, %lld, %lld, %lld]", lm_dnn_name(pd),
         pass[job->pass], (long long)s->n, (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->k,
         (long long)(s->c / s->groups), (long long)s->kh, (long long)s->kw);
  kernel_cache_put(k);
  *out = k;
  k = NULL;
  return LM_OK;
}

/* Sets *out to a kernel, or NULL if none exists. result: the dtype of a gradient of weights, maybe a part of a sum. */
static lm_status conv_kernel(const lm_conv_job *job, dnnl_data_type_t result, kernel **out) {
  const lm_conv_shape *s = &job->shape;
  const int64_t key[KEY] = {job->pass,     job->dtype,     result,        job->bias != NULL,
                            s->oh,         s->n,           s->c,          s->h,
                            s->w,          s->k,           s->kh,         s->kw,
                            s->groups,     s->stride[0],   s->stride[1],  s->padding[0],
                            s->padding[1], s->dilation[0], s->dilation[1]};
  NEED(begin());
  *out = kernel_cached(key);
  return *out ? LM_OK : make_conv(job, result, key, out);
}

/* Parts of a convolution: ranges of images, or, for few images, bands of rows of each. Large gradients of weights are
 * cut by the channels of y, which are copied: that moves fewer bytes than a sum for each range of images. */
typedef struct conv_parts {
  const lm_conv_job *job;
  int64_t parts, bands;    /* parts in all; bands of an image */
  bool by_channels;        /* true if parts are channels of y */
  dnnl_data_type_t result; /* dtype of weights' gradients */
  float *sums;             /* weights' gradients of each part, if there are several sums */
  const kernel *packed_by; /* kernel whose layout `packed` has: weights, once for all parts that need it */
  void *packed;
  _Atomic bool declined;
} conv_parts;

/* Runs one part on this thread. */
static lm_status conv_alone(const conv_parts *c, const lm_conv_job *job, bool *done_) {
  *done_ = false;
  LM_DNN_GUARD(guard);
  LM_DNN_KERNEL *k = NULL;
  NEED(conv_kernel(job, c->result, &k));
  if (k)
    NEED(kernel_run(k, (void *[]){job->x, job->w, job->y, (void *)job->bias},
                    is_packed(k, c->packed_by) ? c->packed : NULL));
  *done_ = k != NULL;
  return LM_OK;
}

/* Cuts part to rows first .. last - 1 of y, and the rows of x that they read. False: these are padding alone. */
static bool take_band(lm_conv_job *part, int64_t first, int64_t last) {
  lm_conv_shape *s = &part->shape;
  int64_t size = (int64_t)lm_dtype_size(part->dtype), top = first * s->stride[0] - s->padding[0];
  int64_t end = (last - 1) * s->stride[0] - s->padding[0] + (s->kh - 1) * s->dilation[0] + 1;
  int64_t from = top > 0 ? top : 0, to = end < s->h ? end : s->h;
  if (from >= to) return false;
  part->x = (char *)part->x + from * s->w * s->c * size;
  part->y = (char *)part->y + first * s->ow * s->k * size;
  s->padding[0] = from - top;
  s->h = to - from, s->oh = last - first;
  return true;
}

static int64_t filter_size(const lm_conv_shape *s) { return s->c / s->groups * s->kh * s->kw; }

/* Sets part to number `index`; its y stays that of all channels if these are cut. False: it reads padding alone. */
static bool conv_part(const conv_parts *c, int64_t index, lm_conv_job *part) {
  *part = *c->job;
  lm_conv_shape *s = &part->shape;
  if (c->by_channels) {
    int64_t k = lm_part_begin(s->k, index, c->parts);
    part->w = (char *)part->w + k * filter_size(s) * (int64_t)lm_dtype_size(part->dtype);
    s->k = lm_part_begin(s->k, index + 1, c->parts) - k;
    return true;
  }
  int64_t groups = c->parts / c->bands, size = (int64_t)lm_dtype_size(part->dtype), band = index % c->bands;
  int64_t first = lm_part_begin(c->job->shape.n, index / c->bands, groups);
  s->n = lm_part_begin(c->job->shape.n, index / c->bands + 1, groups) - first;
  part->x = (char *)part->x + first * s->h * s->w * s->c * size;
  part->y = (char *)part->y + first * s->oh * s->ow * s->k * size;
  if (c->sums) part->w = c->sums + index * s->k * filter_size(s);
  int64_t oh = s->oh;
  return c->bands == 1 || take_band(part, lm_part_begin(oh, band, c->bands), lm_part_begin(oh, band + 1, c->bands));
}

/* Runs a part of the channels, with a copy of these of y. */
static lm_status conv_channels(const conv_parts *c, int64_t index, lm_conv_job *part, bool *done_) {
  const lm_conv_shape *s = &c->job->shape;
  const size_t size = lm_dtype_size(part->dtype), from = (size_t)s->k * size, to = (size_t)part->shape.k * size;
  const size_t pixels = (size_t)(s->n * s->oh * s->ow);
  const char *y = (const char *)c->job->y + (size_t)lm_part_begin(s->k, index, c->parts) * size;
  LM_WORKSPACE(char, copy, pixels *to);
  for (size_t i = 0; i < pixels; i++) memcpy(copy + i * to, y + i * from, to);
  part->y = copy;
  return conv_alone(c, part, done_);
}

static void run_conv_parts(void *ctx, int64_t first, int64_t last) {
  conv_parts *c = ctx;
  for (int64_t index = first; index < last; index++) {
    lm_conv_job part;
    bool done_ = true;
    conv_part(c, index, &part);
    lm_parallel_note(c->by_channels ? conv_channels(c, index, &part, &done_) : conv_alone(c, &part, &done_));
    if (!done_) c->declined = true;
  }
}

static void add_weight_parts(void *ctx, int64_t first, int64_t last) {
  const conv_parts *c = ctx;
  const lm_conv_shape *s = &c->job->shape;
  int64_t n = s->k * filter_size(s);
  float *sum = c->sums;
  char *to = (char *)c->job->w + first * (int64_t)lm_dtype_size(c->job->dtype);
  for (int64_t p = 1; p < c->parts; p++)
    for (int64_t i = first; i < last; i++) sum[i] += sum[p * n + i];
  loops->store[c->job->dtype](to, 1, sum + first, (int)(last - first));
}

/* Estimates one thread's nanoseconds. */
static double conv_work(const lm_conv_shape *s) {
  return (double)(s->n * s->oh * s->ow) * (double)(s->k * (s->c / s->groups) * s->kh * s->kw) / 50;
}

/* Returns the parts of y's channels, or 0 if images are cut instead: that needs a sum of weights' gradients for each
 * part, which takes as long as reading x and y again if weights have more than 1 / FRACTION of their elements. */
static int64_t channel_parts(const lm_conv_shape *s) {
  enum { FRACTION = 32, CHANNELS = 64, FEW_CHANNELS = 32, FEW_PARTS = 4 };
  const int64_t x = s->n * s->h * s->w * s->c, y = s->n * s->oh * s->ow * s->k;
  if (s->groups > 1 || FRACTION * s->k * filter_size(s) <= x + y) return 0;
  return lm_max(s->k / CHANNELS, lm_min(s->k / FEW_CHANNELS, FEW_PARTS));
}

/* Cuts a convolution alike for any number of threads: oneDNN's choice of code, and sums of weights, may depend on it.
 * Parts of much work are for many threads. */
static void cut_conv(conv_parts *c) {
  enum { MAX_PARTS = 64, FEW_PARTS = 8, PART_WORK = 100000, MAX_SUMS = 64 << 20 }; /* parts, parts, ns, bytes */
  const lm_conv_shape *s = &c->job->shape;
  int64_t most = lm_max(FEW_PARTS, (int64_t)lm_min(MAX_PARTS, conv_work(s) / PART_WORK));
  lm_conv_job part;
  if (c->job->pass == LM_CONV_WEIGHT) {
    const int64_t bytes = s->k * filter_size(s) * (int64_t)sizeof(float);
    c->bands = 1, c->parts = channel_parts(s);
    c->by_channels = c->parts > 1;
    if (c->by_channels) return;
    most = lm_min(most, lm_max(1, MAX_SUMS / bytes));
  }
  c->bands = 1, c->parts = lm_min(s->n, most);
  /* Rows of x depend on several bands. */
  if (c->job->pass == LM_CONV_INPUT || s->n >= lm_min(most, FEW_PARTS)) return;
  c->bands = lm_min(lm_min(most, FEW_PARTS) / s->n, s->oh);
  c->parts = s->n * c->bands;
  for (int64_t band = 0; band < c->bands; band++)
    if (!conv_part(c, band, &part)) c->parts = s->n, c->bands = 1;
}

/* Finds the first part's kernel; *bytes: those of weights in the layout that it needs, or 0. */
static lm_status first_kernel(const conv_parts *c, kernel **by, size_t *bytes) {
  lm_conv_job part;
  conv_part(c, 0, &part);
  LM_DNN_GUARD(guard);
  NEED(conv_kernel(&part, c->result, by));
  if (*by && (*by)->pack && !(*by)->unpack) *bytes = aligned_size((*by)->desc[(*by)->packed]);
  return LM_OK;
}

static lm_status pack_weights(const kernel *by, void *weights, void *packed) {
  LM_WORKSPACE(char, work, aligned_size(by->pack_scratch));
  LM_DNN_GUARD(guard);
  return kernel_convert(by, weights, packed, work);
}

static lm_status onednn_conv(const lm_conv_job *job, bool *done_) {
  const lm_conv_shape *s = &job->shape;
  const int64_t weights = s->k * filter_size(s);
  conv_parts c = {.job = job, .result = job->dtype == LM_BF16 ? dnnl_bf16 : dnnl_f32};
  LM_DNN_KERNEL *by = NULL;
  size_t packed_bytes = 0;
  *done_ = false;
  cut_conv(&c);
  if (c.parts == 1) return conv_alone(&c, job, done_);
  if (job->pass != LM_CONV_WEIGHT) {
    NEED(first_kernel(&c, &by, &packed_bytes));
    if (!by) return LM_OK;
  }
  const bool has_sums = job->pass == LM_CONV_WEIGHT && !c.by_channels;
  LM_WORKSPACE(float, sums, has_sums ? c.parts *weights : 0);
  LM_WORKSPACE(char, packed, packed_bytes);
  if (has_sums) c.sums = sums, c.result = dnnl_f32;
  if (packed) {
    NEED(pack_weights(by, job->w, packed));
    c.packed = packed, c.packed_by = by;
  }
  NEED(lm_parallel(c.parts, conv_work(s), 0, run_conv_parts, &c));
  *done_ = !c.declined;
  if (sums && *done_) lm_parallel(weights, (double)(weights * c.parts), 0, add_weight_parts, &c);
  return LM_OK;
}

LM_API void lm_onednn_plugin(lm_onednn_table *table);
void lm_onednn_plugin(lm_onednn_table *table) {
  loops = table->f32;
#if defined(__x86_64__)
  table->has_bf16 = dnnl_get_effective_cpu_isa() >=
                    (__builtin_cpu_is("intel") ? dnnl_cpu_isa_avx512_core_amx : dnnl_cpu_isa_avx512_core_bf16);
#endif
  table->gemm_bf16 = gemm_bf16;
  table->conv = onednn_conv;
}
