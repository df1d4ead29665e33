--- Bounds on time. scripts/test does not judge them, because a busy machine would fail; scripts/bench/check, which
--- runs the specs one after the other on a quiet machine, does.
local time = {}

--- True if this run judges time.
time.judged = os.getenv "LM_TEST_TIMES" == "1"

--- Fails in a run that judges time if `seconds` is not below `bound`. `text` is shown with the failure.
function time.within(seconds, bound, text)
  if time.judged and seconds >= bound then
    error(("took %.3f s; the bound is %g s%s"):format(seconds, bound, text and "\n" .. tostring(text) or ""), 2)
  end
end

return time
