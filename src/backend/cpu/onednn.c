#include "backend/cpu/onednn.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/dnn_guard.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/alloc.h"

#if DNNL_VERSION_MAJOR != 2
#error "onednn.c is for oneDNN 2"
#endif

static lm_status failed(dnnl_status_t status, const char *what) {
  if (status == dnnl_success) return LM_OK;
  if (status == dnnl_out_of_memory) return lm_fail(LM_E_OOM, "out of memory in oneDNN (%s)", what);
  return lm_fail(LM_E_STATE, "oneDNN's %s failed with status %d", what, (int)status);
}
#define DNN(call) TRY(failed(call, #call))

static dnnl_engine_t engine;
static dnnl_stream_t stream; /* has no state on a CPU: threads share it */
static dnnl_primitive_attr_t plain_attr;
static dnnl_status_t start_status;

static dnnl_status_t make_attr(dnnl_primitive_attr_t *out) {
  dnnl_status_t status = dnnl_primitive_attr_create(out);
  /* Scratch memory is ours to give, or threads could not run one primitive at a time each. */
  return status ? status : dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
}

static void start(void) {
  lm_dnn_guard_stack();
  start_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
  if (!start_status) start_status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
  if (!start_status) start_status = make_attr(&plain_attr);
  /* We keep primitives ourselves; and 2.6's cache gives an iterator over implementations the one it
   * holds, whichever was asked for. */
  if (!start_status) start_status = dnnl_set_primitive_cache_capacity(0);
}

/* Before any call into oneDNN on this thread, which runs its own OpenMP regions. */
static lm_status begin(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  if (omp_get_max_threads() != lm_cpu_threads()) omp_set_num_threads(lm_cpu_threads());
  return failed(start_status, "start");
}

lm_status lm_dnn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  lm_status status;
  TRY(begin());
  DNN(dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc));
done:
  return status;
}

bool lm_dnn_has_bf16(void) {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16;
#else
  return false;
#endif
}

/* ---- A primitive ready to run, kept by what it computes. */

enum { KEY = 20, ARGS = 4, KEPT = 256 };

typedef struct kernel {
  int64_t key[KEY];
  _Atomic int refs; /* one is the cache's */
  uint64_t used;    /* when last; under the cache's lock */
  dnnl_primitive_t run;
  int nargs, arg[ARGS]; /* DNNL_ARG_* */
  dnnl_memory_desc_t desc[ARGS];
  /* One argument may want a layout of oneDNN's own: `pack` converts it from `plain` before the run, or
   * to it afterwards where it is the result. */
  int packed; /* its index, or -1 */
  bool unpack;
  dnnl_primitive_t pack;
  dnnl_memory_desc_t plain;
  dnnl_memory_desc_t scratch, pack_scratch; /* of zero size where not wanted */
} kernel;

static struct {
  pthread_mutex_t lock;
  kernel *slot[KEPT];
  uint64_t clock;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void kernel_release(kernel *k) {
  if (!k || atomic_fetch_sub(&k->refs, 1) != 1) return;
  if (k->run) dnnl_primitive_destroy(k->run);
  if (k->pack) dnnl_primitive_destroy(k->pack);
  lm_free(k);
}

/* NULL if it is not there. *slot is where to put one: empty, or the least recently used. Locked. */
static kernel *find(const int64_t *key, kernel ***slot) {
  *slot = NULL;
  for (int i = 0; i < KEPT; i++) {
    kernel **s = &kept.slot[i];
    if (*s && !memcmp((*s)->key, key, sizeof(*s)->key)) {
      (*s)->used = ++kept.clock;
      atomic_fetch_add(&(*s)->refs, 1);
      return *s;
    }
    if (!*slot || (**slot && (!*s || (*s)->used < (**slot)->used))) *slot = s;
  }
  return NULL;
}

static kernel *kernel_kept(const int64_t *key) {
  kernel **slot;
  pthread_mutex_lock(&kept.lock);
  kernel *found = find(key, &slot);
  pthread_mutex_unlock(&kept.lock);
  return found;
}

/* From now on the cache holds it too. Two threads may have made the same: the first one's stays. */
static void kernel_keep(kernel *k) {
  kernel **slot, *old = NULL;
  pthread_mutex_lock(&kept.lock);
  kernel *other = find(k->key, &slot);
  if (!other) {
    old = *slot;
    *slot = k;
    k->used = ++kept.clock;
    atomic_fetch_add(&k->refs, 1);
  }
  pthread_mutex_unlock(&kept.lock);
  kernel_release(other);
  kernel_release(old);
}

static lm_status kernel_new(const int64_t *key, kernel **out) {
  kernel *k = lm_dnn_guard_room() == LM_OK ? lm_calloc(1, sizeof *k) : NULL;
  if (!k) return LM_E_OOM;
  memcpy(k->key, key, sizeof k->key);
  k->refs = 1;
  k->packed = -1;
  *out = k;
  return LM_OK;
}

static const dnnl_memory_desc_t *wanted(const_dnnl_primitive_desc_t pd, dnnl_query_t what) {
  return dnnl_primitive_desc_query_md(pd, what, 0);
}

static bool same(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b) { return dnnl_memory_desc_equal(a, b); }

/* Argument `index` is plain in memory; make the conversion if `desc` differs. */
static lm_status kernel_pack(kernel *k, int index, const dnnl_memory_desc_t *plain, bool unpack) {
  lm_status status = LM_OK;
  dnnl_primitive_desc_t pd = NULL;
  const dnnl_memory_desc_t *packed = &k->desc[index];
  if (same(plain, packed)) return LM_OK;
  DNN(dnnl_reorder_primitive_desc_create(&pd, unpack ? packed : plain, engine, unpack ? plain : packed, engine,
                                         plain_attr));
  DNN(dnnl_primitive_create(&k->pack, pd));
  k->pack_scratch = *wanted(pd, dnnl_query_scratchpad_md);
  k->packed = index;
  k->unpack = unpack;
  k->plain = *plain;
done:
  if (pd) dnnl_primitive_desc_destroy(pd);
  return status;
}

enum { ALIGN = 64 };
static size_t room(const dnnl_memory_desc_t *d) { return (dnnl_memory_desc_get_size(d) + ALIGN - 1) / ALIGN * ALIGN; }

/* data: one address for each argument. */
static lm_status kernel_run(const kernel *k, lm_device device, void *const *data) {
  lm_status status;
  dnnl_memory_t memory[ARGS] = {0}, plain = NULL, scratch = NULL, pack_scratch = NULL;
  size_t packed_bytes = k->packed >= 0 ? room(&k->desc[k->packed]) : 0;
  size_t scratch_bytes = room(&k->scratch), pack_bytes = k->pack ? room(&k->pack_scratch) : 0;
  size_t bytes = packed_bytes + (scratch_bytes > pack_bytes ? scratch_bytes : pack_bytes);
  void *own = NULL;
  if (bytes) TRY(lm_device_alloc(device, bytes, &own));
  void *work = (char *)own + packed_bytes;
  dnnl_exec_arg_t arg[ARGS + 1];
  for (int i = 0; i < k->nargs; i++) {
    DNN(dnnl_memory_create(&memory[i], &k->desc[i], engine, i == k->packed ? own : data[i]));
    arg[i] = (dnnl_exec_arg_t){k->arg[i], memory[i]};
  }
  DNN(dnnl_memory_create(&scratch, &k->scratch, engine, scratch_bytes ? work : NULL));
  arg[k->nargs] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, scratch};
  dnnl_exec_arg_t conversion[3];
  if (k->pack) {
    DNN(dnnl_memory_create(&plain, &k->plain, engine, data[k->packed]));
    DNN(dnnl_memory_create(&pack_scratch, &k->pack_scratch, engine, pack_bytes ? work : NULL));
    conversion[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, k->unpack ? memory[k->packed] : plain};
    conversion[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, k->unpack ? plain : memory[k->packed]};
    conversion[2] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, pack_scratch};
  }
  if (k->pack && !k->unpack) DNN(dnnl_primitive_execute(k->pack, stream, 3, conversion));
  DNN(dnnl_primitive_execute(k->run, stream, k->nargs + 1, arg));
  if (k->pack && k->unpack) DNN(dnnl_primitive_execute(k->pack, stream, 3, conversion));
  DNN(dnnl_stream_wait(stream));
done:
  for (int i = 0; i < k->nargs; i++)
    if (memory[i]) dnnl_memory_destroy(memory[i]);
  if (plain) dnnl_memory_destroy(plain);
  if (scratch) dnnl_memory_destroy(scratch);
  if (pack_scratch) dnnl_memory_destroy(pack_scratch);
  if (own) lm_device_free(device, own, bytes);
  return status;
}

static const char *name_of(const_dnnl_primitive_desc_t pd) {
  const char *name = "";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
  return name;
}

/* ---- bfloat16 matrices */

static lm_status matrix_desc(dnnl_memory_desc_t *d, int64_t batch, int64_t rows, int64_t columns, int64_t step,
                             int64_t ld, bool transposed) {
  lm_status status;
  dnnl_dims_t size = {step ? batch : 1, rows, columns};
  dnnl_dims_t stride = {step ? step : rows * columns, transposed ? 1 : ld, transposed ? ld : 1};
  DNN(dnnl_memory_desc_init_by_strides(d, 3, size, dnnl_bf16, stride));
done:
  return status;
}

static lm_status make_gemm(const lm_gemm *job, const int64_t *key, kernel **out) {
  lm_status status;
  kernel *k = NULL;
  dnnl_primitive_attr_t attr = NULL;
  dnnl_post_ops_t post = NULL;
  dnnl_primitive_desc_t pd = NULL;
  float alpha = (float)job->alpha;
  TRY(kernel_new(key, &k));
  k->nargs = 3;
  memcpy(k->arg, (int[]){DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, 3 * sizeof(int));
  TRY(matrix_desc(&k->desc[0], job->batch, job->m, job->k, job->step_a, job->lda, job->ta));
  TRY(matrix_desc(&k->desc[1], job->batch, job->k, job->n, job->step_b, job->ldb, job->tb));
  TRY(matrix_desc(&k->desc[2], job->batch, job->m, job->n, job->step_c, job->ldc, false));
  DNN(make_attr(&attr));
  DNN(dnnl_primitive_attr_set_output_scales(attr, 1, 0, &alpha));
  DNN(dnnl_post_ops_create(&post));
  if (job->beta != 0) DNN(dnnl_post_ops_append_sum(post, (float)job->beta));
  DNN(dnnl_primitive_attr_set_post_ops(attr, post));
  dnnl_matmul_desc_t d;
  DNN(dnnl_matmul_desc_init(&d, &k->desc[0], &k->desc[1], NULL, &k->desc[2]));
  dnnl_status_t made = dnnl_primitive_desc_create(&pd, &d, attr, engine, NULL);
  if (made == dnnl_unimplemented) goto done;
  DNN(made);
  DNN(dnnl_primitive_create(&k->run, pd));
  k->scratch = *wanted(pd, dnnl_query_scratchpad_md);
  lm_log(LM_LOG_OP, "oneDNN %s: bfloat16 [%lld, %lld] times [%lld, %lld]", name_of(pd), (long long)job->m,
         (long long)job->k, (long long)job->k, (long long)job->n);
  kernel_keep(k);
  *out = k;
  k = NULL;
done:
  if (pd) dnnl_primitive_desc_destroy(pd);
  if (post) dnnl_post_ops_destroy(post);
  if (attr) dnnl_primitive_attr_destroy(attr);
  kernel_release(k);
  return status;
}

lm_status lm_dnn_gemm_bf16(const lm_gemm *job, bool *done_) {
  lm_status status;
  kernel *k = NULL;
  *done_ = false;
  if (job->batch > 1 && !job->step_a && !job->step_b) return LM_OK; /* oneDNN broadcasts one side only */
  TRY(begin());
  int64_t key[KEY] = {100,     lm_cpu_threads(), job->batch, job->m,   job->n,      job->k,      job->ta,
                      job->tb, job->lda,         job->ldb,   job->ldc, job->step_a, job->step_b, job->step_c};
  memcpy(&key[14], &job->alpha, sizeof job->alpha);
  memcpy(&key[15], &job->beta, sizeof job->beta);
  if (!(k = kernel_kept(key))) TRY(make_gemm(job, key, &k));
  if (!k) goto done;
  TRY(kernel_run(k, job->device, (void *[]){(void *)job->a, (void *)job->b, job->c}));
  *done_ = true;
done:
  kernel_release(k);
  return status;
}

/* ---- convolution */

/* What a convolution is between: images as they are, weights as oneDNN likes them, and as we have them. */
typedef struct conv_descs {
  dnnl_memory_desc_t x, y, w, plain, bias;
  dnnl_dims_t stride, padding, dilation;
} conv_descs;

static lm_status conv_describe(const lm_conv_job *job, conv_descs *d) {
  lm_status status;
  const lm_conv_shape *s = &job->shape;
  dnnl_data_type_t type = job->dtype == LM_BF16 ? dnnl_bf16 : dnnl_f32;
  /* The sum over a batch is worth more than bfloat16's 8 bits until it is converted. */
  dnnl_data_type_t sum_type = job->pass == LM_CONV_WEIGHT ? dnnl_f32 : type;
  dnnl_dims_t x = {s->n, s->c, s->h, s->w}, y = {s->n, s->k, s->oh, s->ow};
  DNN(dnnl_memory_desc_init_by_tag(&d->x, 4, x, type, dnnl_nhwc));
  DNN(dnnl_memory_desc_init_by_tag(&d->y, 4, y, type, dnnl_nhwc));
  DNN(dnnl_memory_desc_init_by_tag(&d->bias, 1, (dnnl_dims_t){s->k}, type, dnnl_a));
  bool grouped = s->groups > 1;
  dnnl_dims_t w = {s->k, s->c, s->kh, s->kw};
  dnnl_dims_t w_grouped = {s->groups, s->k / s->groups, s->c / s->groups, s->kh, s->kw};
  int ndim = grouped ? 5 : 4;
  DNN(dnnl_memory_desc_init_by_tag(&d->w, ndim, grouped ? w_grouped : w, sum_type, dnnl_format_tag_any));
  DNN(dnnl_memory_desc_init_by_tag(&d->plain, ndim, grouped ? w_grouped : w, type, grouped ? dnnl_goihw : dnnl_oihw));
  for (int i = 0; i < 2; i++) {
    d->stride[i] = s->stride[i];
    d->padding[i] = s->padding[i];
    d->dilation[i] = s->dilation[i] - 1; /* oneDNN counts the gaps */
  }
done:
  return status;
}

static dnnl_status_t forward_desc(const lm_conv_job *job, const conv_descs *d, dnnl_convolution_desc_t *out) {
  return dnnl_dilated_convolution_forward_desc_init(out, dnnl_forward_training, dnnl_convolution_direct, &d->x, &d->w,
                                                    job->bias ? &d->bias : NULL, &d->y, d->stride, d->dilation,
                                                    d->padding, d->padding);
}

/* oneDNN's first choice is its newest kernel, brgconv, which is up to 1.8 times slower than the older
 * one behind it where rows are short or there is one channel. A rule and not a measurement, so that
 * the same program computes the same bits every time. */
static bool prefers_second(const lm_conv_job *job, const_dnnl_primitive_desc_t first) {
  return job->pass == LM_CONV_FORWARD && job->dtype == LM_F32 && (job->shape.ow <= 4 || job->shape.c == 1) &&
         !strcmp(name_of(first), "brgconv:avx512_core");
}

/* *out is NULL if there is none but the reference implementation, which takes seconds. */
static lm_status conv_choose(const lm_conv_job *job, const conv_descs *d, dnnl_primitive_desc_t *out) {
  lm_status status;
  dnnl_convolution_desc_t desc;
  dnnl_primitive_desc_t hint = NULL, first = NULL, second = NULL;
  dnnl_primitive_desc_iterator_t choices = NULL;
  *out = NULL;
  if (job->pass == LM_CONV_FORWARD) {
    DNN(forward_desc(job, d, &desc));
  } else {
    conv_descs forward = *d;
    forward.w.data_type = forward.x.data_type;
    DNN(forward_desc(job, &forward, &desc));
    dnnl_status_t made = dnnl_primitive_desc_create(&hint, &desc, plain_attr, engine, NULL);
    if (made == dnnl_unimplemented) goto done;
    DNN(made);
    if (job->pass == LM_CONV_INPUT)
      DNN(dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &d->x, &d->w, &d->y,
                                                           d->stride, d->dilation, d->padding, d->padding));
    else
      DNN(dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &d->x, &d->w, NULL, &d->y,
                                                              d->stride, d->dilation, d->padding, d->padding));
  }
  dnnl_status_t made = dnnl_primitive_desc_iterator_create(&choices, &desc, plain_attr, engine, hint);
  if (made == dnnl_unimplemented) goto done;
  DNN(made);
  first = dnnl_primitive_desc_iterator_fetch(choices);
  if (prefers_second(job, first) && dnnl_primitive_desc_iterator_next(choices) == dnnl_success)
    second = dnnl_primitive_desc_iterator_fetch(choices);
  if (second && !strncmp(name_of(second), "jit:", 4)) {
    *out = second;
    second = NULL;
  } else if (!strstr(name_of(first), "ref")) {
    *out = first;
    first = NULL;
  }
done:
  if (choices) dnnl_primitive_desc_iterator_destroy(choices);
  if (hint) dnnl_primitive_desc_destroy(hint);
  if (first) dnnl_primitive_desc_destroy(first);
  if (second) dnnl_primitive_desc_destroy(second);
  return status;
}

/* Which description and which argument each of x, w, y and the bias is, in this order, for each pass. */
static const struct conv_arg {
  dnnl_query_t query[3];
  int arg[3];
} conv_args[] = {
    [LM_CONV_FORWARD] = {{dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                         {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}},
    [LM_CONV_INPUT] = {{dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
                       {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}},
    [LM_CONV_WEIGHT] = {{dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md},
                        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}},
};

static lm_status make_conv(const lm_conv_job *job, const int64_t *key, kernel **out) {
  lm_status status;
  kernel *k = NULL;
  dnnl_primitive_desc_t pd = NULL;
  conv_descs d;
  TRY(kernel_new(key, &k));
  TRY(conv_describe(job, &d));
  TRY(conv_choose(job, &d, &pd));
  if (!pd) goto done;
  DNN(dnnl_primitive_create(&k->run, pd));
  for (int i = 0; i < 3; i++) {
    k->arg[i] = conv_args[job->pass].arg[i];
    k->desc[i] = *wanted(pd, conv_args[job->pass].query[i]);
  }
  k->arg[3] = DNNL_ARG_BIAS;
  k->desc[3] = d.bias;
  k->nargs = job->bias ? 4 : 3;
  k->scratch = *wanted(pd, dnnl_query_scratchpad_md);
  TRY(kernel_pack(k, 1, &d.plain, job->pass == LM_CONV_WEIGHT));
  const lm_conv_shape *s = &job->shape;
  static const char *const pass[] = {"conv2d", "conv2d_input", "conv2d_weight"};
  lm_log(LM_LOG_OP, "oneDNN %s: %s x [%lld, %lld, %lld, %lld], weight [%lld, %lld, %lld, %lld]", name_of(pd),
         pass[job->pass], (long long)s->n, (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->k,
         (long long)(s->c / s->groups), (long long)s->kh, (long long)s->kw);
  kernel_keep(k);
  *out = k;
  k = NULL;
done:
  if (pd) dnnl_primitive_desc_destroy(pd);
  kernel_release(k);
  return status;
}

lm_status lm_dnn_conv(const lm_conv_job *job, bool *done_) {
  lm_status status;
  kernel *k = NULL;
  const lm_conv_shape *s = &job->shape;
  *done_ = false;
  TRY(begin());
  const int64_t key[KEY] = {job->pass,
                            job->dtype,
                            lm_cpu_threads(),
                            job->bias != NULL,
                            s->n,
                            s->c,
                            s->h,
                            s->w,
                            s->k,
                            s->kh,
                            s->kw,
                            s->groups,
                            s->stride[0],
                            s->stride[1],
                            s->padding[0],
                            s->padding[1],
                            s->dilation[0],
                            s->dilation[1]};
  if (!(k = kernel_kept(key))) TRY(make_conv(job, key, &k));
  if (!k) goto done;
  TRY(kernel_run(k, job->device, (void *[]){job->x, job->w, job->y, (void *)job->bias}));
  *done_ = true;
done:
  kernel_release(k);
  return status;
}
