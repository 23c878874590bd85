"""Bad input: one clear message, the right exit code, no data lost."""

import os
import time
import unittest

import h5py

import fsdp_cli


class BadInput(fsdp_cli.Case):
    def hdf5(self, name, dataset="input_ids", data=None):
        path = self.folder / name
        with h5py.File(path, "w") as file:
            file[dataset] = data
        return path

    def refuse_data(self, path, code, *words):
        """Tests both programs; for finetune training data and validation data."""
        self.assert_refused(self.train("bad", "--max-steps", 2, "--train-data", path, ranks=2, code=code), code, path.name, *words)
        self.assert_refused(self.train("bad", "--max-steps", 2, "--val-data", path, code=code), code, path.name, *words)

    def test_token_files(self):
        """Others that are refused: tests/unit/token_files/token_rows_test.cpp."""
        empty = self.folder / "empty.h5"
        empty.write_bytes(b"")
        self.refuse_data(self.folder / "missing.h5", 4, "No such file")
        self.refuse_data(empty, 4)
        self.refuse_data(self.hdf5("text-ids.h5", data=["a", "b"]), 4)

    def test_a_folder_instead_of_a_file(self):
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments("bad", "--train-data", self.folder, "--max-steps", 1))
        self.assertIn(result.code, (1, 4), str(result))
        self.assertIn(str(self.folder), result.errors()[0])

    def test_token_id_outside_the_vocabulary(self):
        ids = fsdp_cli.random_tokens(rows=24)
        ids[17, 5] = fsdp_cli.VOCAB
        unnamed = fsdp_cli.write_tokens(self.folder / "unnamed.h5", ids)
        result = self.train("unnamed", "--train-data", unnamed, ranks=2, code=4)
        self.assert_refused(result, 4, unnamed.name, "row 17", "position 5", fsdp_cli.VOCAB)
        self.assertFalse((self.run_directory("unnamed") / "metrics.jsonl").exists())  # before the first step
        path = fsdp_cli.write_tokens(self.folder / "large.h5", ids, vocab_size=fsdp_cli.VOCAB)
        result = self.train("large", "--train-data", path, "--no-shuffle", "--batch-size", 2, "--save-every", 1, ranks=2, code=4)
        self.assert_refused(result, 4, path.name, "row 17", "position 5", fsdp_cli.VOCAB)
        # Steps 1 to 4 read rows 0 to 15; their results are kept.
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("large"))), 4)
        self.evaluate(self.checkpoints("large") / "latest", "--data", self.val_data)
        result = self.evaluate(self.checkpoints("large") / "latest", "--data", path, ranks=2, code=4)
        self.assert_refused(result, 4, path.name, "row 17")

    def test_options_that_contradict_each_other_or_the_ranks(self):
        """One rank refuses others: tests/unit/apps/common/refused_jobs_test.cpp."""
        for options, words in ((["--embed-size", 33], ["embed-size 33", "num-heads 2"]),
                               (["--total-batch-size", 6, "--batch-size", 2], ["total batch of 6", "--total-batch-size 4 or 8"]),
                               (["--shard-group-size", 3, "--sharding", "hybrid-shard"], ["shard group of 3 ranks", "2 ranks", "--shard-group-size"])):
            self.assert_refused(self.train("bad", "--max-steps", 1, *options, ranks=2, code=2), 2, *words)

    def test_what_is_missing(self):
        self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--device", "cpu"], ranks=2), 2, "--train-data")
        self.assert_refused(fsdp_cli.run("fsdp-eval", [], ranks=2), 2, "checkpoint")

    def test_missing_checkpoint(self):
        path = self.folder / "no-such"
        self.assert_refused(self.train("bad", "--restart-checkpoint-file", path, ranks=2, code=4), 4, path)
        self.assertEqual(self.evaluate(path, "--data", self.val_data, code=4).code, 4)

    def test_model_directories(self):
        source = fsdp_cli.folder("FSDP_FIXTURES") / "numerics" / "mingpt_tiny"
        model = self.folder / "model"
        model.mkdir()
        config = (source / "config.json").read_text()
        weights = (source / "model.safetensors").read_bytes()
        arguments = ["--max-steps", 1, "--model", model]

        def refuse(code, *words):
            self.assert_refused(self.train("bad", *arguments, ranks=2, code=code), code, *words)
        refuse(4, "config.json")
        (model / "config.json").write_text(config)
        refuse(4, "model.safetensors")
        (model / "model.safetensors").write_bytes(weights[:len(weights) // 2])
        refuse(4, "model.safetensors")
        (model / "model.safetensors").write_bytes(b"\xff" * 64)
        refuse(4, "model.safetensors")
        (model / "model.safetensors").write_bytes(weights)
        (model / "config.json").write_text(config.replace('"n_embd": 64', '"n_embd": 128').replace('"n_hidden": 256', '"n_hidden": 512'))
        refuse(4, "shape")
        (model / "config.json").write_text(config[:40])
        refuse(4, "config.json")

    def test_output_that_cannot_be_written(self):
        file = self.folder / "a-file"
        file.write_text("in the way")
        self.assert_refused(self.train("bad", "--max-steps", 1, "--out-dir", file, ranks=2, code=1), 1, str(file), "--out-dir")

    def test_trace_that_cannot_be_written(self):
        result = self.train("trace", "--max-steps", 1, "--trace", self.folder / "no" / "trace.json", ranks=2, code=1)
        self.assert_refused(result, 1, "trace.json")

    def test_cuda_without_a_gpu(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        for program, arguments in (("fsdp-finetune", self.train_arguments("bad", "--device", "cuda")),
                                   ("fsdp-eval", [self.folder, "--prompt", "a", "--device", "cuda"])):
            self.assert_refused(fsdp_cli.run(program, arguments, ranks=2), 2, "--device cuda", ":")

    def test_run_names_stay_below_out_dir(self):
        outside = self.folder / "outside"
        self.assert_refused(self.train("a/../../outside", "--max-steps", 1, ranks=2, code=2), 2, "--run-name", "a/../../outside")
        self.assertFalse(outside.exists())
        self.train("deep/er", "--max-steps", 1)
        self.assertTrue((self.checkpoints("deep/er") / "latest").exists())

    def test_a_run_is_not_made_inside_the_checkpoints_of_another(self):
        self.train("a", "--max-steps", 1)
        held = sorted((self.checkpoints("a") / "latest").iterdir())
        for name in ("a/checkpoints", "a/checkpoints/latest", "a/.owner"):
            self.assert_refused(self.train(name, "--max-steps", 1, code=2), 2, "--run-name", name)
        self.assertEqual(sorted((self.checkpoints("a") / "latest").iterdir()), held)
        self.assert_refused(self.train("a" * 256, "--max-steps", 1, code=2), 2, "--run-name", "256 bytes")

    @unittest.skipUnless(os.geteuid() == 0, "only root starts a program as another user")
    def test_a_thread_that_cannot_be_started_is_named_with_its_limit(self):
        os.chmod(self.folder, 0o755)
        self.runs.mkdir(exist_ok=True)
        os.chmod(self.runs, 0o777)
        refused = []
        for limit in (1, 2, 3):
            within = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups", "bash", "-c", f'ulimit -u {limit}; exec "$@"', "bash"]
            result = fsdp_cli.run("fsdp-finetune", self.train_arguments(f"few-{limit}", "--max-steps", 2, "--save-every", 1), within=within)
            if result.code != 0:
                self.assert_refused(result, 1, "no thread could be started that", f"at most {limit} processes and threads of this user (ulimit -u)")
                refused.append(limit)
        self.assertIn(1, refused)

    def test_one_failing_rank_takes_the_job_down(self):
        ids = fsdp_cli.random_tokens(rows=16)
        ids[2] = fsdp_cli.VOCAB + 5  # only rank 2 reads it, in the first step
        path = fsdp_cli.write_tokens(self.folder / "third.h5", ids, vocab_size=fsdp_cli.VOCAB)
        started = time.monotonic()
        result = self.train("down", "--train-data", path, "--no-shuffle", "--batch-size", 1, "--max-steps", 2, ranks=4, code=4)
        self.assertLess(time.monotonic() - started, 20)
        self.assertEqual(len(result.errors()), 1, str(result))
        self.assertIn("[rank 2]", result.errors()[0])

    def test_both_widths_of_ids_give_the_same_losses(self):
        for dtype in ("uint16", "uint32"):
            path = fsdp_cli.write_tokens(self.folder / f"{dtype}.h5", fsdp_cli.random_tokens(), dtype)
            self.train(dtype, "--train-data", path, "--max-steps", 2, "--no-save")
        self.assertEqual(fsdp_cli.losses(self.run_directory("uint16")), fsdp_cli.losses(self.run_directory("uint32")))


if __name__ == "__main__":
    fsdp_cli.main()
