# Packages for people without root: unpacked into .deps/sysroot instead of installed (docs/install.md, "Without root").
# shellcheck shell=bash disable=SC2154 # sourced by scripts/setup, which sets the variables
packages_tool=$root/scripts/without_root/packages.py package_list=$root/scripts/without_root/debian12.txt

can_be_root() { ((EUID == 0)) || sudo -n true 2>/dev/null; }

# new_enough_gcc: whether g++ is GCC 11 or later and has a C++ library. (Clang calls itself GCC 4.)
new_enough_gcc() {
    local version
    version=$(g++ -dumpversion 2>/dev/null) && ((${version%%.*} >= 11)) && g++ -x c++ -E - >/dev/null 2>&1 <<<'#include <bit>'
}

# site_has_libraries: whether the tools are there, and the libraries that the build asks pkg-config for, by the site's modules.
site_has_libraries() {
    command -v c++ && command -v cmake && command -v python3 &&
        pkg-config --exists libpcre2-8 libutf8proc sentencepiece libdeflate libzstd yaml-0.1
} >/dev/null 2>&1

# unpacked_kind: prints apt where the system's own packages and compiler are new enough, else list (debian12.txt).
unpacked_kind() {
    local system='' choice=''
    # Later calls keep to the first choice.
    read -r choice _ 2>/dev/null <"$unpacked/ready" || true
    if [[ $choice == apt && ${FSDP_PACKAGES:-} != debian12 || $choice == list ]]; then
        echo "$choice"
        return
    fi
    system=$(sed -nE 's/^(ID|VERSION_ID)="?([a-z0-9.]*)"?$/\2/p' /etc/os-release 2>/dev/null | sort -r | paste -sd' ' || true)
    if [[ ${FSDP_PACKAGES:-} != debian12 && $system =~ ^(debian\ (1[2-9]|[2-9].)|ubuntu\ (2[2-9]|[3-9].)\..*)$ ]] &&
        command -v apt-get >/dev/null && new_enough_gcc; then
        echo apt
    elif [[ $(uname -m) == x86_64 ]]; then
        echo list
    else
        die "without root, this system needs g++ 11 or later on PATH and the libraries of docs/install.md by modules, conda or Spack: Debian's packages are listed for x86-64 alone"
    fi
}

# unpacked_packages: prints the names of the packages in .deps/sysroot, none if unpacking was interrupted.
unpacked_packages() { if [[ -e $unpacked/ready ]]; then sed -n 's| /$||p' "$unpacked/packages"; fi; }

# list_is_unpacked: whether .deps/sysroot holds this very list, completely.
list_is_unpacked() { [[ $(cat "$unpacked/ready" 2>/dev/null) == "list $(sha256sum <"$package_list")" ]]; }

# apt_as_user ARGUMENTS...: apt-get with the system's sources and keys, and all that it writes in .deps/apt.
apt_as_user() {
    local apt=$root/.deps/apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    cat >"$apt/conf" <<EOF
Dir::State::lists "$apt/lists";
Dir::Cache "$apt";
Dir::Cache::archives "$apt/archives";
Dir::Log "$apt";
Debug::NoLocking "true";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
EOF
    apt-get -c "$apt/conf" -q "$@"
}

# list_unpacked KIND NAME...: prints what unpack_packages would fetch.
list_unpacked() {
    if [[ $1 == list ]]; then
        python3 "$packages_tool" list "$package_list" ${FSDP_DEBIAN_MIRROR:+--from="$FSDP_DEBIAN_MIRROR"}
    else
        rm -f "$root"/.deps/apt/archives/*.deb # apt-get does not name what it has
        apt_as_user update >/dev/null
        apt_as_user -o Acquire::ForceHash=SHA256 install --print-uris -y --no-install-recommends "${@:2}" | sed -nE "s/^'([^']*)' (\S+) (\S+) (\S*)$/\4 \1/p"
    fi
}

# unpack_packages KIND NAME...: brings .deps/sysroot to hold the list, or these packages of the system's own and what they need.
unpack_packages() {
    local kind=$1 folder=$root/.deps/packages log=$root/.deps/apt.log own_libc='' gcc gxx
    local -a files=()
    shift
    mkdir -p "$root/.deps"
    if [[ $kind == list ]]; then
        python3 "$packages_tool" fetch "$package_list" "$folder" ${FSDP_DEBIAN_MIRROR:+--from="$FSDP_DEBIAN_MIRROR"}
        mapfile -t files < <(sed -nE "s|^[0-9a-f]{64} .*/|$folder/|p" "$package_list")
        rm -rf "$unpacked"
        hash -r # a python3 in .deps/sysroot is gone
        own_libc=--own-libc gcc=$unpacked/usr/bin/gcc-12 gxx=$unpacked/usr/bin/g++-12
    else
        gcc=$(PATH=${PATH//"$unpacked/compilers:"/} command -v gcc)
        gxx=$(PATH=${PATH//"$unpacked/compilers:"/} command -v g++)
        rm -f "$root"/.deps/apt/archives/*.deb
        say "downloading packages, without installing: $*"
        { apt_as_user update && apt_as_user install --download-only -y --no-install-recommends "$@"; } >"$log" 2>&1 || {
            tail -n 5 "$log" >&2
            die "apt-get could not download $*: is its package source reachable? (log: .deps/apt.log)"
        }
        # Programs use the system's loader, which takes no other C library.
        mapfile -t files < <(compgen -G "$root/.deps/apt/archives/*.deb" | grep -vE '/libc(6|-bin)_')
        if [[ $(cat "$unpacked/ready" 2>/dev/null) != apt ]]; then rm -rf "$unpacked"; fi
    fi
    rm -f "$unpacked/ready"
    say "unpacking ${#files[@]} packages into .deps/sysroot"
    python3 "$packages_tool" unpack "$unpacked" "${files[@]}"
    python3 "$packages_tool" connect "$unpacked" $own_libc
    write_compilers "$gcc" "$gxx" "$own_libc"
    # Debian keeps certificates one by one; installing the package would join them.
    if compgen -G "$unpacked/usr/share/ca-certificates/mozilla/*.crt" >/dev/null; then
        cat "$unpacked"/usr/share/ca-certificates/mozilla/*.crt >"$unpacked/certificates.pem"
    fi
    if [[ $kind == list ]]; then kind+=" $(sha256sum <"$package_list")"; fi
    echo "$kind" >"$unpacked/ready"
    use_unpacked
}

# write_compilers GCC GXX OWN_LIBC: gcc and g++ whose programs find the libraries in .deps/sysroot, and its C library if it has
# one. Programs then start through its loader, which is named in them: /proc/self/exe and ps still show the program.
write_compilers() {
    local folder=$unpacked/compilers libraries parts='' flags name
    libraries=$unpacked/usr/lib/$(uname -m)-linux-gnu
    mkdir -p "$folder"
    flags="-specs=$folder/specs"
    printf '*link:\n+ -rpath %s -rpath-link %s' "$libraries" "$libraries" >"$folder/specs"
    if [[ -n $3 ]]; then
        flags+=" --sysroot=$unpacked -B$unpacked/usr/bin"
        # The site's MPI has libraries of its own, which the linker need not find. Older libraries ask for the parts of the C
        # library by name; they must not load the system's.
        for name in lib{pthread.so.0,dl.so.2,rt.so.1,m.so.6,mvec.so.1,util.so.1,resolv.so.2,anl.so.1}; do parts+=" $libraries/$name"; done
        printf ' --allow-shlib-undefined %%{!shared:%%{!static:%%{!r:-dynamic-linker %s}}}' \
            "$(compgen -G "$unpacked/usr/lib64/ld-linux*")" >>"$folder/specs"
        printf '\n\n*lib:\n+ %%{!static:%%{!r:--push-state --no-as-needed%s --pop-state}}' "$parts" >>"$folder/specs"
    fi
    printf '\n\n' >>"$folder/specs"
    for name in "gcc $1" "g++ $2"; do
        printf '#!/bin/sh\nexec %s %s "$@"\n' "${name#* }" "$flags" >"$folder/${name%% *}"
        chmod 755 "$folder/${name%% *}"
    done
}
