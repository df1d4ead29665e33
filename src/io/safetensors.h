/* safetensors files: tensors by name, and strings by key (https://github.com/huggingface/safetensors).
 * Eight bytes, little-endian: the header's length; the header, JSON: {"name": {"dtype", "shape",
 * "data_offsets"}, ..., "__metadata__": {string: string}}; then the tensors' bytes without gaps. */
#pragma once

#include "tensor/tensor.h"

/* Write atomically: a crash at any moment leaves the old file or the new one, whole. Tensors are on the CPU,
 * of any strides; they are written contiguous. Nothing of the old file is lost on an error. */
LM_API lm_status lm_safetensors_write(const char *path, int n, const char *const *names, lm_tensor *const *tensors,
                                      int nmeta, const char *const *keys, const char *const *values);

typedef struct lm_safetensors lm_safetensors;

/* Read and check the whole header. LM_E_IO says what is wrong and where. Tensors are read by up to `threads` threads.
 * With 0 they lie over the mapped file: nothing is read before it is touched, but whoever writes into the file
 * meanwhile changes them, and whoever cuts it ends the process by a bus error. */
LM_API lm_status lm_safetensors_open(const char *path, int threads, lm_safetensors **out);
/* Tensors taken out stay valid. */
LM_API void lm_safetensors_close(lm_safetensors *f);
LM_API int lm_safetensors_count(const lm_safetensors *f);
LM_API const char *lm_safetensors_name(const lm_safetensors *f, int i); /* in the header's order */
/* The name of tensor i's dtype in the file, if there is none here that holds its values; else NULL. */
LM_API const char *lm_safetensors_lacking(const lm_safetensors *f, int i);
/* On the CPU; writing into it does not reach the file. I8, I16 and U16 become int32, U32 int64. LM_E_IO if the file was
 * written to since it was opened. */
LM_API lm_status lm_safetensors_tensor(lm_safetensors *f, int i, lm_tensor **out);
LM_API int lm_safetensors_nmeta(const lm_safetensors *f);
LM_API const char *lm_safetensors_key(const lm_safetensors *f, int i);
LM_API const char *lm_safetensors_value(const lm_safetensors *f, int i);
