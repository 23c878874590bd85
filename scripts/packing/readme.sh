# shellcheck shell=bash disable=SC2154 # sourced by scripts/dist, which sets the variables
# The README of a tarball.
write_kit_readme() {
    cat <<TEXT
fsdp $version: scripts/gpu-check with what it runs. It needs a GPU and a python3 with PyTorch $(<"$top/lib/torch-version").

    python3 -m tarfile -e $name.tar.xz && cd $name
    scripts/gpu-check --help
    scripts/gpu-check contact

licenses/ holds what comes with the libraries in lib/.
TEXT
}

write_readme() {
    cat <<TEXT
fsdp $version: fully sharded training of language models on Slurm and PBS clusters.

Unpack it anywhere; nothing needs to be installed. From this folder:

    bin/mpiexec -n 2 bin/fsdp-finetune --model mingpt --num-layers 4 --num-heads 4 --embed-size 256 \\
        --train-data data/shakespeare/train.h5 --val-data data/shakespeare/validation.h5
    sbatch slurm/mingpt.sh          qsub -A PROJECT pbs/mingpt.pbs
    bash slurm/chess_pipeline.sh    fetches CodeLlama-7b and chess games, fine-tunes, converts, evaluates

data/ holds tokenized Shakespeare and chess games to try it with, README.md and docs/ the documentation, licenses/ what comes with the
libraries in lib/.

TEXT
    if ((thin)); then
        cat <<TEXT
LibTorch $(<"$top/lib/torch-version") is not here. The programs take the one in the folder FSDP_TORCH, else the one in LD_LIBRARY_PATH (a
module's), else that of python3's PyTorch. scripts/gpu-check checks the machine with python3's (docs/gpu-check.md).

TEXT
    fi
    if ((pack_mpi)); then
        cat <<'TEXT'
MPI: bin/mpiexec and lib/libmpi.so.12 are MPICH. It starts ranks on one node, by ssh on others, and under srun --mpi=pmi2.
A cluster's own MPI knows its network better. One that keeps MPICH's ABI (Cray MPICH through cray-mpich-abi, Intel MPI,
MVAPICH) takes its place when its library folder is first in LD_LIBRARY_PATH; start the ranks with its own launcher then.
For any other MPI build from source with its mpicxx on PATH.
TEXT
    else
        echo "MPI: the programs need the MPI they were built with, $mpi_prefix: load its module."
    fi
}
