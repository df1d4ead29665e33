/* The thread's card, errors of the runtime, scratch memory, and where kernels report bad values. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* Ordinals are the runtime's. Makes the card current on this thread; an error once its context is lost, or if it is too
 * old a card. Its facts are known from then on. */
lm_status lm_cuda_select(int ordinal);
/* The same, and does not believe that it still is what it was made last: other libraries may have changed it. */
lm_status lm_cuda_select_again(int ordinal);
/* One of the cards in use, for what needs any. */
lm_status lm_cuda_select_any(void);
/* Drops the error the runtime remembers, of a call whose failure is answered otherwise. */
void lm_cuda_forget_error(void);
/* A capture forbids its thread calls that are not for its streams, unless it says that it knows what it does: around
 * those that take memory or load code. *mode is for the second. */
lm_status lm_cuda_relax(int *mode);
void lm_cuda_unrelax(int mode);
/* A place for the bad values of a new stream. */
lm_status lm_cuda_report_slot_new(int ordinal, void *stream);
/* After the stream (NULL: the card) was waited for: the first bad value its kernels reported, as an error. */
lm_status lm_cuda_resolve(int ordinal, void *stream);
/* From now on kernels may report to positions of other streams than the one that was waited for: graphs do. */
void lm_cuda_resolve_all(int ordinal);
