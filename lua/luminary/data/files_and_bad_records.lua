--- Finds the files of datasets, keeps them open, and handles records that cannot be read.
---
--- on_error = "raise": an unreadable record is an error that names its file and position. "skip": it is omitted and
--- counted; set:skipped() returns the count over all workers, each time a record was met. In a set with numbers, the
--- next readable record replaces it, so that every rank and batch keeps its length.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail = options.fail

local records = {}

--- Returns the path of the first of `names` in the first folder that has one. If the user passed a root, only that is
--- searched. set.folders are paths below a root; set.remedy ends the error.
function records.find(set, root, names)
  local roots = root and {root} or {}
  if not root then
    roots[1] = core.getenv("LUMINARY_DATA")
    roots[#roots + 1] = "/usr/share/datasets"
  end
  local looked = {}
  for _, base in ipairs(roots) do
    -- A bare system folder may hold another set's files under the same names.
    for i = base == "/usr/share/datasets" and 2 or 1, #set.folders do
      local folder = base:gsub("(.)/+$", "%1") .. set.folders[i]
      for _, name in ipairs(names) do
        local path = folder .. "/" .. name
        if (core.file_kind(path) or "a folder") ~= "a folder" then return path end
      end
      looked[#looked + 1] = folder
    end
  end
  for i, folder in ipairs(looked) do looked[i] = "'" .. options.shown_path(folder) .. "'" end
  fail("%s: cannot find %s in %s; %s", set.__name, table.concat(names, " or "), table.concat(looked, ", "), set.remedy)
end

-- ---- open files

local sources = setmetatable({}, {__mode = "k"}) -- this Lua state's open files, by set

--- Returns the open file at set.path, and its size at the first call; fails if it changed. Each worker opens it again.
function records.source(set)
  local source = sources[set]
  if source then return source end
  local opened, bytes, stamp = core.file_open(set.path)
  if set.stamp and stamp ~= set.stamp then
    fail("%s: '%s' has changed since the dataset was created: it had %s, now %s", set.__name, set.path, set.stamp,
      stamp)
  end
  if core.file_text(opened, 0, math.min(bytes, 2)) == "\31\139" then
    fail("%s: '%s' is gzipped and cannot be read at random positions; gunzip it first", set.__name, set.path)
  end
  set.stamp, sources[set] = stamp, opened
  return opened, bytes
end

--- Reads all of a file, plain or gzipped: uint8 [n].
function records.bytes_of(path)
  local stream = core.stream_open(path)
  local bytes = core.stream_bytes(stream)
  core.stream_finish(stream)
  return bytes
end

-- ---- unreadable records

--- Resets the count that set:skipped() returns, and sets whether errors are raised.
function records.begin(set, on_error)
  set.on_error = on_error
  set.faults = core.keep(core.ops.zeros({1}, {dtype = "int64"}))
end

-- Returns true for an error about a record of the file, not a mistake of the script's or a lack of memory or
-- descriptors.
local function is_fault(problem, file)
  return type(problem) == "string" and problem:find(file, 1, true) and not problem:find("out of memory", 1, true)
    and not problem:find("Too many open files", 1, true)
end

local function results_or_fault(set, file, ok, ...)
  if ok then return true, ... end
  if not is_fault(..., file) then error(..., 0) end
  core.count_up(set.faults)
  return false, ...
end

--- Returns true and the results of f(…), or false and the message of an error that names the file, after counting it.
function records.attempt(set, file, f, ...)
  if set.on_error == "raise" then return true, f(...) end
  return results_or_fault(set, file, pcall(f, ...))
end

local function sample(set, i, left, read, ok, ...)
  if ok then return ... end
  if left == 0 then fail("%s: cannot read any of its %d samples; the last error: %s", set.__name, set:len(), ...) end
  local k = i % set:len() + 1
  return sample(set, k, left - 1, read, records.attempt(set, set:file_of(k), read, set, k))
end

--- Returns read(set, i), or the next sample that can be read. set:file_of(i) is its file.
function records.sample(set, i, read)
  if set.on_error == "raise" then return read(set, i) end
  return sample(set, i, set:len() - 1, read, records.attempt(set, set:file_of(i), read, set, i))
end

--- Returns an error's message without the script's line and the name of the function that raised it.
function records.reason(problem, name)
  local text = tostring(problem)
  local from = select(2, text:find(name .. ": ", 1, true))
  return from and text:sub(from + 1) or text
end

return records
