-- Small ONNX files that ask for much: what they take of work and memory is bounded by their size.
local lm = require "luminary"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"
local core = lm.core

local folder = temp.during(setup, teardown)

-- Returns the thousands of instructions that the interpreter runs in f(...), whether it raised no error, and what it
-- returns; raises an error above `most` thousands.
local function work_of(most, f, ...)
  local count = 0
  jit.off()
  jit.flush()
  debug.sethook(function()
    count = count + 1
    if count > most then error("more work than allowed", 0) end
  end, "", 1000)
  local result = {pcall(f, ...)}
  debug.sethook()
  jit.on()
  return count, unpack(result, 1, 3)
end

describe("the work and memory of an ONNX file", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  it("do not grow with the scale of Resize", function()
    for _, scale in ipairs {2 ^ -31, 2 ^ -60, 1e-38, 2 ^ -10} do
      for _, mode in ipairs {"linear", "cubic", "nearest"} do
        local how = {mode = mode, antialias = mode ~= "nearest" and 1 or 0}
        local path = files.write(folder, {{"Resize", "x - s", "y", how}}, {s = lm.tensor {1, 1, scale, 1}},
          {version = 18})
        local x = lm.randn(1, 1, 2, 3)
        local net = lm.onnx.load(path)
        local work, ok, y = work_of(1000, net, x)
        assert.is_true(ok, tostring(y))
        assert.same({1, 1, 0, 3}, {unpack(y.shape)})
        assert.is_true(work < 1000)
      end
    end
    local path = files.write(folder, {{"Resize", "x - s", "y", {mode = "linear", antialias = 1}}},
      {s = lm.tensor {1, 1, 1 / 64, 1}}, {version = 18})
    local x = lm.randn(1, 1, 64, 3) -- one element of all of them
    assert.same({1, 1, 1, 3}, {unpack(lm.onnx.load(path)(x).shape)})
  end)

  it("do not grow with the sizes of sparse tensors beyond 2^24 elements", function()
    local function sparse(name, n)
      return {values = files.tensor(name, lm.ones(1)), dims = {n},
        indices = files.tensor(name .. "_i", lm.zeros({1}, {dtype = "int64"}))}
    end
    local function load(...)
      return lm.onnx.load(files.write(folder, {{"Relu", "x", "y"}}, {}, {sparse = {...}}))
    end
    assert.same({2 ^ 20}, {unpack(load(sparse("w", 2 ^ 20)).w.shape)})
    lm.reset_peak_memory_stats()
    local before = lm.memory_allocated()
    for _, list in ipairs {
      {sparse("w", 2 ^ 28)}, {sparse("w", 2 ^ 24 + 1000)}, {sparse("a", 2 ^ 23), sparse("b", 2 ^ 23 + 2000)},
      {sparse("w", 2 ^ 53)}, {sparse("w", -1)},
    } do
      assert.error_matches(function() load(unpack(list)) end,
        "made.onnx': its sparse tensors have more than 16777%d+ elements")
    end
    local constant = files.nodes {{"Constant", "", "c"}, {"Add", "x c", "y"}}
    constant[1].attribute = {{name = "sparse_value", type = 11, sparse_tensor = sparse("", 2 ^ 28)}}
    core.onnx_write(folder .. "/constant.onnx", {ir_version = 8, opset_import = {{version = 17}}, graph = {
      name = "g", node = constant, input = {files.info "x"}, output = {files.info "y"},
    }})
    assert.error_matches(function() lm.onnx.load(folder .. "/constant.onnx") end, "more than 16777%d+ elements")
    assert.is_true(lm.max_memory_allocated() - before < 2 ^ 27)
  end)

  it("grow with the number of a node's outputs, and not with its square", function()
    local function work(n, nodes)
      local names = {}
      for i = 1, n do names[i] = "o" .. i end
      local list = nodes(names)
      local path = files.write(folder, list, {})
      local count, ok, why = work_of(1e6, lm.onnx.load, path)
      assert.is_true(ok, tostring(why))
      return count
    end
    for _, nodes in ipairs {
      function(names) return {{"Split", "x", table.concat(names, " "), {axis = 0}}, {"Relu", "o1", "y"}} end,
      function(names) -- each output is read by a pattern that goes
        local list = {{"Split", "x", table.concat(names, " "), {axis = 0}}}
        for i, name in ipairs(names) do
          table.insert(list, {"Identity", name, "i" .. i})
          table.insert(list, {"Sigmoid", "i" .. i, "s" .. i})
          table.insert(list, {"Mul", "i" .. i .. " s" .. i, i == #names and "y" or "m" .. i})
        end
        return list
      end,
    } do
      local small, large = work(400, nodes), work(1600, nodes)
      assert.is_true(large < 6 * small, ("%d thousands for 400 outputs, %d for 1600"):format(small, large))
    end
  end)

  it("grow with the number of nodes that compute a weight, and not with that of ways through them", function()
    local function work(n, node, last)
      local nodes = {}
      for i = 1, n do nodes[i] = node(i == 1 and "w" or "v" .. i - 1, "v" .. i) end
      for _, each in ipairs(last(n)) do nodes[#nodes + 1] = each end
      local path = files.write(folder, nodes, {w = {70, 70}, b = {70}}, {version = 13})
      local count, ok, why = work_of(2e5, lm.load, path)
      assert.is_true(ok, tostring(why))
      return count
    end
    local function matmul(n) return {{"MatMul", "x v" .. n, "y"}} end
    local function many(n)
      local list = {{"MatMul", "x w", "v0"}}
      for i = 1, n do
        list[#list + 1] = {"Reshape", "v" .. i - 1 .. " b", "v" .. i}
        list[#list + 1] = {"Add", "v" .. i .. " b", "a" .. i}
      end
      list[#list + 1] = {"Relu", "v" .. n, "y"}
      return list
    end
    for _, case in ipairs {
      {function(from, to) return {"Mul", from .. " " .. from, to} end, matmul},
      {function(from, to) return {"Transpose", from, to} end, matmul},
      {function() return {"Relu", "x", "z"} end, many},
    } do
      local small, large = work(500, case[1], case[2]), work(2000, case[1], case[2])
      assert.is_true(large < 6 * small, ("%d thousands for 500 nodes, %d for 2000"):format(small, large))
    end
  end)

  it("do not grow with the number of dots in names", function()
    local function load(names)
      local tensors = {}
      for i, name in ipairs(names) do tensors[name] = lm.full({1}, i) end
      return lm.onnx.load(files.write(folder, {{"Relu", "x", "y"}}, tensors))
    end
    local function modules_of(net)
      local n = 0
      for _ in net:named_modules() do n = n + 1 end
      return n
    end
    local long = load {("a."):rep(50000) .. "b", "short.name"}
    assert.is_true(modules_of(long) < 100)
    assert.is_true(long.short.name ~= nil)
    assert.is_true(tostring(long) ~= nil and long:clone() ~= nil)
    local names = {}
    for i = 1, 2000 do names[i] = ("p%d.a.b.c.d.e.f.g"):format(i) end
    local net = load(names)
    assert.is_true(modules_of(net) < 2000)
    local values = {}
    for _, b in net:named_buffers() do values[b:item()] = true end
    for i = 1, 2000 do assert.is_true(values[i]) end
    local again = load(names)
    again:load_state_dict(net:state_dict())
    assert.is_true(net.p1.a.b.c.d.e.f.g ~= nil)
  end)

  it("allow sequences of more than 8,000 entries, and say what is too many", function()
    local many, count = {}, 9000
    for i = 1, count do many[i] = "x" end
    local path = files.write(folder, {
      {"SequenceConstruct", table.concat(many, " "), "s"}, {"SequenceInsert", "s x", "t"}, {"SequenceErase", "t", "u"},
      {"SequenceInsert", "u x", "v"}, {"ConcatFromSequence", "v", "w", {axis = 0}}, {"Relu", "w", "y"},
    }, {}, {version = 13})
    for _ = 1, 2 do assert.same({count + 1}, {unpack(lm.onnx.load(path)(lm.ones(1)).shape)}) end
    local outputs = {}
    for i = 1, 9000 do outputs[i] = files.info "x" end
    path = files.write(folder, {{"Relu", "x", "y"}}, {}, {output = outputs})
    assert.error_matches(function() lm.onnx.load(path) end, "made.onnx': it has 9000 outputs, at most 4000 are allowed")
    local body = {name = "b", node = files.nodes {{"Identity", "c", "d"}}, input = {files.info "i", files.info "c"},
      output = {files.info "d"}}
    path = files.write(folder, {{"Loop", "- c " .. table.concat(many, " "), "y", {body = body}}}, {c = lm.tensor(true)})
    assert.error_matches(function() lm.onnx.load(path) end, "node '' %(Loop%): it has more than 4000 inputs")
  end)

  it("refuses integers that int64 cannot hold, and reads uint32 in the field that ONNX names", function()
    local function load(t)
      local path = folder .. "/unsigned.onnx"
      core.onnx_write(path, {ir_version = 8, opset_import = {{version = 17}}, graph = {
        name = "g", node = files.nodes {{"Identity", "w", "y"}}, output = {{name = "y"}}, initializer = {t},
      }})
      return lm.onnx.load(path)():totable(), lm.load(path).w
    end
    local raw = lm.full({16}, 255, {dtype = "uint8"})
    raw:narrow(1, 1, 8):zero_()
    assert.error_matches(function() load {name = "w", data_type = 13, dims = {2}, raw_data = raw} end,
      "unsigned.onnx': 'w': dtype uint64 with values of 2%^63 and more")
    raw[16] = 127
    assert.equal(0, load {name = "w", data_type = 13, dims = {2}, raw_data = raw}[1])
    local field = lm.tensor({1, 2 ^ 32 - 1}, {dtype = "int64"})
    local values, loaded = load {name = "w", data_type = 12, dims = {2}, uint64_data = field:totable()}
    assert.same({1, 2 ^ 32 - 1}, {tonumber(values[1]), tonumber(values[2])})
    assert.equal("int64", loaded.dtype)
    assert.error_matches(function() load {name = "w", data_type = 12, dims = {2}, uint64_data = {1, 2 ^ 32}} end,
      "'w' has values that are no uint32")
  end)
end)
