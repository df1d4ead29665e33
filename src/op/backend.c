/* Registers backends, and finds the backend of a device. */
#include "op/backend.h"

#include <stdatomic.h>

#include "base/message.h"

static _Atomic(const lm_backend *) backends[LM_DEVICE_KINDS];

lm_status lm_backend_register(const lm_backend *backend) {
  int kind;
  if (backend->abi != LM_BACKEND_ABI) {
    return lm_fail(
        LM_E_MISSING,
        "backend '%s': built for version %d of the kernel table, this library has version %d; rebuild the backend",
        backend->driver->name, backend->abi, LM_BACKEND_ABI);
  }
  if (!backend->op) return lm_fail_absent("lm_backend_register", "op", "a table of kernels");
  NEED(lm_driver_register(backend->driver, &kind));
  atomic_store_explicit(&backends[kind], backend, memory_order_release);
  return LM_OK;
}

const lm_backend *lm_backend_of(lm_device device) {
  int kind = LM_DEVICE_KIND(device);
  const lm_backend *backend =
      kind < LM_DEVICE_KINDS ? atomic_load_explicit(&backends[kind], memory_order_acquire) : NULL;
  if (!backend) lm_fail_no_device("backend", device);
  return backend;
}
