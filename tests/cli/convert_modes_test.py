"""--inspect, --verify and --check of fsdp-ckpt-convert: output and exit codes for good and for modified checkpoints."""

import json
import math
import shutil
import struct

import fsdp_cli
import numpy
from convert_fixtures import PROGRAM, ROOT, ConvertCase, all_fixtures

FULL = ROOT / "pt_t211_gpt_full" / "ckpt.pt"
DCP = ROOT / "dcp_t211_ws2_app" / "ckpt"
LOCAL = ROOT / "local_t241_ws2_gpt_uop"


def write_safetensors(path, tensors, metadata=None):
    """Writes {name: float32 or int32 array}."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": {"float32": "F32", "int32": "I32"}[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def numbers(*shape):
    return numpy.arange(math.prod(shape), dtype=numpy.float32).reshape(shape) / 8 - 1


class Inspect(ConvertCase):
    def inspect(self, source, *more):
        result = fsdp_cli.run(PROGRAM, ["--inspect", source, "--json", *more])
        self.assertEqual(result.code, 0, str(result))
        return result.json()

    def test_every_fixture_as_expected(self):
        seen = 0
        for fixture in all_fixtures():
            if fixture.refused or fixture.is_local:
                continue
            with self.subTest(fixture.name):
                found = {t["name"]: (t["dtype"], t["shape"]) for t in self.inspect(fixture.input)["tensors"]}
                expected = {n: (t["dtype"].removeprefix("torch."), t["shape"]) for n, t in fixture.truth["tensors"].items()}
                self.assertEqual(found, expected)
                seen += 1
        self.assertGreater(seen, 40)

    def test_shards_and_totals(self):
        report = self.inspect(ROOT / "fsdp2_t211_ws4_llama" / "ckpt")
        self.assertEqual(report["world_size"], 4)
        self.assertIn("DCP", report["format"])
        self.assertEqual({t["shards"] for t in report["tensors"]}, {4})
        self.assertEqual(report["totals"]["bytes"], sum(t["bytes"] for t in report["tensors"]))
        self.assertEqual(report["totals"]["elements"], sum(math.prod(t["shape"]) for t in report["tensors"]))
        self.assertEqual(len(report["files"]), 4)

    def test_values(self):
        values = {v["name"]: v["value"] for v in self.inspect(DCP)["values"]}
        truth = json.loads((DCP.parent / "expected.json").read_text(encoding="utf-8"))["nontensor"]
        self.assertEqual(set(values), set(truth))

    def test_table(self):
        result = fsdp_cli.run(PROGRAM, ["--inspect", FULL])
        self.assertEqual(result.code, 0, str(result))
        for word in ("torch zip", "transformer.wte.weight", "float32", " x ", "tensors,"):
            self.assertIn(word, result.out)

    def test_local_state(self):
        raw = self.inspect(LOCAL / "ckpt")
        self.assertTrue(raw["local_state"])
        self.assertTrue(any(t["name"].endswith("_flat_param") for t in raw["tensors"]))
        whole = self.inspect(LOCAL / "ckpt", "--param-shapes", LOCAL / "param_shapes.json")
        self.assertFalse(any("flat_param" in t["name"] for t in whole["tensors"]))

    def test_reads_no_tensor_data(self):
        """Damaged data that only tensors use does not matter to --inspect."""
        path = write_safetensors(self.folder / "big.safetensors", {"a": numbers(4, 4)})
        with open(path, "r+b") as file:
            file.seek(-64, 2)
            file.write(b"\xff" * 64)
        self.assertEqual(self.inspect(path)["totals"]["elements"], 16)


class Verify(ConvertCase):
    def verify(self, a, b, *more, code=0, ranks=0):
        result = fsdp_cli.run(PROGRAM, ["--verify", a, b, "--json", *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result.json()

    def pair(self, change):
        a = {"w": numbers(30, 70), "b": numbers(7), "n": numpy.arange(5, dtype=numpy.int32)}
        b = {name: array.copy() for name, array in a.items()}
        change(b)
        return (write_safetensors(self.folder / "a.safetensors", a), write_safetensors(self.folder / "b.safetensors", b))

    def test_equal_across_formats(self):
        for options, name in ((["--shards", 3], "three"), ([], "one.safetensors"), ([], "one.pt")):
            report = self.verify(DCP, self.convert(DCP, name, *options))
            self.assertTrue(report["equal"])
            self.assertEqual(report["tensors"], 20)

    def test_local_state_against_what_became_of_it(self):
        shapes = ["--param-shapes", LOCAL / "param_shapes.json"]
        whole = self.convert(LOCAL / "ckpt", "local.pt", *shapes)
        self.assertTrue(self.verify(LOCAL / "ckpt", whole, *shapes)["equal"])
        result = fsdp_cli.run(PROGRAM, ["--verify", LOCAL / "ckpt", whole])
        self.assert_refused(result, 2, "--param-shapes")

    def test_names_that_differ_by_the_model_prefix(self):
        """A Llama whose model was saved without its head around it."""
        inside = {"layers.0.w": numbers(3, 5), "norm.weight": numbers(5)}
        whole = {**{f"model.{name}": array for name, array in inside.items()}, "lm_head.weight": numbers(9, 5)}
        paths = [write_safetensors(self.folder / name, tensors) for name, tensors in
                 (("whole.safetensors", whole), ("inside.safetensors", {**inside, "lm_head.weight": numbers(9, 5)}))]
        for a, b in (paths, paths[::-1]):
            self.assertEqual((report := self.verify(a, b))["tensors"], 3, report)
        other = write_safetensors(self.folder / "other.safetensors", {**inside, "lm_head.weight": numbers(9, 5), "more": numbers(2)})
        self.assertFalse(self.verify(paths[0], other, code=3)["equal"])
        changed = write_safetensors(self.folder / "changed.safetensors", {**inside, "norm.weight": numbers(5) + 1, "lm_head.weight": numbers(9, 5)})
        self.assertEqual([d["name"] for d in self.verify(paths[0], changed, code=3)["different_tensors"]], ["model.norm.weight"])

    def test_one_element(self):
        def change(tensors):
            tensors["w"][17, 3] += 0.5
            tensors["w"][29, 69] += 0.25

        a, b = self.pair(change)
        for ranks in (0, 2):
            report = self.verify(a, b, code=3, ranks=ranks)
            self.assertFalse(report["equal"])
            (found,) = report["different_tensors"]
            value = float(numbers(30, 70)[17, 3])
            self.assertEqual((found["name"], found["first"], found["different"], found["elements"]), ("w", [17, 3], 2, 2100))
            self.assertEqual((float(found["a"]), float(found["b"])), (value, value + 0.5))
            self.assertEqual(found["max_abs"], 0.5)
            self.assertAlmostEqual(found["max_rel"], 0.5 / (value + 0.5))

    def test_tolerance(self):
        def change(tensors):
            tensors["b"][2] += 0.01

        a, b = self.pair(change)
        self.verify(a, b, code=3)
        self.verify(a, b, "--tolerance", 0.001, code=3)
        self.assertTrue(self.verify(a, b, "--tolerance", 0.02)["equal"])
        half = self.convert(FULL, "half.safetensors", "--dtype", "bf16")
        self.assertEqual({d["what"] for d in self.verify(FULL, half, code=3)["different_tensors"]}, {"dtype"})
        self.assertTrue(self.verify(FULL, half, "--tolerance", 0.01)["equal"])
        self.assertFalse(self.verify(FULL, half, "--tolerance", 1e-6, code=3)["equal"])
        self.assertTrue(self.verify(FULL, half, "--dtype", "bf16")["equal"], "the conversion is repeated on A")

    def test_infinity_and_nan_are_never_close(self):
        def change(tensors):
            tensors["w"][0, 0] = math.inf
            tensors["b"][1] = math.nan

        a, b = self.pair(change)
        report = self.verify(a, b, "--tolerance", 1000, code=3)
        self.assertEqual({d["name"]: d["max_abs"] for d in report["different_tensors"]}, {"w": "inf", "b": "inf"})
        self.assertTrue(self.verify(b, b)["equal"])

    def test_names_shapes_dtypes(self):
        def change(tensors):
            tensors["extra"] = tensors.pop("b")
            tensors["w"] = tensors["w"].reshape(70, 30)
            tensors["n"] = tensors["n"].astype(numpy.float32)

        report = self.verify(*self.pair(change), code=3)
        self.assertEqual((report["only_in_a"], report["only_in_b"]), (["b"], ["extra"]))
        self.assertEqual({d["name"]: d["what"] for d in report["different_tensors"]}, {"w": "shape", "n": "dtype"})

    def test_values(self):
        ours, theirs = ROOT / "pt_t211_nontensors" / "ckpt.pt", ROOT / "pt_t211_nontensors" / "ckpt.pt"
        values = self.verify(ours, theirs)["values"]
        self.assertGreater(values, 5)
        inspected = fsdp_cli.run(PROGRAM, ["--inspect", ours, "--json"]).json()
        self.assertEqual(values, len(inspected["values"]), "both count a container as one")
        other = self.verify(DCP, ROOT / "dcp_t211_ws2_threads3" / "ckpt", code=3)
        self.assertTrue(other["different_tensors"])

    def test_renamed(self):
        output = self.convert(FULL, "renamed.pt", "--rename", r"^transformer\.=gpt.", "--include", "*ln*")
        self.verify(FULL, output, "--rename", r"^transformer\.=gpt.", "--include", "*ln*")
        self.verify(FULL, output, code=3)

    def test_optimizer_left_out(self):
        whole = ROOT / "sharded_t241_ws2_gpt_optim" / "ckpt"
        model = self.convert(whole, "model.pt", "--model-only")
        self.assertTrue(self.verify(whole, model, "--model-only")["equal"])
        self.verify(whole, model, code=3)

    def test_text(self):
        a, b = self.pair(lambda tensors: tensors["w"].fill(0))
        result = fsdp_cli.run(PROGRAM, ["--verify", a, b])
        self.assertEqual(result.code, 3)
        self.assertIn("w: 2,099 of 2,100 elements differ, the first at [0, 0]: -1 in A, 0 in B", result.out)
        self.assertIn("DIFFERENT: 1 tensor ", result.out)


class Check(ConvertCase):
    def check(self, source, *more, code=0, ranks=0):
        result = fsdp_cli.run(PROGRAM, ["--check", source, "--json", *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result.json() if result.out else result

    def test_good(self):
        report = self.check(DCP)
        self.assertEqual((report["ok"], report["tensors"], report["damage"], report["non_finite"]), (True, 20, [], []))

    def test_counts_what_is_not_finite(self):
        array = numbers(300, 70)
        array[123, 45] = math.nan
        array[200, 1:4] = -math.inf
        array[299, 69] = math.nan
        path = write_safetensors(self.folder / "nan.safetensors", {"good": numbers(9), "bad": array})
        for ranks, more in ((0, []), (0, ["--jobs", 1]), (3, [])):
            report = self.check(path, *more, code=3, ranks=ranks)
            self.assertEqual(report["non_finite"], [{"name": "bad", "elements": 21000, "nan": 2, "inf": 3, "first": [123, 45]}])
        for name, nan, inf in (("bf16", 2, 3), ("fp16", 2, 3), ("float64", 2, 3)):
            other = self.convert(path, f"{name}.pt", "--dtype", name)
            (found,) = self.check(other, code=3)["non_finite"]
            self.assertEqual((found["nan"], found["inf"], found["first"]), (nan, inf, [123, 45]))

    def test_flipped_bit(self):
        """The recorded checksum of a .pt reveals one flipped bit of a tensor."""
        path = self.folder / "flipped.pt"
        data = bytearray(FULL.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
        for ranks in (0, 2):
            report = self.check(path, code=4, ranks=ranks)
            self.assertFalse(report["ok"])
            self.assertIn("flipped.pt", report["damage"][0])

    def test_a_missing_file(self):
        copy = self.folder / "missing"
        shutil.copytree(DCP, copy)
        next(copy.glob("__1_*.distcp")).unlink()
        result = fsdp_cli.run(PROGRAM, ["--check", copy])
        self.assertEqual(result.code, 4, str(result))
        self.assertIn("__1_", result.out + result.err)

    def test_a_short_file(self):
        copy = self.folder / "short"
        shutil.copytree(DCP, copy)
        file = next(copy.glob("__0_*.distcp"))
        with open(file, "r+b") as stream:
            stream.truncate(file.stat().st_size // 2)
        result = fsdp_cli.run(PROGRAM, ["--check", copy])
        self.assertEqual(result.code, 4, str(result))
        self.assertIn(file.name, result.out + result.err)


class Configuration(ConvertCase):
    """An export's config.json describes rotary positions so that transformers 4 and 5 read the same values."""

    def export(self, name, config, code=0, *more):
        folder = self.folder / name
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": numbers(2, 2)})
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
        result = fsdp_cli.run(PROGRAM, [folder, self.folder / f"{name}-hf", "--to", "hf", *more])
        self.assertEqual(result.code, code, str(result))
        return result.err if code else json.loads((self.folder / f"{name}-hf" / "config.json").read_text())

    def test_rotary_positions(self):
        linear = {"rope_type": "linear", "factor": 4.0}
        config = self.export("five", {"rope_parameters": {**linear, "rope_theta": 5e5}, "eos_token_id": 2})
        self.assertEqual(config, {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": linear, "eos_token_id": 2})
        old = {"rope_theta": 5e5, "rope_scaling": linear}
        self.assertEqual(self.export("four", old), {"model_type": "llama", **old})
        told = self.export("unclear", {"rope_theta": 5e5, "rope_parameters": {**linear, "rope_theta": 1e4}}, 4)
        self.assertIn("unclear/config.json", told)
        self.assertIn("rope_theta", told)

    def test_weights_that_others_quantised_are_copied_whole_and_not_computed_with(self):
        config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
        self.assertEqual(self.export("gptq", config), {"model_type": "llama", **config})
        for option in (["--dtype", "bf16"], ["--dequantize"], ["--quantize", "nf4"], ["--map", "llama-to-hf"]):
            with self.subTest(option[0]):
                self.assertIn("quantised by gptq", self.export("gptq" + option[0], config, 4, *option))
        self.assertIn("--dequantize", self.export("plain", {}, 4, "--dequantize"))


if __name__ == "__main__":
    fsdp_cli.main()
