-- optim.LBFGS: PyTorch's losses, checkpoints, and what it refuses.
local lm = require "luminary"
local optim = lm.optim

describe("optim.LBFGS", function()
  local function rosenbrock(x)
    local a, b = x:narrow(1, 1, 3), x:narrow(1, 2, 3)
    return (100 * (b - a * a):square() + (1 - a):square()):sum()
  end
  local function closure(opt, x)
    return function()
      opt:zero_grad()
      local loss = rosenbrock(x)
      loss:backward()
      return loss
    end
  end
  local function start() return lm.tensor({ -1.5, 1.2, 0.5, -0.3 }, { dtype = "float64", requires_grad = true }) end

  -- The losses of PyTorch 2.15 at the beginning of steps 1, 5, 10 and 16.
  it("goes PyTorch's way", function()
    for _, case in ipairs {
      { { lr = 0.1 }, { 235.4, 20.7373612216238, 4.02371024045641, 3.74591618506831 } },
      { { line_search_fn = "strong_wolfe" }, { 235.4, 3.70144168940683, 3.70142861049878, 3.70142861049878 } },
    } do
      local x, opts = start(), { max_iter = 4, history_size = 3 }
      for key, value in pairs(case[1]) do opts[key] = value end
      local opt, losses = optim.LBFGS({ x }, opts), {}
      for i = 1, 16 do losses[i] = opt:step(closure(opt, x)):item() end
      for k, i in ipairs { 1, 5, 10, 16 } do assert.near(case[2][k], losses[i], 1e-12 * case[2][k] * 10) end
    end
  end)

  it("goes on from a checkpoint to the bit", function()
    local path = os.tmpname()
    local function train(resume)
      local x = start()
      local function new()
        return optim.LBFGS({ x }, { max_iter = 4, history_size = 3, line_search_fn = "strong_wolfe" })
      end
      local opt = new()
      for i = 1, 6 do
        if resume and i == 4 then
          lm.save(path, opt:state_dict())
          opt = new()
          opt:load_state_dict(lm.load(path))
        end
        opt:step(closure(opt, x))
      end
      return x:detach():totable()
    end
    assert.same(train(false), train(true))
    os.remove(path)
  end)

  it("takes no scratch memory of PyTorch's over", function()
    local x = start()
    local opt = optim.LBFGS({ x })
    opt:step(closure(opt, x))
    local dict = opt:state_dict()
    local names = {}
    for name in pairs(dict.state[1]) do names[name] = true end
    dict.state[1].al = { lm.ones(1), 2 }
    opt:load_state_dict(dict)
    for name in pairs(opt:state_dict().state[1]) do
      assert.is_true(names[name], name)
      names[name] = nil
    end
    assert.is_nil(next(names))
  end)

  it("says what is wrong", function()
    local x, y = start(), lm.ones({ 1 }, { requires_grad = true })
    local opt = optim.LBFGS({ x })
    for problem, try in pairs {
      ["LBFGS: all parameters must have the same dtype and device: parameter 1 is float64 on cpu,"] = function()
        optim.LBFGS { x, y }
      end,
      ["LBFGS: only one parameter group is supported"] = function()
        optim.LBFGS { { params = { x } }, { params = { y } } }
      end,
      ["LBFGS: line_search_fn must be one of 'strong_wolfe', got string 'wolfe'"] = function()
        optim.LBFGS({ x }, { line_search_fn = "wolfe" })
      end,
      ["LBFGS:step: closure is missing or nil; expected a function"] = function() opt:step() end,
      ["LBFGS:step: the loss of closure is missing or nil; expected a number"] = function()
        opt:step(function() end)
      end,
    } do
      local ok, message = pcall(try)
      assert(not ok, problem)
      assert.matches(problem, message, 1, true)
    end
    local dict = opt:state_dict()
    dict.state[1] = { func_evals = 1, n_iter = 1, d = lm.ones(3) }
    assert.error_matches(function() opt:load_state_dict(dict) end,
      "LBFGS:load_state_dict: d of parameter 1 is a tensor %[3%]")
    dict.state[1].d = lm.ones(4)
    assert.error_matches(function() opt:load_state_dict(dict) end, "the state of parameter 1: prev_flat_grad must be")
    dict = optim.LBFGS({ x }):state_dict()
    local one = lm.ones(4)
    dict.state[1] = { func_evals = 1, n_iter = 1, d = one, prev_flat_grad = one, t = 1, H_diag = 1, prev_loss = 1,
      old_dirs = { one }, old_stps = {}, ro = { 1 } }
    assert.error_matches(function() opt:load_state_dict(dict) end, "old_stps must be a list like the others")
    dict.state[1].old_stps[1] = 1
    assert.error_matches(function() opt:load_state_dict(dict) end, "old_stps holds 1")
  end)
end)
