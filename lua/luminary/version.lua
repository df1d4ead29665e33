-- The version of luminary; CMakeLists.txt reads it too.
return "0.1.0"
