/* CRC-32C: the checksum with Castagnoli's polynomial, of iSCSI, ext4 and TensorBoard's files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Of n bytes; before: 0, or the checksum of the bytes before them. */
LM_API uint32_t lm_crc32c(uint32_t before, const void *data, size_t n);
