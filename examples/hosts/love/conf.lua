function love.conf(t)
  t.identity, t.console = "luminary-cartpole", true
  t.window.title, t.window.width, t.window.height, t.window.vsync = "CartPole", 800, 400, 1
  t.modules.audio, t.modules.sound, t.modules.physics, t.modules.joystick = false, false, false, false
end
