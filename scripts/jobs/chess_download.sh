# The work of chess_download.sh under both schedulers and without one. Source it after chess.sh.
# shellcheck shell=bash disable=SC2034,SC2154

# fetch ARGUMENTS of fsdp-download: prints the folder. Files that are already there are not requested, so no network is
# needed for them.
fetch() {
    HF_HUB_OFFLINE=1 "$FSDP_BIN/fsdp-download" "$@" --quiet 2>/dev/null && return
    if ((check_only)); then return 3; fi
    say "fetching $1" >&2
    "${single[@]}" "$FSDP_BIN/fsdp-download" "$@"
}

# Prints the list of the token file's inputs.
token_source() {
    echo "tokenizer $model_directory"
    echo "games ${MAX_GAMES:-0}"
    find -L "$dataset_directory" -type f ! -name '.*' -printf '%p %s\n' | sort
}

# Fetches the model and the data set and makes the token file, each only if it is missing. --check only says whether all
# are there (0, or 3 if not). Needs single, the command before a program that runs once (may be empty).
chess_download() {
    local model=${MODEL:-$chess_model} dataset=${DATASET:-$chess_dataset} data=${DATA:-$chess_data} code=0
    check_only=0
    if [[ $* == --check ]]; then check_only=1; elif (($#)); then die "'$*' is no option of this script (see --help)" 2; fi
    say "cache $(hub_cache)   (HF_HOME=${HF_HOME:-}, HF_HUB_CACHE=${HF_HUB_CACHE:-})"

    model_directory=$model
    if [[ ! -e $model ]]; then model_directory=$(fetch "$model") || code=$?; fi
    ((code == 0)) || { missing "model $model" "$code"; return; }
    say "model $model: $model_directory"

    if [[ $data != "$chess_data" ]]; then
        find_snapshot datasets "$data" >/dev/null || die "DATA=$data: not there; leave DATA unset to have $dataset fetched" 4
        say "data $data: given"
        return
    fi
    dataset_directory=$dataset
    if [[ ! -e $dataset ]]; then
        dataset_directory=$(fetch "$dataset" --type dataset --max-files "${MAX_FILES:-1}") || code=$?
    fi
    ((code == 0)) || { missing "data set $dataset" "$code"; return; }
    say "data set $dataset: $dataset_directory"

    if [[ -s $data && -r $data.from && $(<"$data.from") == "$(token_source)" ]]; then
        say "token file $data: there"
        return
    fi
    if ((check_only)); then missing "token file $data" 3; return; fi
    mkdir -p "$(dirname "$data")"
    "${single[@]}" "$FSDP_BIN/fsdp-download" tokens --input "$dataset_directory" --tokenizer "$model_directory" \
        --documents --max-rows "${MAX_GAMES:-0}" --output "$data" || { missing "token file $data" $?; return; }
    token_source >"$data.from"
}

missing() { # WHAT CODE
    if ((check_only)); then die "$1: not there, or not all of it" 3; fi
    download_stopped "$1" "$2"
}
