-- luminary.h: programs in C and C++ that an installation is enough for, what its functions return, and what is
-- documented.
local lm = require "luminary"
local small = require "spec.support.small_chat"
local temp = require "spec.support.temp"

local build = assert(package.searchpath("luminary.core", package.cpath)):match "^(.*)/lib/luminary/core%.so$"
local HEADER, HOSTS = "include/luminary.h", "examples/hosts/c/"
local WARNINGS = "-O1 -Wall -Wextra -Wpedantic -Werror"

-- Returns the bytes of an ONNX model, y = op(x) of shape [N, 2]: fields of protobuf are key, length, bytes.
local function onnx_model(op)
  local function field(number, value)
    if type(value) == "number" then return string.char(number * 8, value) end
    return string.char(number * 8 + 2, #value) .. value
  end
  local function value_info(name)
    local shape = field(1, field(2, "N")) .. field(1, field(1, 2))
    return field(1, name) .. field(2, field(1, field(1, 1) .. field(2, shape)))
  end
  local node = field(1, "x") .. field(2, "y") .. field(4, op)
  local graph = field(1, node) .. field(2, "g") .. field(11, value_info "x") .. field(12, value_info "y")
  return field(1, 8) .. field(7, graph) .. field(8, field(2, 13))
end

local folder = temp.during(setup, teardown)

-- Tools are no concern of a sanitizer's, nor do programs see the checkout.
local QUIET = "unset LUA_PATH LUA_CPATH LUA_INIT LD_LIBRARY_PATH; "
local function run(command, ...)
  local ok, text = temp.run(folder, QUIET .. "unset LD_PRELOAD; " .. command:format(...))
  assert(ok, text)
  return text
end

local function has(tool) return temp.execute(("command -v %s >/dev/null"):format(tool)) == 0 end

-- Returns the names of the functions that luminary.h declares, a set, and their number.
local function declared()
  local names, n = {}, 0
  for name in temp.read(HEADER):gsub("/%*.-%*/", ""):gmatch "LUM_API[^;]-[%s*](lum_[%w_]+)%(" do
    names[name], n = true, n + 1
  end
  return names, n
end

-- Returns the names of a text that a pattern captures, a set.
local function names_in(text, pattern)
  local names = {}
  for name in text:gmatch(pattern) do names[name] = true end
  return names
end

describe("luminary.h #lua", function()
  it("declares names that begin with lum_ and LUM_ alone, and nothing of Lua", function()
    local code = temp.read(HEADER):gsub("/%*.-%*/", "")
    assert.not_matches("lua%.h", code)
    for name in code:gmatch "\n#define (%S+)" do assert.matches("^LUM", name) end
    for name in code:gmatch "([%w_]+)%(" do assert(name:find "^lum_" or name == "__attribute__" or name == "visibility"
      or name == "defined" or name == "sizeof" or name == "void", name) end
    for name in code:gmatch "} ([%w_]+);" do assert.matches("^lum_", name) end
    for name in code:gmatch "\n  (%u[%w_]*)" do assert.matches("^LUM_", name) end
  end)

  it("is what the library exports, by one version, and what the page documents", function()
    local names, n = declared()
    assert.is_true(n >= 40)
    local map = temp.read "include/luminary.map"
    assert.same(names, names_in(map, "\n%s+(lum_[%w_]+);"))
    local page, described = temp.read "docs/howto/c.md", {}
    for row in page:gmatch "\n| (`lum_[^|]*)|" do
      for name in row:gmatch "`(lum_[%w_]+)%(" do described[name] = true end
    end
    assert.same(names, described)
    local known = names_in(temp.read(HEADER), "([lL][uU][mM]_[%w_]+)")
    for name in page:gmatch "[lL][uU][mM]_[%w_]+" do assert(known[name], name) end
  end)

  it("compiles without a warning in C11 and C++17", function()
    temp.write(folder .. "/all.c", [[
      #include <luminary.h>
      int main(void) {
        lum_session_options a = LUM_SESSION_OPTIONS;
        lum_model_options b = LUM_MODEL_OPTIONS;
        lum_value_info c = LUM_VALUE_INFO;
        return a.size + b.size + c.size == 0;
      }]])
    run("gcc -std=c11 %s -Wconversion -Iinclude -c %s/all.c -o %s/all.o", WARNINGS, folder, folder)
    if not has "g++" then return pending "no C++ compiler" end
    run("g++ -x c++ -std=c++17 %s -Wconversion -Iinclude -c %s/all.c -o %s/all.o", WARNINGS, folder, folder)
  end)
end)

describe("programs with luminary.h #full #unsanitized", function()
  local with_library -- options of the compiler, for a build's own library
  setup(function()
    with_library = ("-Iinclude -L%s/lib/luminary -Wl,-rpath,$(realpath %s/lib/luminary) -lluminary_c -pthread")
      :format(build, build)
    local function write(name, text) temp.write(folder .. "/" .. name, text) end
    write("linear.lua", [[
local lm = require "luminary"
local Two = lm.nn.Linear:extend "Two"
function Two:forward(x)
  local y = Two.super.forward(self, x)
  return y, y * 2
end
return {model = Two(2, 1), inputs = {{name = "x", dtype = "float32", shape = {"N", 2}}}, outputs = {"y", "twice"}}
]])
    lm.save(folder .. "/linear.safetensors", {weight = lm.tensor {{1, 2}}, bias = lm.tensor {0.5}})
    lm.save(folder .. "/other.safetensors", {weight = lm.zeros(3, 5), bias = lm.zeros(3)})
    local bytes = temp.read(folder .. "/linear.safetensors")
    write("cut.safetensors", bytes:sub(1, -3))
    write("hostile.safetensors", "\255\255\255\255\255\255\255\127" .. bytes:sub(9))
    write("cut.onnx", "\8\7\18")
    write("negative.onnx", onnx_model "Neg")
    write("unsupported.onnx", onnx_model "Bar")
    write("functions.lua", [[
local lm = require "luminary"
local kept, view
return {
  values = function(x) return x:mean():item() - 1, true, x end,
  fails = function() error "on purpose" end,
  fails_oddly = function() error {} end,
  fails_with_0 = function() error {0, "text"} end,
  nothing = function() end,
  waits = function() io.open("FIFO"):read(1) end,
  text = function() return 1, "text" end,
  keep = function(x) kept = x end,
  kept = function() return kept:sum() end,
  keep_view = function(x) view = x:view(1, 2) end,
  drop_view = function()
    view = nil
    collectgarbage()
  end,
  warns = function() lm.core.warn "on purpose" end,
}
]])
    write("functions.lua", (temp.read(folder .. "/functions.lua"):gsub("FIFO", folder .. "/fifo")))
    run("mkfifo %s/fifo", folder)
    for i = 1, 2 do write(("number_%d.lua"):format(i), ("return function() return %d end"):format(i)) end
    run("mkdir %s/chat", folder)
    small.write(folder .. "/chat")
    write("cut.lua", "local lm = require 'luminary'\nreturn lm.nn.Linear(")
    write("number.lua", "return 7")
    write("bytecode.lua", string.dump(function() return 1 end))
  end)

  local function compile(file, program, options)
    run("gcc -std=c11 -D_GNU_SOURCE %s %s -o %s/%s %s", WARNINGS, file, folder, program, options or with_library)
    return folder .. "/" .. program
  end

  it("each function does what the header says, on 20 threads at once too", function()
    local ok, text = temp.run(folder, QUIET .. compile("spec/support/c_interface.c", "check") .. " " .. folder)
    assert(ok, text)
    assert.equal("ok\n", text)
    -- The program saved weights that Lua reads.
    assert.equal(1.5, lm.load(folder .. "/saved.safetensors").bias[1])
  end)

  it("runs as before what was built against its first header", function()
    local function declarations(path)
      return (temp.read(path):gsub("/%*.-%*/", ""):gsub("%s+", " "))
    end
    local now, before = declarations(HEADER), declarations "spec/golden/luminary_1.h"
    for declared_then in before:gmatch "LUM_API [^;{}]+;" do assert.matches(declared_then, now, 1, true) end
    for body in before:gmatch "(typedef %a+ lum_%w+ {.-)%s*}" do assert.matches(body, now, 1, true) end -- may get more
    temp.execute(("mkdir -p %s/first && cp spec/golden/luminary_1.h %s/first/luminary.h"):format(folder, folder))
    temp.write(folder .. "/first.c", [[
      #include <luminary.h>
      #include <stdio.h>
      #define NEED(call) if ((call) != LUM_OK) return puts(lum_message(NULL)), 1
      int main(int argc, char **argv) {
        lum_session_options options = LUM_SESSION_OPTIONS;
        lum_model_options model_options = LUM_MODEL_OPTIONS;
        lum_value_info info = LUM_VALUE_INFO;
        lum_session *session;
        lum_model *model;
        lum_tensor *x, *y;
        float data[4] = {1, 2, 3, 4}, out[4];
        size_t count;
        NEED(lum_session_new(&options, &session));
        NEED(lum_model_load(session, argv[argc - 1], &model_options, &model));
        NEED(lum_model_input(model, 0, &info));
        printf("%s %d %d %d\n", info.name, info.dtype == LUM_FLOAT32, info.ndim, (int)info.shape[1]);
        NEED(lum_tensor_from_memory(LUM_FLOAT32, 2, (int64_t[]){2, 2}, NULL, data, sizeof data, NULL, NULL, &x));
        NEED(lum_model_run(model, 1, &x, 1, &y, &count));
        NEED(lum_tensor_read(y, out, sizeof out));
        printf("%d %g %g %d\n", (int)count, out[0], out[3], (int)lum_tensor_shape(y)[0]);
        printf("%d\n", lum_tensor_from_memory(LUM_FLOAT32, -1, NULL, NULL, data, 4, NULL, NULL, &x) == LUM_E_ARGUMENT);
        lum_tensor_free(y);
        lum_model_free(model);
        lum_session_free(session);
        return 0;
      }]])
    local options = with_library:gsub("%-Iinclude", "-I" .. folder .. "/first")
    local program = compile(folder .. "/first.c", "as_before", options)
    assert.equal("x 1 2 2\n1 -1 -4 2\n1\n", run("%s %s/negative.onnx", program, folder))
  end)

  it("leave no memory behind and read none that is not theirs, as valgrind sees", function()
    local why = not has "valgrind" and "no valgrind" or require("spec.support.needs").cpu_level(1)
    if why then return pending(why) end
    local valgrind = "LM_CPU_LEVEL=1 valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite "
      .. "--errors-for-leak-kinds=definite --smc-check=all-non-file --suppressions=spec/support/valgrind.supp "
    if os.getenv "LM_TEST_LONG" then
      local program = compile("spec/support/c_interface.c", "check")
      assert.equal("ok\n", run("%s %s %s interpret", valgrind, program, folder))
    end
    assert.matches("thread 3: float32", run("%s %s %slinear.lua '' 3", valgrind, compile(HOSTS .. "infer.c", "infer"),
      folder .. "/"))
    assert.matches("step 1: loss", run("%s %s %strain_step.lua 3 %s/circle.safetensors", valgrind,
      compile(HOSTS .. "train.c", "train"), HOSTS, folder))
  end)

  it("find an installation by pkg-config and CMake, and where it was moved to", function()
    run("cmake --install %s --prefix %s/prefix", build, folder)
    run("mv %s/prefix '%s/a place'", folder, folder)
    local place = folder .. "/a place"
    local flags = run("PKG_CONFIG_PATH='%s/lib/pkgconfig' pkg-config --cflags --libs luminary", place)
    assert.matches("-lluminary_c", flags, 1, true)
    local program = compile("spec/support/c_interface.c", "moved",
      ("%s -pthread '-Wl,-rpath,%s/lib'"):format(flags:gsub("\n", " "), place))
    assert.equal("ok\n", run("%s %s", program, folder))
    assert.not_matches(build, run("ldd %s", program), 1, true)
    assert.equal(lm.version .. "\n", run("PKG_CONFIG_PATH='%s/lib/pkgconfig' pkg-config --modversion luminary", place))

    temp.write(folder .. "/CMakeLists.txt", ([[
      cmake_minimum_required(VERSION 3.18)
      project(try C)
      set(CMAKE_C_STANDARD 11)
      find_package(luminary %s REQUIRED)
      find_package(Threads REQUIRED)
      add_executable(infer infer.c)
      target_link_libraries(infer luminary::luminary Threads::Threads)]]):format(lm.version))
    run("cp %sinfer.c %s && cmake -S %s -B %s/try -DCMAKE_PREFIX_PATH='%s' && cmake --build %s/try", HOSTS, folder,
      folder, folder, place, folder)
    assert.matches("thread 1: float32 %[2, 1%] on cpu", run("%s/try/infer %s/linear.lua", folder, folder))
  end)

  it("find the Lua files of a library that the linker finds through a link, as /lib of /usr/lib", function()
    run("cmake --install %s --prefix %s/root/usr && ln -s usr/lib %s/root/lib", build,
      folder, folder)
    temp.write(folder .. "/made.c", [[
      #include <luminary.h>
      #include <stdio.h>
      int main(void) {
        lum_session *s = NULL;
        lum_status status = lum_session_new(NULL, &s);
        printf("%s%s\n", lum_status_name(status), lum_message(NULL));
        lum_session_free(s);
        return 0;
      }]])
    local program = compile(folder .. "/made.c", "made", "-Iinclude -L" .. build .. "/lib/luminary -lluminary_c")
    for _, path in ipairs {"root/usr/lib", "root/lib"} do
      assert.equal("LUM_OK\n", run("LD_LIBRARY_PATH=%s/%s %s", folder, path, program))
    end
  end)

  it("run with a library that is loaded at run time, whose symbols stay its own", function()
    temp.write(folder .. "/load.c", [[
      #include <dlfcn.h>
      #include <luminary.h>
      #include <stdio.h>
      int main(int argc, char **argv) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        lum_session *s = NULL;
        lum_status (*make)(const lum_session_options *, lum_session **);
        void (*end)(lum_session *);
        if (argc != 2 || !library) return 2;
        *(void **)&make = dlsym(library, "lum_session_new");
        *(void **)&end = dlsym(library, "lum_session_free");
        lum_status status = make(NULL, &s);
        end(s);
        printf("%d\n", status);
        return 0;
      }]])
    local program = compile(folder .. "/load.c", "load", "-Iinclude -ldl -D_GNU_SOURCE -Wno-pedantic")
    local ok, text = temp.run(folder, QUIET .. ("%s %s/lib/luminary/libluminary_c.so.1"):format(program, build))
    assert(ok, text)
    assert.equal("0\n", text)
  end)

  it("examples/hosts/c/infer runs a model on 20 threads, as Lua does", function()
    local infer = compile(HOSTS .. "infer.c", "infer")
    temp.run(folder, ("luajit %smodel.lua --make %s/model.safetensors"):format(HOSTS, folder))
    local text = run("%s %smodel.lua %s/model.safetensors 20", infer, HOSTS, folder)
    local net = dofile(HOSTS .. "model.lua").model
    net:load_state_dict(lm.load(folder .. "/model.safetensors"))
    local first = net(lm.tensor {-3, -2, -1, 0, 1, 2, 3, -3}:view(2, 4))[{1, 1}]
    for i = 1, 20 do
      local number = tonumber(text:match(("thread %d: float32 %%[2, 3%%] on cpu: (%%S+)\n"):format(i)))
      assert.near(first:item(), number, 2e-6)
    end
    if pcall(require, "luminary.onnx") then
      temp.write(folder .. "/neg.onnx", onnx_model "Neg")
      assert.equal("thread 1: float32 [2, 2] on cpu: 3.000000\n", run("%s %s/neg.onnx", infer, folder))
    end
    local ok, problem = temp.run(folder, QUIET .. ("%s %smodel.lua %s/cut.safetensors"):format(infer, HOSTS, folder))
    assert.is_false(ok)
    assert.matches("thread 1: LUM_E_FILE: '.-cut.safetensors': ", problem)
  end)

  it("examples/hosts/c/chat answers each line, as lm.chat does", function()
    local chat, model = compile(HOSTS .. "chat.c", "talk"), folder .. "/chat"
    local talk = lm.chat(model, {temperature = 0, max_new_tokens = 8})
    local want = talk:say "Hello" .. "\n" .. talk:say "And?" .. "\n"
    for _, path in ipairs {model, model .. ".gguf"} do
      assert.equal(want, run([[printf 'Hello\nAnd?\n' | %s %s '{"temperature": 0, "max_new_tokens": 8}']], chat, path))
    end
    local ok, problem = temp.run(folder, QUIET .. ("%s %s/none.gguf"):format(chat, folder))
    assert.is_false(ok)
    assert.matches("^LUM_E_FILE: .*none.gguf': No such file or directory", problem)
  end)

  it("examples/hosts/c/train learns, and saves what Lua loads", function()
    local train = compile(HOSTS .. "train.c", "train")
    local text = run("%s %strain_step.lua 300 %s/circle.safetensors", train, HOSTS, folder)
    local first, last = text:match "step 1: loss (%S+)\n.*step 300: loss (%S+)\n$"
    assert.is_true(tonumber(last) < 0.3 * tonumber(first), text)
    local net = dofile(HOSTS .. "train_step.lua").model
    net:load_state_dict(lm.load(folder .. "/circle.safetensors"))
    assert.same({1, 2}, net(lm.tensor {{0, 0}, {1.5, 1.5}}):argmax(2):tolist())
  end)
end)

describe("scripts/dev/check_symbols #full #unsanitized", function()
  it("finds names that nobody calls, and a version that is not the library's", function()
    run("scripts/dev/check_symbols %s/lib/luminary", build)
    local lib = folder .. "/symbols"
    run("cp -a %s/lib/luminary %s", build, lib)
    local unused = "lm_un" .. "used" -- the check looks for names in specs
    temp.write(folder .. "/extra.c", ("void %s(void) {}\nvoid lum_unused(void) {}"):format(unused))
    temp.write(folder .. "/extra.map", "LUMINARY_PRIVATE { global: lm_*; local: *; };")
    run("gcc -shared -fPIC %s/extra.c -Wl,--version-script=%s/extra.map -Wl,-soname,libluminary.so.0 "
      .. "-o %s/libluminary.so.0", folder, folder, lib)
    local ok, text = temp.run(folder, "scripts/dev/check_symbols " .. lib)
    assert.is_false(ok)
    assert.matches("libluminary.so exports " .. unused .. ", which nothing calls", text, 1, true)
    run("gcc -shared -fPIC %s/extra.c -o %s/libluminary_c.so.1", folder, lib)
    ok, text = temp.run(folder, "scripts/dev/check_symbols " .. lib)
    assert.is_false(ok)
    assert.matches("lum_unused", text, 1, true)
  end)
end)
