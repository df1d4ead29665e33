/* Checks base/mem.h's lists: arrays that grow keep what they hold, also where memory runs out, and linked items. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "integers.h"

typedef struct item {
  int number;
  struct item *next;
} item;

static void check_growth(void) {
  int *list = NULL;
  size_t capacity = 0;
  for (size_t n = 0; n < 1000; n++) {
    assert(lm_list_grow(&list, &capacity, n + 1, sizeof *list) && capacity > n);
    list[n] = (int)n;
  }
  assert(capacity < 2000);
  lm_alloc_fail_from(1);
  size_t before = capacity;
  assert(!lm_list_grow(&list, &capacity, capacity + 1, sizeof *list) && capacity == before);
  assert(strstr(lm_error(), "out of memory"));
  assert(lm_list_grow(&list, &capacity, capacity, sizeof *list)); /* the list already has this capacity */
  lm_alloc_fail_from(0);
  assert(!lm_list_grow(&list, &capacity, SIZE_MAX / 2, sizeof *list) && capacity == before);
  for (int i = 0; i < 1000; i++) assert(list[i] == i);
  lm_free(list);
}

static void check_growth_from_own_memory(void) {
  int first[3] = {1, 2, 3}, *list = first;
  size_t capacity = 3;
  assert(lm_list_grow_from(first, &list, &capacity, 3, sizeof *list) && list == first);
  assert(lm_list_grow_from(first, &list, &capacity, 4, sizeof *list) && list != first);
  list[3] = 4;
  assert(lm_list_grow_from(first, &list, &capacity, 100, sizeof *list) && capacity >= 100);
  for (int i = 0; i < 4; i++) assert(list[i] == i + 1);
  assert(first[2] == 3);
  lm_free(list);
}

static void check_links(void) {
  item items[4] = {{0, NULL}}, *list = NULL;
  for (int i = 0; i < 3; i++) LM_LINK_LAST(list, &items[i]);
  assert(!LM_UNLINK(list, &items[3]));
  assert(LM_UNLINK(list, &items[1]) && list == &items[0] && items[0].next == &items[2]);
  assert(LM_UNLINK(list, &items[0]) && list == &items[2] && !items[2].next);
  LM_LINK_LAST(list, &items[3]);
  assert(LM_UNLINK(list, &items[3]) && LM_UNLINK(list, &items[2]) && !list);
  assert(!LM_UNLINK(list, &items[2]));
}

static void check_integers(void) {
  assert(lm_ceil_div(0, 7) == 0 && lm_ceil_div(1, 7) == 1 && lm_ceil_div(7, 7) == 1 && lm_ceil_div(8, 7) == 2);
  assert(lm_round_up(0, 64) == 0 && lm_round_up(1, 64) == 64 && lm_round_up(64, 64) == 64);
  assert(lm_min(-1, 2) == -1 && lm_max(-1, 2) == 2);
}

int main(void) {
  check_growth();
  check_growth_from_own_memory();
  check_links();
  check_integers();
  puts("ok");
  return 0;
}
