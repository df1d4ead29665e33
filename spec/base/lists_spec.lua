-- The lists of src/base/mem.h and the arithmetic of kernels/integers.h, by a program in C (support/lists.c).
local temp = require "spec.support.temp"

describe("lists of the core", function()
  it("grow, keep their items when memory runs out, and are linked and unlinked", function()
    local folder = temp.folder()
    local ok, text = temp.run(folder, ("env -u LD_PRELOAD cc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -Isrc"
      .. " -Ikernels -fno-strict-aliasing spec/support/lists.c src/base/mem.c src/base/message.c src/base/status.c"
      .. " src/base/file_size_limit.c"
      .. " src/base/nearest_word.c -o %s/check && %s/check"):format(folder, folder))
    temp.remove(folder)
    assert(ok, text)
    assert.matches("ok", text)
  end)
end)
