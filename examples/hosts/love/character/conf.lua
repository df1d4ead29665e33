function love.conf(t)
  t.identity, t.console = "luminary-character", true
  t.window.title, t.window.width, t.window.height, t.window.vsync = "A character that answers", 800, 400, 1
  t.modules.audio, t.modules.sound, t.modules.physics, t.modules.joystick = false, false, false, false
end
