-- scripts/package: control fields and contents of what it makes of this build, which runs where it is unpacked.
local temp = require "spec.support.temp"
local version = require("luminary").version

local build = assert(package.searchpath("luminary.core", package.cpath)):match "^(.*)/lib/luminary/core%.so$"
local is_there = function(command) return temp.execute("command -v " .. command .. " >/dev/null") == 0 end

describe("scripts/package #lua", function()
  local folder = temp.during(before_each, after_each)

  it("refuses what it does not know, and a build for one kind of CPU", function()
    local function refused(words, arguments, code)
      local ok, text, status = temp.run(folder, "scripts/package --out " .. folder .. "/out " .. arguments)
      assert(not ok)
      assert.matches(words, text, 1, true)
      assert.equal(code, status)
    end
    refused("unknown option rpm (known: deb tar source --parts --suite --build --out)", "rpm", 2)
    refused("--parts takes all or inference, not 'some'", "--parts some", 2)
    refused("has no built module; run scripts/setup first", "--build " .. folder, 1)
    temp.execute(("mkdir -p %s/lib/luminary && touch %s/lib/luminary/core.so"):format(folder, folder))
    temp.write(folder .. "/CMakeCache.txt", "LM_ISA:STRING=native\n")
    refused("has kernels of one kind of CPU alone (native); build with", "--build " .. folder, 1)
  end)

  it("--help lists its options", function()
    local ok, text = temp.run(folder, "here=$PWD; cd / && $here/scripts/package --help")
    assert(ok, text)
    for _, word in ipairs {"deb", "tar", "source", "--parts inference", "--build FOLDER", "--out FOLDER"} do
      assert.matches(word, text, 1, true)
    end
  end)
end)

describe("CHANGELOG.md #lua", function()
  it("begins with this version, and has at most 40 lines for each area", function()
    local text = temp.read "CHANGELOG.md"
    assert.equal(version, text:match "\n## ([%d.]+)")
    local title, lines
    for line in text:gmatch "[^\n]+" do
      if line:find "^#" then title, lines = line, 0 end
      lines = lines + 1
      assert(lines <= 40, title)
    end
  end)
end)

describe("debian/ #lua", function()
  it("has the version of the library, and the packages that scripts/setup installs to build", function()
    assert.matches("^luminary %(" .. version:gsub("%.", "%%.") .. "%)", temp.read "debian/changelog")
    local needed = temp.read("debian/control"):match "\nBuild%-Depends: (.-)\n\n"
    local known = "gcc libc6-dev make luarocks lua-filesystem lua-md5 openmpi-bin libedit2 dataset-fashion-mnist"
    for name in temp.output_of("scripts/setup --manager apt --packages"):gmatch "%S+" do
      if not known:find(name, 1, true) and not name:find "luajit" then assert.matches(name, needed, 1, true) end
    end
  end)
end)

describe("packages #full #unsanitized", function()
  local folder = temp.during(setup, teardown)
  local out = folder .. "/out"

  -- Runs a command that knows nothing of the checkout, nor of rocks that scripts/demo installed on the machine.
  local function run(command)
    local ok, text = temp.run(folder, "set -e; unset LUA_INIT LD_LIBRARY_PATH; "
      .. "export LUA_PATH='./?.lua' LUA_CPATH='./?.so'; cd " .. folder .. "; " .. command)
    assert(ok, text)
    return text
  end

  -- Makes packages, hardly compressed, unless an earlier test has.
  local made = {}
  local function package(arguments, tool)
    if not is_there(tool) then pending("there is no " .. tool) end
    if temp.read(build .. "/CMakeCache.txt"):match "\nLM_ISA:STRING=(%w*)" ~= "" then
      pending "this build has kernels of one kind of CPU alone"
    end
    if made[arguments] then return end
    local ok, text = temp.run(folder, "export DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1 ZSTD_CLEVEL=1; "
      .. ("scripts/package --build %s --out %s %s"):format(build, out, arguments))
    assert(ok, text)
    made[arguments] = true
  end

  local try = [[luajit -e 'local lm = require "luminary"; local net = lm.nn.Conv2d(1, 2, 3)
    local image = lm.vision.encode_png(lm.ones(1, 4, 4, {dtype = "uint8"}))
    print(lm.version, net(lm.ones(1, 1, 4, 4)).shape[2], lm.vision.decode_image(image):sum():item())
    lm.save("x.safetensors", net:state_dict()); print(lm.load("x.safetensors", {mmap = true}).bias.shape[1])']]
  local answer = version .. "\t2\t16\n2\n"

  local function deb(name) return ("%s/%s_%s_$(dpkg --print-architecture).deb"):format(out, name, version) end
  local function field(name, of) return run(("dpkg-deb -f %s %s"):format(deb(name), of)) end

  it("for Debian: control fields, contents, checksums #long", function()
    package("deb", "dh")
    assert.equal(version .. "\n", field("luminary", "Version"))
    -- No pages that scripts/docs has written in this checkout.
    assert.not_matches("status/rows", run("dpkg-deb -c " .. out .. "/luminary-doc_*.deb"), 1, true)
    local depends = field("luminary", "Depends")
    for _, library in ipairs {"libluajit%-5%.1%-2 | libluajit2%-5%.1%-2", "libc6 %(>= ", "libdnnl%d", "libopenblas0"} do
      assert.matches(library, depends)
    end
    assert.not_matches("mpi", depends)
    assert.equal(("luminary (= %s) | luminary-inference (= %s)\n"):format(version, version),
      field("luminary-dev", "Depends"))
    run(("dpkg-deb -x %s tree; dpkg-deb -x %s dev; dpkg-deb -e %s tree/DEBIAN")
      :format(deb "luminary", deb "luminary-dev", deb "luminary"))
    run "cd tree && md5sum --quiet -c DEBIAN/md5sums"
    run [[test -x tree/usr/bin/luminary; test -e tree/usr/share/luminary/scripts/train_ddp.lua
      test -e tree/usr/share/luminary/examples/hosts/nginx/nginx.conf
      test -e tree/usr/share/lua/5.1/luminary/help/pages/lm.md; test -e dev/usr/include/luminary/op/backend.h
      test -z "$(find tree -name '*.h'; find dev tree -perm /022 ! -type l)"]]
    assert.equal(answer, run([[cd tree/usr; export LUA_PATH="$PWD/share/lua/5.1/?.lua;$PWD/share/lua/5.1/?/init.lua"
      export LUA_CPATH="$(echo "$PWD"/lib/*/lua/5.1)/?.so"; ]] .. try))
    -- A C program is built with what luminary-dev has, and finds the rest by the library's folder.
    temp.write(folder .. "/number.lua", "return function() return 7 end")
    temp.write(folder .. "/infer.c", temp.read "examples/hosts/c/infer.c")
    run [[cp -a dev/usr tree/; grep ldconfig tree/DEBIAN/triggers
      test -e tree/usr/lib/*/cmake/luminary/luminaryConfig.cmake]]
    assert.equal("thread 1: float64 [] on cpu: 7.000000\n", run [[
      export PKG_CONFIG_LIBDIR=$(echo "$PWD"/tree/usr/lib/*/pkgconfig) PKG_CONFIG_SYSROOT_DIR="$PWD/tree"
      cc infer.c -o infer $(pkg-config --cflags --libs luminary) -pthread -Wl,-rpath,$(echo "$PWD"/tree/usr/lib/*-*)
      ./infer number.lua]])
  end)

  it("for Debian: the command's page has each line of its --help #long", function()
    package("deb", "dh")
    run(("dpkg-deb -x %s page"):format(deb "luminary"))
    local page = run("zcat page/usr/share/man/man1/luminary.1.gz"):gsub("\\(.)", "%1")
    assert.matches('^%.TH LUMINARY 1 ".*" "Luminary ' .. version:gsub("%.", "%%."), page)
    local _, help = temp.run(folder, "luajit bin/luminary --help")
    for line in help:gmatch "[^\n]+" do
      assert.matches(line:gsub("^usage: ", ""):match "^%s*(.-)$", page, 1, true)
    end
  end)

  it("for Debian, to run models: either package, and CUDA with either #long", function()
    package("deb", "dh")
    assert.equal("luminary\n", field("luminary-inference", "Conflicts"))
    assert.equal("luminary-inference\n", field("luminary", "Conflicts"))
    assert.not_matches("openblas", field("luminary-inference", "Depends"))
    assert.not_matches("mpi", field("luminary-inference", "Suggests"))
    assert.not_matches("bin/luminary\n", run("dpkg-deb -c " .. deb "luminary-inference"))
    if temp.execute("test -e " .. deb "luminary-cuda") == 0 then
      assert.matches(("luminary (= %s) | luminary-inference (= %s),"):format(version, version),
        field("luminary-cuda", "Depends"), 1, true)
    end
  end)

  it("for Debian: lintian has no error or warning #long", function()
    package("deb", "dh")
    if not is_there "lintian" then pending "there is no lintian" end
    assert.equal("", run("lintian --allow-root --fail-on none " .. out .. "/*.deb 2>/dev/null | grep ^[EW]: || true"))
  end)

  it("are of a build without what the specs of CUDA run on #long", function()
    run(("cmake -S %s -B build -DLM_RELEASE=ON >configured"):format(temp.output_of("pwd"):match "[^\n]+"))
    local targets = temp.read(folder .. "/build/CMakeFiles/Makefile2")
    if not targets:find "/fake_cuda%.dir" then pending "there is no CUDA compiler" end
    assert(targets:find("\nall: src/all", 1, true))
    assert(not targets:find("\nall: spec/support/cuda/all", 1, true))
  end)

  it("as a tree that runs where it is unpacked, and is moved", function()
    package("tar", "zstd")
    local name = ("luminary-%s-linux-$(uname -m)"):format(version)
    run(("zstd -dc %s/%s.tar.zst | tar -xf -; mv %s 'a place'"):format(out, name, name))
    local with = "cd 'a place'; . ./env; cd ..; "
    assert.equal(answer, run(with .. try))
    assert.matches("^luminary " .. version:gsub("%.", "%%."), run "'a place/bin/luminary' --version")
    run "test -e 'a place/include/luminary.h' -a -e 'a place/lib/pkgconfig/luminary.pc'"
    -- Its glibc is the newest that a module names; env refuses an older one.
    local glibc = temp.read(folder .. "/a place/env"):match "\nLUMINARY_GLIBC=(%d+%.%d+)\n"
    local newest, packed = 0, false
    for line in run "find 'a place/lib' -name '*.so*' -exec readelf -W -V -d {} +":gmatch "[^\n]+" do
      newest = math.max(newest, tonumber(line:match "GLIBC_2%.(%d+)") or 0)
      packed = packed or line:find("(RELR)", 1, true) ~= nil
    end
    assert.equal("2." .. math.max(newest, packed and 36 or 0), glibc)
    assert.matches(("luminary: this tree needs glibc %s or later; this machine has 2.31"):format(glibc),
      run [[cd 'a place'; getconf() { echo "glibc 2.31"; }; set +e; . ./env 2>&1
        test $? = 1 -a -z "${LUMINARY_TREE:-}"]], 1, true)
    -- Every library beneath is the tree's own, but glibc's.
    local text = run(with .. [[luajit -e 'local lm = require "luminary"; lm.linalg.svd(lm.ones(2, 2))
      lm.nn.Conv2d(1, 2, 3)(lm.ones(1, 1, 4, 4)); for line in io.lines "/proc/self/maps" do print(line) end']])
    assert.matches("a place/lib/lua/5.1/luminary/libdnnl", text, 1, true)
    assert.matches("a place/lib/lua/5.1/luminary/libopenblas", text, 1, true)
    for path in text:gmatch " (/[^\n]*%.so[^\n]*)" do
      local file = path:match "[^/]*$"
      assert(path:find("a place/", 1, true) or file:find "^ld%-" or file:find "^lib[cm]%.so" or file:find "^libmvec"
        or file:find "^libluajit" or file:find "^libgcc_s" or file:find "^libdl", path)
    end
  end)

  it("as the part that runs models #long", function()
    package("--parts inference tar", "zstd")
    local name = ("luminary-inference-%s-linux-$(uname -m)"):format(version)
    run(("zstd -dc %s/%s.tar.zst | tar -xf -; mv %s part"):format(out, name, name))
    local with = "cd part; . ./env; cd ..; "
    assert.equal(answer, run(with .. try))
    assert.matches("^table\t.*cannot load module 'luminary%.optim': it is not installed", run(with .. [[luajit -e '
      local lm = require "luminary"; print(type(lm.text), pcall(function() return lm.optim end))']]))
    run [[test -z "$(find part -name '*openblas*' -o -name optim -o -name cli)"]]
  end)

  it("of the sources, as a rock too #long", function()
    if temp.execute "git rev-parse -q --verify HEAD >/dev/null 2>&1" ~= 0 then pending "this is no git checkout" end
    package("source", "zip")
    run(("tar -xf %s/luminary-%s.tar.gz; test -x luminary-%s/scripts/setup"):format(out, version, version))
    local rockspec = temp.read(("%s/luminary-%s-1.rockspec"):format(out, version))
    assert.matches(('version = "%s-1"'):format(version), rockspec, 1, true)
    run(("env -u LUA_PATH -u LUA_CPATH luarocks --lua-version 5.1 unpack %s/luminary-%s-1.src.rock; "
      .. "test -e luminary-%s-1/luminary-%s/bin/luminary"):format(out, version, version, version))
  end)
end)
