"""Searches: by prediction, and by measurement in separate processes; plans that fsdp-finetune accepts."""

import fsdp_cli
import memprobe_cli

SMALL = ["--num-layers", 2, "--num-heads", 2, "--embed-size", 64, "--vocab-size", 1000, "--seq-len", 64]


class Search(fsdp_cli.Case):
    def test_the_largest_batch_fits_and_one_more_does_not(self):
        for precision, recompute in (("float32", "none"), ("bf16", "all")):
            job = [*memprobe_cli.MINGPT_M, "--ranks", 4, "--gpu", "t4", "--precision", precision, "--activation-checkpointing", recompute]
            found = memprobe_cli.report([*job, "--search", "--margin", 0])
            largest = found["largest_batch_per_device"]
            self.assertIsInstance(largest, int)
            fits = memprobe_cli.report([*job, "--batch-size", largest])
            self.assertEqual((fits["alloc_retries"], fits["fits"]), (0, True))
            more = memprobe_cli.report([*job, "--batch-size", largest + 1], codes=(3,))
            self.assertGreater(more["alloc_retries"], 0)
            # By default a search leaves 1/200 of the card free.
            careful = memprobe_cli.report([*job, "--search"])
            self.assertEqual(careful["margin_bytes"], careful["budget_bytes"] // 200)
            self.assertGreaterEqual(careful["budget_bytes"] - careful["peak_bytes"], careful["margin_bytes"])
            self.assertLessEqual(careful["largest_batch_per_device"], largest)
            # The search wastes no room: one more sample would use the margin, or not fit at all.
            tight = memprobe_cli.report([*job, "--batch-size", careful["largest_batch_per_device"] + 1], codes=(0, 3))
            self.assertTrue(not tight["fits"] or careful["budget_bytes"] - tight["peak_bytes"] < careful["margin_bytes"])

    def test_the_whole_share_may_fit_where_smaller_batches_do_not(self):
        """Without accumulation there are no accumulated gradients: 16 of 16 sequences fit, 8 of 16 do not."""
        job = ["--num-layers", 32, "--num-heads", 32, "--embed-size", 4096, "--vocab-size", 32000, "--seq-len", 512, "--ranks", 4,
               "--gpu", "a100-40g", "--precision", "bf16", "--activation-checkpointing", "all", "--total-batch-size", 64]
        self.assertEqual(memprobe_cli.report([*job, "--search"])["batch_size_per_device"], 16)
        tight = memprobe_cli.report([*job, "--batch-size", 8], codes=(3,))
        self.assertFalse(tight["fits"])
        # The advice names what makes the job fit, and nothing that is given already.
        self.assertIn("it fits with --reduce-every-micro-batch", tight["advice"])
        self.assertNotIn("--activation-checkpointing", tight["advice"])
        fits = memprobe_cli.report([*job, "--batch-size", 8, "--reduce-every-micro-batch"])
        self.assertTrue(fits["fits"])
        self.assertNotIn("advice", fits)

    def test_advice_is_the_smallest_set_of_options(self):
        """No option alone is enough here; the pairs that are name the host memory that they take."""
        job = ["--num-layers", 32, "--num-heads", 32, "--embed-size", 4096, "--vocab-size", 32000, "--seq-len", 2048, "--ranks", 1,
               "--gpu", "l4", "--precision", "bf16", "--batch-size", 4]
        advice = memprobe_cli.report(job, codes=(3,))["advice"]
        self.assertRegex(advice, r"it fits with .*, or with --activation-checkpointing and --offload-optimizer cpu \([\d.]+ GiB of host memory a node\);")
        recompute, offload = ["--activation-checkpointing"], ["--offload-optimizer", "cpu"]
        for options, fits in ((recompute, False), (offload, False), (["--optimizer", "adamw8bit"], False), (recompute + offload, True)):
            self.assertEqual(memprobe_cli.report([*job, *options], codes=(0, 3))["fits"], fits, options)

    def test_hours_and_price_of_a_run(self):
        job = [*memprobe_cli.MINGPT_M, "--nodes", "1,2", "--ranks-per-node", 4, "--gpu", "a100-80g", "--precision", "bf16", "--batch-size", 4]
        self.assertNotIn("run", memprobe_cli.report(job))
        found = memprobe_cli.report([*job, "--tokens", "1e9", "--price", 2.5])
        for answer in found["combinations"]:
            run = answer["run"]
            self.assertEqual(run["tokens"], 1e9)
            self.assertAlmostEqual(run["hours"], 1e9 / answer["speed"]["tokens_per_second"] / 3600)
            self.assertAlmostEqual(run["gpu_hours"], run["hours"] * answer["ranks"])
            self.assertAlmostEqual(run["price"], run["gpu_hours"] * 2.5)
        steps = memprobe_cli.report([*job, "--max-steps", 1000])
        self.assertEqual(steps["run"]["tokens"], 1000 * steps["speed"]["tokens_per_step"])
        table = fsdp_cli.run("fsdp-memprobe", [*job, "--tokens", "1e9", "--price", 2.5]).out
        self.assertRegex(table, r"hours +GPU-h +price +slower by")
        on_hosts = memprobe_cli.report([*memprobe_cli.MINGPT_M, "--ranks", 8, "--ranks-per-node", 4, "--memory", "64GiB", "--tokens", "1e6"])["run"]
        self.assertAlmostEqual(on_hosts["node_hours"], 2 * on_hosts["hours"])
        few = memprobe_cli.report([*memprobe_cli.MINGPT_M, "--search", "ranks", "--gpu", "t4", "--ranks-per-node", 4, "--tokens", "1e9"])
        self.assertAlmostEqual(few["run"]["gpu_hours"], few["run"]["hours"] * few["ranks"])

    def test_each_combination_has_an_answer(self):
        found = memprobe_cli.report([*memprobe_cli.MINGPT_M, "--nodes", "1,2", "--ranks-per-node", 4, "--gpu", "v100-16g", "--search",
                                     "--sharding", "all", "--activation-checkpointing", "both", "--precision", "float32,fp16", "--plan-for", "largest"])
        combinations = found["combinations"]
        self.assertEqual(len(combinations), 2 * 6 * 2 * 2)
        self.assertEqual(len({(c["ranks"], c["sharding"], c["activation_checkpointing"], c["precision"]) for c in combinations}), 48)
        best = max(c["largest_batch_per_device"] * c["ranks"] for c in combinations)
        self.assertEqual(found["largest_batch_per_device"] * found["ranks"], best)
        by = {(c["ranks"], c["sharding"], c["activation_checkpointing"], c["precision"]): c for c in combinations}
        full, replicated = by[8, "full-shard", "none", "fp16"], by[8, "no-shard", "none", "fp16"]
        self.assertGreater(full["largest_batch_per_device"], replicated["largest_batch_per_device"])
        self.assertEqual(replicated["communication_per_step"]["shard"]["all_gathers"], 0)
        # On one node a hybrid strategy equals the plain one.
        for key in ("largest_batch_per_device", "peak_bytes", "communication_per_step"):
            self.assertEqual(by[4, "full-shard", "all", "float32"][key], by[4, "hybrid-full-shard", "all", "float32"][key])

    def test_the_plan_is_the_fastest_that_fits(self):
        job = ["--model", memprobe_cli.write_config(self.folder, memprobe_cli.CODELLAMA), "--ranks", 4, "--gpu", "a100-80g", "--seq-len", 512,
               "--precision", "bf16", "--search", "--sharding", "full-shard,grad-shard,no-shard", "--activation-checkpointing", "both"]
        fastest, largest = memprobe_cli.report(job), memprobe_cli.report([*job, "--plan-for", "largest"])
        # Recomputation makes room for six times as many sequences and costs a third more arithmetic.
        self.assertEqual((fastest["activation_checkpointing"], largest["activation_checkpointing"]), ("none", "all"))
        self.assertGreater(largest["batch_size_per_device"], 3 * fastest["batch_size_per_device"])
        self.assertGreater(fastest["speed"]["tokens_per_second"], 1.15 * largest["speed"]["tokens_per_second"])
        speeds = [c["speed"]["tokens_per_second"] for c in fastest["combinations"] if c["fits"]]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        self.assertFalse(fastest["combinations"][-1]["fits"])  # a replica of 7B and its states exceeds the card
        for found in fastest["combinations"]:
            speed = found["speed"]
            self.assertAlmostEqual(sum(speed["seconds"].values()), speed["step_seconds"], 9)
            self.assertAlmostEqual(speed["tokens_per_second"] * speed["step_seconds"], found["total_batch_size"] * 512, 0)
            self.assertTrue(0 < speed["mfu"] < 1, speed)
            self.assertLessEqual(found["batch_size_per_device"], max(1, found["largest_batch_per_device"]))
        text = fsdp_cli.run("fsdp-memprobe", job).out
        self.assertRegex(text, r"full-shard +all .* recomputation \+\d\d %")

    def test_slow_networks_show_in_the_speed(self):
        job = ["--model", memprobe_cli.write_config(self.folder, memprobe_cli.CODELLAMA), "--nodes", 8, "--ranks-per-node", 4, "--gpu", "a100-80g",
               "--seq-len", 512, "--precision", "bf16", "--batch-size", 1, "--activation-checkpointing", "all"]

        def speed(*more):
            found = memprobe_cli.report([*job, *more])
            return found["speed"], found["communication_per_step"]["bytes"]

        (fast, received), (slow, _) = speed("--network-gb-per-s", 400), speed("--network-gb-per-s", 5)
        self.assertGreater(slow["seconds"]["communication"], 0.8 * received / 5e9)
        self.assertLess(slow["tokens_per_second"], 0.5 * fast["tokens_per_second"])
        # With sharding inside nodes only gradients cross the network.
        hybrid, _ = speed("--network-gb-per-s", 5, "--sharding", "hybrid-full-shard")
        self.assertGreater(hybrid["tokens_per_second"], 1.3 * slow["tokens_per_second"])

    def test_the_most_layers_fit_and_one_more_does_not(self):
        for precision, recompute in (("float32", "none"), ("bf16", "all")):
            job = [*SMALL, "--ranks", 2, "--memory", "300MiB", "--batch-size", 3, "--precision", precision, "--activation-checkpointing", recompute, "--margin", 0]
            found = memprobe_cli.report([*job, "--search", "model"])
            layers = found["largest_layers"]
            self.assertGreater(layers, 2)
            fits = memprobe_cli.report([*job, "--num-layers", layers])
            self.assertEqual((fits["fits"], fits["model"]["parameters"], fits["needed_bytes"]), (True, found["largest_parameters"], found["needed_bytes"]))
            self.assertFalse(memprobe_cli.report([*job, "--num-layers", layers + 1], codes=(3,))["fits"])

    def test_the_most_layers_by_combination_and_not_even_one(self):
        found = memprobe_cli.report([*memprobe_cli.MINGPT_M, "--embed-size", 1536, "--ranks", 4, "--gpu", "v100-16g", "--search", "model", "--sharding", "full-shard,no-shard", "--precision", "all",
                                     "--activation-checkpointing", "both"])
        by = {(c["sharding"], c["precision"], c["activation_checkpointing"]): c["largest_layers"] for c in found["combinations"]}
        self.assertEqual(len(by), 8)
        self.assertEqual(found["largest_layers"], max(by.values()))
        for precision in ("float32", "bf16"):
            self.assertGreater(by["full-shard", precision, "all"], by["full-shard", precision, "none"])
            self.assertGreater(by["full-shard", precision, "none"], by["no-shard", precision, "none"])
        none = memprobe_cli.report([*SMALL, "--ranks", 2, "--memory", "100MiB", "--search", "model"], codes=(3,))
        self.assertEqual((none["largest_layers"], none["fits"]), (0, False))

    def test_the_fewest_ranks_and_what_would_make_fewer_do(self):
        job = ["--model", memprobe_cli.write_config(self.folder, memprobe_cli.CODELLAMA), "--gpu", "a100-80g", "--seq-len", 512,
               "--precision", "bf16", "--batch-size", 1, "--margin", "0.5%", "--ranks-per-node", 4]
        found = memprobe_cli.report([*job, "--search", "ranks"])
        rows = found["combinations"]
        ranks = [c["ranks"] for c in rows]
        self.assertEqual(ranks, sorted(ranks))
        self.assertEqual(found["ranks"], 1)
        self.assertEqual((rows[-1]["optimizer"], rows[-1]["offload_optimizer"], rows[-1]["activation_checkpointing"]), ("adamw", "none", "none"))
        self.assertGreater(ranks[-1], 1)
        for row in (rows[0], rows[-1]):
            same = [*job, "--optimizer", row["optimizer"], "--offload-optimizer", row["offload_optimizer"],
                    "--activation-checkpointing", row["activation_checkpointing"]]
            fits = memprobe_cli.report([*same, "--ranks", row["ranks"]])
            self.assertEqual((fits["fits"], fits["needed_bytes"]), (True, row["needed_bytes"]))
            if row["ranks"] > 1:
                self.assertFalse(memprobe_cli.report([*same, "--ranks", row["ranks"] - 1], codes=(3,))["fits"])
        none = memprobe_cli.report([*job, "--search", "ranks", "--gpu", "3GiB", "--ranks", 2], codes=(3,))
        self.assertEqual((none["fits"], none["combinations"]), (False, []))
        for more in (["--measure"], ["--nodes", "1,2"], ["--plan", self.folder / "plan.ini"]):
            self.assertEqual(fsdp_cli.run("fsdp-memprobe", [*job, "--search", "ranks", *more]).code, 2)

    def test_search_in_all_its_spellings(self):
        config = self.folder / "search.toml"

        def asked(words, *arguments):
            config.write_text(words)
            report = memprobe_cli.report([*SMALL, "--ranks", 2, "--memory", "400MiB", "--max-batch", 3, "--config", config, *arguments])
            return "model" if "largest_layers" in report else "batch" if "largest_batch_per_device" in report else "no"

        for words, arguments, answer in (
                ("", ["--search"], "batch"), ("", ["--search", "batch"], "batch"), ("", ["--search", "--no-search"], "no"), ("", ["--no-search", "--search"], "batch"),
                ("", ["--search=false"], "no"), ("", ["--search", "model"], "model"), ("", ["--search", "model", "--no-search"], "no"), ("", ["--search=true", "--seed", 1], "batch"),
                ("search=true", [], "batch"), ("search=false", [], "no"), ("search=model", [], "model"), ("search=true", ["--no-search"], "no"),
                ("no-search=true", [], "no"), ("no-search=true", ["--search", "model"], "model")):
            with self.subTest(words=words, arguments=arguments):
                self.assertEqual(asked(words, *arguments), answer)
        wrong = fsdp_cli.run("fsdp-memprobe", ["--search", "width"])
        self.assertEqual((wrong.code, "choose from batch, model" in wrong.err), (2, True), str(wrong))
        for more in (["--plan", self.folder / "no.toml"], ["--measure"], ["--plot", self.folder / "no.svg"]):
            self.assertEqual(fsdp_cli.run("fsdp-memprobe", [*SMALL, "--ranks", 1, "--search", "model", *more]).code, 2, more)

    def test_measured_search_finds_what_was_predicted(self):
        for ranks, more in ((0, ["--ranks", 2, "--plan", self.folder / "measured.toml"]), (2, [])):
            found = memprobe_cli.report([*SMALL, "--search", "--measure", "--memory", "320MiB", *more], ranks=ranks, limit_seconds=300)
            self.assertIn(found["predicted_largest_batch_per_device"] - found["largest_batch_per_device"], (-1, 0, 1))
            self.assertLess(abs(found["relative_error"]), 0.01)
        # Only the search writes the plan; its trials write nothing.
        self.assertIn(f"batch-size={found['largest_batch_per_device']}", (self.folder / "measured.toml").read_text())

    def test_one_process_measures_a_rank_of_many(self):
        job = [*memprobe_cli.MINGPT_S_SHORT, "--batch-size", 2, "--ranks", 4, "--ranks-per-node", 2, "--sharding", "hybrid-full-shard"]
        alone = memprobe_cli.report([*job, "--measure", "--alone", "--rank", 3])
        self.assertLess(abs(alone["relative_error"]), 0.01)
        together = memprobe_cli.report([*memprobe_cli.MINGPT_S_SHORT, "--batch-size", 2, "--sharding", "hybrid-full-shard", "--shard-group-size", 2, "--measure"], ranks=4)
        self.assertLess(abs(alone["measured_peak_bytes"] / together["measured_peak_bytes"] - 1), 0.01)

    def test_a_plan_is_a_config_file_for_training(self):
        plan = self.folder / "plan.toml"
        found = memprobe_cli.report([*fsdp_cli.TINY_MODEL, "--ranks", 2, "--gpu", "t4", "--search", "--max-batch", 8, "--total-batch-size", 8,
                                     "--sharding", "grad-shard,full-shard", "--lr", "0.002", "--plan", plan])
        self.assertEqual(found["largest_batch_per_device"], 4)
        for word in ("--nodes=1", "--ntasks-per-node=2", "--gres=gpu:2", "--mem="):
            self.assertIn(word, plan.read_text())
        result = fsdp_cli.run("fsdp-finetune", ["--config", plan, "--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "plan",
                                                "--max-steps", 2, *fsdp_cli.COMMON], ranks=2)
        self.assertEqual(result.code, 0, str(result))
        step = fsdp_cli.steps(self.run_directory("plan"))[0]
        self.assertEqual(step["tokens"], 8 * fsdp_cli.SEQ_LEN)
        self.assertEqual(step["lr"], 0.002)


if __name__ == "__main__":
    fsdp_cli.main()
