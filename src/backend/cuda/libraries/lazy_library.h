/* Loads a library of CUDA's that few programs use, at the first call that needs it; it may be absent. */
#pragma once

#include <pthread.h>

#include "base/status.h"

typedef struct lm_lazy_library {
  const char *name, *file;  /* "cufft", "libcufft.so.12" */
  const char *const *names; /* its functions' names, NULL at the end */
  void **functions;         /* the functions, in the order of names */
  pthread_mutex_t lock;
  enum { LM_NOT_TRIED, LM_LOADED, LM_ABSENT } state;
} lm_lazy_library;

/* Loads the library. LM_E_MISSING if there is none, it lacks one of the functions, or LM_CUDA_WITHOUT names it. */
lm_status lm_lazy_load(lm_lazy_library *library);

#define LM_TEXT_OF(x) #x
#define LM_FILE_OF(stem, version) stem LM_TEXT_OF(version)

/* Defines pointers to functions listed by LIST(X), one X(name) each, in a struct called `table`, and a library for them
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
