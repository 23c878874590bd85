#!/usr/bin/env bash
# Checks that every shell script of the project parses and, if shellcheck is installed, passes it.
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t files < <(find .ci scripts slurm pbs tests -type f -exec grep -lE '^#!.*(/| )(ba)?sh$' {} + | sort)
((${#files[@]} > 5)) || { echo "only ${#files[@]} scripts found: is this the source tree?"; exit 1; }
bad=0
files+=(scripts/common.sh scripts/jobs/*.sh) # these are only sourced
for file in "${files[@]}"; do
    bash -n "$file" || bad=1
    [[ -x $file || $file == */common.sh || $file == scripts/jobs/* ]] || { echo "$file is not executable"; bad=1; }
done
if command -v shellcheck >/dev/null; then
    shellcheck --severity=warning -x -P SCRIPTDIR "${files[@]}" || bad=1
else
    echo "no shellcheck here: only parsed"
fi
# In a folder where building cannot work, scripts say so at once.
spaced=$(mktemp -d)/a\ clone
mkdir -p "$spaced"
cp -R scripts "$spaced"
for script in setup build; do
    if said=$("$spaced/scripts/$script" 2>&1) || [[ $said != *"its path holds a space"* ]]; then
        echo "scripts/$script in a folder with a space: $said"
        bad=1
    fi
done
rm -r "${spaced%/*}"
((bad)) || echo "${#files[@]} scripts are in order"
exit "$bad"
