/* Descriptors of the library's own. A program may be started with standard input, output or error closed; the kernel
 * then assigns their numbers to whatever is opened next, and what the script prints would go into a socket or a file of
 * ours. So every descriptor that is opened here goes through one of these, which scripts/dev/check_layers sees to. All
 * are closed by exec. Errors are -1 with errno, as the system calls'. */
#pragma once

#include <dirent.h>

#include "base/status.h"

/* A further descriptor of fd's file, of at least `lowest` and never 0, 1 or 2. A system call only. */
LM_API int lm_fd_copy(int fd, int lowest);
/* fd, fresh from open, socket or the like, or a copy in its place; < 0 is handed on. */
LM_API int lm_fd_above_stdio(int fd);
/* The same for the two of pipe2 or socketpair, whose result is `made`. If it fails, neither stays open. */
LM_API int lm_fds_above_stdio(int made, int fd[2]);
/* opendir. NULL with errno. */
LM_API DIR *lm_opendir(const char *path);
/* Opens /dev/null as each of 0, 1 and 2 that is closed, for who uses these by number. */
LM_API void lm_fill_stdio(void);
