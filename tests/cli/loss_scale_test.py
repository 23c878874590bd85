"""fp16's loss scale on a restart: from the checkpoint if that is fp16 too, a new one if the precision changes."""

import json

import fsdp_cli

FIRST = 65536.0


class LossScale(fsdp_cli.Case):
    def state(self, name):
        return json.loads((self.checkpoints(name) / "latest" / "run.json").read_text())["state"]

    def test_fp16_goes_on_from_float32(self):
        self.train("up", "--max-steps", 2)
        self.assertEqual(self.state("up")["loss_scale"], 1.0)
        self.train("up", "--max-steps", 4, "--precision", "fp16", "--restart", "latest")
        steps = fsdp_cli.steps(self.run_directory("up"))
        self.assertEqual([r.get("loss_scale") for r in steps], [None, None, FIRST, FIRST])
        self.assertEqual([r.get("skipped") for r in steps[2:]], [False, False])

    def test_float32_goes_on_from_fp16(self):
        self.train("down", "--max-steps", 2, "--precision", "fp16")
        self.assertEqual(self.state("down")["loss_scale"], FIRST)
        self.train("down", "--max-steps", 3, "--precision", "float32", "--restart", "latest")
        self.assertEqual((self.state("down")["loss_scale"], self.state("down")["good_steps"]), (1.0, 0))

    def test_gradients_that_travel_in_fp16_are_scaled_whatever_the_parameters_are(self):
        for param in ("bf16", "float32"):
            self.train(param, "--max-steps", 2, "--param-dtype", param, "--reduce-dtype", "fp16")
            self.assertEqual([r["loss_scale"] for r in fsdp_cli.steps(self.run_directory(param))], [FIRST, FIRST])

    def test_fp16_keeps_its_scale(self):
        """A scale that differs from the initial one, and the lowest one: a restart from one file or a directory uses the saved scale."""
        try:
            import torch
        except ImportError as missing:
            self.skipTest(str(missing))
        full = self.folder / "full.pt"
        self.train("first", "--max-steps", 1, "--precision", "fp16", "--save-final-full", full)
        for scale in (512.0, 1.0):
            content = torch.load(full, weights_only=True)
            self.assertEqual(content["run"]["state"]["loss_scale"], FIRST)
            content["run"]["state"]["loss_scale"] = scale
            torch.save(content, self.folder / "changed.pt")
            name = f"keep-{scale:.0f}"
            self.train(name, "--max-steps", 2, "--restart", self.folder / "changed.pt")
            self.train(name, "--max-steps", 3, "--restart", "latest")
            self.assertEqual([r["loss_scale"] for r in fsdp_cli.steps(self.run_directory(name))], [scale, scale])


if __name__ == "__main__":
    fsdp_cli.main()
