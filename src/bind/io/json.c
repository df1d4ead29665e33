/* JSON text of plain Lua values and back, by cJSON: descriptions in checkpoints, the CLI's reports.
 *
 *   json_encode(value)  text without spaces; a table with a [1] is an array, any other an object of
 *                       its string keys in sorted order, so that equal tables give equal text; other
 *                       keys beside a [1] are an error
 *   json_decode(text [, null])
 *       a key that is there twice is an error, and so is null unless a value is given that stands for it
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "io/safetensors_dtypes.h"

enum { DEEPEST = 256, MAX_VALUES = LM_JSON_VALUES }; /* tables may hold one another many times over */

/* The tree belongs to a userdata while Lua runs, so that an error frees it. */
static void free_tree(void *object) {
  cJSON **tree = object;
  cJSON_Delete(*tree);
  *tree = NULL;
}
static const lm_object_type holder_type = {"luminary.json", sizeof(cJSON *), free_tree, NULL, NULL};

typedef struct named {
  const char *name; /* Lua's own, kept alive by the table */
  cJSON *item;
} named;

static int compare_names(const void *a, const void *b) {
  return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static const char encoder[] = "json_encode", decoder[] = "json_decode";

/* cJSON fails without a message when memory runs out. */
static lm_status no_memory(void) { return lm_fail_memory("memory for JSON"); }

/* The shortest text that reads back as v: cJSON's own may lose the last bits. In any locale. */
static cJSON *create_number(double v) {
  char text[40], *to = text;
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, v);
    if (strtod(text, NULL) == v) break;
  }
  for (const char *from = text; *from; from++) {
    if (strchr("0123456789+-e.", *from)) {
      *to++ = *from;
    } else if (to == text || to[-1] != '.') { /* the locale's point, of one byte or more */
      *to++ = '.';
    }
  }
  *to = 0;
  return cJSON_CreateRaw(text);
}

/* Nothing below raises or allocates in Lua: keys and values are on the stack already when read. */
static lm_status encode(lua_State *L, int i, int depth, int *left, cJSON **out);

/* Fails if the table has keys but 1 to n. */
static lm_status check_list(lua_State *L, int i, int n) {
  lm_status status = LM_OK;
  for (lua_pushnil(L); status == LM_OK && lua_next(L, i); lua_pop(L, 1)) {
    bool number = lua_type(L, -2) == LUA_TNUMBER;
    lua_Number k = number ? lua_tonumber(L, -2) : 0;
    if (number && k >= 1 && k <= n && k == floor(k)) continue;
    char key[80] = "";
    if (number) snprintf(key, sizeof key, "%.14g", k);
    if (lua_type(L, -2) == LUA_TSTRING) snprintf(key, sizeof key, "'%s'", lm_ellipsize(lua_tostring(L, -2), 60));
    status = lm_fail_value(encoder, "a table", "a list or an object",
                           lm_text("a list of %d with the key %s", n, *key ? key : luaL_typename(L, -2)));
  }
  if (status != LM_OK) lua_pop(L, 1);
  return status;
}

static lm_status encode_array(lua_State *L, int i, int depth, int *left, cJSON *array) {
  lm_status status = LM_OK;
  int n = 0;
  for (int k = 1; status == LM_OK; k++) {
    lua_rawgeti(L, i, k);
    cJSON *item = NULL;
    bool end = lua_isnil(L, -1);
    if (!end) status = encode(L, lua_gettop(L), depth + 1, left, &item);
    lua_pop(L, 1);
    if (end) break;
    if (status == LM_OK && !cJSON_AddItemToArray(array, item)) status = no_memory();
    n = k;
  }
  return status == LM_OK ? check_list(L, i, n) : status;
}

static lm_status encode_object(lua_State *L, int i, int depth, int *left, cJSON *object) {
  lm_status status = LM_OK;
  size_t n = 0, capacity = 0, added = 0;
  named *list = NULL;
  lua_pushnil(L);
  while (status == LM_OK && lua_next(L, i)) {
    size_t bytes = 0;
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tolstring(L, -2, &bytes) : NULL;
    if (!lm_list_grow(&list, &capacity, n + 1, sizeof *list)) status = LM_E_OOM;
    if (!name) {
      status = lm_fail_value(encoder, "a key", "a string, or 1 to n", lm_text("a %s", luaL_typename(L, -2)));
    } else if (strlen(name) != bytes) {
      status =
          lm_fail_value(encoder, "a key", "text without a NUL byte", lm_text("'%s\\0...'", lm_ellipsize(name, 60)));
    } else if (status == LM_OK) {
      list[n].name = name;
      status = encode(L, lua_gettop(L), depth + 1, left, &list[n].item);
      n += status == LM_OK;
    }
    lua_pop(L, status == LM_OK ? 1 : 2);
  }
  if (n > 1) qsort(list, n, sizeof *list, compare_names);
  for (; added < n && status == LM_OK; added += status == LM_OK) {
    if (!cJSON_AddItemToObject(object, list[added].name, list[added].item)) status = no_memory();
  }
  for (; added < n; added++) cJSON_Delete(list[added].item);
  lm_free(list);
  return status;
}

static lm_status encode(lua_State *L, int i, int depth, int *left, cJSON **out) {
  lm_status status = LM_OK;
  *out = NULL;
  if (depth > DEEPEST || !lua_checkstack(L, 8)) {
    return lm_fail_value(encoder, "tables", lm_text("nested at most %d deep", DEEPEST),
                         "deeper ones, or a table that contains itself");
  }
  if (--*left < 0) return lm_fail_value(encoder, "the number of values", lm_text("at most %d", MAX_VALUES), "more");
  switch (lua_type(L, i)) {
    case LUA_TBOOLEAN: *out = cJSON_CreateBool(lua_toboolean(L, i)); break;
    case LUA_TSTRING:
      if (strlen(lua_tostring(L, i)) != lua_objlen(L, i)) {
        return lm_fail_value(encoder, "a string", "text without a NUL byte", "one with a NUL byte");
      }
      *out = cJSON_CreateString(lua_tostring(L, i));
      break;
    case LUA_TNUMBER:
      if (!isfinite(lua_tonumber(L, i))) return lm_fail_number(encoder, "a number", "finite", lua_tonumber(L, i));
      *out = create_number(lua_tonumber(L, i));
      break;
    case LUA_TTABLE:
      lua_rawgeti(L, i, 1);
      bool list = !lua_isnil(L, -1);
      lua_pop(L, 1);
      *out = list ? cJSON_CreateArray() : cJSON_CreateObject();
      if (*out) status = (list ? encode_array : encode_object)(L, i, depth, left, *out);
      break;
    default:
      return lm_fail_value(encoder, "a value", "a table, a string, a number or a boolean",
                           lm_text("a %s", luaL_typename(L, i)));
  }
  if (!*out) return no_memory();
  if (status != LM_OK) {
    cJSON_Delete(*out);
    *out = NULL;
  }
  return status;
}

static int bind_encode(lua_State *L) {
  if (lua_gettop(L) != 1) return lm_raise(L, lm_fail_int(encoder, "the number of arguments", "1", lua_gettop(L)));
  cJSON **tree = lm_object_new(L, &holder_type);
  int left = MAX_VALUES;
  lm_need(L, encode(L, 1, 0, &left, tree));
  char *text = cJSON_PrintUnformatted(*tree);
  if (!text) return lm_raise(L, no_memory());
  cJSON_Delete(*tree);
  *tree = cJSON_CreateStringReference(text); /* so that the text is not lost if Lua runs out of memory */
  if (*tree) (*tree)->type &= ~cJSON_IsReference;
  lua_pushstring(L, text);
  if (!*tree) cJSON_free(text);
  return 1;
}

/* Deep trees are refused by cJSON itself (CJSON_NESTING_LIMIT). What stands for null is at 2. */
static void push_json(lua_State *L, const cJSON *item) {
  luaL_checkstack(L, 8, "json_decode");
  if (cJSON_IsArray(item)) {
    lua_createtable(L, cJSON_GetArraySize(item), 0);
    int k = 0;
    for (const cJSON *c = item->child; c; c = c->next) {
      push_json(L, c);
      lua_rawseti(L, -2, ++k);
    }
  } else if (cJSON_IsObject(item)) {
    lua_newtable(L);
    for (const cJSON *c = item->child; c; c = c->next) {
      lua_pushstring(L, c->string);
      lua_pushvalue(L, -1);
      lua_rawget(L, -3);
      if (!lua_isnil(L, -1))
        lm_raise_text(L, "json_decode: malformed JSON: key '%s' appears twice", lm_ellipsize(c->string, 60));
      lua_pop(L, 1);
      push_json(L, c);
      lua_rawset(L, -3);
    }
  } else if (cJSON_IsString(item)) {
    lua_pushstring(L, item->valuestring);
  } else if (cJSON_IsNumber(item)) {
    lua_pushnumber(L, item->valuedouble);
  } else if (cJSON_IsBool(item)) {
    lua_pushboolean(L, cJSON_IsTrue(item));
  } else if (!lua_isnoneornil(L, 2)) {
    lua_pushvalue(L, 2);
  } else {
    lm_raise_text(L, "json_decode: null has no value in Lua");
  }
}

/* How many arrays and objects are open at `end`. */
static int depth_at(const char *text, const char *end) {
  int depth = 0;
  bool quoted = false;
  for (const char *p = text; p < end; p++) {
    if (quoted && *p == '\\') {
      p++;
    } else if (*p == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      depth += (*p == '[' || *p == '{') - (*p == ']' || *p == '}');
    }
  }
  return depth;
}

static int bind_decode(lua_State *L) {
  lua_settop(L, 2);
  if (lua_type(L, 1) != LUA_TSTRING) return lm_raise_arg(L, 1, decoder, "text", "a string");
  size_t n;
  const char *text = lua_tolstring(L, 1, &n), *end = NULL;
  if (lm_json_has_zero(text, n))
    return lm_raise(L, lm_fail_value(decoder, "a string", "text without a NUL byte", "one with a NUL byte"));
  if (lm_json_values(text, n) > MAX_VALUES)
    return lm_raise(L, lm_fail_value(decoder, "the number of values", lm_text("at most %d", MAX_VALUES), "more"));
  cJSON **tree = lm_object_new(L, &holder_type);
  *tree = cJSON_ParseWithLengthOpts(text, n + 1, &end, 1);
  if (!*tree) {
    int at = (int)(end ? end - text + 1 : 1);
    if (end && depth_at(text, end) >= CJSON_NESTING_LIMIT) {
      return lm_raise_text(L, "json_decode: malformed JSON at byte %d: nested more than %d deep", at,
                           CJSON_NESTING_LIMIT);
    }
    return lm_raise_text(L, "json_decode: malformed JSON at byte %d", at);
  }
  push_json(L, *tree);
  free_tree(tree);
  return 1;
}

const luaL_Reg lm_json_functions[] = {{"json_encode", bind_encode}, {"json_decode", bind_decode}, {NULL, NULL}};
