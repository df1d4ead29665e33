--- Prints the output of ranks under `luminary run`: by lines after the rank's number, and to files of --log-dir.
local core = require "luminary.core"
local options = require "luminary.base.options"
local terminal = require "luminary.base.terminal"
local log_file = require "luminary.watch.log_file"

local LONGEST_LINE = 65536
local READER = 1 -- seconds for slow readers of the output, once a signal stopped the job

local Output = {}
Output.__index = Output

local function prefixes(stream, rank, colored)
  local text = ("[rank %d] "):format(rank)
  if not colored[stream] then return text end
  return ("\27[%dm%s\27[0m"):format(31 + (rank + 1) % 6, text)
end

--- Returns an object that prints the ranks' lines.
local function output(supervisor, log_dir)
  local colored = {terminal.has_color(1), terminal.has_color(2)}
  local self = {supervisor = supervisor, colored = colored, log_dir = log_dir, prefix = {}, partial = {}, log = {}}
  return setmetatable(self, Output)
end

--- Adds n ranks from `first` on; a rank that was added before keeps its files. Fails if a file of log_dir cannot be
--- written.
function Output:add(first, n)
  for rank = first, first + n - 1 do
    local is_new = not self.log[rank]
    self.partial[rank] = {"", ""}
    if is_new then self.prefix[rank], self.log[rank] = {}, {} end
    for stream, name in ipairs {"stdout", "stderr"} do
      self.prefix[rank][stream] = prefixes(stream, rank, self.colored)
      if self.log_dir and is_new then
        local path = ("%s/rank%d.%s"):format(self.log_dir, rank, name)
        local ok, file = pcall(log_file.open, "luminary run", path, false, 0)
        if not ok then error("--log-dir: " .. options.without_position(file), 0) end
        self.log[rank][stream] = file
      end
    end
  end
end

local function print_lines(self, rank, stream, text)
  local prefix = self.prefix[rank][stream]
  self.supervisor:print(stream, (text:gsub("[^\n]*\n", function(line) return prefix .. line end)))
end

-- Takes text that a rank wrote: prints full lines; "" is the end, which prints the rest.
function Output:take(rank, stream, text)
  local log = self.log[rank][stream]
  if log and text ~= "" then log:write(text) end
  local partial = self.partial[rank]
  local whole, rest = (partial[stream] .. text):match("^(.*\n)(.*)$")
  if not whole then whole, rest = "", partial[stream] .. text end
  if rest ~= "" and (text == "" or #rest > LONGEST_LINE) then whole, rest = whole .. rest .. "\n", "" end
  partial[stream] = rest
  print_lines(self, rank, stream, whole)
end

--- Prints a message of the launcher to standard error.
function Output:say(text) self.supervisor:print(2, "luminary run: " .. text .. "\n") end

--- Returns the deadline for readers of the output: READER seconds after a signal has stopped the job, else none.
function Output.deadline(stopped_by) return core.time() + (stopped_by and READER or math.huge) end

--- Waits until everything is printed, or after a signal until the deadline.
function Output:close(stopped_by)
  local deadline = self.deadline(stopped_by)
  while not self.supervisor:printed() and core.time() < deadline do
    if self.supervisor:next(0.02) == "signal" then break end
  end
  for _, logs in pairs(self.log) do
    for _, file in pairs(logs) do file:close() end
  end
end

return output
