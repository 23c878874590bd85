#!/usr/bin/env bash
# Tests the tarball of scripts/dist and an installed tree in a folder unrelated to the sources: programs start, train and
# evaluate with a bare environment; the tarball's programs need no library of the source tree.
#   FSDP_BUILD   the build folder
set -euo pipefail
source "$(dirname "$0")/common.sh"

command -v patchelf >/dev/null || skip "no patchelf: apt-get install -y patchelf"
bare=(env -i PATH=/usr/bin:/bin OMP_NUM_THREADS=1)
cd "$work"

FSDP_BUILD_DIR=$FSDP_BUILD "$FSDP_SOURCE/scripts/dist" --no-build --quick --out "$work"
tarball=$(compgen -G "$work/fsdp-*.tar.*[tz]")
sha256sum -c --quiet "${tarball##*/}.sha256" || fail "the tarball is not what its .sha256 says"
tar -xf "$tarball"
cd "$work"/fsdp-*/
for file in LICENSE README sbom.spdx.json share/modulefiles/fsdp data/shakespeare/train.h5 data/chess/validation.jsonl licenses slurm/mingpt.sh pbs/mingpt.pbs \
    slurm/chess_pipeline.sh pbs/chess_pipeline.sh scripts/jobs/common.sh; do
    [[ -e $file ]] || fail "the tarball lacks $file"
done
"$FSDP_PYTHON" "$FSDP_SOURCE/tests/checks/doc_links.py" --root . || fail "links in the tarball's pages lead nowhere"
for library in lib/*.so*; do
    grep -qF "\"./$library\"" sbom.spdx.json || fail "sbom.spdx.json does not name $library"
done
for program in bin/fsdp-*; do
    libraries=$("${bare[@]}" ldd "$program")
    if grep -E "not found|$FSDP_SOURCE|$FSDP_BUILD" <<<"$libraries"; then fail "$program needs these from outside the tarball"; fi
    "${bare[@]}" "$program" --version || fail "$program --version ended with $?"
done

mpiexec=$FSDP_MPIEXEC # a site's own MPI is not packed
if [[ -x bin/mpiexec ]]; then
    mpiexec=bin/mpiexec
    "${bare[@]}" bin/hide-hydra-banner </dev/null || fail "what bin/mpiexec hides hydra's words by ended with $?"
fi
"${bare[@]}" "$mpiexec" -n 2 bin/fsdp-finetune --model mingpt --num-layers 2 --num-heads 2 --embed-size 32 --seq-len 32 \
    --batch-size 2 --max-steps 3 --device cpu --precision float32 --train-data data/shakespeare/train.h5 --run-name tarball ||
    fail "training ended with $?"
"${bare[@]}" "$mpiexec" -n 2 bin/fsdp-eval runs/tarball/checkpoints/latest --data data/shakespeare/validation.h5 --json \
    >eval.json || fail "the evaluation ended with $?"
"${bare[@]}" "$mpiexec" -n 2 bin/fsdp-ckpt-convert runs/tarball/checkpoints/latest tarball.pt ||
    fail "the conversion under MPI ended with $?"
"${bare[@]}" bin/fsdp-ckpt-convert --verify runs/tarball/checkpoints/latest tarball.pt || fail "the converted file differs"
for model in llama qwen; do
    "${bare[@]}" "$FSDP_PYTHON" "scripts/tiny_$model" "$work/tiny-$model" || fail "scripts/tiny_$model ended with $?"
    "${bare[@]}" bin/fsdp-ckpt-convert --inspect "$work/tiny-$model" >/dev/null || fail "scripts/tiny_$model made no model"
done
cat eval.json
"$FSDP_PYTHON" -c 'import json; loss = json.load(open("eval.json"))["loss"]; assert 9 < loss < 12, loss' ||
    fail "the loss of a model that has hardly learned is about ln 50257 = 10.8"

cmake --install "$FSDP_BUILD" --prefix "$work/installed" >/dev/null
for program in "$work"/installed/bin/fsdp-*; do
    "${bare[@]}" "$program" --version >/dev/null || fail "installed $program --version ended with $?"
done
"$FSDP_PYTHON" "$FSDP_SOURCE/tests/checks/doc_links.py" --root "$work/installed/share/doc/fsdp" || fail "links in installed pages lead nowhere"
# An installed job script finds the shared scripts, the programs and the data.
(cd "$work" && "${bare[@]}" bash "$work/installed/share/fsdp/slurm/chess_pipeline.sh" --dry-run) >pipeline.out ||
    fail "the installed chess_pipeline.sh --dry-run ended with $?: $(<pipeline.out)"
grep -q "^finetune" pipeline.out || fail "the installed chess_pipeline.sh does not say what it would submit"
