-- The requests of nginx.conf. Images are decoded and text is written on worker threads; images of all connections that
-- arrive together are classified in one forward.
local lm = require "luminary"
local models = require "models"
local await = require("luminary.serve.nginx").await
local app = {}

local SECONDS, MAX_PIXELS, MAX_TEXT, PIECES = 10, 2 ^ 24, 1000, 20 -- limits of a request
local BUCKETS = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1} -- seconds

local classifier, writer, tokenizer

--- Loads the models of a folder, in each of nginx's workers.
function app.start(folder)
  lm.set_num_threads(1) -- nginx has a worker for each core
  lm.set_async {workers = 2, threads = 1}
  local net = models.loaded(models.classifier(), folder .. "/classifier.safetensors")
  -- A forward of more than a few milliseconds belongs on a worker thread: num_workers = 1.
  classifier = lm.serve.Batcher(function(x) return net(x):softmax(2) end, {max_batch = 32, num_workers = 0})
  tokenizer = lm.text.BertWordPieceTokenizer(folder .. "/vocab.txt")
  writer = models.loaded(models.writer(#tokenizer), folder .. "/writer.safetensors")
end

-- Ends a request: error {status, text} for the client.
local function refuse(status, text) error({status, text}, 0) end

-- Returns the status and the text of an error for the client, who learns nothing of the code; the log has all of it.
local function answer_of(problem)
  if type(problem) == "table" then return unpack(problem) end
  if problem:find("which is the limit", 1, true) then return 503, "busy" end
  if problem:find("timeout: no result", 1, true) then return 504, "the computation took too long" end
  ngx.log(ngx.ERR, problem)
  return 500, "failed"
end

-- Runs a request and counts it in the memory that nginx's workers share.
local function counted(name, f)
  local counts, begun = ngx.shared.counts, ngx.now()
  local ok, problem = pcall(f)
  local status = 200
  if not ok then
    local text
    status, text = answer_of(problem)
    if ngx.headers_sent then
      ngx.print("event: error\ndata: ", text, "\n\n")
    else
      ngx.status, ngx.header.content_type = status, "text/plain"
      if status == 503 then ngx.header["Retry-After"] = 1 end
      ngx.say(text)
    end
  end
  ngx.update_time()
  local seconds = ngx.now() - begun
  counts:incr(('luminary_requests_total{path="%s",status="%d"}'):format(name, status), 1, 0)
  for _, limit in ipairs(BUCKETS) do
    if seconds <= limit then counts:incr(('luminary_seconds_bucket{path="%s",le="%g"}'):format(name, limit), 1, 0) end
  end
  counts:incr(('luminary_seconds_bucket{path="%s",le="+Inf"}'):format(name), 1, 0)
  counts:incr(('luminary_seconds_sum{path="%s"}'):format(name), seconds, 0)
  counts:incr(('luminary_seconds_count{path="%s"}'):format(name), 1, 0)
end

-- Returns an image file's pixels as the classifier expects them, [1, 3, 32, 32] from -1 to 1; nil and the reason for a
-- file that is no image. Runs on a worker thread.
local function decoded(bytes, max_pixels)
  local ok, image = pcall(lm.vision.decode_image, bytes, {mode = "rgb", at_least = {32, 32}, max_pixels = max_pixels})
  if not ok then return nil, (image:gsub("^.-%.lua:%d+: ", "")) end
  local T = lm.vision.transforms
  return (T.Compose {T.Resize {32, 32}, T.ToTensor()})(image):unsqueeze(1) * 2 - 1
end

--- POST of an image file: the class with the largest probability, from 1, and that.
function app.classify()
  counted("classify", function()
    ngx.req.read_body()
    local bytes = ngx.req.get_body_data() or refuse(400, "expected an image file in the body")
    local x, reason = await(lm.async(decoded, bytes, MAX_PIXELS), SECONDS)
    if not x then refuse(400, reason) end
    local p, class = await(classifier:submit(x), SECONDS):max(2)
    ngx.say(("%d %.4f"):format(class:item(), p:item()))
  end)
end

-- Continues a text, and puts each piece into a queue, until `stopped` is set. Runs on a worker thread.
local function write(net, words, text, count, pieces, stopped)
  local ids = words(text, {add_special_tokens = false}).input_ids
  net:generate(ids, {max_new_tokens = count, temperature = 1, tokenizer = words, on_text = function(piece)
    if stopped:is_set() then error "stopped" end
    pieces:put(piece)
  end})
end

--- GET with ?text=…: server-sent events, one for each piece of the text that follows.
function app.generate()
  counted("generate", function()
    local text = ngx.unescape_uri(ngx.var.arg_text or "once")
    if #text == 0 or #text > MAX_TEXT then refuse(400, ("expected text of 1 to %d bytes"):format(MAX_TEXT)) end
    local pieces, stopped, deadline = lm.mp.Queue(), lm.mp.Event(), ngx.now() + SECONDS
    local future = lm.async(write, writer, tokenizer, text, PIECES, pieces, stopped)
    ngx.header.content_type = "text/event-stream"
    ngx.header["X-Accel-Buffering"] = "no" -- another nginx before this one passes each piece on
    repeat
      local is_over = future:done() or ngx.now() > deadline
      local has_come, piece = pieces:try_get()
      while has_come and not stopped:is_set() do
        ngx.print("data: ", piece:gsub("\n", "\ndata: "), "\n\n")
        local flushed, why = ngx.flush(true)
        -- "buffering": nginx keeps the pieces until the end (HTTP/1.0 without lua_http10_buffering off).
        if not flushed and why ~= "buffering" then stopped:set() end -- the client is gone
        has_come, piece = pieces:try_get()
      end
      if not is_over then ngx.sleep(0.005) end
    until is_over or stopped:is_set()
    if stopped:is_set() then return end
    stopped:set()
    await(future, 0)
    ngx.print "data: [DONE]\n\n"
  end)
end

--- The counts of all workers, as Prometheus reads them.
function app.metrics()
  ngx.header.content_type = "text/plain; version=0.0.4"
  local counts = ngx.shared.counts
  local keys = counts:get_keys(0)
  table.sort(keys)
  ngx.say "# TYPE luminary_requests_total counter\n# TYPE luminary_seconds histogram"
  for _, key in ipairs(keys) do ngx.say(("%s %.10g"):format(key, counts:get(key))) end
  ngx.say "# TYPE luminary_memory_bytes gauge"
  ngx.say(('luminary_memory_bytes{worker="%d"} %d'):format(ngx.worker.id(), lm.memory_allocated()))
end

--- Answers "ok" if the classifier does.
function app.health()
  local ok, problem = pcall(function() await(classifier:submit(lm.zeros(1, 3, 32, 32)), 1) end)
  if ok then return ngx.say "ok" end
  ngx.log(ngx.ERR, problem)
  ngx.status = 503
  ngx.say "failed"
end

return app
