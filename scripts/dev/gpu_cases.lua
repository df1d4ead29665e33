-- Runs one case of scripts/dev/gpu_check, in its own process, so that a lost context takes nothing else along:
--   luajit gpu_cases.lua CASE arguments...
-- facts                             what the machine is; versions of libraries
-- properties PROGRAM JSON           the card's properties beside those on file
-- smoke                             a step of training in each dtype, beside the CPU
-- steps [NAME]                      optimizers' steps of many sizes, aligned and not
-- scaling                           gradients checked and unscaled, likewise
-- groups                            what lm.compile makes kernels of at run time, beside the same ops one by one
-- fused_products                    products that compute sums, gelu or its gradient too, beside the CPU
-- linalg [SIZE]                     transforms, linear algebra; with a size their times
-- alignment [OP DTYPE WHICH N]      linear and conv2d with an operand N elements off
-- recurrent [SIZE]                  recurrent layers; with a size their times
-- attention [LENGTH]                attention of many sizes; with a length its times
-- attention_dropout                 which weights cuDNN drops, and the gradients
-- plans                             cuDNN's attention of many widths and lengths
-- ceilings                          copies, products and launches: what all else is a fraction of
-- networks [NAME]                   training steps of GPT-2, ResNet-50 and LeNet, graphed and not; searches for plans
-- where NAME [events]               kernel by kernel, the time of a step, eager and captured, and its bound; by events:
--                                   op by op
-- decoding                          GPT-2's tokens a second
-- first_calls                       what the first call of a size costs
-- bandwidth MIB DTYPE               GB/s of each op of scripts/bench/ops_cases.lua
-- repeated                          each of these ops twice: the same bits
-- graphed                           steps, graphed and not: the same bits
-- once                              each of these ops once, small, forward and backward: for compute-sanitizer
-- kernels                           single kernels, for ncu
-- nccl                              the group "nccl" of one rank
-- luminary run --nproc 2 gpu_cases.lua issue      what a call of NCCL costs the thread that makes it
local root = arg[0]:match "^(.*)/scripts/dev/[^/]*$" or "."
package.path = root .. "/?.lua;" .. package.path
io.stdout:setvbuf "line" -- keeps findings of a case that is killed
local lm = require "luminary"
lm.backends.cudnn.allow_tf32 = false -- the tolerances are float32's own

local case, names = {}, {}
for _, file in ipairs { "machine", "values", "sequences", "speed", "each_op", "where" } do
  for name, run in pairs(require("scripts.dev.gpu." .. file)) do
    case[name], names[#names + 1] = run, name
  end
end
table.sort(names)
local run = case[arg[1] or ""]
if not run then
  print(("gpu_cases: no case '%s'; there are %s"):format(tostring(arg[1]), table.concat(names, ", ")))
  os.exit(2, true)
end
local ok, message = pcall(run, select(2, unpack(arg)))
if not ok then
  print(message)
  os.exit(1, true)
end
