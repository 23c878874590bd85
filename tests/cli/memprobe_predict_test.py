"""Predictions without a GPU: CodeLlama-7b with the job scripts' options, options, refusals."""

import json
import os
import pathlib
import subprocess

import fsdp_cli
import memprobe_cli
from hub_server import HubServer, Repo

GIB = 2**30
MIB = 2**20
PARAMETERS = 6_738_546_688
LAYER = 202_383_360
EMBEDDING = 131_137_536


class Predict(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.codellama = ["--model", memprobe_cli.write_config(cls.folder, memprobe_cli.CODELLAMA), "--seq-len", 512, "--precision", "bf16"]

    def test_codellama_on_four_a100_80(self):
        """Searches for the largest batch on a login node with less than 2 GB of memory."""
        command = fsdp_cli.command("fsdp-memprobe", [*self.codellama, "--ranks", 4, "--ranks-per-node", 4, "--gpu", "a100-80g", "--search", "--margin", 0,
                                                     "--activation-checkpointing", "both", "--plan-for", "largest", "--json"], 0)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=fsdp_cli.environment())
        with process.stdout, process.stderr:
            out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, err)
        self.assertLess(usage.ru_maxrss * 1024, 2e9)
        fsdp_cli.say(f"{usage.ru_utime + usage.ru_stime:.1f} s of processor time, {usage.ru_maxrss / 1024:.0f} MiB\n{err}")
        plain, recomputed = json.loads(out)["combinations"]  # the faster one first
        self.assertEqual((plain["activation_checkpointing"], recomputed["activation_checkpointing"]), ("none", "all"))
        self.assertGreater(recomputed["largest_batch_per_device"], 4 * plain["largest_batch_per_device"])
        for found in (plain, recomputed):
            self.assertEqual(found["alloc_retries"], 0)
            self.assertLess(found["peak_bytes"], found["budget_bytes"])
            more = memprobe_cli.report([*self.codellama, "--ranks", 4, "--ranks-per-node", 4, "--gpu", "a100-80g", "--margin", 0, "--activation-checkpointing",
                                        found["activation_checkpointing"], "--batch-size", found["largest_batch_per_device"] + 1], codes=(3,))
            self.assertFalse(more["fits"])

    def test_what_qlora_is_known_for(self):
        """CodeLlama-7b on a card of 12 GB, Llama-3-70B on one A100 of 80 GB, and on two cards of 24 GB with its rows on the host."""
        qlora = ["--quantize", "nf4", "--double-quant", "--lora-rank", 16, "--batch-size", 1, "--activation-checkpointing"]
        llama3 = memprobe_cli.write_config(self.folder, {**memprobe_cli.CODELLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672, "num_attention_heads": 64,
                                                         "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0}, "llama3-70b.json")
        large = ["--model", llama3, "--seq-len", 2048, "--precision", "bf16", *qlora]
        small = memprobe_cli.report([*self.codellama, *qlora, "--gpu", "12GiB", "--ranks", 1])
        # 4.127 bits for each element of a block's matrices; embedding and head in bf16, adapters in float32.
        matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
        adapters = 32 * 16 * (4 * 8192 + 3 * (4096 + 11008))
        self.assertAlmostEqual(small["breakdown"]["parameters"] / (matrices * 4.127 / 8 + 2 * 2 * EMBEDDING + 4 * adapters), 1, 2)
        fits = {"7b, 12 GB": small, "70b, A100": memprobe_cli.report([*large, "--gpu", "a100-80g", "--ranks", 1]),
                "70b, 2 x 24 GB": memprobe_cli.report([*large, "--gpu", "24GiB", "--ranks", 2, "--ranks-per-node", 2, "--cpu-offload"])}
        for name, found in fits.items():
            fsdp_cli.say(f"{name}: {found['peak_bytes'] / GIB:.1f} of {found['budget_bytes'] / GIB:.1f} GiB")
            self.assertLess(found["peak_bytes"], found["budget_bytes"], name)
            self.assertEqual(found["alloc_retries"], 0, name)
        self.assertLess(small["peak_bytes"], 6 * GIB)

    def test_the_parts_are_what_arithmetic_says(self):
        found = memprobe_cli.report([*self.codellama, "--ranks", 4, "--gpu", "a100-80g", "--batch-size", 1, "--gradient-checkpointing"])
        parts = found["breakdown"]
        share = PARAMETERS / 4
        self.assertAlmostEqual(parts["parameters"] / share, 4 + 2, 2)  # float32 master weights, bf16 rows for communication
        self.assertAlmostEqual(parts["gradients"] / share, 2, 2)  # bf16, as they arrive
        self.assertAlmostEqual(parts["optimizer"] / share, 8, 2)
        # The root unit and two blocks, in bf16.
        self.assertAlmostEqual(parts["gathered"] / (2 * (2 * EMBEDDING + 2 * LAYER)), 1, 2)
        self.assertEqual(sum(parts.values()), found["peak_bytes"])
        # One input per block: 512 tokens x 4096 x 2 bytes, and the working memory of the last backward pass.
        self.assertLess(parts["activations"], 400 * MIB)
        # Each block is gathered twice, the root once, from three of four ranks.
        gathered = 3 * 2 * share * 2 - 3 * 2 * 2 * EMBEDDING / 4
        self.assertAlmostEqual(found["communication_per_step"]["shard"]["bytes"] / (gathered + 3 * 2 * share), 1, 2)
        self.assertEqual(found["communication_per_step"]["shard"]["all_gathers"], 65)

    def test_one_gpu_is_not_enough(self):
        found = memprobe_cli.report([*self.codellama, "--no_fsdp", "--ranks", 1, "--batch_size_per_device", 1, "--gpu", "a100-80g"], codes=(3,))
        self.assertFalse(found["fits"])
        self.assertGreater(found["peak_bytes"], 16 * PARAMETERS)
        self.assertGreater(found["alloc_retries"], 0)
        table = memprobe_cli.report([*self.codellama, "--no_fsdp", "--ranks", 1, "--gpu", "a100-80g", "--search"], codes=(3,))
        self.assertEqual(table["largest_batch_per_device"], 0)
        # A larger card suffices: 107.8 GB of states fit an H200.
        self.assertTrue(memprobe_cli.report([*self.codellama, "--no_fsdp", "--ranks", 1, "--batch-size", 1, "--gpu", "h200"])["fits"])
        # With one rank the full gradient is the shard: with a second copy of 27 GB accumulation would not fit.
        accumulated = memprobe_cli.report([*self.codellama, "--ranks", 1, "--precision", "bf16", "--batch-size", 4, "--seq-len", 512,
                                           "--gradient-accumulation-steps", 4, "--gpu", "h200"])
        self.assertTrue(accumulated["fits"])
        self.assertLess(accumulated["reserved_peak_bytes"], 19.5 * PARAMETERS)  # 148 GB would be 22

    def test_polaris_with_hybrid_strategies(self):
        found = memprobe_cli.report([*self.codellama, "--nodes", "1,2,8", "--ranks-per-node", 4, "--gpu", "a100-40g", "--search", "--sharding",
                                     "full-shard,hybrid-full-shard,hybrid-grad-shard", "--gradient_checkpointing"])
        by = {(c["ranks"], c["sharding"]): c for c in found["combinations"]}
        self.assertEqual({ranks for ranks, _ in by}, {4, 8, 32})
        for ranks in (4, 8, 32):
            self.assertGreater(by[ranks, "hybrid-full-shard"]["largest_batch_per_device"], 0)
            self.assertEqual(by[ranks, "hybrid-grad-shard"]["largest_batch_per_device"], 0)  # gathered layers exceed the card by 13 GB
        self.assertGreater(by[32, "full-shard"]["largest_batch_per_device"], by[8, "full-shard"]["largest_batch_per_device"])
        self.assertEqual(by[8, "hybrid-full-shard"]["communication_per_step"]["replicate"]["all_reduces"], 33)
        self.assertEqual(by[8, "hybrid-full-shard"]["largest_batch_per_device"], by[32, "hybrid-full-shard"]["largest_batch_per_device"])

    def test_what_is_held_against_the_memory_adds_up(self):
        job = [*memprobe_cli.MINGPT_XS, "--batch-size", 2, "--device", "cpu", "--memory", "100MiB"]
        result = fsdp_cli.run("fsdp-memprobe", job)
        self.assertEqual(result.code, 3, str(result))
        found = memprobe_cli.report(job, codes=(3,))
        host = found["host"]
        self.assertEqual(found["needed_bytes"], host["program_bytes"] + found["peak_bytes"] + max(host["load_bytes"], host["save_bytes"]))
        self.assertGreater(found["needed_bytes"], found["budget_bytes"])
        # The text output has the same figures: it names memory outside of tensors, and percentages refer to the deciding limit.
        self.assertRegex(result.out, r"program and libraries +180 MiB")
        self.assertIn(f"{100 * found['needed_bytes'] / found['budget_bytes']:.1f} % of 100 MiB", result.out)
        self.assertRegex(result.out, r"it does not fit: batch size 2 needs [12]\d\d MiB \(\d+ MiB tensors \+ 180 MiB program and libraries \+ \d+ MiB checkpoint copy\)")
        self.assertTrue(memprobe_cli.report([*job[:-1], "300MiB"])["fits"])

    def test_spellings_of_the_seeds(self):
        dashes = memprobe_cli.report([*self.codellama, "--ranks", 4, "--ranks-per-node", 4, "--gpu", "a100-80g", "--batch-size", 2,
                                      "--activation-checkpointing", "all", "--total-batch-size", 64])
        seed = memprobe_cli.report([*self.codellama[:2], "--max_seq_length", 512, "--precision", "bf16", "--ranks", 4, "--ranks_per_node", 4, "--gpu",
                                    "A100-80GB", "--batch_size_per_device", 2, "--gradient_checkpointing", "--total_batch_size", 64,
                                    "--learning_rate", "1e-5"])
        self.assertEqual(dashes["peak_bytes"], seed["peak_bytes"])
        self.assertEqual(seed["gradient_accumulation_steps"], 8)

    def test_accumulating_shards_takes_less(self):
        job = [*self.codellama, "--ranks", 4, "--gpu", "a100-80g", "--batch-size", 1, "--total-batch-size", 64, "--gradient-checkpointing"]
        local, sharded = memprobe_cli.report(job), memprobe_cli.report([*job, "--reduce-every-micro-batch"])
        # Full float32 gradients of all layers, less those of the two units that are needed anyway.
        self.assertGreater(local["peak_bytes"] - sharded["peak_bytes"], 4 * PARAMETERS - 3 * GIB)

    def test_offload_moves_states_to_the_host(self):
        job = [*self.codellama, "--ranks", 4, "--gpu", "a100-40g", "--batch-size", 1]
        kept, offloaded = memprobe_cli.report(job), memprobe_cli.report([*job, "--cpu_offload"])
        self.assertLess(offloaded["breakdown"]["optimizer"], MIB)
        self.assertGreaterEqual(offloaded["host"]["states_bytes"], 4 * PARAMETERS)
        self.assertLess(offloaded["peak_bytes"], kept["peak_bytes"] - 20 * GIB)

    def test_a_picture_of_the_step(self):
        memprobe_cli.report([*memprobe_cli.MINGPT_S, "--ranks", 2, "--gpu", "t4", "--plot", self.folder / "memory.svg"])
        self.assertIn("head and loss", (self.folder / "memory.svg").read_text())

    def test_row_length_comes_from_the_data(self):
        for suffix in (".h5", ".hdf5", ""):  # an HDF5 file is one under any name
            data = self.folder / f"rows{suffix}"
            data.write_bytes(self.train_data.read_bytes())
            found = memprobe_cli.report([*fsdp_cli.TINY_MODEL, "--train-data", data, "--ranks", 2, "--gpu", "t4"])
            self.assertEqual(found["model"]["tokens_per_sequence"], fsdp_cli.SEQ_LEN)

    def test_a_config_alone_is_enough_and_is_fetched_alone(self):
        files = {"config.json": json.dumps(memprobe_cli.CODELLAMA).encode(), "model.safetensors": b"13 GB" * 10000}
        env = {"HF_HUB_CACHE": str(self.folder / "hub"), "HOME": str(self.folder)}
        with HubServer({("model", "codellama/CodeLlama-7b-hf"): Repo(files)}) as hub:
            fetched = fsdp_cli.run("fsdp-download", ["codellama/CodeLlama-7b-hf", "--include", "config.json"], env=env | {"HF_ENDPOINT": hub.url()})
            self.assertEqual(fetched.code, 0, str(fetched))
        snapshot = pathlib.Path(fetched.out.strip())
        self.assertEqual([path.name for path in snapshot.iterdir()], ["config.json"])
        for model in ("codellama/CodeLlama-7b-hf", snapshot):
            result = fsdp_cli.run("fsdp-memprobe", ["--model", model, "--ranks", 4, "--gpu", "a100-80g", "--seq-len", 512, "--precision", "bf16"], env=env)
            self.assertEqual(result.code, 0, str(result))
            self.assertIn("6738.5 M parameters", result.out)
        for program, words in (("fsdp-eval", ["codellama/CodeLlama-7b-hf"]), ("fsdp-finetune", ["--model", "codellama/CodeLlama-7b-hf"])):
            more = ["--data" if program == "fsdp-eval" else "--train-data", fsdp_cli.folder("FSDP_DATA") / "shakespeare/test.csv"]
            result = fsdp_cli.run(program, [*words, *more], env=env)
            self.assert_refused(result, 4, "config.json alone", "run: fsdp-download codellama/CodeLlama-7b-hf")

    def test_known_models_need_no_files(self):
        env = {"HF_HUB_CACHE": str(self.folder / "empty-hub"), "HOME": str(self.folder)}
        job = ["--ranks", 4, "--gpu", "a100-80g", "--seq-len", 512, "--precision", "bf16"]
        by_file = memprobe_cli.report([*self.codellama[:2], *job])
        for name in ("codellama/CodeLlama-7b-hf", "CodeLlama-7b"):
            found = memprobe_cli.report(["--model", name, *job], env=env)
            self.assertEqual(found["model"].pop("built_in"), "codellama/CodeLlama-7b-hf")
            self.assertEqual(found["model"], by_file["model"])
            self.assertEqual(found["breakdown"], by_file["breakdown"])
        result = fsdp_cli.run("fsdp-memprobe", ["--model", "CodeLlama-7b", *job], env=env)
        self.assertIn("sizes of codellama/CodeLlama-7b-hf are built in", result.out)
        # Other programs need the weights.
        arguments = ["--model", "codellama/CodeLlama-7b-hf", "--train-data", fsdp_cli.folder("FSDP_DATA") / "shakespeare/test.csv"]
        self.assert_refused(fsdp_cli.run("fsdp-finetune", arguments, env=env), 4, "codellama/CodeLlama-7b-hf")
        self.assert_refused(fsdp_cli.run("fsdp-memprobe", ["--model", "qwen9-1b", *job], env=env), 4, "qwen9-1b", "Qwen/Qwen2.5-0.5B")

    def test_bf16_is_named_where_nobody_chose_float32(self):
        job = [*self.codellama[:2], "--seq-len", 512, "--gpu", "a100-80g", "--ranks", 4, "--tokens", "1e9", "--price", 2]
        whole, half = memprobe_cli.report(job), memprobe_cli.report([*job, "--precision", "bf16"])
        self.assertEqual(whole["bf16"], half["combinations"][0])
        self.assertGreater(whole["run"]["hours"], 5 * whole["bf16"]["run"]["hours"])
        said = fsdp_cli.run("fsdp-memprobe", job).out
        line = next(line for line in said.splitlines() if "with --precision bf16" in line)
        self.assertIn(f"price {int(half['run']['price'])} at 2 an hour", line)
        self.assertNotIn("bf16", half)
        for other in (["--precision", "float32"], ["--gpu", "v100-32g"]):  # a choice; no bf16 units
            self.assertNotIn("bf16", memprobe_cli.report([*job, *other], codes=(0, 3)))

    def test_what_the_report_says_of_a_run(self):
        job = [*memprobe_cli.MINGPT_S, "--precision", "bf16", "--gpu", "h100", "--ranks", 1]
        self.assert_refused(fsdp_cli.run("fsdp-memprobe", [*job, "--price", 2]), 2, "--price", "--tokens")
        self.assertRegex(fsdp_cli.run("fsdp-memprobe", [*job, "--tokens", "1e8", "--price", 2]).out, r"takes [\d.]+ min, [\d.]+ GPU-hours, price [\d.]+ at 2 an hour")
        self.assertEqual(memprobe_cli.report([*memprobe_cli.MINGPT_S, "--gpu", "h100", "--gpus", 4])["ranks"], 4)
        small = fsdp_cli.run("fsdp-memprobe", [*self.codellama, "--ranks", 1, "--gpu", "t4", "--tokens", "1e9"])
        self.assertEqual(small.code, 3)
        self.assertNotIn("the run takes", small.out)
        qlora = fsdp_cli.run("fsdp-memprobe", [*self.codellama, "--ranks", 1, "--gpu", "h100", "--lora-rank", 16, "--quantize", "nf4"]).out
        self.assertIn("LoRA of rank 16 on nf4", qlora)
        self.assertRegex(qlora, r"parameters .* 4-bit matrices")

    def test_short_names_of_cards(self):
        for short, full in (("a100", "a100-40g"), ("v100", "v100-16g"), ("h100-80g", "h100"), ("A100-80GB", "a100-80g")):
            found = [memprobe_cli.report([*memprobe_cli.MINGPT_S, "--ranks", 1, "--gpu", name]) for name in (short, full)]
            self.assertEqual(found[0], found[1])

    def test_no_search_takes_a_search_back(self):
        found = memprobe_cli.report([*memprobe_cli.MINGPT_S, "--ranks", 1, "--gpu", "t4", "--search", "--no-search"])
        self.assertEqual(found, memprobe_cli.report([*memprobe_cli.MINGPT_S, "--ranks", 1, "--gpu", "t4"]))

    def test_what_does_not_fit_gets_no_plan(self):
        plan = self.folder / "none.toml"
        result = fsdp_cli.run("fsdp-memprobe", [*self.codellama, "--ranks", 1, "--gpu", "t4", "--plan", plan])
        self.assertEqual(result.code, 3, str(result))
        self.assertFalse(plan.exists())
        self.assertIn("does not fit", result.out)
        for text in (result.out, result.err):  # one GPU of 16 GB is too small whatever is done; the plan's warning says so, too
            self.assertRegex(text, r"does not even fit with .*--activation-checkpointing, .*--optimizer adamw8bit, --offload-optimizer cpu together"
                                   r"; --search ranks")


if __name__ == "__main__":
    fsdp_cli.main()
