-- fsdp for Lmod: installed as PREFIX/share/modulefiles/fsdp/VERSION.lua, by make install and in the tarball.
--   module use PREFIX/share/modulefiles && module load fsdp
-- This file finds PREFIX from its own path. If a site keeps module files elsewhere, set it here:
local prefix = ""
-- Load the site's MPI here if the tarball was built without one.
-- depends_on("cray-mpich-abi")

if prefix == "" then prefix = myFileName():match("^(.*)/share/modulefiles/[^/]+/[^/]+$") or "" end
if prefix == "" or not isFile(pathJoin(prefix, "bin/fsdp-finetune")) then
   LmodError("fsdp: there is no bin/fsdp-finetune in '" .. prefix .. "': set prefix in " .. myFileName())
end

help([[
Fully sharded data parallel training of language models: fsdp-finetune, fsdp-eval, fsdp-ckpt-convert, fsdp-memprobe,
fsdp-bf16check, fsdp-download. Start with: man fsdp-finetune
]])
whatis("Name: fsdp")
whatis("Version: " .. myModuleVersion())
whatis("Category: machine learning")
whatis("Description: fully sharded data parallel training of language models on Slurm and PBS clusters")
conflict("fsdp")

setenv("FSDP_PREFIX", prefix)
prepend_path("PATH", pathJoin(prefix, "bin"))
-- The empty last entry stands for the system's own manual pages.
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
append_path("MANPATH", "")
if isDir(pathJoin(prefix, "lib/cmake/fsdp")) then
   prepend_path("CMAKE_PREFIX_PATH", prefix)
   prepend_path("PKG_CONFIG_PATH", pathJoin(prefix, "lib/pkgconfig"))
end
local completion = pathJoin(prefix, "share/bash-completion/completions/fsdp")
if myShellName() == "bash" and isFile(completion) then
   execute{cmd = "source '" .. completion .. "'", modeA = {"load"}}
end
