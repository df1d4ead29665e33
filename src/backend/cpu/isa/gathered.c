#include "backend/cpu/isa/gathered.h"

#include <string.h>

#include "backend/cpu/isa/elem.h"
#include "backend/cpu/isa/lanes.h"
#include "backend/cpu/isa/matmul/register_tile.h"

/* Columns are computed two vectors at a time, as panels have them, and the last ones in up to three vectors, counted in
 * halves: with AVX-512 a half costs half as much on some processors, and never more. */
enum { WHOLE = 4, WIDEST = 6 };
#if defined(__AVX512F__)
enum { LEAST = 1 };
#define EACH_WIDTH(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#else
enum { LEAST = 2 };
#define EACH_WIDTH(X, ...) X(2, __VA_ARGS__) X(6, __VA_ARGS__)
#endif
/* Rows of a tile of three vectors; rows whose runs are placed together, a multiple of both tiles' rows. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { WIDE_ROWS = TILE, TOGETHER = TILE };
#else
enum { WIDE_ROWS = 4, TOGETHER = 12 };
#endif
#define ROWS_BY(halves) ((halves) > WHOLE ? WIDE_ROWS : TILE)
enum { FEW = 4 }; /* columns beyond whole vectors that are summed along runs, at most */

#define LM_TEMPLATE "backend/cpu/isa/templates/gathered.inc"
#include "backend/cpu/isa/templates/each_real.inc"
