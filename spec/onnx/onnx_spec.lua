-- Models of ONNX files: values of each op (spec/golden/_onnx.safetensors), the module that a file becomes, errors.
local lm = require "luminary"
local cases = require "spec.support.onnx_cases"
local needs = require "spec.support.needs"
local Source = require "luminary.file_formats.source"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local names, bytes_of, write_case = cases.load "_onnx"
local function write(name) return write_case(folder, name) end

-- Returns a protobuf field of bytes, and one of an integer.
local function varint(v)
  local out = ""
  while v >= 128 do
    out, v = out .. string.char(v % 128 + 128), math.floor(v / 128)
  end
  return out .. string.char(v)
end
local function field(number, text) return varint(number * 8 + 2) .. varint(#text) .. text end
local function integer(number, v) return varint(number * 8) .. varint(v) end

-- Returns the text of a model of nodes, each {op, inputs, outputs, domain, attributes}, from an input
-- x to an output y; "-" is an input left out.
local function model_of(nodes, more)
  local graph = ""
  for _, node in ipairs(nodes) do
    local text = field(4, node[1]) .. field(7, node[4] or "") .. (node[5] or "")
    for name in node[2]:gmatch "%S+" do text = text .. field(1, name == "-" and "" or name) end
    for name in node[3]:gmatch "%S+" do text = text .. field(2, name) end
    graph = graph .. field(1, text)
  end
  local kind = field(2, field(1, integer(1, 1)))
  graph = graph .. field(11, field(1, "x") .. kind) .. field(12, field(1, "y") .. kind)
  return integer(1, 8) .. field(7, graph .. (more or "")) .. field(8, integer(2, 17))
end

local function load_text(text) return lm.onnx.load(temp.write(folder .. "/made.onnx", text)) end

describe("lm.onnx", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  for _, name in ipairs(names) do
    it("runs " .. name, function()
      write(name)
      local _, why = cases.run(folder .. "/" .. name)
      assert.is_nil(why)
    end)
  end

  it("can interrupt a Loop without end, and nested ones of 2^30 steps, whose recording stays small", function()
    local function info(name, dtype)
      return {name = name, type = {tensor_type = {elem_type = dtype, shape = {dim = {}}}}}
    end
    local body = {
      name = "body", input = {info("i", 7), info("go", 9), info("a", 1)}, output = {info("more", 9), info("b", 1)},
      node = {
        {op_type = "Identity", input = {"go"}, output = {"more"}},
        {op_type = "Add", input = {"a", "a"}, output = {"b"}},
      },
    }
    local function step(n) -- runs n + 1 nested loops of two steps each
      return {
        name = "body", input = {info("i", 7), info("more", 9), info("b", 1)}, output = {info("again", 9), info("d", 1)},
        node = {
          {op_type = "Identity", input = {"more"}, output = {"again"}},
          n == 0 and {op_type = "Neg", input = {"b"}, output = {"d"}} or {
            op_type = "Loop", input = {"two", "", "b"}, output = {"d"}, attribute = {{name = "body", type = 5,
            g = step(n - 1)}},
          },
        },
      }
    end
    local two = {name = "two", data_type = 7, raw_data = lm.tensor({2}, {dtype = "int64"})}
    lm.core.onnx_write(folder .. "/nested.onnx", {ir_version = 8, opset_import = {{version = 17}}, graph = {
      name = "nested", input = {info("x", 1)}, output = {info("y", 1)}, initializer = {two},
      node = {{
        op_type = "Loop", input = {"two", "", "x"}, output = {"y"},
        attribute = {{name = "body", type = 5, g = step(29)}},
      }},
    }})
    lm.core.onnx_write(folder .. "/loop.onnx", {ir_version = 8, opset_import = {{version = 17}}, graph = {
      name = "loop", input = {info("x", 1)}, output = {info("y", 1)},
      initializer = {{name = "go", data_type = 9, raw_data = lm.ones({1}, {dtype = "bool"})}},
      node = {{
        op_type = "Loop", input = {"", "go", "x"}, output = {"y"}, attribute = {{name = "body", type = 5, g = body}},
      }},
    }})
    for name, seconds in pairs {loop = 1, nested = 4} do
      local pipe = io.popen(([[timeout 60 luajit -e '
        local lm, ffi = require "luminary", require "ffi"
        ffi.cdef "int getpid(void);"
        local net = lm.onnx.load "%s/%s.onnx"
        os.execute(("{ sleep %g; kill -INT %%d; } &"):format(ffi.C.getpid()))
        print(pcall(function() return lm.no_grad(function() return net(lm.zeros({})) end) end))
        print("MiB:", io.open("/proc/self/status"):read("*a"):match "VmHWM:%%s*(%%d+)" / 1024)' 2>&1]]):format(folder,
        name, seconds))
      local text = pipe:read "*a"
      pipe:close()
      assert.matches("^false\t.*interrupted!", text)
      assert.is_true(tonumber(text:match "MiB:%s*([%d.]+)") < 200, text)
    end
  end)

  it("runs each op on another device than the CPU", function()
    local failures = {}
    for _, name in ipairs(names) do
      write(name)
      local _, why = cases.run(folder .. "/" .. name, "cpu:1")
      if why then failures[#failures + 1] = name .. ": " .. why end
    end
    assert.same({}, failures)
  end)

  it("has parameters and buffers under the names of the initializers, and trains", function()
    local net = lm.onnx.load(write "own.cnn")
    local params, buffers = {}, {}
    for name, p in net:named_parameters() do
      params[#params + 1] = name
      assert.is_true(p.requires_grad)
    end
    for name in net:named_buffers() do buffers[#buffers + 1] = name end
    table.sort(params)
    assert.same({"bn.bias", "bn.weight", "conv.bias", "conv.weight", "fc.bias", "fc.weight"}, params)
    assert.same({"bn.running_mean", "bn.running_var"}, buffers)

    lm.manual_seed(0)
    local x, target = lm.randn(8, 2, 8, 8), lm.tensor({1, 2, 3, 1, 2, 3, 1, 2}, {dtype = "int64"})
    local opt, losses = lm.optim.Adam(net:parameters(), {lr = 0.05}), {}
    for i = 1, 20 do
      local loss = lm.nn.functional.cross_entropy((net(x)), target)
      losses[i] = loss:item()
      opt:zero_grad()
      loss:backward()
      opt:step()
    end
    assert.is_true(losses[20] < 0.5 * losses[1])
  end)

  it("loads and copies weights as any module does", function()
    local path = write "own.cnn"
    local net, other = lm.onnx.load(path), lm.onnx.load(path)
    local x = lm.ones {1, 2, 8, 8}
    local y = net(x):detach()
    for _, p in ipairs(other:parameters()) do lm.no_grad(function() p:mul_(2) end) end
    assert.is_false(lm.equal(other(x), y))
    local twin = other:clone()
    other:load_state_dict(net:state_dict())
    assert.is_true(lm.equal(other(x), y))
    assert.is_false(lm.equal(twin(x), y))
    assert.equal("float64", (net:double())(x:double()).dtype)
  end)

  it("computes with a module or a parameter that replaces one of the file's", function()
    local net = lm.onnx.load(write "own.cnn")
    local x = lm.ones {1, 2, 8, 8}
    net.fc = lm.nn.Linear(4, 7)
    assert.same({1, 7}, {unpack((net(x)).shape)})
    assert.same({1, 7}, {unpack((net:clone()(x)).shape)})
    net.fc.weight, net.fc.bias = lm.nn.Parameter(lm.ones(5, 4)), lm.nn.Parameter(lm.ones(5))
    assert.same({1, 5}, {unpack((net(x)).shape)})
    net.fc = lm.nn.Linear(4, 7, {bias = false})
    assert.error_matches(function() net(x) end, "onnx: the module has no parameter or buffer 'fc.bias'")
    local state = net:state_dict()
    assert.is_true(state["fc.weight"] ~= nil and state["fc.bias"] == nil)
  end)

  it("takes inputs by position or by name, and returns all outputs", function()
    local net = lm.onnx.load(write "own.transformer")
    local ids, mask = lm.tensor({{1, 2, 0}}, {dtype = "int64"}), lm.ones {1, 3}
    local a, b = net(ids, mask), net {mask = mask, ids = ids}
    assert.is_true(lm.equal(a, b))
    assert.same({"ids", "mask"}, net:names "inputs")
    local scores, class = lm.onnx.load(write "own.cnn")(lm.ones {5, 2, 8, 8})
    assert.same({5, 3}, {unpack(scores.shape)})
    assert.equal("int64", class.dtype)
    assert.equal(scores:argmax(2):select(1, 1):item() - 1, class:select(1, 1):item())
  end)

  it("says what is wrong with inputs", function()
    local net = lm.onnx.load(write "own.transformer")
    local ids, mask = lm.tensor({{1, 2}}, {dtype = "int64"}), lm.ones {1, 2}
    assert.error_matches(function() net(ids) end, "onnx: input 'mask' is missing or nil; expected float32 %[B, T%]")
    assert.error_matches(function() net(mask, mask) end, "onnx: input 'ids' must be int64, got float32; convert it")
    assert.error_matches(function() net(ids:select(1, 1), mask) end, "expected input 'ids' to have shape %[B, T%]")
    assert.error_matches(function() net {ids = ids, mas = mask} end, "onnx: unknown input 'mas'; inputs are ids, mask")
    assert.error_matches(function() net:names "weights" end, "names: side must be one of 'inputs', 'outputs', got")
    assert.error_matches(function() net(ids, mask, mask) end, "onnx")
    local cnn = lm.onnx.load(write "own.cnn")
    assert.error_matches(function() cnn(lm.ones {1, 3, 8, 8}) end, "shape %[N, 2, 8, 8%], got %[1, 3, 8, 8%]")
    local entries = "out of range for (%d+) entries %(ONNX's indices start at 0%)"
    for _, far in ipairs {100, -100} do -- the index that was passed, not one that counts from 1
      local at = (": index " .. far .. " at position 2 is "):gsub("%-", "%%-")
      local bad = lm.tensor({{1, far}}, {dtype = "int64"})
      assert.error_matches(function() net(bad, mask) end, "onnx: node '' %(Gather%): .*" .. at .. entries)
    end
  end)

  it("refuses what it cannot run when it loads, with every kind of node", function()
    local text = model_of {
      {"Bar", "x", "a", "com.foo"}, {"Bar", "a", "b", "com.foo"}, {"ImageDecoder", "b", "c"}, {"Relu", "c", "y"},
    }
    assert.error_matches(function() load_text(text) end,
      "'.*made.onnx': cannot run 2 kinds of nodes: 2 × com.foo.Bar, 1 × ImageDecoder")
    assert.error_matches(function() load_text(model_of {{"Relu", "z", "y"}}) end,
      "no node before it makes its input 'z'")
    assert.error_matches(function() load_text(model_of {{"Relu", "x", "z"}}) end, "no node makes the output 'y'")
    assert.error_matches(function() load_text(integer(1, 8)) end, "it has no graph")
    local late = integer(1, 8) .. field(7, "") .. field(8, integer(2, 99))
    assert.error_matches(function() load_text(late) end, "of version 99; the newest known is 28")
  end)

  it("refuses attributes of windows that do not fit the input", function()
    local x, w = lm.ones(1, 1, 4, 4), lm.ones(1, 1, 2, 2)
    local input = field(11, field(1, "w") .. field(2, field(1, integer(1, 1))))
    local function message(op, attributes, weight)
      local text = ""
      for name, list in pairs(attributes) do
        local one = field(1, name) .. integer(20, 7)
        for _, v in ipairs(list) do one = one .. integer(8, v) end
        text = text .. field(5, one)
      end
      local net = load_text(model_of({{op, weight and "x w" or "x", "y", nil, text}}, weight and input))
      return select(2, pcall(net, {x = x, w = weight}))
    end
    for _, case in ipairs {
      {"MaxPool", {}, "attribute 'kernel_shape' is missing"},
      {"MaxPool", {kernel_shape = {2}}, "attribute 'kernel_shape' must be 2 integers of at least 1"},
      {"LpPool", {kernel_shape = {0, 2}}, "attribute 'kernel_shape' must be 2 integers of at least 1"},
      {"AveragePool", {kernel_shape = {2, 2}, pads = {1}}, "attribute 'pads' must be 4 integers"},
      {"Conv", {strides = {0, 1}}, "attribute 'strides' must be 2 integers of at least 1", w},
      {"Conv", {kernel_shape = {3, 3}}, "attribute 'kernel_shape' differs from the weight's sizes", w},
      {"ConvTranspose", {dilations = {1}}, "attribute 'dilations' must be 2 integers of at least 1", w},
    } do
      assert.matches(("onnx: node '' (%s): %s"):format(case[1], case[3]), message(case[1], case[2], case[4]), 1, true)
    end
  end)

  -- Returns an attribute's field: an integer, a text, or a list of integers.
  local function attribute(name, v)
    local text = field(1, name)
    if type(v) == "string" then return field(5, text .. field(4, v) .. integer(20, 3)) end
    if type(v) == "number" then return field(5, text .. integer(3, v) .. integer(20, 2)) end
    for _, n in ipairs(v) do text = text .. integer(8, n) end
    return field(5, text .. integer(20, 7))
  end
  local function attributes_of(t)
    local text = ""
    for name, v in pairs(t or {}) do text = text .. attribute(name, v) end
    return text
  end

  it("refuses a node that breaks ONNX's rules when the file is loaded, and names it", function()
    for _, case in ipairs {
      {"LRN", {}, "attribute 'size' is missing"}, {"LRN", {size = 0}, "must be an integer of at least 1, got 0"},
      {"LSTM", {}, "attribute 'hidden_size' is missing", "x x x"},
      {"LSTM", {hidden_size = 0}, "attribute 'hidden_size' must be an integer of at least 1, got 0", "x x x"},
      {"GRU", {hidden_size = 2, direction = "up"}, "one of 'forward', 'reverse', 'bidirectional', got", "x x x"},
      {"Conv", {auto_pad = "zzz"}, "attribute 'auto_pad' must be one of 'NOTSET', ", "x x"},
      {"Pad", {mode = "zzz"}, "attribute 'mode' must be one of 'constant', 'reflect', 'edge', 'wrap', got", "x x"},
      {"Softmax", {axis = {1}}, "attribute 'axis' must be an integer, got"},
      {"Transpose", {perm = 1}, "attribute 'perm' must be a list, got 1"},
      {"CumSum", {reverse = 9}, "attribute 'reverse' must be 0 or 1, got 9", "x x"},
      {"Concat", {}, "attribute 'axis' is missing", "x x"},
      {"Split", {num_outputs = 3}, "1 outputs are declared, it makes 3"},
      {"Attention", {}, "input 1 of at least 3 is missing", ""}, {"Add", {}, "input 2 of at least 2 is missing"},
      {"Slice", {}, "input 2 of at least 3 is missing", "x - x"},
    } do
      local text = model_of {{case[1], case[4] or "x", "y", nil, attributes_of(case[2])}}
      assert.error_matches(function() load_text(text) end,
        ("'.*made.onnx': node '' %%(%s%%): .*%s"):format(case[1], (case[3]:gsub("[%[%]().-]", "%%%0"))))
    end
    assert.is_true(pcall(load_text, model_of {{"Conv", "x x", "y", nil, attribute("auto_pad", "")}}))
  end)

  it("frees what is not read again at once", function()
    local nodes = {}
    for i = 1, 40 do nodes[i] = {"Exp", i == 1 and "x" or "v" .. i - 1, i == 40 and "y" or "v" .. i} end
    local net = load_text(model_of(nodes))
    collectgarbage()
    local x = lm.zeros {1000}
    local before, after = lm.live_tensors(), nil
    lm.no_grad(function()
      local y = net(x)
      after = lm.live_tensors() -- nothing was collected meanwhile
      assert.same({1000}, {unpack(y.shape)})
    end)
    assert.is_true(after - before <= 3)
  end)

  it("maps external data beside the model, and no other files", function()
    local function weights(location, element_type)
      local entry = field(1, "location") .. field(2, location)
      local kind = integer(2, element_type or 1)
      return field(5, integer(1, 2) .. kind .. field(8, "w") .. field(13, entry) .. integer(14, 1))
    end
    local nodes = {{"Add", "x w", "y"}}
    temp.write(folder .. "/w.bin", ("\0\0\128\63"):rep(2))
    local net = load_text(model_of(nodes, weights "w.bin"))
    assert.same({2, 3}, net(lm.tensor {1, 2}):totable())
    for _, location in ipairs {"../w.bin", "/etc/passwd", "a/../../w.bin", ""} do
      assert.error_matches(function() load_text(model_of(nodes, weights(location))) end,
        "external data must be in a file beside the model")
    end
    temp.write(folder .. "/w.bin", "\0\0\128\63")
    local small = load_text(model_of(nodes, weights("w.bin", 22))) -- int4: two elements of one byte
    assert.same({1, 1}, small(lm.ones(2)):totable())
    assert.error_matches(function() load_text(model_of(nodes, weights "w.bin")) end, "truncated")
    assert.error_matches(function() load_text(model_of(nodes, weights "none.bin")) end, "none.bin")
  end)

  it("is read by lm.load and inspected", function()
    local dict = lm.load(write "own.cnn")
    assert.same({4, 2, 3, 3}, {unpack(dict["conv.weight"].shape)})
    local pipe = io.popen("luajit bin/luminary inspect " .. folder .. "/own.cnn.onnx 2>&1")
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("metadata.inputs.image = 'float32 %[N, 2, 8, 8%]'", text)
    assert.matches("metadata.nodes.Conv = 1", text)
    assert.matches("conv.weight +float32 +%[4, 2, 3, 3%]", text)
  end)

  it("refuses files that are cut off, nested without end, or larger than they say", function()
    local text = bytes_of "own.cnn.onnx"
    for _, n in ipairs {0, 1, 5, 50, 200, #text - 1} do
      assert.error_matches(function() load_text(text:sub(1, n)) end, "^[^\n]*'.*made.onnx': [^\n]+$")
    end
    local nested = field(4, "Relu")
    for _ = 1, 3000 do nested = field(1, field(5, field(6, nested))) end
    assert.error_matches(function() load_text(integer(1, 8) .. field(7, nested)) end, "nested too deeply")
    local empty = ("\10\0"):rep(2e6) -- nodes without anything
    assert.error_matches(function() load_text(integer(1, 8) .. field(7, empty)) end,
      "its messages take more memory than its size explains")
    local huge = field(5, integer(1, 2 ^ 40) .. integer(2, 1) .. field(8, "w") .. field(9, "abcd"))
    assert.error_matches(function() load_text(model_of({{"Add", "x w", "y"}}, huge)) end, "does not match its 4 bytes")
  end)

  it("has no method that an attribute of a file can replace", function()
    local attributes = ""
    for name in ("const number ints fail known lists"):gmatch "%S+" do
      attributes = attributes .. field(5, field(1, name) .. integer(3, 5) .. integer(20, 2))
    end
    local scale = field(5, integer(2, 1) .. field(8, "s") .. field(9, "\0\0\0\63")) -- 0.5
    local node = field(1, field(1, "q") .. field(1, "s") .. field(2, "y") .. field(4, "DequantizeLinear")
      .. field(7, "com.microsoft") .. attributes)
    local net = load_text(model_of({{"QuantizeLinear", "x s", "q"}}, node .. scale))
    assert.same({1, 1}, net(lm.ones(2)):totable())
  end)

  it("does not expand functions without end", function()
    local functions = ""
    for i = 1, 40 do
      local calls = ""
      for _ = 1, 2 do
        calls = calls .. field(7, field(1, "v") .. field(2, "w") .. field(4, "f" .. i + 1) .. field(7, "d"))
      end
      functions = functions
        .. field(25, field(1, "f" .. i) .. field(4, "v") .. field(5, "w") .. calls .. field(10, "d"))
    end
    local loop = field(25, field(1, "g") .. field(4, "v") .. field(5, "w") .. field(10, "d")
      .. field(7, field(1, "v") .. field(2, "w") .. field(4, "g") .. field(7, "d")))
    assert.error_matches(function() load_text(model_of({{"f1", "x", "y", "d"}}) .. functions) end,
      "more than 1%d+ nodes and initializers")
    assert.error_matches(function() load_text(model_of({{"g", "x", "y", "d"}}) .. loop) end, "calls itself")
  end)

  -- Returns an initializer of int64.
  local function initializer(name, list)
    local raw = ""
    for _, v in ipairs(list) do raw = raw .. Source.little_endian(v, 8) end
    return field(5, integer(1, #list) .. integer(2, 7) .. field(8, name) .. field(9, raw))
  end

  it("computes nothing large while it reads", function()
    local sides = {}
    for d = 1, 3 do sides[d] = {1, 1, 1} sides[d][d] = 1024 end
    local nodes, zeros = {}, {}
    for i = 1, 1024 do zeros[i] = 0 end
    for d, name in ipairs {"a", "b", "c"} do nodes[d] = {"Reshape", "z s" .. d, name} end
    nodes[4], nodes[5], nodes[6] = {"Less", "a b", "l"}, {"Where", "l b c", "w"}, {"Add", "x w", "y"}
    for i = 1, 200 do nodes[6 + i] = {"Add", "a b", "n" .. i} end
    local text = model_of(nodes, initializer("z", zeros) .. initializer("s1", sides[1]) .. initializer("s2", sides[2])
      .. initializer("s3", sides[3]))
    lm.reset_peak_memory_stats()
    local before = lm.memory_allocated()
    load_text(text)
    assert.is_true(lm.max_memory_allocated() - before < 2 ^ 25)
  end)

  it("raises errors for sizes that cannot be, when it is called", function()
    local big = {2 ^ 40}
    local function mode(name) return field(5, field(1, "mode") .. field(4, name)) end
    local function with_image(node) return {{"Reshape", "x r", "q"}, node} end
    for _, case in ipairs {
      {{{"ConstantOfShape", "big", "y"}}, "cannot allocate"}, {{{"Tile", "x big", "y"}}, "cannot allocate"},
      {{{"Expand", "x big", "y"}}, "does not broadcast"},
      {{{"Pad", "x pads", "y", nil, mode "edge"}}, "cannot allocate"},
      {{{"Pad", "x pads", "y", nil, mode "reflect"}}, "cannot allocate"},
      {{{"Range", "zero big one", "y"}}, "cannot allocate"}, {{{"OneHot", "zero big r", "y"}}, "cannot allocate"},
      {with_image {"Resize", "q - - far", "y", nil, mode "linear"}, "at most 4194304"},
      {{{"MelWeightMatrix", "big big one zero one", "y"}}, "at most 4194304"},
      {{{"Expand", "one big", "long"}, {"SplitToSequence", "long", "y"}}, "at most 4194304"},
    } do
      local more = initializer("big", big) .. initializer("pads", {0, 2 ^ 40}) .. initializer("zero", {0})
        .. initializer("one", {1}) .. initializer("r", {1, 2}) .. initializer("far", {1, 2 ^ 40})
      assert.error_matches(function() load_text(model_of(case[1], more))(lm.ones(2)) end, case[2])
    end
    local net = load_text(model_of({{"Pad", "x pads", "y", nil, mode "reflect"}},
      initializer("pads", {5, 3})))
    assert.same({2, 3, 4, 3, 2, 1, 2, 3}, {unpack((net(lm.tensor {1, 2, 3, 4})):totable(), 1, 8)})
  end)

  it("refuses axes, sizes and lists that do not fit the input when it is called, and names the node", function()
    for _, case in ipairs {
      {"Reshape", "x a", {a = {-1, -1}}, "one size may be -1, and the others at least 0, got [-1, -1]"},
      {"Reshape", "x a", {a = {4, -1}}, "reshape: "},
      {"Squeeze", "x a", {a = {0}}, "axis 0 is of size 2, and cannot be removed"},
      {"Squeeze", "x a", {a = {9}}, "axis 9 is out of range for 2 dims (axes start at 0)"},
      {"Unsqueeze", "x a", {a = {0, 0}}, "axis 0 is repeated"},
      {"Gather", "x a", {a = {0}}, "axis 9 is out of range for 2 dims", {axis = 9}},
      {"Concat", "x", {}, "axis 9 is out of range for 2 dims", {axis = 9}},
      {"CumSum", "x a", {a = {9}}, "axis 9 is out of range for 2 dims"},
      {"Softmax", "x", {}, "axis 9 is out of range for 2 dims", {axis = 9}},
      {"Flatten", "x", {}, "axis 3 is out of range for 2 dims", {axis = 3}},
      {"Pad", "x a", {a = {1, 1, 1}}, "expected 2 pairs of pads, got 1.5"},
      {"Resize", "x - - a", {a = {4}}, "expected 2 sizes, got 1"},
      {"Resize", "x", {}, "neither scales nor sizes are given"},
      {"Tile", "x a", {a = {1, 1, 1}}, "expected 2 repeats, one for each dim, got 3"},
      {"Expand", "x a", {a = {-1, 3}}, "the sizes must be at least 0, got [-1, 3]"},
      {"Transpose", "x", {}, "perm must have 2 entries, one for each dim, got 1", {perm = {0}}},
      {"Slice", "x a b c d", {a = {0}, b = {1}, c = {0}, d = {0}}, "a step must not be 0"},
      {"Slice", "x a b", {a = {0}, b = {1, 2}}, "starts, ends and steps must have 1 entries each, got 1, 2 and 0"},
      {"Split", "x a", {a = {1}}, "the parts of axis 0 have 1 entries, the axis 2"},
      {"Range", "a b c", {a = {0}, b = {3}, c = {0}}, "delta must not be 0"},
      {"TopK", "x a", {a = {1, 1}}, "input 2 must have one element, got shape [2]"},
    } do
      local more = ""
      for name, list in pairs(case[3]) do more = more .. initializer(name, list) end
      local net = load_text(model_of({{case[1], case[2], "y", nil, attributes_of(case[5])}}, more))
      assert.error_matches(function() net(lm.ones(2, 3)) end,
        ("onnx: node '' %%(%s%%): %s"):format(case[1], (case[4]:gsub("[%[%]().-]", "%%%0"))))
    end
    local far = initializer("a", {2}) .. initializer("b", {-2 ^ 53}) .. initializer("c", {1})
      .. initializer("d", {-2 ^ 63})
    assert.same({{3}, {6}}, load_text(model_of({{"Slice", "x a b c d", "y"}}, far))(
      lm.tensor {{1, 2, 3}, {4, 5, 6}}):totable())
    local wide = field(11, field(1, "c") .. field(2, field(1, integer(1, 7))))
    local net = load_text(model_of({{"Reshape", "x c", "y"}}, wide))
    assert.error_matches(function() net(lm.ones(2, 3), lm.ones({1, 2}, {dtype = "int64"})) end,
      "input 2 must have 1 dim, got shape %[1, 2%]")
  end)

  it("puts a sentence before an error of Lua itself", function()
    local net = load_text(model_of {{"SpaceToDepth", "x", "y", nil, attributes_of {blocksize = 2}}})
    assert.error_matches(function() net(lm.ones(2, 2)) end,
      "onnx: node '' %(SpaceToDepth%): its attributes, or the shapes or number of its inputs, do not fit it %(att")
  end)

  it("prints its inputs, outputs, nodes and parameters, and is in evaluation mode", function()
    local net = lm.onnx.load(write "own.cnn")
    local text = tostring(net)
    assert.matches("image: float32 %[N, 2, 8, 8%] %-> scores: .*, %d+ nodes, %d+ parameters\n", text)
    assert.matches("%(fc%): OnnxTensors%(.*weight: float32 %[3, 4%]", text)
    assert.is_false(net.training)
    assert.is_true(lm.is_tensor((lm.prepare(net, lm.ones(1, 2, 8, 8))(lm.ones(1, 2, 8, 8)))))
  end)

  it("names the file once in an error that is nested in graphs", function()
    local inner = field(1, field(1, "none") .. field(2, "y") .. field(4, "Relu")) .. field(12, field(1, "y"))
    for _ = 1, 8 do
      local branch = field(6, inner) .. integer(20, 5)
      inner = field(1, field(1, "x") .. field(2, "y") .. field(4, "If") .. field(5, field(1, "then_branch") .. branch)
        .. field(5, field(1, "else_branch") .. branch)) .. field(12, field(1, "y"))
    end
    local ok, why = pcall(load_text, model_of({}, inner))
    assert.is_false(ok)
    assert.equal(1, select(2, why:gsub("made.onnx", "")))
  end)

  -- A small file: 4 MiB and 160 times its size more.
  it("uses at most four times a file's size, and 96 MiB, to read it #unsanitized", function()
    local program = temp.write(folder .. "/peak.lua", [[
      local lm = require "luminary"
      local load = lm.onnx.load
      local function peak()
        for line in io.lines "/proc/self/status" do
          if line:find "^VmHWM" then return tonumber(line:match "%d+") end
        end
      end
      local before = peak()
      pcall(load, arg[1])
      print(peak() - before)]])
    local chain, functions = {}, ""
    local tensors = {}
    for i = 1, 24000 do
      tensors[i] = field(5, integer(1, 1) .. integer(2, 1) .. field(8, "w" .. i) .. field(9, "abcd"))
      chain[i] = field(1, field(1, i == 1 and "x" or "v" .. i - 1) .. field(2, "v" .. i) .. field(4, "Relu"))
    end
    for i = 1, 30 do
      local call = field(7, field(1, "v") .. field(2, "w") .. field(4, i == 30 and "Relu" or "f" .. i + 1)
        .. field(7, i == 30 and "" or "d"))
      functions = functions .. field(25, field(1, "f" .. i) .. field(4, "v") .. field(5, "w") .. field(10, "d")
        .. call:rep(2))
    end
    local graph = field(1, field(1, "x") .. field(2, "y") .. field(4, "f1") .. field(7, "d"))
    local relu = field(1, field(1, "x") .. field(2, "y") .. field(4, "Relu"))
    local pad, unknown = field(2, ("p"):rep(5e5)), field(1, field(4, "a"))
    local ints = field(5, field(1, "a") .. integer(20, 7) .. field(8, ("\1"):rep(5e6)))
    for name, text in pairs {
      empty_nodes = field(7, ("\10\0"):rep(1e6)), chain = model_of({{"Relu", "x", "y"}}, table.concat(chain)),
      tensors = model_of({{"Relu", "x", "y"}}, table.concat(tensors)) .. pad,
      few_tensors = model_of({{"Relu", "x", "y"}}, table.concat(tensors, "", 1, 6000)),
      unknown_nodes = model_of({}, unknown:rep(95000)) .. pad, few_functions = model_of({}, graph) .. functions,
      integers = model_of({{"Relu", "x", "y", nil, ints}}), small_empty_nodes = field(7, ("\10\0"):rep(5000)),
      functions = model_of({}, relu:rep(25000) .. graph) .. functions,
      strings = field(7, field(1, ("\10\1a"):rep(3e5))), attributes = field(7, field(1, ("\42\0"):rep(5e5))),
      dims = field(7, field(5, ("\8\1"):rep(1e6))),
    } do
      local path = temp.write(folder .. "/large.onnx", text)
      local _, out = temp.run(folder, ("luajit %s %s"):format(program, path))
      local kilobytes, allowance = tonumber(out), math.min(96 * 2 ^ 20, 4 * 2 ^ 20 + 160 * #text)
      assert(kilobytes and kilobytes * 1024 <= 4 * #text + allowance, name .. ": " .. out)
    end
  end)

  it("loads damaged files or raises an error that names them", function()
    math.randomseed(7)
    for k = 1, 300 do
      local name = names[k % #names + 1] .. ".onnx"
      local text = bytes_of(name)
      for _ = 1, 3 do
        local at = math.random(#text)
        text = text:sub(1, at - 1) .. string.char(math.random(0, 255)) .. text:sub(at + 1)
      end
      local ok, why = pcall(load_text, text)
      if not ok then assert.matches("'.*made.onnx'", tostring(why)) end
    end
  end)
end)
