/* Declares the number of an elementwise kernel's arguments that are numbers. */
#pragma once

enum { LM_POINTWISE_NUMBERS = 4 };
