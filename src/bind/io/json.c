/* Decodes JSON: json_decode(text [, null [, each]])   the value of a JSON text. A key that appears twice is an error,
 *         and so is null unless a value is passed for it. With a function `each` the members of the outermost object
 * are not kept: each(key, value, n) is called for each, where n is the value's number of members if it is an object. A
 * table `each` gets, by object, the list of its keys in the text's order is_utf8_text(s)   true if a string is UTF-8
 * without a NUL byte
 *
 * All memory is Lua's or a userdata's, so that any function may raise. Strings keep their NUL bytes, as \u0000.
 *
 * No library reads such files: cJSON ends a string at NUL, Jansson rejects NUL in a key, which vocabularies have,
 * json-c does either; yajl has had no release since 2014. */
#include "base/c_stack.h"
#include "base/message.h"
#include "bind/bind.h"
#include "text/characters.h"

/* Limits. MAX_VALUES bounds the memory of a text's values: an empty table takes 64 bytes for two of text. */
enum { MAX_VALUES = 1 << 22, MAX_DEPTH = 1000, STACK = 16 << 10 /* bytes that errors need */ };

static const char fn[] = "json_decode";

/* Pairs of a character and the letter that escapes it. */
static const char letters[] = "\"\"\\\\//\bb\ff\nn\rr\tt";

typedef struct decoder {
  lua_State *L; /* the text is at 1, the value for null at 2, `each` at 3 */
  const char *text, *at, *end;
  lm_bytes *unescaped; /* the current string's text up to its last escape */
  int left, depth;
  int members; /* number of members of the last object read */
} decoder;

static void malformed(const decoder *d, const char *at, const char *reason) {
  lm_raise_text(d->L, "json_decode: malformed JSON at byte %lld: %s", (long long)(at - d->text) + 1, reason);
}

/* Skips white space; returns the next character without taking it, or 0 at the end. */
static char peek_json(decoder *d) {
  while (d->at < d->end && (*d->at == ' ' || *d->at == '\n' || *d->at == '\t' || *d->at == '\r')) d->at++;
  return d->at < d->end ? *d->at : 0;
}

static bool take_char(decoder *d, char c) {
  bool is = peek_json(d) == c;
  d->at += is;
  return is;
}

static void expect(decoder *d, char c) {
  if (!take_char(d, c)) malformed(d, d->at, lm_text("expected '%c'", c));
}

/* Returns the 16-bit unit of the \uXXXX at p; -1 if there is no such escape. */
static int read_unit(const decoder *d, const char *p) {
  int unit = 0;
  if (d->end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
  for (int i = 2; i < 6; i++) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *digit = p[i] ? strchr(digits, p[i]) : NULL;
    if (!digit) return -1;
    unit = unit << 4 | (int)((digit - digits) & 15);
  }
  return unit;
}

/* Appends the character of the escape at p to d->unescaped; returns the text after the escape. */
static const char *unescape(decoder *d, const char *p) {
  int unit = read_unit(d, p), low;
  char out[4];
  if (unit >= 0) {
    uint32_t c = (uint32_t)unit;
    const char *next = p + 6;
    if (unit >= 0xd800 && unit < 0xdc00 && (low = read_unit(d, next)) >= 0xdc00 && low < 0xe000) {
      c = 0x10000 + (((uint32_t)unit & 0x3ff) << 10 | ((uint32_t)low & 0x3ff));
      next += 6;
    } else if (unit >= 0xd800 && unit < 0xe000) {
      malformed(d, p, "half of a surrogate pair");
    }
    lm_put(d->unescaped, out, (size_t)lm_char_put(out, c));
    return next;
  }
  for (int i = 0; p + 1 < d->end && letters[i]; i += 2) {
    if (letters[i + 1] != p[1]) continue;
    lm_put_u8(d->unescaped, (uint8_t)letters[i]);
    return p + 2;
  }
  malformed(d, p, "unknown escape in a string");
  return NULL;
}

static void push_string(decoder *d) {
  const char *from = d->at + 1, *p = from;
  d->unescaped->n = 0;
  for (; p < d->end && *p != '"' && *p; p++) {
    if (*p != '\\') continue;
    lm_put(d->unescaped, from, (size_t)(p - from));
    from = unescape(d, p);
    p = from - 1;
  }
  if (p == d->end) malformed(d, d->at, "a string without its closing quote");
  if (!*p) malformed(d, p, "a NUL byte; write it as \\u0000");
  d->at = p + 1;
  if (d->unescaped->n == 0) {
    lua_pushlstring(d->L, from, (size_t)(p - from));
    return;
  }
  lm_put(d->unescaped, from, (size_t)(p - from));
  if (d->unescaped->failed) lm_raise(d->L, lm_fail_memory("memory for JSON"));
  lua_pushlstring(d->L, d->unescaped->data, d->unescaped->n);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void push_number(decoder *d) {
  enum { EXACT = 15 }; /* digits that a double holds */
  const char *p = d->at + (*d->at == '-'), *digits = p;
  int64_t v = 0;
  for (; p < d->end && is_digit(*p) && p - digits <= EXACT; p++) v = v * 10 + (*p - '0');
  bool more = p < d->end && (is_digit(*p) || *p == '.' || *p == 'e' || *p == 'E');
  if (p > digits && p - digits <= EXACT && !more) {
    lua_pushnumber(d->L, *d->at == '-' ? -(double)v : (double)v);
  } else { /* converted by Lua, which ignores the locale */
    while (p < d->end && (is_digit(*p) || (*p && strchr("+-.eE", *p)))) p++;
    lua_pushlstring(d->L, d->at, (size_t)(p - d->at));
    if (!lua_isnumber(d->L, -1)) malformed(d, d->at, "expected a number");
    double number = lua_tonumber(d->L, -1);
    lua_pop(d->L, 1);
    lua_pushnumber(d->L, number);
  }
  d->at = p;
}

static void push_value(decoder *d);

/* Replaces the n values on top of the stack by a list of them. */
static void make_list(lua_State *L, int n) {
  lua_createtable(L, n, 0);
  lua_insert(L, -n - 1);
  for (int i = n; i > 0; i--) lua_rawseti(L, -i - 1, i);
}

static void push_list(decoder *d) {
  enum { FEW = 4 }; /* most lists have no more values, and so get a table of their exact size */
  int n = 0;
  for (bool more = peek_json(d) != ']'; more; more = take_char(d, ',')) {
    push_value(d);
    n++;
    if (n == FEW) make_list(d->L, n);
    if (n > FEW) lua_rawseti(d->L, -2, n);
  }
  if (n < FEW) make_list(d->L, n);
  expect(d, ']');
}

static void push_object(decoder *d) {
  lua_State *L = d->L;
  bool more = peek_json(d) != '}', keep = d->depth > 1 || !lua_isfunction(L, 3), ordered = lua_istable(L, 3);
  int members = 0;
  lua_createtable(L, 0, more && keep ? 4 : 0);
  if (ordered) {
    lua_pushvalue(L, -1);
    lua_newtable(L); /* the keys, kept by the table at 3 */
    lua_pushvalue(L, -1);
    lua_insert(L, -4);
    lua_rawset(L, 3);
  }
  for (; more; more = take_char(d, ','), members++) {
    if (!keep) lua_pushvalue(L, 3);
    if (peek_json(d) != '"') malformed(d, d->at, "expected a key in quotes");
    const char *begins = d->at;
    push_string(d);
    expect(d, ':');
    if (keep) {
      lua_pushvalue(L, -1);
      lua_rawget(L, -3);
      if (!lua_isnil(L, -1)) {
        malformed(d, begins, lm_text("key '%s' appears twice", lm_ellipsize(lua_tostring(L, -2), 60)));
      }
      lua_pop(L, 1);
    }
    if (ordered) {
      lua_pushvalue(L, -1);
      lua_rawseti(L, -4, members + 1);
    }
    d->members = 0;
    push_value(d);
    if (keep) {
      lua_rawset(L, -3);
    } else {
      lua_pushnumber(L, d->members);
      lua_call(L, 3, 0);
    }
  }
  expect(d, '}');
  if (ordered) lua_remove(L, -2);
  d->members = members;
}

static bool accept_word(decoder *d, const char *word) {
  size_t n = strlen(word);
  bool is = (size_t)(d->end - d->at) >= n && memcmp(d->at, word, n) == 0;
  if (is) d->at += n;
  return is;
}

static void push_value(decoder *d) {
  lua_State *L = d->L;
  char c = peek_json(d);
  if (--d->left < 0) lm_raise(L, lm_fail_value(fn, "the number of values", lm_text("at most %d", MAX_VALUES), "more"));
  if (c == '"') {
    push_string(d);
  } else if (c == '[' || c == '{') {
    if (d->depth == MAX_DEPTH || lm_stack_left() < STACK)
      malformed(d, d->at, lm_text("nested more than %d deep", d->depth));
    luaL_checkstack(L, 16, fn);
    d->at++;
    d->depth++;
    (c == '[' ? push_list : push_object)(d);
    d->depth--;
  } else if (is_digit(c) || c == '-') {
    push_number(d);
  } else if (accept_word(d, "true")) {
    lua_pushboolean(L, true);
  } else if (accept_word(d, "false")) {
    lua_pushboolean(L, false);
  } else if (!accept_word(d, "null")) {
    malformed(d, d->at, "expected a JSON value");
  } else if (lua_isnil(L, 2)) {
    lm_raise_text(L, "json_decode: null has no value in Lua");
  } else {
    lua_pushvalue(L, 2);
  }
}

LM_FUNCTION(json_decode, (string, text), (any, null), (any, each)) {
  decoder d = {L, text.text, text.text, text.text + text.n, lm_buffer_new(L), MAX_VALUES, 0, 0};
  if (text.n >= 3 && memcmp(text.text, "\xef\xbb\xbf", 3) == 0) d.at += 3; /* UTF-8's byte order mark */
  push_value(&d);
  peek_json(&d);
  if (d.at < d.end) malformed(&d, d.at, "data follows the value");
  lm_bytes_free(d.unescaped);
  return 1;
}

LM_FUNCTION(is_utf8_text, (string, s)) {
  return lm_return_bool(L, !memchr(s.text, 0, s.n) && lm_utf8_check(s.text, s.n) == s.n);
}
