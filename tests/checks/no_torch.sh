#!/usr/bin/env bash
# no_torch.sh PROGRAM TOKENS.h5 CONVERTER CHECKPOINT: runs PROGRAM and CONVERTER and shows that neither they nor the
# libraries they load need LibTorch or MPI; the converter loads MPI only under a launcher, as a plugin.
set -euo pipefail

program=$1 tokens=$2 converter=$3 checkpoint=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
heavy='libtorch|libc10|libcuda|libnccl|libmpi'

# check PROGRAM LIBRARY: LIBRARY, which the program does need, must be in the list; otherwise the list proves nothing.
check() {
    local libraries
    libraries=$(ldd "$1")
    grep -q "$2" <<<"$libraries" || { printf 'no %s in:\n%s\n' "$2" "$libraries"; exit 1; }
    if grep -E "$heavy" <<<"$libraries"; then
        echo "$1 must not need these libraries"
        exit 1
    fi
}
"$program" "$tokens" "$scratch"
check "$program" libhdf5
check "$converter" libzstd

# opened LOG-PREFIX COMMAND...: prints the libraries that the loader opens while the command runs.
opened() {
    local log=$1
    shift
    LD_DEBUG=files LD_DEBUG_OUTPUT="$log" "$@" >/dev/null
    cat "$log".*
}
alone=$(opened "$scratch/alone" "$converter" "$checkpoint" "$scratch/out.pt" --quiet)
grep -q libzstd <<<"$alone" || { echo "LD_DEBUG shows nothing"; exit 1; }
if grep -E "$heavy" <<<"$alone"; then
    echo "$converter must not open these libraries when it runs alone"
    exit 1
fi
# Set PMI_RANK and PMI_SIZE as a launcher with one rank would.
launched=$(PMI_RANK=0 PMI_SIZE=1 opened "$scratch/launched" "$converter" "$checkpoint" "$scratch/out2.pt" --quiet) || true
grep -q libfsdp_mpi <<<"$launched" || { echo "under a launcher $converter does not open libfsdp_mpi.so"; exit 1; }
echo "free of LibTorch and CUDA, and of MPI when alone"
