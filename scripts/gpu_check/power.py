"""Clock and power of the GPU while a command runs: without them a rate says little, since a GPU at its limit of power slows
its clock down."""

import shutil
import statistics
import subprocess
import tempfile

FIELDS = {"clocks.sm": "sm_mhz", "power.draw": "watts", "temperature.gpu": "celsius"}
BUSY = 0.8  # of the largest power: samples of starts and ends are left out


class Sampled:
    """`with Sampled(machine) as gpu: run(); gpu.found`: medians while the GPU was busy, {} where there is no nvidia-smi."""

    def __init__(self, machine):
        self.machine, self.found, self.process, self.file = machine, {}, None, None

    def __enter__(self):
        tool = shutil.which("nvidia-smi")
        if tool and self.machine.device == "cuda":
            self.file = tempfile.TemporaryFile(dir=self.machine.work)
            self.process = subprocess.Popen([tool, "-i", self.machine.facts["uuid"], f"--query-gpu={','.join(FIELDS)}",
                                             "--format=csv,noheader,nounits", "-lms", "200"],
                                            stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.file.seek(0)
        self.found = medians(self.file.read().decode(errors="replace"))
        self.file.close()


def medians(text):
    samples = []
    for line in text.splitlines():
        try:
            values = [float(value) for value in line.split(",")]
        except ValueError:
            continue  # a torn last line, or a field that this GPU does not have
        if len(values) == len(FIELDS):
            samples.append(dict(zip(FIELDS.values(), values)))
    busy = [sample for sample in samples if sample["watts"] >= BUSY * max(each["watts"] for each in samples)]
    return {name: round(statistics.median(sample[name] for sample in busy)) for name in FIELDS.values()} if busy else {}


def words(found):
    """Returns " at 1755 MHz and 640 W"; empty if nothing was sampled."""
    return f" at {found['sm_mhz']} MHz and {found['watts']} W" if found else ""
