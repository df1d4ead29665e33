-- Hogwild (Niu, Recht, Ré, Wright, 2011), PyTorch's mnist_hogwild: several processes train one model, whose parameters
-- lie in memory that all of them see. Each goes over the whole training set in an order of its own and steps without
-- asking the others; now and then a step undoes a little of another's, and training bears it.
--
--   luajit scripts/hogwild.lua
--   luajit scripts/hogwild.lua --processes 2 --epochs 1 --model mlp --method thread
--
-- train_ddp.lua is the other way: processes with a model each, which agree on every step.

local lm = require "luminary"
local F, optim, data = lm.nn.functional, lm.optim, lm.data

local USAGE = [[
usage: luajit hogwild.lua [options]

  --processes N       that train at the same time                   (4)
  --method NAME       process or thread                             (process)
  --model NAME        lenet, mlp or resnet18                        (lenet)
  --epochs N          passes of each process over the training set  (5)
  --max-steps N       each process stops after this many steps      (no limit)
  --batch-size N      samples a step of one process                 (64)
  --lr X              learning rate                                 (0.01)
  --momentum X        momentum of SGD, of each process's own steps  (0.5)
  --seed N            of the weights; plus its number, of each process's order  (1)
  --threads N         CPU threads of a process                      ($OMP_NUM_THREADS, else all cores, shared)
  --log-interval N    a process prints its loss every N steps       (100)
  --data ROOT         folder of Fashion-MNIST's IDX files           ($LUMINARY_DATA, /usr/share/datasets)
  --save FILE         write the trained model's state_dict
  --help              print this
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE)
local models = files.models()

if options.method ~= "process" and options.method ~= "thread" then
  refuse("--method: '%s' is neither process nor thread", options.method)
end

if options.save then files.try("save", options.save) end

lm.manual_seed(options.seed)
local model = models[options.model]():share_memory()
local optimizer = optim.SGD(model:parameters(), {lr = options.lr, momentum = options.momentum})
local train_set = data.FashionMNIST {root = options.data, train = true}
local loader = data.DataLoader(train_set, {batch_size = options["batch-size"], shuffle = true})
local record = lm.zeros({options.processes, 3}, {dtype = "float64"}):share_memory_() -- began, ended, samples: of each

-- Runs in each process, with the same model and record, and with copies of all else: each process has its own gradients
-- and momentum.
local function train(i)
  io.stdout:setvbuf "line"
  if options.threads then lm.set_num_threads(options.threads) end
  lm.manual_seed(options.seed + i)
  local steps, samples, began = 0, 0, lm.time()
  local last = math.min(options.epochs * loader:len(), options["max-steps"])
  for epoch = 1, options.epochs do
    for x, y in loader:epoch(epoch) do
      local loss = F.cross_entropy(model(x), y)
      optimizer:zero_grad()
      loss:backward()
      optimizer:step()
      steps, samples = steps + 1, samples + y:size(1)
      if steps % options["log-interval"] == 0 or steps == last then
        print(("process %d  epoch %d  step %d/%d  loss %.4f"):format(i, epoch, steps, last, loss:item()))
      end
      if steps == last then break end
    end
    if steps == last then break end
  end
  record[i + 1] = lm.tensor({began, lm.time(), samples}, {dtype = "float64"})
end

lm.mp.spawn(train, {nprocs = options.processes, method = options.method})

local samples, seconds = record[{{}, 3}]:sum():item(), (record[{{}, 2}]:max() - record[{{}, 1}]:min()):item()
print(("%d samples in %.2f s: %.0f samples/s by %d %s%s"):format(samples, seconds, samples / seconds,
  options.processes, options.method, options.processes == 1 and "" or options.method == "thread" and "s" or "es"))

-- The model here has seen every step.
local test_loader = data.DataLoader(data.FashionMNIST {root = options.data, train = false}, {batch_size = 1000})
local accuracy = lm.metrics.evaluate(model, test_loader, lm.metrics.Accuracy("multiclass", {num_classes = 10}))
print(("test accuracy %.4f"):format(accuracy:item()))
if options.save then lm.save(options.save, model:state_dict()) end
