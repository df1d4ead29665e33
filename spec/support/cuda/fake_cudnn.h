/* Declares what the parts of the fake cuDNN share. */
#ifndef LM_FAKE_CUDNN_H
#define LM_FAKE_CUDNN_H

#include <cudnn.h>

#include <map>
#include <vector>

#include "fake_library.h"

struct lm_fake_cudnn { /* target of a cudnnHandle_t */
  int device;
  void *stream, *memory;
};

/* The status, with words that cudnnGetLastErrorString returns. */
cudnnStatus_t lm_fake_refuse(cudnnStatus_t status, const char *why);
int lm_fake_dtype_of(cudnnDataType_t type);

/* A tensor of a graph: in memory, inside (only in the graph), or a number in host memory. */
struct lm_fake_tensor {
  int64_t id, align, size[4], stride[4];
  int dtype; /* LM_NO_DTYPE: of int32 or bool */
  bool inside, number;
  int64_t numel() const { return size[0] * size[1] * size[2] * size[3]; }
  int64_t at(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
  }
};

/* An operation of a fused graph, in the order in which they were given. */
struct lm_fake_operation {
  enum { POINT, PRODUCT, REDUCTION, RESHAPE, RANDOM } kind;
  int mode; /* cudnnPointwiseMode_t or cudnnReduceTensorOp_t */
  int64_t axis;
  double probability; /* for RANDOM, which is 1 or 0 by a seed, x, and an offset, b */
  lm_fake_tensor x, b, t, y;
  int operands; /* number of x, b and t that there are */
};

/* Returns why the graph cannot be computed, or NULL. */
const char *lm_fake_fused_problem(const std::vector<lm_fake_operation> &nodes);
/* Computes in double on tensors' memory and numbers by id, and rounds wherever a tensor is of a floating
 * type.
 */
void lm_fake_fused_run(const std::vector<lm_fake_operation> &nodes, const std::map<int64_t, void *> &memory,
                       const std::map<int64_t, double> &numbers);

#endif
