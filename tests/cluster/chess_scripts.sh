#!/usr/bin/env bash
# The decisions of the chess scripts: options and plan, checks, the chain of jobs under Slurm and PBS. Launchers and
# schedulers are stand-ins, and so are programs that would only take time.
set -euo pipefail
source "$(dirname "$0")/common.sh"

load_programs
cd "$work"
mkdir -p bin launcher
unset "${!SLURM_@}" "${!PBS_@}" "${!HF_@}" "${!SUBMIT@}" MODEL DATA VAL_DATA PLAN ARGS DEVICE PRECISION LEARNING_RATE MAX_TRAINING_STEPS DOWNLOAD
snapshot=$("$FSDP_PYTHON" "$here/tiny_codellama.py" cache "$work/hf/hub")
# The real programs check models and options; the training programs are stand-ins that print their arguments.
ln -s "$FSDP_BIN/fsdp-ckpt-convert" "$FSDP_BIN/fsdp-download" "$FSDP_BIN/fsdp-eval" bin/
cat >bin/fsdp-finetune <<SH
#!/bin/sh
case "\$*" in *--print-config*) exec "$FSDP_BIN/fsdp-finetune" "\$@" ;; esac
echo "options: \$*"
SH
cat >>bin/fsdp-finetune <<'SH'
if [ -n "${REACH_STEP:-}" ]; then
    mkdir -p "$OUT_DIR/$RUN_NAME/checkpoints/step-$REACH_STEP"
    ln -sfn "step-$REACH_STEP" "$OUT_DIR/$RUN_NAME/checkpoints/latest"
fi
exit "${END_WITH:-0}"
SH
# sbatch and qsub number the jobs and record their arguments; job FAIL_AT fails.
cat >launcher/sbatch <<'SH'
#!/bin/sh
echo "$(basename "$0") $* [CHESS_STAGE=${CHESS_STAGE:-} ARGS=${ARGS:-} PLAN=${PLAN:-} RUN_NAME=${RUN_NAME:-} SAVE_FINAL_HF=${SAVE_FINAL_HF-unset}]" >>submitted
number=$(wc -l <submitted)
[ "$number" = "${FAIL_AT:-0}" ] && exit 1
echo "$number${SERVER:-}"
SH
cp launcher/sbatch launcher/qsub
for name in scancel qdel qalter scontrol; do printf '#!/bin/sh\necho "%s $*"\n' $name >launcher/$name; done
# qstat knows job 7 and the jobs listed in the file alive, no others.
cat >launcher/qstat <<'SH'
#!/bin/sh
case "$*" in *" 7.server"*) ;; *) grep -qxF -e "$2" alive 2>/dev/null || exit 153 ;; esac
printf 'Job Id: 7.server\n    job_state = R\n    Account_Name = some_project\n    Resource_List.select = 1\n    Resource_List.walltime = 01:02:30\n'
printf '    Submit_arguments = -V -W depend=afterok:6.server -A some_project\n\t pbs/chess_finetune.pbs\n'
SH
printf '#!/bin/sh\nexit 0\n' >launcher/squeue # reports no jobs
chmod +x bin/fsdp-finetune launcher/*
printf 'node1\nnode1\nnode2\nnode2\n' >nodefile

train=$FSDP_SOURCE/data/chess/train.jsonl
script() { # VARIABLE=VALUE... -- SCRIPT ARGUMENTS
    local -a variables=()
    while [[ $1 != -- ]]; do variables+=("$1"); shift; done
    env PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" HF_HOME="$work/hf" OUT_DIR="$work/runs" MODEL=tiny/CodeLlama DATA="$train" \
        SERVER=.server "${variables[@]}" bash "$FSDP_SOURCE/$2" "${@:3}" 2>&1
}
slurm() { script SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$work" LAUNCHER=env "$@"; }
pbs() { script PBS_JOBID=7.server PBS_JOBNAME=chess PBS_O_QUEUE=debug PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" LAUNCHER=env "$@"; }
expect() { # CODE WORDS COMMAND...: COMMAND ends with CODE and prints WORDS
    local code=$1 words=$2 got=0
    shift 2
    output=$("$@") || got=$?
    if [[ $got != "$code" || $output != *"$words"* ]]; then
        printf '%s\n' "$output"
        fail "'$*' gave $got, expected $code and: $words"
    fi
}
no() { if [[ $output == *"$1"* ]]; then printf '%s\n' "$output"; fail "the last command says: $1"; fi; }
finetune=slurm/chess_finetune.sh

echo "-- options: argument, else variable, else plan, else the script's own"
expect 0 "--batch_size_per_device 1 --total-batch-size 64 --learning_rate 1e-5 --max_seq_length 512 --precision" slurm RUN_NAME=a -- $finetune
no --config
no --max_training_steps
expect 0 "--batch_size_per_device 4 --total-batch-size 128 --learning_rate 2e-5 --optimizer adamw8bit --freeze model.layers.[01],model.embed_tokens --child-tuning f --max_training_steps 9 --max_seq_length 512 --precision float32 --device cpu" \
    slurm RUN_NAME=a BATCH_SIZE_PER_DEVICE=4 TOTAL_BATCH_SIZE=128 LEARNING_RATE=2e-5 OPTIMIZER=adamw8bit "FREEZE=model.layers.[01],model.embed_tokens" CHILD_TUNING=f \
    MAX_TRAINING_STEPS=9 DEVICE=cpu -- $finetune
expect 0 "--precision bf16" slurm RUN_NAME=a DEVICE=cuda -- $finetune
expect 0 "--lora-rank 16 --lora-alpha 32 --quantize nf4 --max_seq_length 512" slurm RUN_NAME=a LORA_RANK=16 LORA_ALPHA=32 QUANTIZE=nf4 DEVICE=cpu -- $finetune
no --save-final-hf
expect 0 "--offload-optimizer nvme:/local/scratch" slurm RUN_NAME=a OFFLOAD=nvme:/local/scratch DEVICE=cpu -- $finetune
expect 0 "--lora_rank 8" slurm RUN_NAME=a DEVICE=cpu -- $finetune --lora_rank 8
no --save-final-hf
expect 0 "--run-name a --gradient_checkpointing --seed 7" slurm RUN_NAME=a -- $finetune --gradient_checkpointing --seed 7
expect 0 "--no-shuffle=true --seed=4 --warmup-ratio=0.05 --out-dir" slurm RUN_NAME=a FSDP_OPT_WARMUP_RATIO=0.05 FSDP_OPT_NO_SHUFFLE=true FSDP_OPT_SEED=4 FSDP_OPT_DATA_FIELD= DEVICE=cpu -- $finetune --seed 7
no --data-field
[[ $output == *"--seed 7"* ]] || fail "the argument does not follow the variable"
expect 0 "--adapter=$work" slurm RUN_NAME=a FSDP_OPT_ADAPTER="$work" FSDP_OPT_LEARNING_RATE=3e-4 DEVICE=cpu -- $finetune
no --save-final-hf
expect 2 "set RUN_NAME" slurm RUN_NAME=a FSDP_OPT_RUN_NAME=b DEVICE=cpu -- $finetune
expect 2 "--warmup-ration" slurm RUN_NAME=a FSDP_OPT_WARMUP_RATION=0.05 DEVICE=cpu -- $finetune
printf '# a plan\nbatch-size = 2\nlr=3e-4\nprecision="bf16"\nmodel="%s"\n' "$snapshot" >plan.ini
expect 0 "--config $work/plan.ini --model tiny/CodeLlama" slurm RUN_NAME=a PLAN="$work/plan.ini" DEVICE=cpu -- $finetune
no --batch_size_per_device
no --learning_rate
no --optimizer
no --precision
expect 0 "--batch_size_per_device 8" slurm RUN_NAME=a PLAN="$work/plan.ini" BATCH_SIZE_PER_DEVICE=8 -- $finetune
expect 0 "--max_seq_length 512 --precision bf16 --device auto --save-interval-minutes 15" pbs RUN_NAME=a PRECISION=bf16 -- pbs/chess_finetune.pbs
expect 0 "--time-limit 0:59:30 --seed 3 --lr 1" pbs RUN_NAME=a ARGS="--seed 3 --lr 1" -- pbs/chess_finetune.pbs

echo "-- what is missing or wrong ends it before the launcher starts"
expect 4 "PLAN=none.ini" slurm PLAN=none.ini -- $finetune
expect 4 "training data gone.jsonl" slurm DATA=gone.jsonl -- $finetune
expect 4 "validation data gone.jsonl" slurm VAL_DATA=gone.jsonl -- $finetune
expect 0 "validation none" slurm RUN_NAME=a VAL_DATA= -- $finetune
expect 0 "validation $train" slurm RUN_NAME=a "VAL_DATA=a=$train,b=$FSDP_SOURCE/data/chess/validation.jsonl" -- $finetune
expect 4 "validation data a=$train,b=gone.jsonl" slurm RUN_NAME=a "VAL_DATA=a=$train,b=gone.jsonl" -- $finetune
: >empty.jsonl
expect 4 "empty" slurm DATA=empty.jsonl -- $finetune
expect 4 "fsdp-download nobody/nothing" slurm MODEL=nobody/nothing -- $finetune
expect 4 "fsdp-download nobody/nothing" pbs MODEL=nobody/nothing -- pbs/chess_finetune.pbs
expect 2 "--no-such-option" slurm -- $finetune --no-such-option
expect 2 "OUT_DIR" slurm -- $finetune --out-dir elsewhere
cp -RL "$snapshot" part
rm part/tokenizer.model
expect 4 "no tokenizer" slurm MODEL=part -- $finetune
rm part/model-00001-of-00002.safetensors
expect 4 "model-00001-of-00002.safetensors" slurm MODEL=part -- $finetune
rm part/config.json
expect 4 "config.json" slurm MODEL=part -- $finetune
expect 2 "sbatch" slurm SLURM_JOB_ID= -- $finetune
expect 2 "qsub" pbs PBS_JOBID= -- pbs/chess_finetune.pbs

echo "-- 85: again, from the checkpoint, as long as there is progress"
expect 0 "scontrol requeue 7" slurm RUN_NAME=d END_WITH=85 REACH_STEP=00000010 -- $finetune
expect 0 "--restart-checkpoint-file latest" slurm RUN_NAME=d END_WITH=85 REACH_STEP=00000018 -- $finetune
expect 0 "from step 18" slurm RUN_NAME=d END_WITH=85 -- $finetune
expect 0 "requeueing" slurm RUN_NAME=d END_WITH=85 -- $finetune
expect 1 "no progress" slurm RUN_NAME=d END_WITH=85 -- $finetune

echo "-- what --final chose is converted and evaluated"
tuned=(--eval-every 1 --keep-best --final best --max-rows 16 --lr-schedule constant --warmup-steps 0)
mkdir real
ln -s "$FSDP_BIN"/fsdp-{finetune,ckpt-convert,eval,download} real/
final() { # slurm|script SCRIPT ARGUMENTS...: with the real programs; the learning rate is so high that later steps undo the first
    "$1" FSDP_BIN="$work/real" RUN_NAME=final DEVICE=cpu SAVE_FINAL_HF= HF_DTYPE=float32 MAX_TRAINING_STEPS=3 MAX_SEQ_LENGTH=32 TOTAL_BATCH_SIZE=4 \
        LEARNING_RATE=0.3 EVAL_ARGS="--max-rows 4" -- "${@:2}"
}
holds() { "$FSDP_BIN/fsdp-ckpt-convert" --verify "runs/final/checkpoints/$1" runs/final/hf --model-only >verified 2>&1; }
expect 0 "step-00000001   loss" final slurm $finetune "${tuned[@]}"
[[ $(readlink runs/final/checkpoints/latest) == step-00000003 ]] || fail "the newest is the best one: the data are meant to be otherwise"
expect 0 "" final slurm slurm/chess_pipeline.sh --stage convert "${tuned[@]}"
holds best || { cat verified; fail "not the best was converted"; }
if holds latest; then fail "the best cannot be told from the newest"; fi
expect 0 '"loss"' final slurm slurm/chess_pipeline.sh --stage eval "${tuned[@]}"
expect 0 "everything holds" final script slurm/chess_pipeline.sh "${tuned[@]}"
rm -r runs/final/checkpoints/step-00000001
expect 4 "is not what step-00000003 holds" final slurm slurm/chess_pipeline.sh --stage eval "${tuned[@]}"

echo "-- the chain under Slurm"
pipeline() { rm -f submitted; script MODEL="$snapshot" "$@" && cat submitted; }
printf '#!/bin/sh\n' >bin/fsdp-memprobe
chmod +x bin/fsdp-memprobe
cp bin/fsdp-memprobe bin/fsdp-bf16check
expect 0 "eval       5" pipeline SERVER=';cluster' SUBMIT="-A account" SUBMIT_CPU="-p cpu" -- slurm/chess_pipeline.sh --seed 3
mapfile -t jobs <submitted
[[ ${#jobs[@]} == 5 ]] || fail "${#jobs[@]} jobs"
for words in "0 --job-name=chess_bf16check" "0 --stage bf16check --seed 3" "1 --dependency=afterok:1 " "1 --stage memprobe" \
    "2 --dependency=afterok:2 " "2 chess_finetune.sh --seed 3 " "2 PLAN=$work/runs/chess/plan.ini" "2 SAVE_FINAL_HF=]" "3 --dependency=afterok:3 " \
    "3 -A account -p cpu " "3 --stage convert" "4 --dependency=afterok:4 " "4 --gres=gpu:4 --constraint=gpu80" "4 --stage eval"; do
    [[ ${jobs[${words%% *}]} == *"${words#* }"* ]] || { printf '%s\n' "${jobs[@]}"; fail "job ${words%% *} lacks: ${words#* }"; }
done
[[ $(<runs/chess/chain) == "$(printf 'bf16check 1\nmemprobe 2\nfinetune 3\nconvert 4\neval 5')" ]] || { cat runs/chess/chain; fail "the chain was not recorded"; }
rm bin/fsdp-memprobe
expect 0 "fsdp-memprobe: not in FSDP_BIN, stage left out" pipeline -- slurm/chess_pipeline.sh
[[ $(wc -l <submitted) == 4 ]] || fail "not four jobs"
no "PLAN=$work"
rm bin/fsdp-bf16check
expect 0 "fsdp-bf16check: not in FSDP_BIN, stage left out" pipeline -- slurm/chess_pipeline.sh
[[ $(wc -l <submitted) == 3 ]] || fail "not three jobs"
rm -f submitted
expect 1 "scancel 1.server 2.server" script MODEL="$snapshot" FAIL_AT=3 -- slurm/chess_pipeline.sh
expect 0 "would be submitted" script -- slurm/chess_pipeline.sh --dry-run
[[ $output == *"--gres=gpu:4 --constraint=gpu80"*"--stage eval"* ]] || fail "no GPUs in the dry run: $output"
expect 4 "training data gone.h5" script MODEL="$snapshot" DATA=gone.h5 DOWNLOAD=no -- slurm/chess_pipeline.sh --dry-run
expect 2 "does not take these options" script -- slurm/chess_pipeline.sh --dry-run --no-such-option
expect 0 "model $snapshot, data $train, validation $FSDP_SOURCE/data/chess/validation.jsonl" \
    script MODEL="$snapshot" DATA="$train" DEVICE=cpu DOWNLOAD=no -- slurm/chess_pipeline.sh --dry-run
no "--gres"
expect 4 "training data gone.h5" script MODEL="$snapshot" DATA=gone.h5 DOWNLOAD=no -- slurm/chess_pipeline.sh
expect 4 "no finished fine-tune" slurm -- slurm/chess_pipeline.sh --stage convert
expect 3 "not there" script MODEL=nobody/nothing -- slurm/chess_download.sh --check
expect 0 "data $train: given" script MODEL="$snapshot" -- slurm/chess_download.sh --check

echo "-- the chain under PBS; the fine-tune hands over to the job that goes on"
expect 0 "eval       3.server" pipeline RUN_NAME=p SUBMIT="-A project" -- pbs/chess_pipeline.sh --seed 3
mapfile -t jobs <submitted
for words in "0 qsub -V -N chess_finetune -A project $FSDP_SOURCE/pbs/chess_finetune.pbs" "0 ARGS=--seed 3" "0 RUN_NAME=p" "1 qsub -V -N chess_convert -W depend=afterok:1.server " \
    "1 CHESS_STAGE=convert" "2 depend=afterok:2.server" "2 CHESS_STAGE=eval"; do
    [[ ${jobs[${words%% *}]} == *"${words#* }"* ]] || { printf '%s\n' "${jobs[@]}"; fail "job ${words%% *} lacks: ${words#* }"; }
done
[[ $(<runs/p/chain) == "$(printf 'finetune 1.server\nconvert 2.server\neval 3.server')" ]] || { cat runs/p/chain; fail "the chain was not recorded"; }
[[ $output == *"cancel: RUN_NAME=p OUT_DIR=$work/runs bash "*"/pbs/chess_pipeline.sh --cancel"* ]] || fail "how to cancel it is not said"
again() { pbs PBS_JOBID="$1" RUN_NAME=p END_WITH=85 REACH_STEP="$2" -- pbs/chess_finetune.pbs; } # JOB STEP
echo 1.server >alive
cp submitted before
expect 85 "2.server (convert), which waits for this job, is gone" again 1.server 00000008
cmp submitted before || fail "submitted again, though nothing waits for it"
echo 2.server >>alive
expect 0 "qalter -W depend=afterok:4.server 2.server" again 1.server 00000010
[[ $(tail -n 1 submitted) == "qsub -V -C  -N chess -q debug -A some_project -r y -l select=1 -l walltime=01:02:30 $FSDP_SOURCE/pbs/chess_finetune.pbs "*RUN_NAME=p* ]] ||
    { cat submitted; fail "not submitted as before, less the dependency"; }
grep -qx "finetune 4.server" runs/p/chain || { cat runs/p/chain; fail "the chain does not know the new job"; }
echo 4.server >>alive
expect 0 "submitting again" again 7.server 00000011 # a job of this run outside the chain
no qalter
grep -qx "finetune 4.server" runs/p/chain || fail "the chain was changed by a job that is not its own"
expect 1 "is under way: finetune 4.server convert 2.server" script MODEL="$snapshot" RUN_NAME=p -- pbs/chess_pipeline.sh
printf '#!/bin/sh\nexit 1\n' >launcher/qalter
expect 85 "does not start" again 4.server 00000012
echo 6.server >>alive
printf '#!/bin/sh\nfor job; do echo "qdel $job"; sed -i "/^$job\$/d" alive; done\n' >launcher/qdel
touch runs/p/chain-cancelled
expect 85 "the chain was cancelled" again 6.server 00000014
rm runs/p/chain-cancelled
expect 0 "finetune   6.server       cancelled" script RUN_NAME=p -- pbs/chess_pipeline.sh --cancel
[[ $(<alive) == "$(printf '1.server\n4.server')" && ! -e runs/p/chain && ! -e runs/p/chain-cancelled ]] || { cat alive; fail "not all were cancelled"; }
expect 0 "nothing to cancel" script RUN_NAME=p -- pbs/chess_pipeline.sh --cancel
expect 0 "ended with code 0" pbs RUN_NAME=p REACH_STEP=00000020 -- pbs/chess_finetune.pbs
expect 0 "qsub -V -N chess_finetune -C '' -l select=1:ncpus=8" script MODEL="$snapshot" RUN_NAME=p SUBMIT='-C "" -l select=1:ncpus=8' -- pbs/chess_pipeline.sh --dry-run --chat-template "two words"
[[ $output == *"two words"* ]] || fail "an argument with a blank was torn"
expect 2 "leaves OUT_DIR" pbs RUN_NAME=../../x -- pbs/chess_finetune.pbs
expect 85 "RUN_NAME=q" pbs RUN_NAME=q END_WITH=85 REACH_STEP=00000010 RESUBMIT=no -- pbs/chess_finetune.pbs
echo "as expected"
