rockspec_format = "1.1"
package = "luminary"
version = "scm-1"
source = { url = "." }
description = {
  summary = "Deep learning for LuaJIT: tensors, autograd, layers, optimizers, data loading",
  detailed = [[
Luminary is for LuaJIT scripts what PyTorch is for Python: tensors, autograd, layers, optimizers,
checkpoints and data loading, in a C core on oneDNN.]],
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua ~> 5.1" }
build = {
  -- In build/, where scripts/setup builds too: what is compiled there is not compiled again.
  type = "command",
  build_command = "cmake -S . -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build -j `nproc`",
  install_command = "cmake --install build --prefix '$(PREFIX)' && mkdir -p '$(LUADIR)' '$(LIBDIR)' && "
    .. "rm -rf '$(PREFIX)'/lib/libluminary_c.so* '$(PREFIX)'/lib/pkgconfig '$(PREFIX)'/lib/cmake && " -- a rock has no links
    .. "mv '$(PREFIX)'/share/lua/5.1/* '$(LUADIR)' && mv '$(PREFIX)'/lib/lua/5.1/* '$(LIBDIR)' && "
    .. "rmdir -p --ignore-fail-on-non-empty '$(PREFIX)/share/lua/5.1' '$(PREFIX)/lib/lua/5.1'",
  install = { bin = { luminary = "bin/luminary" } },
}
-- bin/luminary runs under luajit by its first line and finds its own tree.
deploy = { wrap_bin_scripts = false }
