-- nn.parallel.fully_shard: the shards of a bucket are parts of one tensor, which a gather sends as it is.
local several = require "spec.support.several"
local on = several ""

describe("the shards of nn.parallel.fully_shard", function()
  it("begin at multiples of 32 elements, are gathered without a copy, and stay ordinary parameters", function()
    on.succeeds(2, [[
      local core = require "luminary.core"
      local fully_shard = nn.parallel.fully_shard
      local function make()
        lm.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, {bias = false}), nn.Linear(3, 9))
      end
      local alone, net, sent = make(), fully_shard(make())
      local function address(t) return tonumber(require("ffi").cast("intptr_t", t:data_ptr())) end
      local run = core.dist_run
      function core.dist_run(collective, ...)
        local t = select(7, ...)
        if collective == "all_gather" then sent[#sent + 1] = {address = address(t), numel = t:numel()} end
        return run(collective, ...)
      end
      local x = lm.randn(4, 5)
      local steps = {optim.AdamW(alone:parameters(), {lr = 0.1}), optim.AdamW(net:parameters(), {lr = 0.1})}
      -- Takes a step of both, and returns the address of what its gather has sent.
      local function check(what)
        sent = {}
        for _, opt in ipairs(steps) do opt:zero_grad() end
        alone(x):square():sum():backward()
        net(x):square():sum():backward() -- both ranks have the same samples
        assert(#sent == 1 and sent[1].numel == 5 * 32, what)
        local first = sent[1].address
        for _, p in ipairs(net:parameters()) do assert(address(p.grad) % 64 == 0, "a gradient is not aligned") end
        for _, opt in ipairs(steps) do opt:step() end
        local full = nn.parallel.full_state_dict(net)
        for name, t in pairs(alone:state_dict()) do
          assert((full[name]:double() - t:double()):abs():max():item() < 1e-4, what .. ": " .. name)
        end
        return first
      end
      -- Rows of 7, 7, 3, 9 and 9: 20, 4, 14, 15 and 5 elements of this rank.
      local first = address(net:parameters()[1])
      for i, p in ipairs(net:parameters()) do
        assert(address(p) == first + 4 * 32 * (i - 1), "parameter " .. i .. " is elsewhere")
      end
      assert(check "first" == first, "the shards were copied")
      -- A parameter's version is its own, and one that gets other memory is read there.
      local before = net[4].bias._version
      lm.no_grad(net[4].weight.add_, net[4].weight, 0)
      assert(net[4].bias._version == before, "two parameters have one version")
      net[1].bias.data = net[1].bias:detach():clone()
      assert(check "replaced" ~= first)
      alone:double()
      net:double()
      x, steps = x:double(), {optim.SGD(alone:parameters(), {lr = 0.1}), optim.SGD(net:parameters(), {lr = 0.1})}
      check "converted"
      -- A file has each parameter's elements alone.
      local path = os.tmpname()
      lm.save(path, net:state_dict())
      for name, t in pairs(lm.load(path)) do assert(lm.equal(t, net:state_dict()[name]), name) end
      os.remove(path)
      -- One alone has no padding, and is gathered where it is used.
      local one = fully_shard(nn.Linear(3, 5, {bias = false}))
      sent = {}
      one(lm.ones(1, 3))
      assert(#sent == 1 and sent[1].numel == 9, "one parameter is padded")
    ]])
  end)
end)
