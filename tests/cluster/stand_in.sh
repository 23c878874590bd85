# shellcheck shell=bash disable=SC2034  # the stand-ins use these
# The part that stand-ins for fsdp-finetune share: each sources a copy that lies beside it. Sets from the stand-in's options
# name, out, last (--max-steps) and limit (--time-limit, in seconds), and from the newest checkpoint folder and step.
while (($#)); do
    case $1 in
        --run-name) name=$2 ;;
        --out-dir) out=$2 ;;
        --max-steps) last=$2 ;;
        --time-limit) [[ $2 =~ ^(.*):(.*):(.*)$ ]] && limit=$((BASH_REMATCH[1] * 3600 + BASH_REMATCH[2] * 60 + BASH_REMATCH[3])) ;;
    esac
    shift
done
folder=$out/$name/checkpoints
mkdir -p "$folder"
step=$(readlink "$folder/latest" || echo step-0)
step=${step#step-}

# A scheduler's signal reaches the commands of the stand-in, too: while it saves, none of them listens, as the program saves
# through a second signal.
save() {
    trap '' TERM USR1
    mkdir -p "$folder/step-$step"
    ln -sfn "step-$step" "$folder/latest"
}
