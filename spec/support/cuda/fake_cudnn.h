/* What the parts of the fake cuDNN share. */
#ifndef LM_FAKE_CUDNN_H
#define LM_FAKE_CUDNN_H

#include <cudnn.h>

#include "fake_library.h"

struct lm_fake_cudnn { /* what a cudnnHandle_t points to */
  int device;
  void *stream, *memory;
};

/* The status, with words that cudnnGetLastErrorString gives. */
cudnnStatus_t lm_fake_refuse(cudnnStatus_t status, const char *why);
int lm_fake_dtype_of(cudnnDataType_t type);

#endif
