# Defines luminary::luminary, the C interface. This file is in LIB/cmake/luminary, and LIB is lib or lib/MACHINE.
get_filename_component(luminary_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
foreach(luminary_prefix ${luminary_lib}/.. ${luminary_lib}/../..)
  if(EXISTS ${luminary_prefix}/include/luminary.h AND NOT TARGET luminary::luminary)
    get_filename_component(luminary_prefix ${luminary_prefix} ABSOLUTE)
    add_library(luminary::luminary SHARED IMPORTED)
    set_target_properties(luminary::luminary PROPERTIES IMPORTED_LOCATION ${luminary_lib}/libluminary_c.so.1
      IMPORTED_SONAME libluminary_c.so.1 INTERFACE_INCLUDE_DIRECTORIES ${luminary_prefix}/include)
  endif()
endforeach()
if(NOT TARGET luminary::luminary)
  set(luminary_FOUND FALSE)
  set(luminary_NOT_FOUND_MESSAGE "include/luminary.h is not beside ${luminary_lib}")
endif()
