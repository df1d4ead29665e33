rockspec_format = "1.1"
package = "luminary-torch7"
version = "scm-1"
source = { url = "." }
description = {
  summary = "Torch7's names over Luminary: torch, nn, optim, paths and files",
  detailed = [[
`require "luminary.torch7"` runs scripts that were written for Torch7 on Luminary's tensors, and adds Torch7's layers
and optimizers to Luminary's nn and optim.]],
  license = "MIT",
}
dependencies = { "lua ~> 5.1", "luminary" }
build = {
  type = "command", -- which also installs the pages of help; from the root of the repository
  build_command = "true",
  install_command = "mkdir -p '$(LUADIR)' && cp -R torch7/lua/. '$(LUADIR)'",
}
