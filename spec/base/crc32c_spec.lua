local core = require "luminary.core"

describe("crc32c", function()
  it("is that of RFC 3720", function()
    assert.equal(0xE3069283, core.crc32c("123456789", 0))
    assert.equal(0x8A9136AA, core.crc32c(("\0"):rep(32), 0))
    assert.equal(0x62A8AB43, core.crc32c(("\255"):rep(32), 0))
  end)

  it("of long data is that of its pieces one after the other", function()
    local bytes = {}
    for i = 1, 40000 do bytes[i] = string.char((i * i + i / 256) % 256) end
    local text = table.concat(bytes)
    for _, n in ipairs {12287, 12288, 12289, 12295, 24576, 36865, 40000} do
      for _, from in ipairs {1, 2, 8} do
        local part, sum = text:sub(from, n), 77
        for at = 1, #part, 1000 do sum = core.crc32c(part:sub(at, at + 999), sum) end
        assert.equal(sum, core.crc32c(part, 77))
      end
    end
  end)
end)
