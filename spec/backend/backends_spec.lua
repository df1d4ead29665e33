-- lm.backends: settings are there on every machine.
local lm = require "luminary"

describe("lm.backends", function()
  local before = {}
  before_each(function()
    before = { lm.backends.cuda.matmul.allow_tf32, lm.backends.cudnn.allow_tf32, lm.backends.cudnn.benchmark }
  end)
  after_each(function()
    lm.backends.cuda.matmul.allow_tf32, lm.backends.cudnn.allow_tf32, lm.backends.cudnn.benchmark = unpack(before)
  end)

  it("keeps what is set", function()
    for _, name in ipairs { "allow_tf32", "enabled", "benchmark", "deterministic" } do
      local old = lm.backends.cudnn[name]
      assert.equal("boolean", type(old))
      lm.backends.cudnn[name] = not old
      assert.equal(not old, lm.backends.cudnn[name])
      lm.backends.cudnn[name] = old
    end
    lm.backends.cuda.matmul.allow_tf32 = true
    assert.is_true(lm.backends.cuda.matmul.allow_tf32)
    assert.is_true(lm.backends.cudnn.enabled)
  end)

  it("knows its names and kinds", function()
    assert.error_matches(function() lm.backends.cudnn.benchmrak = true end, "cudnn.*benchmrak.*benchmark")
    assert.error_matches(function() lm.backends.cudnn.benchmark = 1 end, "cudnn.benchmark must be true or false")
    assert.error_matches(function() return lm.backends.cudnn.unheard end, "unknown option 'unheard'")
    assert.error_matches(function() return lm.backends.cudnnn end, "backends has no 'cudnnn'; did you mean 'cudnn'")
  end)

  it("says what is there", function()
    assert.equal("boolean", type(lm.backends.cuda.is_built()))
    assert.equal("boolean", type(lm.backends.cudnn.is_available()))
    local version = lm.backends.cudnn.version()
    assert(version == nil or version >= 90000)
    assert.equal(lm.backends.cuda.is_built(), version ~= nil)
  end)
end)
