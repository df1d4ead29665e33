/* Declares a world's state, shared by world.c (opening and closing), connect_to_rank0.c (rendezvous), groups.c,
 * call_timeouts.c (timeouts and failures) and peer_link.c. */
#pragma once

#include <pthread.h>

#include "distributed/group/group_core.h"
#include "distributed/net/link_listener.h"
#include "distributed/store/client.h"
#include "distributed/store/server.h"
#include "distributed/store/store_address.h"

struct lm_world {
  int rank, size, local_rank, local_size;
  bool may_spin;
  double timeout, heartbeat_timeout;
  lm_key key;
  lm_link_listener incoming;
  lm_client *client;
  lm_locator locator;
  lm_location at;
  lm_server *server;     /* the store; NULL except on rank 0 */
  unsigned forks;        /* lm_world_forks() when it was opened */
  pthread_mutex_t lock;  /* guards groups, groups_made and closed */
  lm_group_core *groups; /* the open groups */
  uint32_t groups_made;  /* number of groups so far */
  lm_bytes closed;       /* closed groups: pairs of u32 id and u64 seq completed */
  struct lm_world *next; /* next in the process's list, under world.c's all_lock */
};

/* Returns the number of forks between the process that loaded the library and this one. A forked child must not touch
 * its parent's worlds, since it has copies of their sockets and locks. */
unsigned lm_world_forks(void);
/* Fails in a forked child. */
lm_status lm_world_check_process(const lm_world *w);

/* Runs the rendezvous (connect_to_rank0.c); fills in key, locator, at, incoming, client and server. */
lm_status lm_rendezvous(lm_world *w, const lm_world_config *config);

/* default_backend.c: lists in *out the GPUs that this rank reports to the others: none without the nccl plug-in. Loads
 * no plug-in if there is no driver. */
void lm_world_gpu_ids(lm_gpu_ids *out);

/* peer_link.c: closes links that arrived for a group and were never taken. */
void lm_link_forget(lm_world *w, uint32_t group);

/* Returns LM_E_STATE with the message "call: rank 1 on b died …" (call_timeouts.c); call may be NULL. */
lm_status lm_fail_with_cause(const char *call, const lm_failure *cause);
