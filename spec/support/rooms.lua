-- Prints the specs of what differs from a commit, for scripts/test --changed:
--   luajit spec/support/rooms.lua [COMMIT = HEAD]
-- The first pattern that matches a path of the tree names its specs as spec/run.lua takes them. %1 is what the pattern
-- captures; a name that no spec has is left out. Each row's specs take less than a minute.
local ROOMS = {
  {"^spec/golden/", "op/ops models/models"},
  {"^(.+)_spec%.lua$", "%1"},
  {"^spec/support/manners", "hosts/manners"}, {"^spec/support/host%.c", "hosts/manners"},
  {"^spec/support/cuda", "cuda/fake cuda/launches cuda/process"},
  {"^spec/", "run docs/examples"},
  {"^torch7/", "torch7/spec"},
  {"^src/backend/cuda/.-([%w_]+)%.",
    "cuda/%1 cuda/absent cuda/fake cuda/launches cuda/process cuda/copies cuda/products"},
  {"^kernels/([%w_]+)%.", "op/%1 op/ops cuda/launches"},
  {"onnx", "onnx"},
  {"^src/backend/.-conv", "op/conv op/winograd"}, {"winograd", "op/conv op/winograd"},
  {"^src/backend/.-attention", "op/attention"}, {"^src/backend/.-gemm", "op/gemm op/skinny_gemm tensor/products"},
  {"^src/backend/cpu/linalg", "op/linalg"}, {"^src/backend/cpu/fft", "op/fourier"},
  {"^src/backend/cpu/index", "op/index op/shared_index op/selection"},
  {"^src/backend/cpu/matmul", "op/gemm op/skinny_gemm tensor/products nn/int8"},
  {"^src/backend/.-copy", "op/copies tensor/tensor"},
  {"^src/backend/.-([%w_]+)%.[chin]", "op/%1 backend op/ops op/rows nn/layers"},
  {"^src/op/entries", "codegen op/ops op/rows bind/positions"}, {"^src/codegen", "codegen"},
  {"^src/op/.-([%w_]+)%.", "op/%1 op/ops op/views autograd tensor amp"},
  {"^src/plan/", "prepare"}, {"^src/autograd", "autograd op/ops optim nn/layers"},
  {"^src/tensor", "tensor op/views base/bounds bind/bounds"},
  {"c_interface", "c_interface"}, {"^include/", "c_interface"}, {"^src/exported", "c_interface"},
  {"^src/bind/host_call", "c_interface"},
  {"^src/bind/mp", "mp hosts/manners"}, {"^src/bind/module", "hosts/manners bind/runtime"},
  {"^src/bind/distributed", "distributed/dist distributed/ranks distributed/ddp/ddp"},
  {"^src/bind/.-([%w_]+)%.", "bind/%1 bind/arguments bind/abuse bind/positions bind/runtime tensor"},
  {"^src/base", "base device bind/runtime hosts/manners"}, {"^src/device", "device cuda/memory autograd mp/mp_sync"},
  {"^src/optim", "optim"}, {"^src/data", "data/loaders data/loader_workers data/web"}, {"^src/image", "vision"},
  {"^src/io", "io"}, {"^src/text", "text"}, {"^src/mp", "mp"},
  {"^src/distributed/mpi", "distributed/mpi/mpi"},
  {"^src/distributed/store", "distributed/store distributed/dist"},
  {"^src/distributed/ddp", "distributed/ddp"}, {"^src/distributed/nccl", "cuda/nccl cuda/fake_nccl"},
  {"^src/distributed/", "distributed/dist distributed/ranks distributed/group/collectives"},
  {"^lua/luminary/nn/utils", "nn/utils"}, {"^lua/luminary/nn/parallel", "nn/parallel optim/zero"},
  {"^lua/luminary/nn/", "nn"},
  {"^lua/luminary/models/", "models/networks models/language models/weights models/families"},
  {"^lua/luminary/cli/doctor", "cli/doctor"}, {"^lua/luminary/cli/elastic", "cli/elastic"},
  {"^lua/luminary/cli/.-([%w_]+)%.", "cli/%1 cli/cli cli/prompt cli/read_chunk cli/script_options cli/error_hints"},
  {"^lua/luminary/help/", "help"},
  {"^lua/luminary/checkpoint", "checkpoint/checkpoint checkpoint/training io/checkpoint"},
  {"^lua/luminary/file_formats", "io text checkpoint/hostile"},
  {"^lua/luminary/distributed", "distributed/dist distributed/ranks distributed/ddp/ddp"},
  {"^lua/luminary/func", "autograd/func"}, {"^lua/luminary/linalg", "op/linalg"}, {"^lua/luminary/fft", "op/fourier"},
  {"^lua/luminary/async", "mp/async"}, {"^lua/luminary/serve", "mp/async examples/hosts"},
  {"^lua/luminary/(%w+)/", "%1"}, {"^lua/luminary/([%w_]+)%.", "%1 bind/public_calls base/guest tensor"},
  {"^scripts/dev/([%w_]+)", "scripts/dev/%1"}, {"^scripts/setup", "scripts/build"},
  {"^scripts/test", "scripts/build run"},
  {"^scripts/imagenet", "scripts/imagenet"}, {"^scripts/train", "scripts/train"},
  {"^scripts/scaling", "scripts/scaling"},
  {"^scripts/bench", "scripts/bench_help"}, {"^examples/([%w_]+)", "examples"},
  {"CMakeLists%.txt$", "scripts/build"}, {"^docs/", "docs help/reference"}, {"%.md$", "docs"},
  {"^scripts/", "scripts/train scripts/bench_help docs/examples"},
}

local function lines_of(command)
  local out, pipe = {}, io.popen(command)
  for line in pipe:lines() do out[#out + 1] = line end
  pipe:close()
  return out
end

local function spec_named(name)
  for _, path in ipairs {"spec/" .. name .. "_spec.lua", "spec/" .. name, name .. "_spec.lua", name} do
    local file = (path:find "^spec/" or path:find "^torch7/spec") and io.open(path)
    if file then
      file:close()
      return path
    end
  end
end

-- Returns the specs of one path, a set; nil if no row matches.
local function specs_of(path)
  for _, room in ipairs(ROOMS) do
    local captured = path:match(room[1])
    if captured then
      local specs = {}
      for name in room[2]:gsub("%%1", (captured:gsub("%%", "%%%%"))):gmatch "%S+" do
        local file = spec_named(name)
        if file then specs[file] = true end
      end
      return specs
    end
  end
end

-- Returns the specs of what differs from a commit, a list of paths without those that a folder of the list has.
local function specs_of_changes(commit)
  local seen, list = {}, {}
  for _, path in ipairs(lines_of(("git diff --name-only %s; git ls-files -o --exclude-standard"):format(commit))) do
    for spec in pairs(specs_of(path) or {}) do
      if not seen[spec] then seen[spec], list[#list + 1] = true, spec end
    end
  end
  for i = #list, 1, -1 do
    local folder = list[i]:match "^(.*)/"
    while folder and not seen[folder] do folder = folder:match "^(.*)/" end
    if folder then table.remove(list, i) end
  end
  table.sort(list)
  return list
end

if ... ~= "spec.support.rooms" then print(table.concat(specs_of_changes((...) or "HEAD"), " ")) end
return {specs_of = specs_of}
