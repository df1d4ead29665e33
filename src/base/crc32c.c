#include "base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_8 _mm_crc32_u64
#define CRC_1 _mm_crc32_u8
static bool has_instruction(void) { return true; } /* x86-64-v2 */
#elif defined(__aarch64__)
#pragma GCC push_options
#pragma GCC target("+crc")
#include <arm_acle.h>
#pragma GCC pop_options
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_8 __crc32cd
#define CRC_1 __crc32cb
static bool has_instruction(void) { return getauxval(AT_HWCAP) & 1 << 7; } /* HWCAP_CRC32 */
#else
static bool has_instruction(void) { return false; }
#endif

static uint32_t crc_by_bits(uint32_t crc, const unsigned char *p, size_t n) {
  for (; n > 0; n--) {
    crc ^= *p++;
    for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0); /* the polynomial's bits, reversed */
  }
  return crc;
}

#ifdef CRC_TARGET
CRC_TARGET static uint32_t by_words(uint32_t crc, const unsigned char *p, size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t eight;
    memcpy(&eight, p, sizeof eight);
    crc = (uint32_t)CRC_8(crc, eight);
  }
  for (; n > 0; n--) crc = CRC_1(crc, *p++);
  return crc;
}

/* The instruction takes three cycles, and one can start in each, so three lanes run side by side. CRC is linear: a sum
 * followed by LANE zero bytes is the exclusive or of its bytes' entries in after_lane. */
enum { LANE = 4096 };
static uint32_t after_lane[4][256]; /* [byte][value]: the sum with only that byte set, after LANE zero bytes */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_after_lane(void) {
  static const unsigned char zeros[LANE];
  for (int byte = 0; byte < 4; byte++)
    for (int bit = 0; bit < 8; bit++) {
      const int from = 1 << bit;
      after_lane[byte][from] = by_words((uint32_t)1 << (8 * byte + bit), zeros, LANE);
      for (int i = 1; i < from; i++) after_lane[byte][from + i] = after_lane[byte][from] ^ after_lane[byte][i];
    }
}

static uint32_t skip_lane(uint32_t crc) {
  return after_lane[0][crc & 255] ^ after_lane[1][crc >> 8 & 255] ^ after_lane[2][crc >> 16 & 255] ^
         after_lane[3][crc >> 24];
}

CRC_TARGET static uint32_t by_lanes(uint32_t crc, const unsigned char *p) {
  uint32_t second = 0, third = 0;
  for (size_t i = 0; i < LANE; i += 8) {
    uint64_t a, b, c;
    memcpy(&a, p + i, sizeof a);
    memcpy(&b, p + LANE + i, sizeof b);
    memcpy(&c, p + 2 * LANE + i, sizeof c);
    crc = (uint32_t)CRC_8(crc, a);
    second = (uint32_t)CRC_8(second, b);
    third = (uint32_t)CRC_8(third, c);
  }
  return skip_lane(skip_lane(crc) ^ second) ^ third;
}

static uint32_t crc_by_instruction(uint32_t crc, const unsigned char *p, size_t n) {
  if (n >= 3 * LANE) pthread_once(&once, fill_after_lane);
  for (; n >= 3 * LANE; p += 3 * LANE, n -= 3 * LANE) crc = by_lanes(crc, p);
  return by_words(crc, p, n);
}
#else
#define crc_by_instruction crc_by_bits
#endif

uint32_t lm_crc32c(uint32_t before, const void *data, size_t n) {
  return ~(has_instruction() ? crc_by_instruction : crc_by_bits)(~before, data, n);
}
