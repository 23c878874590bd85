#!/usr/bin/env bash
# no_torch.sh PROGRAM TOKENS.h5: PROGRAM runs and neither it nor a library it loads is LibTorch's or MPI's.
set -euo pipefail

program=$1 tokens=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$program" "$tokens" "$scratch"
libraries=$(ldd "$program")
# The list must be one that could show them.
grep -q libhdf5 <<<"$libraries" || { printf 'no libhdf5 in:\n%s\n' "$libraries"; exit 1; }
if grep -E 'libtorch|libc10|libcuda|libnccl|libmpi' <<<"$libraries"; then
    echo "$program must not need these libraries"
    exit 1
fi
echo "free of LibTorch, CUDA and MPI"
