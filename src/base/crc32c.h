/* Computes CRC-32C, the checksum with Castagnoli's polynomial that iSCSI, ext4 and TensorBoard's files use. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Returns the checksum of n bytes; `before` is 0, or the checksum of the bytes before them. */
LM_API uint32_t lm_crc32c(uint32_t before, const void *data, size_t n);
