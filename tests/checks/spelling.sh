#!/usr/bin/env bash
# Fails on words in pages, sources and scripts that codespell knows as misspelt.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v codespell >/dev/null || { echo "SKIPPED: codespell is not installed: apt-get install -y codespell" && exit 77; }
# preemptable: the name of Polaris's queue; the others are names in formats (seperator: in GGUF's keys).
codespell --ignore-words-list preemptable,crate,nd,ot,bu,seperator ./*.md docs apps lib scripts slurm pbs packaging cmake examples \
    tests/cli tests/cluster tests/checks
