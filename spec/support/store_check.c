/* Drives the store with made-up members. `store_check NAME` runs one check, prints what it measured, and returns 0 if
 * all was well; spec/store_spec.lua compiles and runs it. */
#define _GNU_SOURCE
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
#include "dist/net_interface.h"
#include "store_member.h"

static int failures;
#define CHECK(what)                                                                                              \
  do {                                                                                                           \
    if (!(what)) failures++, fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, lm_error()); \
  } while (0)

enum { MOST = 256 };
static lm_server *server;
static lm_key key;
static member members[MOST];
static char address[LM_ADDRESS_MAX];

static void nap(double seconds) { poll(NULL, 0, (int)(seconds * 1000)); }

static bool start_generation(int size, double heartbeat_timeout, int generation) {
  lm_key_of("a secret", NULL, &key);
  lm_server_config config = {"127.0.0.1", 0, size, generation, key, heartbeat_timeout};
  for (int i = 0; i < MOST; i++) members[i] = (member){.fd = -1};
  lm_status status = lm_server_start(&config, &server);
  if (status == LM_OK) snprintf(address, sizeof address, "%s", lm_server_address(server));
  return status == LM_OK;
}

static bool start(int size, double heartbeat_timeout) { return start_generation(size, heartbeat_timeout, 0); }

/* All members leave, by closing; the server has to end by itself. */
static void end(void) {
  for (int i = 0; i < MOST; i++) member_close(&members[i]);
  double before = lm_seconds();
  lm_server_release(server);
  server = NULL;
  lm_servers_finish(10);
  CHECK(lm_seconds() - before < 4);
}

static bool join(int i, int rank, int size) {
  lm_bytes b = {0};
  if (member_connect(&members[i], address, &key) != LM_OK) return false;
  put_join(&b, rank, size, 0);
  return member_send(&members[i], &b) == LM_OK;
}

static bool join_all(int size) {
  lm_reader r;
  bool well = true;
  for (int i = 0; i < size; i++) well = well && join(i, i, size);
  for (int i = 0; i < size; i++) well = well && member_expect(&members[i], LM_M_WELCOME, &r, 5);
  return well;
}

static void say(int i, lm_bytes *b) { CHECK(member_send(&members[i], b) == LM_OK); }

static lm_ticket ticket(uint64_t seq, uint64_t hash, const char *what, const char *where) {
  lm_ticket t = {.seq = seq, .hash = hash};
  snprintf(t.what, sizeof t.what, "%s", what);
  snprintf(t.where, sizeof t.where, "%s", where);
  return t;
}

static void tell_place(int i, lm_message kind, uint32_t group, lm_ticket t) {
  lm_bytes b = {0};
  size_t at = lm_message_begin(&b, kind);
  lm_put_u32(&b, group);
  lm_put_ticket(&b, &t);
  lm_message_end(&b, at);
  say(i, &b);
}

static void tell_failure(int i, lm_failure kind, int rank, const char *where, const char *message) {
  lm_record record = {.kind = kind, .rank = rank};
  lm_bytes b = {0};
  snprintf(record.where, sizeof record.where, "%s", where);
  snprintf(record.message, sizeof record.message, "%s", message);
  size_t at = lm_message_begin(&b, LM_M_FAIL);
  lm_put_record(&b, &record);
  lm_message_end(&b, at);
  say(i, &b);
}

static void put_goodbye(lm_bytes *b) {
  lm_ticket none = {0};
  size_t at = lm_message_begin(b, LM_M_GOODBYE);
  lm_put_u32(b, 1);
  lm_put_u32(b, 1);
  lm_put_u64(b, 7);
  lm_put_u32(b, 0);
  lm_put_ticket(b, &none);
  lm_message_end(b, at);
}

/* The cause that member i hears of, printed with how long it took. */
static lm_record heard(int i, double seconds, double *took) {
  lm_record record = {0};
  lm_reader r;
  double before = lm_seconds();
  char text[1024];
  if (member_expect(&members[i], LM_M_FAILURE, &r, seconds)) lm_get_record(&r, &record);
  *took = lm_seconds() - before;
  printf("%.3f s: %s\n", *took, lm_record_text(&record, text, sizeof text));
  return record;
}

/* ---- rendezvous */

static void check_welcome(void) {
  lm_reader r;
  CHECK(start(3, 10));
  for (int i = 0; i < 3; i++) CHECK(join(i, 2 - i, 3));
  for (int i = 0; i < 3; i++) {
    char host[64], id[64], local[LM_ADDRESS_MAX], tcp[LM_ADDRESS_MAX], wanted[16];
    CHECK(member_expect(&members[i], LM_M_WELCOME, &r, 2));
    CHECK(lm_get_u32(&r) == 3);
    for (int k = 0; k < 3; k++) {
      lm_get_text(&r, host, sizeof host);
      lm_get_text(&r, id, sizeof id);
      lm_get_text(&r, local, sizeof local);
      lm_get_text(&r, tcp, sizeof tcp);
      snprintf(wanted, sizeof wanted, "host%d", k);
      CHECK(strcmp(host, wanted) == 0 && strcmp(local, "unix:here") == 0 && strcmp(tcp, "127.0.0.1:1") == 0);
      CHECK(lm_get_u32(&r) == 0);
    }
    CHECK(lm_reader_done(&r));
  }
  nap(0.05);
  member late;
  CHECK(member_connect(&late, address, &key) == LM_E_IO && strstr(lm_error(), "refused"));
  end();
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
    CHECK(member_expect(&m, LM_M_REFUSED, &r, 2));
    lm_get_text(&r, why, sizeof why);
    printf("%s\n", why);
    CHECK(strstr(why, a) && strstr(why, b));
  } else {
    CHECK(member_expect(&m, LM_M_AHEAD, &r, 2));
  }
  char byte;
  lm_patience p = patience_of(2);
  CHECK(lm_net_read(m.fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "closed") == 0);
  member_close(&m);
}

static void check_refused(void) {
  member m;
  lm_key other;
  CHECK(start_generation(3, 10, 1));
  lm_key_of("another secret", NULL, &other);
  CHECK(member_connect(&m, address, &other) == LM_E_STATE && strstr(lm_error(), "LM_TOKEN"));
  lm_key_of(NULL, "a secret", &other);
  CHECK(member_connect(&m, address, &other) == LM_E_STATE);
  refused(3, 3, 1, "rank 3 is outside a world of 3", "from 0 to 2");
  refused(1, 4, 1, "a world of 4", "one of 3");
  refused(1, 3, 0, "process group no. 1", "no. 2");
  refused(1, 3, 2, NULL, NULL);
  lm_bytes b = {0};
  CHECK(member_connect(&members[0], address, &key) == LM_OK);
  put_join(&b, 1, 3, 1);
  say(0, &b);
  nap(0.05);
  refused(1, 3, 1, "rank 1 is there already, from host host1", "0 to 2");
  CHECK(member_connect(&m, address, &key) == LM_OK);
  size_t at = lm_message_begin(&b, LM_M_JOIN);
  lm_put_u32(&b, LM_PROTOCOL + 1);
  lm_message_end(&b, at);
  CHECK(member_send(&m, &b) == LM_OK);
  lm_reader r;
  CHECK(member_expect(&m, LM_M_REFUSED, &r, 2));
  member_close(&m);
  end();
}

/* Joins as its rank and waits for the welcome. */
static _Atomic int welcomed;
static int crowd_size;
static void *one_of_crowd(void *arg) {
  int i = (int)(intptr_t)arg;
  lm_reader r;
  for (int attempt = 0; attempt < 3; attempt++)
    if (join(i, i, crowd_size)) {
      welcomed += member_expect(&members[i], LM_M_WELCOME, &r, 10);
      break;
    }
  return NULL;
}

static double crowd(int size) {
  pthread_t threads[MOST];
  double before = lm_seconds();
  welcomed = 0;
  crowd_size = size;
  for (int i = 0; i < size; i++) CHECK(pthread_create(&threads[i], NULL, one_of_crowd, (void *)(intptr_t)i) == 0);
  for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
  CHECK(welcomed == size);
  return lm_seconds() - before;
}

static void check_crowd(void) {
  CHECK(start(MOST, 10));
  double took = crowd(MOST);
  printf("%d members joined in %.3f s\n", MOST, took);
  CHECK(took < 5);
  end();
}

/* ---- strays */

static void be_stray(int fd, int kind) {
  char bytes[400];
  lm_patience p = patience_of(0.5);
  lm_key other;
  switch (kind) {
    case 0: /* garbage */
      for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)rand();
      send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
      break;
    case 1: break; /* silence */
    case 2:
      lm_key_of("a guess", NULL, &other);
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

/* The other process: strays of all kinds, all held open until its standard input closes. */
static int strays(const char *to, int n) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  int *fds = calloc((size_t)n, sizeof *fds), made = 0;
  for (int i = 0; i < n; i++) {
    lm_patience p = patience_of(2);
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
static const char *own_path;

static void check_strays(void) {
  enum { RANKS = 8 };
  int to[2], from[2], code = -1;
  char count[] = "1000", said[64] = "";
  CHECK(start(RANKS, 10));
  double calm = crowd(RANKS);
  end();

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
  CHECK(took - calm < 1);
  end();

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
  CHECK(made == 1000 && took - calm < 1);
  close(to[1]);
  waitpid(pid, &code, 0);
  CHECK(code == 0);
  fclose(told);
  end();
}

static double processor_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Without descriptors left the store drops strays, or waits; it never spins. */
static void check_descriptors(void) {
  enum { STRAYS = 40 };
  int fds[STRAYS], fill[64], filled = 0;
  lm_patience p = patience_of(5);
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
  CHECK(member_expect(&members[1], LM_M_WELCOME, &r, 2) && member_expect(&members[0], LM_M_WELCOME, &r, 2));
  end();
}

/* ---- failures */

static void check_death(void) {
  double took;
  CHECK(start(3, 10) && join_all(3));
  tell_place(1, LM_M_ALIVE, 1, ticket(4, 1, "all_reduce sum float32 [3]", "train.lua:40"));
  nap(0.05);
  member_close(&members[1]);
  lm_record record = heard(0, 2, &took);
  CHECK(took < 0.2 && record.kind == LM_FAILURE_DIED && record.rank == 1 && strcmp(record.host, "host1") == 0);
  CHECK(strcmp(record.message, "last in all_reduce sum float32 [3] at train.lua:40") == 0);
  CHECK(strcmp(record.where, "train.lua:40") == 0 && record.told_by == -1);
  CHECK(heard(2, 2, &took).kind == LM_FAILURE_DIED);
  tell_failure(2, LM_FAILURE_ERROR, 2, "b.lua:1", "too late");
  CHECK(heard(2, 2, &took).kind == LM_FAILURE_DIED);
  end();

  /* While others still join; who comes later hears it too, even when rank 0 has gone. */
  CHECK(start(4, 10) && join(0, 0, 4) && join(1, 1, 4));
  nap(0.05);
  member_close(&members[1]);
  CHECK(heard(0, 2, &took).rank == 1 && took < 0.2);
  CHECK(join(2, 2, 4));
  CHECK(heard(2, 2, &took).rank == 1);
  member_close(&members[0]);
  member_close(&members[2]);
  lm_server_release(server);
  CHECK(join(3, 3, 4));
  CHECK(heard(3, 2, &took).rank == 1);
  member_close(&members[3]);
  double before = lm_seconds();
  lm_servers_finish(10);
  CHECK(lm_seconds() - before < 1);

  /* Rank 0 gives up. */
  CHECK(start(3, 10) && join(1, 1, 3));
  nap(0.05);
  lm_server_release(server);
  lm_record gone = heard(1, 2, &took);
  CHECK(gone.kind == LM_FAILURE_LEFT && gone.rank == 0 && gone.host[0] != 0);
  member_close(&members[1]);
  lm_servers_finish(10);
}

static void check_error(void) {
  double took;
  /* An error published just before the end of its process wins, be it an orderly end or a reset. */
  for (int i = 0; i < 20; i++) {
    CHECK(start(3, 10) && join_all(3));
    tell_failure(1, LM_FAILURE_ERROR, 1, "train.lua:12", "train.lua:12: boom");
    struct linger now = {1, 0};
    if (i % 2) setsockopt(members[1].fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    member_close(&members[1]);
    lm_record record = heard(0, 2, &took);
    char text[1024];
    CHECK(took < 0.2 && record.kind == LM_FAILURE_ERROR && record.told_by == 1);
    CHECK(strcmp(lm_record_text(&record, text, sizeof text), "rank 1 on host host1 failed at train.lua:12: boom") == 0);
    CHECK(heard(2, 2, &took).kind == LM_FAILURE_ERROR);
    end();
  }
}

static void tell_resumed(int rank, uint32_t group, uint64_t seq) {
  lm_bytes out = {0};
  size_t at = lm_message_begin(&out, LM_M_RESUMED);
  lm_put_u32(&out, group);
  lm_put_u64(&out, seq);
  lm_message_end(&out, at);
  say(rank, &out);
}

static void check_mismatch(void) {
  double took;
  lm_ticket a = ticket(5, 1, "all_reduce sum float32 [3]", "a.lua:3");
  lm_ticket b = ticket(5, 2, "broadcast float32 [3] from rank 0", "a.lua:9");
  lm_ticket beside = ticket(0, 4, "recv float32 [1] from rank 0", "a.lua:2");
  lm_ticket other = ticket(5, 3, "barrier", "a.lua:1"), next = ticket(6, 3, "barrier", "a.lua:1");
  CHECK(start(2, 10) && join_all(2));
  tell_place(1, LM_M_WAITING, 1, b);
  tell_place(1, LM_M_WAITING, 1, beside); /* a receive on another thread, and its end */
  tell_resumed(1, 1, beside.seq);
  tell_place(0, LM_M_WAITING, 2, other);
  tell_place(0, LM_M_WAITING, 1, a);
  lm_record record = heard(0, 2, &took);
  CHECK(took < 0.2 && record.kind == LM_FAILURE_MISMATCH && record.rank == 1 && strcmp(record.where, "a.lua:9") == 0);
  CHECK(strcmp(record.message,
               "rank 0 (host host0) waits in all_reduce sum float32 [3] at a.lua:3, rank 1 (host host1) "
               "waits in broadcast float32 [3] from rank 0 at a.lua:9") == 0);
  end();

  /* Calls of other numbers say nothing, nor do those that are over; then the one among three is the odd one. */
  CHECK(start(4, 10) && join_all(4));
  tell_place(0, LM_M_WAITING, 1, next);
  tell_resumed(0, 1, next.seq);
  lm_reader r;
  lm_message kind;
  CHECK(!member_receive(&members[0], &kind, &r, 0.1));
  tell_place(2, LM_M_WAITING, 1, a);
  tell_place(3, LM_M_WAITING, 1, a);
  nap(0.05);
  CHECK(!member_receive(&members[3], &kind, &r, 0.1));
  tell_place(1, LM_M_WAITING, 1, b);
  record = heard(0, 2, &took);
  CHECK(record.kind == LM_FAILURE_MISMATCH && record.rank == 1);
  end();
}

static void check_held(void) {
  double took;
  CHECK(start(3, 10) && join_all(3));
  tell_failure(0, LM_FAILURE_UNREACHABLE, 1, "", "connection reset");
  nap(0.05);
  member_close(&members[1]);
  lm_record record = heard(2, 2, &took);
  CHECK(record.kind == LM_FAILURE_DIED && record.rank == 1);
  end();
  CHECK(start(3, 10) && join_all(3));
  tell_failure(0, LM_FAILURE_UNREACHABLE, 1, "", "connection reset");
  record = heard(2, 2, &took);
  CHECK(record.kind == LM_FAILURE_UNREACHABLE && record.rank == 1 && record.told_by == 0 && took > 0.1 && took < 0.3);
  CHECK(strcmp(record.host, "host1") == 0);
  end();
}

static void check_frozen(void) {
  double took, before;
  lm_ticket none = {0};
  CHECK(start(3, 1.5) && join_all(3));
  before = lm_seconds();
  while (lm_seconds() - before < 1.2) {
    for (int i = 0; i < 3; i += 2) tell_place(i, LM_M_ALIVE, 0, none);
    nap(0.2);
  }
  lm_record record = heard(0, 2, &took);
  double since = lm_seconds() - before;
  CHECK(record.kind == LM_FAILURE_FROZEN && record.rank == 1 && since > 1.4 && since < 1.8);
  /* The frozen one keeps nobody from ending. */
  member_close(&members[0]);
  member_close(&members[2]);
  lm_server_release(server);
  before = lm_seconds();
  lm_servers_finish(10);
  CHECK(lm_seconds() - before < 1);
  CHECK(heard(1, 1, &took).rank == 1);
  member_close(&members[1]);

  /* heartbeat_timeout 0: nobody is watched. */
  CHECK(start(2, 0) && join_all(2));
  lm_reader r;
  lm_message kind;
  CHECK(!member_receive(&members[0], &kind, &r, 0.3));
  end();
}

static void check_goodbye(void) {
  lm_bytes b = {0};
  lm_reader r;
  lm_message kind;
  CHECK(start(3, 10) && join_all(3));
  put_goodbye(&b);
  say(2, &b);
  member_close(&members[2]);
  for (int i = 0; i < 2; i++) {
    lm_ticket t;
    CHECK(member_expect(&members[i], LM_M_LEFT, &r, 2));
    CHECK(lm_get_u32(&r) == 2 && lm_get_u32(&r) == 1 && lm_get_u32(&r) == 1 && lm_get_u64(&r) == 7);
    CHECK(lm_get_u32(&r) == 0);
    lm_get_ticket(&r, &t);
    CHECK(lm_reader_done(&r));
    CHECK(!member_receive(&members[i], &kind, &r, 0.1));
  }
  put_goodbye(&b);
  say(0, &b);
  member_close(&members[0]);
  lm_server_release(server); /* rank 0 is done: its store lives on */
  CHECK(member_expect(&members[1], LM_M_LEFT, &r, 2));
  nap(0.1);
  put_goodbye(&b);
  say(1, &b);
  member_close(&members[1]);
  double before = lm_seconds();
  lm_servers_finish(5);
  CHECK(lm_seconds() - before < 0.5);
  double took;
  CHECK(start(3, 10) && join(0, 0, 3) && join(1, 1, 3));
  put_goodbye(&b);
  say(1, &b);
  CHECK(member_expect(&members[0], LM_M_LEFT, &r, 2) && heard(0, 2, &took).kind == LM_FAILURE_LEFT);
  end();

  CHECK(start(2, 10) && join_all(2)); /* finish stops one that would go on */
  before = lm_seconds();
  lm_servers_finish(0.2);
  CHECK(lm_seconds() - before < 0.5);
  lm_server_release(server);
  for (int i = 0; i < 2; i++) member_close(&members[i]);
}

static void missing(int i, uint32_t group, uint64_t seq, int n, const int *ranks, const char *wanted) {
  lm_bytes b = {0};
  lm_reader r;
  size_t at = lm_message_begin(&b, LM_M_MISSING), length;
  lm_put_u32(&b, 9);
  lm_put_u32(&b, group);
  lm_put_u64(&b, seq);
  lm_put_u32(&b, (uint32_t)n);
  for (int k = 0; k < n; k++) lm_put_u32(&b, (uint32_t)ranks[k]);
  lm_message_end(&b, at);
  say(i, &b);
  CHECK(member_expect(&members[i], LM_M_REPLY, &r, 2));
  CHECK(lm_get_u32(&r) == 9 && lm_get_u8(&r) == 1);
  const char *text = lm_get_string(&r, &length);
  printf("'%.*s'\n", (int)length, text);
  CHECK(length == strlen(wanted) && memcmp(text, wanted, length) == 0);
}

static void check_missing(void) {
  CHECK(start(8, 10) && join(0, 0, 8) && join(5, 5, 8));
  nap(0.05);
  missing(0, 0, 0, 0, NULL, "ranks 1 to 4, 6 and 7 have not joined");
  end();
  CHECK(start(5, 10) && join_all(5));
  tell_place(1, LM_M_ALIVE, 1, ticket(5, 1, "all_reduce sum float32 [3]", "x.lua:40"));
  tell_place(2, LM_M_WAITING, 2, ticket(5, 1, "broadcast float32 [3] from rank 0", "x.lua:7"));
  lm_bytes b = {0};
  put_goodbye(&b);
  say(3, &b);
  lm_reader r;
  CHECK(member_expect(&members[0], LM_M_LEFT, &r, 2));
  nap(0.05);
  missing(0, 1, 5, 1, (int[]){1}, "");
  missing(
      0, 1, 6, 4, (int[]){1, 2, 3, 4},
      "rank 1 on host host1 was last in all_reduce sum float32 [3] #5 at x.lua:40, 0 s ago; rank 2 on host host2 is "
      "in broadcast float32 [3] from rank 0 #5 at x.lua:7; rank 3 on host host3 has left; rank 4 on host host4 has "
      "not called any collective yet");
  end();
}

/* ---- keys */

static void put_set(lm_bytes *b, const char *name, const void *value, size_t n) {
  size_t at = lm_message_begin(b, LM_M_SET);
  lm_put_text(b, name);
  lm_put_string(b, value, n);
  lm_message_end(b, at);
}

static void ask(int i, lm_message kind, uint32_t id, const char *name, uint64_t more) {
  lm_bytes b = {0};
  size_t at = lm_message_begin(&b, kind);
  lm_put_u32(&b, id);
  lm_put_text(&b, name);
  if (kind == LM_M_ADD)
    lm_put_u64(&b, more);
  else
    lm_put_u8(&b, (uint8_t)more);
  lm_message_end(&b, at);
  say(i, &b);
}

static void replied(int i, uint32_t id, bool found, const char *value) {
  lm_reader r;
  size_t n;
  CHECK(member_expect(&members[i], LM_M_REPLY, &r, 5));
  CHECK(lm_get_u32(&r) == id && lm_get_u8(&r) == found);
  const char *text = lm_get_string(&r, &n);
  CHECK(lm_reader_done(&r) && n == strlen(value) && memcmp(text, value, n) == 0);
}

static void forget(int i, uint32_t group) {
  lm_bytes b = {0};
  size_t at = lm_message_begin(&b, LM_M_FORGET);
  lm_put_u32(&b, group);
  lm_message_end(&b, at);
  say(i, &b);
}

/* A group's keys go when all three are done with it, and only its own: more of them than the store can hold may come
 * and go. */
static void check_forgetting(void) {
  enum { MEGABYTE = 1 << 20 };
  lm_bytes b = {0};
  char *big = calloc(1, 20 * MEGABYTE), name[32];
  uint32_t id = 100;
  put_set(&b, "group/10/kept", "k", 1);
  say(0, &b);
  for (uint32_t group = 1; group <= 20; group++) {
    if (group == 10) continue;
    snprintf(name, sizeof name, "group/%u/0/big", group);
    put_set(&b, name, big, 20 * MEGABYTE);
    say(0, &b);
    forget(0, group);
    forget(1, group);
    ask(0, LM_M_GET, ++id, "group/1000/none", 0); /* the two have been heard */
    replied(0, id, false, "");
    ask(1, LM_M_GET, ++id, "group/1000/none", 0);
    replied(1, id, false, "");
    lm_reader r;
    ask(2, LM_M_GET, ++id, name, 0);
    CHECK(member_expect(&members[2], LM_M_REPLY, &r, 5));
    CHECK(lm_get_u32(&r) == id && lm_get_u8(&r) == 1);
    forget(2, group);
    ask(2, LM_M_GET, ++id, name, 0);
    replied(2, id, false, "");
  }
  ask(2, LM_M_GET, ++id, "group/10/kept", 0);
  replied(2, id, true, "k");
  free(big);
}

static void check_keys(void) {
  enum { MEGABYTE = 1 << 20 };
  lm_bytes b = {0};
  CHECK(start(3, 60) && join_all(3));
  ask(0, LM_M_GET, 1, "a", 0);
  replied(0, 1, false, "");
  ask(0, LM_M_GET, 2, "a", 1);
  ask(1, LM_M_GET, 3, "a", 1);
  put_set(&b, "a", "one", 3);
  say(2, &b);
  replied(0, 2, true, "one");
  replied(1, 3, true, "one");
  put_set(&b, "a", "", 0);
  say(0, &b);
  ask(0, LM_M_GET, 4, "a", 1);
  replied(0, 4, true, "");
  ask(1, LM_M_GET, 6, "n", 1);
  ask(0, LM_M_ADD, 7, "n", 5);
  replied(0, 7, true, "5");
  replied(1, 6, true, "5");
  ask(0, LM_M_ADD, 8, "n", (uint64_t)-7);
  replied(0, 8, true, "-2");
  put_set(&b, "a", "word", 4);
  say(0, &b);
  ask(0, LM_M_ADD, 9, "a", 1);
  replied(0, 9, false, "");
  ask(1, LM_M_GET, 10, "never", 1); /* is forgotten with its member */
  check_forgetting();

  /* 7 values of 32 MiB fit, and come back whole; another two do not. */
  char *big = calloc(1, 32 * MEGABYTE);
  for (int i = 0; i < 32 * MEGABYTE; i++) big[i] = (char)(i * 7 + i / 1000);
  for (int i = 0; i < 7; i++) {
    char name[8];
    snprintf(name, sizeof name, "big%d", i);
    put_set(&b, name, big, 32 * MEGABYTE);
    say(2, &b);
  }
  lm_reader r;
  size_t n;
  ask(0, LM_M_GET, 11, "big6", 1);
  CHECK(member_expect(&members[0], LM_M_REPLY, &r, 10));
  CHECK(lm_get_u32(&r) == 11 && lm_get_u8(&r) == 1);
  const char *back = lm_get_string(&r, &n);
  CHECK(n == 32 * MEGABYTE && memcmp(back, big, n) == 0);
  for (int i = 0; i < 2; i++) {
    put_set(&b, i ? "past" : "full", big, 32 * MEGABYTE);
    member_send(&members[2], &b);
  }
  double took;
  lm_record record = heard(2, 5, &took);
  CHECK(record.kind == LM_FAILURE_ERROR && record.rank == 2 && strstr(record.message, "256 MiB"));
  CHECK(heard(0, 2, &took).rank == 2);
  free(big);
  end();
}

static void check_nonsense(void) {
  double took;
  CHECK(start(2, 10) && join_all(2));
  lm_patience p = patience_of(2);
  CHECK(lm_net_write(members[1].fd, "\xff\xff\xff\xff\xff", 5, &p) == LM_OK);
  lm_record record = heard(1, 2, &took);
  CHECK(record.kind == LM_FAILURE_ERROR && record.rank == 1 && heard(0, 2, &took).rank == 1);
  char byte;
  p = patience_of(3);
  CHECK(lm_net_read(members[1].fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "closed") == 0);
  end();
}

/* ---- sockets */

static lm_status called_off(void *ctx) {
  int *n = ctx;
  return ++*n > 3 ? lm_fail(LM_E_STATE, "called off") : LM_OK;
}

static void check_net(void) {
  char host[LM_ADDRESS_MAX], text[LM_ADDRESS_MAX];
  int port, fd, listener, asked = 0;
  CHECK(lm_net_split("a.b:12", host, &port) == LM_OK && strcmp(host, "a.b") == 0 && port == 12);
  CHECK(lm_net_split("[fe80::1]:9", host, &port) == LM_OK && strcmp(host, "fe80::1") == 0 && port == 9);
  static const char *const bad[] = {"a",      "a:",    ":5",      "a:x",     "a:1x",  "a:0", "a:65536", "a:-1",
                                    "::1:80", "[::1]", "[::1]80", "[::1:80", "[]:80", "",    ":",       "a: 5"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(lm_net_split(bad[i], host, &port) == LM_E_ARG);

  static const char *const hosts[] = {"127.0.0.1", "localhost", "::1", "", "a-name-nobody-knows.invalid"};
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    lm_patience p = patience_of(3);
    if (lm_net_listen(hosts[i], 0, &listener, text) != LM_OK) {
      CHECK(strcmp(hosts[i], "::1") == 0); /* a machine without IPv6 */
      continue;
    }
    printf("'%s' listens at %s\n", hosts[i], text);
    CHECK(lm_net_split(text, host, &port) == LM_OK && port > 0);
    if (i == 4) snprintf(text, sizeof text, "127.0.0.1:%d", port);
    CHECK(lm_net_connect(text, &p, &fd) == LM_OK);
    CHECK(lm_net_own_host(fd, host) == LM_OK);
    int second = -1;
    if (i == 0) CHECK(lm_net_listen(hosts[i], port, &second, text) == LM_E_IO && strstr(lm_error(), "taken"));
    close(fd);
    close(listener);
  }
  CHECK(lm_net_chosen_host("10.0.0.1", host) == LM_OK && !*host);
  setenv("LM_SOCKET_IFNAME", "=lo", 1);
  CHECK(lm_net_chosen_host("10.0.0.1", host) == LM_OK && strcmp(host, "127.0.0.1") == 0);
  CHECK(lm_net_chosen_host("fd00::1", host) == LM_OK && (!strcmp(host, "::1") || !strcmp(host, "127.0.0.1")));
  setenv("LM_SOCKET_IFNAME", "^e,=lo", 1); /* what is not at the beginning is part of a name */
  CHECK(lm_net_chosen_host("", host) == LM_OK || strstr(lm_error(), "lo (127.0.0.1)"));
  unsetenv("LM_SOCKET_IFNAME");

  lm_patience p = patience_of(5);
  CHECK(lm_net_listen_unix(&listener, text) == LM_OK);
  CHECK(lm_net_connect(text, &p, &fd) == LM_OK);
  int peer;
  CHECK(lm_net_accept(listener, 1, &peer) == LM_OK && peer >= 0);
  char byte;
  p.check = called_off;
  p.ctx = &asked;
  CHECK(lm_net_read(fd, &byte, 1, &p) == LM_E_STATE && strcmp(lm_error(), "called off") == 0);
  p = patience_of(0.1);
  CHECK(lm_net_read(fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "timed out") == 0);
  close(peer);
  CHECK(lm_net_read(fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "closed") == 0);
  close(fd);
  close(listener);
  p = patience_of(1);
  CHECK(lm_net_connect(text, &p, &fd) == LM_E_IO && fd == -1);
  CHECK(lm_net_connect("127.0.0.1:1", &p, &fd) == LM_E_IO && strstr(lm_error(), "refused"));
  CHECK(lm_net_connect("a-name-nobody-knows.invalid:1", &p, &fd) == LM_E_IO && strstr(lm_error(), "not known"));
  char id[64], again[64];
  lm_net_host_id(id);
  lm_net_host_id(again);
  CHECK(strlen(id) == 32 && strcmp(id, again) == 0);
}

/* ---- allocations that fail, from the nth on: no crash, no leak, and the store still ends */

static void whole_life(void) {
  lm_bytes b = {0};
  lm_reader r;
  lm_message kind;
  if (!start(2, 10)) return;
  bool well = join(0, 0, 2) && join(1, 1, 2);
  for (int i = 0; i < 2 && well; i++) well = member_expect(&members[i], LM_M_WELCOME, &r, 0.3);
  if (well) {
    size_t at = lm_message_begin(&b, LM_M_GET);
    lm_put_u32(&b, 1);
    lm_put_text(&b, "k");
    lm_put_u8(&b, 1);
    lm_message_end(&b, at);
    member_send(&members[0], &b);
    put_set(&b, "k", "v", 1);
    member_send(&members[1], &b);
    well = member_receive(&members[0], &kind, &r, 0.3) && kind == LM_M_REPLY;
  }
  for (int i = 0; i < 2; i++)
    if (members[i].fd >= 0) {
      lm_ticket t = {.seq = 1, .hash = (uint64_t)i, .what = "barrier"};
      size_t at = lm_message_begin(&b, LM_M_WAITING);
      lm_put_u32(&b, 1);
      lm_put_ticket(&b, &t);
      lm_message_end(&b, at);
      member_send(&members[i], &b);
    }
  if (members[0].fd >= 0) member_receive(&members[0], &kind, &r, 0.3);
  lm_bytes_free(&b);
  for (int i = 0; i < 2; i++) member_close(&members[i]);
  lm_server_release(server);
  lm_servers_finish(0.1);
}

static void check_memory(void) {
  lm_alloc_fail_from(1L << 40);
  whole_life();
  long n = lm_alloc_count();
  CHECK(n > 10);
  for (long i = 1; i <= n + 2; i++) {
    lm_alloc_fail_from(i);
    whole_life();
    lm_alloc_fail_from(0);
  }
  printf("%ld allocations failed in turn\n", n);
}

static const struct {
  const char *name;
  void (*run)(void);
} checks[] = {{"net", check_net},         {"welcome", check_welcome},
              {"refused", check_refused}, {"death", check_death},
              {"error", check_error},     {"mismatch", check_mismatch},
              {"held", check_held},       {"frozen", check_frozen},
              {"goodbye", check_goodbye}, {"missing", check_missing},
              {"keys", check_keys},       {"nonsense", check_nonsense},
              {"memory", check_memory},   {"crowd", check_crowd},
              {"strays", check_strays},   {"descriptors", check_descriptors}};

int main(int argc, char **argv) {
  own_path = "/proc/self/exe";
  if (argc == 4 && strcmp(argv[1], "be-strays") == 0) return strays(argv[2], atoi(argv[3]));
  const char *wanted = argc == 2 ? argv[1] : "";
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 4096) files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
  setrlimit(RLIMIT_NOFILE, &files);
  int ran = 0;
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
    if (strcmp(wanted, checks[i].name) == 0 || strcmp(wanted, "all") == 0) {
      if (strcmp(wanted, "all") == 0) printf("== %s\n", checks[i].name);
      checks[i].run();
      ran++;
    }
  if (ran == 0) fprintf(stderr, "store_check: 'all' or the name of a check wanted, got '%s'\n", wanted);
  return ran == 0 ? 2 : failures > 0;
}
