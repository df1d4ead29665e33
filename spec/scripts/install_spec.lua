-- luarocks installs what scripts/setup has built into a tree of its own.
local temp = require "spec.support.temp"
local version = require("luminary").version

describe("luarocks make #install #full #unsanitized", function()
  local tree
  local folder = temp.during(setup, teardown)

  -- Runs a command in a shell that knows nothing of the checkout.
  local function run(command)
    return temp.run(folder, ("unset LUA_PATH LUA_CPATH LUA_INIT; cd %s; %s"):format(folder, command))
  end
  -- Runs a command with luarocks' paths of the tree, without the machine's: scripts/demo installs the rocks there.
  local function with_rocks(command)
    return run(([[eval "$(luarocks --lua-version 5.1 path --tree %s)"
      of_tree() { echo "$1" | tr ';' '\n' | grep '^%s/' | paste -sd ';'; }
      export LUA_PATH="$(of_tree "$LUA_PATH")" LUA_CPATH="$(of_tree "$LUA_CPATH")"
      %s]]):format(tree, tree, command))
  end

  local function make(rockspec)
    local ok, text = temp.run(folder,
      ("luarocks --lua-version 5.1 make --tree %s --deps-mode none %s"):format(tree, rockspec))
    assert(ok, text)
    return text
  end

  it("installs into a tree of its own", function()
    tree = folder .. "/tree"
    local text = make "rockspec/luminary-scm-1.rockspec"
    assert.not_matches("Building C", text) -- scripts/setup has built all of it
  end)

  it("luajit requires it", function()
    local ok, text = with_rocks [[luajit -e 'local lm = require "luminary"; print(lm.version, lm.ones{2}:sum():item())
      local net = lm.nn.Linear(2, 1); net(lm.ones{1, 2}):sum():backward()
      lm.save("x.safetensors", net:state_dict()); print(lm.load("x.safetensors").bias.shape[1])']]
    assert(ok, text)
    assert.equal(version .. "\t2\n1\n", text)
  end)

  it("the command runs, by its path and through a link, without any variable", function()
    local ok, text = run(tree .. "/bin/luminary --version")
    assert(ok, text)
    assert.matches("^luminary " .. version:gsub("%.", "%%."), text)
    ok, text = run(("ln -s %s/bin/luminary link && ./link -e 'print(lm.nn.Linear(1, 2))'"):format(tree))
    assert(ok, text)
    assert.equal("Linear(in_features=1, out_features=2, bias=True)\n", text)
    ok, text = run "echo '?nn.Conv2d' | ./link"
    assert(ok, text)
    assert.matches("> nn.Conv2d(in_channels, ", text, 1, true)
    ok, text = with_rocks "luminary --version"
    assert(ok, text)
  end)

  it("errors are raised at the script's own lines", function()
    temp.write(folder .. "/script.lua", 'local lm = require "luminary"\nlm.optim.SGD({lm.ones{1}}, "0.1")\n')
    local ok, text = run(tree .. "/bin/luminary script.lua")
    assert(not ok)
    assert.matches("^luminary: script.lua:2: SGD: ", text)
    assert.not_matches("/luminary/cli/", text)
  end)

  it("Torch7's names come with the rock luminary-torch7, with their pages of help", function()
    local asks = [[luajit -e 'local torch = require "luminary.torch7"; print(torch.ones(2):sum())
      print((require("luminary").help "optim.sgd"):match "PyTorch: .*")']]
    local ok, text = with_rocks(asks)
    assert(not ok)
    assert.matches("module 'luminary.torch7' not found", text, 1, true)
    make "torch7/luminary-torch7-scm-1.rockspec"
    ok, text = with_rocks(asks)
    assert(ok, text)
    assert.equal("2\nPyTorch: torch.optim.SGD and the others; optim.SGD is PyTorch's form.\n", text)
  end)

  it("and is removed whole", function()
    local remove = "for rock in luminary-torch7 luminary; do luarocks --lua-version 5.1 --tree %s remove $rock || "
      .. "exit; done; ! find %s -name '*luminary*' | grep ."
    local ok, text = run(remove:format(tree, tree))
    assert(ok, text)
  end)
end)
