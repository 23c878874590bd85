"""PyTorch reads what fsdp-finetune saves: dcp.load and dcp_to_torch_save, model and optimizer, bit for bit."""

import json

import fsdp_cli

with fsdp_cli.needed():
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def whole(checkpoint):
    """Returns the whole checkpoint as torch gathers it."""
    file = checkpoint.parent / "whole.pt"
    dcp_to_torch_save(str(checkpoint), str(file))
    state = torch.load(file, weights_only=True)
    file.unlink()
    return state


def rows_of(ids):
    return torch.tensor(ids[:, :-1]), torch.tensor(ids[:, 1:])


def mingpt_loss(state, ids, heads):
    """Computes minGPT in plain torch operations; returns the loss with its graph."""
    f = torch.nn.functional
    inputs, targets = rows_of(ids)
    width = state["transformer.wte.weight"].shape[1]
    x = state["transformer.wte.weight"][inputs] + state["transformer.wpe.weight"][:inputs.shape[1]]
    norm = lambda x, name: f.layer_norm(x, (width,), state[name + ".weight"], state[name + ".bias"], 1e-5)
    linear = lambda x, name: f.linear(x, state[name + ".weight"], state[name + ".bias"])
    block = 0
    while (h := f"transformer.h.{block}") + ".ln_1.weight" in state:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in linear(norm(x, h + ".ln_1"), h + ".attn.c_attn").split(width, -1))
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + linear(y, h + ".attn.c_proj")
        x = x + linear(f.gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc"), approximate="tanh"), h + ".mlp.c_proj")
        block += 1
    logits = norm(x, "transformer.ln_f") @ state["lm_head.weight"].T
    return f.cross_entropy(logits.flatten(0, 1).double(), targets.flatten())


class Torch(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = fsdp_cli.random_tokens(rows=21, seed=1)

    def saved_by(self, name, ranks, *options):
        self.train(name, "--max-steps", 3, "--total-batch-size", 12, "--batch-size", 12 // max(1, ranks), *options, ranks=ranks)
        return self.checkpoints(name) / "latest"

    def test_torch_computes_the_loss_that_fsdp_eval_reports(self):
        checkpoint = self.saved_by("two", 2)
        loss = mingpt_loss(whole(checkpoint)["model"], self.ids, heads=2).item()
        report = self.evaluate(checkpoint, "--data", self.val_data)
        fsdp_cli.say(f"loss by torch {loss:.9f}, by fsdp-eval {report['loss']:.9f}")
        self.assertLess(abs(loss - report["loss"]), 1e-5)

    def test_dcp_load_and_dcp_to_torch_save_agree_bit_for_bit(self):
        for ranks, *options in ((3,), (4, "--sharding", "hybrid-full-shard", "--shard-group-size", "2"), (2, "--sharding", "no-shard")):
            checkpoint = self.saved_by(f"saved-{ranks}", ranks, *options)
            state = whole(checkpoint)
            empty = {"model": {k: torch.full_like(v, float("nan")) for k, v in state["model"].items()},
                     "optim": {"state": {k: {n: torch.full_like(t, float("nan")) for n, t in s.items()} for k, s in state["optim"]["state"].items()}}}
            dcp.load(empty, checkpoint_id=str(checkpoint), no_dist=True)
            for name, tensor in state["model"].items():
                self.assertTrue(torch.equal(empty["model"][name], tensor) and tensor.isfinite().all(), name)
            for name, values in state["optim"]["state"].items():
                for field, tensor in values.items():
                    self.assertTrue(torch.equal(empty["optim"]["state"][name][field], tensor), (name, field))

    def test_names_shapes_and_values(self):
        state = whole(self.saved_by("named", 3, "--lr", "0.002", "--betas", "0.8", "0.9", "--weight-decay", "0.25"))
        model = state["model"]
        self.assertTrue(torch.equal(model["lm_head.weight"], model["transformer.wte.weight"]), "the tied head under both names")
        self.assertEqual(tuple(model["transformer.h.1.mlp.c_fc.weight"].shape), (128, 32))
        self.assertEqual(tuple(model["transformer.wte.weight"].shape), (97, 32), "97 rows over 3 ranks, nothing of the padding")
        self.assertEqual(len(model), 2 + 12 * 2 + 2 + 1)
        self.assertEqual(set(state["optim"]["state"]), set(model) - {"lm_head.weight"})
        for name, values in state["optim"]["state"].items():
            self.assertEqual(set(values), {"exp_avg", "exp_avg_sq", "step"})
            self.assertEqual((values["step"].item(), values["exp_avg"].shape), (3, model[name].shape))
            self.assertTrue((values["exp_avg_sq"] >= 0).all())
        decay, plain = state["optim"]["param_groups"]
        self.assertEqual((decay["weight_decay"], plain["weight_decay"], decay["lr"], list(decay["betas"])), (0.25, 0.0, 0.002, [0.8, 0.9]))
        self.assertIn("transformer.wte.weight", decay["params"] + plain["params"])
        self.assertIn("transformer.ln_f.bias", plain["params"])

    def test_torch_goes_on_where_the_run_stood(self):
        """One AdamW step by torch from the loaded model and optimizer equals ours: the states have torch's meaning."""
        options = ["--no-shuffle", "--lr", "0.002", "--clip-grad-norm", "0", "--weight-decay", "0.1"]
        state = whole(self.saved_by("before", 2, *options))
        self.train("before", "--max-steps", 4, "--restart-checkpoint-file", "latest", "--batch-size", 6, *options, ranks=2)
        after = whole(self.checkpoints("before") / "latest")["model"]
        parameters = {k: v.clone().requires_grad_() for k, v in state["model"].items() if k != "lm_head.weight"}
        full = dict(parameters, **{"lm_head.weight": parameters["transformer.wte.weight"]})
        rows = fsdp_cli.random_tokens()[36:48]
        loss = mingpt_loss(full, rows, heads=2)
        groups = [{**{f: g[f] for f in ("lr", "betas", "eps", "weight_decay")}, "params": [parameters[n] for n in g["params"]]}
                  for g in state["optim"]["param_groups"]]
        optimizer = torch.optim.AdamW(groups)
        for name, values in state["optim"]["state"].items():
            optimizer.state[parameters[name]] = values
        loss.backward()
        optimizer.step()
        worst = max((parameters[n] - after[n]).abs().max().item() for n in parameters)
        fsdp_cli.say(f"one step by torch after a resume: parameters within {worst:.3g}")
        self.assertLess(worst, 2e-5)

    def test_a_file_of_deepspeed_says_where_its_masters_are(self):
        checkpoint = self.saved_by("zero", 1)
        model = whole(checkpoint)["model"]
        config = self.folder / "model.json"
        config.write_text(json.dumps(json.loads((checkpoint / "run.json").read_text())["model"]))
        for dtype, says in ((torch.bfloat16, True), (torch.float32, False)):
            file = self.folder / "mp_rank_00_model_states.pt"
            torch.save({"module": {name: tensor.to(dtype) for name, tensor in model.items()}, "ds_version": "0.19.8"}, file)
            results = [fsdp_cli.run("fsdp-eval", [file, "--model-config", config, "--data", self.val_data, *fsdp_cli.COMMON]),
                       self.train(f"from-{says}", "--restart-checkpoint-file", file, "--max-steps", 1),
                       fsdp_cli.run("fsdp-ckpt-convert", [file, self.folder / f"{says}.safetensors", "--model-only"])]
            for result in results:
                self.assertEqual((result.code, result.err.count("_optim_states.pt")), (0, int(says)), str(result))

    def test_saved_by_other_ranks_is_nearly_the_same(self):
        states = [whole(self.saved_by(f"world-{ranks}", ranks)) for ranks in (1, 3)]
        for name, tensor in states[0]["model"].items():
            self.assertLess((tensor - states[1]["model"][name]).abs().max().item(), 1e-4, name)


if __name__ == "__main__":
    fsdp_cli.main()
