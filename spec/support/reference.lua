-- Writes the pages of the reference, once for a spec file.
local temp = require "spec.support.temp"

local reference = {}
local folder

--- Returns the folder of the pages. `reference.remove` removes it.
function reference.folder()
  if not folder then
    folder = temp.folder()
    assert(temp.run(folder, ("luajit scripts/dev/gen_reference.lua %s/reference"):format(folder)))
  end
  return folder .. "/reference"
end

--- Returns the paths of the pages.
function reference.pages()
  local paths, pipe = {}, io.popen(("ls %s/*.md"):format(reference.folder()))
  for path in pipe:lines() do paths[#paths + 1] = path end
  pipe:close()
  return paths
end

function reference.remove()
  if folder then temp.remove(folder) end
  folder = nil
end

return reference
