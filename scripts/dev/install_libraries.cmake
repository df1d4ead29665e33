# Copies the shared libraries that the installed modules need into their folder, with their licenses where a package of
# Debian's has these. Runs after the modules are installed.
set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(GLOB modules "${root}/${folder}/core.so" "${root}/${folder}/luminary_*.so")
file(GLOB library "${root}/${folder}/libluminary.so.*")
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${library} MODULES ${modules} RESOLVED_DEPENDENCIES_VAR found
  UNRESOLVED_DEPENDENCIES_VAR absent PRE_EXCLUDE_REGEXES "^ld-" "^lib(c|m|mvec|pthread|dl|rt|resolv)\\.so"
  "^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|luminary)\\.")
if(absent)
  message(FATAL_ERROR "these libraries are not found: ${absent}")
endif()
foreach(library ${found})
  get_filename_component(name ${library} NAME)
  get_filename_component(real ${library} REALPATH)
  file(COPY_FILE ${real} ${root}/${folder}/${name})
  string(REGEX MATCH "[^/]+/[^/]+$" file ${real}) # /lib may be a link to /usr/lib
  execute_process(COMMAND dpkg-query -S "*/${file}" OUTPUT_VARIABLE package ERROR_QUIET)
  string(REGEX MATCH "^[^:]+" package "${package}")
  if(package AND EXISTS /usr/share/doc/${package}/copyright)
    file(MAKE_DIRECTORY ${root}/share/doc/luminary/licenses)
    file(COPY_FILE /usr/share/doc/${package}/copyright ${root}/share/doc/luminary/licenses/${package})
  endif()
endforeach()
