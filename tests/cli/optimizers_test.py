"""--optimizer: each one is read by torch, predicted, and distinguished from the others. Restarts: tests/unit/apps/resume_test.cpp."""

import fsdp_cli
import memprobe_cli

OPTIMIZERS = {
    "adamw": [],
    "anyprecision": ["--kahan", "--momentum-dtype", "bf16"],
    "lion": ["--lr", "3e-4"],
    "sgd": ["--momentum", 0.9, "--nesterov", "--lr", "0.05"],
    "adamw8bit": ["--quantize-all", "--min-8bit-size", 1],
    "lion8bit": ["--lr", "3e-4", "--quantize-all", "--min-8bit-size", 1],
    "torchao-adamw8bit": ["--min-8bit-size", 1],
    "torchao-adamw4bit": ["--min-8bit-size", 1],
    "adafactor": ["--lr", "0.03"],
    "muon": ["--momentum", 0.9],
}
# Classes of torch.optim for the optimizers that torch has.
CLASSES = {"adamw": "AdamW", "sgd": "SGD", "adafactor": "Adafactor"}
BNB = "__bnb_optimizer_quant_state__"
# State keys other than "step", by the number of the parameter's dimensions.
KEYS = {
    "adamw": lambda dims: {"exp_avg", "exp_avg_sq"},
    "anyprecision": lambda dims: {"exp_avg", "exp_avg_sq", "compensation"},
    "lion": lambda dims: {"exp_avg"},
    "sgd": lambda dims: {"momentum_buffer"},
    "adamw8bit": lambda dims: {BNB, "state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"},
    "lion8bit": lambda dims: {BNB, "state1", "absmax1", "qmap1"},
    "torchao-adamw8bit": None,  # depends on whether its elements fill blocks
    "torchao-adamw4bit": None,
    "adafactor": lambda dims: {"row_var", "col_var"} if dims == 2 else {"variance"},
    "muon": None,  # depends on the role of a parameter
}
# State bytes per element of a parameter; two numbers: a range.
STATE_BYTES = {"adamw": [8], "anyprecision": [6], "lion": [4], "sgd": [4], "adamw8bit": [2 + 8 / 256, 2.06],
               "lion8bit": [1 + 4 / 256, 1.03], "torchao-adamw8bit": [2 + 8 / 256, 5], "torchao-adamw4bit": [1 + 8 / 128, 4.5], "adafactor": [0, 0.1], "muon": [4, 8]}


class Optimizers(fsdp_cli.Case):
    def options(self, name):
        return ["--optimizer", name, "--lr", "3e-3", *OPTIMIZERS[name], "--total-batch-size", 12]

    def test_another_optimizer_starts_anew_and_says_so(self):
        self.train("change", "--max-steps", 2, "--optimizer", "sgd", "--momentum", 0.9)
        result = self.train("change", "--max-steps", 4, "--optimizer", "lion", "--restart", "latest")
        self.assertIn("without Lion state, it starts anew (its optimizer is not Lion (momentum_buffer))", result.err)
        self.assertEqual(len(self.losses("change")), 4)
        # The two optimizers' states have the same names but different codes.
        self.train("codes", "--max-steps", 2, "--optimizer", "torchao-adamw8bit", "--min-8bit-size", 1)
        result = self.train("codes", "--max-steps", 4, "--optimizer", "torchao-adamw4bit", "--restart", "latest")
        self.assertIn("without AdamW4bit state, it starts anew (its optimizer is not AdamW4bit (codes of other sizes))", result.err)

    def test_masters_in_bf16(self):
        options = ["--optimizer", "anyprecision", "--master-dtype", "bf16", "--kahan", "--momentum-dtype", "bf16", "--precision", "bf16",
                   "--lr", "3e-3", "--total-batch-size", 12, "--batch-size", 6]
        self.train("small-whole", "--max-steps", 6, *options, ranks=2)
        whole = self.losses("small-whole")
        self.train("wide", "--max-steps", 6, "--precision", "bf16", *options[9:], ranks=2)
        self.assertLess(fsdp_cli.difference(whole, self.losses("wide")), 0.02)  # compared with float32 master weights: within bf16's precision
        self.assertLess(whole[-1], whole[0] - 0.1)
        self.train("small-parts", "--max-steps", 3, *options, ranks=2)
        self.train("small-parts", "--max-steps", 6, "--batch-size", 6, "--restart", "latest", "--precision", "bf16", ranks=2)
        self.assertEqual(self.losses("small-parts"), whole)
        index = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("small-whole") / "latest", "--inspect", "--json"]).json()
        tensors = {t["name"]: t["dtype"] for t in index["tensors"]}
        kinds = {dtype for name, dtype in tensors.items() if not name.endswith(".step")}
        self.assertEqual(kinds, {"bfloat16"})
        arguments = [*memprobe_cli.MINGPT_XS, "--batch-size", 2, "--device", "cpu", "--precision", "bf16"]
        small = memprobe_cli.report([*arguments, "--measure", *options[:7]])
        self.assertLess(abs(small["relative_error"]), 0.005, small)
        adamw = memprobe_cli.report(arguments)["breakdown"]
        # 2 bytes of weights and 6 of states instead of 2 + 4 and 8.
        self.assertEqual((small["breakdown"]["parameters"] * 3, small["breakdown"]["optimizer"] * 8), (adamw["parameters"], adamw["optimizer"] * 6))

    def test_names_of_the_hugging_face_trainer(self):
        for theirs, ours in (("adamw_torch_fused", "adamw"), ("lion_32bit", "lion"), ("adamw_torch_4bit", "torchao-adamw4bit"), ("paged_lion_8bit", "lion8bit")):
            self.train(theirs, "--max-steps", 2, "--optimizer", theirs)
            self.train(ours, "--max-steps", 2, "--optimizer", ours)
            self.assertEqual(self.losses(theirs), self.losses(ours))

    def test_memory_is_predicted_to_the_byte_of_the_state(self):
        reports = {}
        for name, options in OPTIMIZERS.items():
            arguments = [*memprobe_cli.MINGPT_XS, "--batch-size", 2, "--device", "cpu", "--optimizer", name, *options]
            reports[name] = memprobe_cli.report([*arguments, "--measure"])
            self.assertLess(abs(reports[name]["relative_error"]), 0.005, reports[name])
        unit = reports["adamw"]["breakdown"]["optimizer"] / STATE_BYTES["adamw"][0]
        for name, report in reports.items():
            least, *most = STATE_BYTES[name]
            self.assertGreaterEqual(report["breakdown"]["optimizer"], unit * least, name)
            self.assertLessEqual(report["breakdown"]["optimizer"], unit * (most or [least])[0], name)

    def test_torch_goes_on_where_a_run_stood_and_back(self):
        """Every optimizer's state opens under torch's names; a step by torch's class equals ours, and a run continues from torch's .pt."""
        try:
            import checkpoint_torch_test as by_torch
        except ImportError as missing:
            self.skipTest(str(missing))
        for name in OPTIMIZERS:
            with self.subTest(name):
                options = [*self.options(name), "--no-shuffle", "--clip-grad-norm", 0, "--batch-size", 6, "--decay-all"]
                self.train(f"{name}-torch", "--max-steps", 3, *options, ranks=2)
                state = by_torch.whole(self.checkpoints(f"{name}-torch") / "latest")
                self.check_names(name, state)
                if name in CLASSES:
                    self.check_steps(name, state, options, by_torch)

    def check_names(self, name, state):
        if name.startswith("torchao"):
            return self.check_torchao(name, state)
        for parameter, values in state["optim"]["state"].items():
            tensors = values.get(BNB, values)
            expected = KEYS[name](state["model"][parameter].dim()) if name != "muon" else self.keys_of_muon(parameter)
            self.assertEqual({BNB} & set(values) | set(tensors) - {"step"}, expected, name)
            if name.endswith("8bit"):
                self.assertEqual((values["step"], tensors["state1"].element_size(), tensors["state1"].shape), (3, 1, state["model"][parameter].shape))
                self.assertEqual(tensors["absmax1"].numel(), -(-state["model"][parameter].numel() // 256))
            elif name != "adafactor":
                self.assertEqual({t.shape for k, t in values.items() if k != "step"}, {state["model"][parameter].shape})

    def check_torchao(self, name, state):
        """Checks tensor classes as torchao makes them: quantized if blocks are full, except for embeddings and vectors."""
        quantized = 0
        for parameter, values in state["optim"]["state"].items():
            whole = state["model"][parameter]
            per_byte, block = (2, 128) if name.endswith("4bit") else (1, 256)
            fits = whole.dim() == 2 and whole.numel() % block == 0 and not parameter.startswith(("transformer.wte", "transformer.wpe"))
            self.assertEqual(set(values), {"step", "exp_avg", "exp_avg_sq"}, parameter)
            for moment in (values["exp_avg"], values["exp_avg_sq"]):
                if not fits:
                    self.assertEqual(moment.shape, whole.shape, parameter)
                    continue
                quantized += 1
                self.assertEqual(set(moment), {"codes", "scale", "qmap"}, parameter)
                self.assertEqual((moment["codes"].numel() * per_byte, moment["scale"].numel() * block), (whole.numel(), whole.numel()))
                self.assertEqual(moment["codes"].shape, (whole.numel() // 2,) if per_byte == 2 else whole.shape)
        self.assertGreater(quantized, 0)

    @staticmethod
    def keys_of_muon(parameter):
        is_matrix = ".h." in parameter and parameter.endswith("weight") and ".ln_" not in parameter
        return {"momentum_buffer"} if is_matrix else {"exp_avg", "exp_avg_sq"}

    def check_steps(self, name, state, options, by_torch):
        torch = by_torch.torch
        parameters = {k: v.clone().requires_grad_() for k, v in state["model"].items() if k != "lm_head.weight"}
        full = dict(parameters, **{"lm_head.weight": parameters["transformer.wte.weight"]})
        (group,) = state["optim"]["param_groups"]
        group = {**group, "params": [parameters[n] for n in group["params"]]}
        optimizer = getattr(torch.optim, CLASSES[name])([group])
        assert set(parameters) == set(state["optim"]["state"])
        for parameter, values in state["optim"]["state"].items():
            optimizer.state[parameters[parameter]] = values

        def compare(run, rows):
            optimizer.zero_grad()
            by_torch.mingpt_loss(full, rows, heads=2).backward()
            optimizer.step()
            ours = by_torch.whole(self.checkpoints(run) / "latest")["model"]
            worst = max((parameters[n] - ours[n]).abs().max().item() for n in parameters)
            fsdp_cli.say(f"{run}: one step by torch.optim.{CLASSES[name]}, parameters within {worst:.3g}")
            self.assertLess(worst, 2e-5)

        self.train(f"{name}-torch", "--max-steps", 4, "--restart", "latest", "--batch-size", 6, ranks=2)
        compare(f"{name}-torch", fsdp_cli.random_tokens()[36:48])
        file = self.folder / f"{name}.pt"
        torch.save({"model": {k: v.detach() for k, v in full.items()}, "optimizer": optimizer.state_dict(), "step": 4}, file)
        result = self.train(f"{name}-back", "--max-steps", 5, "--restart", file, *options, ranks=2)
        self.assertIn(f"{CLASSES[name]} state of", result.err)
        compare(f"{name}-back", fsdp_cli.random_tokens()[48:60])


if __name__ == "__main__":
    fsdp_cli.main()
