/* Lists the scans. For C and CUDA. */
#pragma once

/* Integers have SUM, PRODUCT, MAX and MIN. In MAX and MIN the last of equal elements wins, and NaN wins over all. */
typedef enum lm_scan_kind {
  LM_SCAN_SUM,
  LM_SCAN_PRODUCT,
  LM_SCAN_MAX,
  LM_SCAN_MIN,
  LM_SCAN_LOGSUMEXP,
  LM_SCAN_RECURRENCE, /* y[i] = x[i] + decay[i] y[i - 1] */
  LM_SCAN_KINDS
} lm_scan_kind;
