# shellcheck shell=bash disable=SC2154 # sourced by scripts/dist, which sets the variables
# Ends packing: writes the list of contents, the tarball, its checksum and its signature. The same content gives the same
# bytes.

note_packed() { printf '%s\t%s\n' "$1" "$2" >>"$packed"; } # PATH BELOW TOP, ORIGIN

# Description and date of the sources: those of the commit, if the sources are a git clone.
if commit=$(git -C "$root" rev-parse HEAD 2>/dev/null); then
    made_of="commit $commit"
    if [[ -n $(git -C "$root" status --porcelain 2>/dev/null) ]]; then made_of+=", with changes"; fi
    epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
else
    made_of="the sources of fsdp $(<"$root/VERSION")"
    epoch=${SOURCE_DATE_EPOCH:-$(stat -c %Y "$root/VERSION")}
fi

write_contents() {
    local packages
    packages=$(compgen -G "$venv/lib/python3*/site-packages" | head -n 1 || true)
    PYTHONDONTWRITEBYTECODE=1 python3 "$root/scripts/packing/sbom.py" --top "$top" --packed "$packed" \
        --version "$version" --source "$made_of" --epoch "$epoch" --site-packages "${packages:-/nonexistent}" \
        --out "$top/sbom.spdx.json"
}

pack() {
    local tarball compress
    # xz, because the tar of RHEL 8 does not read zstd. Both give the same bytes with any number of threads.
    if ((kit || quick == 0)); then
        tarball=$out/$name.tar.xz compress=(xz -T0 -q)
        # Addresses of calls become absolute, and so repeat.
        if [[ $arch == x86_64 ]]; then compress+=(--x86); fi
        local preset=4
        if ((with_cuda || quick)); then preset=0; elif ((kit)); then preset=9e; fi
        compress+=("--lzma2=preset=$preset")
    elif command -v zstd >/dev/null; then
        tarball=$out/$name.tar.zst compress=(zstd -T0 -3 -q)
    else
        tarball=$out/$name.tar.gz compress=(gzip -1 -n)
    fi
    rm -f "$tarball.asc"
    tar -C "$stage" --format=gnu --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
        --mode='u+rw,go+r-w,a+X' -cf - "$name" | "${compress[@]}" >"$tarball.part"
    mv -f "$tarball.part" "$tarball"
    (cd "$out" && sha256sum "${tarball##*/}" >"${tarball##*/}.sha256")
    cp "$top/sbom.spdx.json" "$out/$name.spdx.json"
    if [[ -n $sign ]]; then
        gpg --batch --yes --local-user "$sign" --armor --output "$tarball.asc" --detach-sign "$tarball"
    fi
    say "$tarball ($(du -h "$tarball" | cut -f1); unpacked $(du -sh "$top" | cut -f1))"
}
