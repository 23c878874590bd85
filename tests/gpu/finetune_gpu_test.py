"""fsdp-finetune on a stub driver (stub_card.hpp): its memory figures and its refusals.

Kernels compute nothing, so losses mean nothing; memory is that of PyTorch's own operators and allocator, over the
program's NCCL path. FSDP_ALL=1: all combinations; without it a share of them.
"""

import json
import os
import subprocess
import unittest

import fsdp_cli
import h5py
import llama_cli
import memprobe_cli

MIB = 2**20
MODEL = ["--num-layers", 4, "--num-heads", 4, "--embed-size", 128, "--vocab-size", 4099, "--seq-len", 128]
OUTSIDE = 700 * MIB  # memory of the card that the CUDA context and other programs use


@unittest.skipUnless(os.environ.get("FSDP_STUB_CUDA"), "the CUDA back end was not built, or not for CUDA 12.8 or 13 on x86-64")
class Gpu(fsdp_cli.Case):
    def run_on(self, card, program, arguments, ranks=0, outside=OUTSIDE, env=None):
        stub = {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], "FSDP_STUB_GPU": card,
                     "FSDP_STUB_OUTSIDE": str(outside), **(env or {})}
        return fsdp_cli.run(program, arguments, ranks=ranks, env=stub, limit_seconds=200)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = fsdp_cli.write_tokens(cls.folder / "tokens.h5", fsdp_cli.random_tokens(width=257))

    def train(self, name, *more, ranks=2, card="a100-40g", outside=OUTSIDE, env=None):
        return self.run_on(card, "fsdp-finetune", [*MODEL, "--train-data", self.tokens, "--batch-size", 2, "--max-steps", 3, "--no-save", "--out-dir",
                                                   self.runs, "--run-name", name, "--device", "cuda", *more], ranks=ranks, outside=outside, env=env)

    def test_what_the_card_tells_is_in_the_view(self):
        """NVML is tests/support/stub_nvml.cpp; the cards are full of what others use."""
        log = self.folder / "watch.log"
        env = {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], "FSDP_STUB_GPU": "a100-40g", "FSDP_STUB_OUTSIDE": str(OUTSIDE),
               "LD_LIBRARY_PATH": os.environ["FSDP_STUB_NVML_FOLDER"]}
        arguments = [*MODEL, "--train-data", self.tokens, "--batch-size", 2, "--max-steps", 1000000, "--no-save", "--no-tensorboard", "--out-dir", self.runs,
                     "--run-name", "watch", "--device", "cuda", "--log-every", 1000000]
        with open(log, "wb") as file:
            process = subprocess.Popen(fsdp_cli.command("fsdp-finetune", arguments, 2), stdout=file, stderr=file, env=fsdp_cli.environment(env), start_new_session=True)
        self.addCleanup(fsdp_cli.end_group, process)
        status = self.run_directory("watch") / "status" / "ranks-0.json"
        # The first record may be older than the second rank's first look at its GPU.
        fsdp_cli.wait_for(process, log, lambda: status.exists() and len(json.loads(status.read_text())["ranks"]) == 2)
        ranks = json.loads(status.read_text())["ranks"]
        for rank in ranks:
            self.assertEqual([rank[key] for key in ("gpu_use", "card_bytes", "watts", "celsius")], [0.87, 12 * 2**30, 312.5, 61])
            self.assertTrue(0 < rank["gpu_bytes"] <= rank["peak_gpu_bytes"] < 40 * 2**30, rank)
        view = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory("watch"), "--watch"]).out
        self.assertRegex(view, r"(?m)^ranks     rank   gpu +memory +peak +card  power  temp  cores +resident +peak$")
        self.assertRegex(view, r"(?m)^             1  87 % +[\d.]+ MiB +[\d.]+ MiB  12.00 GiB  312 W  61 C +[\d.]+ +[\d.]+ .iB +[\d.]+ .iB$")

    def outcome(self, name):
        return json.loads((self.run_directory(name) / "memory.json").read_text())

    def test_what_was_predicted_is_what_it_takes(self):
        jobs = ((1, []), (2, ["--precision", "bf16"]), (2, ["--sharding", "grad-shard", "--gradient-accumulation-steps", 2]),
                (2, ["--sharding", "no-shard", "--precision", "bf16", "--activation-checkpointing", "all"]),
                (2, ["--sharding", "no-shard", "--cpu-offload", "--precision", "bf16"]),
                (2, ["--optimizer", "muon", "--precision", "bf16"]),  # Muon moves whole matrices between ranks
                (1, ["--cpu-offload", "--precision", "bf16", "--gradient-accumulation-steps", 2, "--reduce-every-micro-batch"]),
                (4, ["--sharding", "hybrid-full-shard", "--shard-group-size", 2, "--cpu-offload"]))
        for ranks, more in fsdp_cli.share(jobs, 3, 1):
            with self.subTest(ranks=ranks, more=more):
                result = self.train("run", *more, ranks=ranks)
                self.assertEqual(result.code, 0, str(result))
                self.assertRegex(result.err, r"reserved, [0-9.]+ % of the card, and 700 MiB outside the allocator .* 0 cudaMalloc retries, 0 out of memory")
                found = self.outcome("run")
                self.assertEqual(found["predicted_bytes"], found["measured_bytes"])  # required: within 3 %
                self.assertEqual((found["card_bytes"], found["overhead_bytes"]), (40338 * MIB, OUTSIDE))

    def test_documents_are_padded_to_a_multiple_of_64_tokens(self):
        """Lengths are padded because cuDNN's attention builds a plan for each new length."""
        for longest, on_gpu in fsdp_cli.share(((38, 64), (90, 128), (129, 128)), 2):
            texts = [[1 + i % 90 for i in range(length)] for length in (12, longest, 30, 5)]
            data = llama_cli.write_documents(self.folder / "documents.h5", texts)
            for device, expected in ("cuda", on_gpu), ("cpu", longest - 1):
                with self.subTest(longest=longest, device=device):
                    result = self.train(device, "--train-data", data, "--seq-len", 256, "--max-steps", 2, "--device", device, ranks=1)
                    self.assertEqual(result.code, 0, str(result))
                    self.assertEqual(self.outcome(device)["longest_sequence"], expected)

    def test_preferences_are_predicted(self):
        texts = [[1 + i % 90 for i in range(length)] for length in (12, 38, 30, 25, 64, 60, 9, 40)]
        data = llama_cli.write_documents(self.folder / "preferences.h5", texts)
        with h5py.File(data, "a") as file:
            file.attrs["preferences"] = 1
            file["loss_mask"] = [int(i >= 6) for text in texts for i in range(len(text))]
        for ranks, more in (1, []), (2, ["--precision", "bf16"]), (1, ["--pack"]):
            with self.subTest(ranks=ranks, more=more):
                result = self.train("prefers", "--train-data", data, "--objective", "orpo", "--seq-len", 64, "--batch-size", 2, *more, ranks=ranks)
                self.assertEqual(result.code, 0, str(result))
                found = self.outcome("prefers")
                self.assertLess(abs(found["predicted_bytes"] / found["measured_bytes"] - 1), 0.005)

    def test_a_rank_alone_asks_for_no_collective(self):
        result = self.train("alone", "--precision", "bf16", "--gradient-accumulation-steps", 2, ranks=1, env={"FSDP_STUB_STALL": "1:0:kill"})
        self.assertEqual(result.code, 0, str(result))
        stopped = self.train("two", ranks=2, env={"FSDP_STUB_STALL": "1:0:kill"})
        self.assertNotEqual(stopped.code, 0, str(stopped))

    def test_a_mixture_is_recorded_in_graphs_and_predicted(self):
        other = fsdp_cli.write_tokens(self.folder / "other.h5", fsdp_cli.random_tokens(rows=20, width=257, seed=2))
        result = self.train("mixture", "--train-data", f"{self.tokens}:0.7", f"{other}:0.3", ranks=1)
        self.assertEqual(result.code, 0, str(result))
        steps = fsdp_cli.steps(self.run_directory("mixture"))
        self.assertEqual([step["cuda_graphs"] for step in steps], [0, 1, 2])
        self.assertEqual(set(steps[-1]["sources"]), {"other", "tokens"})
        found = self.outcome("mixture")
        self.assertLess(abs(found["predicted_bytes"] / found["measured_bytes"] - 1), 0.005)  # the sums of sources are not predicted

    def test_graphs_are_used_where_they_help_and_given_up_where_they_fail(self):
        for more, line in ([], "2 gathers in flight, CUDA graphs "), (["--cuda-graphs", "off"], "2 gathers in flight  "), (["--embed-size", 1024, "--batch-size", 64], "2 gathers in flight  "):
            result = self.train("graphs", *more, ranks=1)
            self.assertEqual(result.code, 0, str(result))
            self.assertIn(line, result.err)
            metrics = [json.loads(text) for text in (self.run_directory("graphs") / "metrics.jsonl").read_text().splitlines()]
            self.assertEqual([step["cuda_graphs"] for step in metrics if "cuda_graphs" in step], [0, 0, 0] if more else [0, 1, 2])
        for node in fsdp_cli.share((1, 60, 100), 2, 1):
            failed = self.train("failed", ranks=1, env={"FSDP_STUB_CAPTURE": str(node)})
            self.assertEqual(failed.code, 0, str(failed))
            self.assertEqual(failed.err.count("a CUDA graph could not be captured"), 1, failed.err)
        for ranks, more, why in (2, [], "parameters and gradients of 2 ranks"), (1, ["--cpu-offload"], "gradients are moved between the layers: leave one of the two out, --cuda-graphs on or --cpu-offload"):
            refused = self.train("refused", "--cuda-graphs", "on", *more, ranks=ranks)
            self.assertEqual(refused.code, 2, str(refused))
            self.assertIn(f"error: steps as CUDA graphs: {why}", refused.err)

    def test_a_job_without_room_beside_graphs_names_the_option(self):
        validated = ["--vocab-size", 50257, "--seq-len", 256, "--val-data", self.tokens, "--eval-every", 2, "--max-steps", 5]
        self.train("roomy", *validated, ranks=1)
        steps = self.outcome("roomy")["measured_bytes"]  # with graphs, without validations
        for name, more, graphs, ends in ("enough", 112, "auto", 0), ("tight", 4, "auto", 1), ("tight-off", 4, "off", 0), ("tiny", -1000, "off", 1):
            result = self.train(name, *validated, "--cuda-graphs", graphs, ranks=1, outside=40338 * MIB - steps - more * MIB)
            self.assertEqual(result.code, ends, str(result))
            self.assertEqual(result.err.count("start it with --cuda-graphs off"), 1 if name == "tight" else 0, result.err)
            self.assertEqual(result.err.count("CUDA out of memory"), ends, result.err)

    def test_the_next_unit_is_gathered_ahead_unless_told_otherwise(self):
        for more, expected in ([], "prefetch pre [+] forward,"), (["--no-forward-prefetch"], "prefetch pre,"):
            result = self.train("ahead", "--dry-run", *more, ranks=1)
            self.assertEqual(result.code, 0, str(result))
            self.assertRegex(result.err, expected)

    def test_ranks_over_nccl_measure_what_was_predicted(self):
        for sharding, precision in fsdp_cli.share((("full-shard", "bf16"), ("no-shard", "float32"), ("grad-shard", "bf16")), 2, 1):
            with self.subTest(sharding=sharding):
                result = self.run_on("a100-40g", "fsdp-memprobe", [*MODEL, "--batch-size", 2, "--sharding", sharding, "--precision", precision,
                                                                   "--device", "cuda", "--measure", "--json", "--quiet"], ranks=2)
                self.assertEqual(result.code, 0, str(result))
                self.assertEqual(result.json()["relative_error"], 0, str(result))

    def test_retries_are_foreseen_and_reported(self):
        self.train("roomy", ranks=1)
        wanted = self.outcome("roomy")["measured_bytes"]
        tight = self.train("tight", ranks=1, outside=40338 * MIB - wanted + 2 * MIB)
        self.assertEqual(tight.code, 0, str(tight))
        self.assertRegex(tight.err, "warning: .*more than the GPU has: expect")
        self.assertRegex(tight.err, "warning: [1-9][0-9]* cudaMalloc retries: .*smaller --batch-size")
        self.assertGreater(self.outcome("tight")["alloc_retries"], 0)

    def test_earlier_runs_tell_what_is_outside_the_allocator(self):
        self.train("calibrated", ranks=2)
        found = memprobe_cli.report([*MODEL, "--ranks", 2, "--gpu", "a100-40g", "--calibration", self.run_directory("calibrated")])
        self.assertEqual(found["breakdown"]["cuda_context"] + found["breakdown"]["nccl"], OUTSIDE)

    def bound(self, program, arguments, seen, **stub):
        """Runs one rank for each element of `seen`, its CUDA_VISIBLE_DEVICES."""
        wrapper = self.folder / "bound.sh"
        wrapper.write_text("#!/bin/sh\nset -- " + '"$MPI_LOCALRANKID" "$@"\nrank=$1; shift\ncase $rank in\n'
                           + "".join(f"{rank}) export CUDA_VISIBLE_DEVICES={devices} ;;\n" for rank, devices in enumerate(seen)) + 'esac\nexec "$@"\n')
        wrapper.chmod(0o755)
        env = {"LD_PRELOAD": os.environ["FSDP_STUB_CUDA"], **stub}
        programs = fsdp_cli.loaded(program, env)
        if programs:
            env["FSDP_LOADED_PROGRAMS"] = fsdp_cli.loaded_programs(env["LD_PRELOAD"])
        command = [os.environ["FSDP_MPIEXEC"], "-n", len(seen), wrapper, (programs or fsdp_cli.folder("FSDP_BIN")) / program, *arguments]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=200, check=False, env=fsdp_cli.environment(env))
        return fsdp_cli.Result(command, done.returncode, done.stdout, done.stderr)

    def test_ranks_that_see_few_gpus_each_have_their_own(self):
        check = ["--json", "--quiet", "--device", "cuda", "--size-mb", 1, "--quick"]
        gpu = "GPU-00000000-0000-0000-0000-00000000000{}".format
        for seen, slices, used in (
                (["0,1", "0,1", "2,3", "2,3"], 0, [1, 2, 3, 4]),  # srun --gpu-bind=closest
                (["2,3", "0,1", "2,3", "0,1"], 0, [3, 2, 4, 1]),
                ([f"{gpu(4)},{gpu(1)}", gpu(2), gpu(3), gpu(4)], 0, [1, 2, 3, 4]),
                (["MIG-00000000-0000-0000-0000-000000000101", "MIG-00000000-0000-0000-0000-000000000201"], 7, [1, 1])):
            with self.subTest(seen=seen):
                result = self.bound("fsdp-bf16check", check, seen, FSDP_STUB_CARDS="4", FSDP_STUB_SLICES=str(slices))
                self.assertIn(result.code, (0, 3), str(result))  # the stub's products have no speed
                gpus = [rank["gpu"] for rank in result.json()["ranks"]]
                self.assertEqual([int(found["pci_bus_id"][5:7]) + 1 for found in gpus], used)
                self.assertEqual(len({found["uuid"] for found in gpus}), len(seen))
        dry = [*MODEL, "--train-data", self.tokens, "--dry-run", "--batch-size", 1, "--out-dir", self.runs]
        for seen, code, words in ((["0", "1"], 0, "2 ranks"), (["0,1", "0,1", "0,1"], 2, "3 ranks on a node with 2 GPUs: start one"),
                                  (["0", "0", "1,2"], 2, "3 ranks on a node with 3 GPUs, but all that local rank 1 sees are taken")):
            result = self.bound("fsdp-finetune", dry, seen, FSDP_STUB_CARDS="4")
            self.assertEqual(result.code, code, str(result))
            self.assertIn(words, result.err)

    def test_emulated_bf16_is_refused(self):
        for ranks in (1, 2):
            refused = self.train("t4", "--precision", "bf16", ranks=ranks, card="t4")
            self.assertEqual(refused.code, 2, str(refused))
            self.assertRegex(refused.err, "error: --precision bf16 would be emulated: rank 0, .*7.5 has no bf16 units")
        allowed = self.train("t4", "--precision", "bf16", "--allow-emulated-bf16", ranks=1, card="t4")
        self.assertEqual(allowed.code, 0, str(allowed))
        self.assertIn("bf16 is emulated here", allowed.err)


if __name__ == "__main__":
    fsdp_cli.main()
