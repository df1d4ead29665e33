-- Tests what scripts/setup installs, and builds with parts left out: for machines that are not like this one.
local temp = require "spec.support.temp"

describe("--help #lua", function()
  for _, script in ipairs {"setup", "test"} do
    it("of scripts/" .. script .. " has every option, and does nothing else", function()
      local folder = temp.folder()
      local _, refused, code = temp.run(folder, ("scripts/%s --nonsense"):format(script))
      assert.equal(2, code)
      local known = refused:match "^[^\n]*unknown option %-%-nonsense %(known: ([^\n]*)%)\n$"
      for _, option in ipairs {"--help", "-h"} do
        local ok, text = temp.run(folder, ("here=$PWD; cd / && $here/scripts/%s %s"):format(script, option))
        assert(ok, text)
        for name in known:gmatch "%-%-[%w-]+" do assert.matches(name, text, 1, true) end
        assert.matches(("\n  scripts/%s --"):format(script), text, 1, true)
        assert.not_matches("\n *#", text) -- the text has no line of the program itself
        assert.not_matches("set %-e?u", text)
      end
      temp.remove(folder)
    end)
  end
end)

describe("scripts/setup #lua", function()
  local folder = temp.during(before_each, after_each)

  -- Returns the packages it asks for on a machine that has `installed` of Debian's, as a list and " a b c ".
  local function packages(installed, options)
    temp.write(folder .. "/dpkg-query", ([[#!/bin/sh
      for name in "$@"; do :; done
      case " %s " in *" $name "*) echo install ok installed ;; *) exit 1 ;; esac]]):format(installed))
    local ok, text = temp.run(folder, ([[chmod +x %s/dpkg-query
      PATH=%s:$PATH scripts/setup --packages %s]]):format(folder, folder, options or ""))
    assert(ok, text)
    return " " .. text:gsub("%s+", " ") .. " "
  end

  it("takes Debian's LuaJIT where there is none", function()
    local all = packages "gcc"
    assert.matches(" luajit libluajit%-5%.1%-dev ", all)
    assert.not_matches("luajit2", all)
  end)

  it("takes OpenResty's where something has brought it, since one excludes the other", function()
    local all = packages "gcc libluajit2-5.1-2 libnginx-mod-http-lua"
    assert.matches(" luajit2 libluajit2%-5%.1%-dev ", all)
    assert.not_matches(" luajit ", all)
    assert.not_matches(" libluajit%-5%.1", all)
  end)

  it("leaves out the packages of parts that are not wanted", function()
    local all = packages ""
    assert.matches(" libopenmpi%-dev .*libpmix%-dev ", all)
    assert.not_matches("gloo", all)
    assert.not_matches(" g%+%+ ", all)
    all = packages("", "--without mpi")
    assert.not_matches("mpi%-", all)
    assert.matches(" libpmix%-dev ", all)
    all = packages("", "--without all")
    for _, name in ipairs {"dnnl", "openmpi", "pmix", "libedit", "webp", "gif", "tiff"} do
      assert.not_matches(name, all)
    end
  end)

  it("knows the names of other package managers", function()
    for manager, wanted in pairs {
      dnf = " luajit%-devel .* onednn%-devel openmpi%-devel .* pmix%-devel libedit libwebp%-devel "
        .. "giflib%-devel libtiff%-devel protobuf%-c%-devel protobuf%-c%-compiler +$",
      pacman = " luajit .* onednn openmpi openpmix libedit libwebp giflib libtiff protobuf%-c +$",
      apt = " libdnnl%-dev ",
    } do
      local all = packages("", "--manager " .. manager)
      assert.matches(wanted, all)
      assert.not_matches("openmpi", packages("", "--without mpi --manager=" .. manager))
      all = packages("", "--dev --manager " .. manager)
      assert.matches(" clang ", all)
      assert.not_matches("valgrind", all)
      assert.not_matches(" iproute", all)
      assert.matches(" clang .* iproute2? ", packages("", "--dev=cluster --manager " .. manager))
      assert.matches(" gnuplot%S* .*valgrind .*iproute2? ", packages("", "--dev=hosts,cluster --manager " .. manager))
    end
    local refused, why = temp.run(folder, "scripts/setup --packages --dev=slurm")
    assert.is_false(refused)
    assert.matches("--dev takes hosts, cluster or both, not 'slurm'", why, 1, true)
    local ok, text, code = temp.run(folder, "scripts/setup --packages --manager brew")
    assert.is_false(ok)
    assert.equal(2, code)
    assert.matches("--manager takes apt, dnf or pacman, not 'brew'", text, 1, true)
  end)

  it("installs what is missing by the manager that is there", function()
    for manager, asks in pairs { dnf = "rpm", pacman = "pacman", apt = "dpkg-query" } do
      local tools = folder .. "/" .. manager
      assert(os.execute("mkdir " .. tools) == 0)
      for _, tool in ipairs { "sh", "dirname", "tr", "grep", "cat", "nproc" } do
        assert(os.execute(("ln -s $(command -v %s) %s/%s"):format(tool, tools, tool)) == 0)
      end
      -- All but LuaJIT is there; nothing can be installed.
      temp.write(tools .. "/id", "#!/bin/sh\necho 0\n")
      local installer = manager == "apt" and "apt-get" or manager
      temp.write(tools .. "/" .. installer, "#!/bin/sh\n[ \"$1\" != update ] || exit 0\necho told: \"$@\"\nexit 9\n")
      temp.write(tools .. "/" .. asks, ([[#!/bin/sh
        case $1 in -S) echo told: "$@"; exit 9 ;; esac
        for name in "$@"; do :; done
        case $name in luajit|libluajit2*) exit 1 ;; esac
        echo install ok installed
      ]]))
      local ok, text = temp.run(folder, ("chmod +x %s/*; env -i PATH=%s scripts/setup --no-install"):format(
        tools, tools))
      assert.is_false(ok)
      local refusal = "\nsetup: %s could not install the missing packages; setup never removes one for another\n$"
      assert.matches("told: .*install.* luajit" .. refusal:format(manager), (text:gsub("%-S ", "install ")))
      if manager == "apt" then assert.matches(" --no-remove ", text, 1, true) end
    end
  end)

  it("says which parts there are", function()
    local ok, text, code = temp.run(folder, "scripts/setup --packages --without gloop")
    assert.is_false(ok)
    assert.equal(2, code)
    assert.matches("%-%-without takes onednn mpi pmix edit webp gif tiff onnx cuda nccl or all, not 'gloop'", text)
  end)
end)

describe("a build #lua", function()
  local folder = temp.during(setup, teardown)

  it("without the optional libraries is the CPU core, and says what was left out", function()
    local ok, text = temp.run(folder, ("cmake -S . -B %s/build -DLM_WITHOUT='mpi;pmix;edit;cuda;nccl'"):format(
      folder))
    assert(ok, text)
    local left = temp.read(folder .. "/build/left_out")
    for _, what in ipairs {"group mpi", "PMIx", "CUDA backend", "group nccl"} do
      assert.matches("left out: " .. what .. ": ", text)
      assert.matches(what .. ": ", left)
    end
    ok, text = temp.run(folder, ("cmake --build %s/build --target help"):format(folder))
    assert(ok, text)
    assert.matches("luminary_lua", text)
    assert.not_matches("luminary_group", text)
  end)

  it("is refused for a big-endian machine, in words", function()
    local compile = "unset LD_PRELOAD; gcc -std=gnu11 -fsyntax-only -Isrc %s src/base/bytes.c"
    assert.is_true(temp.run(folder, compile:format "-Wall"))
    local ok, text = temp.run(folder, compile:format "-U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__")
    assert.is_false(ok)
    assert.matches("Luminary needs a little-endian machine", text, 1, true)
  end)

  it("knows its parts", function()
    local ok, text = temp.run(folder, ("cmake -S . -B %s/wrong -DLM_WITHOUT='gloop'"):format(folder))
    assert.is_false(ok)
    assert.matches("no part 'gloop'", text)
  end)

  it("of the core alone computes, and is clear about what it lacks", function()
    local core = assert(package.searchpath("luminary.core", package.cpath)):match("^(.*)/core%.so$")
    local ok, text = temp.run(folder, ([[
      cd %s; mkdir -p lib/luminary; cp %s/core.so %s/libluminary.so* lib/luminary/
      LUA_CPATH="lib/?.so;$LUA_CPATH" luajit -e '
      local lm = require "luminary"
      print(lm.ones{2, 2}:mm(lm.ones{2, 2}):sum():item())
      for _, backend in ipairs {"mpi", "nccl"} do
        print(select(2, pcall(lm.dist.init_process_group, backend, {rank = 0, world_size = 1,
          init_method = "tcp://127.0.0.1:0"})))
      end
      print("gloo", lm.dist.is_gloo_available())
      print(lm.cuda.is_available(), select(2, pcall(lm.ones, {2}, {device = "cuda"})))']]):format(folder, core, core))
    assert(ok, text)
    assert.matches("^8\n", text)
    for _, backend in ipairs {"mpi", "nccl"} do
      assert.matches(("backend '%s' was not built .- available: solo, gloo\n"):format(backend), text)
    end
    assert.matches("\ngloo\ttrue\n", text, 1, true)
    assert.matches("false\t.*the CUDA backend is not built here", text)
  end)
end)
