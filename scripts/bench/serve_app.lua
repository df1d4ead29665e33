-- Luminary's side of scripts/bench/serve, in nginx's workers: digits of 28 x 28 bytes are classified by an MLP or by
-- LeNet-5, each answer is {"class":C,"p":P}.
local lm = require "luminary"
local nn = lm.nn
local app = {}

--- Returns the networks by name, whose input is [N, 784].
function app.networks()
  return {
    mlp = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
    cnn = nn.Sequential(nn.Unflatten(2, {1, 28, 28}), nn.Conv2d(1, 6, 5, {padding = 2}), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(),
      nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
  }
end

--- Returns pixels [N, 784] of N texts of 784 bytes.
function app.pixels(bodies) return lm.frombuffer(table.concat(bodies), "uint8"):view(#bodies, 784) end

--- Returns the function of a network that a server computes: pixels to a list of {class, probability}.
function app.classifier(net)
  return function(x)
    local p, class = net(x:float() / 255):softmax(2):max(2)
    return lm.stack({class:float(), p}, 2):totable()
  end
end

local batchers, await = {}, nil

--- Loads the weights of a folder. opts: options of lm.serve.Batcher.
function app.start(folder, opts)
  opts.collate_fn, opts.results = app.pixels, "list"
  await = require("luminary.serve.nginx").await
  lm.set_num_threads(1)
  for name, net in pairs(app.networks()) do
    net:load_state_dict(lm.load(("%s/%s.safetensors"):format(folder, name), {mmap = true}), {assign = true})
    batchers[name] = lm.serve.Batcher(app.classifier(net:eval()), opts)
  end
end

--- Answers a request of a network.
function app.answer(name)
  local ngx = _G.ngx
  ngx.req.read_body()
  local result = await(batchers[name]:submit(ngx.req.get_body_data()), 30)
  local text = ('{"class":%d,"p":%.4f}'):format(result[1], result[2])
  ngx.header.content_length = #text
  ngx.print(text)
end

return app
