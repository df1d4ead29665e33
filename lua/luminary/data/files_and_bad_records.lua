--- What sets that read files have in common: where the files are, how they stay open, and what becomes of records that
--- cannot be read.
---
--- on_error = "raise": such a record is an error that names its file and place. "skip": it is left out and counted;
--- set:skipped() says how many were, by all workers together, each time that one was met. In a set with numbers the
--- next record that can be read stands in for it, so that every rank and batch stays as long as it was.
local core = require "luminary.core"
local options = require "luminary.base.options"
local fail = options.fail

local records = {}

--- The path of the first of `names` in the first folder that has one. With a root of the user's own the other folders
--- are not looked at. set.folders are paths below a root, set.remedy ends the error.
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

-- ---- files that stay open

local sources = setmetatable({}, {__mode = "k"}) -- this state's, by set

--- The file at set.path, as it was when the set was made: each worker opens it again. Its size at first.
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

--- All of a file, plain or gzipped: uint8 [n].
function records.bytes_of(path)
  local stream = core.stream_open(path)
  local bytes = core.stream_bytes(stream)
  core.stream_finish(stream)
  return bytes
end

-- ---- records that cannot be read

--- Sets what set:skipped() says and whether errors are raised.
function records.begin(set, on_error)
  set.on_error = on_error
  set.faults = core.keep(core.ops.zeros({1}, {dtype = "int64"}))
end

-- Whether an error is about a record of the file, and not a mistake of the script's or a lack of memory or descriptors.
local function is_fault(problem, file)
  return type(problem) == "string" and problem:find(file, 1, true) and not problem:find("out of memory", 1, true)
    and not problem:find("Too many open files", 1, true)
end

local function finish(set, file, ok, ...)
  if ok then return true, ... end
  if not is_fault(..., file) then error(..., 0) end
  core.count_up(set.faults)
  return false, ...
end

--- true and what f(…) returns; or false and the message of an error that names the file, counted.
function records.attempt(set, file, f, ...)
  if set.on_error == "raise" then return true, f(...) end
  return finish(set, file, pcall(f, ...))
end

local function sample(set, i, left, read, ok, ...)
  if ok then return ... end
  if left == 0 then fail("%s: cannot read any of its %d samples; the last error: %s", set.__name, set:len(), ...) end
  local k = i % set:len() + 1
  return sample(set, k, left - 1, read, records.attempt(set, set:file_of(k), read, set, k))
end

--- read(set, i), or of the next sample that can be read. set:file_of(i) is its file.
function records.sample(set, i, read)
  if set.on_error == "raise" then return read(set, i) end
  return sample(set, i, set:len() - 1, read, records.attempt(set, set:file_of(i), read, set, i))
end

--- What an error says, without the script's line before it and the name of the function that raised it.
function records.reason(problem, name)
  local text = tostring(problem)
  local from = select(2, text:find(name .. ": ", 1, true))
  return from and text:sub(from + 1) or text
end

return records
