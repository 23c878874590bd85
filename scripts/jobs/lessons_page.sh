# The pages that scripts/lessons writes: one part per lesson, and the page of all parts. Sourced by scripts/lessons.
# shellcheck shell=bash disable=SC2034,SC2154

# flat <JSON as the programs print it: prints a line for each value: its path, a tab, the value.
flat() {
    awk '{
        match($0, /^ */); depth = RLENGTH; text = substr($0, depth + 1); sub(/,$/, "", text)
        if (text ~ /^[]}]/) next
        key = ""
        if (match(text, /^"([^"\\]|\\.)*": /)) { key = substr(text, 2, RLENGTH - 4); text = substr(text, RLENGTH + 1) }
        else if (depth > 0) key = count[depth]++
        here = depth > 1 ? at[depth - 1] "." key : key
        at[depth] = here; count[depth + 1] = 0
        if (text == "{" || text == "[") next
        gsub(/^"|"$/, "", text)
        print here "\t" text
    }'
}
figure() { flat | awk -F '\t' -v "path=$1" '$1 == path && !found++ { print $2 }'; } # read all input: otherwise the writer gets SIGPIPE

# dirs_of NAME...: fills dirs with the folders of these runs and their repeats, as far as they are finished.
dirs_of() {
    local name repeat where
    dirs=()
    for name; do
        for ((repeat = 1; repeat <= REPEATS; ++repeat)); do
            where=$(folder "$name" "$repeat")
            if [[ -n ${finished[$where]:-} ]]; then dirs+=("$out/runs/$where"); fi
        done
    done
}

# finish_lesson N: writes OUT_DIR/lesson-N.md and its picture.
finish_lesson() {
    local part=$out/lesson-$1.md dirs table
    dirs_of "${lesson_runs[@]}"
    if ((${#dirs[@]} == 0)); then return; fi
    table=$("$FSDP_BIN/fsdp-eval" --runs "${dirs[@]}" --pool --markdown --plot "$out/lesson-$1.svg") || return 0
    # The report's sentence on the fastest run does not answer the questions of these two lessons: keep only the table.
    if (($1 == 7 || $1 == 9)); then table=$(grep '^|' <<<"$table"); fi
    report=$("$FSDP_BIN/fsdp-eval" --runs "${dirs[@]}" --pool --json | flat)
    {
        printf '## %s. %s\n\n%s\n\n%s\n\n' "$1" "${lesson_titles[$1]}" "${lesson_questions[$1]}" "$table"
        tell_scatter
        if declare -F "more_of_$1" >/dev/null; then "more_of_$1"; fi
        printf '![losses and speeds](lesson-%s.svg)\n' "$1"
    } >"$part.tmp"
    mv "$part.tmp" "$part"
    settings >"$part.settings"
}

# Settings that all lessons of a page share.
settings() { join_words "${model_options[@]}" "$train_data" "$PRECISION" "$BATCH_SIZE" "$STEPS" "$REPEATS" "$MEMORY" "$(places)"; }

# of_runs PROGRAM: runs awk over the report, with value[run, path] for runs 0 to runs - 1 and name[run].
of_runs() {
    awk -F '\t' -v "memory=${MEMORY:-the GPU}${MEMORY:+ per rank}" -v "largest=${largest_batch:-0}" -v "gpus=$gpus" -v "most=$MAX_BATCH" '
        split($1, part, ".") > 2 && part[1] == "runs" {
            path = $1; sub(/^runs\.[0-9]+\./, "", path); value[part[2], path] = $2
            if (part[2] + 1 > runs) runs = part[2] + 1
            if (path == "name") { name[part[2]] = $2; sub(/-again-[0-9]+$/, "", name[part[2]]) }
        }
        function speed(run) { return value[run, "tokens_per_second.median"] }
        function seconds(run) { return value[run, "step_seconds.median"] }
        function batch(run) { return value[run, "settings.batch-size"] }
        function mib(bytes) { return sprintf("%.1f MiB", bytes / 1048576) }
        END { '"$1"' }' <<<"$report"
}

more_of_4() {
    local batch ran_out=''
    for batch in "${batches[@]}"; do if [[ -e $out/commands/batch-$batch.memory ]]; then ran_out+=" $batch"; fi; done
    of_runs '
        for (run = 0; run < runs; ++run) {
            if (speed(run) > speed(best)) best = run
            if (value[run, "alloc_retries"] + 0 > 0 && !retries) { retries = value[run, "alloc_retries"]; at = batch(run) }
        }
        printf "Of these, %s sequences per rank are the fastest, %.2f times as fast as %s. ", batch(best), speed(best) / speed(0), batch(0)
        printf "The largest batch that fsdp-memprobe expects to fit into %s is %s%s", memory, largest, largest == most ? " or more (MAX_BATCH ends the search)" : ""
        if (batch(best) == largest) printf ", the fastest as well"
        else printf ", which is %.0f %% slower than the fastest", 100 * (1 - speed(gpus ? best : runs - 1) / speed(best))
        print "."
        if (retries) printf "Alloc retries begin at %s sequences: %d of them.\n", at, retries
        else if (gpus) print "No run had alloc retries."
        else print "CPUs have no alloc retries: where memory ends, a run does."
        print ""'
    if [[ -n $ran_out ]]; then printf 'Out of memory with%s sequences.\n\n' "$ran_out"; fi
}

# Says so if step times scatter too much to tell settings apart.
tell_scatter() {
    of_runs '
        for (run = 0; run < runs; ++run) {
            share = speed(run) > 0 ? value[run, "tokens_per_second.spread"] / speed(run) : 0
            if (share > widest) widest = share
        }
        if (widest > 0.1) printf "Steps of a run scatter by up to %.0f %%: busy nodes, or very short steps. More REPEATS and STEPS tell more.\n\n", 100 * widest'
}

# Fits a line to time per step over batch size by least squares.
more_of_9() {
    of_runs '
        for (run = 0; run < runs; ++run) { x = batch(run); y = seconds(run); n++; sx += x; sy += y; sxx += x * x; sxy += x * y }
        if (n < 2 || n * sxx == sx * sx) exit
        slope = (n * sxy - sx * sy) / (n * sxx - sx * sx); start = (sy - slope * sx) / n
        last = runs - 1
        printf "From %s to %s sequences per rank, %.1f times as many, a step takes %.1f times as long, and tokens per second become %.2f times as many. ", batch(0), batch(last), batch(last) / batch(0), seconds(last) / seconds(0), speed(last) / speed(0)
        if (start > 0) printf "By a line through all of them a step takes %.3g s and %.3g s more for each sequence: what does not depend on the batch is half of a step of %.1f sequences.\n\n", start, slope, start / slope
        else printf "By a line through all of them each sequence takes %.3g s, and nothing is left that would not depend on the batch.\n\n", slope'
}

more_of_5() {
    local table sharding=full-shard,grad-shard,no-shard
    if ((RANKS % 2 == 0)); then sharding=all; fi
    split_words "$hybrid_group"
    table=$(probe --search model --sharding "$sharding" --batch-size "$BATCH_SIZE" "${words_of[@]}" --json --quiet | flat)
    printf 'The largest model of this width that each can train with %s sequences per rank, in %s, as fsdp-memprobe --search model predicts:\n\n' \
        "$BATCH_SIZE" "${MEMORY:-a GPU}${MEMORY:+ per rank}"
    printf '| sharding | layers | parameters | memory |\n| --- | ---: | ---: | ---: |\n'
    awk -F '\t' 'split($1, part, ".") == 3 && part[1] == "combinations" {
            value[part[2], part[3]] = $2
            if (part[2] + 1 > n) n = part[2] + 1
        }
        END {
            for (i = 0; i < n; ++i) {
                name = value[i, "sharding"]; parameters[name] = value[i, "largest_parameters"]
                printf "| %s | %s%s | %.1f M | %.0f MiB |\n", name, value[i, "largest_layers"], value[i, "search_ended"] == "true" ? "+" : "", parameters[name] / 1e6, value[i, "needed_bytes"] / 1048576
            }
            if (parameters["no-shard"] > 0) printf "\nfull-shard trains %.2f times the parameters of no-shard.\n\n", parameters["full-shard"] / parameters["no-shard"]
            else print "\nWithout sharding not even one layer fits.\n"
        }' <<<"$table"
}

more_of_6() {
    of_runs 'for (run = 0; run < runs; ++run) printf "%s multiplies by: %s.%s", name[run], value[run, "products"], run + 1 < runs ? " " : "\n\n"'
}

more_of_7() {
    local dir bytes=0 seconds=''
    for dir in "${dirs[@]}"; do # all repeats write one file
        if [[ ${dir##*/} != checkpoint-full* ]]; then continue; fi
        bytes=$(stat -c %s "$out/full.pt" 2>/dev/null || echo 0)
        seconds=$(sed -nE 's/.*full      .* in ([0-9.]+) s$/\1/p' "$out/logs/${dir##*/}.log" 2>/dev/null | tail -n 1) || true
    done
    of_runs '
        for (run = 0; run < runs; ++run) {
            if (name[run] == "checkpoint-local") here = run
            if (value[run, "last_loss"] ~ /[0-9]/) loss[name[run]] = value[run, "last_loss"]
        }
        bytes = '"$bytes"'; took = "'"$seconds"'"
        has_local = here != "" && value[here, "saves.0.bytes"] > 0
        if (has_local || bytes) printf "| checkpoint | size | written in | training waited |\n| --- | ---: | ---: | ---: |\n"
        if (has_local) printf "| local, a file per rank | %s | %.2f s | %.2f s |\n", mib(value[here, "saves.0.bytes"]), value[here, "saves.0.seconds"], value[here, "saves.0.waited_seconds"]
        if (bytes) printf "| full, one file | %s | %s s | until it is written |\n", mib(bytes), took == "" ? "?" : took
        if (has_local || bytes) print ""
        for (i = split("full local", kinds, " "); i && "uninterrupted" in loss; --i) {
            if (!(("resume-" kinds[i]) in loss)) continue
            last = loss["resume-" kinds[i]]
            printf "Gone on from the %s checkpoint the last loss is %s the uninterrupted run has.%s", kinds[i], last == loss["uninterrupted"] ? "the one that" : "another (" last ") than", i == 1 ? "" : " "
            told = 1
        }
        if (told) print "\n"'
}

# Parts of finished lessons, in their order.
write_page() {
    local lesson first
    local -a lessons=()
    for lesson in "$out"/lesson-[1-9].md; do
        if [[ -e $lesson && $(cat "$lesson.settings" 2>/dev/null) == "$(settings)" ]]; then lessons+=("$lesson"); fi
    done
    if ((${#lessons[@]} == 0)); then return; fi
    first=${one_job:-}
    if [[ -z $first ]]; then first=$(find "$out/runs" -mindepth 2 -maxdepth 2 -name job.json | sort | head -n 1); fi
    {
        printf '# The lessons, here\n\n'
        printf 'minGPT of %s layers, %s wide, %s heads, sequences of %s tokens, %s per rank, %s; %s ranks on %s%s; %s steps a run%s, by fsdp-finetune %s.\n' \
            "$NUM_LAYERS" "$EMBED_SIZE" "$NUM_HEADS" "$SEQ_LEN" "$BATCH_SIZE" "$PRECISION" "$RANKS" "$(hardware "$first")" \
            "${MEMORY:+ with $MEMORY each where memory is the question}" "$STEPS" "$( ((REPEATS > 1)) && echo ", $REPEATS times" || true)" \
            "$(figure program_version <"$first")"
        printf 'tokens/s and s/step are medians over all steps except the first two; ± is half the interquartile range.\n'
        for lesson in "${lessons[@]}"; do
            echo
            cat "$lesson"
        done
    } >"$out/lessons.md.tmp"
    mv "$out/lessons.md.tmp" "$out/lessons.md"
}
# hardware JOB_JSON
hardware() {
    local device nodes
    device=$(figure device <"$1")
    nodes=$(figure nodes <"$1")
    if [[ $device == cpu ]]; then
        device=$(sed -nE 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
        device="${device:-this processor}, $(nproc) cores"
    fi
    echo "$nodes node$( ((nodes == 1)) || echo s), $device"
}
