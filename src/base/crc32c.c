#include "base/crc32c.h"

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

static uint32_t by_bits(uint32_t crc, const unsigned char *p, size_t n) {
  for (; n > 0; n--) {
    crc ^= *p++;
    for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0); /* the polynomial's bits, reversed */
  }
  return crc;
}

#ifdef CRC_TARGET
CRC_TARGET static uint32_t by_instruction(uint32_t crc, const unsigned char *p, size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t eight;
    memcpy(&eight, p, sizeof eight);
    crc = (uint32_t)CRC_8(crc, eight);
  }
  for (; n > 0; n--) crc = CRC_1(crc, *p++);
  return crc;
}
#else
#define by_instruction by_bits
#endif

uint32_t lm_crc32c(uint32_t before, const void *data, size_t n) {
  return ~(has_instruction() ? by_instruction : by_bits)(~before, data, n);
}
