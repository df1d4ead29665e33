/* torchrun's own store, as far as needed to pass on where ours is. Private to distributed/. */
#pragma once

#include "distributed/net/socket.h"

/* The host that this machine should be called by those who reach that store: as it sees us. */
lm_status lm_torchrun_seen_from(const char *address, char host[LM_ADDRESS_MAX], const lm_deadline *p);
lm_status lm_torchrun_set(const char *address, const char *key, const char *value, const lm_deadline *p);
/* Waits until the key is set; the value is cut to capacity - 1 bytes and closed. */
lm_status lm_torchrun_get(const char *address, const char *key, char *value, size_t capacity, const lm_deadline *p);
