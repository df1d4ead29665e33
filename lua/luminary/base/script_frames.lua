--- Selects the frames of a traceback that belong to the script, without those of the library, of C or of LuaJIT itself.
--- With LM_LOG=trace it selects all frames.
local lists = require "luminary.base.lists"
local getenv, find, gmatch, match, sub = require("os").getenv, string.find, string.gmatch, string.match, string.sub

local own_folders = {match(require("debug").getinfo(1, "S").source, "^@(.*)base/[^/]*$") or "luminary/"}

-- Returns true if a frame's file is in a folder of the library. LuaJIT shows at most the last 60 bytes of its path.
local function is_in(folder, frame)
  if find(frame, folder, 1, true) then return true end
  local path = match(frame, "^%.%.%.([^:]*):")
  for last in gmatch(path or "", "()/") do
    local head = sub(path, 1, last)
    if find(head, "luminary/", 1, true) and sub(folder, -last) == head then return true end
  end
  return false
end

local function is_own(frame)
  return lists.find(own_folders, function(folder) return is_in(folder, frame) end) ~= nil
end

local frames = {}

--- Counts the files in the folder of a package as the library's: errors and tracebacks show the script's lines.
function frames.add_own(folder)
  own_folders[#own_folders + 1] = folder
  require("luminary.core").own_files("@" .. folder)
end

--- Returns true if LM_LOG asks for all frames.
function frames.all()
  local topics = "," .. (getenv "LM_LOG" or "") .. ","
  return find(topics, ",trace,", 1, true) ~= nil or find(topics, ",all,", 1, true) ~= nil
end

--- Returns true if a frame, a line of a traceback, belongs to the script.
function frames.is_scripts(frame)
  return not (find(frame, "^%s*%[C%]") or find(frame, "[builtin#", 1, true) or is_own((match(frame, "^%s*(.*)$"))))
end

--- Returns the lines of a traceback's text that are frames to show.
function frames.shown(text)
  local list, all = {}, frames.all()
  for frame in gmatch(text, "[^\n]+") do
    if all or frames.is_scripts(frame) then list[#list + 1] = frame end
  end
  return list
end

return frames
