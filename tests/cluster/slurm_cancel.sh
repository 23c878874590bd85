#!/usr/bin/env bash
# Cancels jobs of slurm/mingpt.sh in a real, small Slurm at five moments: at the beginning, while it saves after the signal
# before the limit, as its program ends, in the last half of a minute, in the last second. None of them comes back. A sixth one
# that reaches its time limit does. The program is a stand-in that cancels its own job.
set -euo pipefail
source "$(dirname "$0")/common.sh"

small_run
start_slurm
cd "$work"
mkdir bin
cp "$FSDP_SOURCE/tests/cluster/stand_in.sh" bin/
cat >bin/fsdp-finetune <<'SH'
#!/bin/bash
if [[ $* == *--print-config* ]]; then exit; fi
source "$(dirname "$0")/stand_in.sh"
trap 'stop=1' TERM
trap 'warned=1' USR1
while [[ -z ${stop:-} ]]; do
    sleep 0.2
    ((++step))
    case $name in
        beginning) ((SECONDS < 3)) ;;
        saving) [[ -z ${warned:-} ]] ;;
        ending) ((SECONDS < 5)) || stop=1 ;;
        late) ((SECONDS < 33)) ;;
        last) ((SECONDS < 58)) ;;
    esac || cancel=1
    if [[ $name == ending && -n ${stop:-} ]]; then cancel=1; fi
    if [[ -n ${cancel:-} && ! -e $out/$name/asked ]]; then
        : >"$out/$name/asked"
        scancel "$SLURM_JOB_ID"
    fi
done
save
scontrol show job "$SLURM_JOB_ID" >"$out/$name/facts"
exit 85
SH
chmod +x bin/fsdp-finetune
export FSDP_BIN=$work/bin

names=(beginning saving ending late last limit)
declare -A jobs
for name in "${names[@]}"; do
    jobs[$name]=$(RUN_NAME=$name sbatch --parsable --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --time=1 --signal=USR1@15 \
        --output="$work/$name.out" "$FSDP_SOURCE/slurm/mingpt.sh")
done
says() { grep -qs -e "$2" "$1.out"; } # NAME WORDS
show_and_fail() { cat "$work/$1.out"; scontrol show job "${jobs[$1]}"; fail "$1: $2"; }
answered() { says "$1" "not requeued" || says "$1" "requeueing"; }
for name in "${names[@]}"; do
    wait_for 240 answered "$name" || show_and_fail "$name" "no end"
    if [[ $name == limit ]]; then continue; fi
    if grep -q Reason=TimeLimit "runs/$name/facts"; then
        echo "$name: the time limit came before the cancellation"
        continue
    fi
    says "$name" "not requeued; submit again with RUN_NAME=$name" || show_and_fail "$name" "it was requeued"
    wait_for 60 ended "${jobs[$name]}" || show_and_fail "$name" "the job is still there"
    [[ $(state "${jobs[$name]}") == CANCELLED ]] || show_and_fail "$name" "the job ended as $(state "${jobs[$name]}")"
    [[ $(scontrol show job "${jobs[$name]}") == *Restarts=0* ]] || show_and_fail "$name" "the job came back"
    [[ -e runs/$name/asked && -e runs/$name/checkpoints/latest ]] || show_and_fail "$name" "not cancelled, or not saved"
done
says limit requeueing || show_and_fail limit "it was not requeued"
restarted() { [[ $(scontrol show job "${jobs[limit]}") == *Restarts=1* ]]; } # the count follows "requeueing" by a moment
wait_for 60 restarted || show_and_fail limit "not restarted once"
scancel "${jobs[limit]}"
echo "as expected"
