-- scripts/bench/compiled with tiny sizes, and beside a peer that answers with given losses and times.
local temp = require "spec.support.temp"

describe("scripts/bench/compiled #unsanitized", function()
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local function bench(arguments)
    return temp.run(folder, "timeout 300 scripts/bench/compiled --small --rounds 1 --seconds 0.001 --threads 1 "
      .. arguments)
  end

  it("times each step, eager and compiled, from the same weights", function()
    local ok, text = bench ""
    assert(ok, text)
    for _, name in ipairs {"mlp", "recurrent", "sine", "llama", "convnext", "resnet18"} do
      local eager, compiled, ratio = text:match("\n" .. name .. " +([%d.]+) +([%d.]+) +%- +%- +%- +%- +([%d.]+)")
      assert(ratio, name .. "\n" .. text)
      assert(math.abs(compiled / eager / ratio - 1) < 0.5, text)
    end
    -- Weights, gradients and two states of AdamW: 7.3 million floats each; 8 tokens add little.
    local weights = 2 * 8000 * 256 + 256 + 4 * (4 * 256 * 256 + 3 * 256 * 688 + 2 * 256)
    local held = tonumber(text:match "peak memory of the LLaMA step: ours eager (%d+) MB, ours compiled %d+ MB\n")
    assert(held > 4 * 4 * weights / 1e6 and held < 1.1 * 4 * 4 * weights / 1e6, text)
  end)

  -- A peer whose losses of the first two steps are these, and whose steps take 10 ms, 5 ms compiled.
  local function peer(losses)
    temp.write(folder .. "/python", ([[#!/bin/sh
      [ "$1" != -c ] || exit 0
      while read what variant n; do
        case $what.$variant in
          build.*) echo ok ;;
          start.*) echo "0.5 0.24 %s" ;;
          time.eager) echo 0.010 0.020 ;;
          *) echo 0.005 0.002 ;;
        esac
      done]]):format(losses))
    return ("chmod +x %s/python; "):format(folder), (" --steps 2 --peer %s/python mlp"):format(folder)
  end

  it("compares with a peer whose losses are its own, and refuses another's", function()
    local ready, arguments = peer "0 0"
    os.execute(ready)
    local ok, text, code = bench(arguments)
    assert(not ok and code == 1, text)
    local loss = text:match "mlp: the loss of step 1 is ([%d.]+) here, eager, and 0 there, eager\n"
    assert(loss, text)
    local worker = ("printf 'build mlp\\nstart eager 2\\n' | luajit scripts/bench/compiled_worker.lua 1 %s small")
      :format(folder)
    local _, answer = temp.run(folder, worker)
    local first, second = answer:match "ok\n%S+ %S+ (%S+) (%S+)\n"
    assert.equal(tonumber(loss), tonumber(first), answer)
    ready, arguments = peer(first .. " " .. second)
    os.execute(ready)
    -- PyTorch's ms, eager and compiled; their ratio; and its first call in eager calls
    for how, expected in pairs {[""] = {"10.00", "5.00", "0.50", "50"}, ["--cpu"] = {"20.00", "2.00", "0.10", "12"}} do
      ok, text = bench(how .. arguments)
      assert(ok, text)
      local cells = {}
      for cell in text:match "\nmlp ([^\n]+)":gmatch "%S+" do cells[#cells + 1] = cell end
      assert.same(expected, {cells[3], cells[4], cells[6], cells[10]}, text)
    end
  end)

  it("lists the ops of a step with the bytes that they move", function()
    local ok, text = bench "--ops mlp"
    assert(ok, text)
    local rows = {}
    for name, calls, read, written in text:gmatch "\n(%l[%w_ ]-) +(%d+) +([%d.]+) +([%d.]+)" do
      rows[name] = {tonumber(calls), tonumber(read), tonumber(written)}
    end
    -- Megabytes by the shapes: 4 samples, 784-256-10. linear runs twice forward and once for a gradient.
    local w1, w2, x, h, y = 784 * 256, 256 * 10, 4 * 784, 4 * 256, 4 * 10
    local function mb(n) return tonumber(("%.2f"):format(4 * n / 1e6)) end
    assert.same({3, mb(x + w1 + 256 + h + w2 + 10 + y + w2), mb(h + y + h)}, rows.linear)
    assert.same({2, mb(h + x + y + h), mb(w1 + w2)}, rows.mm)
    assert.same({1, mb(h), mb(h)}, rows.relu)
    assert.same({0, 0}, {rows.t[2], rows.t[3]})
    assert.matches("\nSGD +1 +2.44 +1.63\n", text)
  end)
end)
