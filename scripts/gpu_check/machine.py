"""Facts of this machine: programs, a launcher for ranks, PyTorch, a GPU, tools; and the environment in which they
work together."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # the project, or the unpacked tarball
REFERENCE = HERE / "reference.py"
# With a job's variables, programs and launcher would look for the ranks of the job.
OF_JOBS = ("SLURM_", "PBS_", "PMI_", "PMIX_", "PALS_")
NO_MPIEXEC = "no mpiexec beside the programs or on PATH: MPIEXEC names one"


class CannotRun(Exception):
    """The reason why nothing can be checked here."""


@dataclasses.dataclass
class Kit:
    """Programs of another build than the machine's, and the variables with which they run."""
    programs: pathlib.Path
    variables: dict
    version: str


class Machine:
    """`rehearses`: the GPU is that of a stub driver, which computes nothing."""

    def __init__(self, device, out, work, rehearses=False, llmc=None, old=None):
        self.device, self.work, self.logs, self.llmc = device, work, out / "logs", llmc
        self.computes_nothing, self.small = rehearses, rehearses or device == "cpu"
        self.of_pytorch = {}  # PyTorch's runs by model, for all stages of a call
        self.environment = self.own_environment()
        self.programs = self.find_programs()
        self.facts = self.ask_pytorch()
        self.tests = self.programs.parent / "tests"
        libraries = self.fit_to_pytorch(self.programs)
        self.thin = bool(libraries)
        self.environment |= libraries
        begin = time.monotonic()
        self.version = self.ask_version(self.programs, {})
        self.facts["program_seconds"] = time.monotonic() - begin
        self.old = old and self.other_kit(old)
        self.mpiexec = self.find_mpiexec()
        if device == "cuda" and not self.facts["gpus"]:
            raise CannotRun(f"no GPU: {self.facts.get('no_gpu', 'PyTorch sees none')}; --device cpu rehearses without one")
        if rehearses and not self.facts["gpu"].startswith("stub "):
            raise CannotRun(f"--rehearse judges no number, and {self.facts['gpu']} is no stub driver's GPU")
        self.logs.mkdir(parents=True, exist_ok=True)

    def own_environment(self):
        found = {name: value for name, value in os.environ.items() if not name.startswith(OF_JOBS)}
        # Start ranks by fork, and stay on this node's loopback: a machine may have no network, or a name that nothing resolves.
        found |= {"HYDRA_LAUNCHER": "fork", "HYDRA_IFACE": "lo", "FI_TCP_IFACE": "lo", "UCX_NET_DEVICES": "lo"}
        # Both sides multiply float32 exactly; files of killed programs and compiler caches are deleted with `work`.
        for name in ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"):
            found.pop(name, None)
        found |= {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.work), "TRITON_CACHE_DIR": str(self.work / "triton"),
                  "TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor")}
        if self.small:
            found["OMP_NUM_THREADS"] = "1"
        return found

    def ask_pytorch(self):
        begin = time.monotonic()
        asked = subprocess.run([sys.executable, HERE / "facts.py", self.device], env=self.environment,
                               capture_output=True, text=True, timeout=300, check=False)
        if asked.returncode:
            why = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise CannotRun(f"{sys.executable} has no PyTorch that works ({why}): set FSDP_PYTHON to one that has")
        return {**json.loads(asked.stdout.splitlines()[-1]), "import_seconds": time.monotonic() - begin}

    def find_programs(self):
        given = os.environ.get("FSDP_BIN")
        # The last: programs installed with PREFIX/share/fsdp are in PREFIX/bin.
        places = [pathlib.Path(given)] if given else [ROOT / "build/bin", ROOT / "bin", ROOT / "../../bin"]
        for place in places:
            if (place / "fsdp-finetune").exists():
                return place.resolve()
        raise CannotRun(f"no fsdp-finetune in {' nor '.join(map(str, places))}: scripts/build makes it; FSDP_BIN names another folder")

    def fit_to_pytorch(self, programs):
        """Returns the variables with which a tarball without LibTorch uses Python's. Its version must be that of the build, as LibTorch
        has no stable C++ ABI; the patch level may differ, as for the programs (scripts/packing/with_torch)."""
        mark = programs.parent / "lib/torch-version"
        if not mark.exists():
            return {}
        built, here = mark.read_text(encoding="utf-8").strip(), self.facts["torch"].partition("+")[0]
        if built.split(".")[:2] != here.split(".")[:2]:
            raise CannotRun(f"{programs} was built with LibTorch {built}, and {sys.executable} has PyTorch {here}")
        self.environment.pop("FSDP_TORCH", None)
        before = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": ":".join([*self.facts["folders"], *([before] if before else [])])}

    def ask_version(self, programs, variables):
        asked = subprocess.run([programs / "fsdp-finetune", "--version"], env={**self.environment, **variables}, capture_output=True,
                               text=True, timeout=120, check=False)
        if asked.returncode:
            raise CannotRun(f"{programs / 'fsdp-finetune'} --version ended with {asked.returncode}: {asked.stderr.strip()[:300]}")
        return asked.stdout.strip()

    def other_kit(self, folder):
        """Returns the programs of another kit, which load its own back end."""
        programs = (folder / "bin").resolve()
        variables = self.fit_to_pytorch(programs)
        return Kit(programs, variables, self.ask_version(programs, variables))

    def find_mpiexec(self):
        """Returns the launcher that came with the programs, else one on PATH, which may belong to another MPI."""
        given = os.environ.get("MPIEXEC")
        for place in [given] if given else [self.programs / "mpiexec", shutil.which("mpiexec")]:
            if place and os.access(place, os.X_OK):
                return pathlib.Path(place)
        return None

    def has_bf16(self):
        """Returns False on a GPU without bf16 units: fsdp-finetune refuses to emulate, and its speed would mean nothing."""
        return self.device == "cpu" or int(self.facts["capability"].partition(".")[0]) >= 8

    def has_fp8(self):
        """Returns True if the GPU has fp8 matrix products."""
        return self.device == "cuda" and tuple(map(int, self.facts["capability"].split("."))) >= (8, 9)

    def test_program(self, name):
        """Returns a program of tests/ with the variables that it needs; None if there is none."""
        moved = self.programs.parent / "lib/fsdp/libfsdp_cuda.so"
        program = self.tests / name
        return (program, {"FSDP_CUDA_LIBRARY": str(moved)} if moved.exists() else {}) if program.exists() else None

    def query_gpu(self, *fields):
        """Returns what nvidia-smi says about the GPU, {} if there is no nvidia-smi or it has no such GPU (a slice of one)."""
        tool = shutil.which("nvidia-smi")
        if tool is None or self.device != "cuda":
            return {}
        try:
            asked = subprocess.run([tool, "-i", self.facts["uuid"], f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                                   capture_output=True, text=True, check=False, timeout=60)
        except subprocess.TimeoutExpired:
            return {}
        values = [value.strip() for value in asked.stdout.strip().split(",")]
        return dict(zip(fields, values)) if asked.returncode == 0 and len(values) == len(fields) else {}

    def tool(self, name):
        """Returns a CUDA tool, from PATH or from its toolkit; None if there is none."""
        homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
        places = [shutil.which(name), *(pathlib.Path(home) / "bin" / name for home in homes if home)]
        return next((place for place in places if place and os.access(place, os.X_OK)), None)

    def summary(self):
        """Returns what the results depend on, without names of hosts and users."""
        found = {"device": self.device, "torch": self.facts["torch"], "cuda": self.facts["cuda"], "programs": self.version,
                 "thin": self.thin, **({"old_programs": self.old.version} if self.old else {})}
        if self.device == "cuda":
            found |= {name: self.facts[name] for name in ("gpu", "gpus", "gpu_bytes", "capability")}
            found |= {"driver": driver for driver in self.query_gpu("driver_version").values()}
        return found
