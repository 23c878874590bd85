"""--optimizer: every one trains, resumes bit for bit and on other ranks, is read by torch, predicted, and told from the others."""

import fsdp_cli
import memprobe_cli

OPTIMIZERS = {
    "adamw": [],
    "anyprecision": ["--kahan", "--momentum-dtype", "bf16"],
    "lion": ["--lr", "3e-4"],
    "sgd": ["--momentum", 0.9, "--nesterov", "--lr", "0.05"],
}
KEYS = {"adamw": {"exp_avg", "exp_avg_sq", "step"}, "anyprecision": {"exp_avg", "exp_avg_sq", "compensation", "step"}, "lion": {"exp_avg"},
        "sgd": {"momentum_buffer"}}
# Bytes of an optimizer's state to each element of a parameter.
STATE_BYTES = {"adamw": 8, "anyprecision": 6, "lion": 4, "sgd": 4}


class Optimizers(fsdp_cli.Case):
    def options(self, name):
        return ["--optimizer", name, "--lr", "3e-3", *OPTIMIZERS[name], "--total-batch-size", 12]

    def losses(self, run):
        return fsdp_cli.losses(self.run_directory(run))

    def test_they_learn_resume_and_move(self):
        for name in OPTIMIZERS:
            with self.subTest(name):
                options = self.options(name)
                self.train(f"{name}-whole", "--max-steps", 6, "--batch-size", 6, *options, ranks=2)
                whole = self.losses(f"{name}-whole")
                self.assertLess(whole[-1], whole[0])
                self.train(f"{name}-parts", "--max-steps", 3, "--batch-size", 6, *options, ranks=2)
                # The optimizer and its options come from the checkpoint.
                self.train(f"{name}-parts", "--max-steps", 6, "--batch-size", 6, "--restart", "latest", ranks=2)
                self.assertEqual(self.losses(f"{name}-parts"), whole)
                self.train(f"{name}-moved", "--max-steps", 3, "--batch-size", 4, *options, "--sharding", "grad-shard", ranks=3)
                self.train(f"{name}-moved", "--max-steps", 6, "--batch-size", 12, "--restart", "latest")
                difference = fsdp_cli.difference(self.losses(f"{name}-moved"), whole)
                fsdp_cli.say(f"{name}: 3 ranks -> 1, losses within {difference:.3g} of 2 ranks'")
                # Lion steps by signs: one that float32's order of sums turns moves an element by twice the rate.
                self.assertLess(difference, 2e-3 if name == "lion" else 1e-4)

    def test_another_optimizer_starts_anew_and_says_so(self):
        self.train("change", "--max-steps", 2, "--optimizer", "sgd", "--momentum", 0.9)
        result = self.train("change", "--max-steps", 4, "--optimizer", "lion", "--restart", "latest")
        self.assertIn("without Lion state, it starts anew (its optimizer is not Lion (momentum_buffer))", result.err)
        self.assertEqual(len(self.losses("change")), 4)

    def test_bad_combinations_are_refused_by_name(self):
        for options, words in ((["--optimizer", "adam"], ["--optimizer is 'adam'", "adamw, anyprecision, lion, sgd"]),
                               (["--momentum", 0.9], ["--momentum belongs to --optimizer sgd, not to adamw"]),
                               (["--optimizer", "sgd", "--nesterov"], ["--nesterov needs --momentum"]),
                               (["--optimizer", "sgd", "--momentum", 1], ["--momentum is 1", "less than 1"]),
                               (["--optimizer", "lion", "--kahan"], ["--kahan belongs to --optimizer anyprecision"]),
                               (["--optimizer", "anyprecision", "--variance-dtype", "fp16"], ["--variance-dtype is fp16", "bf16"])):
            result = fsdp_cli.run("fsdp-finetune", self.train_arguments("refused", *options))
            self.assert_refused(result, 2, *words)

    def test_names_of_the_hugging_face_trainer(self):
        for theirs, ours in (("adamw_torch_fused", "adamw"), ("lion_32bit", "lion")):
            self.train(theirs, "--max-steps", 2, "--optimizer", theirs)
            self.train(ours, "--max-steps", 2, "--optimizer", ours)
            self.assertEqual(self.losses(theirs), self.losses(ours))

    def test_memory_is_predicted_to_the_byte_of_the_state(self):
        reports = {}
        for name, options in OPTIMIZERS.items():
            arguments = [*memprobe_cli.MINGPT_XS, "--batch-size", 2, "--device", "cpu", "--optimizer", name, *options]
            reports[name] = memprobe_cli.report([*arguments, "--measure"])
            self.assertLess(abs(reports[name]["relative_error"]), 0.005, reports[name])
        unit = reports["adamw"]["breakdown"]["optimizer"] / STATE_BYTES["adamw"]
        for name, report in reports.items():
            self.assertEqual(report["breakdown"]["optimizer"], unit * STATE_BYTES[name], name)

    def test_torch_goes_on_where_a_run_stood(self):
        """One step by torch.optim.SGD from a loaded state equals ours; every optimizer's state opens under torch's names."""
        try:
            import checkpoint_torch_test as by_torch
            import torch
        except ImportError as missing:
            self.skipTest(str(missing))
        for name in OPTIMIZERS:
            options = [*self.options(name), "--no-shuffle", "--clip-grad-norm", 0, "--batch-size", 6]
            self.train(f"{name}-torch", "--max-steps", 3, *options, ranks=2)
            state = by_torch.whole(self.checkpoints(f"{name}-torch") / "latest")
            for parameter, values in state["optim"]["state"].items():
                self.assertEqual(set(values), KEYS[name], name)
                self.assertEqual({t.shape for k, t in values.items() if k != "step"}, {state["model"][parameter].shape})
            if name != "sgd":
                continue
            self.train("sgd-torch", "--max-steps", 4, "--restart", "latest", "--batch-size", 6, ranks=2)
            after = by_torch.whole(self.checkpoints("sgd-torch") / "latest")["model"]
            parameters = {k: v.clone().requires_grad_() for k, v in state["model"].items() if k != "lm_head.weight"}
            full = dict(parameters, **{"lm_head.weight": parameters["transformer.wte.weight"]})
            groups = [{**{k: v for k, v in g.items() if k != "params"}, "params": [parameters[n] for n in g["params"]]} for g in state["optim"]["param_groups"]]
            optimizer = torch.optim.SGD(groups)
            for parameter, values in state["optim"]["state"].items():
                optimizer.state[parameters[parameter]] = values
            by_torch.mingpt_loss(full, fsdp_cli.random_tokens()[36:48], heads=2).backward()
            optimizer.step()
            worst = max((parameters[n] - after[n]).abs().max().item() for n in parameters)
            fsdp_cli.say(f"one step by torch.optim.SGD: parameters within {worst:.3g}")
            self.assertLess(worst, 2e-5)


if __name__ == "__main__":
    fsdp_cli.main()
