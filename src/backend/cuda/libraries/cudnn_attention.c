#include "backend/cuda/libraries/cudnn_attention.h"

#include <math.h>

typedef cudnnBackendDescriptor_t descriptor;
typedef const lm_cudnn_attention_key key_of_plan;

/* Names of a graph's numbers in its variant pack; ID_INSIDE and above name tensors within the graph. */
enum { ID_SCALE = LM_CUDNN_ALL, ID_HIDDEN, ID_LEFT, ID_KEPT, ID_INSIDE };
static const cudnnDataType_t REAL = CUDNN_DATA_FLOAT;

typedef struct builder {
  key_of_plan *key;
  lm_cudnn_graph *graph;
  int64_t next; /* next name of a tensor within the graph */
} builder;

/* ---- tensors */

lm_cudnn_attention_size lm_cudnn_attention_size_of(key_of_plan *key, int side) {
  bool keys = side == LM_CUDNN_KEY || side == LM_CUDNN_VALUE || side == LM_CUDNN_DKEY || side == LM_CUDNN_DVALUE;
  bool values = side == LM_CUDNN_VALUE || side == LM_CUDNN_OUT || side == LM_CUDNN_GRAD || side == LM_CUDNN_DVALUE;
  return (lm_cudnn_attention_size){keys ? key->key_heads : key->heads, keys ? key->keys : key->queries,
                                   values ? key->value_width : key->width};
}

/* Returns the descriptor of a side in memory, or of a tensor of the graph with the same layout; transposed: [samples,
 * heads, width, rows]. */
static descriptor side_as(builder *b, int side, lm_cudnn_kind kind, int64_t id, bool transposed) {
  key_of_plan *key = b->key;
  lm_cudnn_attention_size of = lm_cudnn_attention_size_of(key, side);
  int64_t row = key->stride[side][2];
  int64_t size[4] = {key->samples, of.heads, transposed ? of.width : of.rows, transposed ? of.rows : of.width};
  int64_t stride[4] = {key->stride[side][0], key->stride[side][1], transposed ? 1 : row, transposed ? row : 1};
  return lm_cudnn_tensor(b->graph, kind, id, lm_cudnn_type(key->dtype), size, stride);
}
static descriptor add_side(builder *b, int which) { return side_as(b, which, LM_CUDNN_MEMORY, which, false); }

static descriptor dense(builder *b, lm_cudnn_kind kind, int64_t id, cudnnDataType_t type, int64_t heads, int64_t rows,
                        int64_t columns) {
  int64_t size[4] = {b->key->samples, heads, rows, columns};
  int64_t stride[4] = {heads * rows * columns, rows * columns, columns, 1};
  return lm_cudnn_tensor(b->graph, kind, id, type, size, stride);
}
static descriptor inside(builder *b, cudnnDataType_t type, int64_t heads, int64_t rows, int64_t columns) {
  return dense(b, LM_CUDNN_INSIDE, b->next++, type, heads, rows, columns);
}
static descriptor scores(builder *b, cudnnDataType_t type) {
  return inside(b, type, b->key->heads, b->key->queries, b->key->keys);
}
/* Returns a tensor of one number for each query. */
static descriptor stats(builder *b) { return inside(b, REAL, b->key->heads, b->key->queries, 1); }
static descriptor stats_in_memory(builder *b, int64_t id) {
  return dense(b, LM_CUDNN_MEMORY, id, REAL, b->key->heads, b->key->queries, 1);
}
static descriptor number(builder *b, int64_t id) {
  const int64_t one[4] = {1, 1, 1, 1};
  return lm_cudnn_tensor(b->graph, LM_CUDNN_NUMBER, id, REAL, one, one);
}

/* ---- operations; each returns its result */

static descriptor pointwise(builder *b, cudnnPointwiseMode_t mode, descriptor x, descriptor y, descriptor result) {
  lm_cudnn_pointwise(b->graph, mode, REAL, -1, x, y, NULL, result);
  return result;
}

static descriptor product(builder *b, descriptor x, descriptor y, descriptor result) {
  descriptor how = lm_cudnn_new(b->graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  lm_cudnn_set(b->graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &REAL);
  lm_cudnn_finish(b->graph, how);
  descriptor op = lm_cudnn_new(b->graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  lm_cudnn_finish_op(b->graph, op);
  return result;
}

/* Reduces x along the dims in which the result has size 1, or fewer heads. */
static descriptor reduction(builder *b, cudnnReduceTensorOp_t mode, descriptor x, descriptor result) {
  descriptor how = lm_cudnn_new(b->graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  lm_cudnn_set(b->graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  lm_cudnn_set(b->graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &REAL);
  lm_cudnn_finish(b->graph, how);
  descriptor op = lm_cudnn_new(b->graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  lm_cudnn_finish_op(b->graph, op);
  return result;
}

static descriptor reshaped(builder *b, descriptor x, descriptor result) {
  descriptor op = lm_cudnn_new(b->graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
  lm_cudnn_finish_op(b->graph, op);
  return result;
}

/* Returns x with -inf where the key comes after the query, if the mask is causal. */
static descriptor mask_later_keys(builder *b, descriptor x) {
  if (!b->key->causal) return x;
  descriptor row = scores(b, CUDNN_DATA_INT32), column = scores(b, CUDNN_DATA_INT32);
  descriptor seen = scores(b, CUDNN_DATA_BOOLEAN), result = scores(b, REAL);
  lm_cudnn_pointwise(b->graph, CUDNN_POINTWISE_GEN_INDEX, REAL, 2, x, NULL, NULL, row);
  lm_cudnn_pointwise(b->graph, CUDNN_POINTWISE_GEN_INDEX, REAL, 3, x, NULL, NULL, column);
  lm_cudnn_pointwise(b->graph, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, seen);
  lm_cudnn_pointwise(b->graph, CUDNN_POINTWISE_BINARY_SELECT, REAL, -1, x, number(b, ID_HIDDEN), seen, result);
  return result;
}

/* Returns the scores plus the bias, if there is one. */
static descriptor biased(builder *b, descriptor x) {
  key_of_plan *key = b->key;
  const int64_t size[4] = {key->samples, key->heads, key->queries, key->keys};
  int64_t own[4], stride[4], dense_stride = 1;
  if (key->bias[3] == 0) return x;
  for (int d = 3; d >= 0; d--) {
    own[d] = key->bias[d] > 0 ? size[d] : 1;
    stride[d] = key->bias[d] > 0 ? key->bias[d] : dense_stride;
    dense_stride = stride[d] * own[d];
  }
  descriptor bias = lm_cudnn_tensor(b->graph, LM_CUDNN_MEMORY, LM_CUDNN_BIAS, lm_cudnn_type(key->dtype), own, stride);
  return pointwise(b, CUDNN_POINTWISE_ADD, x, bias, scores(b, REAL));
}

/* ---- dropout */

/* Returns 1 where a weight is kept and 0 elsewhere, or NULL: the same in each graph from the same seed and offset. */
static descriptor build_keep_mask(builder *b) {
  const cudnnRngDistribution_t distribution = CUDNN_RNG_DISTRIBUTION_BERNOULLI;
  const double stays = 1 - b->key->dropout_p;
  const int64_t one[4] = {1, 1, 1, 1};
  if (b->key->dropout_p == 0) return NULL;
  descriptor how = lm_cudnn_new(b->graph, CUDNN_BACKEND_RNG_DESCRIPTOR);
  lm_cudnn_set(b->graph, how, CUDNN_ATTR_RNG_DISTRIBUTION, CUDNN_TYPE_RNG_DISTRIBUTION, 1, &distribution);
  lm_cudnn_set(b->graph, how, CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, CUDNN_TYPE_DOUBLE, 1, &stays);
  lm_cudnn_finish(b->graph, how);
  descriptor seed = lm_cudnn_tensor(b->graph, LM_CUDNN_WORD, LM_CUDNN_SEED, CUDNN_DATA_INT64, one, one);
  descriptor offset = lm_cudnn_tensor(b->graph, LM_CUDNN_WORD, LM_CUDNN_OFFSET, CUDNN_DATA_INT64, one, one);
  descriptor result = scores(b, REAL), op = lm_cudnn_new(b->graph, CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_RNG_YDESC, result);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_RNG_SEED, seed);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC, offset);
  lm_cudnn_set_part(b->graph, op, CUDNN_ATTR_OPERATION_RNG_DESC, how);
  lm_cudnn_finish_op(b->graph, op);
  return result;
}

/* Returns x times the mask, if there is one. */
static descriptor masked(builder *b, descriptor x, descriptor drawn) {
  return drawn ? pointwise(b, CUDNN_POINTWISE_MUL, x, drawn, scores(b, REAL)) : x;
}

/* Returns x times 1 / (1 - p), in `type`. */
static descriptor scaled(builder *b, descriptor x, cudnnDataType_t type) {
  if (b->key->dropout_p == 0) return x;
  return pointwise(b, CUDNN_POINTWISE_MUL, x, number(b, ID_KEPT), scores(b, type));
}

/* ---- the graphs. cuDNN accepts only operations in this order. */

static void build_forward(builder *b) {
  cudnnDataType_t type = lm_cudnn_type(b->key->dtype);
  descriptor query = add_side(b, LM_CUDNN_QUERY), value = add_side(b, LM_CUDNN_VALUE), out = add_side(b, LM_CUDNN_OUT);
  descriptor key = side_as(b, LM_CUDNN_KEY, LM_CUDNN_MEMORY, LM_CUDNN_KEY, true);
  descriptor score = product(b, query, key, scores(b, REAL));
  score = pointwise(b, CUDNN_POINTWISE_MUL, score, number(b, ID_SCALE), scores(b, REAL));
  score = mask_later_keys(b, biased(b, score));
  descriptor most = reduction(b, CUDNN_REDUCE_TENSOR_MAX, score, stats(b));
  descriptor less = pointwise(b, CUDNN_POINTWISE_SUB, score, most, scores(b, REAL));
  descriptor power = pointwise(b, CUDNN_POINTWISE_EXP, less, NULL, scores(b, REAL));
  descriptor sum = reduction(b, CUDNN_REDUCE_TENSOR_ADD, power, stats(b));
  descriptor log = pointwise(b, CUDNN_POINTWISE_LOG, sum, NULL, stats(b));
  pointwise(b, CUDNN_POINTWISE_ADD, most, log, stats_in_memory(b, LM_CUDNN_LOG_SUM));
  bool drops = b->key->dropout_p > 0;
  descriptor weight = pointwise(b, CUDNN_POINTWISE_DIV, power, sum, scores(b, drops ? REAL : type));
  if (drops) weight = scaled(b, masked(b, weight, build_keep_mask(b)), type);
  product(b, weight, value, out);
}

/* Returns weights or their gradients with keys as rows. */
static descriptor transposed(builder *b, descriptor x) {
  key_of_plan *key = b->key;
  int64_t area = key->queries * key->keys, size[4] = {key->samples, key->heads, key->keys, key->queries};
  int64_t stride[4] = {key->heads * area, area, 1, key->keys};
  return reshaped(b, x, lm_cudnn_tensor(b->graph, LM_CUDNN_INSIDE, b->next++, lm_cudnn_type(key->dtype), size, stride));
}

/* Writes x times y to a side of keys, summing heads of queries that share a head of keys. */
static void product_of_heads(builder *b, descriptor x, descriptor y, int which) {
  key_of_plan *key = b->key;
  descriptor result = add_side(b, which);
  if (key->heads == key->key_heads) {
    product(b, x, y, result);
  } else {
    descriptor each =
        inside(b, lm_cudnn_type(key->dtype), key->heads, key->keys, lm_cudnn_attention_size_of(key, which).width);
    reduction(b, CUDNN_REDUCE_TENSOR_ADD, product(b, x, y, each), result);
  }
}

static void backward(builder *b) {
  key_of_plan *key = b->key;
  cudnnDataType_t type = lm_cudnn_type(key->dtype);
  descriptor query = add_side(b, LM_CUDNN_QUERY), grad = add_side(b, LM_CUDNN_GRAD), out = add_side(b, LM_CUDNN_OUT);
  descriptor keys = side_as(b, LM_CUDNN_KEY, LM_CUDNN_MEMORY, LM_CUDNN_KEY, true);
  descriptor values = side_as(b, LM_CUDNN_VALUE, LM_CUDNN_MEMORY, LM_CUDNN_VALUE, true);
  descriptor drawn = build_keep_mask(b);
  descriptor both =
      pointwise(b, CUDNN_POINTWISE_MUL, grad, out, inside(b, REAL, key->heads, key->queries, key->value_width));
  descriptor dots = reduction(b, CUDNN_REDUCE_TENSOR_ADD, both, stats(b));
  dots = pointwise(b, CUDNN_POINTWISE_MUL, dots, number(b, ID_LEFT), stats_in_memory(b, LM_CUDNN_DOTS));

  descriptor scale = number(b, ID_SCALE);
  descriptor score =
      pointwise(b, CUDNN_POINTWISE_MUL, product(b, query, keys, scores(b, REAL)), scale, scores(b, REAL));
  score = pointwise(b, CUDNN_POINTWISE_SUB, biased(b, score), stats_in_memory(b, LM_CUDNN_LOG_SUM), scores(b, REAL));
  descriptor weight = pointwise(b, CUDNN_POINTWISE_EXP, mask_later_keys(b, score), NULL, scores(b, REAL));
  product_of_heads(b, transposed(b, scaled(b, masked(b, weight, drawn), REAL)), grad, LM_CUDNN_DVALUE);

  descriptor slope = product(b, grad, values, scores(b, REAL));
  slope = pointwise(b, CUDNN_POINTWISE_SUB, masked(b, slope, drawn), dots, scores(b, REAL));
  slope = scaled(b, pointwise(b, CUDNN_POINTWISE_MUL, slope, weight, scores(b, REAL)), REAL);
  slope = pointwise(b, CUDNN_POINTWISE_MUL, slope, scale, scores(b, type));
  product_of_heads(b, transposed(b, slope), query, LM_CUDNN_DKEY);

  descriptor rows = reshaped(b, keys, side_as(b, LM_CUDNN_KEY, LM_CUDNN_INSIDE, b->next++, false));
  descriptor sums = dense(b, LM_CUDNN_MEMORY, LM_CUDNN_SUMS, REAL, key->heads, key->queries, key->width);
  pointwise(b, CUDNN_POINTWISE_IDENTITY, product(b, slope, rows, sums), NULL, add_side(b, LM_CUDNN_DQUERY));
}

lm_status lm_cudnn_attention_search(const lm_cudnn_target *target, const lm_cudnn_attention_key *key,
                                    lm_cudnn_search *s) {
  *s = (lm_cudnn_search){.target = *target, .allow = {.dtype = key->dtype}};
  builder b = {key, &s->graph, ID_INSIDE};
  if (key->backward)
    backward(&b);
  else
    build_forward(&b);
  return lm_cudnn_search_ready(s);
}

lm_status lm_cudnn_attend(cudnnHandle_t handle, const lm_cudnn_plan *plan, const lm_cudnn_attention_key *key,
                          double scale, const void *const data[LM_CUDNN_ALL], void *workspace) {
  const float factor = (float)scale, below = -INFINITY, left = (float)(1 - key->dropout_p), keep_scale = 1 / left;
  int64_t id[ID_INSIDE];
  const void *at[ID_INSIDE];
  int count = 0;
  for (int k = 0; k < LM_CUDNN_ALL; k++) {
    if (data[k]) id[count] = k, at[count++] = data[k];
  }
  id[count] = ID_SCALE, at[count++] = &factor;
  if (key->causal) id[count] = ID_HIDDEN, at[count++] = &below;
  if (key->backward) id[count] = ID_LEFT, at[count++] = &left;
  if (key->dropout_p > 0) id[count] = ID_KEPT, at[count++] = &keep_scale;
  return lm_cudnn_execute(handle, plan, count, id, at, workspace);
}
