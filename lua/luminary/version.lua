-- The one place that says which version this is; CMakeLists.txt reads it too.
return "0.1.0"
