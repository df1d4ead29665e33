/* Declares what the files of the C interface share: sessions with their lock, and the messages of failures. */
#pragma once

#include <lauxlib.h>
#include <lua.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "bind/host_call.h"
#include "luminary.h"
#include "tensor/tensor.h"

/* A field of options; 0 in a program that was built before the field was. */
#define LM_OPTION(options, field)                                                                     \
  ((options) && (options)->size >= offsetof(__typeof__(*(options)), field) + sizeof((options)->field) \
       ? (options)->field                                                                             \
       : 0)

struct lum_session {
  pthread_mutex_t lock; /* held by the call that uses L */
  lua_State *L;
  int functions;          /* the registry's reference to the table that luminary.c_interface returns */
  _Atomic int references; /* the program's, one for each model, one for each call */
  pthread_mutex_t note_lock;
  char message[1024]; /* guarded by note_lock */
};

/* Records a failure's message, of the session unless NULL, and returns its status. LM_OK: does nothing. */
lum_status lm_note(lum_session *s, lm_status status, const char *message);
/* Records the core's last message, of the session unless NULL, and returns `status`. LM_OK: does nothing. */
lum_status lm_noted(lum_session *s, lm_status status);

/* Calls body(L) with `argument` as light userdata at index 1, with the session's lock; body may raise. Then returns
 * the failure of `call`, unless NULL. */
lum_status lm_session_call(lum_session *s, lua_CFunction body, void *argument, const lm_host_call *call);
void lm_session_release(lum_session *s);
/* Finds the device of a name; NULL: the CPU. */
lm_status lm_named_device(const char *name, lm_device *out);
