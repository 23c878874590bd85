"""Ranks that differ, and ranks that are lost while NCCL connects: fsdp-finetune on the stub driver (stub_card.hpp).

Each job ends by itself; the limits of time only catch hangs.
"""

import concurrent.futures
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import unittest

import fsdp_cli
import memprobe_cli

CARD = "a100-40g"


@unittest.skipUnless(os.environ.get("FSDP_STUB_CUDA"), "the CUDA back end was not built, or not for CUDA 12.8 or 13 on x86-64")
class Ranks(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = fsdp_cli.write_tokens(cls.folder / "tokens.h5", fsdp_cli.random_tokens(240))

    def arguments(self, name, *more):
        return [*memprobe_cli.MINGPT_S, "--vocab-size", fsdp_cli.VOCAB, "--train-data", self.tokens, "--batch-size", 1, "--max-steps", 4, "--no-save",
                "--out-dir", self.runs, "--run-name", name, *map(str, more)]

    def line(self, name, *environments, more=(), launcher=(), within=()):
        """Returns a line that starts a rank with each of the environments: None is one without a driver."""
        program = [*within, str(fsdp_cli.folder("FSDP_BIN") / "fsdp-finetune"), *map(str, self.arguments(name, *more))]
        line = [os.environ["FSDP_MPIEXEC"], *launcher]
        for number, env in enumerate(environments):
            stub = {} if env is None else {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], "FSDP_STUB_GPU": CARD, **env}
            line += [":"] * (number > 0) + ["-n", "1", "env", *(f"{key}={value}" for key, value in stub.items()), *program]
        return line

    def ranks(self, name, *environments, **more):
        line = self.line(name, *environments, **more)
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=fsdp_cli.environment(), start_new_session=True)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            fsdp_cli.end_group(process)
            raise AssertionError(f"no end: {line}\n{process.communicate()}") from None
        return fsdp_cli.Result(line, process.returncode, out, err)

    def refused(self, name, *environments, more=()):
        """The job ends on all ranks with one message, before its first step."""
        result = self.ranks(name, *environments, more=more)
        self.assertEqual(result.code, 2, str(result))
        self.assertEqual(len(result.errors()), 1, str(result))
        return result.errors()[0]

    def test_a_rank_without_a_gpu_ends_the_job(self):
        host = re.escape(socket.gethostname().partition(".")[0])
        for name, environments, number in ("second", ({}, None), 1), ("first", (None, {}), 0):
            error = self.refused(name, *environments)
            self.assertRegex(error, rf"rank {1 - number} \({host}\) has a GPU, and rank {number} has none that can be used, on {host}: .*driver.*--device cpu")
        self.assertRegex(self.refused("asked", {}, None, more=["--device", "cuda"]), rf"no GPU can be used by rank 1 on {host}: .*\(--device cuda\)")
        result = self.ranks("cpus", {}, None, more=["--device", "cpu"])
        self.assertEqual(result.code, 0, str(result))

    def test_another_environment_ends_the_job(self):
        for variable, value in ("FSDP_CUDA_KERNELS", "off"), ("NCCL_ALGO", "Ring"), ("FSDP_CUDA_ATTENTION", "flash"):
            error = self.refused(variable, {}, {}, {variable: value})
            self.assertRegex(error, rf"variable {variable}: rank 0 \(.*\) has no value, rank 2 \(.*\) has {value}\b")

    def test_other_cards_are_predicted_for_the_smallest(self):
        for name, cards in ("mixed", ("a100-80g", "a100-40g")), ("alike", ("a100-40g", "a100-40g")):
            result = self.ranks(name, *({"FSDP_STUB_GPU": card} for card in cards))
            self.assertEqual(result.code, 0, str(result))
            self.assertRegex(result.err, r"predicted peak .* of 39\.[0-9]+ GiB")
            self.assertEqual(len(re.findall(r"gpus +they differ: rank 0 has .*a100-80g.* predicted for the smallest, .*a100-40g.* of rank 1", result.err)),
                             1 if name == "mixed" else 0, result.err)

    def test_a_card_that_computes_nothing_fails_the_test_of_nodes(self):
        result = self.ranks("sniffed", {}, {}, {}, more=["--sniff-every", 2])  # nothing compares tensors on the stub: nothing is equal
        self.assertEqual(result.code, 1, str(result))
        self.assertRegex(result.err, r"a copy between neighbours is wrong, .*: ranks 0-2 \(.*\) took part; no step was made")

    def test_a_killed_rank_is_named_at_once(self):
        """Without mpiexec's clean-up, and in sessions of their own, the others outlive it; their limits of time are minutes."""
        if "-disable-auto-cleanup" not in subprocess.run([os.environ["FSDP_MPIEXEC"], "-help"], capture_output=True, text=True, check=False).stdout:
            self.skipTest("this mpiexec ends the others")
        for name, modes in ("host", "init-kill@1"), ("nccl", "init-kill@1,init-forever"):
            log = self.folder / f"killed-{name}.log"
            within = ["sh", "-c", f'setsid --fork --wait "$0" "$@" >> {log} 2>&1']
            self.ranks(name, *[{"FSDP_STUB_NCCL": modes}] * 2, launcher=["-disable-auto-cleanup"], within=within)
            self.until(lambda: not alive(name))
            self.assertRegex(log.read_text(), r"did not arrive: rank 1 \(process [0-9]+ on .*\), whose process has ended")

    def test_a_signal_ends_a_wait_before_the_first_step(self):
        """Rank 1 stands still while NCCL starts; rank 0 waits for it, on the host or in NCCL."""
        for name, modes in ("signal-host", "init-stop@1"), ("signal-nccl", "init-stop@1,init-forever"):
            line = self.line(name, *[{"FSDP_STUB_NCCL": modes}] * 2)
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=fsdp_cli.environment(), start_new_session=True)
            try:
                self.until(lambda: "T" in alive(name).values())
                for pid, state in alive(name).items():
                    if state != "T":
                        os.kill(pid, signal.SIGTERM)
                out, _ = process.communicate(timeout=100)
            finally:
                fsdp_cli.end_group(process)
            self.assertNotEqual(process.returncode, 0, out)
            self.assertIn("error: stopped by a signal while this rank waited for others", out)

    def until(self, condition):
        for _ in range(1000):
            if condition():
                return
            time.sleep(0.1)
        self.fail("it never was so")

    def connecting(self, name, modes, expected, more=(), code=None):
        result = self.ranks(name, *[{"FSDP_STUB_NCCL": modes, **dict(more)}] * 3)
        self.assertRegex(result.out + result.err, expected, str(result))
        self.assertEqual(result.code == 0, code == 0, str(result))
        return result

    def test_nccl_that_takes_its_time_connects(self):
        self.connecting("slow", "init-polls=300,first-polls=200", "done +4 steps", code=0)

    def test_ranks_that_never_connect_are_told_apart(self):
        wait = ["--init-timeout", 12]
        cases = {"silent": ("init-forever", r"connecting the ranks did not end within 12 s \(--init-timeout\), and every rank waits in it.*NCCL_SOCKET_IFNAME; here: "),
                 "missing": ("init-stop@2,init-forever", r"connecting the ranks did not end within 12 s \(--init-timeout\); did not answer: rank 2; why: rank 2 .*it is stopped .*$"),
                 "first": ("first-forever", r"connecting the ranks for the first all-gather did not end within 12 s \(--init-timeout\), and every rank waits in it"),
                 "hung-abort": ("init-forever,abort-slow", r"connecting the ranks did not end within 12 s")}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            jobs = {name: pool.submit(self.ranks, name, *[{"FSDP_STUB_NCCL": modes}] * 3, more=wait) for name, (modes, _) in cases.items()}
        for name, job in jobs.items():
            with self.subTest(name):
                result = job.result()
                self.assertNotEqual(result.code, 0, str(result))
                self.assertRegex(re.sub(r"(?m)\s+$", "", result.out + result.err), "(?m)" + cases[name][1], str(result))
                for pid in alive(name):
                    os.kill(pid, signal.SIGKILL)  # the one that stands still, where mpiexec left it

    def test_an_error_of_nccl_comes_with_its_cure(self):
        texts = {"Bootstrap : no socket interface found": "NCCL_SOCKET_IFNAME",
                 "Error while creating shared memory segment /dev/shm/nccl-Sq2tXK (size 9637888), error: No space left on device (28)": "--ipc=host"}
        for number, (text, cure) in enumerate(texts.items()):
            self.connecting(f"error{number}", "init-polls=5,init-error", rf"connecting the ranks failed: unhandled system error.*{re.escape(text)}.*{cure}", {"FSDP_STUB_NCCL_TEXT": text})

    def test_a_job_far_below_its_prediction_names_the_transport(self):
        """Each collective takes 40 ms, and a step is predicted to take one."""
        place = self.folder / "tmp"
        place.mkdir()
        result = self.connecting("sockets", "wait=40", "done +4 steps", {"FSDP_STUB_NCCL_TRANSPORT": "NET/Socket/0", "TMPDIR": place}, code=0)
        self.assertEqual(len(re.findall(r"warning: steps take [0-9.]+ times as long as predicted, with NCCL over NET/Socket\. .*NCCL_IB_HCA", result.err)), 1, result.err)
        self.assertRegex(result.err, r"(?s)step +3/4.*warning: steps take|warning: steps take.*step +4/4")
        self.assertEqual(list(place.glob("fsdp-nccl-*")), [])

    def test_memory_outside_the_allocator_is_told_after_the_first_step(self):
        result = self.connecting("outside", "", r"memory +after the first step: 0 KiB outside the allocator \(highest rank\), expected 800 MiB \(500 MiB context, 300 MiB NCCL\)", code=0)
        self.assertEqual(len(re.findall("after the first step", result.err)), 1, result.err)


def alive(name):
    """Returns the states of the programs whose command line has this run's name, by process id: T for one that stands still."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().split(b"\0")
            if line[0].endswith(b"fsdp-finetune") and name.encode() in line:
                found[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            pass  # the process has ended
    return found


if __name__ == "__main__":
    fsdp_cli.main()
