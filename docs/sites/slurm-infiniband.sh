# A site file for a Slurm cluster with InfiniBand, such as Della (Princeton): RHEL, Lmod or environment-modules, A100 or H100.
# Copy it to ~/.config/fsdp/site.sh; scripts/site-check fills in most of it. Not tried on such a cluster by this project.
# shellcheck shell=bash disable=SC2034
: "${ACCOUNT:=GROUP}"
: "${PARTITION:=gpu}"
: "${CONSTRAINT:=gpu80}"        # a feature of the nodes: sinfo -o '%f %G'
: "${GPUS:=4}"                  # per node, one rank for each
: "${WALLTIME:=12:00:00}"
: "${MAIL:=$USER@example.edu}"
: "${SUBMIT:=--cpus-per-task=8 --mem=0}"

# Compiler, MPI and CUDA of the build. A job needs those that the programs were linked with.
module load gcc-toolset/12 openmpi/gcc/4.1.6
# Open MPI is started by srun --mpi=pmix, the tarball's MPICH by pmi2. The scripts try; this says so.
: "${SRUN_MPI:=pmix}"

# NCCL finds InfiniBand by itself. Name the adapters where others are for storage only.
export NCCL_IB_HCA="${NCCL_IB_HCA-mlx5}"

: "${OUT_DIR:=/scratch/gpfs/$USER/fsdp/runs}"
export HF_HOME="${HF_HOME-/scratch/gpfs/$USER/fsdp/hf}"
# Compute nodes have no internet: run fsdp-download on a login node.
# : "${STAGE:=\$TMPDIR}"        # the nodes' own disk, in each job
