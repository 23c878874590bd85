"""fsdp-bf16check: verdicts of real ranks and of simulated hardware; it ends in time if a rank is missing."""

import json
import os
import pathlib
import signal
import time

import fsdp_cli

QUICK = ["--quick", "--size-mb", 1]
# Equal speeds, so that a test does not depend on what else runs on this machine.
SPEED = {"gemm": {"bf16_tflops": 0.4, "float32_tflops": 0.2, "implementation": "brg_matmul:avx512_core_bf16"}}
# A simulated processor, independent of this machine's. AMX is switched off because AMX also makes bf16 native.
NO_AMX = {"amx_bf16": False, "amx_tile": False}
NATIVE = {"processor": {"avx512_bf16": True, **NO_AMX}, **SPEED}
OLD = {"processor": {"avx512_bf16": False, **NO_AMX}, **SPEED}
A100 = {"gpu": {"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "bytes": 85899345920, "driver": "13.0", "runtime": "13.0",
                "nccl_built": "2.28.9", "nccl": "2.28.9", "pci_bus_id": "0000:07:00.0", "numa_node": 3},
        "gemm": {"bf16_tflops": 250, "float32_tflops": 18.5, "implementation": ""}, "gpu_missing": ""}


def has_bf16():
    """Returns True if this machine's processor has bf16 instructions of either kind."""
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags


def simulated():
    """Returns the program with simulated hardware, loaded where such are."""
    return "bf16check_simulated" if fsdp_cli.loaded("bf16check_simulated", None) else os.environ["FSDP_BF16CHECK_SIMULATED"]


def on_own_bus(facts, rank):
    return {**facts, "gpu": {**facts["gpu"], "pci_bus_id": f"0000:{rank}7:00.0"}}


class Bf16Check(fsdp_cli.Case):
    def check(self, *arguments, ranks=0, code=0, env=None, program="fsdp-bf16check", **how):
        result = fsdp_cli.run(program, [*fsdp_cli.COMMON, *QUICK, *arguments], ranks, env=env, **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def simulate(self, facts, *arguments, ranks=2, code=0, **how):
        """Runs the test program with these facts; returns its JSON report."""
        return self.check("--json", *arguments, ranks=ranks, code=code, program=simulated(),
                          env={"FSDP_SIMULATED_FACTS": json.dumps(facts)}, **how).json()

    def test_real_ranks(self):
        verdict, code = ("native", 0) if has_bf16() else ("emulated", 3)
        for ranks in fsdp_cli.share((0, 1, 2, 3, 4), 3):
            report = self.check("--json", ranks=ranks, code=code).json()
            self.assertEqual((report["verdict"], report["world_size"], report["nodes"]), (verdict, max(1, ranks), 1))
            self.assertEqual([r["rank"] for r in report["ranks"]], list(range(max(1, ranks))))
            for rank in report["ranks"]:
                self.assertEqual(rank["verdict"], verdict)
                self.assertGreater(rank["gemm"]["ratio"], 0)
                self.assertTrue(rank["host"] and rank["device"] and rank["reason"])
            self.assertTrue(report["all_reduce"]["exact"])
            self.assertIsNone(report["between_nodes"])
            if ranks > 1:
                self.assertGreater(report["all_reduce"]["bus_gb_per_s"], 0)
                self.assertIn(report["all_reduce"]["transport"], ("shared memory", self.mpi_library()))
            if ranks > 2:
                self.assertEqual(report["all_reduce"]["sums_in"], "float32")

    def mpi_library(self):
        version = fsdp_cli.run("fsdp-bf16check", ["--version"]).out
        return next(line.removeprefix("MPI ") for line in version.splitlines() if line.startswith("MPI "))

    def test_table(self):
        result = self.check(ranks=2, code=0 if has_bf16() else 3)
        self.assertRegex(result.out, r"rank +host +device +verdict")
        self.assertIn("all-reduce     1 MiB of bf16 over 2 ranks: exact", result.out)
        self.assertRegex(result.out.splitlines()[-1], "bf16 is +(native|emulated)")

    def test_onednn_is_asked_what_it_takes(self):
        if not has_bf16():
            self.skipTest("this processor has no bf16 instructions")
        plain = self.check("--json").json()["ranks"][0]
        self.assertRegex(plain["gemm"]["implementation"], "core_bf16|amx")
        held_back = self.check("--json", env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}).json()["ranks"][0]
        self.assertEqual(held_back["verdict"], "native")
        self.assertIn("oneDNN does not use", " ".join(held_back["notes"]))

    def test_the_way_of_products_is_told_with_its_price(self):
        for way, widened in (("widened", True), ("native", False)):
            rank = self.check("--json", code=0 if has_bf16() else 3, env={"FSDP_BF16_GEMM": way}).json()["ranks"][0]
            self.assertEqual(rank["gemm"]["widened"], widened)
            self.assertGreater(rank["gemm"]["bf16_aten_tflops"], 0)
            self.assertEqual("multiplied through float32 at" in rank["reason"], widened, rank["reason"])

    def test_a_rank_without_bf16_instructions_is_named_and_excluded(self):
        file = self.folder / "exclude"
        patches = {"*": NATIVE, "2": {"host": "old7", **OLD}}
        report = self.simulate(patches, "--exclude-file", file, ranks=4, code=3)
        self.assertEqual(report["verdict"], "emulated")
        self.assertEqual([r["verdict"] for r in report["ranks"]], ["native", "native", "emulated", "native"])
        self.assertIn("no bf16 instructions", report["ranks"][2]["reason"])
        self.assertEqual(report["bad_hosts"], ["old7"])
        self.assertEqual(file.read_text(), "old7\n")
        # The file is written in each run, so that nothing of an earlier job remains.
        self.simulate({"*": NATIVE}, "--exclude-file", file)
        self.assertEqual(file.read_text(), "")

    def test_a_slow_rank_is_named(self):
        slow = {"host": "tired3", "gemm": {"bf16_tflops": 0.05, "float32_tflops": 0.025}}
        report = self.simulate({"*": NATIVE, "1": slow}, ranks=3)
        self.assertEqual((report["verdict"], report["slowest_rank"], report["bad_hosts"]), ("native", 1, ["tired3"]))
        self.assertTrue(report["ranks"][1]["slow"])
        table = self.check(ranks=3, program=simulated(),
                           env={"FSDP_SIMULATED_FACTS": json.dumps({"*": NATIVE, "1": slow})}).out
        self.assertIn("slowest        rank 1 on tired3", table)
        self.assertIn("bad hosts      tired3", table)

    def test_several_bad_hosts_on_one_line(self):
        file = self.folder / "exclude-two"
        patches = {str(r): {"host": f"n{r}", **(NATIVE if r == 2 else OLD)} for r in range(4)}
        self.simulate(patches, "--exclude-file", file, ranks=4, code=3)
        self.assertEqual(file.read_text(), "n0,n1,n3\n")

    def test_simulated_gpus_and_versions(self):
        def gpu(rank, **changes):
            return on_own_bus({**A100, "gpu": {**A100["gpu"], **changes}}, rank)

        cases = [({}, "native", "compute capability 8.0", 0),
                 ({"compute_capability": "7.0", "name": "Tesla V100-SXM2-32GB"}, "emulated", "7.0", 3),
                 ({"compute_capability": "7.5", "name": "Tesla T4"}, "emulated", "7.5", 3),
                 ({"runtime": "10.2"}, "absent", "10.2", 3),
                 ({"nccl": "2.9.8"}, "absent", "at run time is 2.9.8", 3),
                 ({"nccl_built": "2.8.3"}, "absent", "at build time is 2.8.3", 3)]
        for changes, verdict, words, code in cases:
            report = self.simulate({"0": gpu(0), "1": gpu(1, **changes)}, code=code)
            self.assertEqual((report["verdict"], report["ranks"][1]["verdict"]), (verdict, verdict), changes)
            self.assertIn(words, report["ranks"][1]["reason"])
            self.assertEqual(report["ranks"][0]["verdict"], "native")
        report = self.simulate({"0": gpu(0), "1": gpu(1, nccl="2.21.5")})
        self.assertIn("NCCL 2.21.5 runs, 2.28.9 was compiled against", report["ranks"][1]["notes"])
        emulating = {**gpu(1), "gemm": {"bf16_tflops": 15, "float32_tflops": 18.5}}
        self.assertEqual(self.simulate({"0": gpu(0), "1": emulating}, code=3)["verdict"], "emulated")
        # One rank has no GPU, the other has one.
        report = self.simulate({"0": gpu(0), "1": {**NATIVE, "gpu_missing": "the driver sees no device"}}, code=3)
        self.assertEqual(report["ranks"][1]["verdict"], "absent")

    def test_wrong_sums(self):
        report = self.simulate({"*": NATIVE, "1": {"job_reduce": {"wrong": "element 3 is 1, the exact sum is 2"}}}, code=3)
        self.assertEqual((report["verdict"], report["all_reduce"]["exact"]), ("absent", False))

    def test_no_gpu(self):
        # On a machine with a GPU the result differs.
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("this machine has a GPU")
        result = fsdp_cli.run("fsdp-bf16check", ["--device", "cuda", "--json", *QUICK])
        self.assertEqual(result.code, 3, str(result))
        self.assertEqual(result.json()["verdict"], "absent")
        result = fsdp_cli.run("fsdp-bf16check", ["--device", "auto", "--json", *QUICK])
        self.assertEqual(result.code, 0 if has_bf16() else 3, str(result))
        self.assertIn("NVIDIA", result.json()["ranks"][0]["gpu_missing"])

    def test_a_rank_that_hangs_ends_the_job_in_time(self):
        result = self.check("--collective-timeout", 2, ranks=3, code=1, program=simulated(),
                            env={"FSDP_SIMULATED_HANG": "1"}, limit_seconds=60)
        self.assertTrue(any("rank 1" in line for line in result.errors()), str(result))

    def test_a_rank_that_is_stopped_ends_the_job_in_time(self):
        log = self.folder / "stopped.log"
        process = fsdp_cli.start("fsdp-bf16check", [*fsdp_cli.COMMON, *QUICK, "--init-timeout", 3, "--collective-timeout", 3], 2, log)
        self.addCleanup(fsdp_cli.end_group, process)
        found, end = [], time.monotonic() + 30
        while not found and time.monotonic() < end and process.poll() is None:
            found = fsdp_cli.rank_processes(process.pid, "fsdp-bf16check")
        self.assertTrue(found, "no rank was seen")
        os.kill(found[-1], signal.SIGSTOP)
        self.assertNotEqual(process.wait(timeout=60), 0)
        self.assertRegex(log.read_text(), "timeout")

    def test_a_launcher_of_another_mpi_is_explained(self):
        for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
            result = self.check(code=4, env={name: "2"})
            self.assertIn("each would be a job of its own", result.errors()[0])
            self.assertIn(name, result.errors()[0])

    def test_usage(self):
        self.assert_refused(self.check("--size-mb", -1, code=2), 2, "--size-mb", "-1")
        self.assert_refused(self.check("--device", "xla", code=2), 2, "xla")
        self.assert_refused(self.check("--collective-timeout", 0, ranks=1, code=2), 2, "--collective-timeout")
        self.check("--no-such-option", code=2)

    def test_a_file_that_cannot_be_written(self):
        result = self.check("--exclude-file", self.folder / "none" / "file", ranks=2, code=1)
        self.assertEqual(len(result.errors()), 1, str(result))
        self.assertIn("none/", result.errors()[0])


fsdp_cli.main()
