-- Sentences of a small grammar, the text that char_lstm.lua, gpt.lua and others learn where none is given.
--
--   luajit examples/sentences.lua 20000 > corpus.txt
--
-- Verbs agree with their subject across whatever stands between them ("the dogs that chase a cat sleep."), which takes
-- memory to get right. As every choice is known, so is the entropy of the text: no model can be better than that.
local sentences = {}

local words = {
  the = {{"the", "a", "this", "every"}, {"the", "some", "these", "many"}},
  adjective = {"small", "old", "happy", "green", "clever", "quiet"},
  noun = {{"dog", "cat", "girl", "farmer", "bird", "robot"}, {"dogs", "cats", "girls", "farmers", "birds", "robots"}},
  moves = {{"sleeps", "runs", "sings", "waits"}, {"sleep", "run", "sing", "wait"}},
  acts = {{"sees", "chases", "likes", "hears"}, {"see", "chase", "like", "hear"}},
  thinks = {{"thinks", "says", "knows"}, {"think", "say", "know"}},
}

--- Its words, those that have a number as {singular, plural}.
sentences.words = words

--- sentences.make(count [, seed = 1]): Returns sentences in a string, a space between two, and what they hold in nats
--- for each character. The same on every machine.
function sentences.make(count, seed)
  local state, nats, text = seed or 1, 0, {}

  local function number_to(n) -- Park and Miller's generator, 1988
    state = state * 16807 % 2147483647
    return state % n + 1
  end
  local function draw(n)
    nats = nats + math.log(n)
    return number_to(n)
  end
  local function in_a_third()
    local yes = number_to(3) == 1
    nats = nats + math.log(yes and 3 or 3 / 2)
    return yes
  end
  local function say(list) text[#text + 1] = list[draw(#list)] end

  local function noun_phrase(number, may_nest)
    say(words.the[number])
    if in_a_third() then say(words.adjective) end
    say(words.noun[number])
    if may_nest and in_a_third() then
      text[#text + 1] = "that"
      say(words.acts[number])
      noun_phrase(draw(2), false)
    end
  end

  local function clause(may_nest)
    local number = draw(2)
    noun_phrase(number, true)
    local kind = draw(may_nest and 3 or 2)
    if kind == 1 then
      say(words.moves[number])
    elseif kind == 2 then
      say(words.acts[number])
      noun_phrase(draw(2), false)
    else
      say(words.thinks[number])
      text[#text + 1] = "that"
      clause(false)
    end
  end

  for _ = 1, count do
    clause(true)
    text[#text] = text[#text] .. "."
  end
  local whole = table.concat(text, " ")
  return whole, nats / #whole
end

--- sentences.text(path, count, refuse): Reads a file, or without one returns make(count); refuse(words, …)
--- ends a program whose --text cannot be read.
function sentences.text(path, count, refuse)
  if not path then return sentences.make(count) end
  local file, problem = io.open(path, "rb")
  if not file then refuse("--text: %s", problem) end
  local text = file:read "*a"
  file:close()
  return text or refuse("--text: '%s' is a folder", path)
end

if arg and arg[0] and arg[0]:find "sentences%.lua$" then io.write((sentences.make(tonumber(arg[1]) or 20))) end

return sentences
