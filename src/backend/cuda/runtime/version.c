/* Returns the versions of the libraries that this backend uses. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <string.h>

#include "backend/cuda/cuda.h"

int64_t lm_cuda_version(const char *library) {
  int runtime = 0;
  if (strcmp(library, "cudnn") == 0) return (int64_t)cudnnGetVersion();
  if (strcmp(library, "cublaslt") == 0) return (int64_t)cublasLtGetVersion();
  if (strcmp(library, "cuda") == 0 && cudaRuntimeGetVersion(&runtime) == cudaSuccess) return runtime;
  return 0;
}
