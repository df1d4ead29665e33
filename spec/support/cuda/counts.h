/* Counting instead of computing: see LM_FAKE_CUDA_COUNT in fake.h. */
#ifndef LM_FAKE_COUNTS_H
#define LM_FAKE_COUNTS_H

#include "runtime.h"

bool lm_fake_is_counting();
long lm_fake_counted_blocks(); /* most blocks of a launch that run; 0: counts nothing */

/* Begin, count and end a launch's blocks, of which `ran` ran. Need the turn. */
void lm_fake_count_launch();
void lm_fake_count_block(unsigned number);
void lm_fake_record_launch(const char *name, uint64_t blocks, uint64_t ran);
/* Counts an access of the body that runs. */
void lm_fake_count_access(const void *p, size_t bytes, bool reads, bool writes);

void lm_fake_record(const lm_fake_cost &cost);

#endif
