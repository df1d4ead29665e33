/* Tests how members come to the store, and who does not: rendezvous, strangers, a lack of descriptors. */
#include "check.h"

/* ---- rendezvous */

void check_welcome(void) {
  lm_reader r;
  CHECK(start(3, 10));
  for (int i = 0; i < 3; i++) CHECK(join(i, 2 - i, 3));
  for (int i = 0; i < 3; i++) {
    char wanted[16];
    CHECK(member_expect(&members[i], LM_M_WELCOME, &r, SOON));
    CHECK(lm_get_u32(&r) == 3);
    for (int k = 0; k < 3; k++) {
      lm_member m;
      lm_get_member(&r, &m);
      snprintf(wanted, sizeof wanted, "host%d", k);
      CHECK(strcmp(m.host, wanted) == 0 && strcmp(m.unix_address, "unix:here") == 0);
      CHECK(strcmp(m.tcp_address, "127.0.0.1:1") == 0 && m.gpu_ids.n == 1 && m.gpu_ids.id[0] == 7);
    }
    CHECK(lm_reader_done(&r));
  }
  member late; /* the listener is closed after the welcomes were sent */
  for (double before = lm_seconds(); member_connect(&late, address, &key) == LM_OK && lm_seconds() < before + SOON;) {
    member_close(&late);
  }
  CHECK(member_connect(&late, address, &key) == LM_E_IO && strstr(lm_error(), "refused"));
  finish();
}

static void refused(int rank, int size, int generation, const char *a, const char *b) {
  member m;
  lm_bytes out = {0};
  lm_reader r;
  char why[512] = "";
  CHECK(member_connect(&m, address, &key) == LM_OK);
  put_join(&out, rank, size, generation);
  CHECK(member_send(&m, &out) == LM_OK);
  if (a) {
    CHECK(member_expect(&m, LM_M_REFUSED, &r, SOON));
    lm_get_text(&r, why, sizeof why);
    printf("%s\n", why);
    CHECK(strstr(why, a) && strstr(why, b));
  } else {
    CHECK(member_expect(&m, LM_M_AHEAD, &r, SOON));
  }
  char byte;
  lm_deadline p = patience_of(SOON);
  CHECK(lm_net_read(m.fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "connection closed") == 0);
  member_close(&m);
}

void check_refused(void) {
  member m;
  lm_key other;
  CHECK(start_generation(3, 10, 1));
  lm_key_make("another secret", NULL, &other);
  CHECK(member_connect(&m, address, &other) == LM_E_STATE && strstr(lm_error(), "LM_TOKEN"));
  lm_key_make(NULL, "a secret", &other);
  CHECK(member_connect(&m, address, &other) == LM_E_STATE);
  refused(3, 3, 1, "rank 3 is out of range for 3 ranks", "start at 0");
  refused(1, 4, 1, "got 4 on rank 1", "3 on rank 0");
  refused(1, 3, 0, "opens process group 1", "process group 2");
  refused(1, 3, 2, NULL, NULL);
  lm_bytes b = {0};
  CHECK(member_connect(&members[0], address, &key) == LM_OK);
  put_join(&b, 1, 3, 1);
  say(0, &b);
  nap(0.05);
  refused(1, 3, 1, "rank 1 has already joined from host1", "0 to 2");
  CHECK(member_connect(&m, address, &key) == LM_OK);
  size_t at = lm_message_begin(&b, LM_M_JOIN);
  lm_put_u32(&b, LM_PROTOCOL + 1);
  lm_message_end(&b, at);
  CHECK(member_send(&m, &b) == LM_OK);
  lm_reader r;
  CHECK(member_expect(&m, LM_M_REFUSED, &r, SOON));
  member_close(&m);
  finish();
}

/* Joins as each of its ranks, which are CROWD apart, and then waits for the welcomes. More threads would leave the
 * store's own too little of a busy machine for its handshakes. */
enum { CROWD = 50 };
static _Atomic int welcomed;
static int crowd_size;
static void *one_of_crowd(void *arg) {
  int first = (int)(intptr_t)arg;
  lm_reader r;
  for (int i = first; i < crowd_size; i += CROWD)
    for (int attempt = 0; attempt < 10 && !join(i, i, crowd_size); attempt++) continue;
  for (int i = first; i < crowd_size; i += CROWD)
    welcomed += members[i].fd >= 0 && member_expect(&members[i], LM_M_WELCOME, &r, 3 * SOON);
  return NULL;
}

static double crowd(int size) {
  pthread_t threads[CROWD];
  int n = size < CROWD ? size : CROWD;
  double before = lm_seconds();
  welcomed = 0;
  crowd_size = size;
  for (int i = 0; i < n; i++) CHECK(pthread_create(&threads[i], NULL, one_of_crowd, (void *)(intptr_t)i) == 0);
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
  CHECK(welcomed == size);
  return lm_seconds() - before;
}

static void take_all_descriptors(void) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

void check_crowd(void) {
  take_all_descriptors();              /* both ends of the connections are here */
  CHECK(start(MAX_MEMBERS, 4 * SOON)); /* members are silent until the last has come */
  double took = crowd(MAX_MEMBERS);
  printf("%d members joined in %.3f s\n", MAX_MEMBERS, took);
  finish();
}

/* ---- strays */

static void be_stray(int fd, int kind) {
  char bytes[400];
  lm_deadline p = patience_of(0.5);
  lm_key other;
  switch (kind) {
    case 0: /* garbage */
      for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)rand();
      send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
      break;
    case 1: break; /* silence */
    case 2:
      lm_key_make("a guess", NULL, &other);
      CHECK(lm_auth_connect(fd, &other, NULL, 0, &p) != LM_OK);
      break;
    case 3: /* half a handshake, and no more to come */
      memset(bytes, 1, sizeof bytes);
      send(fd, bytes, 20, MSG_NOSIGNAL);
      shutdown(fd, SHUT_WR);
      break;
    default: { /* reset */ struct linger now = {1, 0}; setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
  }
}

/* Holds strays of all kinds open, in the other process, until its standard input closes. */
int strays(const char *to, int n) {
  take_all_descriptors();
  int *fds = calloc((size_t)n, sizeof *fds), made = 0;
  for (int i = 0; i < n; i++) {
    lm_deadline p = patience_of(SOON);
    if (lm_net_connect(to, &p, &fds[i]) != LM_OK) {
      fds[i] = -1;
      continue;
    }
    made++;
    be_stray(fds[i], i % 5);
    if (i % 5 == 4) close(fds[i]), fds[i] = -1;
    if (i == n / 2) dprintf(1, "half\n");
  }
  dprintf(1, "%d\n", made);
  char c;
  while (read(0, &c, 1) > 0) {}
  free(fds);
  return failures > 0;
}

extern char **environ;
const char *own_path;

void check_strays(void) {
  enum { RANKS = 8 };
  int to[2], from[2], code = -1;
  char count[] = "1000", said[64] = "";
  CHECK(start(RANKS, 10));
  double calm = crowd(RANKS);
  finish();

  CHECK(start(RANKS, 10));
  CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, to[0], 0);
  posix_spawn_file_actions_adddup2(&files, from[1], 1);
  char *args[] = {(char *)own_path, "be-strays", address, count, NULL};
  pid_t pid;
  CHECK(posix_spawn(&pid, own_path, &files, NULL, args, environ) == 0);
  posix_spawn_file_actions_destroy(&files);
  close(to[0]);
  close(from[1]);
  ssize_t got = read(from[0], said, sizeof said - 1); /* "half": in the midst of them */
  CHECK(got > 0);
  double took = crowd(RANKS);
  close(to[1]);
  waitpid(pid, &code, 0);
  got = read(from[0], said, sizeof said - 1);
  close(from[0]);
  printf("%d ranks joined in %.3f s, amid 1000 strays in %.3f s\n", RANKS, calm, took);
  CHECK(in_time(took - calm, 1));
  finish();

  /* And after all of them have come and stay. */
  CHECK(start(RANKS, 10));
  CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, to[0], 0);
  posix_spawn_file_actions_adddup2(&files, from[1], 1);
  CHECK(posix_spawn(&pid, own_path, &files, NULL, args, environ) == 0);
  posix_spawn_file_actions_destroy(&files);
  close(to[0]);
  close(from[1]);
  FILE *told = fdopen(from[0], "r");
  int made = 0;
  while (fgets(said, sizeof said, told) && strcmp(said, "half\n") == 0) {}
  made = atoi(said);
  took = crowd(RANKS);
  printf("after %d strays in %.3f s\n", made, took);
  CHECK(made == 1000 && in_time(took - calm, 1));
  close(to[1]);
  waitpid(pid, &code, 0);
  CHECK(code == 0);
  fclose(told);
  finish();
}

static double processor_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Tests that the store drops strays, or waits, but never spins, when there are no descriptors left. */
void check_descriptors(void) {
  enum { STRAYS = 40 };
  int fds[STRAYS], fill[64], filled = 0;
  lm_deadline p = patience_of(SOON);
  CHECK(start(2, 10));
  CHECK(join(0, 0, 2));
  struct rlimit before, files;
  getrlimit(RLIMIT_NOFILE, &before);
  files = before;
  files.rlim_cur = 64;
  setrlimit(RLIMIT_NOFILE, &files);
  for (int i = 0; i < STRAYS; i++)
    if (lm_net_connect(address, &p, &fds[i]) != LM_OK) fds[i] = -1;
  while (filled < 64 && (fill[filled] = dup(0)) >= 0) filled++;
  nap(0.1);
  double busy = processor_seconds();
  nap(1);
  busy = processor_seconds() - busy;
  printf("%.3f s of processor time in 1 s without descriptors\n", busy);
  CHECK(busy < 0.1);
  for (int i = 0; i < STRAYS; i++)
    if (fds[i] >= 0) close(fds[i]);
  for (int i = 0; i < filled; i++) close(fill[i]);
  setrlimit(RLIMIT_NOFILE, &before);
  lm_reader r;
  CHECK(join(1, 1, 2));
  CHECK(member_expect(&members[1], LM_M_WELCOME, &r, SOON) && member_expect(&members[0], LM_M_WELCOME, &r, SOON));
  finish();
}
