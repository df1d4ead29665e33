--- Generates the C tables of lua/luminary/environment_variables.lua:
---
---   luajit src/base/generate.lua SOURCE OUT     SOURCE: this checkout; OUT: the folder for generated files
---
--- variable_names.h    the variables as an enum
--- variable_table.inc  their names and values, in that order
local source, out = arg[1], arg[2]
package.path = source .. "/lua/?.lua;" .. source .. "/src/codegen/?.lua;" .. package.path
local text = require "text"
local variables = require "luminary.environment_variables"

local head = "/* Written by src/base/generate.lua from lua/luminary/environment_variables.lua. */\n"

text.write(out .. "/variable_names.h", head .. text.fill([[
#pragma once

typedef enum lm_variable {
  $names
  LM_VARIABLES
} lm_variable;
]], {names = text.map(variables, function(v) return v.name:gsub("^%u-_", "LM_VAR_") .. "," end)}))

text.write(out .. "/variable_table.inc", head .. table.concat(text.map(variables, function(v)
  local values = v.one_of and ('"%s"'):format(table.concat(v.one_of, ", ")) or "NULL"
  return ('{"%s", %s},\n'):format(v.name, values)
end)))
