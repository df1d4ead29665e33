--- The texts of error messages, in the forms of src/base/message.h: specs compare with these and not with sentences.
---
---   local form = dofile "spec/support/message.lua"
---   assert.matches(form.must_be("linspace", "steps", "at least 0", -1), why, 1, true)
---   assert.error_matches(f, form.pattern(form.shape("linear", "x", "[*, 3]", "[2]")))
local message = {}

local function text(value)
  if type(value) ~= "number" then return tostring(value) end
  return ("%.14g"):format(value)
end

--- Returns a text as a Lua pattern that matches just it.
function message.pattern(plain) return (plain:gsub("%p", "%%%0")) end

function message.must_be(op, name, bound, got)
  return ("%s: %s must be %s, got %s"):format(op, name, bound, text(got))
end

function message.divisible(op, name, value, divisor_name, divisor)
  return ("%s: %s (%d) must be divisible by %s (%d)"):format(op, name, value, divisor_name, divisor)
end

function message.shape(op, name, expected, got)
  return ("%s: expected %s to have shape %s, got %s"):format(op, name, expected, got)
end

function message.same_shape(op, a, b, shape_a, shape_b)
  return ("%s: shapes of %s and %s must match, got %s and %s"):format(op, a, b, shape_a, shape_b)
end

function message.broadcast(op, name, shape, target)
  return ("%s: %s of shape %s does not broadcast to %s"):format(op, name, shape, target)
end

function message.too_many(op, limit, thing, got)
  if limit == 0 then return ("%s: takes no %ss, got %d"):format(op, thing, got) end
  return ("%s: takes at most %d %s%s, got %d"):format(op, limit, thing, limit == 1 and "" or "s", got)
end

function message.overlap(op, name, shape)
  return (
    "%s: cannot write in place to %s of shape %s, whose elements share memory; :clone() it first"):format(op, name,
    shape)
end

function message.file(verb, path, reason) return ("cannot %s '%s': %s"):format(verb, path, reason) end

function message.index(op, index, dim, size)
  return ("%s: index %d is out of range for dimension %d of size %d (indices start at 1)"):format(op, index, dim, size)
end

function message.dtypes(op, a, dtype_a, b, dtype_b)
  return ("%s: dtype mismatch: %s is %s, %s is %s; convert one with :to()"):format(op, a, dtype_a, b, dtype_b)
end

function message.devices(op, a, device_a, b, device_b)
  return ("%s: device mismatch: %s is on %s, %s is on %s; move one with :to()"):format(op, a, device_a, b, device_b)
end

function message.missing(op, where) return ("%s: not implemented for %s"):format(op, where) end

function message.freed(op)
  return ("%s: saved tensors were freed by an earlier backward(); pass {retain_graph = true} to the first"):format(op)
end

--- Returns the message of a file that fails; `verb` is "open", "read", "write".
function message.file(verb, path, reason) return ("cannot %s '%s': %s"):format(verb, path, reason) end

--- Returns the message of a malformed file; `at`: the byte, nil for none.
function message.malformed(path, part, at, reason)
  return ("'%s': malformed %s%s: %s"):format(path, part, at and (" at byte %d"):format(at) or "", reason)
end

function message.truncated(path, needed, at, bytes)
  return ("'%s': truncated: needs %d bytes at byte %d, the file has %d"):format(path, needed, at, bytes)
end

return message
