# The launcher of the MPI that the programs here are linked to, for build/bin and for the tarball.
# shellcheck shell=bash disable=SC2154 # sourced by scripts/build and scripts/dist

# write_mpiexec FILE REAL: writes a launcher FILE that passes all arguments to REAL, a path or the name of a file beside
# FILE. A link would not work: hydra looks for its helper programs in the folder it was called from.
write_mpiexec() {
    local line
    printf -v line 'real=%q' "$2"
    mkdir -p "${1%/*}"
    {
        echo '#!/bin/sh'
        echo "$line"
        sed -n '/^# ---/,/^# --- end/{/^# ---/!p}' "$root/scripts/jobs/open_mpi.sh"
        sed -n '/^# ---/,$p' "$root/scripts/packing/mpiexec"
    } >"${1%/*}/.mpiexec.$$"
    chmod 755 "${1%/*}/.mpiexec.$$"
    mv -f "${1%/*}/.mpiexec.$$" "$1"
}
