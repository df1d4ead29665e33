-- Runs the cases that scripts/dev/golden/onnx_cases.py wrote, for scripts/dev/onnx_nodes, and compares values, shapes
-- and dtypes:
--   luajit scripts/dev/onnx_cases.lua FOLDER [PATTERN] [--failed]
-- Prints for each kind how many cases pass, and the failed ones by their reason; with --failed all of them. Exit code:
-- 1 if a case of plain dtypes fails for no known reason.
local here = arg[0]:match "^(.*)/" or "."
package.path = here .. "/../../?.lua;" .. package.path
local cases = require "spec.support.onnx_cases"

local folder, pattern, show = arg[1], arg[2] or "", arg[#arg] == "--failed"
if pattern == "--failed" then pattern = "" end
if not folder then
  io.stderr:write "onnx_cases: FOLDER is missing\n"
  os.exit(2)
end

-- Cases that cannot pass, by a part of their name, and why.
local known = {
  {"bernoulli", "random numbers"}, {"training_dropout", "random numbers"}, {"image_decoder", "decodes images"},
  {"test_dft_inverse", "expects the rounding of NumPy's float32"},
  {"attention_4d_causal_fp16_expanded", "expects the rounding of NumPy's float16 in 2 of 192 elements"},
}

local kinds, order, reasons, failed = {}, {}, {}, false
local list = io.popen("ls '" .. folder .. "'")
for file in list:lines() do
  local name = file:match "^(.*)%.data%.onnx$"
  if name and name:find(pattern) then
    local kind, why = cases.run(folder .. "/" .. name)
    if not kinds[kind] then
      kinds[kind], order[#order + 1] = {passed = 0, failed = 0}, kind
    end
    kinds[kind][why and "failed" or "passed"] = kinds[kind][why and "failed" or "passed"] + 1
    local expected
    for _, row in ipairs(known) do expected = expected or why and name:find(row[1], 1, true) and row[2] end
    if expected then why = expected end
    if why then
      local short = why:gsub("'[^']*'", "'…'"):gsub("%d+", "n"):sub(1, 110)
      reasons[short] = reasons[short] or {}
      table.insert(reasons[short], name)
      if show then print(name .. ": " .. why:sub(1, 300)) end
      failed = failed or not expected and (kind == "node plain" or not kind:find "^node")
    end
  end
end
list:close()

local texts = {}
for reason in pairs(reasons) do texts[#texts + 1] = reason end
table.sort(texts, function(a, b)
  if #reasons[a] ~= #reasons[b] then return #reasons[a] > #reasons[b] end
  return a < b
end)
for _, reason in ipairs(texts) do
  print(("%4d  %s: %s"):format(#reasons[reason], reason, table.concat(reasons[reason], " "):sub(1, 200)))
end
table.sort(order)
for _, kind in ipairs(order) do
  print(("%s: %d passed, %d failed"):format(kind, kinds[kind].passed, kinds[kind].failed))
end
os.exit(failed and 1 or 0)
