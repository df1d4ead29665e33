-- Recorded modules (lm.prepare, models of ONNX files) and the C interface on GPUs, over the fake CUDA runtime.
local needs = require "spec.support.needs"
local scripts = require "spec.support.cuda_scripts"
local temp = require "spec.support.temp"
if os.getenv "LM_SPEC_DEVICE" then return end -- another device changes nothing here

local script = scripts.tests(it, pending, [[
  lm.set_warnings(false)
  local nn = lm.nn
  local function recorded(forward) -- a prepared module with this forward, and its state
    local Net = nn.Module:extend "Net"
    Net.forward = forward
    return lm.prepare(Net():eval())
  end
  local function same(expected, t)
    local got = table.concat(t:cpu():float():reshape(-1):totable(), " ")
    assert(got == expected, got)
  end
  local x = lm.ones({3}, {device = "cuda"})
]])

describe("recordings on a GPU", function()
  script("hold no constants that only a graph computes, and those that a graph reads as long as it", [[
    local scale = {device = "cuda", dtype = "float32"}
    local run, state = recorded(function(_, t) return t * lm.arange(1, 4, scale):mul(2) end)
    local first = lm.cuda.graph(function() return run(x) end, {warmup = 0})
    same("2 4 6", run(x))
    first:replay()
    same("2 4 6", first.results[1])
    assert(state.recordings == 1)

    local net = nn.Linear(3, 3, {bias = false}):eval():cuda()
    net.weight = nn.Parameter(lm.eye(3, {device = "cuda"}))
    local wide = nn.Module:extend "Wide"
    function wide:forward(t) return self.inner(t) * lm.arange(1, 4, scale):mul(2) end
    local outer = wide()
    outer.inner = net
    outer:eval()
    local again, held = lm.prepare(outer)
    local graph = lm.cuda.graph(function() return again(x:view(1, 3)) end)
    assert(held.recordings == 1)
    net.weight = nn.Parameter(lm.eye(3, {device = "cuda"}) * 2) -- outdates the recording
    same("4 8 12", again(x:view(1, 3)))
    collectgarbage()
    collectgarbage()
    local other = {}
    for i = 1, 64 do other[i] = lm.full({3}, 7, {device = "cuda"}) end -- takes memory that was freed
    graph:replay()
    same("2 4 6", graph.results[1])
  ]])

  script("make tensors on the GPU that is current at the call", [[
    local run = recorded(function(_, t) return t + 0, lm.ones({3}, {device = "cuda"}) end)
    local host = lm.ones {3}
    for _ = 1, 2 do
      local _, here = run(host)
      local _, there = lm.cuda.device(1, run, host)
      assert(here.device == "cuda:0" and there.device == "cuda:1", there.device)
    end
  ]], "LM_FAKE_CUDA_DEVICES=2")

  script("tell of a bad index that earlier work had", [[
    local run = recorded(function(_, t) return (t * 2):cpu() end)
    for _ = 1, 2 do same("2 2 2", run(x)) end
    lm.index_select(x, 1, lm.tensor({7}, {device = "cuda", dtype = "int64"}))
    refused("index 7 at position 1 is out of range for 3 entries", run, x)
    same("2 2 2", run(x))
    local step, state = lm.compile(function(t) return t * 2 end, {warmup = 0})
    lm.index_select(x, 1, lm.tensor({7}, {device = "cuda", dtype = "int64"}))
    refused("index 7 at position 1 is out of range for 3 entries", step, x)
    for _ = 1, 2 do same("2 2 2", step(x)) end
    assert(state.replays == 2, state.reason)
  ]])

  script("take the GPU that they compute on, whichever the host program made current", [[
    ffi.cdef "int cudaSetDevice(int);"
    for _ = 1, 2 do
      ffi.C.cudaSetDevice(1)
      same("2 2 2", x + 1)
      ffi.C.cudaSetDevice(1)
      local y = lm.ones({64, 64}, {device = "cuda:0"})
      assert(y:matmul(y):sum():item() == 64 ^ 3)
    end
  ]], "LM_FAKE_CUDA_DEVICES=2")

  it("leave no unused memory of a GPU behind lum_session_collect #unsanitized", function()
    if not temp.exists(scripts.library) then return pending("it needs a build with CUDA") end
    local folder, built = temp.folder(), scripts.library:match "^(.*)/[^/]*$"
    temp.write(folder .. "/collect.c", [[
      #include <luminary.h>
      #include <stdio.h>
      long lm_fake_call_count(const char *name);
      int main(void) {
        lum_session *session = NULL;
        lum_tensor *t = NULL;
        const int64_t size = 1 << 20;
        if (lum_session_new(NULL, &session) || lum_tensor_new(LUM_FLOAT32, 1, &size, "cuda", &t)) {
          fprintf(stderr, "%s\n", lum_message(NULL));
          return 1;
        }
        lum_tensor_free(t);
        if (lm_fake_call_count("cudaFree") > 0 || lum_session_collect(session)) return 1;
        lum_session_free(session);
        return lm_fake_call_count("cudaFree") == 0;
      }]])
    local ok, text = temp.run(folder, ("gcc -std=c11 -Iinclude %s/collect.c -o %s/collect -L%s -Wl,-rpath,%s "
      .. "-lluminary_c -l:fake_cuda.so && LD_PRELOAD=%s %s/collect"):format(folder, folder, built, built,
      scripts.library, folder))
    temp.remove(folder)
    assert(ok, text)
  end)

  script("generate tokens by replays of one step, wherever it is", [[
    lm.manual_seed(3)
    local mask = lm.ones({3, 7}, {dtype = "bool"})
    mask[1][1], mask[1][2], mask[2][1] = false, false, false
    local gpt2 = lm.models.gpt2 {vocab_size = 97, n_positions = 64, n_embd = 32, n_layer = 2, n_head = 4}:eval()
    local mistral = lm.models.llama {model_type = "mistral", sliding_window = 9, vocab_size = 97, hidden_size = 32,
      intermediate_size = 64, num_hidden_layers = 1, num_attention_heads = 4, num_key_value_heads = 2,
      max_position_embeddings = 64}:eval()
    local function gemma(name)
      return lm.models[name] {vocab_size = 97, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2,
        num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, max_position_embeddings = 64,
        sliding_window = 9, query_pre_attn_scalar = 8, sliding_window_pattern = 2}:eval()
    end
    for name, net in require("luminary.base.lists").sorted_pairs {
      gemma2 = gemma "gemma2", gemma3 = gemma "gemma3", gpt2 = gpt2, mistral = mistral,
    } do
      for i, dtype in ipairs {name == "gpt2" and "bfloat16" or "float16", "float32"} do
        local o = {max_new_tokens = 24, attention_mask = i == 2 and mask or nil}
        local ids = lm.randint(1, 98, {3, 7})
        local want = net:cpu():to(dtype):generate(ids, o)
        if o.attention_mask then o.attention_mask = mask:cuda() end
        net:cuda()
        collectgarbage()
        collectgarbage()
        local replays, bytes = calls "cudaGraphLaunch", lm.cuda.memory_allocated()
        local got = net:generate(ids:cuda(), o):cpu()
        replays = calls "cudaGraphLaunch" - replays
        assert(replays == 6, name .. ": " .. replays .. " replays") -- after the prompt and 17 tokens
        collectgarbage()
        collectgarbage()
        assert(lm.cuda.memory_allocated() <= bytes, "the graph is kept: " .. name .. " " .. dtype)
        local equal = want:eq(got):float():mean():item()
        assert(dtype ~= "float32" and equal > 0.7 or equal == 1, name .. " " .. dtype .. ": " .. equal)
      end
    end
  ]])

  script("generate continues from past_key_values that replays have written", [[
    local net = lm.models.llama({vocab_size = 97, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 200}):eval():cuda()
    local past, ids = {}, lm.randint(1, 98, {1, 7}):cuda()
    for i, kept in ipairs {30, 10, 30} do
      local replays = calls "cudaGraphLaunch"
      local got = net:generate(ids, {max_new_tokens = 30, past_key_values = past})
      assert(calls "cudaGraphLaunch" > replays and past.known == got.shape[2] - 1)
      assert(got:equal(net:generate(ids, {max_new_tokens = 30})), "call " .. i)
      ids = lm.cat({got:narrow(2, 1, kept), lm.randint(1, 98, {1, 3}):cuda()}, 2)
    end
  ]])

  script("generate tokens by calls where modules have hooks, and where rates depend on the length", [[
    local sizes = {vocab_size = 97, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1,
      num_attention_heads = 4, max_position_embeddings = 16}
    local net, tokens, ids = lm.models.llama(sizes):eval():cuda(), 0, lm.randint(1, 98, {1, 5}):cuda()
    net.model.norm:register_forward_hook(function() tokens = tokens + 1 end)
    local replays = calls "cudaGraphLaunch"
    sizes.rope_scaling = {rope_type = "dynamic", factor = 4}
    net:generate(ids, {max_new_tokens = 11})
    assert(tokens == 11, tokens)
    lm.models.llama(sizes):eval():cuda():generate(ids, {max_new_tokens = 30})
    sizes.rope_scaling, sizes.max_position_embeddings = nil, 64
    sizes.num_experts, sizes.num_experts_per_tok = 4, 2
    local mixture = lm.models.olmoe(sizes):eval()
    local want = mixture:generate(ids:cpu(), {max_new_tokens = 30})
    assert(mixture:cuda():generate(ids, {max_new_tokens = 30}):cpu():equal(want))
    assert(calls "cudaGraphLaunch" == replays)
  ]])

  if needs.onnx() then return end
  script("do not keep a weight of 4 bits that only a graph unpacks", [[
    local path = os.tmpname()
    local function info(name) return {name = name, type = {tensor_type = {elem_type = 1}}} end
    local function int(name, i) return {name = name, type = 2, i = i} end
    lm.core.onnx_write(path, {ir_version = 8, opset_import = {{version = 17}, {domain = "com.microsoft", version = 1}},
      graph = {
        name = "bits", input = {info "x"}, output = {info "y"},
        initializer = {
          {name = "w", data_type = 2, dims = {2, 1, 8}, raw_data = lm.full({16}, 0x99, {dtype = "uint8"})},
          {name = "s", data_type = 1, dims = {2}, raw_data = lm.ones {2}},
        },
        node = {{
          op_type = "MatMulNBits", domain = "com.microsoft", input = {"x", "w", "s"}, output = {"y"},
          attribute = {int("K", 16), int("N", 2), int("bits", 4), int("block_size", 16)},
        }},
      },
    })
    local net = lm.onnx.load(path, {device = "cuda"})
    os.remove(path)
    local rows = lm.ones({1, 16}, {device = "cuda"})
    local function call() return lm.no_grad(function() return net(rows) end) end
    local graph = lm.cuda.graph(call, {warmup = 0})
    same("16 16", call())
    graph:replay()
    same("16 16", graph.results[1])
  ]])
end)
