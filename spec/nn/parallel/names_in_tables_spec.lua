-- Tables of arguments with names, whose order in `pairs` differs between processes and with the history of a table.
local sharded = require "spec.support.sharded"
local succeeds = sharded.succeeds

-- table_of(fields): the fields in a table that was filled in an order of its own on each rank and in each call.
local lines = [[
  local calls = 0
  local function table_of(fields)
    calls = calls + 1
    local names, t = {}, {}
    for name in pairs(fields) do names[#names + 1] = name end
    table.sort(names)
    for i = 1, 7 * calls + rank do t["filler" .. i] = i end
    for i = 1, #names do
      local name = names[(i * (rank + 1) + calls) % #names + 1]
      t[name] = fields[name]
    end
    for name in pairs(fields) do t[name] = fields[name] end
    for i = 1, 7 * calls + rank do t["filler" .. i] = nil end
    return t
  end
  local Scaled = nn.Module:extend "Scaled"
  function Scaled:init() self.a = nn.Linear(3, 2, {bias = false}) end
  function Scaled:forward(x, given)
    given = given or x
    return self.a(given.x or x) * (given.scale and given.scale:sum() or 1)
  end
  local function gradient(net, wrapped, ...)
    wrapped:zero_grad()
    wrapped(...):mean():backward()
    return net.a.weight.grad:max():item()
  end
]]

describe("tensors with names in a table of arguments", function()
  it("weigh a rank the same in every process, or are an error where their sizes differ", function()
    for _, wrap in ipairs { "DistributedDataParallel", "fully_shard" } do
      succeeds(2, lines .. ([[
        local net = Scaled()
        local wrapped = nn.parallel.%s(net)
        local n = rank == 0 and 2 or 6
        local x, five = lm.full({n, 3}, rank + 1), lm.ones(5)
        local scale = lm.full({1}, 1)
        for _ = 1, 6 do
          -- The average by samples is (2 * 0.5 + 6 * 0.5 * 2) / 8
          local function is_right(...)
            local got = gradient(net, wrapped, ...)
            assert(math.abs(got - 0.875) < 1e-12, got)
          end
          is_right(table_of {x = x, mask = lm.ones(n), zeta = lm.ones(n, 2), alpha = lm.ones {}})
          is_right(x, table_of {scale = scale, alpha = five, zeta = five})
          local given = table_of {scale = scale, alpha = five, zeta = five}
          given[1] = x
          given.x = x
          is_right(given)
          local said = message(function() wrapped(table_of {x = x, scale = five, alpha = lm.ones {n}}) end)
          contains(said, "%s: expected tensors in a table of arguments to have the same size in dim 1, the batch, got "
            .. n .. " of 'alpha' and 5 of 'scale'; pass the batch as first argument, or {batch_dim = false}")
          lm.no_grad(function() wrapped(table_of {x = x, scale = five}) end)
        end
      ]]):format(wrap, wrap))
    end
  end)
end)
