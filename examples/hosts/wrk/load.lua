-- A script of wrk: each thread sends search queries that a network has drawn for it.
--   wrk -t2 -c16 -d10s -s load.lua http://127.0.0.1:8080 -- queries.safetensors [COUNT = 2000] [SEED = 1]
-- COUNT: different queries of each thread; it draws them before the load begins, as drawing takes longer than sending.
package.path = (debug.getinfo(1, "S").source:match "^@(.*/)" or "./") .. "?.lua;" .. package.path

-- luacheck: globals wrk setup init request number
local threads = 0

--- Numbers the threads; runs once for each, in wrk's main state.
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

local requests, next_request = {}, 0

--- Draws the queries of a thread, in its own state.
function init(args)
  local lm = require "luminary"
  local queries = require "queries"
  lm.set_num_threads(1)
  local generator = lm.Generator "cpu" -- lm.manual_seed would be for all threads of the process
  generator:manual_seed((tonumber(args[3]) or 1) * 1000 + number)
  local count = tonumber(args[2]) or 2000
  for i, text in ipairs(queries.draw(queries.network(args[1]), count, generator)) do
    local query = text:gsub("[^%w]", function(c) return c == " " and "+" or ("%%%02X"):format(c:byte()) end)
    requests[i] = wrk.format("GET", wrk.path .. "?q=" .. query)
  end
end

--- Returns the thread's next request; after the last one, the first.
function request()
  next_request = next_request % #requests + 1
  return requests[next_request]
end
