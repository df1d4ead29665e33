--- Prints the names that Torch7 has and luminary.torch7 lacks, with the reason for each:
---
---   luajit torch7/missing_names.lua
---
--- torch7/names.txt lists the names, and how many of 23 repositories use each. Exits with 1 if a missing name has no
--- reason, or is used by 4 or more repositories.
local torch = require "luminary.torch7"
local COMMON = 4

local libraries = {
  torch = torch, Tensor = torch.zeros(2, 2), Storage = torch.FloatStorage(1), Timer = torch.Timer(),
  CmdLine = torch.CmdLine(), nn = torch.nn, ["nn.Module"] = torch.nn.Linear(1, 1),
  ["nn.Sequential"] = torch.nn.Sequential(), ["nn.Criterion"] = torch.nn.MSECriterion(),
  ["nn.utils"] = torch.nn.utils, optim = torch.optim, ["optim.ConfusionMatrix"] = torch.optim.ConfusionMatrix(2),
  ["optim.Logger"] = torch.optim.Logger, paths = torch.paths, xlua = torch.xlua,
}

local reasons = {}
for reason, names in pairs {
  ["inner: Torch7's own C objects, types and threads"] = [[cdata include newmetatable typename2id id getenv setenv
    version getconstructortable updatethreadlocals packageLuaPath File PipeFile]],
  ["LAPACK's, not in this version"] = "geqrf orgqr ormqr",
  ["of one device, type or debugger: layers here check by themselves"] = "GPU",
  ["rare: a custom class takes a few lines"] = "CriterionTable LayerNormalization",
  ["inner to nn: backward does it"] = [[defaultAccUpdateGradParameters rethrowErrors cudaDouble
    cudaHalf]],
  ["rare optimizers: optim.lbfgs, or a few lines around feval"] = "fista polyinterp",
  ["reports of ConfusionMatrix beside its print"] = "render",
  ["of other systems, or Lua's own (arg, os, io)"] = [[execdir uname getregistryvalue]],
  ["xlua's own ways to print, load and check: Lua's, and luminary's messages"] = [[clear clearall print log
    trycatch installed table2string usage usage_module unpack unpack_class who]],
} do
  for name in names:gmatch "%S+" do reasons[name] = reason end
end

local function has(library, name)
  local ok, value = pcall(function() return library[name] end)
  return ok and value ~= nil
end

local order, count, missing = {}, {}, {}
for line in io.lines((arg[0]:match "^(.*)/" or ".") .. "/names.txt") do
  local title, names = line:match "^([^#%s]%S*) (.*)$"
  if title and not count[title] then order[#order + 1], count[title], missing[title] = title, 0, {} end
  for entry in (names or ""):gmatch "%S+" do
    local name, used = entry:match "^([^:]+):?(%d*)$"
    count[title] = count[title] + 1
    if not (libraries[title] and has(libraries[title], name)) then
      table.insert(missing[title], {name = name, used = tonumber(used) or 0})
    end
  end
end

local unexplained, common = 0, 0
for _, title in ipairs(order) do
  print(("%s: %d of %d"):format(title, count[title] - #missing[title], count[title]))
  local by_reason, kinds = {}, {}
  for _, row in ipairs(missing[title]) do
    local reason = reasons[row.name] or "NO REASON"
    if reason == "NO REASON" then unexplained = unexplained + 1 end
    if row.used >= COMMON then common = common + 1 end
    if not by_reason[reason] then by_reason[reason], kinds[#kinds + 1] = {}, reason end
    table.insert(by_reason[reason], row.used > 0 and ("%s (%d)"):format(row.name, row.used) or row.name)
  end
  table.sort(kinds)
  for _, reason in ipairs(kinds) do print(("  %s: %s"):format(reason, table.concat(by_reason[reason], " "))) end
end
print(("%d names without a reason, %d missing that %d or more use"):format(unexplained, common, COMMON))
os.exit(unexplained + common == 0 and 0 or 1, true)
