/* PMIx: what mpirun and srun bring along for their processes to tell each other small things, without MPI. The library
 * is loaded when first needed, and only in a process that such a launcher started. Private to distributed/, except the
 * question whether it is there. */
#pragma once

#include "distributed/net/socket.h"

/* Whether this process can use it; the error says why not. */
LM_API lm_status lm_pmix_is_there(void);
/* Rank 0 of the launcher's job: from now on the others can get it. */
lm_status lm_pmix_put(const char *key, const char *value);
/* What rank 0 put, cut to capacity - 1 bytes and closed. LM_E_IO: nothing yet; it may take a second to say so. */
lm_status lm_pmix_get(const char *key, char *value, size_t capacity, const lm_deadline *p);
/* Ends what this process began with PMIx; the next call begins again. For Open MPI 5 (distributed/mpi/runtime.c). */
LM_API void lm_pmix_leave(void);
