#!/usr/bin/env bash
# Trains with four ranks on two emulated hosts (network namespaces, TCP between them): losses equal those of four ranks on
# one host, for full-shard over all ranks and for hybrid-full-shard with the host as the shard group.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
PATH=$(dirname "$FSDP_MPIEXEC"):$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || skip "no ip: apt-get install -y iproute2"
"$here/netns-mpi" -H 2 -n 1 -- hostname >"$work/hosts.out" 2>&1 || skip "no network namespaces here: $(tail -n 1 "$work/hosts.out")"
[[ $(sort "$work/hosts.out" | tr '\n' ' ') == "node1 node2 " ]] || skip "no two hosts: $(cat "$work/hosts.out")"
export OMP_NUM_THREADS=1
steps=8

show_and_fail() {
    cat "$work/$1.out"
    fail "run $1 $2"
}
# train NAME SHARDING LAUNCHER...: makes the run NAME
train() {
    local name=$1 sharding=$2
    shift 2
    timeout 120 "$@" "$FSDP_BIN/fsdp-finetune" --model mingpt --num-layers 2 --num-heads 2 --embed-size 32 --seq-len 32 \
        --batch-size 2 --max-steps $steps --lr 1e-3 --seed 3 --device cpu --precision float32 --sharding "$sharding" \
        --train-data "$FSDP_SOURCE/data/shakespeare/train.h5" --out-dir "$work/runs" --run-name "$name" \
        >"$work/$name.out" 2>&1 || show_and_fail "$name" "ended with $?"
}
one_host=("$FSDP_MPIEXEC" -n 4)
two_hosts=("$here/netns-mpi" -H 2 -n 2 --)

train full-one full-shard "${one_host[@]}"
train full-two full-shard "${two_hosts[@]}"
train hybrid-two hybrid-full-shard "${two_hosts[@]}"
grep -q '2 nodes' "$work/hybrid-two.out" || show_and_fail hybrid-two "did not see two nodes"
same_losses full-one full-two --relative 2e-5 --steps $steps
same_losses full-one hybrid-two --relative 2e-5 --steps $steps

# Two blocks make three units. Each step gathers every unit in the forward and the backward pass, except the root, which
# stays gathered; reduces each over its shard group; and in the hybrid also over the replicas, one rank per host.
# counts RUN: prints all-gathers, reduce-scatters and the replicas' all-reduces at the end of the run.
counts() {
    "$FSDP_PYTHON" - "$work/runs/$1/metrics.jsonl" <<'PY'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    last = [record["collectives"] for record in map(json.loads, file) if "loss" in record][-1]
print(last["shard"]["all_gathers"], last["shard"]["reduce_scatters"], last["replicate"]["all_reduces"])
PY
}
expect_counts() { # RUN COUNTS
    local got
    got=$(counts "$1")
    echo "$1: $got collectives"
    [[ $got == "$2" ]] || fail "$1 issued $got collectives (all-gathers, reduce-scatters, all-reduces of replicas), expected $2"
}
expect_counts full-two "$((5 * steps)) $((3 * steps)) 0"
expect_counts hybrid-two "$((5 * steps)) $((3 * steps)) $((3 * steps))"
