# The site file: what all scripts have to know of the machine. Source this file and call read_site.
# shellcheck shell=bash

# Prints the path of the site file: FSDP_SITE, which may be empty for none, else the user's own; it may not exist.
site_file() { echo "${FSDP_SITE-${XDG_CONFIG_HOME:-${HOME:-}/.config}/fsdp/site.sh}"; }

# Runs the site file, if there is one, in this shell. Returns 1 if it cannot be read or parsed. Modules are functions that
# only login shells have, and that stop at unset variables under `set -u`.
read_site() {
    local file init flags=$-
    if [[ ${MAIL:-} == /* ]]; then unset MAIL; fi # a login shell's: the file of the user's mail, no address
    file=$(site_file)
    [[ -n $file ]] || return 0
    if [[ ! -e $file && -z ${FSDP_SITE:-} ]]; then return 0; fi
    [[ -r $file ]] || { echo "FSDP_SITE=$file: no such file, or it cannot be read" >&2; return 1; }
    if grep -q $'\r' "$file"; then
        echo "$file: has line ends of Windows, which become part of the values: sed -i 's/\r\$//' $file" >&2
        return 1
    fi
    bash -n "$file" || return 1
    set +eu
    if ! declare -F module >/dev/null; then
        for init in "${LMOD_PKG:-/nowhere}/init/bash" "${MODULESHOME:-/nowhere}/init/bash" /etc/profile.d/{lmod,modules,zz-modules}.sh \
            /usr/share/{lmod/lmod,modules,Modules}/init/bash; do
            # shellcheck disable=SC1090
            if [[ -r $init ]]; then source "$init" >/dev/null 2>&1; break; fi
        done
    fi
    # shellcheck disable=SC1090
    source "$file"
    if [[ $flags == *e* ]]; then set -e; fi
    if [[ $flags == *u* ]]; then set -u; fi
}
