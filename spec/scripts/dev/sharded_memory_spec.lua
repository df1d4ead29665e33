-- scripts/dev/sharded_memory, with a small model; scripts/test --long runs it with ulimit -v.
local temp = require "spec.support.temp"

describe("a model whose state is six times a rank's memory", function()
  it("trains sharded over eight ranks, none of which holds its parameters #unsanitized", function()
    local folder = temp.folder()
    local _, text, code = temp.run(folder,
      "timeout 100 scripts/dev/sharded_memory --beyond 48 --width 512 --steps 2 2>&1")
    temp.remove(folder)
    assert(code == 0, text)
    assert.matches("parameters 72 MB, with gradients and Adam's state 289 MB", text, 1, true)
    assert.matches("in full .*out of memory", text)
    assert.matches("step 2 .*loss %d", text)
  end)
end)
