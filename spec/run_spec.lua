-- spec/run.lua: files run in parallel, and their crashes, failures and reasons are reported.
local temp = require "spec.support.temp"

describe("several spec files #lua", function()
  local folder = temp.during(before_each, after_each)

  local function run(files, options)
    for name, text in pairs(files) do temp.write(("%s/%s_spec.lua"):format(folder, name), text) end
    return temp.run(folder, ("env -u LM_TEST_TIMES luajit spec/run.lua %s %s"):format(options or "", folder))
  end

  it("are counted together, with the reasons of what was skipped", function()
    local ok, text = run {
      one = 'it("works", function() end) it("waits", function() pending("needs a moon") end)',
      two = 'it("works", function() end) it("waits too", function() pending("needs a moon") end) pending "a plan"',
    }
    assert(ok, text)
    assert.matches("\nskipped 2: needs a moon\n", text, 1, true)
    assert.matches("\nskipped 1: a plan\n", text, 1, true)
    assert.matches("\n2 passed, 0 failed, 3 skipped\n$", text)
    ok, text = temp.run(folder, ("luajit spec/run.lua --jobs=2 --except=%s/two_spec.lua %s"):format(folder, folder))
    assert(ok, text)
    assert.matches("\n1 passed, 0 failed, 1 skipped\n$", text)
  end)

  it("run in the parts that their heads say", function()
    local ok, text = run({
      table = [[-- Cases.
-- parts: 3
local is_mine = require "spec.support.part"
for i = 1, 7 do
  if is_mine(i) then it("works " .. i, function() assert(i ~= 5) end) end
end]],
    }, "--jobs=2")
    assert(not ok)
    assert.matches("ok     %S*table_spec.lua 1/3 +2 passed", text)
    assert.matches("ok     %S*table_spec.lua 2/3 +3 passed", text)
    assert.matches("FAILED %S*table_spec.lua 3/3 +1 passed, 1 failed", text)
    assert.matches("\n6 passed, 1 failed, 0 skipped\n$", text)
  end)

  it("that fail, leak, end, or never begin are failures that name them", function()
    local ok, text = run({
      wrong = 'it("is wrong", function() assert.equal(1, 2) end)',
      leak = 'it("keeps one", function() _G.kept = require("luminary").ones(1) end)',
      row = 'it("keeps", function() _G.k = require("luminary").ones(1) end) it("does not", function() end)',
      killed = 'it("dies", function() os.execute "kill -9 $PPID" end)',
      leaves = 'it("leaves", function() os.exit(0) end)',
      broken = 'it("is no Lua"',
      well = 'it("works", function() end)',
    }, "--jobs=3")
    assert(not ok)
    assert.matches("Expected objects to be equal", text, 1, true)
    assert.matches("0 live tensors before the spec, 1 after it", text, 1, true)
    assert.matches("0 live tensors before the 2 specs from 'keeps' on, 1 after them", text, 1, true)
    assert.matches("killed_spec.lua: ended by signal 9, in: dies\n", text, 1, true)
    assert.matches("leaves_spec.lua: exit code 0, in: leaves\n", text, 1, true)
    assert.matches("FAILED %S*broken_spec.lua", text)
    assert.matches("ok     %S*well_spec.lua +1 passed", text)
    assert.matches("\n2 passed, 6 failed, 0 skipped\n$", text)
  end)

  it("run again, alone, if few failed without a crash and it is asked for", function()
    local files = {
      once = ([[it("works alone", function()
        local path = "%s/was_here"
        local before = io.open(path)
        local file = io.open(path, "a")
        file:write "x"
        file:close()
        assert(before, "busy")
      end)]]):format(folder),
      well = 'it("works", function() end)',
    }
    local ok, text = run(files, "--jobs=2 --again=1")
    assert(ok, text)
    assert.matches("FAILED %S*once_spec.lua .*busy", text)
    assert.matches("\nagain, alone: %S*once_spec.lua\n" .. ("ok [^\n]*\n"):rep(3) .. "unsteady: %S*once_spec.lua", text)
    assert.matches("\n2 passed, 0 failed, 0 skipped\n$", text)
    os.remove(folder .. "/was_here")
    ok, text = run(files, "--jobs=2")
    assert(not ok)
    assert.matches("\n1 passed, 1 failed, 0 skipped\n$", text)
    os.remove(folder .. "/was_here")
    files.once = files.once:gsub('assert%(before, "busy"%)', "%0 assert(#before:read '*a' < 3, 'worn')")
    ok, text = run(files, "--jobs=2 --again=1")
    assert(not ok)
    assert.matches("\nagain, alone: %S*once_spec.lua\nok [^\n]*\nFAILED .*worn", text)
    assert.matches("\n1 passed, 1 failed, 0 skipped\n$", text)
    files.once = files.well
    files.wrong = 'it("is wrong", function() assert.equal(1, 2) end)'
    ok, text = run(files, "--jobs=2 --again=1")
    assert(not ok)
    assert.matches("\nagain, alone: %S*wrong_spec.lua\nFAILED", text)
    assert.matches("\n2 passed, 1 failed, 0 skipped\n$", text)
    files.killed = 'it("dies", function() os.execute "kill -9 $PPID" end)'
    ok, text = run(files, "--jobs=2 --again=2")
    assert(not ok)
    assert.falsy(text:find "again, alone")
    assert.matches("\n2 passed, 2 failed, 0 skipped\n$", text)
  end)

  it("are found by folder, by path from anywhere, and by how their path ends", function()
    temp.write(folder .. "/near_spec.lua", "")
    assert(os.execute(("mkdir %s/far; touch %s/far/near_spec.lua"):format(folder, folder)) == 0)
    local docs = "spec/docs_spec.lua:%d+: "
    for given, wanted in pairs {
      [folder] = "near_spec.lua.*near_spec.lua.*0 passed, 2 failed, 0 skipped\n$", -- files without a spec fail
      docs_spec = docs, ["spec/docs_spec.lua"] = docs, ["../spec/docs_spec.lua"] = docs,
      ["cuda/fak"] = "run.lua: there is no spec file, folder or name 'cuda/fak'",
    } do
      local _, text = temp.run(folder, "cd scripts && luajit ../spec/run.lua --jobs=1 --list " .. given)
      assert.matches(wanted, text)
    end
  end)

  it("find this tree's build without build/env, and busted, or say in a sentence what is missing", function()
    if not temp.exists "build/lib/luminary/core.so" then return pending "needs a build in build/" end
    temp.write(folder .. "/one_spec.lua", [[it("works", function()
      for _, name in ipairs {"luminary.core", "luminary", "luminary.torch7"} do
        local path = package.searchpath(name, package.cpath) or package.searchpath(name, package.path)
        assert.equal(1, path:find(io.popen("pwd"):read() .. "/", 1, true), path)
      end
      assert.equal(io.popen("pwd"):read() .. "/bin/luminary", io.popen("command -v luminary"):read())
    end)]])
    local bare = "cd / && env -u LUA_PATH -u LUA_CPATH %s luajit $OLDPWD/spec/run.lua %s " .. folder .. "/one_spec.lua"
    for _, jobs in ipairs {"", "--jobs=1"} do
      local ok, text = temp.run(folder, bare:format("", jobs))
      assert(ok, text)
    end
    local _, text, code = temp.run(folder, bare:format("LUA_PATH='/nothing/?.lua'", ""))
    assert.same({"run.lua: there is no busted for LuaJIT: scripts/setup --dev installs it, or luarocks "
      .. "--lua-version 5.1 install busted\n", 1}, {text, code})
    _, text, code = temp.run(folder, ("mkdir %s/spec && cp spec/run.lua %s/spec && "
      .. "env -u LUA_PATH LUA_CPATH='/nothing/?.so' luajit %s/spec/run.lua"):format(folder, folder, folder))
    assert.same({"run.lua: there is no build: scripts/setup --dev --no-install makes it\n", 1}, {text, code})
  end)

  it("are fewer under sanitizers: of a folder, those with odd input for C", function()
    assert(os.execute(("mkdir -p %s/spec/support && cp spec/run.lua %s/spec && cd %s/spec && mkdir op io models")
      :format(folder, folder, folder)) == 0)
    temp.write(folder .. "/spec/support/workers.lua", "return function(list) print(table.concat(list, ' ')) "
      .. "return 0 end")
    for _, name in ipairs {"op/ops", "models/b", "io/c"} do
      temp.write(("%s/spec/%s_spec.lua"):format(folder, name), "")
    end
    local function files(options, long)
      local ok, text = temp.run(folder, ("env -u LM_TEST_LONG %s luajit %s/spec/run.lua --jobs=2 %s"):format(
        long and "LM_TEST_LONG=1" or "", folder, options))
      assert(ok, text)
      return text
    end
    local all = "spec/io/c_spec.lua spec/models/b_spec.lua spec/op/ops_spec.lua\n"
    local fewer = all:gsub(" %S+", "", 1)
    assert.same({all, fewer, "spec/models/b_spec.lua\n"}, {files "", files "--sanitized", files "--sanitized models/b"})
    assert.equal(all, files("--sanitized", true))
    assert.equal("spec/models/b_spec.lua spec/op/ops_spec.lua\n", files "--unsanitized")
    temp.write(folder .. "/spec/io/c_spec.lua", 'it("works", error) it("is slow #unsanitized", function() end)')
    assert.equal(all, files "--unsanitized")
    temp.write(folder .. "/spec/support/workers.lua", "return function() print(os.getenv 'LM_TEST_LONG') return 0 end")
    assert.same({"1\n", "nil\n"}, {files("", true), files("--sanitized", true)}) -- at their usual length
    assert(os.execute(("cp spec/support/*.lua %s/spec/support"):format(folder)) == 0)
    assert.matches("\n1 passed, 0 failed, 0 skipped\n$", files "--unsanitized")
  end)

  it("judge time only when asked to, and then one after the other", function()
    local script = ([[
      local within = require("spec.support.time").within
      it("takes a while #time", function()
        os.execute "test ! -e {}/busy && touch {}/busy && sleep 0.1 && rm {}/busy || touch {}/met"
      end)
      it("ends in time", function() within(2, 1) end)]]):gsub("{}", folder)
    local files = { f1 = script, f2 = script, untimed = 'it("works", function() end)' }
    local ok, text = run(files, "--jobs=3")
    assert(ok, text)
    assert.matches("\n3 passed, 0 failed, 0 skipped\n$", text)
    ok, text = run(files, "--jobs=3 --times")
    assert.is_false(ok)
    assert.is_false(temp.exists(folder .. "/met"))
    assert.matches("took 2.000 s; the bound is 1 s", text, 1, true)
    assert.matches("\n2 passed, 2 failed, 0 skipped\n$", text)
  end)
end)

describe("scripts/test #lua", function()
  it("passes with a file that passed only alone, which it names, and closes with the time of all stages", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local ok, text = temp.run(folder, ([[
      cd %s && mkdir -p bin build scripts/dev/tsan && cp $OLDPWD/scripts/test scripts && touch build/env
      for tool in luacheck aarch64-linux-gnu-gcc; do printf '#!/bin/sh\nexit 0\n' >bin/$tool; done
      printf '#!/bin/sh\necho "unsteady: a_spec.lua"; echo "3 passed, 0 failed, 1 skipped"\n' >bin/luajit
      for tool in ../setup check_layers check_symbols budget format check_words clang_compile arm64 tsan/run; do
        cp bin/luacheck scripts/dev/$tool
      done
      printf '#!/bin/sh\n[ $1 = build ] || luajit\n' >scripts/dev/sanitized
      chmod +x bin/* scripts/* scripts/dev/* scripts/dev/tsan/run
      for mode in --fast --full; do PATH=$PWD/bin:$PATH LM_CUDA=0 scripts/test $mode; echo "exit $?"; done
    ]]):format(folder))
    assert(ok, text)
    local fast, full = text:match "^(.-exit 0\n)(.*exit 0\n)$"
    assert(fast, text)
    assert.matches("== unsteady:\n  specs: a_spec.lua\n3 passed, 0 failed, 1 skipped\n", fast, 1, true)
    assert.matches("\n== times:\n[^=]* s  specs\n[^=]*\n +%d+ s  all\n", full)
    assert.matches("\n== unsteady:\n  specs: a_spec.lua\n  [^\n]*UBSan: a_spec.lua\n%d+ passed, 0 failed", full)
  end)
end)

describe("scripts/test --changed #lua", function()
  local rooms = require "spec.support.rooms"

  it("has specs for each source file", function()
    local pipe = io.popen "git ls-files src kernels lua torch7/lua torch7/spec examples"
    for path in pipe:lines() do
      assert(next(rooms.specs_of(path) or {}), path .. " has no row with specs in spec/support/rooms.lua")
    end
    pipe:close()
  end)

  it("takes a spec that changed itself, and of the rows the first", function()
    assert.same({["spec/nn/nn_spec.lua"] = true}, rooms.specs_of "spec/nn/nn_spec.lua")
    assert.same({["spec/op/conv_spec.lua"] = true, ["spec/op/winograd_spec.lua"] = true},
      rooms.specs_of "src/backend/cpu/conv/planner.c")
    assert.is_nil(rooms.specs_of "LICENSE")
  end)
end)
