#!/usr/bin/env bash
# Runs the job scripts of scripts/gpu-check with a stand-in; with FSDP_ALL=1 also scripts/gpu-check itself, from the thin
# tarball, which has no LibTorch, with a python3 that has PyTorch (tests/install packs the same tarball).
#   FSDP_BUILD   the build folder
set -euo pipefail
source "$(dirname "$0")/common.sh"

unset "${!SLURM_@}" "${!PBS_@}" STAGES OUT_DIR DEVICE ARGS
cd "$work"

echo "-- job scripts, with a stand-in for the check"
mkdir -p home/scripts bin
ln -s "$FSDP_SOURCE/scripts/jobs" home/scripts/jobs
printf '#!/bin/sh\necho "programs $FSDP_BIN options: $*"\nexit "${END_WITH:-0}"\n' >home/scripts/gpu-check
printf '#!/bin/sh\n' >bin/fsdp-finetune
chmod +x home/scripts/gpu-check bin/fsdp-finetune
echo node1 >nodefile
# slurm and pbs: ARGUMENTS of the script, as one word, VARIABLE=VALUE...: run a job script with a stand-in launcher
slurm() {
    env FSDP_HOME="$work/home" FSDP_BIN="$work/bin" SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$work" "${@:2}" \
        bash "$FSDP_SOURCE/slurm/gpu_check.sh" $1 2>&1
}
pbs() {
    env FSDP_HOME="$work/home" FSDP_BIN="$work/bin" PBS_JOBID=7.server PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" \
        "${@:2}" bash "$FSDP_SOURCE/pbs/gpu_check.pbs" $1 2>&1
}
expect() { # CODE WORDS COMMAND...: COMMAND ends with CODE and prints WORDS
    local code=$1 words=$2 got=0 output
    shift 2
    output=$("$@") || got=$?
    [[ $got == "$code" && $output == *"$words"* ]] || fail "'$*' gave $got, expected $code and: $words; it said: $output"
}
for scheduler in slurm pbs; do
    expect 0 "programs $work/bin options: --out runs/gpu-check" $scheduler ""
    expect 0 "options: truth speed --out there --device cpu" $scheduler "" "STAGES=truth speed" OUT_DIR=there DEVICE=cpu
    expect 3 "gpu-check ended with code 3" $scheduler "" END_WITH=3
done
expect 0 "options: --device cuda --out x" slurm "--device cuda --out x" DEVICE=cpu
expect 0 "options: --out runs/gpu-check --json a file" pbs "" "ARGS=--json 'a file'"
expect 2 "sbatch" slurm "" SLURM_JOB_ID=
expect 2 "qsub" pbs "" PBS_JOBID=

[[ -n ${FSDP_ALL:-} ]] || exit 0
echo "-- the thin tarball"
command -v patchelf >/dev/null || skip "no patchelf: apt-get install -y patchelf"
"$FSDP_PYTHON" -c 'import torch.distributed.fsdp' 2>/dev/null || skip "no complete PyTorch: scripts/setup --full"
FSDP_BUILD_DIR=$FSDP_BUILD "$FSDP_SOURCE/scripts/dist" --thin --no-build --quick --out "$work"
size_mib=$(($(stat -c %s "$work"/fsdp-*-thin.tar.*[tz]) >> 20))
((size_mib < 64)) || fail "the tarball has $size_mib MiB"
tar -xf "$work"/fsdp-*-thin.tar.*[tz]
cd "$work"/fsdp-*-thin/
if find . -regex '.*/lib\(torch\|c10\|cudart\|cublas\|cudnn\|nccl\).*' | grep .; then fail "these are PyTorch's"; fi
for file in lib/torch-version scripts/gpu-check slurm/gpu_check.sh pbs/gpu_check.pbs docs/gpu-check.md bin/mpiexec; do
    [[ -e $file || ($file == bin/mpiexec && ! -e lib/libmpi.so.12) ]] || fail "the tarball lacks $file"
done
bare=(env -i PATH=/usr/bin:/bin TMPDIR="$work" FSDP_PYTHON="$FSDP_PYTHON" FSDP_CPU_FLOPS="$FSDP_CPU_FLOPS")
for program in bin/fsdp-* libexec/*; do # the tarball has every library that PyTorch lacks
    if "${bare[@]}" ldd "$program" | grep 'not found' | grep -vE 'lib(torch|c10|gomp)'; then fail "$program lacks these"; fi
done
# A few checks show that the programs work, with a torch of another patch level; tests/cli/gpu_check_test.py has all.
sed -i 's/\.[0-9]*$/.99/' lib/torch-version
code=0
"${bare[@]}" scripts/gpu-check contact ranks --device cpu --out "$work/out" --only "minGPT float32" "two ranks, full-shard" | tee truth.out || code=$?
((code == 0)) || fail "gpu-check from the tarball ended with $code"
grep -q '^PASS  two ranks, full-shard ' truth.out || grep -q '^SKIP  two ranks, full-shard .*mpiexec' truth.out || fail "no two ranks"

echo 1.2.3 >lib/torch-version
expect 1 "built with LibTorch 1.2.3" "${bare[@]}" bash -c 'scripts/gpu-check truth --device cpu 2>&1'
echo "$size_mib MiB, as expected"
