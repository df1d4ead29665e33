/* Shares between the parts of the program: a store, its made-up members, and what they say. */
#ifndef LM_SPEC_STORE_CHECK_H
#define LM_SPEC_STORE_CHECK_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "base/mem.h"
#include "distributed/net/interface.h"
#include "store_member.h"

extern int failures;
#define CHECK(what)                                                                                              \
  do {                                                                                                           \
    if (!(what)) failures++, fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, lm_error()); \
  } while (0)

enum {
  MAX_MEMBERS = 1000,
  SOON = 30, /* seconds within which awaited events come on a machine however busy; nothing takes this long by itself */
};
extern lm_server *server;
extern lm_key key;
extern member members[MAX_MEMBERS];
extern char address[LM_ADDRESS_MAX];

void nap(double seconds);
/* Returns true if `seconds` is below `bound`, which spec/support/time.lua judges, or, unless times are judged, if it is
 * less than an end by SOON takes. */
bool in_time(double seconds, double bound);
bool start_generation(int size, double heartbeat_timeout, int generation);
bool start(int size, double heartbeat_timeout);
/* Closes all members' connections; the server must end by itself. */
void finish(void);
bool join(int i, int rank, int size);
bool join_all(int size);
void say(int i, lm_bytes *b);
lm_ticket ticket(uint64_t seq, uint64_t hash, const char *what, const char *where);
void tell_place(int i, lm_message kind, uint32_t group, lm_ticket t);
void tell_failure(int i, lm_failure_kind kind, int rank, const char *where, const char *message);
void put_goodbye(lm_bytes *b);
/* Returns the cause that member i hears of; prints it with how long it took. */
lm_failure heard(int i, double *took);

/* joining.c */
void check_welcome(void);
void check_refused(void);
void check_crowd(void);
void check_strays(void);
void check_descriptors(void);
/* Sends n strays to the store at `to`; runs in another process, the program at own_path. */
extern const char *own_path;
int strays(const char *to, int n);

/* health.c */
void check_death(void);
void check_error(void);
void check_mismatch(void);
void check_held(void);
void check_frozen(void);
void check_goodbye(void);
void check_missing(void);

/* links.c */
void check_node_links(void);
void check_rank_links(void);

/* keys.c */
/* Appends a SET of a key. */
void put_set(lm_bytes *b, const char *name, const void *value, size_t n);
void check_forgetting(void);
void check_keys(void);
void check_nonsense(void);
void check_forked(void);

#endif
