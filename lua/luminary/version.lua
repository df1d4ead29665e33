-- Returns the version of luminary; CMakeLists.txt reads this file, too.
return "0.1.0"
