/* Stands for torchrun's agent in specs: PyTorch's TCPStore with VALIDATE, SET, GET and WAIT.
 *   agent FILE     writes its port and process id into FILE, and serves for a minute at most */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEYS = 16, LONGEST = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char keys[KEYS][LONGEST], values[KEYS][LONGEST];

static int read_all(int fd, void *out, size_t n) { return n == 0 || recv(fd, out, n, MSG_WAITALL) == (ssize_t)n; }

static int read_text(int fd, char *out) {
  uint64_t n;
  if (!read_all(fd, &n, sizeof n) || n >= LONGEST || !read_all(fd, out, n)) return 0;
  out[n] = 0;
  return 1;
}

/* Returns the index of a key: its own, or a new one. */
static int slot(const char *key) {
  int i = 0;
  while (i < KEYS - 1 && keys[i][0] && strcmp(keys[i], key) != 0) i++;
  return i;
}

static int answer(int fd, unsigned char request) {
  char key[LONGEST], value[LONGEST];
  unsigned char stop = 0;
  uint32_t magic;
  uint64_t n = 0;
  int ok = 1;
  if (request == 0) return read_all(fd, &magic, sizeof magic) && magic == 0x3C85F7CE;
  if (request == 6 && (!read_all(fd, &n, sizeof n) || n != 1)) return 0;
  if (!read_text(fd, key) || (request == 1 && !read_text(fd, value))) return 0;
  pthread_mutex_lock(&lock);
  int i = slot(key);
  if (request == 1) {
    strcpy(keys[i], key);
    strcpy(values[i], value);
    pthread_cond_broadcast(&changed);
  } else if (request == 3) {
    n = strlen(values[i]);
    ok = write(fd, &n, sizeof n) > 0 && write(fd, values[i], n) == (ssize_t)n;
  } else if (request == 6) {
    while (strcmp(keys[slot(key)], key) != 0) pthread_cond_wait(&changed, &lock);
    ok = write(fd, &stop, 1) == 1;
  } else {
    ok = 0;
  }
  pthread_mutex_unlock(&lock);
  return ok;
}

static void *serve(void *arg) {
  int fd = (int)(intptr_t)arg;
  unsigned char request, first;
  if (recv(fd, &first, 1, MSG_PEEK) == 1 && first == 0)
    while (read_all(fd, &request, 1) && answer(fd, request)) continue;
  close(fd);
  return NULL;
}

int main(int argc, char **argv) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
  socklen_t n = sizeof a;
  char temporary[LONGEST];
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (argc != 2 || bind(listener, (struct sockaddr *)&a, n) || listen(listener, 64)) return 1;
  getsockname(listener, (struct sockaddr *)&a, &n);
  alarm(60);
  snprintf(temporary, sizeof temporary, "%s.new", argv[1]);
  FILE *out = fopen(temporary, "w");
  if (!out) return 1;
  fprintf(out, "%d %d\n", ntohs(a.sin_port), (int)getpid());
  if (fclose(out) != 0 || rename(temporary, argv[1]) != 0) return 1;
  for (;;) {
    pthread_t thread;
    int fd = accept(listener, NULL, NULL);
    if (fd >= 0 && pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0) pthread_detach(thread);
  }
}
