/* Entering OpenBLAS, its LAPACK too, on threads of ours. */
#pragma once

#include <stdbool.h>

/* Each thread in OpenBLAS wants a buffer of 128 MB of addresses, which it keeps for the next; where it gets none it
 * asks again for ever. True if there is room for `parts` more; then lm_blas_leave(parts) comes after. OpenBLAS computes
 * on the thread that calls: its own threads would stand beside ours. */
bool lm_blas_enter(int parts);
void lm_blas_leave(int parts);
