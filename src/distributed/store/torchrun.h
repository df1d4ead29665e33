/* Reads and writes keys of torchrun's store, to publish the address of ours. Private to distributed/. */
#pragma once

#include "distributed/net/socket.h"

/* Returns this machine's host as that store sees it, which all its clients can reach. */
lm_status lm_torchrun_seen_from(const char *address, char host[LM_ADDRESS_MAX], const lm_deadline *p);
lm_status lm_torchrun_set(const char *address, const char *key, const char *value, const lm_deadline *p);
/* Waits until the key is set; the value is zero-terminated and truncated to capacity - 1 bytes. */
lm_status lm_torchrun_get(const char *address, const char *key, char *value, size_t capacity, const lm_deadline *p);
