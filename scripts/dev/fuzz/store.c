/* Sends mutated messages to the store and to its clients. Neither may crash, hang, or stop serving others.
 *
 *   scripts/dev/fuzz/store [count [seed]]
 *
 * A life is one store with one good member and a few bad ones, or one client whose store is bad. A bad one sends
 * batches: messages whose fields are made up but can be read; a question, whose answer shows that all of those were
 * read; and one last message damaged in any way, after which it is usually thrown out and comes back. Strangers damage
 * the handshake. */
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "distributed/store/client_core.h"
#include "distributed/store/failure_text.h"
#include "store_member.h"

enum { BATCH = 24, BATCHES = 48, BAD = 3, PROBE = 1 << 20, KEYS = 8 };

static long sent, past; /* messages, and those that were read past their header */

static void die(const char *why) {
  fprintf(stderr, "store_fuzz: %s (after %ld messages; %s)\n", why, sent, lm_error());
  exit(1);
}

/* ---- chance */

static uint64_t state;

static uint64_t chance(void) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 2685821657736338717u;
}

static uint32_t below(uint32_t n) { return (uint32_t)((chance() >> 32) * n >> 32); }
static bool one_in(uint32_t n) { return below(n) == 0; }

static uint32_t any_u32(void) {
  static const uint32_t odd[] = {0, 1, 2, 3, 0x7fffffff, 0x80000000, 0xffffffff, 64 << 20, 1 << 16};
  return one_in(3) ? (uint32_t)chance() : odd[below(sizeof odd / sizeof *odd)];
}

static uint64_t any_u64(void) { return one_in(2) ? chance() : any_u32() * (one_in(2) ? 1ull : 1ull << 32); }

/* Bytes of any kind, of at most `most`. */
static void put_junk(lm_bytes *b, uint32_t most) {
  uint32_t n = below(most + 1);
  lm_put_u32(b, n);
  for (uint32_t i = 0; i < n; i++) lm_put_u8(b, (uint8_t)(one_in(4) ? chance() : 'a' + below(26)));
}

static void put_key(lm_bytes *b) {
  char key[8];
  snprintf(key, sizeof key, "k%u", below(KEYS));
  if (one_in(20))
    put_junk(b, 300);
  else
    lm_put_text(b, key);
}

/* ---- messages that can be read */

static void put_any_ticket(lm_bytes *b, bool agree) {
  uint64_t seq = one_in(8) ? any_u64() : below(40);
  lm_put_u64(b, seq);
  lm_put_u64(b, agree ? seq : chance());
  lm_put_u32(b, below(LM_COLLECTIVES + 1));
  put_junk(b, sizeof((lm_ticket *)0)->what - 1);
  put_junk(b, sizeof((lm_ticket *)0)->where - 1);
}

static void put_any_party(lm_bytes *b, uint32_t size) {
  double seconds = chance();
  lm_put_u32(b, below(size));
  lm_put_u8(b, (uint8_t)below(LM_STANDINGS));
  lm_put(b, &seconds, sizeof seconds);
  put_junk(b, sizeof((lm_party *)0)->host - 1);
  put_any_ticket(b, false);
}

static void put_any_failure(lm_bytes *b, uint32_t size) {
  lm_put_u32(b, 1 + below(LM_FAILURE_KINDS - 1));
  lm_put_u32(b, any_u32());
  put_any_party(b, size);
  put_any_party(b, size);
  put_junk(b, sizeof((lm_failure *)0)->where - 1);
  put_junk(b, one_in(4) ? sizeof((lm_failure *)0)->message - 1 : 40);
}

static void put_any_goodbye(lm_bytes *b) {
  uint32_t n = below(6);
  lm_put_u32(b, n);
  for (uint32_t i = 0; i < n; i++) {
    lm_put_u32(b, any_u32());
    lm_put_u64(b, any_u64());
  }
  lm_put_u32(b, any_u32());
  put_any_ticket(b, true);
}

/* Appends a message of a member. peaceful: none that makes a cause. */
static void put_from_member(lm_bytes *b, uint32_t size, bool peaceful) {
  lm_message kind = LM_M_SET + below(LM_M_FAIL - LM_M_SET);
  if (!peaceful && one_in(60)) kind = LM_M_FAIL;
  size_t at = lm_message_begin(b, kind);
  switch (kind) {
    case LM_M_SET:
      put_key(b);
      put_junk(b, one_in(200) ? 200000 : one_in(2) ? 4 : 60);
      break;
    case LM_M_GET:
      lm_put_u32(b, below(PROBE));
      put_key(b);
      lm_put_u8(b, (uint8_t)below(2));
      break;
    case LM_M_ADD:
      lm_put_u32(b, below(PROBE));
      put_key(b);
      lm_put_u64(b, any_u64());
      break;
    case LM_M_FORGET: lm_put_u32(b, one_in(8) ? any_u32() : below(4)); break;
    case LM_M_ALIVE:
    case LM_M_PASSED:
    case LM_M_WAITING:
      lm_put_u32(b, one_in(8) ? any_u32() : below(4));
      put_any_ticket(b, peaceful || !one_in(20));
      break;
    case LM_M_RESUMED:
      lm_put_u32(b, below(4));
      lm_put_u64(b, below(40));
      break;
    case LM_M_MISSING: {
      uint32_t n = below(size + 1);
      lm_put_u32(b, below(PROBE));
      lm_put_u32(b, below(4));
      lm_put_u64(b, one_in(4) ? any_u64() : below(40));
      lm_put_u32(b, n);
      for (uint32_t i = 0; i < n; i++) lm_put_u32(b, below(size));
      break;
    }
    default: put_any_failure(b, size);
  }
  lm_message_end(b, at);
}

static void put_welcome(lm_bytes *b, uint32_t size) {
  size_t at = lm_message_begin(b, LM_M_WELCOME);
  lm_put_u32(b, size);
  for (uint32_t i = 0; i < size; i++) {
    put_junk(b, 63);
    put_junk(b, 63);
    put_junk(b, LM_ADDRESS_MAX - 1);
    put_junk(b, LM_ADDRESS_MAX - 1);
    uint32_t gpu_ids = below(LM_DEVICE_MAX + 1);
    lm_put_u32(b, gpu_ids);
    for (uint32_t k = 0; k < gpu_ids; k++) lm_put_u64(b, any_u64());
  }
  lm_message_end(b, at);
}

/* Appends a message of a store; *leavers: ranks that have left already. */
static void put_from_store(lm_bytes *b, uint32_t size, uint32_t *leavers) {
  static const lm_message kinds[] = {LM_M_REPLY, LM_M_PULSE, LM_M_REPLY, LM_M_FAILURE, LM_M_LEFT};
  lm_message kind = kinds[below(sizeof kinds / sizeof *kinds)];
  uint32_t leaver = below(size);
  if (kind == LM_M_LEFT && *leavers & 1u << leaver) kind = LM_M_REPLY;
  size_t at = lm_message_begin(b, kind);
  switch (kind) {
    case LM_M_REPLY:
      lm_put_u32(b, one_in(2) ? any_u32() | 1 << 16 : PROBE + below(PROBE));
      lm_put_u8(b, (uint8_t)chance());
      put_junk(b, one_in(100) ? 100000 : 80);
      break;
    case LM_M_FAILURE: put_any_failure(b, size); break;
    case LM_M_LEFT:
      *leavers |= 1u << leaver;
      lm_put_u32(b, leaver);
      put_any_goodbye(b);
      break;
    default: break;
  }
  lm_message_end(b, at);
}

/* ---- and damage: of the message that starts at `at`. True if its header is left as it should be. */

static bool damage(lm_bytes *b, size_t at) {
  size_t body = at + 5, n = b->n - body;
  uint32_t length;
  switch (below(6)) {
    case 0: { /* a header of any kind */
      uint32_t wrong = any_u32();
      memcpy(b->data + at, &wrong, sizeof wrong);
      return false;
    }
    case 1:
      b->data[at + 4] = (char)(LM_M_LAST + 1 + below(200)); /* the kind of no message */
      return false;
    case 2: /* cut short, or another kind's fields */
      if (n > 0 && one_in(2)) b->n = body + below((uint32_t)n);
      if (one_in(2)) b->data[at + 4] = (char)(1 + below(LM_M_LAST));
      break;
    case 3: /* too long */
      for (uint32_t i = 1 + below(40); i > 0; i--) lm_put_u8(b, (uint8_t)chance());
      break;
    default: /* bits and numbers */
      for (uint32_t i = 1 + below(4); i > 0 && n > 0; i--) {
        size_t where = body + below((uint32_t)n);
        uint32_t odd = any_u32();
        if (one_in(2))
          b->data[where] ^= (char)(1 << below(8));
        else
          memcpy(b->data + where, &odd, b->n - where < sizeof odd ? b->n - where : sizeof odd);
      }
  }
  length = (uint32_t)(b->n - at - sizeof length);
  memcpy(b->data + at, &length, sizeof length);
  return true;
}

/* ---- lives of a store */

static lm_key key;

static bool reply_with(member *m, uint32_t id) {
  lm_message kind;
  lm_reader r;
  while (member_receive(m, &kind, &r, 20))
    if (kind == LM_M_REPLY && lm_get_u32(&r) == id) return true;
  if (m->fd >= 0 && strcmp(lm_error(), "timed out") == 0) die("no answer for 20 s");
  return false;
}

static void put_probe(lm_bytes *b, uint32_t id) {
  size_t at = lm_message_begin(b, LM_M_GET);
  lm_put_u32(b, id);
  lm_put_text(b, "the good one's");
  lm_put_u8(b, 0);
  lm_message_end(b, at);
}

static void join(member *m, const char *address, int rank, int size) {
  lm_bytes b = {0};
  if (member_connect(m, address, &key) != LM_OK) die("a member cannot connect");
  put_join(&b, rank, size, 0);
  if (member_send(m, &b) != LM_OK) die("a member cannot join");
}

/* Sends the handshake's three parts, damaged; or no handshake at all. */
static void be_strange(const char *address) {
  unsigned char bytes[640];
  lm_deadline p = patience_of(10);
  int fd;
  sent++;
  if (lm_net_connect(address, &p, &fd) != LM_OK) die("a stranger cannot connect");
  uint32_t n = below(sizeof bytes + 1), hello = one_in(2) ? below(LM_HELLO_MAX + 9) : any_u32();
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)chance();
  if (one_in(2)) memcpy(bytes + 32, &hello, sizeof hello);
  send(fd, bytes, n, MSG_NOSIGNAL);
  if (one_in(4)) {
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  close(fd);
}

/* Proves that it knows the token, and says nonsense instead of JOIN. */
static void be_no_member(const char *address, int size) {
  member m;
  lm_bytes b = {0};
  if (member_connect(&m, address, &key) != LM_OK) die("a member cannot connect");
  if (one_in(2))
    put_from_member(&b, (uint32_t)size, false);
  else
    put_join(&b, (int)below(2) ? (int)any_u32() : 0, (int)any_u32(), (int)any_u32());
  past += one_in(2) ? damage(&b, 0) : true;
  sent++;
  member_send(&m, &b);
  member_close(&m);
}

static void store_life(void) {
  bool whole = one_in(2), peaceful = one_in(2);
  int size = whole ? 1 + BAD : 64, next = 1;
  lm_server_config config = {"127.0.0.1", 0, size, 0, key, 10};
  lm_server *server;
  char address[LM_ADDRESS_MAX];
  member good, bad[BAD];
  lm_bytes b = {0};
  if (lm_server_start(&config, &server) != LM_OK) die("no store");
  snprintf(address, sizeof address, "%s", lm_server_address(server));
  join(&good, address, 0, size);
  for (int i = 0; i < BAD; i++) join(&bad[i], address, next++, size);
  for (uint32_t k = 0; k < BATCHES; k++) {
    member *m = &bad[below(BAD)];
    if (m->fd < 0 && (whole || next == size)) break;
    if (m->fd < 0) join(m, address, next++, size);
    if (!whole && one_in(2)) be_strange(address);
    if (!whole && one_in(4)) be_no_member(address, size);
    for (int i = 0; i < BATCH; i++) put_from_member(&b, (uint32_t)size, peaceful);
    put_probe(&b, PROBE + k);
    size_t at = b.n;
    if (one_in(20)) {
      at = lm_message_begin(&b, LM_M_GOODBYE);
      put_any_goodbye(&b);
      lm_message_end(&b, at);
    } else {
      put_from_member(&b, (uint32_t)size, false);
    }
    bool fine = damage(&b, at);
    sent += BATCH + 1;
    if (member_send(m, &b) == LM_OK && reply_with(m, PROBE + k)) {
      past += BATCH + fine;
    } else {
      die("a member that can be understood was thrown out");
    }
    /* Without its header nothing that follows can be understood. Otherwise: is it out? */
    put_probe(&b, PROBE + BATCHES);
    bool out = !fine || one_in(4) || member_send(m, &b) != LM_OK || !reply_with(m, PROBE + BATCHES);
    lm_bytes_free(&b);
    if (out) member_close(m);
  }
  put_probe(&b, 2 * PROBE);
  if (member_send(&good, &b) != LM_OK || !reply_with(&good, 2 * PROBE)) die("a good member is served no more");
  for (int i = 0; i < BAD; i++) member_close(&bad[i]);
  member_close(&good);
  lm_server_release(server);
  lm_servers_finish(whole ? 5 : 0);
}

/* ---- lives of a client */

typedef struct bad_store {
  lm_client *client;
  int fd;
  uint32_t size, leavers;
  bool done, fine;
  int n;
} bad_store;

/* Sends all that the store says, with the answer among it, while the client waits for that answer. */
static lm_status say_it_all(void *ctx) {
  bad_store *s = ctx;
  lm_bytes b = {0};
  if (s->done) return LM_OK;
  s->done = true;
  for (s->n = 0; s->n < 8 * BATCH; s->n++) put_from_store(&b, s->size, &s->leavers);
  size_t at = lm_message_begin(&b, LM_M_REPLY);
  lm_put_u32(&b, 1); /* the client's first request */
  lm_put_u8(&b, 1);
  lm_put_text(&b, "here");
  lm_message_end(&b, at);
  at = b.n;
  if (one_in(4))
    put_welcome(&b, s->size);
  else
    put_from_store(&b, s->size, &s->leavers);
  s->fine = damage(&b, at);
  lm_deadline p = patience_of(20);
  if (lm_net_write(s->fd, b.data, b.n, &p) != LM_OK) die("a client does not listen");
  lm_bytes_free(&b);
  shutdown(s->fd, SHUT_WR);
  return LM_OK;
}

static void client_life(void) {
  int fds[2];
  lm_client_config config = {.rank = 1, .size = 3, .heartbeat_timeout = 10};
  lm_client *c;
  bad_store s = {.size = 3};
  lm_bytes b = {0};
  bool again, found;
  void *data;
  size_t n;
  char text[1024];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) die("no sockets");
  s.fd = fds[1];
  lm_deadline p = patience_of(20);
  /* The welcome, sometimes a bad one; a client that does not take it ends. */
  put_welcome(&b, s.size);
  sent++;
  bool spoilt = one_in(8);
  past += spoilt ? damage(&b, 0) : true;
  if (lm_net_write(s.fd, b.data, b.n, &p) != LM_OK) die("no room for a welcome");
  lm_bytes_free(&b);
  if (spoilt) shutdown(s.fd, SHUT_WR);
  if (lm_client_open(&config, fds[0], &c) != LM_OK) die("no client");
  s.client = c;
  lm_status status = lm_client_welcome(c, &p, &again);
  if (!spoilt && status != LM_OK) die("a client does not take its welcome");
  if (!spoilt) {
    lm_deadline listening = patience_of(20);
    listening.check = say_it_all;
    listening.ctx = &s;
    status = lm_client_get(c, "key", true, &listening, &found, &data, &n);
    if (status != LM_OK || !found || n != 4 || memcmp(data, "here", 4) != 0) die("a client missed its answer");
    lm_free(data);
    sent += s.n + 1;
    past += s.n + s.fine;
  }
  /* It continues until it has seen the end; then all that it learned is asked for. */
  lm_client_get(c, "key", true, &p, &found, &data, &n);
  const lm_failure *cause = lm_client_cause(c);
  if (cause) lm_failure_text(cause, text, sizeof text);
  for (int r = 0; r < config.size; r++) {
    double at;
    uint64_t completed;
    lm_ticket last;
    lm_client_left(c, r, below(4), &at, &completed, &last);
  }
  lm_missing missing;
  lm_client_missing(c, 1, 1, 0, NULL, 0.01, &missing);
  lm_missing_text(&missing, text, sizeof text);
  lm_missing_free(&missing);
  lm_client_free(c);
  close(s.fd);
}

int main(int argc, char **argv) {
  long count = argc > 1 ? atol(argv[1]) : 20000;
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
  if (count < 1 || argc > 3) {
    fprintf(stderr, "store_fuzz [count [seed]]\n");
    return 2;
  }
  printf("seed %llu\n", (unsigned long long)seed);
  fflush(stdout);
  state = seed * 2654435761u + 88172645463325252u;
  lm_key_make("fuzz", NULL, &key);
  double before = lm_seconds();
  while (sent < count) {
    store_life();
    client_life();
  }
  printf("%ld messages in %.1f s, %.1f %% of them past the header\n", sent, lm_seconds() - before,
         100.0 * (double)past / (double)sent);
  if (past * 2 < sent) die("too few got past the header");
  return 0;
}
