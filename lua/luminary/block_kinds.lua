--- Lists the kinds of quantized blocks, as GGUF files store them (ggml's ggml-quants.c). The build writes block_kinds.h
--- from it, in this order, for kernels/blocks.h; readers and writers of files look kinds up.
---
--- A row of a matrix consists of blocks of `bytes` bytes for `elements` numbers. A number's integer has low bits and,
--- in some kinds, high ones above them, each in fields {at, span, width}: from byte `at` on, `span` bytes hold the
--- lowest `width` bits for `span` elements, their next bits those of the next `span` elements, up to 8 bits; then come
--- further such bytes. The number is scale * (integer - zero) - minimum, or scale * (table[integer + 1] - zero).
---
--- scales: the form of scales and minima, one for each `group` elements, in lm_block_scales of kernels/blocks.h;
--- flip: a mask that integers are combined with by exclusive or; number: GGUF's.
local list = {}

local function kind(name, number, bytes, elements, group, scales, low, more)
  local row = {
    name = name, number = number, bytes = bytes, elements = elements, group = group, scales = scales, low = low,
    zero = 0, flip = 0, high = {0, 32, 0},
  }
  for key, value in pairs(more or {}) do row[key] = value end
  list[#list + 1], list[name] = row, row
end

-- Tables of uneven integers, and of twice E2M1's: 1 sign bit, 2 exponent bits, 1 mantissa bit; plus their zero.
local uneven = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}
local e2m1 = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}

kind("q8_0", 8, 34, 32, 32, "half", {2, 32, 8}, {zero = 128, flip = 128})
kind("q4_0", 2, 18, 32, 32, "half", {2, 16, 4}, {zero = 8})
kind("q4_1", 3, 20, 32, 32, "half_minimum", {4, 16, 4})
kind("q5_0", 6, 22, 32, 32, "half", {6, 16, 4}, {high = {2, 1, 1}, zero = 16})
kind("q5_1", 7, 24, 32, 32, "half_minimum", {8, 16, 4}, {high = {4, 1, 1}})
kind("q2_k", 10, 84, 256, 16, "nibbles", {16, 32, 2})
kind("q3_k", 11, 110, 256, 16, "signed_six_bits", {32, 32, 2}, {high = {0, 32, 1}, zero = 4})
kind("q4_k", 12, 144, 256, 32, "six_bits", {16, 32, 4})
kind("q5_k", 13, 176, 256, 32, "six_bits", {48, 32, 4}, {high = {16, 32, 1}})
kind("q6_k", 14, 210, 256, 16, "signed_bytes", {0, 64, 4}, {high = {128, 32, 2}, zero = 32})
kind("iq4_nl", 20, 18, 32, 32, "half", {2, 16, 4}, {zero = 128, table = uneven})
kind("iq4_xs", 23, 136, 256, 32, "split_six_bits", {8, 16, 4}, {zero = 128, table = uneven})
kind("mxfp4", 39, 17, 32, 32, "exponent", {1, 16, 4}, {zero = 12, table = e2m1})

--- Maps GGUF's numbers to kinds.
list.by_number = {}
--- The kinds' names, in order.
list.names = {}
for i, row in ipairs(list) do list.by_number[row.number], list.names[i] = row, row.name end

return list
