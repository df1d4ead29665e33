--- Makes lists of training steps of a small classifier: {name, make, kinds}, as equal.lua takes them.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

--- Returns an empty list and add(name, make, kinds), which appends a step to it, whose parts make(c, t) changes in the
--- table t: net, opt, loss(x, y), stepped(loss) between backward and the optimizer's step, after(loss), inputs(k),
--- between(k), or the complete step(…). Without kinds it has all of equal.kinds.
return function()
  local list = {}
  return list, function(name, make, kinds)
    list[#list + 1] = {name, function(c)
      local t = {net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)):to(c.dtype)}
      function t.inputs() return c.randn(4, 6), lm.randint(1, 4, {4}) end
      function t.loss(x, y) return F.cross_entropy(t.net(x), y) end
      make(c, t)
      t.opt = t.opt or optim.SGD(t.net:parameters(), {lr = 0.1, momentum = 0.9})
      local late = c.kind == "float64" or c.kind == "autocast" -- gradients are cleared before or after forward
      t.step = t.step or function(x, y)
        if not late then t.opt:zero_grad() end
        local loss = c.run(t.loss, x, y)
        if late then t.opt:zero_grad() end
        loss:backward()
        if t.stepped then t.stepped(loss) end
        t.opt:step()
        if t.after then t.after(loss) end
        return loss
      end
      return t.step, t.inputs, t.between, t
    end, kinds}
  end
end
