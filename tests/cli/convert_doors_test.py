"""Checkpoints of DeepSpeed, of Megatron-core and files per rank, as the libraries wrote them: every tensor equals theirs bit
for bit, and what is incomplete or belongs to two saves is refused. tests/fixtures/doors has a few; ../shared/fixtures/doors
all."""

import enum
import json
import pathlib
import pickle
import shutil
import sys
import tarfile
import types
import zipfile

import fsdp_cli
from convert_fixtures import PROGRAM, ConvertCase, read_safetensors

FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
SHARED = FIXTURES.resolve().parents[2] / "shared" / "fixtures" / "doors"
KINDS = ("ds_", "ranks_", "verl_", "skyrl_", "accel_fsdp2_ws2_nodcp", "mcore")


def expected(folder):
    """Returns the truth under the names of a conversion. Two libraries' files say less than the checkpoint: see below."""
    model = read_safetensors(folder / "expected.safetensors")
    optimizer = folder / "expected_optim.safetensors"
    states = read_safetensors(optimizer) if optimizer.exists() else {}
    masters = {name[len("optim.state."):-len(".fp32")]: value for name, value in states.items() if name.endswith(".fp32")}
    # Stage 0: the masters of a 16-bit run are the weights here, and the truth has them among the states.
    model.update(masters)
    if masters and "lm_head.weight" in model:
        model["lm_head.weight"] = model["transformer.wte.weight"]
    if folder.name == "ds_universal_z1_ws2":
        # DeepSpeed's folders have a tied head rounded to 16 bits and an integer as float32; the model file has the originals.
        model["lm_head.weight"] = model["transformer.wte.weight"]
        del model["num_batches"]
    return {**{f"model.{name}": value for name, value in model.items()},
            **{name: value for name, value in states.items() if not name.endswith((".fp32", ".step"))}}


class Doors(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name in ("doors", "megatron"):
            with tarfile.open(FIXTURES / "doors" / f"{name}.tar.xz") as archive:
                archive.extractall(cls.folder, filter="data")
        cls.doors = cls.folder / "doors"

    def copied(self, name, fixture):
        return pathlib.Path(shutil.copytree(self.doors / fixture / "ckpt", self.folder / name))

    def options(self, folder):
        """The vocabulary of a model of Megatron-core, which its checkpoint knows with padding only."""
        if not folder.name.startswith("mcore"):
            return []
        file = self.folder / f"{folder.name}.json"
        file.write_text(json.dumps({"vocab_size": json.loads((folder / "expected.json").read_text())["model"]["vocab_size"]}))
        return ["--model-config", file]

    def check(self, folder):
        options = self.options(folder)
        output = self.convert(folder / "ckpt", f"all/{folder.name}.safetensors", "--overwrite", *options)
        found = read_safetensors(output)
        truth = expected(folder)
        names = [name for name in found if name in truth or name.startswith("model.") or not name.endswith(".step")]
        others = sorted(set(names) - set(truth))
        self.assertTrue(all(name.startswith("rng.") or name == "model.num_batches" for name in others), f"{folder.name}: {others}")
        self.assert_same_tensors({name: found[name] for name in names if name not in others}, truth, folder.name)
        trained = {name.rsplit(".", 1)[0] for name in truth if name.startswith("optim.state.")}
        values = json.loads(output.with_suffix(".json").read_text()) if output.with_suffix(".json").exists() else {}
        for name in trained:
            self.assertTrue(f"{name}.step" in found or f"{name}.step" in values, f"{folder.name}: {name}")
        if trained:
            listed = [f"optim.state.{name}" for key, value in values.items() if key.endswith(".params") for name in value]
            self.assertEqual(sorted(listed), sorted(trained), folder.name)
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--check", folder / "ckpt", *options]).code, 0, folder.name)

    def test_every_fixture_equals_its_library(self):
        for folder in sorted(self.doors.iterdir()):
            if (folder / "ckpt").exists():
                with self.subTest(folder.name):
                    self.check(folder)

    def test_every_shared_fixture_equals_its_library(self):
        if not SHARED.is_dir():
            self.skipTest(f"{SHARED} is not there; tests/fixtures/doors has a few of its checkpoints")
        folders = [folder for folder in sorted(SHARED.iterdir()) if folder.name.startswith(KINDS)]
        for folder in folders:
            with self.subTest(folder.name):
                self.check(folder)
        fsdp_cli.say(f"{len(folders)} checkpoints of DeepSpeed, of Megatron-core and of files per rank compared")
        self.assertGreater(len(folders), 20)

    def test_other_formats_and_back(self):
        for name in ("ds_z3_ws3_fp32_gpt_frozen", "ranks_t211_ws4_tp"):
            source = self.doors / name / "ckpt"
            for output, options in (("full.pt", []), ("dcp", ["--to", "dcp", "--shards", "3"])):
                made = self.convert(source, f"{name}/{output}", *options)
                self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", source, made]).code, 0, f"{name}: {output}")
        half = self.convert(source, "half.safetensors", "--model-only", "--dtype", "bf16", "--exclude", "*.seen", "--rename", "^up=mlp")
        self.assertEqual(read_safetensors(half)["mlp.weight"][0], "BF16")

    # DeepSpeed

    def refused(self, source, *words):
        self.assert_refused(fsdp_cli.run(PROGRAM, [source, self.folder / "refused.pt"]), 4, *words)
        self.assertFalse((self.folder / "refused.pt").exists())

    def test_a_missing_rank_is_named(self):
        for fixture, step in (("ds_z2_ws3_bf16_tinygroup", "global_step2"), ("ds_z3_ws3_fp32_gpt_frozen", "global_step2")):
            folder = self.copied(f"missing-{fixture}", fixture)
            next((folder / step).glob("*zero_pp_rank_1*optim_states.pt")).unlink()
            self.refused(folder, "3 ranks", "rank 1", "missing")
        for rank in (1, 2):
            folder = self.copied(f"missing-frozen-{rank}", "ds_z3_ws3_fp32_gpt_frozen") / "global_step2"
            (folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").unlink()
            self.refused(folder, f"rank {rank} is missing", "frozen")
        folder = self.copied("missing-all", "ds_z2_ws3_bf16_tinygroup") / "global_step2"
        for path in folder.glob("*optim_states.pt"):
            path.unlink()
        self.refused(folder, "_optim_states.pt", "mp_rank_00_model_states.pt")
        folder = self.copied("missing-model", "ds_z2_ws3_bf16_tinygroup") / "global_step2"
        (folder / "mp_rank_00_model_states.pt").unlink()
        self.refused(folder, "_model_states.pt")

    def test_stale_ranks_are_passed_over_and_told(self):
        folder = self.copied("stale", "ds_z2_ws3_bf16_tinygroup") / "global_step2"
        shutil.copy(folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", folder / "bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt")
        result = fsdp_cli.run(PROGRAM, [folder, self.folder / "stale.safetensors"])
        self.assertEqual((result.code, "rank 7" in result.err), (0, True), str(result))
        result = fsdp_cli.run(PROGRAM, ["--verify", folder, self.doors / "ds_z2_ws3_bf16_tinygroup" / "expected.safetensors", "--model-only"])
        self.assertEqual(result.code, 0, str(result))

    def test_files_of_two_saves_are_refused(self):
        """A rank of another number of ranks, of another step, of another precision, and of another model."""
        two, three = self.doors / "ds_z1_ws2_bf16_gpt" / "ckpt" / "global_step3", "ds_z2_ws3_bf16_tinygroup"
        name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
        folder = self.copied("mixed-world", three) / "global_step2"
        shutil.copy(two / name, folder / name)
        self.refused(folder, "partition_count", name, "two saves")
        folder = self.copied("mixed-precision", three) / "global_step2"
        shutil.copy(folder / name, folder / name[len("bf16_"):])
        self.refused(folder, "same rank")
        folder = self.copied("mixed-model", "ds_z1_ws2_bf16_gpt") / "global_step3"
        shutil.copy(self.doors / three / "ckpt" / "global_step2" / "mp_rank_00_model_states.pt", folder)
        self.refused(folder, "groups")
        small = self.doors / "small"
        folder = pathlib.Path(shutil.copytree(small / "zero3", self.folder / "mixed-step"))
        other = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        data = other.read_bytes()
        number = b"\x00\x00\x00\x40"  # 2.0: an element of the masters, then the step
        at = data.find(number, data.find(number) + 4)
        other.write_bytes(without_checksums(data[:at] + b"\x00\x00\x40\x40" + data[at + 4:]))
        self.refused(folder, "step", "rank 1", "two saves")

    def test_other_parallelism_is_refused(self):
        for extra in ("mp_rank_01_model_states.pt", "layer_00-model_00-model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt"):
            folder = self.copied(f"parallel-{extra}", "ds_z1_ws2_bf16_gpt") / "global_step3"
            shutil.copy(folder / "mp_rank_00_model_states.pt", folder / extra)
            self.refused(folder, extra, "not read")

    def test_weights_of_a_trainer_beside_say_where_the_masters_are(self):
        """A checkpoint-N of transformers' Trainer with DeepSpeed may have 16-bit safetensors, too."""
        folder = self.copied("trainer", "ds_z1_ws2_bf16_gpt")
        shutil.copy(self.doors / "ds_z1_ws2_bf16_gpt" / "expected.safetensors", folder / "model.safetensors")
        result = fsdp_cli.run(PROGRAM, [folder, self.folder / "trainer.pt"])
        self.assertEqual((result.code, result.err.count("DeepSpeed")), (0, 1), str(result))

    def test_settings_of_other_optimizers(self):
        """A step in param_groups, a python step, and states that lie elsewhere than the masters."""
        try:
            import torch
        except ImportError as missing:
            self.skipTest(str(missing))
        shapes = {"w": torch.Size([3, 2]), "b": torch.Size([3])}
        model = {"module": {}, "buffer_names": [], "param_shapes": [shapes], "shared_params": {}, "ds_version": "0.19.8"}
        made = {"group": ([6, 6], {}, {"step": 17}), "python": ([6, 3], {"step": 17}, {}), "moved": ([5, 5], {}, {}), "other": ([7, 7], {}, {})}
        for name, (lengths, state, group) in made.items():
            folder = self.folder / f"optimizer-{name}"
            folder.mkdir()
            torch.save(model, folder / "mp_rank_00_model_states.pt")
            for rank in range(2):
                torch.save({"optimizer_state_dict": {
                    "partition_count": [2], "group_paddings": [3 * rank], "single_partition_of_fp32_groups": [torch.arange(6.0)[:6 - 3 * rank].clone()],
                    "base_optimizer_state": {"state": {0: {"exp_avg": torch.ones(lengths[rank]), **state}}, "param_groups": [{"params": [0], **group}]}}},
                    folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
            if name in ("moved", "other"):
                self.refused(folder, "exp_avg", "two saves")
                continue
            values = {value["name"]: value["value"] for value in fsdp_cli.run(PROGRAM, ["--inspect", "--json", folder]).json()["values"]}
            self.assertEqual((values["optim.state.w.step"], values["optim.state.b.step"]), (17, 17), name)

    def test_latest_may_not_lead_out(self):
        folder = self.copied("latest", "ds_z1_ws2_bf16_gpt")
        shutil.copytree(folder, self.folder / "outside")
        for text in ("../outside/global_step3", "..", "", "nowhere"):
            (folder / "latest").write_text(text)
            result = fsdp_cli.run(PROGRAM, ["--inspect", folder])
            self.assertEqual(result.code, 4, f"{text}: {result}")
        (folder / "latest").write_text("global_step3\n")
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--inspect", folder]).code, 0)

    def test_damage_is_found(self):
        folder = self.copied("damage", "ds_z3_ws3_fp32_gpt_frozen") / "global_step2"
        path = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        data = bytearray(path.read_bytes())
        data[data.find(b"PK\3\4", 4000) - 100] ^= 1  # inside a storage
        path.write_bytes(data)
        result = fsdp_cli.run(PROGRAM, ["--check", folder])
        self.assertEqual((result.code, path.name in result.out + result.err), (4, True), str(result))
        for cut in (0, 100, len(data) // 2):
            path.write_bytes(data[:cut])
            self.assertEqual(fsdp_cli.run(PROGRAM, ["--inspect", folder]).code, 4, cut)

    def test_training_goes_on(self):
        """Weights and optimizer of ZeRO: a restart from the folder equals one from its conversion, on any ranks."""
        source = self.doors / "ds_z1_ws2_bf16_gpt" / "ckpt"
        data = fsdp_cli.write_tokens(self.folder / "small.h5", fsdp_cli.random_tokens(width=9, vocab=61))
        full = self.convert(source, "z1.pt", "--exclude", "model.num_batches", "--exclude", "model.inv_freq")
        found = []
        for number, (start, ranks) in enumerate(((source, 3), (full, 1))):
            result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.runs, "--run-name", f"z{number}", "--max-steps", 6,
                                                    "--restart-checkpoint-file", start, "--num-heads", 2, "--total-batch-size", 6, "--batch-size",
                                                    6 // ranks, *fsdp_cli.COMMON], ranks=ranks)
            self.assertEqual(result.code, 0, str(result))
            self.assertIn("AdamW state of 3 steps", result.out + result.err)
            found.append([record["loss"] for record in fsdp_cli.steps(self.run_directory(f"z{number}"))])
        self.assertEqual(len(found[0]), 3)
        for a, b in zip(*found):
            self.assertAlmostEqual(a, b, delta=1e-4)

    def test_training_and_evaluation_take_a_trainers_folder(self):
        """Weights, optimizer and rate of checkpoint-4 of Hugging Face's Trainer, found in the folder above."""
        folder = FIXTURES / "trainers" / "hf_trainer_ws2" / "ckpt"
        data = fsdp_cli.write_tokens(self.folder / "trainer.h5", fsdp_cli.random_tokens(width=9, vocab=61))
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.runs, "--run-name", "trainer", "--max-steps", 6,
                                                "--restart-checkpoint-file", folder, "--total-batch-size", 4, "--batch-size", 2, *fsdp_cli.COMMON], ranks=2)
        self.assertEqual(result.code, 0, str(result))
        for words in ("step 4 (its 'trainer_state.global_step')", "AdamW state of 4 steps", "learning rate 0.01", "not taken of Hugging Face Trainer's"):
            self.assertIn(words, result.out + result.err)
        self.assertEqual([record["lr"] for record in fsdp_cli.steps(self.run_directory("trainer"))], [0.01, 0.01])
        exported = self.convert(folder, "trainer-hf", "--to", "hf")
        losses = [fsdp_cli.run("fsdp-eval", [model, "--data", data, "--json"]).json()["loss"] for model in (folder, folder / "checkpoint-4", exported)]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    # Megatron-core

    def megatron_as_hf(self, name):
        """Returns fixture and options, and a directory of transformers made of it."""
        folder = self.doors / name
        options = self.options(folder)
        return folder, options, self.convert(folder / "ckpt", f"hf-{name}", "--to", "hf", "--overwrite", *options)

    def test_megatron_to_transformers_and_back(self):
        for name in ("mcore016_tp2", "mcore_pp2", "mcore_tp1_dp2_bf16"):
            folder, options, hf = self.megatron_as_hf(name)
            truth = json.loads((folder / "expected.json").read_text())["model"]
            config = json.loads((hf / "config.json").read_text())
            self.assertEqual([config[key] for key in ("model_type", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                                                      "hidden_size", "intermediate_size", "head_dim", "rope_theta", "rms_norm_eps", "tie_word_embeddings")],
                             ["llama", truth["vocab_size"], truth["num_layers"], truth["num_attention_heads"], truth["num_query_groups"], truth["hidden_size"],
                              truth["ffn_hidden_size"], truth["hidden_size"] // truth["num_attention_heads"], truth["rotary_base"], 1e-5, False], name)
            megatron = self.convert(hf, f"megatron-{name}", "--to", "megatron")
            files = sorted(str(path.relative_to(megatron)) for path in megatron.rglob("*") if path.is_file())
            self.assertEqual(files, [".fsdp-export.json", "latest_checkpointed_iteration.txt",
                                     *(f"release/{file}" for file in (".metadata", "__0_0.distcp", "common.pt", "metadata.json"))])
            for a, b in ((hf, megatron), (megatron, hf), (megatron, folder / "expected.safetensors"), (folder / "ckpt", megatron / "release")):
                result = fsdp_cli.run(PROGRAM, ["--verify", a, b, "--model-only", *options])
                self.assertEqual(result.code, 0, f"{name}: {a} {b} {result}")
        again = self.convert(hf, f"megatron-{name}", "--to", "megatron", "--overwrite")
        (again / "release" / "note").write_text("mine")
        self.assert_refused(fsdp_cli.run(PROGRAM, [hf, again, "--to", "megatron", "--overwrite"]), 2, "release/note")

    def test_megatron_with_its_optimizer_in_16_bits(self):
        """Masters and moments stay as they are, on any number of ranks; the weights are rounded beside them."""
        folder = self.doors / "mcore016_tp2"
        made = self.convert(folder / "ckpt", "megatron16", "--to", "megatron", "--dtype", "bf16", "--shards", "2", *self.options(folder))
        self.assertEqual((made / "latest_checkpointed_iteration.txt").read_text(), "2")
        self.assertTrue((made / "iter_0000002" / "__1_0.distcp").exists())
        found = read_safetensors(self.convert(made, "megatron16.safetensors"))
        self.assert_same_tensors(found, expected(folder), "in 16 bits")
        values = json.loads((self.folder / "megatron16.json").read_text())
        self.assertEqual([values[key] for key in ("iteration", "optim.param_groups.0.lr", "optim.state.lm_head.weight.step")], [2, 0.001, 2])
        stored = read_safetensors(self.convert(made, "stored.safetensors", "--map", "none"))
        self.assertEqual(stored["decoder.layers.mlp.linear_fc1.weight"][:2], ("BF16", [1, 40, 16]))

    def test_megatron_args_of_unknown_classes(self):
        """A value of a class is left out and told; nothing is imported."""
        folder = self.copied("megatron-enum", "mcore016_tp2")
        module = types.ModuleType("megatron_enums")
        module.ModelType = enum.Enum("ModelType", "encoder_or_decoder", module=module.__name__)
        sys.modules[module.__name__] = module
        args = types.SimpleNamespace(num_attention_heads=4, num_query_groups=2, rotary_base=10000, model_type=module.ModelType.encoder_or_decoder)
        common = folder / "iter_0000002" / "common.pt"
        with zipfile.ZipFile(common, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("common/data.pkl", pickle.dumps({"args": vars(args), "iteration": 2, "kind": args.model_type}, protocol=2))
            archive.writestr("common/version", "3\n")
        del sys.modules[module.__name__]
        result = fsdp_cli.run(PROGRAM, [folder, self.folder / "enum.safetensors"])
        self.assertEqual((result.code, "kind" in result.err), (0, True), str(result))
        values = json.loads((self.folder / "enum.json").read_text())
        self.assertEqual((values["args"], "kind" in values), ({"num_attention_heads": 4, "num_query_groups": 2, "rotary_base": 10000}, False))

    def test_megatron_sizes_that_nobody_tells(self):
        folder = self.copied("megatron-bare", "mcore016_tp2") / "iter_0000002"
        (folder / "common.pt").unlink()
        self.assert_refused(fsdp_cli.run(PROGRAM, [folder, self.folder / "refused.pt"]), 2, "heads", "--model-config")
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--inspect", folder]).code, 0)
        self.convert(folder, "bare.pt", "--map", "none")
        (folder.parent / "latest_checkpointed_iteration.txt").write_text("3")
        self.refused(folder.parent, "latest_checkpointed_iteration.txt", "torch_dist")
        (folder.parent / "latest_checkpointed_iteration.txt").write_text("../other")
        self.refused(folder.parent, "latest_checkpointed_iteration.txt")
        other = self.folder / "other.json"
        other.write_text(json.dumps({"num_attention_heads": 8}))
        self.assert_refused(fsdp_cli.run(PROGRAM, [self.doors / "mcore016_tp2" / "ckpt", self.folder / "refused.pt", "--model-config", other]), 2,
                            "num_attention_heads", "other.json")

    def test_training_goes_on_from_megatron(self):
        """A restart from the folder, with the vocabulary of --model, equals one from its conversion, on any ranks."""
        folder, options, hf = self.megatron_as_hf("mcore016_tp2")
        data = fsdp_cli.write_tokens(self.folder / "megatron.h5", fsdp_cli.random_tokens(width=9, vocab=67))
        full = self.convert(folder / "ckpt", "megatron.pt", *options)
        found = []
        for number, (start, ranks) in enumerate(((folder / "ckpt", 3), (full, 1))):
            result = fsdp_cli.run("fsdp-finetune", ["--train-data", data, "--out-dir", self.runs, "--run-name", f"m{number}", "--max-steps", 4,
                                                    "--restart-checkpoint-file", start, "--model", hf, "--total-batch-size", 6, "--batch-size",
                                                    6 // ranks, *fsdp_cli.COMMON], ranks=ranks)
            self.assertEqual(result.code, 0, str(result))
            self.assertIn("AdamW state of 2 steps", result.out + result.err)
            found.append([record["loss"] for record in fsdp_cli.steps(self.run_directory(f"m{number}"))])
        self.assertEqual(len(found[0]), 2)
        for a, b in zip(*found):
            self.assertAlmostEqual(a, b, delta=1e-4)

    # Files per rank

    def test_ranks_that_are_missing_renamed_or_of_another_world(self):
        fixture = "verl_fsdp1_ws2_dtensor"
        folder = self.copied("rank-missing", fixture)
        (folder / "model_world_size_2_rank_1.pt").unlink()
        self.refused(folder, "2 ranks", "rank 1", "missing")
        for fixture in ("verl_fsdp1_ws2_dtensor", "ranks_t26_fsdp2_ws4_hsdp"):
            folder = self.copied(f"rank-renamed-{fixture}", fixture)
            one, two = (next(folder.glob(f"model_world_size_*_rank_{rank}.pt")) for rank in (0, 1))
            moved = folder / "moved"
            one.rename(moved), two.rename(one), moved.rename(two)
            self.refused(folder, "renamed")
        folder = self.copied("rank-worlds", "verl_fsdp1_ws2_dtensor")
        other = self.doors / "ranks_t211_ws4_tp" / "ckpt"
        for path in other.iterdir():
            shutil.copy(path, folder)
        result = fsdp_cli.run(PROGRAM, ["--inspect", folder])
        self.assertEqual((result.code, result.out.count("world size  2")), (0, 1), str(result))
        (folder / "fsdp_config.json").unlink()
        self.refused(folder, "2 and of 4 ranks")
        (folder / "model_world_size_4_rank_3.pt").unlink()
        result = fsdp_cli.run(PROGRAM, ["--inspect", folder])
        self.assertEqual((result.code, result.out.count("world size  2")), (0, 1), str(result))

    def test_one_ranks_file_alone(self):
        self.refused(self.doors / "ranks_t211_ws4_tp" / "ckpt" / "model_world_size_4_rank_0.pt", "DTensor", "folder")

    def test_the_config_beside_goes_along(self):
        output = self.convert(self.doors / "verl_fsdp1_ws2_dtensor" / "ckpt", "hf", "--to", "hf", "--exclude", "model.model.calib",
                              "--exclude", "model.model.seen", "--exclude", "model.model.mask")
        self.assertEqual(json.loads((output / "config.json").read_text())["model_type"], "llama")


def without_checksums(data):
    """Returns a torch.save archive with "no CRC recorded"."""
    data = bytearray(data)
    at = data.find(b"PK\1\2")
    while at >= 0:
        data[at + 16:at + 20] = bytes(4)
        at = data.find(b"PK\1\2", at + 4)
    return bytes(data)


if __name__ == "__main__":
    fsdp_cli.main()
