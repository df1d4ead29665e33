/* Opens descriptors above 2. A program may be started with standard input, output or error closed; the kernel then
 * assigns their numbers to the next file opened, and the script's output would go into one of our sockets or files. So
 * every descriptor of the library passes through one of these functions; scripts/dev/check_layers checks it. All are
 * closed by exec. Errors are -1 with errno, as in the system calls. */
#pragma once

#include <dirent.h>
#include <stdbool.h>

#include "base/status.h"

/* Returns a duplicate of fd that is at least `lowest` and never 0, 1 or 2. A single system call. */
LM_API int lm_fd_copy(int fd, int lowest);
/* Returns fd, just opened, if it is above 2; else a duplicate above 2, and closes fd. Passes a negative fd through. */
LM_API int lm_fd_above_stdio(int fd);
/* Moves the two descriptors of pipe2 or socketpair, whose result is `code`, above 2. On failure both are closed. */
int lm_fds_above_stdio(int code, int fd[2]);
LM_API void lm_close_all(const int *fds, int n); /* skips those that are -1 */
/* Declares a descriptor, or -1, that is closed when the block ends. No goto may jump over the declaration. */
#define LM_OWNED_FD __attribute__((cleanup(lm_fd_drop))) int
static inline void lm_fd_drop(const int *fd) { lm_close_all(fd, 1); }
/* Opens a folder as opendir does; returns NULL with errno on failure. */
DIR *lm_opendir(const char *path);
/* Reads the first capacity - 1 bytes of a kernel's file as text; false if there are none. */
bool lm_read_start(const char *path, char *text, size_t capacity);
/* Opens /dev/null as each of 0, 1 and 2 that is closed, for code that uses these by number. */
void lm_fill_stdio(void);
