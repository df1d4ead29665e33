--- Writes generated_prelude.inc: the kernels' headers that kernels written at run time include, as one text:
---
---   luajit src/backend/cuda/embed_headers.lua SOURCE OUT     OUT: folder of generated headers
local source, out = arg[1], arg[2]
package.path = source .. "/src/codegen/?.lua;" .. package.path
local text = require "text"

local function find_header(name)
  for _, folder in ipairs {source .. "/kernels", out} do
    local file = io.open(folder .. "/" .. name)
    if file then
      file:close()
      return folder .. "/" .. name
    end
  end
  error(("embed_headers.lua: there is no header %s"):format(name), 0)
end

-- Appends a header's lines to `lines`, with those of our headers that it includes, each once. Headers of the system
-- stay includes, which NVRTC does not see.
local function append(name, seen, lines)
  if seen[name] then return lines end
  seen[name] = true
  local whole = text.read(find_header(name)):gsub("/%*.-%*/", " ")
  for line in whole:gmatch "[^\n]+" do
    local ours = line:match '^#include "([^"]+)"'
    if ours then
      append(ours, seen, lines)
    elseif line:find "^#include <" then
      for _, each in ipairs {"#ifndef __CUDACC_RTC__", line, "#endif"} do lines[#lines + 1] = each end
    elseif line:find "%S" and not line:find "^#pragma once" then
      lines[#lines + 1] = line:gsub("^%s+", ""):gsub("%s+$", "")
    end
  end
  return lines
end

local whole = table.concat(append("generated.cuh", {}, {}), "\n") .. "\n"
local bytes = whole:gsub(".", function(c) return c:byte() .. "," end):gsub(("[^,]*,"):rep(40), "%0\n")
text.write(out .. "/generated_prelude.inc", "/* Written by src/backend/cuda/embed_headers.lua. */\n"
  .. "static const char prelude[] = {\n" .. bytes .. "0};\n")
