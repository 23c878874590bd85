# A site file for an HPE Cray EX with Slurm and Slingshot, such as Perlmutter (NERSC): 4 A100 per node, Cray MPICH.
# Copy it to ~/.config/fsdp/site.sh; scripts/site-check fills in most of it. Not tried on such a cluster by this project.
# shellcheck shell=bash disable=SC2034
: "${ACCOUNT:=PROJECT}"
: "${QOS:=regular}"
: "${CONSTRAINT:=gpu&hbm80g}"
: "${GPUS:=4}"                  # per node, one rank for each
: "${SUBMIT:=--cpus-per-task=32 --gpu-bind=none}"

# Cray's MPI, which srun starts, in place of the tarball's MPICH (the same ABI). Programs built here need cray-mpich itself.
module load PrgEnv-gnu cudatoolkit cray-mpich-abi
export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH"
: "${SRUN_MPI:=cray_shasta}"
export MPICH_GPU_SUPPORT_ENABLED="${MPICH_GPU_SUPPORT_ENABLED-0}"   # MPI moves host memory only

# NCCL over Slingshot: the site's module of aws-ofi-nccl sets LD_LIBRARY_PATH. Without the plugin NCCL stops.
module load nccl
export NCCL_NET="${NCCL_NET-AWS Libfabric}" NCCL_CROSS_NIC="${NCCL_CROSS_NIC-1}" NCCL_NET_GDR_LEVEL="${NCCL_NET_GDR_LEVEL-PHB}"
export FI_CXI_DISABLE_HOST_REGISTER="${FI_CXI_DISABLE_HOST_REGISTER-1}" FI_MR_CACHE_MONITOR="${FI_MR_CACHE_MONITOR-userfaultfd}"
export FI_CXI_DEFAULT_CQ_SIZE="${FI_CXI_DEFAULT_CQ_SIZE-131072}"

: "${OUT_DIR:=$SCRATCH/fsdp/runs}"
export HF_HOME="${HF_HOME-$SCRATCH/fsdp/hf}"
