/* Marks functions that C calls: their definitions are in .cu files, which are C++. */
#pragma once

#ifdef __cplusplus
#define LM_C extern "C"
#else
#define LM_C
#endif
