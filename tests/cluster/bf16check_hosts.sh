#!/usr/bin/env bash
# fsdp-bf16check on emulated hosts (network namespaces, TCP between them): distinguishes links inside and between nodes,
# and measures the speed of a link of known speed.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
PATH=$(dirname "$FSDP_MPIEXEC"):$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || skip "no ip: apt-get install -y iproute2"
"$here/netns-mpi" -H 2 -n 1 -- hostname >"$work/hosts.out" 2>&1 || skip "no network namespaces here: $(tail -n 1 "$work/hosts.out")"
[[ $(sort "$work/hosts.out" | tr '\n' ' ') == "node1 node2 " ]] || skip "no two hosts: $(cat "$work/hosts.out")"
export OMP_NUM_THREADS=1
allowed=3
if grep -qw avx512_bf16 /proc/cpuinfo; then allowed=0; fi

# check NAME ARGUMENTS of netns-mpi... -- ARGUMENTS of the program: writes the report NAME.json
check() {
    local name=$1 code=0
    local -a launch=()
    shift
    while [[ $1 != -- ]]; do launch+=("$1"); shift; done
    timeout 120 "$here/netns-mpi" "${launch[@]}" -- "$FSDP_BIN/fsdp-bf16check" --device cpu --quick --json "${@:2}" \
        >"$work/$name.json" 2>"$work/$name.err" || code=$?
    ((code == allowed)) || { cat "$work/$name.json" "$work/$name.err"; fail "run $name ended with $code"; }
}
# holds NAME EXPRESSION: checks a Python expression over the report r
holds() {
    "$FSDP_PYTHON" -c 'import json, sys; r = json.load(open(sys.argv[1], encoding="utf-8")); sys.exit(0 if eval(sys.argv[2]) else 1)' \
        "$work/$1.json" "$2" || { cat "$work/$1.json"; fail "run $1: not so: $2"; }
}

check two -H 2 -n 2 -- --size-mb 2
holds two 'r["nodes"] == 2 and r["world_size"] == 4'
holds two '[x["host"] for x in r["ranks"]] == ["node1", "node1", "node2", "node2"]'
holds two 'r["all_reduce"]["exact"] and r["all_reduce"]["sums_in"] == "float32" and r["all_reduce"]["ranks"] == 4'
holds two '[(n["host"], n["ranks"], n["transport"]) for n in r["inside_nodes"]] == [("node1", 2, "shared memory"), ("node2", 2, "shared memory")]'
holds two 'all(n["bus_gb_per_s"] > 0 for n in r["inside_nodes"])'
holds two 'r["between_nodes"]["nodes"] == 2 and r["between_nodes"]["bus_gb_per_s"] > 0'
holds two '"shared memory" not in r["between_nodes"]["transport"] and r["between_nodes"]["transport"]'
"$FSDP_PYTHON" -c 'import json,sys; r=json.load(open(sys.argv[1])); print("inside", [n["bus_gb_per_s"] for n in r["inside_nodes"]], "between", r["between_nodes"]["bus_gb_per_s"], "GB/s")' "$work/two.json"

# 100 Mbit/s are 0.0125 GB/s, the expected bus bandwidth of an all-reduce; a busy machine makes it lower. The limiter's
# token bucket lets bursts of 512 KB, half a message, through at once: at most twice the rate, and somewhat more if the
# bucket fills while the machine is busy. Without the limit the link is ten times as fast.
check slow -H 3 -n 1 -r 100mbit -- --size-mb 1
holds slow 'r["nodes"] == 3 and len(r["between_nodes"]["pairs"]) == 3'
holds slow '0 < r["between_nodes"]["bus_gb_per_s"] < 0.05'
holds slow 'sorted(p["hosts"] for p in r["between_nodes"]["pairs"]) == [["node1", "node2"], ["node1", "node3"], ["node2", "node3"]]'
holds slow 'all(0 < p["bus_gb_per_s"] < 0.05 for p in r["between_nodes"]["pairs"])'
echo "as expected"
