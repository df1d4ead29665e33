/* Chooses the address of this machine that other ranks connect to. LM_SOCKET_IFNAME names the interface, as
 * NCCL_SOCKET_IFNAME does for NCCL: "eth0,ib" (prefixes), "=eth0" (exact name), "^docker,lo" and "^=eth0" (all except
 * those). Private to distributed/. */
#pragma once

#include "base/bytes.h"
#include "distributed/net/socket.h"

/* Returns the address of LM_SOCKET_IFNAME's interface, "" if that is not set; IPv6 is preferred if `like` is an IPv6
 * address, else IPv4. LM_E_ARG: no such interface; the message lists the available ones. */
lm_status lm_net_chosen_host(const char *like, char host[LM_ADDRESS_MAX]);
/* Returns this rank's host for others, given its connection fd to `peer` ("host:port"): the chosen one, else fd's local
 * address. If both ends are on this machine, returns peer's host as written: other ranks use that name too, and may
 * resolve it to another address than this machine does. */
lm_status lm_net_configured_host(int fd, const char *peer, char host[LM_ADDRESS_MAX]);
/* Appends a line "name address bits" for each address of this machine's interfaces; bits: of its network's prefix. */
LM_API void lm_net_list_interfaces(lm_bytes *out);
/* Returns this machine's most likely address: the default route's, else any interface's, else the loopback's. */
void lm_net_machine_host(char host[LM_ADDRESS_MAX]);
