-- Folders of a spec's own, and files in them.
local ffi = require "ffi"
local temp = {}

ffi.cdef "int setenv(const char *, const char *, int); int unsetenv(const char *);"

--- Calls os.execute for tools without preloaded libraries, which take longer to start than most tools run.
function temp.execute(command)
  local preload = os.getenv "LD_PRELOAD"
  ffi.C.unsetenv "LD_PRELOAD"
  local code = os.execute(command)
  if preload then ffi.C.setenv("LD_PRELOAD", preload, 1) end
  return code
end

--- Makes a new empty folder, in `root` if passed; returns its path. The spec removes it.
function temp.folder(root)
  local path = os.tmpname()
  os.remove(path)
  if root then path = root .. "/" .. path:match "[^/]+$" end
  assert(temp.execute("mkdir " .. path) == 0)
  return path
end

--- Returns the path of a folder that is there, empty at first, between busted's setup and teardown, or before_each and
--- after_each, of a block.
function temp.during(setup, teardown)
  local path = temp.folder()
  os.remove(path)
  setup(function() assert(temp.execute("mkdir " .. path) == 0) end)
  teardown(function() temp.remove(path) end)
  return path
end

function temp.remove(folder) temp.execute("rm -rf " .. folder) end

-- Returns a command's standard output, without white space at its end.
function temp.output_of(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("%s+$", ""))
end

function temp.write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
  return path
end

function temp.read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

function temp.exists(path)
  local file = io.open(path, "rb")
  return file ~= nil and file:close()
end

--- Runs a shell command. Returns whether it succeeded, its standard output and error, and its exit code.
function temp.run(folder, command)
  local out = folder .. "/output"
  local code = os.execute(("( %s ) >%s 2>&1 </dev/null"):format(command, out))
  local text = temp.read(out)
  os.remove(out)
  return code == 0, text, code >= 256 and code / 256 or code
end

return temp
