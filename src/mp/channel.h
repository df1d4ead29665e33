/* A socket between two Lua states, in two processes or in one, and the parcels that go over it: a text and tensors.
 * Between processes the tensors' memory goes along as descriptors, the text in a memory file of its own, so a parcel
 * of any size is sent without waiting for the other side to read. */
#ifndef LM_MP_CHANNEL_H
#define LM_MP_CHANNEL_H

#include "tensor/tensor.h"

typedef struct lm_parcel {
  char *text;
  size_t n;
  int ntensors;
  lm_tensor **tensors;
} lm_parcel;

LM_API lm_status lm_channel_pair(int fd[2]);
/* The tensors have to be shared (share.h). Whether one requires a gradient goes along; its gradient and history do not.
 * LM_E_IO "closed" where nobody is there to read it. */
LM_API lm_status lm_channel_send(int fd, const char *text, size_t n, int ntensors, lm_tensor *const *tensors);
/* To another thread of this process: the parcel itself changes hands. It stays yours after an error. */
LM_API lm_status lm_channel_pass(int fd, lm_parcel *parcel);
/* The next parcel: `seconds` at most, < 0 as long as it takes or until a signal comes. *out is NULL if none has come by
 * then, or, with *closed, if none will. passed: what the other side does is lm_channel_pass. */
LM_API lm_status lm_channel_receive(int fd, bool passed, double seconds, lm_parcel **out, bool *closed);
/* Closes it; parcels that were passed and never received are freed. */
LM_API void lm_channel_close(int fd, bool passed);

/* A parcel of further tensors (lm_share_again), for lm_channel_pass. */
LM_API lm_status lm_parcel_new(const char *text, size_t n, int ntensors, lm_tensor *const *tensors, lm_parcel **out);
LM_API void lm_parcel_free(lm_parcel *p); /* NULL is fine */

#endif
