#!/bin/sh
# Compiles cudnn_plans.c with the files of the CUDA backend that it is about.
#   spec/support/cudnn_plans.sh BUILD OUT      BUILD: a build folder; OUT: the program
# CUDA_HOME is the toolkit with cuDNN, /usr/local/cuda by default.
set -eu
cd "$(dirname "$0")/../.."
cuda=${CUDA_HOME:-/usr/local/cuda} libraries=src/backend/cuda/libraries built=$(cd "$1" && pwd)
exec gcc -std=gnu11 -Wall -Wextra -Werror -O1 -Isrc -Ikernels "-I$built/src" "-I$cuda/include" \
  spec/support/cudnn_plans.c $libraries/cudnn_attention.c $libraries/cudnn_conv.c $libraries/cudnn_graph.c \
  "$built/lib/luminary/libluminary.so.0" "-L$cuda/lib64" "-L$cuda/lib" -lcudnn \
  "-Wl,-rpath,$built/lib/luminary:$cuda/lib64" -o "$2"
