/* Lists the headers of the texts that nvrtc.cc compiles; it is compiled once, since they take two thirds of the time.
 */
#include "host.h"

#include <assert.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdbool.h>
#include <stddef.h>

#include <limits>
#include <type_traits>
