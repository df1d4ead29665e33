--- Holds the scale of one loss, as apex's LossScaler does: a fixed number, or "dynamic": initially 2^16 (clamped to
--- [min, max]), halved at an overflow, doubled after 2000 steps without one.
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local LossScaler = class.define "LossScaler"

local START, FACTOR, WINDOW = 2 ^ 16, 2, 2000

function LossScaler:init(loss_scale, least, most)
  self.dynamic = loss_scale == "dynamic"
  self.least, self.most, self.unskipped = least or 2 ^ -126, most, 0
  self.scale = self.dynamic and math.max(self.least, math.min(most, START)) or loss_scale
end

--- Updates the scale after a backward pass; returns true if the step must be skipped.
function LossScaler:update(overflow)
  if not self.dynamic then return false end
  if overflow then
    self.scale, self.unskipped = math.max(self.least, self.scale / FACTOR), 0
  else
    self.unskipped = self.unskipped + 1
    if self.unskipped == WINDOW then self.scale, self.unskipped = math.min(self.most, self.scale * FACTOR), 0 end
  end
  return overflow
end

function LossScaler:state_dict() return {loss_scale = self.scale, unskipped = self.unskipped} end

function LossScaler:load_state_dict(who, dict)
  local state = options.check(who, dict, {loss_scale = {"scale"}, unskipped = {"natural"}})
  if not state.loss_scale or not state.unskipped then
    options.fail("%s: the state must have loss_scale and unskipped", who)
  end
  self.scale, self.unskipped = state.loss_scale, state.unskipped
end

return LossScaler
