/* Lists the kinds of device that this library has plug-ins for. */
#pragma once

enum { LM_CUDA = 1 }; /* index in lm_known_kinds */
