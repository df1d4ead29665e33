/* Marks ranges of this thread, and moments, for NVIDIA's tools. */
#pragma once

void lm_nvtx_push(const char *name);
void lm_nvtx_pop(void);
void lm_nvtx_mark(const char *name);
