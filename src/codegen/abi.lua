--- Writes abi_<table>.h: numbers by which the core checks that a plug-in was built with the same headers. Each is a
--- hash of a table's header and all headers that it includes, without comments and spaces:
---
---   luajit src/codegen/abi.lua SOURCE OUT     OUT: folder of generated headers
local source, out = arg[1], arg[2]
package.path = source .. "/src/codegen/?.lua;" .. package.path
local text = require "text"

local function find_header(name)
  for _, folder in ipairs {source .. "/src", source .. "/kernels", out} do
    local file = io.open(folder .. "/" .. name)
    if file then
      file:close()
      return folder .. "/" .. name
    end
  end
  error(("abi.lua: there is no header %s"):format(name), 0)
end

-- Appends a header's text to parts, after the headers that it includes, each once.
local function gather_headers(name, seen, parts)
  if seen[name] or name:find "^abi_" then return parts end
  seen[name] = true
  local whole = text.read(find_header(name)):gsub("/%*.-%*/", " "):gsub("//[^\n]*", " ")
  for included in whole:gmatch('#include "([^"]+)"') do gather_headers(included, seen, parts) end
  parts[#parts + 1] = whole:gsub("%s+", " ")
  return parts
end

local function hash(parts)
  local sum = 0
  for byte in table.concat(parts):gmatch(".") do sum = (sum * 31 + byte:byte()) % 0x7fffffff end
  return sum
end

local tables = {{"DRIVER", "device/driver.h"}, {"BACKEND", "op/backend.h"}, {"GROUP", "distributed/group/backend.h"}}
for _, row in ipairs(tables) do
  local number = ("enum { LM_%s_ABI = %d }; /* %s */\n"):format(row[1], hash(gather_headers(row[2], {}, {})), row[2])
  text.write(("%s/abi_%s.h"):format(out, row[1]:lower()),
    "/* Written by src/codegen/abi.lua. */\n#pragma once\n\n" .. number)
end
