"""fsdp-ckpt-convert --merge-adapter: merges adapters into the matrices as peft's merge_and_unload() does; --inspect recognises adapters."""

import json
import shutil

import fsdp_cli
from convert_fixtures import PROGRAM, ConvertCase

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
BASE = FIXTURES / "numerics" / "llama_nano"
LORA = FIXTURES / "training" / "lora"
VARIANTS = ("all", "qv_rslora_clip", "qv_dora")


def merged(base, adapter):
    """Merges by the definition of LoRA, rsLoRA and DoRA, in float64; with fan_in_fan_out the base's matrices are [in, out]."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    parts = load_file(adapter / "adapter_model.safetensors")
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    result = {}
    for name, weight in base.items():
        module = "base_model.model." + name.removesuffix(".weight")
        weight = weight.double()
        turned = config["fan_in_fan_out"] and module + ".lora_A.weight" in parts
        weight = weight.T if turned else weight
        if module + ".lora_A.weight" in parts:
            weight = weight + scale * parts[module + ".lora_B.weight"].double() @ parts[module + ".lora_A.weight"].double()
            if config["use_dora"]:
                weight = parts[module + ".lora_magnitude_vector"].double()[:, None] * weight / weight.norm(dim=1, keepdim=True)
        result[name] = weight.T if turned else weight
    return result


class Merged(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = load_file(BASE / "model.safetensors")
        # A base as most are: 16-bit weights, in a directory with config.json.
        cls.half = cls.folder / "half"
        cls.half.mkdir()
        shutil.copyfile(BASE / "config.json", cls.half / "config.json")
        save_file({name: tensor.bfloat16() for name, tensor in cls.base.items()}, cls.half / "model.safetensors", metadata={"format": "pt"})

    def assert_merged(self, found, expected, tolerance):
        self.assertEqual(sorted(found), sorted(expected))
        for name, tensor in expected.items():
            # Relative to the largest element of a matrix: sums of a few products, each rounded once.
            self.assertLessEqual((found[name].double() - tensor).abs().max().item(), tolerance * tensor.abs().max().item(), name)

    def test_a_sum_beyond_the_type_is_refused(self):
        """Base and adapter are finite, and their sum in float16 would not be."""
        large = self.folder / "large"
        shutil.copytree(self.half, large)
        name = "model.layers.0.self_attn.q_proj.weight"
        weights = {key: tensor.half() for key, tensor in self.base.items()}
        weights[name][:] = 65504
        save_file(weights, large / "model.safetensors", metadata={"format": "pt"})
        adapter = self.folder / "large-adapter"
        shutil.copytree(LORA / "all", adapter)
        parts = load_file(adapter / "adapter_model.safetensors")
        module = "base_model.model." + name.removesuffix(".weight")
        parts[module + ".lora_A.weight"][:], parts[module + ".lora_B.weight"][:] = 10, 10
        save_file(parts, adapter / "adapter_model.safetensors")
        result = self.convert(large, "beyond", "--to", "hf", "--merge-adapter", adapter, code=4)
        self.assert_refused(result, 4, name, "65504", "bfloat16")
        self.assertFalse((self.folder / "beyond").exists())
        found = load_file(self.convert(large, "within", "--to", "hf", "--merge-adapter", adapter, "--dtype", "bf16") / "model.safetensors")
        self.assertTrue(torch.isfinite(found[name]).all())

    def test_as_defined(self):
        for variant in VARIANTS:
            with self.subTest(variant):
                output = self.convert(BASE, f"{variant}.safetensors", "--merge-adapter", LORA / variant)
                expected = merged(self.base, LORA / variant)
                self.assert_merged(load_file(output), expected, 1e-6)
                changed = sum(not torch.equal(self.base[name].double(), tensor) for name, tensor in expected.items())
                self.assertEqual(changed, 14 if variant == "all" else 4)

    def test_gpt2_whose_matrices_lie_the_other_way_round(self):
        for variant, changed in (("all", 8), ("attn_dora", 2), ("proj_rslora", 4)):
            for base in (FIXTURES / "families" / "gpt2", FIXTURES / "families" / "gpt2" / "hub_names"):
                with self.subTest(f"{variant} {base.name}"):
                    adapter = FIXTURES / "training" / "lora_gpt2" / variant
                    output = self.convert(base, f"{variant}-{base.name}", "--merge-adapter", adapter, "--to", "hf")
                    before = {(name if name.startswith("transformer.") else "transformer." + name): tensor
                              for name, tensor in load_file(base / "model.safetensors").items() if not name.endswith(".attn.bias")}
                    expected = merged(before, adapter)
                    self.assert_merged(load_file(output / "model.safetensors"), expected, 1e-6)
                    self.assertEqual(sum(not torch.equal(before[name].double(), tensor) for name, tensor in expected.items()), changed)

    def test_rounded_once_into_the_type_of_the_base_or_the_one_asked_for(self):
        half = load_file(self.half / "model.safetensors")
        expected = merged(half, LORA / "all")
        found = load_file(self.convert(self.half, "half.safetensors", "--merge-adapter", LORA / "all"))
        self.assertEqual({tensor.dtype for tensor in found.values()}, {torch.bfloat16})
        self.assert_merged(found, expected, 2 ** -8)
        exact = load_file(self.convert(self.half, "wide.safetensors", "--merge-adapter", LORA / "all", "--dtype", "float32"))
        self.assert_merged(exact, expected, 1e-6)
        for name, tensor in exact.items():
            self.assertTrue(torch.equal(found[name], tensor.bfloat16()), name)

    def test_every_format_has_the_same_bytes(self):
        options = ("--merge-adapter", LORA / "qv_dora")
        whole = self.convert(BASE, "whole.safetensors", *options)
        directory = self.convert(BASE, "hf", "--to", "hf", *options)
        self.assertEqual(json.loads((directory / "config.json").read_text())["model_type"], "llama")
        self.convert(BASE, "three", "--to", "dcp", "--shards", "3", *options, ranks=2)
        for other in (directory, self.folder / "three"):
            result = fsdp_cli.run(PROGRAM, ["--verify", whole, other, "--model-only"])
            self.assertEqual(result.code, 0, str(result))
        result = fsdp_cli.run(PROGRAM, ["--verify", BASE, whole, *options])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", BASE, whole]).code, 3)

    def changed(self, name, config=None, **tensors):
        """Copies an adapter with changed fields and tensors; None removes a tensor."""
        directory = self.folder / name
        directory.mkdir()
        fields = json.loads((LORA / "qv_dora" / "adapter_config.json").read_text()) | (config or {})
        (directory / "adapter_config.json").write_text(json.dumps(fields))
        parts = load_file(LORA / "qv_dora" / "adapter_model.safetensors")
        for key, tensor in tensors.items():
            key = f"base_model.model.model.layers.0.self_attn.{key.replace('__', '.')}"
            parts.pop(key, None)
            if tensor is not None:
                parts[key] = tensor
        save_file(parts, directory / "adapter_model.safetensors")
        return directory

    def test_what_does_not_fit_is_refused_and_nothing_written(self):
        cases = (
            (self.changed("other-rank", {"r": 8}), ["lora_A", "[8, 64]", "adapter_config.json"]),
            (self.changed("no-b", q_proj__lora_B__weight=None), ["self_attn.q_proj", "lacks its lora_A or its lora_B"]),
            (self.changed("elsewhere", x_proj__lora_A__weight=torch.zeros(4, 64), x_proj__lora_B__weight=torch.zeros(64, 4)), ["x_proj.lora_A.weight", "the base does not have"]),
            (self.changed("strange", q_proj__bias=torch.zeros(64)), ["q_proj.bias", "no part of an adapter"]),
            (self.changed("not-dora", {"use_dora": False}), ["lora_magnitude_vector", "use_dora"]),
            (self.changed("pattern", {"rank_pattern": {"q_proj": 2}}), ["lora_A", "[2, 64]"]),
        )
        for directory, words in cases:
            with self.subTest(directory.name):
                result = self.convert(BASE, "refused.safetensors", "--merge-adapter", directory, code=4)
                for word in words:
                    self.assertIn(word, result.err)
                self.assertFalse((self.folder / "refused.safetensors").exists())
        self.convert(BASE, "refused.safetensors", "--merge-adapter", self.folder / "nowhere", code=4)

    def test_inspect(self):
        result = fsdp_cli.run(PROGRAM, ["--inspect", LORA / "qv_dora"])
        self.assertIn("adapter     DoRA of rank 4, alpha 8, of q_proj v_proj", result.out)
        found = fsdp_cli.run(PROGRAM, ["--inspect", "--json", LORA / "all"]).json()
        self.assertEqual((found["adapter"]["r"], len(found["tensors"])), (8, 28))
        self.assertNotIn("adapter", fsdp_cli.run(PROGRAM, ["--inspect", "--json", BASE]).json())


if __name__ == "__main__":
    fsdp_cli.main()
