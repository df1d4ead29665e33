-- The requests of nginx.conf. Decoding and models run on worker threads: while they compute, the process serves others.
local lm = require "luminary"
local models = require "models"
local await = require("luminary.serve.nginx").await
local app = {}

local SECONDS = 10 -- for a request's computation
local folder, batcher, writer, tokenizer

--- Loads the models of a folder, in each of nginx's workers.
function app.start(models_folder)
  folder = models_folder
  lm.set_async {socket_paths = true}
  local net = models.loaded(models.classifier(), folder .. "/classifier.safetensors")
  batcher = lm.serve.Batcher(function(x) return net(x):softmax(2) end, {
    max_batch = 32, max_wait_ms = 2, threads = 1, socket_paths = true,
  })
  tokenizer = lm.text.BertWordPieceTokenizer(folder .. "/vocab.txt")
  writer = models.loaded(models.writer(#tokenizer), folder .. "/writer.safetensors")
end

-- Returns an image file's pixels as the classifier expects them, [1, 3, 32, 32] from -1 to 1. Runs on a worker thread.
local function decoded(bytes)
  local T = lm.vision.transforms
  local image = lm.vision.decode_image(bytes, {mode = "rgb"})
  return (T.Compose {T.Resize {32, 32}, T.ToTensor()})(image):unsqueeze(1) * 2 - 1
end

-- Counts a request in the memory that nginx's workers share, and answers with status 400 if it failed.
local function counted(name, f)
  local counts, begun = ngx.shared.counts, ngx.now()
  local ok, problem = pcall(f)
  ngx.update_time()
  counts:incr(name .. "_requests", 1, 0)
  counts:incr(name .. "_seconds", ngx.now() - begun, 0)
  if ok then return end
  counts:incr(name .. "_errors", 1, 0)
  if not ngx.headers_sent then ngx.status = 400 end
  ngx.say(tostring(problem))
end

--- POST of an image file: the class with the largest probability, from 1, and that.
function app.classify()
  counted("classify", function()
    ngx.req.read_body()
    local bytes = ngx.req.get_body_data() or error("expected an image file in the body", 0)
    local x = await(lm.async(decoded, bytes), SECONDS)
    local p, class = await(batcher:submit(x), SECONDS):max(2)
    ngx.say(("%d %.4f"):format(class:item(), p:item()))
  end)
end

-- Continues a text, and puts each piece into a queue; false at the end. Runs on a worker thread.
local function write(net, words, text, count, pieces)
  local ids = words(text, {add_special_tokens = false}).input_ids
  net:generate(ids, {
    max_new_tokens = count, temperature = 1, tokenizer = words, on_text = function(piece) pieces:put(piece) end,
  })
  pieces:put(false)
end

--- GET with ?text=…: server-sent events, one for each piece of the text that follows.
function app.generate()
  counted("generate", function()
    local pieces, deadline = lm.mp.Queue(), ngx.now() + SECONDS
    local future = lm.async(write, writer, tokenizer, ngx.var.arg_text or "once", 20, pieces)
    ngx.header.content_type = "text/event-stream"
    while true do
      local has_come, piece = pieces:try_get()
      if has_come and not piece then break end
      if has_come then
        ngx.print("data: ", piece, "\n\n")
        ngx.flush()
      elseif future:done() and future:exception() or ngx.now() > deadline then
        break
      else
        ngx.sleep(0.005)
      end
    end
    await(future, SECONDS)
    ngx.print "data: [DONE]\n\n"
  end)
end

--- The counts of all workers, as Prometheus reads them.
function app.metrics()
  ngx.header.content_type = "text/plain; version=0.0.4"
  for _, name in ipairs {"classify", "generate"} do
    for _, what in ipairs {"requests", "errors", "seconds"} do
      local key = name .. "_" .. what
      ngx.say(("luminary_%s_total %g"):format(key, ngx.shared.counts:get(key) or 0))
    end
  end
  ngx.say(("luminary_memory_bytes{worker=\"%d\"} %d"):format(ngx.worker.id(), lm.memory_allocated()))
end

--- Answers "ok" if the classifier does.
function app.health()
  await(batcher:submit(lm.zeros(1, 3, 32, 32)), 1)
  ngx.say "ok"
end

return app
