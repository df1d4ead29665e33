-- The store, driven by made-up members in C (support/store/), and mutated messages (scripts/dev/fuzz/store).
local temp = require "spec.support.temp"
local within = require("spec.support.time").within

-- These programs bring their own sanitizers; under others they would be the same again.
local own = "env -u LD_PRELOAD "
local sources = "src/base/*.c src/distributed/net/*.c src/distributed/store/protocol.c"
  .. " src/distributed/store/failure.c src/distributed/store/failure_text.c src/distributed/store/server*.c"

describe("the store #unsanitized", function()
  local folder = temp.during(setup, teardown)
  setup(function()
    local ok, text = temp.run(folder, ("for script in base/generate op/entries/generate codegen/abi; do"
      .. " luajit src/$script.lua . %s || exit; done && %scc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -fwrapv"
      .. " -fno-strict-aliasing -g -fsanitize=address,undefined -fno-sanitize-recover=all -I%s -Isrc -Ikernels"
      .. " -Iscripts/dev/fuzz -o %s/check spec/support/store/*.c %s -lsodium -lpthread"):format(folder, own, folder,
      folder, sources))
    assert(ok, text)
  end)

  local function check(name)
    local ok, text = temp.run(folder, own .. "timeout 300 " .. folder .. "/check " .. name)
    assert(ok, text)
    return text
  end

  for _, case in ipairs {
    { "net", "has sockets that wait no longer than they are told" },
    { "welcome", "welcomes its members, and nobody after them" },
    { "refused", "refuses another token, rank, size or generation, and says why" },
    { "death", "tells all of a death at once, also while ranks are joining" },
    { "error", "hears an error that was published just before the end" },
    { "mismatch", "finds ranks that meet in different calls" },
    { "held", "prefers a death to the broken link that it leaves" },
    { "frozen", "notices who is silent" },
    { "goodbye", "lets members go, and ends with the last" },
    { "missing", "knows who is missing and where they are" },
    { "keys", "keeps keys, within bounds" },
    { "nonsense", "throws out who talks nonsense" },
    { "memory", "lives through every allocation that fails" },
    { "descriptors", "does not spin without descriptors" },
    { "node_links", "has links between launchers: ordered, bounded, closed to strangers" },
    { "rank_links", "has links between ranks, by TCP only where hosts differ" },
    { "forked", "forgets who has left also where a forked process keeps the descriptors open" },
  } do
    it(case[2], function() check(case[1]) end)
  end

  it("takes 1,000 members", function()
    local took = tonumber(check("crowd"):match("1000 members joined in ([%d.]+) s"))
    within(took, 5)
  end)

  it("lets members join amid 1,000 strays", function()
    within(tonumber(check("strays"):match "amid 1000 strays in ([%d.]+) s"), 1)
  end)

  it("survives mutated messages #full", function()
    local long = os.getenv "LM_TEST_LONG"
    local count = long and 1000000 or 3000
    local ok, text = temp.run(folder, ("%stimeout 900 scripts/dev/fuzz/store %d %s")
      :format(own, count, long and "" or "1"))
    assert(ok, text)
    local sent, share = text:match("(%d+) messages in [%d.]+ s, ([%d.]+) %% of them past the header")
    assert.is_true(tonumber(sent) >= count and tonumber(share) >= 50, text)
    if long then print(text) end
  end)
end)
