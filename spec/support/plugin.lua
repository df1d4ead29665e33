-- Plug-ins of the specs (support/plugin/*.c), built as somebody outside the tree would: against what an installation
-- has, and nothing else.
local temp = require "spec.support.temp"

local plugin = {}

--- Installs the build whose module this process has loaded, and compiles luminary_<name>.so ("group_relay", of
--- relay_group.c) for each name into the folder. False if the module does not come from a build.
function plugin.build(folder, ...)
  local build = assert(package.searchpath("luminary.core", package.cpath)):match("^(.*)/lib/luminary/core%.so$")
  if not build then return false end
  local prefix = folder .. "/prefix"
  local function run(command, ...) -- tools are no concern of a sanitizer's
    local ok, text = temp.run(folder, "unset LD_PRELOAD; " .. command:format(...))
    assert(ok, text)
  end
  run("cmake --install %s --prefix %s", build, prefix)
  for _, name in ipairs { ... } do
    local kind, own = name:match("^(%a+)_(%a+)$")
    run("gcc -std=gnu11 -Wall -Wextra -Werror -O2 -shared -fPIC -Wl,-z,nodelete -I%s/include/luminary "
      .. "spec/support/plugin/%s_%s.c -o %s/luminary_%s.so %s/lib/lua/5.1/luminary/libluminary.so.0", prefix, own, kind,
      folder, name, prefix)
  end
  return true
end

return plugin
