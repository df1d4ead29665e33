/* Tests what the store learns of its members and reports to them: failures, goodbyes, who is missing. */
#include "check.h"
#include "distributed/store/failure_text.h"

static const char *told(const lm_failure *failure) {
  static char text[1024];
  return lm_failure_text(failure, text, sizeof text);
}

/* ---- failures */

void check_death(void) {
  double took;
  CHECK(start(3, 10) && join_all(3));
  tell_place(1, LM_M_ALIVE, 1, ticket(4, 1, "all_reduce sum float32 [3]", "train.lua:40"));
  nap(0.05);
  member_close(&members[1]);
  lm_failure failure = heard(0, &took);
  CHECK(in_time(took, 0.2) && failure.kind == LM_FAILURE_DIED && failure.who.rank == 1 &&
        strcmp(failure.who.host, "host1") == 0);
  CHECK(strstr(told(&failure), " died (killed or crashed) (last call: all_reduce sum float32 [3] at train.lua:40)"));
  CHECK(strcmp(failure.where, "train.lua:40") == 0 && failure.reported_by == -1);
  CHECK(heard(2, &took).kind == LM_FAILURE_DIED);
  tell_failure(2, LM_FAILURE_ERROR, 2, "b.lua:1", "too late");
  CHECK(heard(2, &took).kind == LM_FAILURE_DIED);
  finish();

  /* While others still join; who comes later hears it too, even when rank 0 has gone. */
  CHECK(start(4, 10) && join(0, 0, 4) && join(1, 1, 4));
  nap(0.05);
  member_close(&members[1]);
  CHECK(heard(0, &took).who.rank == 1 && in_time(took, 0.2));
  CHECK(join(2, 2, 4));
  CHECK(heard(2, &took).who.rank == 1);
  member_close(&members[0]);
  member_close(&members[2]);
  lm_server_release(server);
  CHECK(join(3, 3, 4));
  CHECK(heard(3, &took).who.rank == 1);
  member_close(&members[3]);
  double before = lm_seconds();
  lm_servers_finish(SOON);
  CHECK(in_time(lm_seconds() - before, 1));

  /* Rank 0 leaves before all have joined. */
  CHECK(start(3, 10) && join(1, 1, 3));
  nap(0.05);
  lm_server_release(server);
  lm_failure gone = heard(1, &took);
  CHECK(gone.kind == LM_FAILURE_LEFT && gone.who.rank == 0 && gone.who.host[0] != 0);
  member_close(&members[1]);
  lm_servers_finish(SOON);
}

void check_error(void) {
  double took;
  /* An error published just before the end of its process wins, be it an orderly end or a reset. */
  for (int i = 0; i < 20; i++) {
    CHECK(start(3, 10) && join_all(3));
    tell_failure(1, LM_FAILURE_ERROR, 1, "train.lua:12", "train.lua:12: boom");
    struct linger now = {1, 0};
    if (i % 2) setsockopt(members[1].fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    member_close(&members[1]);
    lm_failure failure = heard(0, &took);
    char text[1024];
    CHECK(in_time(took, 0.2) && failure.kind == LM_FAILURE_ERROR && failure.reported_by == 1);
    CHECK(strcmp(lm_failure_text(&failure, text, sizeof text), "rank 1 on host1 failed at train.lua:12: boom") == 0);
    CHECK(heard(2, &took).kind == LM_FAILURE_ERROR);
    finish();
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

void check_mismatch(void) {
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
  lm_failure failure = heard(0, &took);
  CHECK(in_time(took, 0.2) && failure.kind == LM_FAILURE_MISMATCH && failure.who.rank == 1 &&
        strcmp(failure.where, "a.lua:9") == 0);
  CHECK(strstr(told(&failure),
               ": rank 0 on host0 waits in all_reduce sum float32 [3] at a.lua:3, rank 1 on "
               "host1 waits in broadcast float32 [3] from rank 0 at a.lua:9"));
  finish();

  /* Who has continued from a call and waits in the next contradicts those who wait in another one of that number. */
  lm_ticket passed = ticket(5, 7, "DistributedDataParallel backward", "a.lua:5");
  for (int told_first = 0; told_first < 2; told_first++) {
    CHECK(start(2, 10) && join_all(2));
    if (!told_first) tell_place(1, LM_M_WAITING, 1, a);
    tell_place(0, LM_M_PASSED, 1, passed);
    tell_place(0, LM_M_WAITING, 1, next);
    if (told_first) tell_place(1, LM_M_WAITING, 1, a);
    failure = heard(0, &took);
    CHECK(failure.kind == LM_FAILURE_MISMATCH && failure.who.rank == 1 && strcmp(failure.where, "a.lua:3") == 0);
    CHECK(strstr(told(&failure),
                 ": rank 0 on host0 called DistributedDataParallel backward at a.lua:5, rank 1 on "
                 "host1 waits in all_reduce sum float32 [3] at a.lua:3"));
    finish();
  }

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
  failure = heard(0, &took);
  CHECK(failure.kind == LM_FAILURE_MISMATCH && failure.who.rank == 1);
  finish();
}

void check_held(void) {
  double took;
  CHECK(start(3, 10) && join_all(3));
  tell_failure(0, LM_FAILURE_UNREACHABLE, 1, "", "connection reset");
  nap(0.01); /* the store waits 0.2 s for a death */
  member_close(&members[1]);
  lm_failure failure = heard(2, &took);
  CHECK(failure.kind == LM_FAILURE_DIED && failure.who.rank == 1);
  finish();
  CHECK(start(3, 10) && join_all(3));
  tell_failure(0, LM_FAILURE_UNREACHABLE, 1, "", "connection reset");
  failure = heard(2, &took);
  CHECK(failure.kind == LM_FAILURE_UNREACHABLE && failure.who.rank == 1 && failure.reported_by == 0 && took > 0.1 &&
        in_time(took, 0.3));
  CHECK(strcmp(failure.who.host, "host1") == 0);
  finish();
}

void check_frozen(void) {
  double took, before;
  lm_ticket none = {0};
  CHECK(start(3, 1.5) && join_all(3));
  before = lm_seconds();
  while (lm_seconds() - before < 1.2) {
    for (int i = 0; i < 3; i += 2) tell_place(i, LM_M_ALIVE, 0, none);
    nap(0.2);
  }
  lm_failure failure = heard(0, &took);
  double since = lm_seconds() - before;
  CHECK(failure.kind == LM_FAILURE_FROZEN && failure.who.rank == 1 && since > 1.4 && in_time(since, 1.8));
  /* The frozen one keeps nobody from ending. */
  member_close(&members[0]);
  member_close(&members[2]);
  lm_server_release(server);
  before = lm_seconds();
  lm_servers_finish(SOON);
  CHECK(in_time(lm_seconds() - before, 1));
  CHECK(heard(1, &took).who.rank == 1);
  member_close(&members[1]);

  /* heartbeat_timeout 0: nobody is watched. */
  CHECK(start(2, 0) && join_all(2));
  lm_reader r;
  lm_message kind;
  CHECK(!member_receive(&members[0], &kind, &r, 0.3));
  finish();
}

void check_goodbye(void) {
  lm_bytes b = {0};
  lm_reader r;
  lm_message kind;
  CHECK(start(3, 10) && join_all(3));
  put_goodbye(&b);
  say(2, &b);
  member_close(&members[2]);
  for (int i = 0; i < 2; i++) {
    lm_ticket t;
    CHECK(member_expect(&members[i], LM_M_LEFT, &r, SOON));
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
  CHECK(member_expect(&members[1], LM_M_LEFT, &r, SOON));
  nap(0.1);
  put_goodbye(&b);
  say(1, &b);
  member_close(&members[1]);
  double before = lm_seconds();
  lm_servers_finish(SOON);
  CHECK(in_time(lm_seconds() - before, 0.5));
  double took;
  CHECK(start(3, 10) && join(0, 0, 3) && join(1, 1, 3));
  put_goodbye(&b);
  say(1, &b);
  CHECK(member_expect(&members[0], LM_M_LEFT, &r, SOON) && heard(0, &took).kind == LM_FAILURE_LEFT);
  finish();

  CHECK(start(2, 10) && join_all(2)); /* finish stops one that would continue */
  before = lm_seconds();
  lm_servers_finish(0.2);
  CHECK(in_time(lm_seconds() - before, 0.5));
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
  CHECK(member_expect(&members[i], LM_M_REPLY, &r, SOON));
  CHECK(lm_get_u32(&r) == 9 && lm_get_u8(&r) == 1);
  const char *data = lm_get_string(&r, &length);
  lm_reader fields = lm_reader_of(data, length);
  lm_missing m;
  char text[1024];
  lm_get_missing(&fields, 8, &m);
  printf("'%s'\n", lm_missing_text(&m, text, sizeof text));
  char *ago = strstr(text, " s ago");
  if (ago) ago[-1] = '0'; /* more on a busy machine */
  CHECK(strcmp(text, wanted) == 0);
  lm_missing_free(&m);
}

void check_missing(void) {
  CHECK(start(8, 10) && join(0, 0, 8) && join(5, 5, 8));
  nap(0.05);
  missing(0, 0, 0, 0, NULL, "ranks 1 to 4, 6 and 7 have not joined");
  finish();
  CHECK(start(5, 10) && join_all(5));
  tell_place(1, LM_M_ALIVE, 1, ticket(5, 1, "all_reduce sum float32 [3]", "x.lua:40"));
  tell_place(2, LM_M_WAITING, 2, ticket(5, 1, "broadcast float32 [3] from rank 0", "x.lua:7"));
  lm_bytes b = {0};
  put_goodbye(&b);
  say(3, &b);
  lm_reader r;
  CHECK(member_expect(&members[0], LM_M_LEFT, &r, SOON));
  nap(0.05);
  missing(0, 1, 5, 1, (int[]){1}, "");
  missing(0, 1, 6, 4, (int[]){1, 2, 3, 4},
          "rank 1 on host1 last called all_reduce sum float32 [3] #5 at x.lua:40, 0 s ago; rank 2 on host2 waits "
          "in broadcast float32 [3] from rank 0 #5 at x.lua:7; rank 3 on host3 has left; rank 4 on host4 has "
          "not called any collective yet");
  finish();
}
