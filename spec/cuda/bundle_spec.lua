-- scripts/dev/bundle: what it refuses, and a bundle of this build that runs beside the checkout.
local lm = require "luminary"
local temp = require "spec.support.temp"
if os.getenv "LM_SPEC_DEVICE" then return end -- another device changes nothing here

local built = assert(package.searchpath("luminary.core", package.cpath)):match("^(.*)/core%.so$")
local build = built:match "^(.*)/lib/luminary$"
local fake = built .. "/fake_cuda.so"

describe("bundle #unsanitized", function() -- bundle packs builds that are not sanitized
  local folder = temp.during(setup, teardown)

  -- Returns a folder that looks like a build with such CUDA settings.
  local function build_with(archs, cuda_flags)
    local path = folder .. "/build"
    temp.execute(("mkdir -p %s/lib/luminary; touch %s/lib/luminary/core.so %s/lib/luminary/luminary_backend_cuda.so")
      :format(path, path, path))
    temp.write(path .. "/CMakeCache.txt", ("LM_CUDA_ARCHITECTURES:INTERNAL=%s\nCMAKE_CUDA_FLAGS:STRING=%s\n")
      :format(archs, cuda_flags))
    return path
  end

  local function refused(words, arguments)
    local ok, text = temp.run(folder, "scripts/dev/bundle " .. arguments)
    assert(not ok)
    assert.matches(words, text, 1, true)
    assert.is_false(temp.exists(folder .. "/out/run"))
  end

  it("refuses a build without machine code, or without optimization", function()
    refused("has kernels for '90-virtual', which is PTX alone: build with CUDAARCHS=90-real",
      folder .. "/out " .. build_with("90-virtual", ""))
    refused("has kernels that are not optimized (-Ofc=max): build with CUDAARCHS=90-real",
      folder .. "/out " .. build_with("80-real;90", "-Ofc=max"))
    refused("has no built module", folder .. "/out " .. folder .. "/nothing")
  end)

  it("builds for sm_90 in a folder of its own, unless it is given a build", function()
    local tree = folder .. "/tree"
    temp.execute(("mkdir -p %s/scripts/dev && cp scripts/dev/bundle %s/scripts/dev"):format(tree, tree))
    temp.write(tree .. "/scripts/setup", [[#!/bin/sh
      echo "setup $* for $CUDAARCHS, CUDA $LM_CUDA, flags $CUDAFLAGS."
      mkdir build-90 && echo "CUDA backend: there is no CUDA compiler (nvcc)" >build-90/left_out]])
    local bundle = ("cd %s; chmod +x scripts/setup; LM_CUDA=0 CUDAFLAGS=-Ofc=max scripts/dev/bundle out"):format(tree)
    local ok, text = temp.run(folder, bundle)
    assert.is_false(ok)
    assert.equal("setup --dev --without mpi --build build-90 for 90-real, CUDA 1, flags .\n"
      .. "bundle: build-90 has no kernels for a GPU: there is no CUDA compiler (nvcc); install a CUDA toolkit, or pass "
      .. "--any-build OUT build-90\n", text)
    ok, text = temp.run(folder, bundle) -- mkdir fails: there is build-90 now
    assert.is_false(ok)
    assert.matches("\nbundle: there is no build\n$", text)
  end)

  it("knows what a build has code for, also one that was told of no architectures", function()
    if not temp.exists(fake) then return pending "this build has no CUDA" end
    assert.matches("\nLM_CUDA_ARCHITECTURES:INTERNAL=%d", temp.read(build .. "/CMakeCache.txt"))
  end)

  it("refuses to replace what is no bundle", function()
    temp.execute(("mkdir -p %s/mine && touch %s/mine/file"):format(folder, folder))
    refused("exists and is no bundle", ("--any-build %s/mine %s"):format(folder, build_with("90-real", "")))
    assert.is_true(temp.exists(folder .. "/mine/file"))
  end)

  -- Packing takes minutes.
  it("runs gpu_check with the libraries and data that it brings #full", function()
    if os.getenv "LM_TEST_LONG" ~= "1" then return pending "scripts/test --long runs it" end
    if not temp.exists(fake) then return pending "this build has no CUDA" end
    local out = folder .. "/out"
    assert(temp.run(folder, ("XZ_OPT=-0 scripts/dev/bundle --any-build %s %s"):format(out, build)))
    for _, name in ipairs { "lua/luminary", "spec", "kernels", "luminary_group_mpi.so", "fake_cuda.so" } do
      local _, listed = temp.run(folder, ("xz -dc %s/files.tar.xz | tar -t | grep -c '%s' || true"):format(out, name))
      assert.equal("0\n", listed, name)
    end
    local script = temp.write(folder .. "/script.lua", [[
      local lm = require "luminary"
      local set, test = lm.data.FashionMNIST { train = true }, lm.data.FashionMNIST { train = false }
      print(package.searchpath("luminary.core", package.cpath))
      print(set:len(), test:len(), os.getenv "LUMINARY_PEER_LIBRARY_PATH")
      local function first(of) return (of:get(1)):double():sum():item() end
      print(first(set), select(2, set:get(8000)), first(test), select(2, test:get(2000)))
    ]])
    -- Two at once unpack one.
    local ok, text = temp.run(folder, ("%s/run true & LD_LIBRARY_PATH=/mine %s/run luajit %s; r=$?; wait; exit $r")
      :format(out, out, script))
    assert(ok, text)
    local set = lm.data.FashionMNIST { train = false }
    local function sum(i) return (set:get(i)):double():sum():item() end
    local function label(i) return tostring((select(2, set:get(i)))) end
    assert.equal(("%s/files/build/lib/luminary/core.so\n8000\t2000\t/mine\n%s\t%s\t%s\t%s\n"):format(out, sum(1),
      label(8000), sum(8001), label(10000)), text)
    assert(temp.run(folder, ("LUA_PATH= LUA_CPATH= %s/run specs spec/base/variables_spec.lua"):format(out)))
    ok, text = temp.run(folder, ("LD_PRELOAD=%s %s/run scripts/dev/gpu_check 1 --out %s"):format(fake, out, folder))
    assert(ok, text .. temp.read(folder .. "/gpu_check_1.txt"))
    assert.matches("training +8000 images", text)
    assert.matches("\n6 passed, 0 failed, 0 partial, 5 left out\n$", text)
  end)
end)
