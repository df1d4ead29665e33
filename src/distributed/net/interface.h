/* Which of this machine's addresses others are given. LM_SOCKET_IFNAME chooses its interface, as NCCL_SOCKET_IFNAME
 * does for NCCL: "eth0,ib" (names that begin so), "=eth0" (that very name), "^docker,lo" and "^=eth0" (any but those).
 * Private to distributed/. */
#pragma once

#include "distributed/net/socket.h"

/* Of the interface that LM_SOCKET_IFNAME names, "" if it is not set. An IPv6 address if `like` is one and there is one,
 * else IPv4 where there is one. LM_E_ARG: no such interface; the message lists those there are. */
lm_status lm_net_chosen_host(const char *like, char host[LM_ADDRESS_MAX]);
/* For a rank whose connection fd went to `peer` ("host:port"): the chosen one, else the connection's own end, or, if
 * both ends are on this machine, the host as it was named: others came by that name too, and may know it by another
 * address than this machine does. */
lm_status lm_net_configured_host(int fd, const char *peer, char host[LM_ADDRESS_MAX]);
/* How others are likely to reach this machine: where its default route starts, else any interface, else only itself. */
void lm_net_machine_host(char host[LM_ADDRESS_MAX]);
