/* Tests links between launchers and between ranks, which share the store's loop, frames and handshake. */
#include "check.h"
#include "distributed/net/link_listener.h"
#include "distributed/net/node_links.h"

/* Waits for the next event; false if none comes within SOON. */
static bool next_event(lm_node_links *l, lm_node_event *e) {
  for (double until = lm_seconds() + SOON; lm_seconds() < until;) {
    CHECK(lm_node_links_next(l, e) == LM_OK);
    if (e->kind != LM_NODE_NONE) return true;
    struct pollfd p = {lm_node_links_fd(l), POLLIN, 0};
    poll(&p, 1, 20);
  }
  return false;
}

static bool says(const lm_node_event *e, const char *text) {
  return e->kind == LM_NODE_MESSAGE && e->n == strlen(text) && memcmp(e->text, text, e->n) == 0;
}

void check_node_links(void) {
  enum { SMALL = 1000, LARGE = 60000, MANY = 400 };
  static char large[LARGE];
  char at[LM_ADDRESS_MAX], text[32];
  int fd, link, theirs, wrong;
  bool listens;
  lm_node_links *head, *other, *stranger;
  lm_node_event e;
  CHECK(lm_net_listen("127.0.0.1", 0, &fd, at) == LM_OK);
  close(fd);
  CHECK(lm_node_links_new("token", "job", &head) == LM_OK && lm_node_links_new("token", "job", &other) == LM_OK);
  CHECK(lm_node_links_new("a guess", "job", &stranger) == LM_OK);
  CHECK(lm_node_links_listen(head, at, &listens) == LM_OK && listens);
  CHECK(lm_node_links_listen(other, at, &listens) == LM_OK && !listens);

  CHECK(lm_node_links_connect(stranger, at, 10, &wrong) == LM_OK);
  CHECK(lm_node_links_connect(other, at, 10, &link) == LM_OK);
  CHECK(next_event(head, &e) && e.kind == LM_NODE_OPENED);
  theirs = e.link;
  CHECK(next_event(other, &e) && e.kind == LM_NODE_OPENED && e.link == link);
  for (e.kind = LM_NODE_NONE; e.kind == LM_NODE_NONE; nap(0.002)) { /* the head must answer meanwhile */
    CHECK(lm_node_links_next(head, &e) == LM_OK && e.kind == LM_NODE_NONE);
    CHECK(lm_node_links_next(stranger, &e) == LM_OK);
  }
  CHECK(e.kind == LM_NODE_CLOSED && e.link == wrong && memmem(e.text, e.n, "another token", 13));

  for (int i = 0; i < SMALL; i++) {
    snprintf(text, sizeof text, "message %d", i);
    CHECK(lm_node_links_send(other, link, text, strlen(text)) == LM_OK);
  }
  for (int i = 0; i < SMALL; i++) {
    snprintf(text, sizeof text, "message %d", i);
    CHECK(next_event(head, &e) && e.link == theirs && says(&e, text));
  }
  for (int i = 0; i < MANY; i++) CHECK(lm_node_links_send(head, theirs, large, LARGE) == LM_OK); /* it reads nothing */
  CHECK(next_event(head, &e) && e.kind == LM_NODE_CLOSED && e.link == theirs);
  int whole = 0;
  while (next_event(other, &e) && e.kind == LM_NODE_MESSAGE) whole += e.n == LARGE;
  CHECK(whole > 0 && whole < MANY && e.kind == LM_NODE_CLOSED && e.link == link);
  lm_node_links_free(head);
  lm_node_links_free(other);
  lm_node_links_free(stranger);
}

static lm_loop loop;
static _Atomic bool stops;
static _Atomic int links[4];

static void link_came(void *ctx, int peer, int fd) {
  (void)ctx;
  links[peer]++;
  close(fd);
}

static void *serve_links(void *incoming) {
  while (!stops) {
    lm_loop_wait(&loop, 0.02, 64);
    lm_loop_dispatch(&loop);
    lm_link_listener_keep_time(incoming, lm_seconds());
  }
  lm_link_listener_stop(incoming);
  return NULL;
}

static lm_status link_to(const char *at, uint32_t rank, const lm_key *token) {
  lm_deadline p = patience_of(SOON);
  lm_bytes hello = {0};
  int fd;
  lm_put_u64(&hello, 7);
  lm_put_u32(&hello, rank);
  lm_status status = lm_net_connect(at, &p, &fd);
  if (status == LM_OK) {
    status = lm_auth_connect(fd, token, hello.data, hello.n, &p);
    close(fd);
  }
  lm_bytes_free(&hello);
  return status;
}

void check_rank_links(void) {
  pthread_t thread;
  lm_link_listener incoming;
  lm_key other;
  CHECK(lm_link_listener_open(&incoming, "127.0.0.1", &key, 4, 5) == LM_OK);
  CHECK(lm_loop_open(&loop) == LM_OK && lm_link_listener_serve(&incoming, &loop) == LM_OK);
  CHECK(pthread_create(&thread, NULL, serve_links, &incoming) == 0);
  CHECK(link_to(incoming.tcp_address, 1, &key) == LM_OK); /* waits for its group */
  CHECK(lm_link_listener_accept(&incoming, 7, 4, link_came, NULL) == LM_OK);
  CHECK(link_to(incoming.unix_address, 2, &key) == LM_OK);
  CHECK(link_to(incoming.unix_address, 9, &key) == LM_OK); /* no such rank: dropped */
  CHECK(lm_key_make("a guess", NULL, &other) == LM_OK);
  CHECK(link_to(incoming.unix_address, 3, &other) == LM_E_STATE);
  for (double before = lm_seconds(); links[1] + links[2] < 2 && lm_seconds() < before + SOON;) nap(0.01);
  nap(0.2); /* in which others would come */
  CHECK(links[0] == 0 && links[1] == 1 && links[2] == 1 && links[3] == 0);
  atomic_store(&incoming.one_host, true);
  for (double before = lm_seconds(); link_to(incoming.tcp_address, 1, &key) == LM_OK && lm_seconds() < before + SOON;) {
    nap(0.02);
  }
  CHECK(link_to(incoming.tcp_address, 1, &key) == LM_E_IO);
  stops = true;
  lm_loop_wake(&loop);
  pthread_join(thread, NULL);
  lm_loop_close(&loop);
  lm_link_listener_close(&incoming);
}
