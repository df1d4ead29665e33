-- A network that separates names made by a program (as malware makes them, to find its master) from those of people.
-- Run by luajit with `--make FILE`, it learns from names that it makes itself and writes its weights.
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional
local names = {}

local LENGTH = 32 -- bytes of a label that are read

local Names = nn.Module:extend "Names"

function Names:init()
  self.embedding = nn.Embedding(256, 16)
  self.pairs = nn.Conv1d(16, 32, 3, {padding = 1})
  self.groups = nn.Conv1d(32, 32, 3, {padding = 1})
  self.score = nn.Linear(32, 1)
end

--- Returns the log odds that each label was made by a program, [N], for bytes [N, LENGTH].
function Names:forward(bytes)
  local y = self.embedding(bytes:long() + 1):transpose(2, 3)
  y = self.groups(self.pairs(y):relu()):relu()
  return self.score((y:mean(3))):squeeze(2)
end

--- Returns a network with the weights of a file, mapped, so that several kresd share them; untrained without a file.
function names.network(path)
  local net = Names()
  if path then net:load_state_dict(lm.load(path, {mmap = true}), {assign = true}) end
  return net:eval()
end

--- Returns the bytes of labels, uint8 [N, LENGTH]; zeros fill the rest of a row.
function names.encode(labels)
  local rows = {}
  for i, label in ipairs(labels) do rows[i] = label:sub(1, LENGTH) .. ("\0"):rep(LENGTH - #label) end
  return lm.frombuffer(table.concat(rows), {dtype = "uint8"}):view(#labels, LENGTH)
end

--- Returns the label of a domain name that is scored, the longest one below the top; nil for a name without one of at
--- least 7 letters, and for addresses and names of services.
function names.label(name)
  local longest
  if name:find "%.arpa%.?$" then return end
  for label in name:lower():gsub("%.$", ""):gmatch "([^.]+)%." do
    if not longest or #label > #longest then longest = label end
  end
  if longest and #longest >= 7 and not longest:find "^_" and not longest:find "^xn%-%-" then return longest end
end

-- ---- names to learn from

local WORDS, FIRST, SECOND, LAST = {}, {}, {}, {"", "", "", "n", "r", "s", "t", "l", "x", "m", "ng", "ck", "rt", "st"}
for word in ([[the and for you not are with that this from have was one all new home page free time news about search
  other which they our video web online mail service product health book shop music travel world city house game photo
  blog store group school data work state press radio learn open source green blue red black white light sun moon star
  river mountain forest garden kitchen water fire earth air power energy solar wind doctor dental law bank money credit
  loan insurance market trade stock invest capital design studio art craft paper print film movie theater sport ball
  team club league run bike car auto truck parts repair build construct tool machine engine system soft hard ware code
  program script cloud server host net link path gate way bridge port stream flow fast quick easy smart bright clever
  simple super mega micro mini max best top first prime royal grand hotel tour beach island land farm food fresh bake
  bread coffee tea wine beer pizza restaurant fashion style beauty hair skin care baby kids family friend love happy
  life live day night spring summer winter north south east west america europe london paris berlin tokyo united global
  international national local project foundation institute university college academy research science tech digital
  mobile phone app chat social media daily weekly times post journal review guide wiki forum share download upload
  cdn static images assets update account login secure]]):gmatch "%a+" do
  WORDS[#WORDS + 1] = word
end
for sound in ([[b br c ch cl d dr f fl g gl gr h j k kl l m n p pl pr qu r s sh sk sl sp st t th tr v w y
  z]]):gmatch "%a+" do
  FIRST[#FIRST + 1] = sound
end
for sound in ("a e i o u a e i o ai ea ee ia io oo ou y"):gmatch "%a+" do SECOND[#SECOND + 1] = sound end

-- Returns a random integer from 1 to n.
local function random(n) return lm.randint(1, n + 1, {1}):item() end

local function one_of(list) return list[random(#list)] end

local function joined(make, least, most, between)
  local parts = {}
  for i = 1, least + random(most - least + 1) - 1 do parts[i] = make() end
  return table.concat(parts, between)
end

local function syllable() return one_of(FIRST) .. one_of(SECOND) .. one_of(LAST) end

-- Returns a label as people make them: words, names that can be spoken, both, sometimes with a number.
local function by_people()
  local kind = random(4)
  local label = kind == 1 and joined(syllable, 2, 4) or kind == 2 and one_of(WORDS) .. syllable() .. syllable()
    or joined(function() return one_of(WORDS) end, 2, 3, one_of {"", "", "-"})
  return random(8) == 1 and label .. random(99) or label
end

-- Returns a label as programs make them, from one of several alphabets.
local function by_program()
  local alphabet = one_of {
    "abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz0123456789", "0123456789abcdef", "bcdfghjklmnpqrstvwxyz",
  }
  return joined(function()
    local i = random(#alphabet)
    return alphabet:sub(i, i)
  end, 9, 24)
end

--- Returns n labels, every second one made as programs do, and the right answers, [n].
function names.sample(n)
  local labels, answers = {}, {}
  for i = 1, n do
    labels[i] = i % 2 == 0 and by_program() or by_people()
    answers[i] = i % 2 == 0 and 1 or 0
  end
  return labels, lm.tensor(answers)
end

--- Returns a trained network, and the share of 1,000 new labels that it scores right.
function names.trained(steps)
  lm.manual_seed(1)
  local net = Names()
  local opt = lm.optim.Adam(net:parameters(), {lr = 3e-3})
  local labels, answers = names.sample(4096)
  local x = names.encode(labels)
  for _ = 1, steps do
    local rows = lm.randint(1, #labels + 1, {64})
    local loss = F.binary_cross_entropy_with_logits(net(x:index_select(1, rows)), answers:index_select(1, rows))
    opt:zero_grad()
    loss:backward()
    opt:step()
  end
  net:eval()
  labels, answers = names.sample(1000)
  local scores = lm.no_grad(function() return net(names.encode(labels)) end)
  return net, scores:gt(0):float():eq(answers):float():mean():item()
end

if arg and arg[1] == "--make" then
  local net, right = names.trained(tonumber(arg[3]) or 400)
  lm.save(arg[2], net:state_dict())
  print(("%.1f %% of new names right"):format(100 * right))
end

return names
