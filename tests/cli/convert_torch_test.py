"""PyTorch, safetensors and transformers open what fsdp-ckpt-convert writes and find the original contents."""

import collections
import datetime
import enum
import io
import json
import math

import fsdp_cli
import numpy
from convert_fixtures import PROGRAM, ConvertCase, all_fixtures, decoded

with fsdp_cli.needed():
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def look_up(tree, key):
    """Returns the entry of a nested dict or list that has this flattened name."""
    if key == "":
        return tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else ()
    for name, item in items:
        name = str(name)
        if key == name:
            return item
        if key.startswith(name + "."):
            try:
                return look_up(item, key[len(name) + 1:])
            except KeyError:
                continue
    raise KeyError(key)


def same_value(found, expected):
    """Compares values and types; NaN equals NaN. A Namespace may have become the dict of its attributes."""
    if isinstance(expected, tuple) and expected[:1] == ("dtype",):
        return str(found) == expected[1]
    if isinstance(expected, tuple) and isinstance(found, torch.Size):
        return tuple(found) == expected
    if isinstance(expected, bytes):
        return isinstance(found, (bytes, bytearray)) and bytes(found) == expected
    if isinstance(expected, dict):
        found = dict(found) if isinstance(found, dict) else vars(found)
        # PyTorch's own conversion to DCP turns integer keys into strings.
        found, expected = ({str(key): value for key, value in d.items()} for d in (found, expected))
        return found.keys() == expected.keys() and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(expected) and found == expected


def as_bytes(tensor):
    """Returns the elements, row-major; complex ones as pairs, with the lazy conjugate bit resolved."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return bytes(tensor.flatten().view(torch.uint8).numpy()) if tensor.numel() else b""


class TorchCase(ConvertCase):
    def assert_holds(self, tree, fixture):
        """Finds every tensor and value of the fixture under its name and in its place."""
        for name, (_, shape, data) in fixture.tensors().items():
            found = look_up(tree, name.removesuffix("@view_as_real"))
            expected_shape = shape[:-1] if name.endswith("@view_as_real") else shape
            self.assertEqual(list(found.shape), expected_shape, f"{fixture.name}: {name}")
            self.assertTrue(as_bytes(found) == data, f"{fixture.name}: {name} has other bytes")
        for name, value in fixture.values.items():
            found = look_up(tree, name)
            self.assertTrue(same_value(found, decoded(value)), f"{fixture.name}: {name} is {found!r}, not {value!r}")


class Torch(TorchCase):
    def test_load_with_weights_only(self):
        loaded = 0
        for fixture in all_fixtures():
            if fixture.refused:
                continue
            with self.subTest(fixture.name):
                path = self.convert(fixture.input, f"{fixture.name}.pt", *fixture.options())
                self.assert_holds(torch.load(path, weights_only=True), fixture)
                mapped = torch.load(path, weights_only=True, mmap=True)  # works only if each storage is at the offset that the archive states
                self.assert_holds(mapped, fixture)
                loaded += 1
                path.unlink()
        self.assertGreater(loaded, 60)

    def test_equals_what_the_original_loads(self):
        """Compares nesting and order of keys, beside names and bytes."""
        for name in ("pt_t211_gpt_full", "pt_t241_llama_full", "pt_t211_minimal_fsdp_vars", "pt_t211_rawoptim_int_keys"):
            with self.subTest(name):
                fixture = next(f for f in all_fixtures() if f.name == name)
                old = torch.load(fixture.input, weights_only=True)
                new = torch.load(self.convert(fixture.input, f"same-{name}.pt"), weights_only=True)
                self.assert_same_tree(new, old, name)

    def assert_same_tree(self, new, old, at):
        if isinstance(old, torch.Tensor):
            self.assertEqual((new.dtype, new.shape), (old.dtype, old.shape), at)
            self.assertTrue(as_bytes(new) == as_bytes(old), at)
        elif isinstance(old, dict):
            self.assertEqual([str(key) for key in new], [str(key) for key in old], at)
            for (_, a), (key, b) in zip(new.items(), old.items()):
                self.assert_same_tree(a, b, f"{at}[{key!r}]")
        elif isinstance(old, (list, tuple)):
            self.assertEqual(len(new), len(old), at)
            for i, (a, b) in enumerate(zip(new, old)):
                self.assert_same_tree(a, b, f"{at}[{i}]")
        else:
            self.assertTrue(same_value(new, old), f"{at}: {new!r}, not {old!r}")

    def test_full_state_loads_into_a_module(self):
        """Loads the one .pt of a local state into a module, as users do."""
        fixture = next(f for f in all_fixtures() if f.name == "local_t211_ws4_gpt_pad")
        state = torch.load(self.convert(fixture.input, "module.pt", *fixture.options()), weights_only=True)
        holder = torch.nn.Module()
        for name, tensor in state.items():
            parent = holder
            *path, leaf = name.split(".")
            for part in path:
                if not hasattr(parent, part):
                    parent.add_module(part, torch.nn.Module())
                parent = getattr(parent, part)
            parent.register_parameter(leaf, torch.nn.Parameter(torch.zeros_like(tensor)))
        holder.load_state_dict(state, strict=True)  # raises on a missing or unexpected key
        for name, tensor in holder.state_dict().items():
            self.assertTrue(as_bytes(tensor) == fixture.tensors()[name][2], name)


class Distributed(TorchCase):
    def dcp_cases(self):
        skipped = ("pt_t211_nontensors",)  # each container holds it as one value: tested by convert_fixture_test.py
        return [f for f in all_fixtures() if not f.refused and f.name not in skipped]

    def test_dcp_to_torch_reads_it(self):
        """PyTorch's converter turns our directories into the same nested dict."""
        for number, fixture in enumerate(self.dcp_cases()):
            with self.subTest(fixture.name):
                shards = 1 + number % 4
                directory = self.convert(fixture.input, f"{fixture.name}-dcp", *fixture.options(), "--to", "dcp", "--shards", str(shards))
                # PyTorch writes a file only for ranks that have something to write.
                self.assertLessEqual(len(list(directory.glob("*.distcp"))), shards)
                dcp_to_torch_save(directory, self.folder / "all.pt")
                self.assert_holds(torch.load(self.folder / "all.pt", weights_only=False), fixture)
                fsdp_cli.shutil.rmtree(directory)

    def test_dcp_load_into_a_state_dict(self):
        fixture = next(f for f in all_fixtures() if f.name == "local_t241_ws2_gpt_uop")
        directory = self.convert(fixture.input, "uop", *fixture.options(), "--to", "dcp", "--shards", "4")
        state = {name: torch.full(shape, math.nan) for name, (_, shape, _) in fixture.tensors().items()}
        dcp.load(state, checkpoint_id=directory)
        for name, (_, _, data) in fixture.tensors().items():
            self.assertTrue(as_bytes(state[name]) == data, name)

    def test_torch_to_dcp_gives_the_same(self):
        """Our directory and PyTorch's, made from one .pt, have the same contents according to --verify."""
        for name in ("pt_t211_minimal_fsdp_vars", "pt_t211_rawoptim_int_keys", "pt_t241_llama_full"):
            with self.subTest(name):
                fixture = next(f for f in all_fixtures() if f.name == name)
                ours = self.convert(fixture.input, f"{name}-ours", "--to", "dcp")
                theirs = self.folder / f"{name}-theirs"
                dcp.format_utils.torch_save_to_dcp(fixture.input, theirs)
                result = fsdp_cli.run(PROGRAM, ["--verify", ours, theirs])
                self.assertEqual(result.code, 0, str(result))


class Safetensors(TorchCase):
    def test_library_reads_it(self):
        for fixture in all_fixtures():
            if fixture.refused:
                continue
            with self.subTest(fixture.name):
                path = self.convert(fixture.input, f"{fixture.name}.safetensors", *fixture.options())
                found = load_file(path)
                expected = fixture.tensors()
                self.assertEqual(sorted(found), sorted(expected))
                for name, (_, shape, data) in expected.items():
                    self.assertEqual(list(found[name].shape), shape, name)
                    self.assertTrue(as_bytes(found[name]) == data, name)


class Written(TorchCase):
    def test_every_dtype_of_torch(self):
        """State of the installed PyTorch, with all dtypes and kinds of views, passes through every format unchanged."""
        types = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
                 torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128]
        bytes_of = torch.arange(96, dtype=torch.uint8)
        state = {str(t): (bytes_of % 2).view(torch.bool) if t == torch.bool else bytes_of.clone().view(t) for t in types}
        big = torch.arange(5000.0).reshape(50, 100)
        state["views"] = {"t": big.t(), "step": big[::3, 1::7], "expand": big[:1].expand(4, 100), "flip": big.flip(0), "row": big[7],
                          "permuted": big.reshape(2, 25, 100).permute(2, 0, 1), "empty": big[:0], "scalar": big[3, 4]}
        source = self.folder / "types.pt"
        torch.save(state, source)
        again = torch.load(self.convert(source, "again.pt"), weights_only=True)
        self.assert_same(again, state)
        directory = self.convert(source, "types-dcp", "--to", "dcp", "--shards", "3")
        self.assert_same(torch.load(self.convert(directory, "back.pt"), weights_only=True), state)

    def assert_same(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for key, value in expected.items():
            if isinstance(value, dict):
                self.assert_same(found[key], value)
                continue
            self.assertEqual((found[key].dtype, found[key].shape), (value.dtype, value.shape), key)
            self.assertTrue(as_bytes(found[key]) == as_bytes(value), key)

    def test_protocols_and_containers(self):
        """Tests all pickle protocols that torch.save accepts, and both containers."""
        state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "step": 3, "note": "é" * 300, "many": list(range(300))}
        for protocol in (2, 3, 4, 5):
            for as_zip in (True, False):
                with self.subTest(protocol=protocol, zip=as_zip):
                    buffer = io.BytesIO()
                    torch.save(state, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=as_zip)
                    source = self.folder / f"protocol-{protocol}-{as_zip}.pt"
                    source.write_bytes(buffer.getvalue())
                    found = torch.load(self.convert(source, f"read-{protocol}-{as_zip}.pt"), weights_only=True)
                    self.assertTrue(torch.equal(found["model"]["w"], state["model"]["w"]))
                    self.assertEqual((found["step"], found["note"], found["many"]), (state["step"], state["note"], state["many"]))


class NotPlain(TorchCase):
    """Objects that users keep beside the weights, and files that hold no model."""

    def refused(self, *arguments):
        result = fsdp_cli.run(PROGRAM, arguments)
        self.assertEqual(result.code, 4, str(result))
        return result.err

    def test_values_that_are_not_read(self):
        weights = {"w": torch.arange(6.0).reshape(2, 3)}
        values = {"numpy": numpy.float64(1.5), "rng": numpy.random.RandomState(0).get_state(), "when": datetime.datetime(2026, 1, 2),
                  "kind": Kind.ONE, "keys": {(1, 2): torch.ones(1)}, "memo": collections.defaultdict(Kind, a=1)}
        for name, value in values.items():
            with self.subTest(name):
                source = self.folder / f"{name}.pt"
                torch.save({"model": weights, name: value, "step": 3}, source)
                for number, options in enumerate((["--model-only"], ["--exclude", name])):
                    found = torch.load(self.convert(source, f"{name}-{number}.pt", *options), weights_only=True)
                    self.assertTrue(torch.equal(found.get("model", found)["w"], weights["w"]))
                self.assertIn(f'"{name}"', self.refused(source, self.folder / "none.pt"))
                check = fsdp_cli.run(PROGRAM, ["--check", source, "--json"])
                self.assertEqual((check.code, check.json()["damage"], len(check.json()["not_read"])), (0, [], 1), str(check))
                shown = {v["name"]: v["value"] for v in fsdp_cli.run(PROGRAM, ["--inspect", source, "--json"]).json()["values"]}
                self.assertIn("__not_read__", shown[name])
                self.assertEqual(shown["step"], 3)

    def test_the_same_in_a_dcp_is_no_damage(self):
        directory = self.folder / "with-numpy"
        dcp.save({"model": {"w": torch.ones(2)}, "rng": numpy.random.RandomState(0).get_state()}, checkpoint_id=directory, no_dist=True)
        check = fsdp_cli.run(PROGRAM, ["--check", directory])
        self.assertEqual(check.code, 0, str(check))
        self.assertIn("not read: ", check.out)
        self.assertIn("numpy", check.out)

    def test_subclasses_of_tensors_are_refused_by_their_class(self):
        source = self.folder / "subclass.pt"
        torch.save({"w": torch.ones(2).as_subclass(Special)}, source)
        self.assertIn("Special", self.refused("--inspect", source))

    def test_nothing_to_convert(self):
        empty = self.folder / "empty.pt"
        torch.save({"module": {"a": torch.zeros(0), "b": torch.zeros(0)}, "ds_version": "0.19.8"}, empty)
        self.assertIn("DeepSpeed", self.refused(empty, self.folder / "out.safetensors", "--model-only"))
        torch.save({"step": 3}, empty)
        self.assertIn("no tensor", self.refused(empty, self.folder / "out.pt"))
        self.assertIn("no tensor", self.refused("--check", empty))
        torch.save({"w": torch.zeros(0, 3)}, empty)
        self.assertIn("1 tensor without an element", self.refused("--check", empty))
        folder = self.folder / "zero"
        (folder / "global_step1").mkdir(parents=True)
        (folder / "latest").write_text("global_step1\n")
        torch.save({}, folder / "global_step1" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
        for place in (folder, folder / "global_step1"):
            self.assertIn("DeepSpeed", self.refused(place, self.folder / "out.pt"))

    def test_keys_that_differ_in_their_type_alone(self):
        file = self.folder / "types.pt"
        torch.save({1: torch.ones(2), "1": torch.ones(2)}, file)
        self.assert_refused(fsdp_cli.run(PROGRAM, [file, self.folder / "x.pt"]), 4, "types.pt", "differ in their type alone")

    def test_a_second_model_is_told(self):
        file = self.folder / "averaged.pt"
        torch.save({"model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2), "b": torch.ones(2)}, "optimizer": {"w": torch.ones(2)}}, file)
        for more in (["--to", "hf"], ["--to", "torch", "--model-only"]):
            told = fsdp_cli.run(PROGRAM, [file, self.folder / f"of-{more[1]}", *more])
            self.assertEqual(told.code, 0, str(told))
            self.assertIn("left out: 2 tensors of 'ema', which is beside the model", told.err)
            self.assertNotIn("'optimizer'", told.err)

    def test_a_tied_model_stored_as_its_head(self):
        config = {"model_type": "qwen2", "tie_word_embeddings": True}
        (self.folder / "tied").mkdir()
        (self.folder / "tied" / "config.json").write_text(json.dumps(config))
        head = torch.arange(8.0).reshape(4, 2)
        torch.save({"model.norm.weight": torch.ones(2), "lm_head.weight": head}, self.folder / "head.pt")
        written = load_file(self.convert(self.folder / "head.pt", "tied-hf", "--to", "hf", "--config-from", self.folder / "tied") / "model.safetensors")
        self.assertEqual(sorted(written), ["model.embed_tokens.weight", "model.norm.weight"])
        self.assertTrue(torch.equal(written["model.embed_tokens.weight"], head))


class Kind(enum.Enum):
    ONE = 1


class Special(torch.Tensor):
    pass


if __name__ == "__main__":
    fsdp_cli.main()
