/* IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist): two zero bytes, the element type
 * (8: unsigned byte, the only one read), the number of dims, each size in four bytes, big-endian, then
 * the elements. Plain or gzipped. */
#pragma once

#include "tensor/tensor.h"

/* A uint8 tensor on the CPU. LM_E_IO says what is wrong; sizes are checked against what the file can
 * hold before memory is asked for. */
LM_API lm_status lm_idx_read(const char *path, lm_tensor **out);
