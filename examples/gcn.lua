-- A graph convolution network (Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks",
-- 2017) that finds the communities of a graph of which a few nodes' are known. The graph is drawn from a stochastic
-- block model: nodes of one community are linked more often than others. A node's features hint at its community, but
-- too faintly to tell by them alone, as the same network without the edges shows.
--
--   luajit examples/gcn.lua
--   luajit examples/gcn.lua --nodes 4000 --inside 0.01 --outside 0.001

local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local USAGE = [[
usage: luajit gcn.lua [options]

  --nodes N         of the graph                                         (800)
  --communities N   that they belong to                                  (4)
  --inside X        chance of an edge between two nodes of one community (0.04)
  --outside X       and of two                                           (0.005)
  --known N         nodes of each community whose label is known         (5)
  --features N      of a node                                            (32)
  --hint X          length of the community's signal; noise is 1         (1)
  --hidden N        width of the network                                 (32)
  --epochs N        steps, each over the whole graph                     (100)
  --lr X            learning rate                                        (0.01)
  --seed N          of everything                                        (1)
  --selftest        whether 85 % are found, and far fewer without edges
]]

local options, _, refuse = require "luminary.cli.script_options"(USAGE)
local nodes, communities = options.nodes, options.communities
if nodes < communities * (options.known + 1) then
  refuse("--nodes: %d are too few for %d communities with %d known each", nodes, communities, options.known)
end
lm.manual_seed(options.seed)

-- ---- the graph

-- Labels [nodes], features [nodes, features] and edges [2, E], each in both directions, as PyTorch Geometric has them.
local function stochastic_blocks()
  local labels = lm.arange(nodes):remainder(communities) + 1
  local same = labels:unsqueeze(1):eq(labels:unsqueeze(2))
  local chance = lm.where(same, options.inside, options.outside)
  local linked = lm.rand(nodes, nodes):lt(chance):triu(1)
  local edges = linked:nonzero():t()
  local hints = F.normalize(lm.randn(communities, options.features), {dim = 2}) * options.hint
  return labels, hints[labels] + lm.randn(nodes, options.features), lm.cat({edges, edges:flip(1)}, 2)
end

-- ---- the network

-- x' = D^-1/2 (A + I) D^-1/2 x W + b, where D are the degrees in A + I.
local GraphConv = nn.Module:extend("GraphConv")

function GraphConv:init(inputs, outputs)
  self.linear = nn.Linear(inputs, outputs, {bias = false})
  self.bias = nn.Parameter(lm.zeros(outputs))
end

-- Takes x [nodes, inputs], edges [2, E], from and to, and weights [E, 1].
function GraphConv:forward(x, edges, weights)
  local messages = self.linear(x)[edges[1]] * weights
  return lm.zeros(#x, #self.bias):index_add(1, edges[2], messages) + self.bias
end

local GCN = nn.Module:extend("GCN")

function GCN:init()
  self.first = GraphConv(options.features, options.hidden)
  self.second = GraphConv(options.hidden, communities)
  self.dropout = nn.Dropout(0.5)
end

function GCN:forward(x, edges, weights)
  local hidden = self.first(self.dropout(x), edges, weights):relu()
  return self.second(self.dropout(hidden), edges, weights)
end

-- Returns the edges with one from each node to itself, and what a message along each counts.
local function normalized(edges)
  local loops = lm.arange(nodes):add(1):expand(2, nodes)
  edges = lm.cat({edges, loops}, 2)
  local degrees = edges[2]:bincount():to("float32")
  return edges, (degrees[edges[1]] * degrees[edges[2]]):rsqrt():unsqueeze(2)
end

-- ---- learning

-- Trains on the known nodes, and returns the share of the others whose community is found.
local function train(labels, features, edges)
  local weights
  edges, weights = normalized(edges)
  local net = GCN()
  local opt = optim.Adam(net:parameters(), {lr = options.lr, weight_decay = 5e-4})
  local known = communities * options.known -- the first nodes, as many of each community
  for epoch = 1, options.epochs do
    local loss = F.cross_entropy(net(features, edges, weights)[{{1, known}}], labels[{{1, known}}])
    opt:zero_grad()
    loss:backward()
    opt:step()
    if epoch % 50 == 0 then print(("epoch %d: loss %.4f"):format(epoch, loss:item())) end
  end
  net:eval()
  local guess = lm.no_grad(function() return net(features, edges, weights):argmax(2) end)
  return guess:eq(labels)[{{known + 1, -1}}]:to("float32"):mean():item()
end

local labels, features, edges = stochastic_blocks()
print(("%d nodes, %d edges, %d labels known"):format(nodes, edges:size(2) / 2, communities * options.known))
local with = train(labels, features, edges)
local without = train(labels, features, edges[{{}, {1, 0}}])
print(("right on the other nodes: %.1f %%, without edges %.1f %%"):format(100 * with, 100 * without))
if options.selftest then os.exit(with >= 0.85 and without < 0.6 and 0 or 1, true) end
