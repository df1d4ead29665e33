--- lm.paths: Handles files, folders and their paths.
local os = require "os"
local core = require "luminary.core"
local options = require "luminary.base.options"
local ffi = require "ffi"

ffi.cdef [[
  struct lm_paths_entry { uint64_t inode; int64_t next; unsigned short size; unsigned char kind; char name[256]; };
  void *lm_paths_opendir(const char *) __asm__("opendir");
  struct lm_paths_entry *lm_paths_readdir(void *) __asm__("readdir");
  int lm_paths_closedir(void *) __asm__("closedir");
  int lm_paths_mkdir(const char *, unsigned) __asm__("mkdir");
  int lm_paths_rmdir(const char *) __asm__("rmdir");
  char *lm_paths_strerror(int) __asm__("strerror");
  char *lm_paths_getcwd(char *, size_t) __asm__("getcwd");]]

local C = ffi.C
local paths = {}

local function path_argument(who, path, name) return options.arg(who, name or "path", path, "string") end

--- Returns the working folder.
function paths.cwd()
  local buffer = ffi.new("char[?]", 65536)
  if C.lm_paths_getcwd(buffer, 65536) == nil then options.fail("paths.cwd: the working folder was removed") end
  return ffi.string(buffer)
end

--- paths.home: The user's home folder, $HOME.
paths.home = os.getenv "HOME" or "/"

--- paths.concat(a, b, …): Joins parts of a path into an absolute path.
function paths.concat(...)
  local path = ""
  for i = 1, select("#", ...) do
    local part = path_argument("paths.concat", (select(i, ...)), "argument " .. i)
    path = part:sub(1, 1) == "/" and part or path .. "/" .. part
    if i == 1 and part:sub(1, 1) ~= "/" then path = paths.cwd() .. path end
  end
  if path == "" then return paths.cwd() end
  local parts = {}
  for part in path:gmatch "[^/]+" do
    if part == ".." then
      parts[#parts] = nil
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return "/" .. table.concat(parts, "/")
end

--- Returns the last part of a path, without `suffix` if it ends with that.
function paths.basename(path, suffix)
  local name = path_argument("paths.basename", path):gsub("/+$", ""):match "[^/]*$"
  if suffix == nil then return name end
  suffix = path_argument("paths.basename", suffix, "suffix"):gsub("^%.?", ".")
  local cut = #name - #suffix
  return cut > 0 and name:sub(cut + 1) == suffix and name:sub(1, cut) or name
end

--- Returns a path without its last part; "." if it has only one.
function paths.dirname(path)
  local short = path_argument("paths.dirname", path):gsub("(.)/+$", "%1")
  local folder = short:match "^(.*)/[^/]*$"
  if not folder then return "." end
  return folder:gsub("/+$", "") ~= "" and folder or "/"
end

--- Returns the extension of a file's name, the text after its last dot; nil without one.
function paths.extname(path) return path_argument("paths.extname", path):match "%.([^./]+)/*$" end

-- Returns the kind of a path, as the core names it; nil if it does not exist.
local function kind(who, path)
  if path_argument(who, path) == "" then return nil end
  return core.file_kind(path)
end

--- Returns whether a path is a regular file.
function paths.filep(path) return kind("paths.filep", path) == "a regular file" end

--- Returns whether a path is a folder.
function paths.dirp(path) return kind("paths.dirp", path) == "a folder" end

--- Makes a folder, and missing ones above it; returns whether it exists.
function paths.mkdir(path)
  local at = path_argument("paths.mkdir", path):match "^/" or ""
  for part in path:gmatch "[^/]+" do
    at = at .. part .. "/"
    C.lm_paths_mkdir(at, 511) -- 0777, without the bits of umask
  end
  return paths.dirp(path)
end

--- Removes an empty folder; returns whether it succeeded.
function paths.rmdir(path) return C.lm_paths_rmdir(path_argument("paths.rmdir", path)) == 0 end

local NO_SUCH = 2 -- ENOENT

--- Returns a sorted list of the names in a folder; nil if there is no such folder; nil and the reason if it cannot be
--- read.
function paths.dir(path)
  local names, folder = {}, C.lm_paths_opendir(path_argument("paths.dir", path))
  local code = folder == nil and ffi.errno() or 0
  if folder ~= nil then
    repeat
      ffi.errno(0)
      local entry = C.lm_paths_readdir(folder)
      if entry == nil then code = ffi.errno() else names[#names + 1] = ffi.string(entry.name) end
    until entry == nil
    C.lm_paths_closedir(folder)
  end
  if code ~= 0 then return nil, code ~= NO_SUCH and ffi.string(C.lm_paths_strerror(code)) or nil end
  table.sort(names)
  return names
end

-- Returns the names in a folder, as paths.dir does; fails if there is no such folder, or it cannot be read.
local function need_names(who, path)
  local names, why = paths.dir(path)
  if names then return names end
  local found = core.file_kind(path)
  options.fail("%s: cannot open '%s': %s", who, options.shown_path(path), found and found ~= "a folder"
    and "it is " .. found .. ", not a folder" or why or "No such file or directory")
end

-- Iterates over the names of a folder for which wanted(name) is true.
local function names_in_folder(who, path, wanted)
  local names, i = need_names(who, path), 0
  return function()
    repeat i = i + 1 until names[i] == nil or wanted(names[i])
    return names[i]
  end
end

--- Iterates over the names in a folder: for name in paths.files(folder [, filter]) do … end.
function paths.files(path, filter)
  path_argument("paths.files", path)
  if filter ~= nil and type(filter) ~= "function" then path_argument("paths.files", filter, "filter") end
  return names_in_folder("paths.files", path, function(name)
    if type(filter) == "function" then return filter(name) end
    return filter == nil or name:find(filter) ~= nil
  end)
end

--- Iterates over the regular files in a folder: for name in paths.iterfiles(folder) do … end.
function paths.iterfiles(path)
  path_argument("paths.iterfiles", path)
  return names_in_folder("paths.iterfiles", path, function(name) return paths.filep(path .. "/" .. name) end)
end

--- Iterates over the folders in a folder: for name in paths.iterdirs(folder) do … end.
function paths.iterdirs(path)
  path_argument("paths.iterdirs", path)
  return names_in_folder("paths.iterdirs", path, function(name)
    return name ~= "." and name ~= ".." and paths.dirp(path .. "/" .. name)
  end)
end

--- Returns a name for a temporary file.
function paths.tmpname() return os.tmpname() end

-- Returns the file of the caller of the calling function.
local function caller()
  local source = require("debug").getinfo(3, "S").source
  return source:sub(1, 1) == "@" and paths.concat(source:sub(2)) or nil
end

--- Returns the path of the file that calls it, or of a name in the same folder; nil at a prompt.
function paths.thisfile(name)
  local file = caller()
  if not file or not name then return file end
  return paths.concat(paths.dirname(file), path_argument("paths.thisfile", name, "name"))
end

--- Runs a Lua file; a relative name is in the folder of the file that calls it.
function paths.dofile(name)
  local file = caller()
  path_argument("paths.dofile", name, "name")
  local path = file and paths.concat(paths.dirname(file), name) or name
  local found = core.file_kind(path)
  if found ~= "a regular file" then
    options.fail("paths.dofile: cannot open '%s': %s", options.shown_path(path),
      found and "it is " .. found or "No such file or directory")
  end
  return dofile(path)
end

--- Returns the path of the first of these programs that is in a folder of $PATH; nil without one.
function paths.findprogram(...)
  for _, name in ipairs {...} do
    for folder in (core.getenv "PATH" or ""):gmatch "[^:]+" do
      local path = folder .. "/" .. path_argument("paths.findprogram", name, "name")
      if paths.filep(path) then return path end
    end
  end
end

--- Removes a folder and everything in it; `sure` must be "yes".
function paths.rmall(path, sure)
  path_argument("paths.rmall", path)
  if sure ~= "yes" then options.fail("paths.rmall: pass 'yes' as the second argument to remove all of '%s'", path) end
  for _, name in ipairs(need_names("paths.rmall", path)) do
    if name ~= "." and name ~= ".." then
      local ok, why = os.remove(path .. "/" .. name)
      if not ok then
        if not paths.dirp(path .. "/" .. name) then options.fail("paths.rmall: %s", why) end
        paths.rmall(path .. "/" .. name, sure)
      end
    end
  end
  return paths.rmdir(path)
end

--- Writes a string, or a list of strings, as a file, atomically: after an error the old file remains.
function paths.write(path, content)
  local found = kind("paths.write", path)
  if type(content) ~= "table" then content = {options.arg("paths.write", "content", content, "string")} end
  for i, each in ipairs(content) do options.arg("paths.write", ("content[%d]"):format(i), each, "string") end
  if not found or found == "a regular file" or found == "a folder" then return core.write_pieces(path, content) end
  local file = core.growing_file_open(path, true) -- a device, such as /dev/stdout
  core.growing_file_write(file, table.concat(content))
  core.growing_file_close(file)
end

--- Appends a string to a file, which is created if needed: all of it, or after an error nothing.
function paths.append(path, content)
  local file = core.growing_file_open(path_argument("paths.append", path), true)
  core.growing_file_write(file, options.arg("paths.append", "content", content, "string"))
  core.growing_file_close(file)
end

--- Returns whether the system is Windows, which is always false.
function paths.is_win() return false end
--- Returns whether the system is macOS.
function paths.is_mac() return ffi.os == "OSX" end

return options.strict("paths", paths)
