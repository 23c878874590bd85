# Encodes data to a token file by all processes of a job. Sourced by slurm/tokens.sh and pbs/tokens.pbs.
# shellcheck shell=bash disable=SC2034,SC2154

# encode_tokens: runs fsdp-download tokens on INPUT by all processes that launch starts, which share the work. Needs launch and
# arguments. Sets code to its exit code: 85 if it was stopped and goes on when it is started again.
encode_tokens() {
    local -a inputs
    [[ -n ${INPUT:-} ]] || die "INPUT is empty: name files, folders or data sets in the cache" 2
    [[ -n ${TOKENIZER:-} ]] || die "TOKENIZER is empty: name a model's folder, ORG/NAME in the cache, or gpt2" 2
    [[ -n ${OUTPUT:-} ]] || die "OUTPUT is empty: name the HDF5 file to write" 2
    split_words "$INPUT"
    inputs=("${words_of[@]}")
    option --tokenizer "$TOKENIZER"
    option --output "$OUTPUT"
    option --seq-len "${SEQ_LEN-}"
    option --field "${FIELD-}"
    option --threads "${THREADS-${OMP_NUM_THREADS-}}"
    option --pieces on
    mkdir -p "$(dirname "$OUTPUT")" || die "OUTPUT=$OUTPUT: its folder cannot be made" 1
    say "$INPUT: $(join_words "${options[@]}" "${arguments[@]}"), started by ${launch[*]}"
    code=0
    "${launch[@]}" "$FSDP_BIN/fsdp-download" tokens --input "${inputs[@]}" "${options[@]}" "${arguments[@]}" || code=$?
}
