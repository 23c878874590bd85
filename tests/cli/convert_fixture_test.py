"""Converts every checkpoint of tests/fixtures to every format and back: the bytes equal PyTorch's."""

import itertools
import json
import shutil

import convert_fixtures
import fsdp_cli
from convert_fixtures import ConvertCase, all_fixtures, opened, read_directory, read_safetensors

# One or two fixtures of each family for chains of conversions.
CHAINED = ["pt_t211_gpt_full", "pt_t211_minimal_fsdp_vars", "pt_t211_nontensors", "fsdp2_t211_ws4_tp", "dcp_t211_ws2_app",
           "dcp_t201_ws2_app", "fsdp2_t211_ws2_flatopt", "hf_llama_sharded_bf16", "fsdp2_t211_ws4_zeroshard", "pt_t211_zoo"]
FORMATS = {"torch": ("torch.pt", []), "safetensors": ("st.safetensors", []), "dcp": ("dcp1", ["--to", "dcp"]),
           "dcp-3": ("dcp3", ["--to", "dcp", "--shards", "3"])}


def text(value):
    """Returns JSON for comparison, which distinguishes 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)


class Fixtures(ConvertCase):
    def test_to_safetensors(self):
        """Compares tensors bit for bit, and the values in the JSON file beside them."""
        converted = 0
        for fixture in all_fixtures():
            if fixture.refused:
                continue
            with self.subTest(fixture.name):
                output = self.convert(fixture.input, f"st/{fixture.name}.safetensors", *fixture.options())
                self.assert_same_tensors(read_safetensors(output), fixture.tensors(), fixture.name)
                self.check_values(output, fixture)
                converted += 1
        self.assertGreater(converted, 60)
        self.assertEqual(self.temporary_files(), [])

    def check_values(self, output, fixture):
        beside = output.with_suffix(".json")
        self.assertEqual(beside.exists(), bool(fixture.values) or fixture.has_raw_optimizer, fixture.name)
        if fixture.values:
            found = json.loads(beside.read_text(encoding="utf-8"))
            self.assertEqual(sorted(found), sorted(fixture.values), fixture.name)
            for key, value in fixture.values.items():
                self.assertEqual(text(found[key]), text(value), f"{fixture.name}: {key}")

    def test_to_torch_and_back(self):
        for fixture in all_fixtures():
            if fixture.refused:
                continue
            with self.subTest(fixture.name):
                whole = self.convert(fixture.input, f"pt/{fixture.name}.pt", *fixture.options())
                again = self.convert(whole, f"pt/{fixture.name}.safetensors")
                self.assert_same_tensors(read_safetensors(again), fixture.tensors(), fixture.name)

    def test_verify_agrees(self):
        """--verify finds no difference between a checkpoint and its conversion, and finds a difference that was made."""
        for fixture in all_fixtures():
            if fixture.refused or fixture.is_local:
                continue
            with self.subTest(fixture.name):
                output = self.convert(fixture.input, f"verify/{fixture.name}.pt")
                result = fsdp_cli.run(convert_fixtures.PROGRAM, ["--verify", fixture.input, output])
                self.assertEqual(result.code, 0, str(result))

    def test_check(self):
        """All fixtures are sound; --check names tensors with NaN and infinite elements."""
        for fixture in all_fixtures():
            if fixture.refused:
                continue
            with self.subTest(fixture.name):
                result = fsdp_cli.run(convert_fixtures.PROGRAM, [fixture.input, "--check"])
                # The "zoo" checkpoints have a tensor with such elements.
                strange = any(name.endswith("nan_inf") for name in fixture.truth["tensors"])
                self.assertEqual(result.code, 3 if strange else 0, str(result))
                self.assertEqual("nan_inf: 1 NaN and 2 infinite" in result.out, strange, str(result))

    def test_inspect_names_every_tensor(self):
        for fixture in all_fixtures():
            if fixture.refused or fixture.is_local:
                continue
            with self.subTest(fixture.name):
                result = fsdp_cli.run(convert_fixtures.PROGRAM, [fixture.input, "--inspect", "--json"])
                self.assertEqual(result.code, 0, str(result))
                found = {tensor["name"]: tensor["shape"] for tensor in result.json()["tensors"]}
                # --inspect counts a complex tensor as one, without the dimension of real and imaginary parts.
                expected = {name: (shape[:-1] if name.endswith("@view_as_real") else shape)
                            for name, (_, shape, _) in fixture.tensors().items()}
                self.assertEqual(found, {name.removesuffix("@view_as_real"): shape for name, shape in expected.items()})


class Chains(ConvertCase):
    def test_every_pair_of_formats(self):
        """fixture -> A -> B -> safetensors: no pair of formats loses or changes a tensor or a value."""
        fixtures = [f for f in all_fixtures() if f.name in CHAINED]
        self.assertEqual(len(fixtures), len(CHAINED))
        for fixture in fixtures:
            first = {}
            for a, (name, options) in FORMATS.items():
                first[a] = self.convert(fixture.input, f"{fixture.name}/{name}", *fixture.options(), *options)
            for a, b in itertools.product(FORMATS, FORMATS):
                with self.subTest(f"{fixture.name} -> {a} -> {b}"):
                    name, options = FORMATS[b]
                    second = self.convert(first[a], f"{fixture.name}/{a}/{name}", *options)
                    last = self.convert(second, f"{fixture.name}/{a}/{b}.safetensors")
                    self.assert_same_tensors(read_safetensors(last), fixture.tensors(), fixture.name)
            shutil.rmtree(self.folder / fixture.name)

    def test_values_survive_torch_and_dcp(self):
        """Values that JSON can express survive other formats that hold values."""
        for name in ("pt_t211_nontensors", "dcp_t211_ws2_app", "dcp_t201_ws2_app", "pt_t211_minimal_fsdp_vars"):
            fixture = next(f for f in all_fixtures() if f.name == name)
            direct = self.convert(fixture.input, f"{name}.safetensors").with_suffix(".json")
            for chain in (["torch"], ["dcp"], ["torch", "dcp-3"], ["dcp", "torch"]):
                with self.subTest(f"{name} -> {' -> '.join(chain)}"):
                    at = fixture.input
                    for step, kind in enumerate(chain):
                        at = self.convert(at, f"{name}-{'-'.join(chain)}-{step}-{FORMATS[kind][0]}", *FORMATS[kind][1])
                    last = self.convert(at, f"{name}-{'-'.join(chain)}.safetensors").with_suffix(".json")
                    found, expected = (opened(json.loads(path.read_text())) for path in (last, direct))
                    self.assertEqual(text(found), text(expected))

    def test_hf_directories(self):
        """Shards of at most --max-shard-size, a matching index, and the same tensors; also read back as a source."""
        for name in ("hf_llama_single_f32", "hf_llama_sharded_bf16", "pt_t241_llama_full", "pt_t211_gpt_full"):
            with self.subTest(name):
                fixture = next(f for f in all_fixtures() if f.name == name)
                directory = self.convert(fixture.input, f"{name}-hf", "--to", "hf", "--max-shard-size", "16KB")
                index = json.loads((directory / "model.safetensors.index.json").read_text())
                found = read_directory(directory)
                self.assertEqual(sorted(index["weight_map"]), sorted(found))
                self.assertEqual(index["metadata"]["total_size"], sum(len(data) for _, _, data in found.values()))
                for file, names in itertools.groupby(sorted(index["weight_map"], key=index["weight_map"].get), index["weight_map"].get):
                    names = list(names)
                    self.assertEqual(sorted(read_safetensors(directory / file)), sorted(names))
                    size = sum(len(found[n][2]) for n in names)
                    self.assertTrue(size <= 16_000 or len(names) == 1, f"{file} has {size} bytes in {len(names)} tensors")
                self.assert_same_tensors(found, fixture.tensors(), name)
                back = self.convert(directory, f"{name}-back.safetensors")
                self.assert_same_tensors(read_safetensors(back), fixture.tensors(), name)

    def test_local_state_of_one_rank_needs_nothing(self):
        """World size 1 writes a plain full state dict, so no shapes are needed."""
        fixture = next(f for f in all_fixtures() if f.name == "local_t211_ws1_gpt")
        output = self.convert(fixture.input, "one.safetensors")
        self.assert_same_tensors(read_safetensors(output), fixture.tensors(), fixture.name)


class Refused(ConvertCase):
    def test_one_message_that_names_the_file(self):
        fixtures = [f for f in all_fixtures() if f.refused]
        self.assertGreaterEqual(len(fixtures), 2)
        for fixture in fixtures:
            with self.subTest(fixture.name):
                result = self.convert(fixture.input, f"{fixture.name}.safetensors", code=4)
                self.assert_refused(result, 4, fixture.input)
        self.assertEqual(list(self.folder.glob("*.safetensors")), [])

    def test_local_state_without_shapes(self):
        """A flat parameter has no shapes; the message says where to get them."""
        fixture = next(f for f in all_fixtures() if f.name == "local_t211_ws4_gpt_pad")
        result = fsdp_cli.run(convert_fixtures.PROGRAM, [fixture.input, self.folder / "x.pt"])
        self.assertIn(result.code, (2, 4), str(result))
        self.assert_refused(result, result.code, "--param-shapes")
        self.assertFalse((self.folder / "x.pt").exists())

    def test_local_state_with_another_models_shapes(self):
        """Inconsistent sizes are refused, naming the unit and both sizes, and never guessed."""
        fixtures = {f.name: f for f in all_fixtures()}
        wrong = fixtures["local_t211_ws3_gpt_bf16"].folder / "param_shapes.json"
        result = fsdp_cli.run(convert_fixtures.PROGRAM, [fixtures["local_t211_ws4_gpt_pad"].input, self.folder / "y.pt", "--param-shapes", wrong])
        self.assertIn(result.code, (2, 4), str(result))
        self.assert_refused(result, result.code, wrong)
        for words in ("_flat_param", "2420", "2688"):
            self.assertIn(words, result.err)
        self.assertFalse((self.folder / "y.pt").exists())


if __name__ == "__main__":
    fsdp_cli.main()
