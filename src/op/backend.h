/* Includes what a device's plug-in needs: its table of kernels, ids and argument structs of ops, and LM_BACKEND_ABI, by
 * which the core checks that the plug-in was built with the same headers. */
#pragma once

#include "abi_backend.h"
#include "op/kernels.h"
#include "op_entries.h"
