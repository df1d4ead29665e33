--- Lua for the scripts of nccl_ranks that check the order, streams and bytes of collectives.
---   spans(f)            a line with a letter for each op and collective of f(), and by letter the streams and bytes
---   streams_of(a, ...)  the streams of such sets, in order, as text
---   waits()             the calls by which the host has waited
return [[
  -- G: a gather is enqueued, g: its result is waited for; the same of R: reduce_scatter and A: all_reduce; V: the first
  -- message of an exchange is enqueued; m: a product; t and T: attention and its backward
  local letters = {
    all_gather = "G", ["all_gather: wait"] = "g", reduce_scatter = "R", ["reduce_scatter: wait"] = "r",
    all_reduce = "A", ["all_reduce: wait"] = "a", linear = "m", addmm = "m", mm = "m",
    attention = "t", attention_backward = "T", recv = "V", send = "V",
  }
  local function spans(f)
    local prof = lm.profile(f)
    local order, streams, bytes = {}, {}, {}
    for i = 1, prof.recording:count() do
      local name, kind, _, _, _, _, _, _, _, _, _, _, n, _, stream = prof.recording:span(i)
      local letter = letters[name]
      if letter and not (letter == "V" and order[#order] == "V") then order[#order + 1] = letter end
      if letter and kind ~= "wait" then
        assert((kind == "collective") == (letter:find "[mtT]" == nil), name)
        streams[letter] = streams[letter] or {}
        if stream then streams[letter][stream] = true end -- one message of an exchange has its stream
        bytes[letter] = (bytes[letter] or 0) + n
      end
    end
    return table.concat(order), streams, bytes
  end
  local function streams_of(...)
    local list, seen = {}, {}
    for _, set in ipairs { ... } do
      for stream in pairs(set) do
        if not seen[stream] then list[#list + 1] = stream end
        seen[stream] = true
      end
    end
    table.sort(list)
    return table.concat(list, " ")
  end
  local function waits()
    return calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" + calls "cudaEventSynchronize"
  end
]]
