/* Keys and values, and messages that are none. */
#include "check.h"

/* ---- keys */

void put_set(lm_bytes *b, const char *name, const void *value, size_t n) {
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
  CHECK(member_expect(&members[i], LM_M_REPLY, &r, SOON));
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

/* Tests that a group's keys go when all three are done with it, and only its own: more of them than the store can hold
 * may come and go. */
void check_forgetting(void) {
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
    CHECK(member_expect(&members[2], LM_M_REPLY, &r, SOON));
    CHECK(lm_get_u32(&r) == id && lm_get_u8(&r) == 1);
    forget(2, group);
    ask(2, LM_M_GET, ++id, name, 0);
    replied(2, id, false, "");
  }
  ask(2, LM_M_GET, ++id, "group/10/kept", 0);
  replied(2, id, true, "k");
  free(big);
}

void check_keys(void) {
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
  CHECK(member_expect(&members[0], LM_M_REPLY, &r, SOON));
  CHECK(lm_get_u32(&r) == 11 && lm_get_u8(&r) == 1);
  const char *back = lm_get_string(&r, &n);
  CHECK(n == 32 * MEGABYTE && memcmp(back, big, n) == 0);
  for (int i = 0; i < 2; i++) {
    put_set(&b, i ? "past" : "full", big, 32 * MEGABYTE);
    member_send(&members[2], &b);
  }
  double took;
  lm_failure failure = heard(2, &took);
  CHECK(failure.kind == LM_FAILURE_ERROR && failure.who.rank == 2 && strstr(failure.message, "256 MiB"));
  CHECK(heard(0, &took).who.rank == 2);
  free(big);
  finish();
}

void check_nonsense(void) {
  double took;
  CHECK(start(2, 10) && join_all(2));
  lm_deadline p = patience_of(SOON);
  CHECK(lm_net_write(members[1].fd, "\xff\xff\xff\xff\xff", 5, &p) == LM_OK);
  lm_failure failure = heard(1, &took);
  CHECK(failure.kind == LM_FAILURE_ERROR && failure.who.rank == 1 && heard(0, &took).who.rank == 1);
  char byte;
  p = patience_of(SOON);
  CHECK(lm_net_read(members[1].fd, &byte, 1, &p) == LM_E_IO && strcmp(lm_error(), "connection closed") == 0);
  finish();
}

/* Tests that a forked process, which has the store's descriptors too, keeps them open. */
void check_forked(void) {
  double took;
  CHECK(start(2, 10) && join_all(2));
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    for (;;) pause();
  }
  shutdown(members[1].fd, SHUT_RDWR); /* to close is not enough for the same reason */
  CHECK(heard(0, &took).who.rank == 1);
  nap(0.3); /* in which the store hears of the end again, unless it watches no more */
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  finish();
}
