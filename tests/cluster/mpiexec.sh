#!/usr/bin/env bash
# The launcher that is built and packed with the programs. In shells whose environment claims a Slurm job although srun
# starts nothing: ranks start on this node without srun, or the launcher says what to do. It reports killed ranks itself.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
root=$FSDP_SOURCE
source "$FSDP_SOURCE/scripts/packing/mpiexec.sh"
write_mpiexec "$work/with space/mpiexec" "$FSDP_MPIEXEC"
mpiexec="$work/with space/mpiexec"
ln -s "$FSDP_BIN/hide-hydra-banner" "$work/with space/"

mkdir -p "$work/tools" "$work/fails" "$work/answers"
for tool in sh sed tr cut uname dirname readlink timeout echo hostname; do ln -s "$(type -P "$tool")" "$work/tools/$tool"; done
printf '#!/bin/sh\nexit 1\n' >"$work/fails/scontrol"
printf '#!/bin/sh\nexit 0\n' >"$work/answers/scontrol"
printf '#!/bin/sh\necho "srun $*" >&2\nexit 7\n' >"$work/fails/srun"
cp "$work/fails/srun" "$work/answers/srun"
# hydra ends with SIGPIPE, once in some hundred times on a busy machine, if the ranks end while it still forwards stdin.
printf '#!/bin/sh\n%s 0.1\necho two\n' "$(type -P sleep)" >"$work/says-two"
chmod +x "$work"/{fails,answers}/* "$work/says-two"

node=$(uname -n)
job() { # PATH NODES [VARIABLE=VALUE...] COMMAND...
    local path=$1 nodes=$2
    shift 2
    timeout 60 env -i PATH="$path" SLURM_JOB_ID=5 SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=2 SLURM_JOB_NODELIST="$nodes" "$@" </dev/null 2>&1
}
expect() { # CODE WORDS COMMAND...
    local code=$1 words=$2 got=0 output
    shift 2
    output=$("$@") || got=$?
    [[ $got == "$code" && $output == *"$words"* ]] || fail "'$*' gave $got, expected $code and '$words': $output"
}
two=$'two\ntwo'

expect 0 "there is no srun here" job "$work/tools" "$node" "$mpiexec" -n 2 "$work/says-two"
expect 0 "$two" job "$work/tools" "$node" "$mpiexec" -n 2 "$work/says-two"
expect 0 "no controller of Slurm answers for job 5" job "$work/fails:$work/tools" "$node" "$mpiexec" -n 2 "$work/says-two"
expect 0 "$two" job "$work/fails:$work/tools" n1 SLURMD_NODENAME=n1 "$mpiexec" -n 2 "$work/says-two" # in a container the host name differs from the node's
expect 0 "$two" job "$work/tools" "n[1-2]" "$mpiexec" -hosts localhost:2 -n 2 "$work/says-two"
printf "# this one\n%s:2\n" "$node" >"$work/hosts"
expect 0 "$two" job "$work/tools" "n[1-2]" "$mpiexec" -f "$work/hosts" -n 2 "$work/says-two"
expect 1 "ranks on n[1-2]" job "$work/tools" "n[1-2]" "$mpiexec" -n 2 "$work/says-two"
expect 1 "-launcher ssh" job "$work/fails:$work/tools" "$node,other" "$mpiexec" -n 2 "$work/says-two"
expect 1 "ranks on other" job "$work/tools" "$node" "$mpiexec" -hosts "$node,other" -n 2 "$work/says-two"
# hydra would start one rank.
for count in "-n 0" "-np 0" "-n -2"; do
    # shellcheck disable=SC2086 # two words
    expect 2 "mpiexec: $count starts no rank: give 1 or more" job "$work/tools" "$node" "$mpiexec" $count "$work/says-two"
done
# A command that names its launcher is left alone, and an srun that works is used.
expect 0 "$two" job "$work/tools" n1,n2 "$mpiexec" -launcher fork -hosts localhost -n 2 "$work/says-two"
expect 0 "HYDRA" job "$work/tools" n1,n2 "$mpiexec" --version
if started=$(job "$work/answers:$work/tools" "$node" HYDRA_LAUNCHER_EXEC="$work/answers/srun" timeout 5 "$mpiexec" -n 2 "$work/says-two"); then
    fail "srun was not used: $started"
fi
[[ $started == *"srun "* ]] || fail "srun was not used: $started"
[[ $started != *"without it"* ]] || fail "srun could be used: $started"

# --- everything else behaves as hydra does: stdin, exit codes, signals -----------------------------------------------
[[ $(echo words | "$mpiexec" -n 1 cat) == words ]] || fail "stdin does not reach the ranks"
expect 4 '' "$mpiexec" -n 2 sh -c 'sleep 0.1; exit 4'
# --- a rank ended by a signal: hydra's banner is hidden, all other output passes at once ------------------------------
killed_rank() { # SIGNAL: kills one of two ranks; prints the ranks' output, then "|" and the launcher's message
    # shellcheck disable=SC2016 # the rank's
    "$mpiexec" -n 2 sh -c 'if [ $PMI_RANK = 1 ]; then printf last; sleep 0.3; kill -'"$1"' $$; fi; exec sleep 10' 2>"$work/said" </dev/null || code=$?
    echo "|$(<"$work/said")"
}
says_of_killed() { # SIGNAL CODE WORDS
    local output code=0
    output=$(killed_rank "$1"; exit "$code") || code=$?
    [[ $code == "$2" && $output == $'last\n|mpiexec: a rank was '"$3"* ]] || fail "signal $1 gave $code: $output"
    [[ $output != *TERMINATION* && $output != *TERMINATED* && $output != *FAQ* ]] || fail "hydra's box is shown: $output"
}
if env --default-signal=INT true 2>/dev/null; then
    says_of_killed 9 9 'killed from outside (signal 9)'
    says_of_killed 11 11 'ended by signal 11'
    says_of_killed 6 15 'ended by a signal (exit code 15)' # combined by OR with the 9 that ends the other rank
    aborts=$("$mpiexec" -n 1 sh -c 'sleep 0.3; kill -6 $$' 2>&1 </dev/null) && fail "an aborted rank gave 0"
    [[ $aborts == *"ended by signal 6"* ]] || fail "an aborted rank is told as $aborts"
fi
foreign=$("$mpiexec" -n 2 sh -c 'exit 3' 2>&1 </dev/null) && fail "exit 3 gave 0"
[[ -z $foreign ]] || fail "a program's own exit code is told: $foreign"
# The rank prints the next part only after the previous one has arrived.
# shellcheck disable=SC2016 # the rank's
timeout 60 "$mpiexec" -n 1 sh -c 'for part in a b "=" " c"; do
    printf "%s" "$part"
    if [ "$part" != "=" ]; then until [ -e "$0$part" ]; do sleep 0.02; done; fi
done' "$work/arrived-" </dev/null | {
    for part in a b "= c"; do
        IFS= read -r -N ${#part} got && [[ $got == "$part" ]] || fail "'$part' did not arrive before the end, but '$got'"
        : >"$work/arrived-${part#=}"
    done
} || fail "what ranks print does not arrive"
order=$("$mpiexec" -n 1 sh -c 'for i in 1 2 3 4 5 6 7 8; do echo out; sleep 0.01; echo err >&2; sleep 0.01; done' 2>&1 </dev/null)
[[ $order == "$(for _ in 1 2 3 4 5 6 7 8; do echo out; echo err; done)" ]] || fail "stdout and stderr of one file are not in order: $order"
cksum=$(head -c 3000000 /dev/urandom | tee "$work/bytes" | cksum)
[[ $("$mpiexec" -n 1 cat "$work/bytes" | cksum) == "$cksum" ]] || fail "what a rank prints is changed"
late=0
"$mpiexec" -n 1 sh -c 'sleep 0.1; echo lost' >/dev/full 2>"$work/said" </dev/null || late=$?
[[ $late != 0 && -s $work/said ]] || fail "output that could not be written gave $late: $(<"$work/said")"

# --- output of a stand-in for hydra ----------------------------------------------------------------------------------
cat >"$work/hydra" <<'SH'
#!/bin/sh
case $1 in
    --version) echo HYDRA ;;
    wait) trap 'echo got TERM; exit 85' TERM; trap 'echo got INT; exit 86' INT; echo ready; while :; do sleep 0.05; done ;;
    leaves) sleep 30 & printf done; exit 4 ;;
    *) exit "$1" ;;
esac
SH
chmod +x "$work/hydra"
write_mpiexec "$work/ours" hydra # a file name beside the launcher, as in the tarball
killed() { "$work/ours" "$@" 2>&1 </dev/null; }
expect 9 "a rank was killed from outside (signal 9)" killed 9
expect 139 "ended by signal 11" killed 139
for code in 0 1 2 4 6 7 85 255; do
    expect "$code" '' killed "$code"
    [[ -z $(killed "$code" || true) ]] || fail "$code is no rank that was killed"
done
mkdir "$work/small"
printf '#!/bin/sh\necho head\necho "tmpfs 1024 974 50 95%% /dev/shm"\n' >"$work/small/df"
chmod +x "$work/small/df"
small() { PATH=$work/small:$PATH killed "$@"; }
expect 11 "ended by signal 11: /dev/shm has 50 KiB free, and MPI needs 2150 KiB there for 2 ranks" small 11 -n 2
expect 135 "ended by signal 7: /dev/shm has 50 KiB free, and MPI needs 3225 KiB there for 3 ranks" small 135 -n 1 one : -np 2 two
expect 11 "please report it" small 11 -n x
mkdir "$work/full"
write_mpiexec "$work/full/mpiexec" "$work/hydra"
ln -s "$FSDP_BIN/hide-hydra-banner" "$work/full/"
code=0
timeout 15 "$work/full/mpiexec" leaves >"$work/said" 2>&1 </dev/null || code=$?
[[ $code == 4 && $(<"$work/said") == "done" ]] || fail "what hydra left behind gave $code: $(<"$work/said")"
if env --default-signal=INT true 2>/dev/null; then
    for case in TERM:85:TERM INT:86:INT HUP:85:TERM; do
        IFS=: read -r signal expected passed <<<"$case"
        : >"$work/said"
        # Without a terminal, SIGINT reaches the launcher only. A shell starts background jobs with SIGINT ignored, hence env.
        env --default-signal=INT "$work/ours" wait >"$work/said" 2>&1 </dev/null &
        until grep -q ready "$work/said"; do sleep 0.05; done
        kill -"$signal" $!
        code=0
        wait $! || code=$?
        [[ $code == "$expected" && $(<"$work/said") == *"got $passed"* ]] || fail "$signal gave $code: $(<"$work/said")"
    done

    # --- a terminal that closes, a launcher that is killed: the ranks get SIGTERM, so that they save ------------------------
    printf '#!/bin/sh\ntrap "echo >%s/saved-$PMI_RANK; exit 85" TERM\necho $$ >%s/rank-$PMI_RANK\nwhile :; do sleep 0.05; done\n' \
        "$work" "$work" >"$work/saves"
    chmod +x "$work/saves"
    begun() { [[ -s $work/rank-0 && -s $work/rank-1 ]]; }
    saved() { [[ -e $work/saved-0 && -e $work/saved-1 ]]; }
    over() { ! kill -0 "$(<"$work/rank-0")" 2>/dev/null && ! kill -0 "$(<"$work/rank-1")" 2>/dev/null; }
    for end in hangup kill; do
        rm -f "$work"/rank-? "$work"/saved-?
        setsid env --default-signal=INT "$mpiexec" -n 2 "$work/saves" >"$work/said" 2>&1 </dev/null &
        launcher=$!
        wait_for 60 begun || fail "the ranks do not start"
        if [[ $end == hangup ]]; then kill -HUP -- -$launcher; else kill -KILL $launcher; fi
        code=0
        wait $launcher || code=$?
        [[ $code == 85 || $end == kill ]] || fail "a hang-up gave $code: $(<"$work/said")"
        wait_for 60 over || fail "after $end of the launcher the ranks go on alone"
        saved || fail "after $end of the launcher the ranks end without saving: $(<"$work/said")"
    done
fi
# A daemon may have closed stdin.
closed=$("$mpiexec" -n 2 "$work/says-two" <&- 2>&1) || fail "a closed stdin gave $?: $closed"
[[ $closed == "$two" ]] || fail "a closed stdin changes the output: $closed"
echo "ranks start, or the cure is told"
