# SPDX-License-Identifier: BSD-3-Clause
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Fsdp(CMakePackage, CudaPackage):
    """Fully sharded data parallel training of language models on Slurm and PBS clusters, in C++
    on LibTorch: training, evaluation, conversion of checkpoints, prediction of memory."""

    # To build a local clone: spack dev-build, or, with --no-checksum, the archive that this
    # command writes into the current folder:
    #   git archive --prefix=fsdp-0.1.0/ -o fsdp-0.1.0.tar.gz HEAD
    manual_download = True
    url = f"file://{os.getcwd()}/fsdp-0.1.0.tar.gz"

    version("0.1.0")

    license("BSD-3-Clause", checked_by="the FSDP toolkit authors")

    variant("parquet", default=False, description="Read Parquet files")
    variant("uring", default=True, description="Offload to NVMe by io_uring, not by threads")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    # Python writes manual pages and completion.
    depends_on("python@3.9:", type="build")

    depends_on("mpi")
    # py-torch contains LibTorch. Only version 2.11 is built and tested.
    depends_on("py-torch@2.11 ~cuda", when="~cuda")
    depends_on("py-torch@2.11 +cuda +nccl", when="+cuda")
    depends_on("nccl", when="+cuda")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"py-torch cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
    depends_on("arrow +parquet", when="+parquet")
    depends_on("liburing", when="+uring")
    depends_on("cli11@2.1:")
    depends_on("curl@7.68:")
    depends_on("fmt@8:")
    depends_on("hdf5@1.10:")
    depends_on("libdeflate")
    depends_on("nlohmann-json@3.9:")
    depends_on("openssl@1.1:")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("libyaml")
    depends_on("sentencepiece@0.1.91:")
    depends_on("zlib-api")
    depends_on("zstd")

    conflicts("platform=darwin", msg="Linux only: memfd, /proc, io_uring")
    conflicts("platform=windows", msg="Linux only: memfd, /proc, io_uring")
    conflicts("%gcc@:10", msg="C++20 needs GCC 11 or later")

    sanity_check_is_file = [join_path("bin", "fsdp-finetune"), join_path("lib", "libfsdp.a")]

    def cmake_args(self):
        torch = self.spec["py-torch"].package.cmake_prefix_paths[0]
        args = [
            self.define("FSDP_BUILD_TESTS", False),
            self.define("FSDP_WERROR", False),
            self.define_from_variant("FSDP_CUDA", "cuda"),
            self.define("Torch_DIR", os.path.join(torch, "Torch")),
            self.define("MPI_CXX_COMPILER", self.spec["mpi"].mpicxx),
        ]
        if self.spec.satisfies("+parquet"):
            args.append(self.define("ArrowParquet_ROOT", self.spec["arrow"].prefix))
        else:
            args.append(self.define("CMAKE_DISABLE_FIND_PACKAGE_ArrowParquet", True))
        return args

    def setup_run_environment(self, env):
        env.set("FSDP_PREFIX", self.prefix)

    def test_versions(self):
        """the programs start"""
        for name in ["fsdp-ckpt-convert", "fsdp-download", "fsdp-finetune"]:
            with test_part(self, f"test_versions_{name}", purpose=f"{name} starts"):
                program = which(self.prefix.bin.join(name))
                assert str(self.version) in program("--version", output=str.split)
