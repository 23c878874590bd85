"""--quantize nf4: adapters on 4-bit weights are evaluated in 4 bits; 4-bit checkpoints of transformers are read, evaluated, dequantized."""

import json
import shutil

import fsdp_cli
import llama_cli
from convert_fixtures import PROGRAM, ConvertCase, read_safetensors

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

QLORA = fsdp_cli.folder("FSDP_FIXTURES") / "training" / "qlora"
LORA = QLORA.parent / "lora"
CHECKPOINTS = {"single": QLORA / "checkpoint_single", "double": QLORA / "checkpoint_double"}


def dequantized(tensors, name):
    """Dequantizes by bitsandbytes' definition, in float32, rounded to the matrix's original dtype."""
    state = json.loads(bytes(tensors[name + ".quant_state.bitsandbytes__nf4"].tolist()))
    codes = torch.stack([tensors[name].flatten() >> 4, tensors[name].flatten() & 15], 1).flatten().long()
    absmax = tensors[name + ".absmax"]
    if "nested_offset" in state:
        nested = tensors[name + ".nested_absmax"].repeat_interleave(256)[:absmax.numel()]
        absmax = tensors[name + ".nested_quant_map"][absmax.long()] * nested + state["nested_offset"]
    values = tensors[name + ".quant_map"][codes] * absmax.repeat_interleave(64)[:codes.numel()]
    return values.to(getattr(torch, state["dtype"])).view(state["shape"])


class Quantized(llama_cli.WeightsCase, ConvertCase):
    def test_its_own_evaluation_is_in_4_bits(self):
        self.train("small", "--model", self.model, "--precision", "fp32", "--max-steps", 4, "--lr", "1e-2", "--lr-schedule", "constant", "--lora-rank", 4,
                   "--quantize", "nf4", "--val-data", self.val_data, ranks=2)
        told = [record["val_loss"] for record in fsdp_cli.records(self.run_directory("small")) if "val_loss" in record][-1]
        checkpoint = self.checkpoints("small") / "latest"
        found = self.evaluate(checkpoint, "--precision", "fp32", "--data", self.val_data)["loss"]
        self.assertAlmostEqual(found, told, places=5)
        beside = self.evaluate(self.model, "--adapter", self.run_directory("small") / "adapter", "--precision", "fp32", "--data", self.val_data)["loss"]
        self.assertNotAlmostEqual(beside, found, places=5)

    def test_stored_checkpoints(self):
        losses = json.loads((QLORA / "expected.json").read_text())["checkpoints"]
        inputs = json.loads((LORA / "inputs.json").read_text())
        data = llama_cli.write_documents(self.folder / "inputs.h5", [[i for i, m in zip(*row) if m] for row in zip(inputs["input_ids"], inputs["attention_mask"])])
        counted = [label != -100 for row, mask in zip(inputs["labels"], inputs["attention_mask"]) for label, m in zip(row, mask) if m]
        with fsdp_cli.h5py.File(data, "r+") as file:
            file["loss_mask"] = fsdp_cli.numpy.array(counted, dtype="uint8")
        for name, directory in CHECKPOINTS.items():
            with self.subTest(name):
                # Their losses were computed in bf16, which rounds activations.
                for ranks in (1, 3):
                    self.assertAlmostEqual(self.evaluate(directory, "--data", data, "--precision", "bf16", ranks=ranks)["loss"], losses[name]["loss_after_reload"], delta=2e-2)
                tensors = load_file(directory / "model.safetensors")
                matrices = [key.split(".quant_state")[0] for key in tensors if ".quant_state." in key]
                output = self.convert(directory, f"{name}-16", "--to", "hf", "--dequantize")
                self.assertNotIn("quantization_config", json.loads((output / "config.json").read_text()))
                found = load_file(output / "model.safetensors")
                self.assertEqual(len(found), len({key.split(".weight")[0] for key in tensors}))
                for key, tensor in found.items():
                    self.assertTrue(torch.equal(tensor, dequantized(tensors, key) if key in matrices else tensors[key]), key)
                # Dequantized and quantized weights are the same model.
                in_float = [self.evaluate(d, "--data", data, "--precision", "fp32")["loss"] for d in (directory, output)]
                self.assertAlmostEqual(*in_float, delta=2e-3)
                copied = self.convert(directory, f"{name}-4", "--to", "hf")
                self.assert_same_tensors(*(read_safetensors(d / "model.safetensors") for d in (copied, directory)), name)

    def test_merged_into_what_codes_stand_for(self):
        adapter = QLORA / "adapter_double_bf16"
        merged = load_file(self.convert(CHECKPOINTS["double"], "merged", "--to", "hf", "--merge-adapter", adapter, "--dtype", "float32") / "model.safetensors")
        tensors, parts = load_file(CHECKPOINTS["double"] / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
        for key, tensor in merged.items():
            expected = tensors[key].double() if tensors[key].is_floating_point() else dequantized(tensors, key).double()
            module = "base_model.model." + key.removesuffix(".weight")
            if module + ".lora_A.weight" in parts:
                expected += 2 * parts[module + ".lora_B.weight"].double() @ parts[module + ".lora_A.weight"].double()
            self.assertLess((tensor.double() - expected).abs().max().item(), 1e-6, key)

    def test_training_beside_a_stored_checkpoint(self):
        ids = fsdp_cli.numpy.random.default_rng(0).integers(3, 250, (16, 33))
        data = fsdp_cli.write_tokens(self.folder / "small.h5", ids)
        for name, directory in CHECKPOINTS.items():
            result = self.train(f"stored-{name}", "--model", directory, "--train-data", data, "--lora-rank", 4, "--max-steps", 2, "--batch-size", 2, ranks=2)
            self.assertIn("nf4 with double quantisation" if name == "double" else "weights   nf4 in", result.err)
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments("refused", "--model", CHECKPOINTS["single"], "--train-data", data, "--max-steps", 1))
        self.assert_refused(result, 2, "cannot be trained", "--lora-rank")

    def test_the_same_as_beside_what_codes_stand_for(self):
        """In bf16, to which both are rounded, all bits agree."""
        ids = fsdp_cli.numpy.random.default_rng(1).integers(3, 250, (24, 33))
        data = fsdp_cli.write_tokens(self.folder / "same.h5", ids)
        whole = self.convert(CHECKPOINTS["double"], "numbers", "--to", "hf", "--dequantize")
        for name, options in {"lora": [], "dora": ["--dora", "--lora-targets", "q_proj,down_proj"]}.items():
            found = []
            for model in (CHECKPOINTS["double"], whole):
                run = f"same-{name}-{len(found)}"
                self.train(run, "--model", model, "--train-data", data, "--precision", "bf16", "--lora-rank", 4, "--max-steps", 4, "--batch-size", 2, "--lr", "1e-2",
                           "--lr-schedule", "constant", *options, ranks=3)
                found.append(self.losses(run))
            self.assertEqual(found[0], found[1], name)
            self.assertLess(found[0][-1], found[0][0])

    def damaged(self, name, change):
        directory = self.folder / name
        shutil.copytree(CHECKPOINTS["double"], directory)
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        (directory / "model.safetensors").unlink()
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory

    def test_what_cannot_be_is_refused(self):
        key = "model.layers.1.mlp.up_proj.weight"
        state = key + ".quant_state.bitsandbytes__nf4"

        def other_state(**fields):
            def change(tensors):
                json_state = json.loads(bytes(tensors[state].tolist())) | fields
                tensors[state] = torch.tensor(list(json.dumps(json_state).encode()), dtype=torch.uint8)
            return change

        def nan_base(tensors):
            tensors[key][3, 5] = float("nan")
        cases = {
            "no-scales": (lambda t: t.pop(key + ".absmax"), ["lacks its '.absmax'"]),
            "few-scales": (lambda t: t.update({key + ".absmax": t[key + ".absmax"][:-1].clone()}), [".absmax", "were expected"]),
            "few-codes": (lambda t: t.update({key: t[key][:-32].clone()}), ["bytes of codes"]),
            "other-code": (lambda t: t[key + ".quant_map"].mul_(0.5), ["another code"]),
            "blocks": (other_state(blocksize=128), ["blocksize 128"]),
            "shape": (other_state(shape=[2**40, 2**40]), ["a matrix was expected"]),
            "type": (other_state(dtype="int8"), ["a matrix was expected"]),
            "no-json": (lambda t: t.update({state: torch.tensor([123, 34], dtype=torch.uint8)}), ["quant_state"]),
        }
        for name, (change, words) in cases.items():
            with self.subTest(name):
                directory = self.damaged(name, change)
                for program, arguments in (("fsdp-eval", [directory, "--data", self.val_data, "--device", "cpu"]), (PROGRAM, [directory, self.folder / "x.safetensors", "--dequantize"])):
                    self.assert_refused(fsdp_cli.run(program, arguments), 4, key, *words)
        model = llama_cli.make_snapshot(self.folder / "nan", tokenizer=False, files=1)
        tensors = load_file(model / "model.safetensors")
        nan_base(tensors)
        (model / "model.safetensors").unlink()
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        for options, code, words in ((["--model", model, "--lora-rank", 2, "--quantize", "nf4"], 4, [key, "not finite"]),
                                     (["--model", self.model, "--quantize", "nf4"], 2, ["--quantize", "needs --lora-rank"]),
                                     (["--model", self.model, "--lora-rank", 2, "--quantize", "int8"], 2, ["choose from nf4, none"]),
                                     (["--model", self.model, "--lora-rank", 2, "--double-quant"], 2, ["--double-quant needs --quantize"]),
                                     (["--model", self.model, "--lora-rank", 2, "--compute-dtype", "bf16"], 2, ["--compute-dtype needs --quantize"])):
            self.assert_refused(fsdp_cli.run("fsdp-finetune", self.train_arguments("refused", *options, "--max-steps", 1)), code, *words)


if __name__ == "__main__":
    fsdp_cli.main()
