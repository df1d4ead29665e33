/* The kinds of device that this library brings plug-ins for. */
#pragma once

enum { LM_CUDA = 1 }; /* its place in lm_known_kinds */
