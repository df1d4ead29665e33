/* Memory of devices that other processes work with. It stays its owner's: who sends a tensor lends it, until nobody who
 * was sent it, directly or by way of others, has it any more, be it because they ended. The kernel keeps count of them:
 * a letter has the writing end of a pipe along, of which each one who gets it holds a copy, and the owner sees when
 * there is none left. A thread looks after that, and after what was borrowed and let go, which goes back when the
 * device is through with it. */
#ifndef LM_MP_LEND_H
#define LM_MP_LEND_H

#include "base/bytes.h"
#include "tensor/tensor.h"

/* Whether memory of the device can be lent at all: then it counts as shared. */
LM_API bool lm_is_lendable(lm_device device);
/* Why t cannot be lent, as an error. */
LM_API lm_status lm_lend_check(const lm_tensor *t);

/* What a letter has along for the tensors in it that lie on devices. */
typedef struct lm_lending lm_lending;
/* *out is NULL if there is none. */
LM_API lm_status lm_lending_new(int n, lm_tensor *const *tensors, lm_lending **out);
LM_API void lm_lending_free(lm_lending *l); /* when it was sent, or will not be; NULL is fine */
LM_API uint32_t lm_lending_descriptors(const lm_lending *l, int *fds); /* at most 1 more than there are tensors */
/* What device it is, for another process. */
LM_API lm_status lm_lend_put_device(lm_bytes *b, lm_device device);
/* Where the memory of tensors[index] is. */
LM_API lm_status lm_lending_put(const lm_lending *l, int index, lm_bytes *b);

/* What came along. */
typedef struct lm_borrowing lm_borrowing;
/* Takes the descriptors over, also by an error. */
LM_API lm_status lm_borrowing_new(uint32_t n, const int *fds, lm_borrowing **out);
LM_API void lm_borrowing_free(lm_borrowing *b); /* NULL is fine */
LM_API lm_status lm_borrow_device(lm_reader *r, lm_device *out);
/* A tensor over the memory, of `bytes`, that lm_lending_put described: the original where that is this process's. The
 * current stream goes on after what the sender's had been given. */
LM_API lm_status lm_borrow(lm_borrowing *b, lm_reader *r, lm_device device, size_t bytes, lm_tensor **out);

/* Letters whose tensors are still lent, and borrowed memory that waits to go back. */
LM_API int lm_lent(void);

#endif
