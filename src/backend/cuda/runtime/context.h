/* Selects the thread's card, and handles runtime errors, scratch memory, and kernels' reports of bad values. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* Makes every later call fail in a child that this process forks, where CUDA does not work. */
void lm_cuda_watch_forks(void);
/* Makes the card current on this thread, where the host program or other libraries may have selected another since, and
 * reads its facts. Ordinals are the runtime's. An error once its context is lost, or if the card is too old. */
lm_status lm_cuda_select(int ordinal);
/* Selects one of the cards in use, for calls that need any. */
lm_status lm_cuda_select_any(void);
/* Clears the error that the runtime remembers, of a call whose failure is handled otherwise. */
void lm_cuda_forget_error(void);
/* Allows this thread calls that a capture forbids though they do not touch its streams: those that take memory or load
 * code. *mode is passed to lm_cuda_unrelax. */
lm_status lm_cuda_relax(int *mode);
void lm_cuda_unrelax(int mode);
/* Makes a slot for the bad values of a new stream. */
lm_status lm_cuda_report_slot_new(int ordinal, void *stream);
/* Returns, after a wait for the stream (NULL: the card), the first bad value its kernels reported, as an error. */
lm_status lm_cuda_resolve(int ordinal, void *stream);
/* Makes lm_cuda_resolve check all streams from now on: graphs' kernels may report to slots of other streams. */
void lm_cuda_resolve_all(int ordinal);
