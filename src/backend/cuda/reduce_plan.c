#include "backend/cuda/reduce_plan.h"

enum {
  WAVES = 32,      /* blocks a processor in large reductions: some waves, so that an unfilled last one is cheap */
  FEW_PACKS = 4,   /* least packs of a thread (or of a row of threads) before a result is cut into parts */
  SHORT_RUN = 1024 /* packs of a run from which a whole block takes it; shorter ones take a warp or a part of it */
};

/* Returns the stride of the last dim of side 0; 1, as if contiguous, without dims. */
static int64_t last_stride(const lm_dims *dims) { return dims->ndim > 0 ? dims->stride[0][dims->ndim - 1] : 1; }

/* Returns into how many parts to cut each result, at most `limit`, so that `blocks` results fill the device. */
static int64_t wanted_parts(int64_t blocks, int64_t limit, int processors) {
  int64_t parts = lm_ceil_div((int64_t)processors * WAVES, blocks);
  return lm_max(lm_min(lm_min(parts, limit), LM_REDUCE_MAX_PARTS), 1);
}

static void plan_rows(lm_reduce_job *job, size_t bytes, int processors) {
  const lm_dims *reduced = &job->reduced;
  int64_t results = lm_dims_numel(&job->results);
  int64_t run = reduced->ndim > 0 ? reduced->size[reduced->ndim - 1] : 1;
  int64_t runs = lm_dims_numel(reduced) / run, pack = last_stride(reduced) == 1 ? 16 / (int64_t)bytes : 1;
  int64_t packs = lm_ceil_div(run, pack);
  bool few = results * runs * 32 < (int64_t)processors * 1024;
  job->groups = 1;
  if (packs >= SHORT_RUN || (few && packs >= LM_REDUCE_BLOCK)) {
    job->lanes = LM_REDUCE_BLOCK;
  } else {
    job->lanes = lm_cuda_power(lm_ceil_div(packs, 4), 32);
    int team = runs * packs >= 512 ? LM_REDUCE_BLOCK : 32;
    job->groups = lm_cuda_power(runs, team / job->lanes);
    /* A team of threads is a block, or a part of a warp. */
    if (job->lanes * job->groups > 32) job->groups = LM_REDUCE_BLOCK / job->lanes;
  }
  int team = job->lanes * job->groups;
  int64_t blocks = lm_ceil_div(results, LM_REDUCE_BLOCK / team), parts = 1;
  if (team == LM_REDUCE_BLOCK) {
    parts = wanted_parts(blocks, runs * packs / (LM_REDUCE_BLOCK * FEW_PACKS), processors);
  }
  job->piece = run;
  job->cuts = 1;
  if (runs < parts || run > LM_REDUCE_MAX_PIECE) { /* runs are cut, and blocks take the pieces */
    job->lanes = LM_REDUCE_BLOCK;
    job->groups = 1;
    job->piece = lm_min(lm_ceil_div(packs, lm_ceil_div(parts, runs)) * pack, LM_REDUCE_MAX_PIECE);
    job->cuts = lm_ceil_div(run, job->piece);
  }
  job->each = lm_ceil_div(runs * job->cuts, parts);
  job->parts = (int)lm_ceil_div(runs * job->cuts, job->each);
}

/* Returns true if packs of neighboring columns are contiguous and aligned everywhere. */
static bool packs_columns(const lm_reduce_job *job, size_t bytes, int pack) {
  const lm_dims *kept = &job->results;
  int last = kept->ndim - 1;
  if (kept->stride[0][last] != 1 || kept->size[last] % pack != 0) return false;
  if ((uintptr_t)job->x % ((size_t)pack * bytes) != 0) return false;
  for (int d = 0; d < last; d++) {
    if (kept->stride[0][d] % pack != 0) return false;
  }
  for (int d = 0; d < job->reduced.ndim; d++) {
    if (job->reduced.stride[0][d] % pack != 0) return false;
  }
  return true;
}

static void plan_cols(lm_reduce_job *job, size_t bytes, int processors) {
  int64_t results = lm_dims_numel(&job->results), reduced = lm_dims_numel(&job->reduced);
  int pack = lm_reduce_pack(bytes);
  job->pack = packs_columns(job, bytes, pack) ? pack : 1;
  /* Each row of threads gets four elements; at least a warp of columns is side by side. */
  int64_t columns = results / job->pack;
  int lanes = lm_cuda_power(columns, LM_REDUCE_BLOCK), rows = lm_cuda_power(lm_ceil_div(reduced, 4), LM_REDUCE_BLOCK);
  while (lanes > 32 && lanes * rows > LM_REDUCE_BLOCK) lanes /= 2;
  while (lanes * rows > LM_REDUCE_BLOCK) rows /= 2;
  job->lanes = lanes;
  job->groups = rows;
  int64_t parts = wanted_parts(lm_ceil_div(columns, lanes), reduced / (rows * 4 * FEW_PACKS), processors);
  job->each = lm_ceil_div(reduced, parts);
  job->parts = (int)lm_ceil_div(reduced, job->each);
  job->cuts = 1;
}

/* Returns true if the last kept dim's elements are closer together in memory than the reduced ones: use columns. */
static bool wants_cols(const lm_reduce_job *job) {
  if (lm_dims_numel(&job->results) == 1) return false;
  if (lm_dims_numel(&job->reduced) == 1) return true;
  int64_t run = last_stride(&job->reduced);
  return run != 1 && last_stride(&job->results) < run;
}

lm_status lm_cuda_fold(lm_cuda_frame *f, lm_reduce_job *job, const lm_tensor *x, const lm_tensor *out,
                       const bool *reduced) {
  void *partial = NULL;
  size_t bytes = lm_dtype_size(x->dtype);
  bool kept[LM_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) kept[d] = !reduced[d];
  if (!job->position) {
    job->out = out->data;
    job->out_dtype = out->dtype;
  }
  job->x = x->data;
  job->x_dtype = x->dtype;
  job->results = lm_dims_of(x->ndim, x->size, kept, 2, (const int64_t *[]){x->stride, out->stride}, true);
  job->reduced = lm_dims_of(x->ndim, x->size, reduced, 1, (const int64_t *[]){x->stride}, true);
  job->count = lm_dims_numel(&job->reduced);
  int64_t results = lm_dims_numel(&job->results);
  if (results == 0) return LM_OK;
  int processors = lm_cuda_facts_of(x->device)->processors;
  job->cols = wants_cols(job);
  if (job->cols) {
    plan_cols(job, bytes, processors);
  } else {
    plan_rows(job, bytes, processors);
  }
  if (job->parts > 1) NEED(lm_cuda_take(f, (size_t)job->parts * (size_t)results * LM_REDUCE_STATE, &partial));
  if (job->position) return LAUNCH("lm_reduce_indices", lm_reduce_indices(job, partial, f->stream));
  return LAUNCH("lm_reduce_run", lm_reduce_run(job, partial, f->stream));
}
