/* Drives the store with made-up members. `store_check NAME` runs one check, prints what it measured, and returns 0 if
 * all was well; spec/distributed/store/store_spec.lua compiles and runs it. */
#include "check.h"
#include "distributed/store/failure_text.h"

int failures;
lm_server *server;
lm_key key;
member members[MAX_MEMBERS];
char address[LM_ADDRESS_MAX];

void nap(double seconds) { poll(NULL, 0, (int)(seconds * 1000)); }

bool in_time(double seconds, double bound) {
  const char *judged = getenv("LM_TEST_TIMES");
  return seconds < (judged && strcmp(judged, "1") == 0 ? bound : SOON - 1);
}

bool start_generation(int size, double heartbeat_timeout, int generation) {
  lm_key_make("a secret", NULL, &key);
  lm_server_config config = {"127.0.0.1", 0, size, generation, key, heartbeat_timeout};
  for (int i = 0; i < MAX_MEMBERS; i++) members[i] = (member){.fd = -1};
  lm_status status = lm_server_start(&config, &server);
  if (status == LM_OK) snprintf(address, sizeof address, "%s", lm_server_address(server));
  return status == LM_OK;
}

bool start(int size, double heartbeat_timeout) { return start_generation(size, heartbeat_timeout, 0); }

void finish(void) {
  for (int i = 0; i < MAX_MEMBERS; i++) member_close(&members[i]);
  double before = lm_seconds();
  lm_server_release(server);
  server = NULL;
  lm_servers_finish(SOON);
  CHECK(in_time(lm_seconds() - before, 4));
}

bool join(int i, int rank, int size) {
  lm_bytes b = {0};
  if (member_connect(&members[i], address, &key) != LM_OK) return false;
  put_join(&b, rank, size, 0);
  return member_send(&members[i], &b) == LM_OK;
}

bool join_all(int size) {
  lm_reader r;
  bool well = true;
  for (int i = 0; i < size; i++) well = well && join(i, i, size);
  for (int i = 0; i < size; i++) well = well && member_expect(&members[i], LM_M_WELCOME, &r, SOON);
  return well;
}

void say(int i, lm_bytes *b) { CHECK(member_send(&members[i], b) == LM_OK); }

lm_ticket ticket(uint64_t seq, uint64_t hash, const char *what, const char *where) {
  lm_ticket t = {.seq = seq, .hash = hash};
  snprintf(t.what, sizeof t.what, "%s", what);
  snprintf(t.where, sizeof t.where, "%s", where);
  return t;
}

void tell_place(int i, lm_message kind, uint32_t group, lm_ticket t) {
  lm_bytes b = {0};
  size_t at = lm_message_begin(&b, kind);
  lm_put_u32(&b, group);
  lm_put_ticket(&b, &t);
  lm_message_end(&b, at);
  say(i, &b);
}

void tell_failure(int i, lm_failure_kind kind, int rank, const char *where, const char *message) {
  lm_failure failure = lm_failure_of(kind, rank, "", 0);
  lm_bytes b = {0};
  snprintf(failure.where, sizeof failure.where, "%s", where);
  snprintf(failure.message, sizeof failure.message, "%s", message);
  size_t at = lm_message_begin(&b, LM_M_FAIL);
  lm_put_failure(&b, &failure);
  lm_message_end(&b, at);
  say(i, &b);
}

void put_goodbye(lm_bytes *b) {
  lm_ticket none = {0};
  size_t at = lm_message_begin(b, LM_M_GOODBYE);
  lm_put_u32(b, 1);
  lm_put_u32(b, 1);
  lm_put_u64(b, 7);
  lm_put_u32(b, 0);
  lm_put_ticket(b, &none);
  lm_message_end(b, at);
}

lm_failure heard(int i, double *took) {
  lm_failure failure = {0};
  lm_reader r;
  double before = lm_seconds();
  char text[1024];
  if (member_expect(&members[i], LM_M_FAILURE, &r, SOON)) lm_get_failure(&r, &failure);
  *took = lm_seconds() - before;
  printf("%.3f s: %s\n", *took, lm_failure_text(&failure, text, sizeof text));
  return failure;
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
    lm_deadline p = patience_of(SOON);
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
    if (i == 0)
      CHECK(lm_net_listen(hosts[i], port, &second, text) == LM_E_IO && strstr(lm_error(), "port already in use"));
    close(fd);
    close(listener);
  }
  CHECK(lm_net_chosen_host("10.0.0.1", host) == LM_OK && !*host);
  setenv("LM_SOCKET_IFNAME", "=lo", 1);
  CHECK(lm_net_chosen_host("10.0.0.1", host) == LM_OK && strcmp(host, "127.0.0.1") == 0);
  CHECK(lm_net_chosen_host("fd00::1", host) == LM_OK && (!strcmp(host, "::1") || !strcmp(host, "127.0.0.1")));
  setenv("LM_SOCKET_IFNAME", "^e,=lo", 1); /* a sign that is not at the beginning is part of a name */
  CHECK(lm_net_chosen_host("", host) == LM_OK || strstr(lm_error(), "lo (127.0.0.1)"));
  unsetenv("LM_SOCKET_IFNAME");

  lm_deadline p = patience_of(SOON);
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
  CHECK(lm_net_read(fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "connection closed") == 0);
  close(fd);
  close(listener);
  p = patience_of(SOON);
  CHECK(lm_net_connect(text, &p, &fd) == LM_E_IO && fd == -1);
  CHECK(lm_net_connect("127.0.0.1:1", &p, &fd) == LM_E_IO && strstr(lm_error(), "refused"));
  CHECK(lm_net_connect("a-name-nobody-knows.invalid:1", &p, &fd) == LM_E_IO &&
        strstr(lm_error(), "cannot resolve host"));
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
} checks[] = {{"net", check_net},
              {"welcome", check_welcome},
              {"refused", check_refused},
              {"death", check_death},
              {"error", check_error},
              {"mismatch", check_mismatch},
              {"held", check_held},
              {"frozen", check_frozen},
              {"goodbye", check_goodbye},
              {"missing", check_missing},
              {"keys", check_keys},
              {"nonsense", check_nonsense},
              {"memory", check_memory},
              {"crowd", check_crowd},
              {"strays", check_strays},
              {"descriptors", check_descriptors},
              {"node_links", check_node_links},
              {"rank_links", check_rank_links},
              {"forked", check_forked}};

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
