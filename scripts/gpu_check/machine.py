"""Facts of this machine: programs, a launcher for ranks, PyTorch, a GPU, tools; and the environment in which they
work together."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # the project, or the unpacked tarball
REFERENCE = HERE / "reference.py"
# With a job's variables, programs and launcher would look for the ranks of the job.
OF_JOBS = ("SLURM_", "PBS_", "PMI_", "PMIX_", "PALS_")


class CannotRun(Exception):
    """The reason why nothing can be checked here."""


class Machine:
    def __init__(self, device, out, work):
        self.device, self.work, self.logs = device, work, out / "logs"
        self.environment = self.own_environment()
        self.programs = self.find_programs()
        self.facts = self.ask_pytorch()
        self.tests = self.programs.parent / "tests"
        self.thin = self.fit_to_pytorch()
        self.version = self.ask_version()
        self.mpiexec = self.find_mpiexec()
        if device == "cuda" and not self.facts["gpus"]:
            raise CannotRun(f"no GPU: {self.facts.get('no_gpu', 'PyTorch sees none')}; --device cpu rehearses without one")
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
        if self.device == "cpu":
            found["OMP_NUM_THREADS"] = "1"
        return found

    def ask_pytorch(self):
        asked = subprocess.run([sys.executable, HERE / "facts.py", self.device], env=self.environment,
                               capture_output=True, text=True, timeout=300, check=False)
        if asked.returncode:
            why = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise CannotRun(f"{sys.executable} has no PyTorch that works ({why}): set FSDP_PYTHON to one that has")
        return json.loads(asked.stdout.splitlines()[-1])

    def find_programs(self):
        given = os.environ.get("FSDP_BIN")
        # The last: programs installed with PREFIX/share/fsdp are in PREFIX/bin.
        places = [pathlib.Path(given)] if given else [ROOT / "build/bin", ROOT / "bin", ROOT / "../../bin"]
        for place in places:
            if (place / "fsdp-finetune").exists():
                return place.resolve()
        raise CannotRun(f"no fsdp-finetune in {' nor '.join(map(str, places))}: scripts/build makes it; FSDP_BIN names another folder")

    def fit_to_pytorch(self):
        """Lets a tarball without LibTorch use Python's. It must be the version of the build: LibTorch has no stable C++ ABI."""
        mark = self.programs.parent / "lib/torch-version"
        if not mark.exists():
            return False
        built, here = mark.read_text(encoding="utf-8").strip(), self.facts["torch"].partition("+")[0]
        if built != here:
            raise CannotRun(f"these programs were built with LibTorch {built}, and {sys.executable} has PyTorch {here}")
        self.environment.pop("FSDP_TORCH", None)
        before = self.environment.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = ":".join([*self.facts["folders"], *([before] if before else [])])
        return True

    def ask_version(self):
        asked = subprocess.run([self.programs / "fsdp-finetune", "--version"], env=self.environment, capture_output=True,
                               text=True, timeout=120, check=False)
        if asked.returncode:
            raise CannotRun(f"fsdp-finetune --version ended with {asked.returncode}: {asked.stderr.strip()[:300]}")
        return asked.stdout.strip()

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

    def tool(self, name):
        """Returns a CUDA tool, from PATH or from its toolkit; None if there is none."""
        homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
        places = [shutil.which(name), *(pathlib.Path(home) / "bin" / name for home in homes if home)]
        return next((place for place in places if place and os.access(place, os.X_OK)), None)

    def summary(self):
        """Returns what the results depend on, without names of hosts and users."""
        found = {"device": self.device, "torch": self.facts["torch"], "cuda": self.facts["cuda"], "programs": self.version,
                 "thin": self.thin}
        if self.device == "cuda":
            found |= {name: self.facts[name] for name in ("gpu", "gpus", "gpu_bytes", "capability")}
            driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                                    text=True, check=False) if shutil.which("nvidia-smi") else None
            if driver and driver.returncode == 0:
                found["driver"] = driver.stdout.splitlines()[0].strip()
        return found
