#%Module
# fsdp for environment-modules (4.2 or later): installed as PREFIX/share/modulefiles/fsdp/VERSION, by make install and
# in the tarball.   module use PREFIX/share/modulefiles && module load fsdp
# This file finds PREFIX from its own path. If a site keeps module files elsewhere, set it here:
set prefix ""
# Load the site's MPI here if the tarball was built without one.
# module load cray-mpich-abi

if {$prefix eq ""} {
    regexp {^(.*)/share/modulefiles/[^/]+/[^/]+$} [file normalize $ModulesCurrentModulefile] -> prefix
}
if {$prefix eq "" || ![file isfile $prefix/bin/fsdp-finetune]} {
    error "fsdp: there is no bin/fsdp-finetune in '$prefix': set prefix in $ModulesCurrentModulefile"
}

proc ModulesHelp {} {
    puts stderr "Fully sharded data parallel training of language models: fsdp-finetune, fsdp-eval, fsdp-ckpt-convert,"
    puts stderr "fsdp-memprobe, fsdp-bf16check, fsdp-download. Start with: man fsdp-finetune"
}
module-whatis "fully sharded data parallel training of language models on Slurm and PBS clusters"
conflict fsdp

setenv FSDP_PREFIX $prefix
prepend-path PATH $prefix/bin
# The empty last entry stands for the system's own manual pages.
prepend-path MANPATH $prefix/share/man
append-path MANPATH {}
if {[file isdirectory $prefix/lib/cmake/fsdp]} {
    prepend-path CMAKE_PREFIX_PATH $prefix
    prepend-path PKG_CONFIG_PATH $prefix/lib/pkgconfig
}
set completion $prefix/share/bash-completion/completions/fsdp
if {[module-info mode load] && [module-info shell bash] && [file isfile $completion]} {
    puts stdout "source '$completion';"
}
