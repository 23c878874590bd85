"""Restarts from files of PyTorch programs: distributed checkpoints, full .pt files, minimal_fsdp's restart file."""

import contextlib
import io
import json

import fsdp_cli

with fsdp_cli.needed():
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

LAYERS = 2
# Settings that other programs' files do not contain.
OPTIONS = ["--total-batch-size", 12, "--lr", "3e-3", "--lr-schedule", "cosine", "--warmup-steps", 3,
           "--schedule-steps", 12]
RESTART = "--restart-checkpoint-file"


def parameter_names(layers):
    """Returns the names as named_parameters() of the model lists them."""
    block = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
             "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]
    return ["transformer.wte.weight", "transformer.wpe.weight", *(f"transformer.h.{i}.{name}" for i in range(layers) for name in block),
            "transformer.ln_f.weight", "transformer.ln_f.bias"]


def save_dcp(state, folder):
    with contextlib.redirect_stderr(io.StringIO()):
        dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    return folder


class Foreign(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", cls.train_data, "--out-dir", cls.runs, "--run-name", "begun", "--max-steps", 3,
                                                *OPTIONS, "--batch-size", 6, *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL], ranks=2)
        assert result.code == 0, str(result)
        cls.begun = cls.runs / "begun" / "checkpoints" / "latest"
        file = cls.folder / "begun.pt"
        dcp_to_torch_save(str(cls.begun), str(file))
        state = torch.load(file, weights_only=True)
        cls.names = parameter_names(LAYERS)
        cls.model = {name: state["model"][name] for name in cls.names}
        cls.model["lm_head.weight"] = cls.model["transformer.wte.weight"]
        cls.state = {name: state["optim"]["state"][name] for name in cls.names}
        cls.groups = [{"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": cls.names}]

    def restart(self, name, checkpoint, *more, ranks=2, steps=6, code=0):
        return self.train(name, RESTART, checkpoint, "--max-steps", steps, *OPTIONS, "--batch-size", 12 // ranks, *more, ranks=ranks, code=code)

    def losses(self, name):
        return [r["loss"] for r in fsdp_cli.steps(self.run_directory(name))]

    def truth(self, ranks):
        """Returns losses and final state of a restart from our own checkpoint."""
        name = f"truth-{ranks}"
        if not self.run_directory(name).exists():
            self.restart(name, self.begun, ranks=ranks)
        return name

    def assert_goes_on(self, name, checkpoint, *words):
        """A restart from `checkpoint` repeats, bit for bit, the losses of a restart from our own."""
        for ranks in (2, 3):
            run = f"{name}-{ranks}"
            result = self.restart(run, checkpoint, ranks=ranks)
            line = next(line for line in result.err.splitlines() if "restart   " in line)
            for word in (str(checkpoint), "as the command line says", *words):
                self.assertIn(word, line)
            self.assertEqual(self.losses(run), self.losses(self.truth(ranks)))
            self.assertEqual(len(self.losses(run)), 3)
            parts = [self.checkpoints(r) / "step-00000006" for r in (run, self.truth(ranks))]
            for part in range(1, ranks):  # rank 0's file also holds the options
                self.assertEqual(*((p / f"__{part}_0.distcp").read_bytes() for p in parts))

    def numbered(self):
        return {"state": {i: self.state[name] for i, name in enumerate(self.names)},
                "param_groups": [{**self.groups[0], "params": list(range(len(self.names)))}]}

    def named(self):
        """Returns the state of an optimizer of named parameters, in two groups and in another order than the model's."""
        names = self.names[::-1]
        numbers = list(range(len(names)))
        groups = [{**self.groups[0], "params": numbers[begin:end], "param_names": ["module." + name for name in names[begin:end]]}
                  for begin, end in ((0, 5), (5, len(names)))]
        return {"state": {number: self.state[name] for number, name in enumerate(names)}, "param_groups": groups}

    def flat_units(self):
        """Returns optimizer.state_dict() under FSDP1's NO_SHARD: one flat parameter per unit."""
        units = [[n for n in self.names if ".h." not in n], *([n for n in self.names if f".h.{i}." in n] for i in range(LAYERS))]
        return {i: {"step": torch.tensor(3.0), **{f: torch.cat([self.state[n][f].flatten() for n in unit]) for f in ("exp_avg", "exp_avg_sq")}}
                for i, unit in enumerate(units)}

    def test_distributed_checkpoints(self):
        nested = {"state": self.state, "param_groups": self.groups}
        flattened = {f"state.{n}.{f}": t for n, s in self.state.items() for f, t in s.items()}
        for tag, state, words in (
                ("nested", {"model": self.model, "optim": nested, "step": 3}, ["step 3 (its 'step')", "AdamW state of 3 steps"]),
                ("flattened", {"model": self.model, "optimizer": flattened}, ["step 3 (its optimizer's)"]),
                ("numbered", {"model": self.model, "optimizer": self.numbered(), "global_step": 3}, ["step 3 (its 'global_step')"]),
                ("named", {"model": self.model, "optimizer": self.named(), "global_step": 3}, ["step 3 (its 'global_step')"])):
            with self.subTest(layout=tag):
                self.assert_goes_on(tag, save_dcp(state, self.folder / tag), *words)

    def test_full_files(self):
        optimizer = {"state": self.state, "param_groups": self.groups}
        wrapped = {f"_fsdp_wrapped_module._orig_mod.{n}": t for n, t in self.model.items()}
        for tag, state, arguments in (
                ("minimal", {"model_state": self.model, "optimizer_state": optimizer, "step": 3, "args": {"num_heads": 2, "seq_length": 32}}, {}),
                ("no-shard", {"model_state": self.model, "optimizer_state": {"state": self.flat_units(), "param_groups": []},
                              "args": {"num_heads": 2, "num_layers": LAYERS}}, {}),
                ("wrapped", {"model": wrapped, "optimizer": self.numbered(), "iter_num": torch.tensor(3)}, {}),
                ("named", {"model": self.model, "optimizer": self.named()}, {}),
                ("legacy", {"model": self.model, "optim": optimizer, "args": {"n_head": 2}}, {"_use_new_zipfile_serialization": False})):
            with self.subTest(layout=tag):
                file = self.folder / f"{tag}.pt"
                torch.save(state, file, **arguments)
                self.assert_goes_on(tag, file, "AdamW state of 3 steps")

    def test_weights_alone(self):
        loss = self.evaluate(self.begun, "--data", self.val_data)
        config = self.folder / "weights"
        config.mkdir()
        (config / "config.json").write_text(json.dumps(loss["model"]))
        head_only = {n: t for n, t in self.model.items() if n != "transformer.wte.weight"}
        for tag, model, delta in (("plain", self.model, 1e-6), ("half", {n: t.bfloat16() for n, t in self.model.items()}, 0.02),
                                  ("head-only", head_only, 1e-6), ("transposed-storage", {n: t.t().clone().t() if t.dim() == 2 else t
                                                                                          for n, t in self.model.items()}, 1e-6)):
            with self.subTest(weights=tag):
                file = self.folder / f"weights-{tag}.pt"
                torch.save(model, file)
                self.assertAlmostEqual(self.evaluate(file, "--model-config", config, "--data", self.val_data, ranks=2)["loss"], loss["loss"], delta=delta)
                result = self.train(f"weights-{tag}", RESTART, file, "--max-steps", 2, "--val-data", self.val_data, ranks=3)
                self.assertIn("step 0   without AdamW state, it starts anew", result.err)
                self.assertEqual([r["step"] for r in fsdp_cli.steps(self.run_directory(f"weights-{tag}"))], [1, 2])
        save_file({n: t.clone() for n, t in self.model.items()}, config / "model.safetensors")
        for path in (config, config / "model.safetensors"):
            self.assertEqual(self.evaluate(path, "--model-config", config / "config.json", "--data", self.val_data)["loss"], loss["loss"])
            self.train("safetensors", RESTART, path, "--model", config, "--max-steps", 1)
        self.assert_refused(self.evaluate(self.folder / "weights-plain.pt", "--data", self.val_data, code=2), 2, "weights-plain.pt", "attention heads")

    def test_frozen_parameters_and_other_optimizers(self):
        frozen = {n: s for n, s in self.state.items() if ".wpe." not in n and ".ln_1." not in n}
        file = self.folder / "frozen.pt"
        torch.save({"model": self.model, "optim": {"state": frozen, "param_groups": self.groups}}, file)
        self.assertIn("5 of 28 parameters have no state", self.restart("frozen", file).err)
        file = self.folder / "sgd.pt"
        torch.save({"model": self.model, "optim": {"state": {n: {"momentum_buffer": t} for n, t in self.model.items()}}}, file)
        self.assertIn("momentum_buffer", self.restart("sgd", file).err)

    def test_what_does_not_fit(self):
        optimizer = {"state": self.state, "param_groups": self.groups}
        two_groups = {**self.numbered(), "param_groups": [{"lr": 1.0, "params": [0, 1]}, {"lr": 1.0, "params": [2, 3]}]}

        c_fc = "transformer.h.1.mlp.c_fc.weight"
        cases = [
            ({"model": {n: t for n, t in self.model.items() if n != c_fc}}, [], 4, [c_fc, "missing"]),
            ({"model": {**self.model, c_fc: torch.zeros(127, 32)}}, [], 4, ["model." + c_fc, "[127, 32]", "[128, 32]"]),
            ({"model": {**self.model, c_fc: torch.zeros(32, 128)}}, [], 4, [c_fc, "transposed"]),
            ({"model": {**self.model, c_fc: torch.zeros(128, 32, dtype=torch.int64)}}, [], 4, [c_fc, "int64"]),
            ({"model": {**self.model, "lm_head.weight": self.model["lm_head.weight"] + 1}}, [], 4, ["lm_head.weight", "tied"]),
            ({"model": self.model, "args": {"num_layers": 3}}, [], 4, ["num_layers 3", "transformer.h.1."]),
            ({"model": self.model, "optim": {"state": {**self.state, c_fc: {"exp_avg": torch.zeros(128, 32), "step": 3}}}}, [], 4, ["exp_avg_sq"]),
            ({"model": self.model, "optim": {"state": {**self.state, c_fc: {"exp_avg": torch.zeros(9), "exp_avg_sq": torch.zeros(9), "step": 3}}}},
             [], 4, [c_fc, "[9]"]),
            ({"model": self.model, "optim": {"state": {n: {k: t for k, t in s.items() if k != "step"} for n, s in self.state.items()}}}, [], 4, [".step"]),
            ({"model": self.model, "optim": two_groups}, [], 4, ["parameter groups"]),
            ({"model": self.model, "optim": optimizer, "optim_ema": optimizer}, [], 4, ["optim_ema.state."]),
            ({"student": self.model, "teacher": self.model}, [], 4, ["student", "teacher"]),
            ({"model": {"encoder.weight": torch.zeros(3)}}, [], 4, ["transformer.wpe.weight"]),
            ({"model": self.model, "step": -3}, [], 4, ["'step' is -3"]),
            ({"model": self.model}, ["--num-layers", 3], 2, ["num-layers 3", "--num-layers", "model.transformer.h.1."]),
            ({"model": self.model}, ["--vocab-size", 98], 2, ["vocab-size 98", "--vocab-size", "model.transformer.wte.weight", "[97, 32]"]),
            ({"model": self.model}, ["--num-heads", 5], 2, ["num-heads 5", "--num-heads"]),
        ]
        file = self.folder / "bad.pt"
        for number, (state, options, code, words) in enumerate(cases):
            with self.subTest(words=words):
                torch.save(state, file)
                result = fsdp_cli.run("fsdp-finetune", ["--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "bad", *fsdp_cli.COMMON,
                                                        "--num-heads", 2, RESTART, file, "--max-steps", 4, "--seq-len", 32, *options],
                                      ranks=1 + number % 3)
                self.assert_refused(result, code, file if code == 4 else "", *words)
                self.assertFalse(self.run_directory("bad").exists())
        torch.save({"model": self.model}, file)
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "bad", *fsdp_cli.COMMON,
                                                RESTART, file, "--max-steps", 4])
        self.assert_refused(result, 2, "--num-heads", file)

    def test_a_distributed_checkpoint_of_torch_that_is_damaged(self):
        for damage in ("cut", "missing", "flipped"):
            folder = save_dcp({"model": self.model}, self.folder / damage)
            file = next(folder.glob("*.distcp"))
            data = bytearray(file.read_bytes())
            if damage == "missing":
                file.unlink()
            else:
                data[data.find(self.model["transformer.h.0.mlp.c_fc.weight"].numpy().tobytes()) + 5000] ^= 16
                file.write_bytes(data if damage == "flipped" else data[:len(data) // 2])
            with self.subTest(damage=damage):
                result = self.train("damaged", RESTART, folder, "--max-steps", 2, ranks=2, code=4)
                self.assert_refused(result, 4, file)


class MinimalFsdp(fsdp_cli.Case):
    """minimal_fsdp's own files, as PyTorch 2.0 and 2.11 wrote them."""

    def arguments(self, name, checkpoint, *more):
        data = fsdp_cli.write_tokens(self.folder / "minimal.h5", fsdp_cli.random_tokens(rows=10, width=12, vocab=61))
        return ["--train-data", data, "--out-dir", self.runs, "--run-name", name, RESTART, checkpoint, "--num-heads", 2, *fsdp_cli.COMMON, *more]

    def test_model_and_optimizer_are_carried_bit_for_bit(self):
        for name in ("pt_t201_minimal_fsdp_vars", "pt_t211_minimal_fsdp_vars", "pt_t211_minimal_fsdp_namespace", "full_t201_ws2_minimal"):
            fixture = fsdp_cli.folder("FSDP_FIXTURES") / "checkpoints" / name
            truth = load_file(fixture / "expected.safetensors")
            for ranks in (1, 3):
                with self.subTest(fixture=name, ranks=ranks):
                    full = self.folder / f"{name}-{ranks}.pt"
                    # epoch_number 4 is the fifth epoch: no training is left, and the state is written unchanged.
                    result = fsdp_cli.run("fsdp-finetune", self.arguments(f"{name}-{ranks}", fixture / "ckpt.pt", "--max-epochs", 5, "--batch-size", 1,
                                                                          "--total-batch-size", 3, "--save-final-full", full), ranks)
                    self.assertEqual(result.code, 0, str(result))
                    self.assertIn("after 5 epochs of 10 rows (its 'epoch_number' 4): step 17", result.err)
                    self.assertIn("AdamW state of 3 steps", result.err)
                    state = torch.load(full, weights_only=True)
                    for parameter in [*parameter_names(1), "lm_head.weight"]:
                        self.assertTrue(torch.equal(state["model"][parameter], truth["model_state." + parameter]), parameter)
                    for parameter in parameter_names(1):
                        for field in ("exp_avg", "exp_avg_sq", "step"):
                            self.assertTrue(torch.equal(state["optim"]["state"][parameter][field],
                                                        truth[f"optimizer_state.state.{parameter}.{field}"]), (parameter, field))
                    self.assertEqual((state["run"]["state"]["step"], state["run"]["state"]["samples"]), (17, 50))

    def test_training_goes_on(self):
        fixture = fsdp_cli.folder("FSDP_FIXTURES") / "checkpoints" / "full_t201_ws2_minimal" / "ckpt.pt"
        result = fsdp_cli.run("fsdp-finetune", self.arguments("goes-on", fixture, "--max-epochs", 7, "--batch-size", 5), 2)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual([r["step"] for r in fsdp_cli.steps(self.run_directory("goes-on"))], [6, 7])

    def test_a_pickled_module_is_refused(self):
        fixture = fsdp_cli.folder("FSDP_FIXTURES") / "checkpoints" / "pt_t211_refuse_module" / "ckpt.pt"
        self.assert_refused(fsdp_cli.run("fsdp-finetune", self.arguments("module", fixture), 2), 4, fixture)


if __name__ == "__main__":
    fsdp_cli.main()
