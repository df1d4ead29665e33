-- Arguments of functions and constructors, and their errors: sweeps over all public names.
local lm = require "luminary"
local reference = require "spec.support.reference"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return (tostring(problem):gsub("^[^:\n]+:%d+: ", ""))
end

describe("a number", function()
  it("may be a tensor without dims that no gradient is asked of", function()
    assert.same({ 2, 3, 4 }, lm.linspace(lm.tensor(2), lm.tensor(4, { dtype = "int64" }), 3):totable())
    assert.same({ 0, 0.5 }, lm.arange(0, lm.tensor(1), lm.tensor(0.5)):totable())
    assert.equal(8, lm.tensor({ 1, 7 }):norm(lm.tensor(1)):item())
    local ok, why = pcall(lm.linspace, lm.tensor(2):requires_grad_(), 4, 3)
    assert.is_false(ok)
    assert.matches("linspace: start must be a number, got a tensor that requires grad; pass t:item%(%)", why)
    assert.matches("linspace: start must be a number, got a tensor %[1%]",
      select(2, pcall(lm.linspace, lm.ones(1), 4, 3)))
  end)
end)

describe("arguments stand by place where PyTorch has them so", function()
  local function params() return nn.Linear(2, 2):parameters() end
  it("in layers, functions, optimizers and schedules", function()
    assert.equal("Conv2d(1, 2, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=1, bias=False)",
      (tostring(nn.Conv2d(1, 2, 3, 2, 1, 1, 1, false)):gsub("bias", "groups=1, bias")))
    assert.matches("stride=(2, 2), padding=(1, 1), output_padding=(1, 1), groups=2",
      tostring(nn.ConvTranspose2d(2, 2, 3, 2, 1, 1, 2)), 1, true)
    assert.equal("Linear(in_features=2, out_features=3, bias=False)", tostring(nn.Linear(2, 3, false)))
    assert.matches("eps=0.001, momentum=0.2, affine=False", tostring(nn.BatchNorm2d(3, 1e-3, 0.2, false)), 1, true)
    assert.matches("eps=0.001, elementwise_affine=False", tostring(nn.LayerNorm({ 3 }, 1e-3, false)), 1, true)
    assert.matches("padding_idx=1", tostring(nn.Embedding(3, 4, 1)), 1, true)
    assert.equal("MaxPool2d(kernel_size=2, stride=1, padding=1, dilation=1, ceil_mode=False)",
      tostring(nn.MaxPool2d(2, 1, 1)))
    assert.is_true(nn.ReLU(true).inplace)
    assert.same({ 0.6, 0.8 }, F.normalize(lm.tensor({ 3, 4 }, { dtype = "float64" }), 2, 1):totable())
    assert.equal(1, F.gumbel_softmax(lm.zeros(5), 1, true):sum():item())
    local group = optim.Adam(params(), 0.1, { 0.8, 0.9 }, { weight_decay = 0.5 }).param_groups[1]
    assert.same({ 0.1, 0.8, 0.5 }, { group.lr, group.betas[1], group.weight_decay })
    assert.equal(0.9, optim.SGD(params(), 0.1, 0.9).param_groups[1].momentum)
    assert.equal(0.5, optim.lr_scheduler.StepLR(optim.SGD(params(), 0.1), 3, 0.5).gamma)
    assert.equal(2, nn.init.constant_(lm.zeros(1), 2):item())
    assert.same({ 2, 3 }, nn.utils.rnn.pad_sequence({ lm.ones(3), lm.ones(2) }, true, 7).shape)
    local x = lm.tensor { { 1, 3 }, { 2, 6 } }
    assert.same({ 2, 1 }, x:sum(2, true).shape)
    assert.same({ { 4 }, { 8 } }, x:sum(2, true):totable())
    assert.same({ 1, 4 }, x:var(2, false):totable())
    assert.same({ { 1 }, { 2 } }, x:std(2, false, true):totable())
    assert.same({ { 2, 6 } }, x:max(1, true):totable())
    assert.same({ { 1 }, { 2 } }, x:topk(1, 2, false):totable())
    assert.equal("float64", x:softmax(1, "float64").dtype)
    assert.is_true(x:isclose(x + 0.5, 0, 1):all():item())
    assert.equal("by position and by name", message(nn.Linear, 2, 3, true, { bias = true }):match "twice, (.*)$")
  end)

  it("and an argument too many names those there are", function()
    for problem, f in pairs {
      ["gumbel_softmax: takes at most 5 arguments, got 6: logits, tau, hard, dim"] = function()
        F.gumbel_softmax(lm.ones(2), 1, true, nil, 1, 2)
      end,
      ["rot90: takes at most 3 arguments, got 4: x, k, dims"] = function() lm.ones(2, 2):rot90(1, { 1, 2 }, 3) end,
      ["Mish: takes at most 1 argument, got 2: inplace"] = function() nn.Mish(true, 2) end,
      ["glu: takes at most 2 arguments, got 3: x, dim"] = function() F.glu(lm.ones(2), 1, 2) end,
    } do
      assert.equal(problem, message(f))
    end
  end)
end)

describe("an error has the called function's name, and not that of one within", function()
  local x, ints = lm.ones(2), lm.ones({ 2 }, { dtype = "int64" })
  local transforms = lm.vision.transforms.functional
  for problem, f in pairs {
    ["jacobian: f must be a function, got a tensor [2]"] = function() lm.autograd.functional.jacobian(x, x) end,
    ["hessian: f must be a function, got 3"] = function() lm.autograd.functional.hessian(3, x) end,
    ["jacobian: the result of f must be a tensor or a table of tensors, got 3"] = function()
      lm.func.jacobian(function() return 3 end)(x)
    end,
    ["asarray: unknown dtype 'flaot32'; did you mean 'float32'?"] = function()
      lm.asarray({ 1 }, { dtype = "flaot32" })
    end,
    ["can_cast: unknown dtype 'int33'; did you mean 'int32'?"] = function() lm.can_cast("float", "int33") end,
    ["take_along_dim: indices must be int64 or another integer dtype, got float32; convert it with :long()"]
      = function() lm.take_along_dim(x, x, 1) end,
    ["hflip: expected an image [C, H, W] or [H, W], or a batch [..., C, H, W], got string 'image.png'"] = function()
      transforms.hflip "image.png"
    end,
    ["vflip: expected an image [C, H, W] or [H, W], or a batch [..., C, H, W], got a tensor [2]"] = function()
      transforms.vflip(x)
    end,
    ["paths.extname: path is missing or nil; expected a string"] = function() lm.paths.extname(nil) end,
    ["remove_spectral_norm: Linear has no spectral_norm of 'weight'"] = function()
      nn.utils.remove_spectral_norm(nn.Linear(2, 2))
    end,
    ["zeros: the shape must be non-negative integers, got [-1]"] = function() lm.zeros { -1 } end,
    ["Linear: the shape must be less than 2^63 bytes of elements, got [1099511627776, 1099511627776]"] = function()
      nn.Linear(2 ^ 40, 2 ^ 40)
    end,
    ["Value: unknown dtype 'z'; dtypes are bool, uint8, int8, int16, uint16, int32, int64, float16, bfloat16, "
      .. "float32, float64"] = function() lm.mp.Value("z", 1) end,
    ["Tokenizer: path must be a string, got string 'a\\0b', which contains a NUL byte"] = function()
      lm.text.Tokenizer "a\0b"
    end,
  } do
    it(problem, function() assert.equal(problem, message(f)) end)
  end
  it("where an alias is right", function()
    assert.same({ 2, 2 }, lm.asarray({ 2, 2 }, { dtype = "float" }):totable())
    assert.equal("float32", lm.as_tensor(ints, { dtype = "float" }).dtype)
    assert.same({ 1, 1 }, lm.take_along_dim(x, ints, 1):totable())
  end)
end)

describe("an error is on one line and names the value", function()
  for _, row in ipairs {
    { "luminary has no 're??lu'; did you mean 'relu'?", function() return lm["re\27\nlu"] end },
    { "ones: unknown option 'a??b'; options are dtype, device, requires_grad", lm.ones, { 2 }, { ["a\27\nb"] = 1 } },
    { "Linear: in_features must be an integer of at least 0, got string 'a??'", nn.Linear, "a\27\n", 2 },
    { "arange: step must be finite, got nan", lm.arange, 0, 1, 0 / 0 },
    { "arange: stop must be finite, got inf", lm.arange, 1 / 0 },
    { "Process: group must be nil, got a function; pass {target = f}", lm.mp.Process, function() end },
    { "hsplit: sections must be an integer of at least 1, got 1.5", lm.hsplit, lm.ones(2, 5), 1.5 },
    { "fold: expected x to have shape [N, C * 4, 12], got [1, 4, 13]", F.fold, lm.ones(1, 4, 13), { 4, 5 }, 2 },
    { "paths.dofile: cannot open '/no/such.lua': No such file or directory", lm.paths.dofile, "/no/such.lua" },
    { "to: unknown device 'cudda'; did you mean 'cuda'?", function() nn.Linear(2, 2):to { device = "cudda" } end },
    { "cuda: unknown device 'float64'; devices are 'cpu', 'cpu:1' or 'cuda:0'",
      function() nn.Linear(2, 2):cuda "float64" end },
    { "paths.iterfiles: cannot open '/dev/null': it is a device, not a folder", lm.paths.iterfiles, "/dev/null" },
  } do
    it(row[1], function() assert.equal(row[1], message(unpack(row, 2, table.maxn(row)))) end)
  end
end)

describe("a name in a list of sizes, dims or tensors is an error that says it", function()
  local x = lm.ones(2, 3, 4)
  for call, f in pairs {
    tile = function() x:tile { 1, 2, odd = 3 } end, repeat_tensor = function() x:repeat_tensor { 1, 2, 3, odd = 3 } end,
    rot90 = function() x:rot90(1, { 1, 2, odd = 3 }) end, movedim = function() x:movedim({ 1, odd = 3 }, 2) end,
    hstack = function() lm.hstack { x, x, odd = 3 } end, vstack = function() lm.vstack { x, x, odd = 3 } end,
    dstack = function() lm.dstack { x, x, odd = 3 } end, meshgrid = function() lm.meshgrid { x, x, odd = 3 } end,
    ["hstack's options"] = function() lm.hstack({ x, x }, { odd = 3 }) end,
    split = function() x:split({ 1, 2, odd = 3 }, 2) end, unflatten = function() x:unflatten(3, { 2, 2, odd = 3 }) end,
    permute = function() x:permute { 1, 2, 3, odd = 3 } end, flip = function() x:flip { 1, odd = 3 } end,
    roll = function() x:roll({ 1, odd = 3 }, { 1 }) end, reshape = function() x:reshape { 6, 4, odd = 3 } end,
    expand = function() x:expand { 2, 3, 4, odd = 3 } end, zeros = function() lm.zeros { 2, odd = 3 } end,
    cat = function() lm.cat { x, x, odd = 3 } end, stack = function() lm.stack { x, x, odd = 3 } end,
    ["x[{…}]"] = function() return x[{ 1, 2, odd = 3 }] end, ["x[{…}] ="] = function() x[{ 1, odd = 3 }] = 5 end,
    sum = function() x:sum { 1, 2, odd = 3 } end, pad = function() F.pad(x, { 1, 1, odd = 3 }) end,
    fftshift = function() lm.fft.fftshift(x, { 1, odd = 3 }) end,
    rfftn = function() lm.fft.rfftn(x, { 2, 3, odd = 3 }) end,
    Conv2d = function() nn.Conv2d(1, 2, { 3, 3, odd = 3 }) end,
    LayerNorm = function() nn.LayerNorm { 3, odd = 3 } end, max_pool1d = function() F.max_pool1d(x, { 2, odd = 1 }) end,
  } do
    it("in " .. call, function() assert.matches("'odd'", message(f), 1, true) end)
  end
end)

-- Runs a line of Lua as a script would write it, with the library's usual names.
local function run(line)
  local chunk = assert(loadstring("local lm, nn, F, optim, x = ... ; " .. line, "=user.lua"))
  return pcall(chunk, lm, nn, F, optim, lm.ones(2, 3))
end

describe("an error begins with the name that was called", function()
  for line, want in pairs {
    ["local y = x:max(1, 2)"] = "max: ", ["local y = lm.subtract(x, '')"] = "subtract: other",
    ["x:add_('')"] = "add_: other", ["local y = lm.linalg.inv(x)"] = "inv: A must be a square matrix or a batch of",
    ["local y = F.binary_cross_entropy_with_logits(x, 3)"] =
      "binary_cross_entropy_with_logits: bce_with_logits: target",
    ["local y = x:chunk(2, 7)"] = "chunk: dim must be from 1 to 2 or", ["local y = F.glu(x, 7)"] = "glu: size: dim 7",
    ["local y = lm.hstack { x, lm.ones(3, 3) }"] =
      "hstack: cat: shapes of tensors[1] and tensors[2] must match",
    ["x:cumsum_('')"] = "cumsum_: dim must be a dim (an integer), got string ''",
    ["local y = lm.rand(3, { generator = lm.Generator('cpu:1') })"] = "rand: device mismatch",
    ["local net = {fc = nn.Linear(2, 3)} ; local y = net.fc(x)"] = "linear: expected x to have shape",
  } do
    it(line, function()
      local ok, problem = run(line)
      assert.is_false(ok)
      assert.matches("user.lua:1: " .. want, problem, 1, true)
    end)
  end
end)

describe("PyTorch's other spellings", function()
  local x = lm.tensor { { 1, 2 }, { 3, 6 } }

  it("bounds, pairs and tests", function()
    assert.same({ { 2, 2 }, { 3, 6 } }, x:clamp_min(2):totable())
    assert.same({ { 1, 2 }, { 2, 2 } }, lm.clamp_max(x, 2):totable())
    assert.same({ 2, 5 }, lm.tensor({ 1, 5 }):clamp_min_(2):totable())
    assert.same({ 2, 4 }, lm.tensor({ 2, 5 }):clamp_max_(lm.tensor { 3, 4 }):totable())
    assert.near(2 / 1.5, (lm.tensor { 1, 2, 3 }:var({ correction = 1.5 })):item(), 1e-6) -- there are 3 observations
    local std, mean = lm.std_mean(x, 2, false)
    assert.same({ { 0.5, 1.5 }, { 1.5, 4.5 } }, { std:totable(), mean:totable() })
    local var = lm.var_mean(x, { 1, 2 }, { correction = 0, keepdim = true })
    assert.same({ { 3.5 } }, var:totable())
    assert.same({ { 1, 2 } }, lm.tensor({ { 0, 1 } }):argwhere():totable())
    assert.is_true(lm.is_nonzero(lm.tensor { 2 }))
    assert.is_false(lm.tensor({ false }):is_nonzero())
    assert.equal("is_nonzero: x must be a tensor of one element, got a tensor [2, 2]", message(lm.is_nonzero, x))
    assert.same({ true, false, false }, { x:is_signed(), x:byte():is_signed(), x:bool():is_signed() })
    assert.equal(x, x:positive())
    local rows, columns = lm.where(x:gt(2))
    assert.same({ { 2, 2 }, { 1, 2 } }, { rows:totable(), columns:totable() })
  end)

  it("tensors of values and bytes", function()
    assert.equal(x, lm.as_tensor(x))
    assert.equal("int64", lm.as_tensor({ 1, 2 }, { dtype = "int64" }).dtype)
    assert.equal("float64", lm.asarray(x, "float64").dtype)
    assert.same({}, lm.scalar_tensor(3).shape)
    assert.is_true(lm.scalar_tensor(3, { requires_grad = true }).requires_grad)
    assert.same({ { 4, 4 }, { 4, 4 } }, lm.fill(x, 4):totable())
    assert.same({ 97, 98 }, lm.frombuffer("abc", "uint8", 2):totable())
    assert.same({ 2, 3 }, lm.frombuffer(require("ffi").new("float[3]", { 1, 2, 3 }), { dtype = "float32",
      offset = 4 }):totable())
    assert.matches("5 bytes from offset 0 on do not hold a whole number of", message(lm.frombuffer, "abcde", "int32"))
    assert.matches("a string or an FFI array", message(lm.frombuffer, require("ffi").cast("char *", 8), "uint8"))
    assert.same({ 1, 2 }, x:new_empty_strided({ 2, 3 }, { 1, 2 }):stride())
    assert.same({ 2, 1 }, lm.empty_strided({ 2, 2 }, { 2, 1 }):stride())
  end)

  it("sizes, types and elements", function()
    assert.same({ 1, 3 }, { x:split_with_sizes({ 1, 1 }, 2)[1]:view(-1):totable()[1], x:nelement() - 1 })
    assert.equal(2, x:ndimension())
    assert.same({ 4, 2 }, x["repeat"](x, 2, 1).shape)
    assert.same({ 3, 1, 1, 3 }, lm.constant_pad_nd(lm.ones(2), { 1, 1 }, 3):totable())
    assert.equal("torch.FloatTensor", x:type())
    assert.equal("int64", x:type("torch.LongTensor").dtype)
    assert.equal("float64", x:type("float64").dtype)
    assert.same({ { 0, 1, 2 }, { 3, 4, 5 } }, lm.arange(6):resize_(2, 3):totable())
    assert.same({ 0, 1, 2, 3 }, lm.arange(4):resize_ { 2, 4 }:view(-1):narrow(1, 1, 4):totable())
    assert.same({ { 0, 1 }, { 2, 3 } }, lm.arange(6):resize_as_(x):totable())
    assert.matches("x must not require a gradient", message(x.resize_, lm.ones({ 2 }, { requires_grad = true }), 3))
    local kept = lm.ones(2, 2)
    local product = (lm.ones({ 2, 2 }, { requires_grad = true }) * kept):sum()
    kept:resize_(2)
    assert.matches("but resize_, set_ or an assignment to .data ch", message(product.backward, product), 1, true)
    local y = lm.zeros(3)
    assert.same({ 2, 2 }, y:set_(x).shape)
    assert.same({ 0, 2, 4 }, lm.arange(3):apply_(function(v) return 2 * v end):totable())
    assert.same({ 0, 2, 4 }, lm.arange(3):map_(lm.arange(3), function(a, b) return a + b end):totable())
    local function count(...) return select("#", ...) end
    local n = lm.arange(3)
    assert.same({ 1, 1, 1 }, n:clone():apply_(count):totable())
    assert.same({ 2, 2, 2 }, n:clone():map_(n, count):totable())
    assert.same({ 3, 3, 3 }, n:clone():map2_(n, n, count):totable())
    assert.same({ 0, 3, 6 }, n:clone():map2_(n, n, function(a, b, c) return a + b + c end):totable())
    assert.same({ 2, 3 }, lm.broadcast_shapes({ 2, 1 }, { 3 }))
    assert.matches("shapes %[3%], %[4%] do not broadcast", message(lm.broadcast_shapes, { 3 }, { 4 }))
    local places = lm.unravel_index(lm.tensor({ 1, 6 }, { dtype = "int64" }), { 2, 3 })
    assert.same({ { 1, 2 }, { 1, 3 } }, { places[1]:totable(), places[2]:totable() })
    assert.same({ { 1, 0 }, { 0, 1 } }, lm.zeros(2, 2):as_strided_scatter(lm.ones(2), { 2 }, { 3 }):totable())
  end)

  it("integrals, powers and norms", function()
    assert.same({ 1, 10, 100 }, lm.logspace(0, lm.tensor(2), 3):totable())
    assert.equal(8, lm.trapezoid(lm.tensor { 1, 2, 3 }, lm.tensor { 0, 2, 4 }):item())
    assert.equal(8, lm.trapz(lm.tensor { 1, 2, 3 }, { dx = 2 }):item())
    assert.same({ 1.5, 4 }, lm.cumulative_trapezoid(lm.tensor { 1, 2, 3 }):totable())
    local y = lm.tensor { { 3, 4 }, { 6, 8 } }
    assert(lm.allclose(y:renorm(2, 1, 5), lm.tensor { { 3, 4 }, { 3, 4 } }))
    assert(lm.allclose(y:renorm_(2, 1, 5), y) and lm.allclose(y, lm.tensor { { 3, 4 }, { 3, 4 } }))
    assert.equal(5, lm.dist(lm.tensor { 3, 4 }, lm.tensor { 0, 0 }):item())
    assert.same({ 1, 6 }, lm.linalg.diagonal(x):totable())
    assert.same(x:matmul(x):totable(), lm.linalg.matmul(x, x):totable())
  end)

  it("settings", function()
    finally(function() lm.set_printoptions { profile = "default" } end)
    local third = lm.tensor({ 1 }) / 3
    lm.set_printoptions { precision = 2 }
    assert.equal("tensor([0.33])", tostring(third))
    lm.set_printoptions { sci_mode = true }
    assert.equal("tensor([3.33e-01])", tostring(third))
    assert.same({ precision = 2, threshold = 1000, edgeitems = 3, linewidth = 80, sci_mode = true },
      lm.get_printoptions())
    lm.set_printoptions { threshold = 3, edgeitems = 1 }
    assert.equal("tensor([0,  ..., 8])", tostring(lm.arange(9)))
    assert.matches("profile must be one of 'default', 'short',", message(lm.set_printoptions, { profile = "long" }))
    assert.matches("precision must be an integer from 0 to 40, got 500", message(lm.set_printoptions, 500))
    local before = lm.are_deterministic_algorithms_enabled()
    lm.use_deterministic_algorithms(true)
    assert.is_true(lm.backends.cudnn.deterministic)
    lm.use_deterministic_algorithms(before)
    lm.set_float32_matmul_precision "high"
    assert.same({ true, "high" }, { lm.backends.cuda.matmul.allow_tf32, lm.get_float32_matmul_precision() })
    lm.set_float32_matmul_precision "highest"
    assert.equal("highest", lm.get_float32_matmul_precision())
    assert.is_false(lm.inference_mode(lm.is_grad_enabled))
  end)
end)

describe("names and help", function()
  it("point to where a function is", function()
    for name, want in pairs {
      interpolate = "nn.functional.interpolate", gumbel_softmax = "nn.functional.gumbel_softmax",
      random_split = "data.random_split",
    } do
      assert.matches(want, message(function() return lm[name] end), 1, true)
    end
    assert.matches("lm.combinations", message(function() return lm.ones(2):combinations() end), 1, true)
    assert.equal("seed: takes no argument; use lm.manual_seed(0)", message(lm.seed, 0))
  end)

  it("name methods of tensors that there are", function()
    local x, n, lacking = lm.ones(2), 0, {}
    finally(reference.remove)
    for _, path in ipairs(reference.pages()) do
      for line in io.lines(path) do
        local names = line:match "^### (.*)" or line:match "^%*%*Also:%*%* (.*)" or line:match "^%*%*In place:%*%* (.*)"
        for name in (names or ""):gsub("\\", ""):gmatch "%f[%w]x:([%w_]+)" do
          n = n + 1
          local found, method = pcall(function() return x[name] end)
          if not found or type(method) ~= "function" then lacking[#lacking + 1] = path .. ": x:" .. name end
        end
      end
    end
    assert(n > 100, n)
    assert.equal("", table.concat(lacking, "\n"))
  end)

  it("explain values, and a generator's and a distribution's methods", function()
    assert.matches("^lm.Generator%(%[device%]%)", lm.help(lm.Generator))
    assert.matches("a generator of random numbers", lm.help "lm.Generator")
    for _, name in ipairs { "manual_seed", "seed", "initial_seed", "get_state", "set_state" } do
      assert(lm.help("Generator:" .. name), name)
    end
    for _, name in ipairs { "sample", "log_prob", "entropy" } do assert(lm.help("Categorical:" .. name), name) end
  end)

  it("op_list has what is public, and luminary ops says of each what runs where", function()
    local core, listed = lm.core, {}
    for _, name in ipairs(lm.op_list()) do listed[name] = true end
    assert.is_true(listed.add and listed.max_pool2d and listed.sum)
    assert.is_nil(listed.max_dim or listed.conv2d_input or listed.layer_norm_backward)
    local text = require("luminary.cli.ops").table()
    for name in pairs(listed) do assert(text:find("\n" .. name .. " ", 1, true), name) end
    local x = lm.ones({ 2, 2 }, { requires_grad = true })
    for name in ("exp floor sum mm relu argmax logical_not"):gmatch "%S+" do -- op_info is right about gradients
      local y = lm[name](x, name == "mm" and x or nil)
      assert.equal(core.op_info(name).gradient ~= "", y.requires_grad, name)
    end
    for name in ("mm exp add layer_norm"):gmatch "%S+" do
      local lower = lm.autocast({ device = "cpu", dtype = "bfloat16" }, function()
        local y = name == "layer_norm" and lm.layer_norm(x, 2) or lm[name](x, name ~= "exp" and x or nil)
        return y.dtype == "bfloat16"
      end)
      assert.equal(core.op_info(name).autocast == "lower", lower, name)
    end
    local about = require("luminary.cli.ops").of "bitwise_and"
    assert.matches("takes integers and bool", about, 1, true)
    assert.is_nil(require("luminary.cli.ops").of "no_such_op")
  end)
end)

-- Returns a value for an argument of each name, so that a call comes as far as its options.
local function samples()
  local x = lm.rand(2, 3)
  local net = nn.Linear(2, 2)
  local all = {
    x = x, dim = 1, size = { 2, 2 }, kernel_size = 3, index = lm.ones({ 2, 3 }, { dtype = "int64" }), mask = x:gt(0),
    A = lm.eye(2), B = lm.eye(2), params = net:parameters(), list = { print }, tensors = { x }, f = print,
    func = function(v) return v:sum() end, module = net, optimizer = optim.SGD(net:parameters(), 0.1),
    dataset = lm.data.TensorDataset(x), path = "/nonexistent", img = lm.rand(3, 4, 4), images = lm.rand(2, 3, 4, 4),
    shards = { "/nonexistent" }, weights = { 1, 2 }, schedulers = {}, normalized_shape = 3, angle = 1, sections = 1,
    indices = { 1 }, output = x, pivots = lm.ones({ 2 }, { dtype = "int32" }), milestones = { 1 },
  }
  for like, names in pairs {
    x = "input other target y a b t tensor x1 x2 weight outputs inputs value", optimizer = "opt",
    module = "model net encoder_layer decoder_layer",
    params = "parameters", dataset = "set", f = "fn feval", path = "root", A = "LU",
    dim = "dims n in_channels out_channels num_features in_features out_features num_embeddings embedding_dim "
      .. "num_groups num_channels embed_dim num_heads batch_size max_seq_len num_kv_heads head_dim in1_features "
      .. "in2_features window_length parties num_samples num_layers",
  } do
    for name in names:gmatch "%S+" do all[name] = all[like] end
  end
  return all
end

-- Returns the names before the options of "F.normalize(x [, {p = 2, dim = 2}])", and the options' names.
local function documented(call)
  local inner = call:match "%((.*)%)$"
  local options = inner:match "%b{}[%] ]*$"
  if not options or options:find("…", 1, true) or inner:find "or {" then return nil end
  local names, before = {}, {}
  for name in options:gsub("%b[]", ""):gmatch "[{,]%s*([%a_][%w_]*)" do names[#names + 1] = name end
  local places = inner:sub(1, #inner - #options):gsub("%[.*$", ""):gsub("[%w_]+ = .*$", ""):gsub(" or [%w_]+", "")
  for name in places:gmatch "[%a_][%w_]*" do before[#before + 1] = name end
  return before, names
end

describe("a misspelt option", function()
  local help = require "luminary.help"
  -- Functions whose options come first, that take any names, or that check something else before.
  local apart = {}
  for name in ([[
    lm.autocast lm.amp.autocast nn.ParameterDict dist.new_group dist.scatter_object_list lm.distributions.Independent
    lm.distributions.TransformedDistribution x:to optim.ZeroRedundancyOptimizer
    data.WebDataset optim.lr_scheduler.SequentialLR lm.recurrent_weights lm.recurrent_network x:recurrent_network
  ]]):gmatch "%S+" do apart[name] = true end

  it("is answered with the right one, by every public function that documents options", function()
    local count, wrong = 0, {}
    for _, entry in ipairs(help.entries()) do
      local text, value = help.of(entry), entry.value
      local call = text and text:match "^[%w_%.:]+%b()"
      local is_class = type(value) == "table" and rawget(value, "__name")
      local named = call and call:match "([%w_]+)%(" == entry.name and not apart[entry.path]
      if named and (is_class or type(value) == "function")
        and (entry.owner == "x" or not help.class(entry.owner)) then
        local before, names = documented(call)
        if names and #names > 0 then
          local given, arguments, n = samples(), {}, 0
          if call:find "^x:" then n, arguments[1] = 1, given.x end
          for _, name in ipairs(before) do
            n = n + 1
            arguments[n] = given[name]
            if name == "indices" and call:find "^max_pool2d_backward" then arguments[n] = given.index end
          end
          local misspelt = names[1] .. "q"
          arguments[n + 1] = { [misspelt] = 1 }
          local ok, problem = pcall(value, unpack(arguments, 1, n + 1))
          problem = tostring(problem)
          if ok or not problem:find("'" .. misspelt .. "'", 1, true) or not problem:find(names[1] .. "%f[^%w_]") then
            wrong[#wrong + 1] = ("%s: %s"):format(call, ok and "no error" or problem)
          end
          count = count + 1
        end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
    assert(count > 400, count)
  end)
end)

describe("the first word of an error", function()
  local help = require "luminary.help"
  local libraries = {
    F = "lm.nn.functional", nn = "lm.nn", optim = "lm.optim", data = "lm.data", vision = "lm.vision",
    transforms = "lm.vision.transforms", ["transforms.functional"] = "lm.vision.transforms.functional",
  }
  for name in ([[
    lm x lm.linalg lm.fft lm.func lm.autograd lm.distributions nn.init nn.utils nn.utils.rnn optim.lr_scheduler
  ]]):gmatch "%S+" do
    libraries[name] = libraries[name] or (name:gsub("^nn", "lm.nn"):gsub("^optim", "lm.optim"))
  end
  local wrong = {
    "", "{}", "''", "1", "x", "x, ''", "x, {}", "x, 9, 9", "x, x, ''", "x, x, x, x, x, x, x, x, x, x, x, x",
    "x, {zzz = 1}", "{zzz = 1}", "1, 2, {zzz = 1}",
  }
  local settings = {} -- names whose calls would change all later specs
  for name in ([[
    seed setenv getenv synchronize empty_cache set_warnings manual_seed set_default_dtype set_default_device
    set_num_threads set_printoptions set_detect_anomaly
  ]]):gmatch "%S+" do settings[name] = true end

  it("is the name that was called, whatever is given", function()
    local others, count = {}, 0
    for _, entry in ipairs(help.entries()) do
      local library, value = libraries[entry.owner], entry.value
      local callable = type(value) == "function" or type(value) == "table" and rawget(value, "__name")
      for _, given in ipairs(library and callable and not settings[entry.name] and wrong or {}) do
        local line = library == "x" and ("local y = x:%s(%s)"):format(entry.name, (given:gsub("^x, ", "")))
          or ("local y = %s.%s(%s)"):format(library, entry.name, given)
        local chunk = loadstring("local lm, x = ... ; " .. line, "=user.lua")
        if chunk then -- x:repeat() is no Lua
          local ok, problem = pcall(chunk, lm, lm.ones(2, 3))
          local first = tostring(problem):match "^user.lua:1: ([%w_%.:]+)[:%[ ]" or ""
          count = count + 1
          if not ok and not ("." .. first .. "."):find("[.:]" .. entry.name .. "[.:]") then
            others[#others + 1] = line .. ": " .. tostring(problem)
          end
        end
      end
    end
    assert.equal("", table.concat(others, "\n"))
    assert(count > 5000, count)
  end)
end)

-- Returns the code in a text: "x:float()", "lm.stack(…)", "nn.utils.clip_grad_norm_".
local function code_in(text)
  local list = {}
  for root, rest, after in text:gmatch "%f[%w_.](%a[%w_]*)([.:][%a_][%w_.:]*)()" do
    if text:sub(after, after) ~= "%" then list[#list + 1] = root .. rest end -- "%" follows part of a name
  end
  return list
end

describe("what errors advise", function()
  local roots = {
    lm = lm, nn = nn, F = F, optim = optim, data = lm.data, dist = lm.dist, mp = lm.mp, x = lm.ones(2, 2),
    net = nn.Linear(2, 2), opt = optim.SGD(nn.Linear(2, 2):parameters(), 0.1),
  }

  -- Names of ZeroRedundancyOptimizer, DistributedDataParallel, NumPy and PyTorch.
  local of_others = {["opt:consolidate_state_dict"] = true, ["net:join"] = true, ["x.astype"] = true,
    ["x.to_dense"] = true, ["net.ipv4.conf.all.arp_ignore"] = true,
    ["net.generation_config"] = true, ["net.generation_config.max_length"] = true}

  -- Returns whether a path such as nn.utils.clip_grad_norm_ or x:float leads somewhere.
  local function leads(path)
    local root, rest = path:match "^([%w_]+)[.:](.*)$"
    local value = roots[root]
    for name in rest:gmatch "[%w_]+" do
      local ok, next_value = pcall(function() return value[name] end)
      if not ok or next_value == nil then return name == "grad" end -- nil before there is one
      value = next_value
    end
    return true
  end

  it("is there", function()
    local lost, count = {}, 0
    local function look(text, where)
      for _, path in ipairs(code_in(text)) do
        if roots[path:match "^[%w_]+"] then
          count = count + 1
          if not of_others[path] and not leads(path) then lost[#lost + 1] = where .. ": " .. path end
        end
      end
    end
    local files = io.popen "grep -rlE 'fail|error_at_caller|raise' lua/luminary src --include=*.lua --include=*.c"
    for file in files:lines() do
      for line in io.lines(file) do
        local code = line:match "^%s*%-%-" and "" or line
        for text in code:gmatch '"([^"]*)"' do
          if text:find "%s" then look(text, file) end
        end
      end
    end
    files:close()
    for library, names in pairs(require "luminary.help.pytorch_names") do
      for name, words in pairs(names) do
        if words and words:find "%s" then look(words, library .. "." .. name) end
      end
    end
    assert.equal("", table.concat(lost, "\n"))
    assert(count > 150, count)
  end)

  it("is there under the name that it has here", function()
    local of = {
      tensors = roots.x, luminary = lm, nn = nn, ["nn.functional"] = F, ["nn.init"] = nn.init, ["nn.utils"] = nn.utils,
      optim = optim, ["optim.lr_scheduler"] = optim.lr_scheduler, data = lm.data, dist = lm.dist, mp = lm.mp,
      cuda = lm.cuda, autograd = lm.autograd, vision = lm.vision, ["vision.transforms"] = lm.vision.transforms,
      ["dist.ReduceOp"] = lm.dist.ReduceOp, ["nn.parallel"] = nn.parallel,
    }
    for library, value in pairs(of) do
      for theirs, ours in pairs(require("luminary.help.pytorch_names")[library]) do
        if ours and not ours:find "%s" then
          local at = ours:match "^lm%." and lm or value
          for name in ours:gsub("^lm%.", ""):gmatch "[%w_]+" do
            local ok, inner = pcall(function() return at[name] end)
            assert(ok and inner ~= nil, ("%s.%s: %s"):format(library, theirs, ours))
            at = inner
          end
        end
      end
    end
  end)

  it("is named where it is another thing here", function()
    for path, hint in pairs {
      ["lm.Tensor"] = "lm.empty(2, 3)", ["lm.nested"] = "pad_sequence",
      ["nn.utils.fusion"] = "fuse_conv_bn_eval", ["nn.utils.prune"] = "register_parametrization",
      ["lm.autograd.forward_ad"] = "lm.func.jvp", ["F.multi_head_attention_forward"] = "nn.MultiheadAttention",
      ["lm.sparse_coo_tensor"] = "index_put", ["lm.quantize_per_tensor"] = "lm.quantize(net)",
      ["nn.UninitializedParameter"] = "nn.LazyLinear", ["lm.func.linearize"] = "lm.func.jvp",
      ["lm.func.functionalize"] = "nothing is traced", ["lm.autograd.jacobian"] = "autograd.functional.jacobian",
      ["optim.get_ema_multi_avg_fn"] = "AveragedModel", ["optim.swa_utils.get_ema_multi_avg_fn"] = "{decay = 0.999}",
      ["lm.get_cosine_schedule_with_warmup"] = "get_scheduler", ["lm.deepcopy"] = "net:clone()",
      ["lm.optim.lr_scheduler.get_cosine_schedule_with_warmup"] = "get_scheduler",
      ["lm.EarlyStopping"] = "`luminary help early stopping`", ["lm.watch.EarlyStopping"] = "early stopping",
      ["F.linear_sum_assignment"] = "lm.linear_sum_assignment", ["lm.from_dlpack"] = "x:data_ptr()",
      ["lm.paths.exists"] = "lm.paths.filep(path)", ["lm.paths.makedirs"] = "'mkdir'",
    } do
      local at = ({ lm = lm, nn = nn, F = F, optim = optim })[path:match "^%w+"]
      local ok, text = pcall(function()
        for name in path:gmatch "%.([%w_]+)" do at = at[name] end
      end)
      assert.is_false(ok, path)
      assert.matches(hint, text, 1, true)
    end
    local i, v = lm.tensor({ 1, 2, 1 }, { dtype = "int64" }), lm.ones(3) -- as the hint about sparse tensors says
    assert.same({ { 2, 0 }, { 0, 1 } }, lm.zeros(2, 2):index_put({ i, i }, v, true):totable())
  end)

  it("leads to sharded training from PyTorch's names of it", function()
    local net, parallel = nn.Linear(2, 2), nn.parallel
    for hint, f in pairs {
      ["'FSDPModule'; nn%.parallel%.fully_shard"] = function() return parallel.FSDPModule end,
      ["'ColwiseParallel'; it is a style .* \"column\""] = function() return parallel.ColwiseParallel end,
      ["'checkpoint'; lm%.checkpoint"] = function() return lm.dist.checkpoint end,
      ["'Schedule1F1B'; nn%.parallel%.Pipeline"] = function() return lm.dist.Schedule1F1B end,
      ["'set_requires_gradient_sync'; no_sync"] = function() net:set_requires_gradient_sync(false) end,
      ["'unshard'; nn%.parallel%.full_state_dict"] = function() net:unshard() end,
    } do
      assert.matches(hint, select(2, pcall(f)))
    end
  end)

  it("says of the fields of results in transformers that nets return tensors", function()
    for name in ("logits loss last_hidden_state pooler_output sample prev_sample"):gmatch "%S+" do
      assert.error_matches(function() return lm.ones(2)[name] end, "^tensors have no field or method '" .. name
        .. "'; a net returns tensors, not an object with fields: net%(ids%) is ")
    end
  end)

  it("says what stands for complex numbers", function()
    local pairs_of = lm.randn(4, 2)
    for name, want in pairs {
      real = "x:select%(%-1, 1%)$", imag = "x:select%(%-1, 2%)$",
      angle = "lm.atan2%(x:select%(%-1, 2%), x:select%(%-1, 1%)%)$",
      conj = "lm.fft.conjugate%(x%)$", polar = "lm.stack%({r", complex = "lm.stack%({real, imag}, %-1%)$",
      view_as_complex = "take as they are; lm.fft.multiply multiplies them$", view_as_real = "are in that form$",
      eig = "may be complex, .*lm.linalg.eigh is for symmetric", eigvals = "may be complex, .*lm.linalg.eigvalsh is",
    } do
      assert.error_matches(function() return lm[name] end, want)
      assert.error_matches(function() return pairs_of[name] end, want)
      if name:find "^eig" then assert.error_matches(function() return lm.linalg[name] end, want) end
      local ours = want:gsub("%%", ""):gsub("%$$", "")
      if ours:find "^x" or ours:find "^lm.atan2" then
        assert.equal(4, assert(loadstring("local lm, x = ... return " .. ours))(lm, pairs_of):size(1))
      end
    end
    local y = lm.stft(lm.randn(64), 8)
    assert.is_true(y:norm(2, -1):allclose((y:select(-1, 1):square() + y:select(-1, 2):square()):sqrt()))
  end)

  it("works, where a call is shown whole", function()
    local x = lm.ones(2, 3)
    for call, advised in pairs {
      ["local y = lm.sub(x, x, 2)"] = "x:sub%(other, {alpha = 2}%)",
      ["local y = x:add(x, 2)"] = "x:add%(other, {alpha = 2}%)",
      ["local y = x:sum(1, true, 'float64')"] = 'x:sum%(1, true, {dtype = "float64"}%)',
      ["local y = lm.mse_loss(x, x, 'sum')"] = 'x:mse_loss%(target, {reduction = "sum"}%)',
      ["local y = x:argsort(1, true, true)"] = "x:argsort%(1, true, {stable = true}%)",
    } do
      local ok, problem = run(call)
      assert.is_false(ok)
      local shown = problem:match(advised)
      assert(shown, problem)
      assert(pcall(assert(loadstring("local x, other, target = ... ; local y = " .. shown)), x, x, x))
    end
  end)
end)
