-- Tests that cuDNN has plans for the convolutions of the example networks and of the op table, and takes attention's
-- graphs, on an H200, known by its properties alone (support/cuda/h200.json): the real library, without a GPU.
local temp = require "spec.support.temp"
if os.getenv "LM_SPEC_DEVICE" then return end -- another device changes nothing here
local rows = dofile "spec/op/op_cases.lua"

local function pair(v) return type(v) == "table" and v or { v, v } end

-- Returns a convolution's sizes as the program's input has them, without the dtype.
local function sizes(x, weight, o)
  o = o or {}
  local list = {}
  if #x == 3 then x = { 1, x[1], x[2], x[3] } end
  local how = { pair(o.stride or 1), pair(o.padding ~= "valid" and o.padding or 0), pair(o.dilation or 1) }
  if o.padding == "same" then -- an odd one of its positions is in x by then
    how[2], x = {}, { x[1], x[2], x[3], x[4] }
    for i = 1, 2 do
      local more = how[3][i] * (weight[2 + i] - 1)
      how[2][i], x[2 + i] = math.floor(more / 2), x[2 + i] + more % 2
    end
  end
  for _, part in ipairs { x, weight, how[1], how[2], how[3], { o.groups or 1 } } do
    for _, v in ipairs(part) do list[#list + 1] = v end
  end
  return table.concat(list, " ")
end

local networks = { -- networks of scripts/models.lua, batch 64
  lenet1 = { sizes({ 64, 1, 28, 28 }, { 20, 1, 3, 3 }), bias = true },
  lenet2 = { sizes({ 64, 20, 13, 13 }, { 50, 20, 5, 5 }), bias = true },
  resnet_stem = { sizes({ 64, 1, 28, 28 }, { 64, 1, 3, 3 }, { padding = 1 }), bias = true },
  resnet_large_stem = { sizes({ 64, 3, 224, 224 }, { 64, 3, 7, 7 }, { padding = 3, stride = 2 }) },
}
do
  local channels, size = 64, 28
  networks.resnet_64 = { sizes({ 64, 64, 28, 28 }, { 64, 64, 3, 3 }, { padding = 1 }), bias = true }
  for _, out in ipairs { 128, 256, 512 } do
    local name = "resnet_" .. out
    networks[name .. "_down"] = { sizes({ 64, channels, size, size }, { out, channels, 3, 3 },
      { padding = 1, stride = 2 }), bias = true }
    networks[name .. "_skip"] = { sizes({ 64, channels, size, size }, { out, channels, 1, 1 },
      { stride = 2 }), bias = true }
    channels, size = out, math.ceil(size / 2)
    networks[name] = { sizes({ 64, out, size, size }, { out, out, 3, 3 }, { padding = 1 }), bias = true }
  end
end

local cases = {} -- cases of op_cases.lua, except empty ones
for k, case in ipairs(rows.conv2d) do
  if case.x.shape[1] > 0 then
    cases["case_" .. k] = { sizes(case.x.shape, case.weight.shape, case), bias = case.bias ~= nil }
  end
end
for _, name in ipairs { "conv2d_input", "conv2d_weight" } do
  for k, case in ipairs(rows[name]) do
    local input = name == "conv2d_input"
    local x, weight = input and case.size or case.x.shape, input and case.weight.shape or case.size
    cases[name .. "_" .. k] = { sizes(x, weight, case) }
  end
end

describe("cuDNN, without a GPU, #unsanitized", function() -- cudnn_plans is not built with the sanitizers
  local program
  local folder = temp.during(setup, teardown)

  local cuda = os.getenv "CUDA_HOME" or "/usr/local/cuda"
  local built = assert(package.searchpath("luminary.core", package.cpath)):match("^(.*/luminary)/core%.so$")

  it("takes the backend's graphs", function()
    if not temp.exists(cuda .. "/include/cudnn.h") then return pending("there is no cuDNN in " .. cuda) end
    if not temp.exists(built .. "/libluminary.so.0") then return pending("the module does not come from a build") end
    local ok, text = temp.run(folder, ("unset LD_PRELOAD; spec/support/cudnn_plans.sh %s/../.. %s/plans"):format(built,
      folder))
    assert(ok, text)
    program = folder .. "/plans"
  end)

  -- Returns the number of plans made of each pass and layout, count["lenet1 forward channels_last"]; and of the first
  -- one its workspace and the heuristics' list that it is from.
  local function plans(list, dtype, tf32)
    local lines, count, total, first = {}, {}, 0, {}
    for name, conv in pairs(list) do
      lines[#lines + 1] = ("%s %s %d %d %s\n"):format(name, dtype, tf32, conv.bias and 1 or 0, conv[1])
    end
    temp.write(folder .. "/convolutions", table.concat(lines))
    local ok, text = temp.run(folder, ("unset LD_PRELOAD; timeout 300 %s spec/support/cuda/h200.json <%s/convolutions")
      :format(program, folder))
    assert(ok, text)
    for name, pass, layout, made, workspace, mode in text:gmatch "(%S+) %S+ %d (%S+) (%S+) (%d+) (%d+) (%d)\n" do
      local key = name .. " " .. pass .. " " .. layout
      count[key] = tonumber(made)
      first[key] = { workspace = tonumber(workspace), mode = tonumber(mode) }
      total = total + made
    end
    assert(total > 0, text)
    return count, first
  end

  -- Expects that each pass has a plan in one of the two layouts, a bias added in the graph or apart.
  local function covered(list, dtype, tf32)
    local count, first_plans = plans(list, dtype, tf32)
    for name in pairs(list) do
      for _, pass in ipairs { "forward", "input", "weight" } do
        local key = name .. " " .. pass
        local first, second = count[key .. " channels_last"], count[key .. " contiguous"]
        assert(first and second, "nothing about " .. name .. " " .. pass)
        assert(first + second > 0, ("no plan for %s %s in %s"):format(name, pass, dtype))
      end
    end
    return count, first_plans
  end

  for _, kind in ipairs { { "float32", 0 }, { "float32", 1 }, { "bfloat16", 0 }, { "float16", 0 }, { "float64", 0 } } do
    local dtype, tf32 = kind[1], kind[2]
    it("has plans in " .. dtype .. (tf32 == 1 and " by TF32" or ""), function()
      if not program then return pending("there is no program") end
      local count, first = covered(networks, dtype, tf32)
      covered(cases, dtype, tf32)
      if dtype == "float64" then return end
      local contiguous = dtype == "float32" and tf32 == 0
      for name, conv in pairs(networks) do -- as the backend lays them out
        for _, pass in ipairs { "forward", "input", "weight", conv.bias and "forward+bias" } do
          local key = name .. " " .. pass .. (contiguous and " contiguous" or " channels_last")
          assert(count[key] > 0, key)
          assert(first[key].mode == 1, key .. ": an engine of the last resort")
          -- A plan needs less memory than a copy of what it reads.
          if contiguous and pass ~= "weight" then assert(first[key].workspace < 1e5, key .. " transposes inside") end
        end
      end
    end)
  end

  it("takes attention's graphs", function()
    if not program then return pending("there is no program") end
    local stub -- a driver's library, which is asked for before anything else
    for _, path in ipairs { "/lib64/stubs/libcuda.so", "/lib/stubs/libcuda.so" } do
      if temp.exists(cuda .. path) then stub = cuda .. path end
    end
    if not stub then return pending("the toolkit has no stub of the driver") end
    assert(temp.run(folder, ("ln -sf %s %s/libcuda.so.1"):format(stub, folder)))
    -- Samples, heads, heads of keys, queries, keys, numbers of a query and a value, causal, heads side by side,
    -- dropout, which dims a mask has.
    local taken = {
      gpt2 = "float16 4 12 12 1024 1024 64 64 1 1 0 none", bert = "bfloat16 8 12 12 128 128 64 64 0 0 0 none",
      llama = "bfloat16 1 32 8 2000 2000 128 128 1 1 0 none", cross = "float16 2 8 8 77 300 40 40 0 1 0 none",
      narrow_values = "bfloat16 2 4 4 128 128 64 32 0 0 0 none", wide = "bfloat16 1 8 8 512 512 256 256 1 0 0 none",
      next_token = "float16 2 12 12 1 200 64 64 0 0 0 none",
    }
    for _, dtype in ipairs { "float16", "bfloat16" } do
      for _, width in ipairs { 64, 128 } do
        for _, heads in ipairs { "12 12", "12 4" } do
          for _, p in ipairs { 0, 0.1 } do
            local function add(causal, mask)
              local name = ("%s_%d_%s_%g_%d_%s"):format(dtype, width, heads:gsub(" ", "_"), p, causal, mask)
              taken[name] = ("%s 8 %s 1024 1024 %d %d %d 1 %g %s"):format(dtype, heads, width, width, causal, p, mask)
            end
            add(1, "none")
            for _, mask in ipairs { "none", "k", "nk", "qk", "nqk", "nhqk" } do add(0, mask) end
          end
        end
      end
    end
    -- Which it does not take.
    local lines = { "odd float16 1 2 2 64 64 33 33 0 0 0 none\n", "odd_dropped float16 1 2 2 64 64 33 33 0 0 0.1 qk\n" }
    for name, rest in pairs(taken) do lines[#lines + 1] = name .. " " .. rest .. "\n" end
    temp.write(folder .. "/attentions", table.concat(lines))
    local ok, text = temp.run(folder, ("unset LD_PRELOAD; LD_LIBRARY_PATH=%s timeout 300 %s "
      .. "spec/support/cuda/h200.json attention <%s/attentions"):format(folder, program, folder))
    assert(ok, text)
    local found = {}
    for name, pass, proposals in text:gmatch "(%S+) (%S+) (%d+)\n" do
      found[name .. " " .. pass] = tonumber(proposals)
    end
    for _, name in ipairs { "odd", "odd_dropped" } do
      assert.same({ 0, 0 }, { found[name .. " forward"], found[name .. " backward"] })
    end
    for name in pairs(taken) do
      for _, pass in ipairs { "forward", "backward" } do
        local key = name .. " " .. pass
        assert(found[key] and (found[key] > 0 or key == "next_token backward"), key .. "\n" .. text)
      end
    end
  end)
end)
