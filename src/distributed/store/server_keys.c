/* Stores keys and values, and replies to members that wait for a key once it is set. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/store/server_private.h"

/* Returns the link to the key's entry, or the NULL link where it would be inserted. */
static lm_entry **server_find(lm_server *s, const char *key, size_t n) {
  uint64_t hash = lm_hash(LM_NO_HASH, key, n);
  lm_entry **p = &s->slots[hash % LM_KEY_SLOTS];
  while (*p && ((*p)->hash != hash || (*p)->n_key != n || memcmp((*p)->key, key, n) != 0)) p = &(*p)->next;
  return p;
}

static size_t server_cost(const lm_entry *e) { return sizeof *e + e->n_key + (e->value ? e->n : 0); }

/* Returns the key's entry, created if there is none; NULL: out of memory. */
static lm_entry *find_or_add_entry(lm_server *s, const char *key, size_t n) {
  lm_entry **p = server_find(s, key, n);
  if (*p) return *p;
  lm_entry *e = lm_calloc(1, sizeof *e + n + 1);
  if (!e) return NULL;
  e->hash = lm_hash(LM_NO_HASH, key, n);
  e->n_key = n;
  memcpy(e->key, key, n);
  *p = e;
  s->stored += server_cost(e);
  return e;
}

/* Removes an entry without value and waiters. */
static void server_tidy(lm_server *s, lm_entry **p) {
  lm_entry *e = *p;
  if (e->value || e->waiters) return;
  s->stored -= server_cost(e);
  *p = e->next;
  lm_free(e);
}

void lm_server_reply(lm_server *s, lm_conn *c, uint32_t id, bool found, const char *value, size_t n) {
  size_t at = lm_message_begin(&c->stream.out, LM_M_REPLY);
  lm_put_u32(&c->stream.out, id);
  lm_put_u8(&c->stream.out, found);
  lm_put_string(&c->stream.out, value, n);
  lm_message_end(&c->stream.out, at);
  lm_conn_send(s, c);
}

/* Sets a key and replies to its waiters. If it exceeds a limit or memory, drops the member and returns false. */
static bool server_store_value(lm_server *s, lm_conn *c, const char *key, size_t n_key, const char *value, size_t n) {
  if (n > LM_VALUE_MAX) {
    lm_conn_drop(s, c, LM_FAILURE_ERROR, "it stored a value of more than 32 MiB, the maximum");
    return false;
  }
  const lm_entry *old = *server_find(s, key, n_key);
  if (s->stored + n + sizeof *old + n_key - (old ? server_cost(old) : 0) > LM_VALUES_MAX) {
    lm_conn_drop(s, c, LM_FAILURE_ERROR,
                 "its value exceeds the 256 MiB of the store; delete keys that are no longer needed");
    return false;
  }
  char *copy = lm_malloc(n);
  lm_entry *e = copy ? find_or_add_entry(s, key, n_key) : NULL;
  if (!e) {
    lm_free(copy);
    lm_conn_no_memory(s, c);
    return false;
  }
  if (n > 0) memcpy(copy, value, n);
  s->stored -= server_cost(e);
  lm_free(e->value);
  e->value = copy;
  e->n = n;
  s->stored += server_cost(e);
  while (e->waiters) {
    lm_waiter *w = e->waiters;
    e->waiters = w->next;
    s->stored -= sizeof *w;
    w->conn->waits--;
    lm_server_reply(s, w->conn, w->id, true, e->value, e->n);
    lm_free(w);
  }
  return true;
}

static const char *read_key(lm_reader *r, size_t *n) {
  const char *key = lm_get_string(r, n);
  if (*n > LM_KEY_MAX) r->failed = true;
  return key;
}

bool lm_server_set(lm_server *s, lm_conn *c, lm_reader *r) {
  size_t n_key, n;
  const char *key = read_key(r, &n_key), *value = lm_get_string(r, &n);
  if (!lm_reader_done(r)) return false;
  server_store_value(s, c, key, n_key, value, n);
  return true;
}

bool lm_server_get(lm_server *s, lm_conn *c, lm_reader *r) {
  size_t n;
  uint32_t id = lm_get_u32(r);
  const char *key = read_key(r, &n);
  uint8_t wait = lm_get_u8(r);
  if (!lm_reader_done(r) || wait > 1) return false;
  lm_entry *e = *server_find(s, key, n);
  if (e && e->value) {
    lm_server_reply(s, c, id, true, e->value, e->n);
  } else if (!wait) {
    lm_server_reply(s, c, id, false, NULL, 0);
  } else if (s->stored + sizeof(lm_waiter) + sizeof *e + n > LM_VALUES_MAX) {
    lm_conn_drop(s, c, LM_FAILURE_ERROR, "it waits for more keys than the store can hold");
  } else {
    lm_waiter *w = lm_malloc(sizeof *w);
    e = w ? find_or_add_entry(s, key, n) : NULL;
    if (!e) {
      lm_free(w);
      lm_conn_no_memory(s, c);
      return true;
    }
    *w = (lm_waiter){c, id, e->waiters};
    e->waiters = w;
    s->stored += sizeof *w;
    c->waits++;
  }
  return true;
}

bool lm_server_add(lm_server *s, lm_conn *c, lm_reader *r) {
  size_t n_key;
  char text[32] = "";
  uint32_t id = lm_get_u32(r);
  const char *key = read_key(r, &n_key);
  uint64_t delta = lm_get_u64(r), sum = 0;
  if (!lm_reader_done(r)) return false;
  const lm_entry *e = *server_find(s, key, n_key);
  if (e && e->value) {
    char *end = text;
    if (e->n < sizeof text) memcpy(text, e->value, e->n);
    sum = (uint64_t)strtoll(text, &end, 10);
    if (e->n == 0 || e->n >= sizeof text || end != text + e->n) {
      lm_server_reply(s, c, id, false, NULL, 0); /* not a number */
      return true;
    }
  }
  int n = snprintf(text, sizeof text, "%" PRId64, (int64_t)(sum + delta));
  if (server_store_value(s, c, key, n_key, text, (size_t)n)) lm_server_reply(s, c, id, true, text, (size_t)n);
  return true;
}

/* Deletes the values of all keys with that prefix; members that wait for such a key continue to wait. */
static void drop_keys(lm_server *s, const char *prefix, size_t n) {
  for (int i = 0; i < LM_KEY_SLOTS; i++)
    for (lm_entry **p = &s->slots[i]; *p;) {
      lm_entry *e = *p;
      if (e->n_key > n && e->value && memcmp(e->key, prefix, n) == 0) {
        s->stored -= e->n;
        lm_free(e->value);
        e->value = NULL;
        e->n = 0;
        server_tidy(s, p);
      }
      if (*p == e) p = &e->next;
    }
}

/* Counts the members that have closed a group, in the key "group/<id>/done"; the last one deletes the group's keys. */
bool lm_server_forget(lm_server *s, lm_conn *c, lm_reader *r) {
  char prefix[32], key[48], count[16];
  uint32_t group = lm_get_u32(r);
  if (!lm_reader_done(r)) return false;
  size_t n = (size_t)snprintf(prefix, sizeof prefix, "group/%u/", group);
  size_t n_key = (size_t)snprintf(key, sizeof key, "%sdone", prefix);
  const lm_entry *e = *server_find(s, key, n_key);
  int done = 1;
  if (e && e->value && e->n < sizeof count) {
    memcpy(count, e->value, e->n);
    count[e->n] = 0;
    done += atoi(count);
  }
  int length = snprintf(count, sizeof count, "%d", done);
  if (done >= s->size)
    drop_keys(s, prefix, n);
  else
    server_store_value(s, c, key, n_key, count, (size_t)length);
  return true;
}

void lm_server_cancel_waits(lm_server *s, lm_conn *c) {
  for (int i = 0; i < LM_KEY_SLOTS && c->waits > 0; i++)
    for (lm_entry **p = &s->slots[i]; *p;) {
      lm_entry *e = *p;
      for (lm_waiter **w = &e->waiters; *w;) {
        lm_waiter *it = *w;
        if (it->conn != c) {
          w = &it->next;
          continue;
        }
        *w = it->next;
        s->stored -= sizeof *it;
        c->waits--;
        lm_free(it);
      }
      server_tidy(s, p);
      if (*p == e) p = &e->next;
    }
}

void lm_server_free_keys(lm_server *s) {
  for (int i = 0; i < LM_KEY_SLOTS; i++)
    while (s->slots[i]) {
      lm_entry *e = s->slots[i];
      s->slots[i] = e->next;
      while (e->waiters) {
        lm_waiter *w = e->waiters;
        e->waiters = w->next;
        lm_free(w);
      }
      lm_free(e->value);
      lm_free(e);
    }
}
