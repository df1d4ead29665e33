#include "base/nearest_word.h"

#include <string.h>

#include "integers.h"

enum { LONGEST = 48 };

/* Returns the optimal string alignment distance. */
static int edit_distance(const char *a, int na, const char *b, int nb) {
  int row[3][LONGEST + 1]; /* distances of a's first i characters to b's first j; rows i - 2, i - 1, i */
  for (int j = 0; j <= nb; j++) row[0][j] = j;
  for (int i = 1; i <= na; i++) {
    int *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
    now[0] = i;
    for (int j = 1; j <= nb; j++) {
      int replace = before[j - 1] + (a[i - 1] != b[j - 1]);
      now[j] = lm_min(replace, lm_min(before[j], now[j - 1]) + 1);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = lm_min(now[j], earlier[j - 2] + 1);
    }
  }
  return row[na % 3][nb];
}

const char *lm_nearest(const char *word, int n, const char *const *names) {
  const char *best = NULL;
  int best_edits = 0, length = (int)strnlen(word, LONGEST + 1);
  if (length == 0 || length > LONGEST) return NULL;
  for (int i = 0; i < n; i++) {
    int other = (int)strnlen(names[i], LONGEST + 1);
    if (other > LONGEST) continue;
    int e = edit_distance(word, length, names[i], other), longer = length > other ? length : other;
    if (e > 1 && e * 3 > longer) continue;
    if (!best || e < best_edits) best = names[i], best_edits = e;
  }
  return best;
}
