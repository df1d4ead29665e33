/* Stores each thread's current device of a kind, which the kind's bare name stands for. */
#include "device/device.h"

static _Thread_local uint8_t ordinals[LM_DEVICE_KINDS];

lm_device lm_device_current(int kind) { return LM_DEVICE(kind, kind == LM_CPU ? 0 : ordinals[kind]); }

void lm_device_set_current(lm_device device) { ordinals[LM_DEVICE_KIND(device)] = (uint8_t)LM_DEVICE_ORDINAL(device); }
