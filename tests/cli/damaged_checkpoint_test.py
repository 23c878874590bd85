"""Truncated and changed checkpoints: a named one is refused, `latest` falls back to the previous one with a warning."""

import json
import random
import shutil

import fsdp_cli


class Damaged(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.good = cls.folder / "good"
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", cls.train_data, "--out-dir", cls.folder, "--run-name", "good", "--max-steps", 4,
                                                "--save-every", 2, *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL], ranks=2)
        assert result.code == 0, str(result)

    def damage(self, file, change):
        """Copies the run to run `damaged` and applies `change` to a file of step 4."""
        shutil.rmtree(self.run_directory("damaged"), ignore_errors=True)
        shutil.copytree(self.good, self.run_directory("damaged"), symlinks=True)
        step = self.checkpoints("damaged") / "step-00000004"
        data = bytearray((step / file).read_bytes())
        data = change(data)
        if data is None:
            (step / file).unlink()
        else:
            (step / file).write_bytes(data)
        return step

    def check(self, file, change, by_name=False):
        """`latest` names the damaged file and goes on from the checkpoint before. by_name: the checkpoint is refused, too."""
        step = self.damage(file, change)
        restart = ["--max-steps", 6, "--restart-checkpoint-file"]
        if by_name:
            refused = self.train("damaged", *restart, step, code=4)
            self.assert_refused(refused, 4, step / file if file != "run.json" else "run.json")
            self.assertEqual(len(fsdp_cli.losses(self.run_directory("damaged"))), 4, "a refused restart changes nothing")
            self.assert_refused(self.evaluate(step, "--data", self.val_data, code=4), 4, file)
        going_on = self.train("damaged", *restart, "latest")
        warnings = [line for line in going_on.err.splitlines() if "warning" in line and "step-00000004" in line]
        self.assertIn(file, " ".join(warnings))
        self.assertIn("restart   " + str(self.checkpoints("damaged") / "step-00000002"), going_on.err)
        # The good run had two ranks, this one has one, so sums differ in their order.
        self.assertLess(fsdp_cli.difference(fsdp_cli.losses(self.run_directory("damaged"))[:4], fsdp_cli.losses(self.good)), 2e-5)

    def test_truncated(self):
        for file in ("__0_0.distcp", "__1_0.distcp", ".metadata", "run.json"):
            with self.subTest(file=file):
                self.check(file, lambda data: data[:len(data) * 2 // 3], by_name=True)

    def test_missing(self):
        for file in ("__1_0.distcp", ".metadata", "run.json"):
            with self.subTest(file=file):
                self.check(file, lambda data: None)

    def test_empty(self):
        for file in ("__0_0.distcp", ".metadata", "run.json"):
            with self.subTest(file=file):
                self.check(file, lambda data: data[:0])

    def test_flipped_bits_in_tensors(self):
        for file in ("__0_0.distcp", "__1_0.distcp"):
            with self.subTest(file=file):
                def flip(data):
                    for place in range(len(data) // 20, len(data), 1999):  # in the tensors of the model and of its optimizer
                        data[place] ^= 16
                    return data
                self.check(file, flip)

    def test_a_flipped_bit_elsewhere(self):
        for file in (".metadata", "run.json"):
            with self.subTest(file=file):
                def flip(data):
                    data[len(data) // 2] ^= 1
                    return data
                self.check(file, flip)

    def test_flipped_bits_anywhere_are_found_or_change_nothing(self):
        """fsdp-eval reads only the model's tensors, so damage to the optimizer may go unnoticed, but no wrong loss may result."""
        choice = random.Random(7)
        truth = self.evaluate(self.good / "checkpoints" / "step-00000004", "--data", self.val_data)
        found = 0
        for _ in range(12):
            file = choice.choice(["__0_0.distcp", "__1_0.distcp", ".metadata", "run.json"])
            where = choice.random()

            def flip(data):
                data[int(where * len(data))] ^= 1 << choice.randrange(8)
                return data
            step = self.damage(file, flip)
            result = fsdp_cli.run("fsdp-eval", [step, "--json", *fsdp_cli.COMMON, "--data", self.val_data])
            if result.code == 0:
                self.assertEqual(result.json()["loss"], truth["loss"], f"{file} at {where}")
            else:
                self.assert_refused(result, 4, file)
                found += 1
        self.assertGreater(found, 3)

    def test_both_damaged(self):
        step = self.damage(".metadata", lambda data: data[:10])
        (step.parent / "step-00000002" / "run.json").write_text(json.dumps({"format": "fsdp-run"}))
        result = self.train("damaged", "--restart-checkpoint-file", "latest", "--max-steps", 6, code=4)
        self.assert_refused(result, 4, "step-00000002")
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("damaged"))), 4)

    def test_damage_is_told_once_on_several_ranks(self):
        def flip(data):
            data[len(data) // 2] ^= 16
            return data
        step = self.damage("__1_0.distcp", flip)
        result = self.train("damaged", "--restart-checkpoint-file", step, "--max-steps", 6, ranks=3, code=4)
        self.assertEqual(len(result.errors()), 1, str(result))
        self.train("damaged", "--restart-checkpoint-file", "latest", "--max-steps", 6, ranks=3)


if __name__ == "__main__":
    fsdp_cli.main()
