#!/usr/bin/env bash
# Why a job on two emulated hosts (network namespaces) does not go on, asked on a third one that sees the run's folder only:
# a rank is stopped. The long test stops each of them in turn, then all of a host, which can no longer tell of itself.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
PATH=$(dirname "$FSDP_MPIEXEC"):$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || skip "no ip: apt-get install -y iproute2"
"$here/netns-mpi" -H 2 -n 1 -- hostname >"$work/hosts.out" 2>&1 || skip "no network namespaces here: $(tail -n 1 "$work/hosts.out")"
export OMP_NUM_THREADS=1

"$here/netns-mpi" -H 2 -n 2 -- "$FSDP_BIN/fsdp-finetune" --model mingpt --num-layers 2 --num-heads 2 --embed-size 32 \
    --seq-len 32 --batch-size 2 --max-steps 1000000 --log-every 1000000 --device cpu --no-save --collective-timeout 300 \
    --train-data "$FSDP_SOURCE/data/shakespeare/train.h5" --out-dir "$work/runs" --run-name job >"$work/job.out" 2>&1 &
job=$!
end_job() { kill "$job" 2>/dev/null && wait "$job"; }
cleanup+=(end_job)

show_and_fail() {
    cat "$work/job.out"
    fail "$*"
}
all_tell() { compgen -G "$work/runs/job/status/ranks-0.json" >/dev/null && compgen -G "$work/runs/job/status/ranks-2.json" >/dev/null; }
wait_for 60 all_tell || show_and_fail "not both hosts tell of their ranks"

# process_of RANK: prints its number outside of the namespaces.
process_of() {
    local folder
    for folder in $(pgrep -f "^$FSDP_BIN/fsdp-finetune .*--out-dir $work/runs"); do
        if tr '\0' '\n' <"/proc/$folder/environ" 2>/dev/null | grep -qx "PMI_RANK=$1"; then echo "$folder"; fi
    done
}
# says WORDS...: true once the answer has all of the words
says() {
    local answer word code=0
    answer=$("$FSDP_BIN/fsdp-eval" --why "$work/runs/job") || code=$?
    echo "$answer" >"$work/answer"
    ((code == 3)) || return 1
    for word; do [[ $answer == *"$word"* ]] || return 1; done
}
goes_on() { ! "$FSDP_BIN/fsdp-eval" --why "$work/runs/job" >"$work/answer" || return 0; return 1; }

ranks=(3)
if [[ -n ${FSDP_ALL:-} ]]; then ranks=(0 1 2 3); fi
for rank in "${ranks[@]}"; do
    pid=$(process_of "$rank")
    [[ -n $pid ]] || show_and_fail "no process of rank $rank"
    kill -STOP "$pid"
    wait_for 40 says "rank $rank (process " " on node$((1 + rank / 2))) has " "it is stopped (state T" "wait since" ||
        show_and_fail "rank $rank is stopped, and the answer is: $(<"$work/answer")"
    echo "rank $rank is stopped: $(<"$work/answer")"
    kill -CONT "$pid"
    wait_for 40 goes_on || show_and_fail "rank $rank goes on, and the answer is: $(<"$work/answer")"
done

[[ -n ${FSDP_ALL:-} ]] || exit 0
# The other host sees that these ranks do not come, and knows what they did last.
pids=("$(process_of 2)" "$(process_of 3)")
kill -STOP "${pids[@]}"
wait_for 60 says "rank 2 (process " "rank 3 (process " "nothing was heard of its node since" "ranks 0, 1 wait since" || show_and_fail "node2 is stopped, and the answer is: $(<"$work/answer")"
echo "node2 is stopped: $(<"$work/answer")"
kill -CONT "${pids[@]}"
wait_for 40 goes_on || show_and_fail "node2 goes on, and the answer is: $(<"$work/answer")"
