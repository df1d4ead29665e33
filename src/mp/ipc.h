/* Shares device memory between processes. The owner keeps the memory of a sent tensor until every process that received
 * it, directly or through others, has released it or ended. The kernel counts: a message carries the writing end of a
 * pipe, each receiver holds a copy, and the owner sees when the last copy is closed. A thread watches for that, and
 * closes imported memory once it is released and the device has finished with it. */
#pragma once

#include "base/bytes.h"
#include "tensor/tensor.h"

/* Returns true if the device's memory can be exported: then it counts as shared. */
bool lm_ipc_is_supported(lm_device device);
/* Returns an error that says why t cannot be exported, or LM_OK. */
LM_API lm_status lm_ipc_check(const lm_tensor *t);

/* The device tensors of one message, exported. */
typedef struct lm_ipc_export lm_ipc_export;
/* Exports those of n tensors that are on devices; *out is NULL if none is. */
lm_status lm_ipc_export_new(int n, lm_tensor *const *tensors, lm_ipc_export **out);
void lm_ipc_export_free(lm_ipc_export *l); /* call it once the message is sent or dropped; NULL is fine */
uint32_t lm_ipc_export_descriptors(const lm_ipc_export *l, int *fds); /* writes at most one more than tensors */
/* Writes a name of the device that other processes understand. */
lm_status lm_ipc_put_device(lm_bytes *b, lm_device device);
/* Writes the location of the memory of tensors[index]. */
lm_status lm_ipc_export_put(const lm_ipc_export *l, int index, lm_bytes *b);

/* The receiver's side of lm_ipc_export. */
typedef struct lm_ipc_import lm_ipc_import;
/* Takes ownership of the descriptors, also on failure. */
lm_status lm_ipc_import_new(uint32_t n, const int *fds, lm_ipc_import **out);
void lm_ipc_import_free(lm_ipc_import *b); /* NULL is fine */
lm_status lm_ipc_get_device(lm_reader *r, lm_device *out);
/* Returns a tensor over the memory, `bytes` long, that lm_ipc_export_put described; memory of this process yields the
 * original. The current stream continues after the work given to the sender's stream before it sent. */
lm_status lm_ipc_import_tensor(lm_ipc_import *b, lm_reader *r, lm_device device, size_t bytes, lm_tensor **out);

/* Returns the number of messages with tensors still exported plus that of imported memory waiting to be closed. */
LM_API int lm_ipc_pending_count(void);
