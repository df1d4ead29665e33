/* Exchanges small values through PMIx, the service of mpirun and srun for their processes, without MPI. The library is
 * loaded on first use, and only in a process that such a launcher started. Private to distributed/, except
 * lm_pmix_check. */
#pragma once

#include "distributed/net/socket.h"

/* Checks that this process can use PMIx; LM_E_MISSING with the reason if not. */
LM_API lm_status lm_pmix_check(void);
/* Publishes a value for all ranks. Only for rank 0 of the launcher's job. */
lm_status lm_pmix_put(const char *key, const char *value);
/* Returns rank 0's value, zero-terminated, truncated to capacity - 1 bytes. LM_E_IO after a second: not set yet. */
lm_status lm_pmix_get(const char *key, char *value, size_t capacity, const lm_deadline *p);
/* Finalizes PMIx; the next call initializes it again. For Open MPI 5 (distributed/mpi/runtime.c). */
LM_API void lm_pmix_leave(void);
