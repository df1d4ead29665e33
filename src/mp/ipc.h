/* Device memory that several processes use. A sent tensor is exported: its owner keeps the memory until no process that
 * received it, directly or through others, has it any more, whether released or because the process ended. The kernel
 * counts them: a message carries the writing end of a pipe, each receiver holds a copy of it, and the owner sees when
 * the last copy is closed. A thread watches for that, and closes imported memory that was released once the device is
 * done with it. */
#pragma once

#include "base/bytes.h"
#include "tensor/tensor.h"

/* Whether memory of the device can be exported at all: then it counts as shared. */
LM_API bool lm_ipc_is_supported(lm_device device);
/* Why t cannot be exported, as an error. */
LM_API lm_status lm_ipc_check(const lm_tensor *t);

/* What a message carries for its tensors that are on devices. */
typedef struct lm_ipc_export lm_ipc_export;
/* *out is NULL if there is none. */
LM_API lm_status lm_ipc_export_new(int n, lm_tensor *const *tensors, lm_ipc_export **out);
LM_API void lm_ipc_export_free(lm_ipc_export *l); /* when it was sent, or will not be; NULL is fine */
LM_API uint32_t lm_ipc_export_descriptors(const lm_ipc_export *l, int *fds); /* at most 1 more than there are tensors */
/* Names the device for another process. */
LM_API lm_status lm_ipc_put_device(lm_bytes *b, lm_device device);
/* Where the memory of tensors[index] is. */
LM_API lm_status lm_ipc_export_put(const lm_ipc_export *l, int index, lm_bytes *b);

/* The receiver's side of lm_ipc_export. */
typedef struct lm_ipc_import lm_ipc_import;
/* Takes the descriptors over, also by an error. */
LM_API lm_status lm_ipc_import_new(uint32_t n, const int *fds, lm_ipc_import **out);
LM_API void lm_ipc_import_free(lm_ipc_import *b); /* NULL is fine */
LM_API lm_status lm_ipc_get_device(lm_reader *r, lm_device *out);
/* A tensor over the memory, of `bytes`, that lm_ipc_export_put described: the original where that is this process's.
 * The current stream continues after what the sender's had been given. */
LM_API lm_status lm_ipc_import_tensor(lm_ipc_import *b, lm_reader *r, lm_device device, size_t bytes, lm_tensor **out);

/* The number of messages whose tensors are still exported, and of imported memory that waits to be closed. */
LM_API int lm_ipc_pending_count(void);
