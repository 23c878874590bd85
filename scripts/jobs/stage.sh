#!/bin/bash
# Copies files and folders to a folder of this node, below their whole paths, and checks what arrived by its SHA-256.
#
#   bash stage.sh FOLDER PATH...
#
# Jobs on one node take turns. A file that an earlier job copied whole, and that has not changed, is left alone. Of a
# folder, files of weights that programs for PyTorch read, but fsdp does not, are left out, and so are hidden files.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[[ $# -ge 2 && $1 == /* ]] || { echo "usage: stage.sh FOLDER PATH..." >&2; exit 2; }
stage=$1
shift
say() { printf '%s %s: %s\n' "$(date +%FT%T)" "$(hostname -s 2>/dev/null || uname -n)" "$*"; }

# The mark of a whole copy: size and time of the original.
mark_of() { stat -L -c '%s %Y' "$1"; }
is_there() { [[ -f $stage$1 && $(cat "$stage$1.staged" 2>/dev/null) == "$(mark_of "$1")" && $(stat -c %s "$stage$1") == "$(stat -L -c %s "$1")" ]]; }

# Reads the original once: its hash is taken on the way, the copy's from what the node's disk returns.
copy() {
    local copy=$stage$1 part=$stage$1.part.$$ mark sent got
    mark=$(mark_of "$1")
    mkdir -p "$(dirname "$copy")"
    rm -f "$copy.staged"
    sent=$(tee "$part" <"$1" | sha256sum) || { rm -f "$part"; say "$1: cannot be copied to $stage"; return 1; }
    sync "$part" 2>/dev/null || sync
    got=$(sha256sum <"$part")
    if [[ $sent != "$got" || $mark != "$(mark_of "$1")" ]]; then
        rm -f "$part"
        say "$1: the copy differs from the original, or the original changed meanwhile"
        return 1
    fi
    mv -f "$part" "$copy"
    echo "$mark" >"$copy.staged"
}

files=()
for path; do
    if [[ -d $path ]]; then
        mapfile -t -O "${#files[@]}" files < <(find -L "$path" -mindepth 1 -name '.*' -prune -o -type f ! -name '*.bin' ! -name '*.pt' \
            ! -name '*.pth' ! -name '*.msgpack' ! -name '*.onnx' ! -name '*.gguf' ! -name '*.h5' -print | sort)
    else
        files+=("$path")
    fi
done
mkdir -p "$stage"
[[ -O $stage ]] || { say "$stage belongs to another user"; exit 1; }
exec 9>"$stage/.lock"
flock 9
find "$stage" -name '*.part.*' -delete # of jobs that were killed
missing=() bytes=0
for file in "${files[@]}"; do
    if is_there "$file"; then continue; fi
    missing+=("$file")
    bytes=$((bytes + $(stat -L -c %s "$file")))
done
if ((${#missing[@]} == 0)); then
    say "all ${#files[@]} files are in $stage"
    exit
fi
free=$(df --output=avail -B1 "$stage" | tail -n 1)
if ((bytes > free)); then
    say "$stage has $((free >> 20)) MiB free, and $((bytes >> 20)) MiB are to be copied"
    exit 1
fi
started=$SECONDS
children=() failed=0
for file in "${missing[@]}"; do
    copy "$file" &
    children+=($!)
    if ((${#children[@]} == 4)); then
        wait "${children[0]}" || failed=1
        children=("${children[@]:1}")
    fi
done
for child in "${children[@]}"; do wait "$child" || failed=1; done
if ((failed)); then exit 1; fi
say "${#missing[@]} of ${#files[@]} files, $((bytes >> 20)) MiB, copied to $stage in $((SECONDS - started)) s"
