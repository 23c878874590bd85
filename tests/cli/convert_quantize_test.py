"""fsdp-ckpt-convert --quantize nf4, fsdp-finetune --save-final-hf beside adapters, fsdp-eval --quantize: equal to bitsandbytes, bit for bit."""

import json
import shutil

import fsdp_cli
import llama_cli
from convert_fixtures import PROGRAM, ConvertCase, read_safetensors

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
BASE = FIXTURES / "numerics" / "llama_nano"
QLORA = FIXTURES / "training" / "qlora"
KINDS = {"single": ["--quantize", "nf4"], "double": ["--quantize", "nf4", "--double-quant"]}
STATE = ".quant_state.bitsandbytes__nf4"


def parsed(tensors):
    """Returns the tensors of a file as comparable values; JSON is parsed, because transformers does not pad it."""
    return {name: json.loads(bytes(tensor.tolist())) if name.endswith(STATE) else (tensor.dtype, tensor.tolist()) for name, tensor in tensors.items()}


class Quantized(llama_cli.WeightsCase, ConvertCase):
    def test_as_transformers_stores_it(self):
        for kind, options in KINDS.items():
            with self.subTest(kind):
                output = self.convert(BASE, kind, "--to", "hf", "--dtype", "bf16", *options)
                theirs = QLORA / f"checkpoint_{kind}"
                self.assertEqual(parsed(load_file(output / "model.safetensors")), parsed(load_file(theirs / "model.safetensors")))
                ours, config = (json.loads((directory / "config.json").read_text()) for directory in (output, theirs))
                self.assertEqual(ours["quantization_config"], config["quantization_config"])
                self.assertEqual(ours.get("torch_dtype", ours.get("dtype")), "bfloat16")
                # Reads the output back: as numbers, and as codes of these numbers.
                numbers = self.convert(output, f"{kind}-16", "--to", "hf", "--dequantize")
                again = self.convert(numbers, f"{kind}-again", "--to", "hf", *options)
                for name, tensor in load_file(again / "model.safetensors").items():
                    if not name.endswith(("absmax", STATE)):
                        self.assertTrue(torch.equal(tensor, load_file(output / "model.safetensors")[name]), name)

    def test_another_type_leaves_codes_and_scales(self):
        """bitsandbytes keeps scales in float32 whatever the model is kept in; --dtype changes embeddings, norms and head, and what is said of the codes."""
        for kind, options in KINDS.items():
            with self.subTest(kind):
                stored = self.convert(self.model, f"{kind}-before", "--to", "hf", "--dtype", "bf16", *options)
                output = self.convert(stored, f"{kind}-half", "--to", "hf", "--dtype", "fp16")
                before, after = (load_file(directory / "model.safetensors") for directory in (stored, output))
                self.assertEqual(sorted(before), sorted(after))
                for name, tensor in before.items():
                    if name.endswith(STATE):
                        state, said = (json.loads(bytes(tensors[name].tolist())) for tensors in (before, after))
                        self.assertEqual(said, {**state, "dtype": "float16"})
                    else:
                        self.assertTrue(torch.equal(after[name], tensor.half() if tensor.dtype == torch.bfloat16 else tensor), name)
                config = json.loads((output / "config.json").read_text())
                self.assertEqual(config.get("torch_dtype", config.get("dtype")), "float16")
                self.assertEqual(config["quantization_config"]["bnb_4bit_compute_dtype"], "float16")
                losses = [self.evaluate(model, "--precision", "float32", "--data", self.val_data)["loss"] for model in (stored, output)]
                self.assertLess(abs(losses[1] - losses[0]), 2e-3)
                numbers = load_file(self.convert(output, f"{kind}-numbers", "--to", "hf", "--dequantize") / "model.safetensors")
                self.assertEqual({tensor.dtype for tensor in numbers.values()}, {torch.float16})
        # Codes whose bytes are stored as numbers of two bytes are not numbers.
        name = "model.layers.0.mlp.up_proj.weight"
        wide = {key: tensor.flatten().view(torch.bfloat16)[:, None] if key == name else tensor for key, tensor in before.items()}
        shutil.copytree(stored, self.folder / "wide")
        save_file(wide, self.folder / "wide" / "model.safetensors", metadata={"format": "pt"})
        after = load_file(self.convert(self.folder / "wide", "wide-half", "--to", "hf", "--dtype", "fp16") / "model.safetensors")
        self.assertTrue(torch.equal(after[name].view(torch.uint8), wide[name].view(torch.uint8)))

    def test_odd_shapes(self):
        stored = load_file(QLORA / "tensors.safetensors")
        shapes = ("even", "tail", "oddcols", "long")
        source = self.folder / "shapes.safetensors"
        save_file({f"model.layers.{i}.{name}.weight": stored[name + ".weight"] for i, name in enumerate(shapes)}, source)
        for kind, options in KINDS.items():
            found = load_file(self.convert(source, f"shapes-{kind}.safetensors", *options))
            for i, name in enumerate(shapes):
                key, theirs = f"model.layers.{i}.{name}.weight", name + ".nf4" + (".double" if kind == "double" else "")
                self.assertTrue(torch.equal(found[key].flatten(), stored[name + ".nf4.packed"].flatten()), key)
                self.assertTrue(torch.equal(found[key + ".absmax"], stored[theirs + ".absmax"]), key)
                state = json.loads(bytes(found[key + STATE].tolist()))
                self.assertEqual((state["shape"], state["dtype"]), (list(stored[name + ".weight"].shape), str(stored[name + ".weight"].dtype).removeprefix("torch.")))
                if kind == "double":
                    self.assertTrue(torch.equal(found[key + ".nested_absmax"], stored[theirs + ".nested_absmax"]), key)
                    self.assertEqual(state["nested_offset"], stored[theirs + ".offset"].item())

    def test_every_format_and_number_of_ranks_has_the_same_bytes(self):
        whole = self.convert(self.model, "whole.safetensors", *KINDS["double"])
        self.convert(self.model, "three", "--to", "dcp", "--shards", "3", *KINDS["double"], ranks=2)
        apart = self.convert(self.folder / "three", "apart.safetensors")
        self.assert_same_tensors(read_safetensors(apart), read_safetensors(whole), "of three shards")
        theirs = torch.load(self.convert(self.model, "whole.pt", *KINDS["double"]), weights_only=True)
        self.assertTrue(all(torch.equal(tensor, theirs[name]) for name, tensor in load_file(whole).items()))
        result = fsdp_cli.run(PROGRAM, ["--verify", self.model, whole, *KINDS["double"]])
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", self.model, whole, *KINDS["single"]]).code, 3)

    def test_a_run_saves_its_model_with_the_adapters_in_it(self):
        for name, options in {"lora": [], **KINDS}.items():
            with self.subTest(name):
                final = self.folder / f"final-{name}"
                self.train(name, "--model", self.model, "--lora-rank", 4, "--lr", "1e-2", "--max-steps", 3, "--batch-size", 2, *options, "--save-final-hf", final, ranks=2)
                merged = self.convert(self.model, f"merged-{name}", "--to", "hf", "--merge-adapter", self.run_directory(name) / "adapter", *options)
                self.assert_same_tensors(read_safetensors(final / "model.safetensors"), read_safetensors(merged / "model.safetensors"), name)
                self.assertEqual((final / "config.json").read_text(), (merged / "config.json").read_text())
                self.assertEqual("quantization_config" in json.loads((final / "config.json").read_text()), name != "lora")
                self.assertFalse((self.run_directory(name) / ".final-full").exists())
        # The finished run exports again, from its last checkpoint.
        again = self.folder / "again"
        self.train("double", "--restart-checkpoint-file", "latest", "--model", self.model, "--lora-rank", 4, "--max-steps", 3, *KINDS["double"], "--save-final-hf", again)
        self.assert_same_tensors(read_safetensors(again / "model.safetensors"), read_safetensors(self.folder / "final-double" / "model.safetensors"), "again")

    def test_training_and_evaluation_see_the_same_codes(self):
        directory = self.convert(self.model, "codes", "--to", "hf", *KINDS["double"])
        for precision in ("fp32", "bf16"):
            losses = [self.evaluate(*arguments, "--precision", precision, "--data", self.val_data)["loss"] for arguments in
                      ([directory], [self.model, *KINDS["double"]], [directory, "--quantize", "nf4"])]
            self.assertEqual(len(set(losses)), 1, losses)
        self.assertNotEqual(losses[0], self.evaluate(self.model, "--precision", "bf16", "--data", self.val_data)["loss"])
        found = []
        for model, options in ((directory, []), (self.model, KINDS["double"])):
            self.train(f"run-{len(found)}", "--model", model, "--lora-rank", 4, "--max-steps", 3, "--batch-size", 2, *options, ranks=2)
            found.append(self.losses(f"run-{len(found)}"))
        self.assertEqual(*found)
        # A checkpoint can be quantized on loading, too.
        self.train("all", "--model", self.model, "--max-steps", 1, "--batch-size", 2)
        checkpoint = self.checkpoints("all") / "latest"
        of_checkpoint, plain = (self.evaluate(checkpoint, *options, "--data", self.val_data, ranks=2)["loss"] for options in (KINDS["single"], []))
        self.assertTrue(0 < abs(of_checkpoint - plain) < 0.2, (of_checkpoint, plain))

    def test_gpt2_lies_the_right_way_round_wherever_its_weights_are(self):
        gpt2, single = FIXTURES / "families" / "gpt2", KINDS["single"]
        alone = self.folder / "alone"
        alone.mkdir()
        shutil.copyfile(gpt2 / "model.safetensors", alone / "model.safetensors")
        codes = self.convert(gpt2, "gpt2-4", "--to", "hf", *single)
        others = (self.convert(codes, "gpt2-again", "--to", "hf", "--dequantize", *single),
                  self.convert(alone / "model.safetensors", "gpt2-alone", "--to", "hf", "--config-from", gpt2, *single),
                  self.convert(alone / "model.safetensors", "gpt2-model", "--to", "hf", "--model-config", gpt2 / "config.json", *single))
        wanted = load_file(codes / "model.safetensors")
        for other in others:
            found = load_file(other / "model.safetensors")
            self.assertEqual([name for name in wanted if not name.endswith(STATE) and not torch.equal(found[name], wanted[name])], [], other)
        numbers = self.convert(alone / "model.safetensors", "gpt2-numbers", "--to", "hf", "--model-config", gpt2 / "config.json")
        for name, tensor in load_file(numbers / "model.safetensors").items():
            self.assertTrue(torch.equal(tensor, load_file(gpt2 / "model.safetensors")[name]), name)
        # Refused: 4-bit codes in a file without a config.json, and a directory with only a part in 4 bits.
        shutil.copyfile(codes / "model.safetensors", alone / "model.safetensors")
        self.assert_refused(fsdp_cli.run(PROGRAM, [alone / "model.safetensors", self.folder / "refused", "--to", "hf", "--dequantize", "--config-from", gpt2]), 2,
                            "[in, out]", "--map mingpt-to-gpt2")
        mixed = {name: tensor for name, tensor in wanted.items() if "h.1.attn.c_proj.weight" not in name}
        save_file(mixed | {"transformer.h.1.attn.c_proj.weight": torch.zeros(51, 51)}, alone / "model.safetensors")
        shutil.copyfile(codes / "config.json", alone / "config.json")
        self.assert_refused(fsdp_cli.run(PROGRAM, [alone, self.folder / "refused", "--to", "hf", "--dequantize"]), 4, "h.1.attn.c_proj.weight", "all or none")
        self.assertFalse((self.folder / "refused").exists())

    def test_what_cannot_be_is_refused(self):
        output = self.folder / "refused"
        bad = load_file(self.convert(self.model, "bad.safetensors"))
        bad["model.layers.1.mlp.up_proj.weight"][3, 5] = float("inf")
        save_file(bad, self.folder / "bad.safetensors")
        for source, options, code, words in ((self.folder / "bad.safetensors", KINDS["double"], 4, ["model.layers.1.mlp.up_proj.weight", "not finite"]),
                                             (QLORA / "checkpoint_single", KINDS["single"], 2, ["in 4 bits already", "--dequantize"]),
                                             (FIXTURES / "training" / "optim_traj" / "inputs.safetensors", KINDS["single"], 2, ["4 bits are for models", "(--quantize)"]),
                                             (self.model, ["--double-quant"], 2, ["--double-quant needs --quantize"]),
                                             (self.model, ["--quantize", "int8"], 2, ["choose from nf4, none"])):
            result = fsdp_cli.run(PROGRAM, [source, output, "--to", "hf", *options])
            self.assert_refused(result, code, *words)
            self.assertFalse(output.exists())
        self.assert_refused(fsdp_cli.run("fsdp-eval", [self.model, "--data", self.val_data, "--double-quant"]), 2, "--double-quant needs --quantize")

    def test_transformers_opens_it(self):
        try:
            import bitsandbytes  # noqa: F401
            import transformers
        except ImportError as missing:
            self.skipTest(str(missing))
        gpt2 = FIXTURES / "families" / "gpt2"  # its matrices are transposed when they are numbers
        for source, kind in ((self.model, "single"), (self.model, "double"), (gpt2, "double")):
            with self.subTest(f"{source.name} {kind}"):
                directory = self.convert(source, f"opened-{source.name}-{kind}", "--to", "hf", *KINDS[kind])
                model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train()  # in eval mode bitsandbytes repacks weights on some processors
                for module in model.modules():
                    if isinstance(module, torch.nn.Dropout):
                        module.p = 0.0
                numbers = self.convert(directory, f"numbers-{source.name}-{kind}", "--to", "hf", "--dequantize", "--dtype", "float32")
                plain = transformers.AutoModelForCausalLM.from_pretrained(numbers, dtype=torch.float32).eval()
                ids = torch.arange(3, 3 + min(48, plain.config.max_position_embeddings))[None]
                with torch.no_grad():
                    logits, expected = model(ids).logits, plain(ids).logits
                # bitsandbytes rounds activations to the products' dtype, bf16.
                self.assertLess((logits - expected).norm().item(), 2e-2 * expected.norm().item())
                in_4_bits = {name: module for name, module in model.named_modules() if type(module).__name__ == "Linear4bit"}
                self.assertEqual(len(in_4_bits), 8 if source == gpt2 else 14)
                for name, module in in_4_bits.items():
                    values = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state).float()
                    self.assertTrue(torch.equal(values.T if source == gpt2 else values, plain.get_submodule(name).weight), name)


if __name__ == "__main__":
    fsdp_cli.main()
