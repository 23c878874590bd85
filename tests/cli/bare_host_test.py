"""Hosts that lack what programs take for granted: /dev/shm, room in it, /proc, /sys."""

import json
import os
import subprocess
import tempfile

import fsdp_cli

tempfile.tempdir = "/tmp"  # not below /dev/shm, over which a test mounts

# Mounts are made in a private mount namespace, which does not affect this machine.
USER = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
UNSHARE = ["unshare", "--mount", *USER, "sh", "-c"]
LACKS = {"/proc": "mount -t tmpfs none /proc", "/sys": "mount -t tmpfs none /sys", "/dev/shm": "mount -t tmpfs -o ro none /dev/shm",
         "room in /dev/shm": "mount -t tmpfs -o size=4k none /dev/shm"}


def lacking(what):
    return [*UNSHARE, f'{LACKS[what]} && exec "$@"', "sh"]


def can_mount():
    try:
        return all(subprocess.run([*lacking(what), "true"], capture_output=True, check=False).returncode == 0 for what in LACKS)
    except FileNotFoundError:
        return False


class BareHost(fsdp_cli.Case):
    def setUp(self):
        super().setUp()
        if not can_mount():
            self.skipTest("this user may not mount anything, not even in a namespace of its own")

    def test_one_process_needs_none_of_them(self):
        plain = self.train("plain")
        for what in LACKS:
            name = what.replace("/", "_").replace(" ", "_")
            result = self.train(name, within=lacking(what))
            self.assertNotIn("warning", result.err, what)
            # Without /proc ATen cannot identify the processor and selects other kernels, which round differently.
            self.assertLess(fsdp_cli.difference(fsdp_cli.losses(self.run_directory(name)), fsdp_cli.losses(self.run_directory("plain"))), 1e-6, what)
            out = self.folder / f"{name}.safetensors"
            converted = fsdp_cli.run("fsdp-ckpt-convert", [self.run_directory(name) / "checkpoints" / "latest", out, "--to", "safetensors"],
                                     within=lacking(what))
            self.assertEqual(converted.code, 0, str(converted))
        self.assertEqual(plain.code, 0)

    def test_several_ranks_say_what_mpi_misses(self):
        for what, names in (("/dev/shm", ["/dev/shm", "Read-only"]), ("room in /dev/shm", ["/dev/shm", "has 0.0 MiB", "2.1 MiB", "2 ranks"]), ("/proc", ["no /proc"])):
            arguments = [*self.train_arguments("ranks"), "--max-steps", "1"]
            result = fsdp_cli.run("fsdp-finetune", arguments, 2, within=lacking(what))
            self.assertNotEqual(result.code, 0, str(result))
            warnings = [line for line in result.err.splitlines() if "warning:" in line]
            self.assertEqual(len(warnings), 1, str(result))
            for name in [*names, "mount"]:
                self.assertIn(name, warnings[0])
        self.assertEqual(self.train("ranks", "--max-steps", "1", ranks=2).err.count("warning:"), 0)

    def test_a_small_shared_memory(self):
        """UCX, inside MPI, ended with signal 11 where /dev/shm has more than its reserve and less than all ranks' queues beside it."""
        for ranks, size in ((2, "16m"), (2, "3m"), *fsdp_cli.share(((2, "17m"), (8, "16m"), (8, "44m"), (16, "64m"), (16, "20m")), 9)):
            within = [*UNSHARE, f'mount -t tmpfs -o size={size} none /dev/shm && exec "$@"', "sh"]
            result = fsdp_cli.run("fsdp-finetune", [*self.train_arguments(f"small-{ranks}-{size}"), "--max-steps", "3"], ranks, within=within)
            self.assertEqual(result.code, 0, f"{ranks} ranks, {size}: {result}")
            self.assertNotIn("/dev/shm", result.err)

    def test_ranks_in_pid_namespaces_of_their_own(self):
        """MPICH copies large messages by process id; if every rank is process 1, it would read its own memory."""
        alone = [os.environ["FSDP_MPIEXEC"], "-n", "2", "unshare", *USER, "--pid", "--fork", "--mount-proc"]
        steps = ["--max-steps", 3, "--embed-size", 128, "--batch-size", 2]
        self.train("together", *steps, ranks=2)
        self.train("apart", *steps, within=alone)
        self.assertLess(fsdp_cli.difference(fsdp_cli.losses(self.run_directory("apart")), fsdp_cli.losses(self.run_directory("together"))), 1e-6)
        # If a user forces such copies, the program reports the error.
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments("wrong", *steps), within=alone, env={"MPIR_CVAR_CH4_CMA_ENABLE": "1"})
        self.assertNotEqual(result.code, 0, str(result))
        self.assertIn("MPI does not hand over large messages", result.err)

    def test_bf16check_without_proc_asks_the_processor(self):
        quick = [*fsdp_cli.COMMON, "--quick", "--size-mb", 1, "--json"]
        facts = []
        for within in ((), lacking("/proc")):
            out = fsdp_cli.run("fsdp-bf16check", quick, within=within).out
            facts.append(json.loads(out[out.index("{"):])["ranks"][0]["processor"])  # after UCX's message about a missing boot id
        for name in ("avx512_bf16", "amx_bf16", "amx_tile", "arm_bf16"):
            self.assertEqual(facts[0][name], facts[1][name], name)


if __name__ == "__main__":
    fsdp_cli.main()
