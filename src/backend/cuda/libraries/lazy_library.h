/* A library of CUDA's that few programs use: loaded at the first call that wants it, and left out where it is not. */
#pragma once

#include <pthread.h>

#include "base/status.h"

typedef struct lm_lazy_library {
  const char *name, *file;  /* "cufft", "libcufft.so.12" */
  const char *const *names; /* of its functions, NULL at the end */
  void **functions;         /* as many, found by name */
  pthread_mutex_t lock;
  enum { LM_NOT_TRIED, LM_LOADED, LM_ABSENT } state;
} lm_lazy_library;

/* LM_E_MISSING where there is none, it lacks one of the functions, or LM_CUDA_WITHOUT names it. */
lm_status lm_lazy_load(lm_lazy_library *library);

#define LM_TEXT_OF(x) #x
#define LM_FILE_OF(stem, version) stem LM_TEXT_OF(version)

/* Of functions listed by LIST(X), one X(name) each: pointers to them in a struct called `table`, and a library for them
 * called `variable`. */
#define LM_LAZY_POINTER(name) __typeof__(&name) name;
#define LM_LAZY_NAME(name) #name,
#define LM_LAZY_LIBRARY(variable, table, LIST, its_name, its_file)      \
  static struct { LIST(LM_LAZY_POINTER) } table;                        \
  static const char *const table##_names[] = {LIST(LM_LAZY_NAME) NULL}; \
  static lm_lazy_library variable = {.name = its_name,                  \
                                     .file = its_file,                  \
                                     .names = table##_names,            \
                                     .functions = (void **)&table,      \
                                     .lock = PTHREAD_MUTEX_INITIALIZER}
