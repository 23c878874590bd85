# A site file for Polaris (ALCF): PBS, 4 A100 of 40 GB and one EPYC of 32 cores per node, Slingshot.
# Copy it to ~/.config/fsdp/site.sh and fill in the project. Facts: docs.alcf.anl.gov/polaris; not tried there by this project.
# shellcheck shell=bash disable=SC2034
: "${ACCOUNT:=PROJECT}"
: "${PARTITION:=debug}"                   # the queue: debug, debug-scaling, prod, preemptable
: "${CONSTRAINT:=system=polaris}"         # in select
: "${SUBMIT:=-l filesystems=home:eagle}"
: "${GPUS:=4}"                            # one rank for each; GPU g is next to cores 8 (3 - g) and following
: "${CPU_BIND:=list:24:16:8:0}" "${DEPTH:=8}"

# Compilers and MPI of the build (scripts/setup), and Cray's MPI in place of the tarball's.
module load PrgEnv-gnu cray-mpich-abi
export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH:$LD_LIBRARY_PATH"

# NCCL over Slingshot; pbs/*.pbs set the other variables where this folder exists.
: "${NCCL_PLUGIN_DIR:=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib}"

# Homes are small. Compute nodes reach the internet through the proxy only.
: "${OUT_DIR:=/eagle/${ACCOUNT}/${USER}/fsdp/runs}"
export HF_HOME="${HF_HOME-/eagle/${ACCOUNT}/${USER}/fsdp/hf}"
export https_proxy="${https_proxy-http://proxy.alcf.anl.gov:3128}"
# Each node has 3.2 TB of NVMe, empty at the start of a job:
#   STAGE=/local/scratch bash pbs/train.pbs ...
