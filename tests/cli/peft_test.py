"""peft opens the adapters that fsdp-finetune writes and computes the same losses as fsdp-eval; transformers opens what --merge-adapter makes."""

import json
import os

import fsdp_cli
import llama_cli
from convert_fixtures import ConvertCase

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import numpy
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

FIXTURES = fsdp_cli.folder("FSDP_FIXTURES")
VARIANTS = {"lora": [], "rslora": ["--rslora", "--lora-targets", "q_proj,v_proj,down_proj"], "dora": ["--dora", "--lora-targets", "k_proj,up_proj"],
            "whole": ["--modules-to-save", "lm_head,norm", "--trainable-tokens", "3,9,5", "--lora-rank-pattern", "down_proj=2", "--lora-alpha-pattern", "layers.0.self_attn.q_proj=3"]}


def open_model(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()


class Peft(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = llama_cli.make_snapshot(cls.folder / "model", tokenizer=False, dtype="F32")

    def loss_of(self, model):
        """Computes the loss as fsdp-eval does: nats per token over all rows of val.h5."""
        with fsdp_cli.h5py.File(self.val_data) as file:
            ids = torch.from_numpy(file["input_ids"][:].astype(numpy.int64))
        with torch.no_grad():
            scores = model(input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1).double(), ids[:, 1:].flatten()).item()

    def test_adapters_of_a_run(self):
        before = self.loss_of(open_model(self.model))
        for name, options in VARIANTS.items():
            with self.subTest(name):
                self.train(name, "--model", self.model, "--precision", "fp32", "--max-steps", 4, "--lr", "1e-2", "--lr-schedule", "constant",
                           "--lora-rank", 4, "--lora-alpha", 8, *options, ranks=2)
                adapter = self.run_directory(name) / "adapter"
                ours = self.evaluate(self.model, "--adapter", adapter, "--data", self.val_data)["loss"]
                self.assertGreater(abs(ours - before), 1e-3)
                theirs = peft.PeftModel.from_pretrained(open_model(self.model), adapter).eval()
                # Means of float32 losses over 2,000 tokens.
                self.assertAlmostEqual(self.loss_of(theirs), ours, delta=2e-5)
                merged = self.convert(self.model, f"merged-{name}", "--merge-adapter", adapter, "--to", "hf")
                self.assertAlmostEqual(self.loss_of(open_model(merged)), ours, delta=2e-5)
                weights = theirs.merge_and_unload().state_dict()
                for key, tensor in open_model(merged).state_dict().items():
                    self.assertLess((tensor - weights[key]).abs().max().item(), 2e-6, key)

    def adapter_of(self, model, ids, name, **choices):
        """Makes an adapter with peft. Returns its folder and the loss of the model in this process with the adapter."""
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=8, task_type="CAUSAL_LM", **choices)).eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for _, parameter in sorted(adapted.named_parameters()):
                if parameter.requires_grad:
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            loss = adapted(input_ids=ids, labels=ids).loss.item()
        adapted.save_pretrained(self.folder / name)
        return self.folder / name, loss

    def ids_of(self, most):
        ids = torch.randint(0, most, (2, 33), generator=torch.Generator().manual_seed(7))
        file = self.folder / f"ids-{most}.h5"
        with fsdp_cli.h5py.File(file, "w") as written:
            written.create_dataset("input_ids", data=ids.numpy().astype("uint16"))
        return ids, file

    def assert_all_agree(self, base, adapter, data, loss, *told):
        """fsdp-eval with the adapter, and with the model that it is merged into, have the loss of peft."""
        result = fsdp_cli.run("fsdp-eval", [base, "--adapter", adapter, "--data", data, "--json"])
        for words in told:
            self.assertIn(words, result.err)
        self.assertAlmostEqual(result.json()["loss"], loss, delta=5e-5)
        merged = self.convert(base, f"merged-{adapter.name}", "--merge-adapter", adapter, "--to", "hf")
        self.assertAlmostEqual(self.evaluate(merged, "--data", data)["loss"], loss, delta=5e-5)

    def test_head_and_embedding_with_one_adapter(self):
        torch.manual_seed(0)
        sizes = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
        transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, tie_word_embeddings=True)).save_pretrained(self.folder / "tied")
        ids, data = self.ids_of(48)
        for name in ("lm_head", "embed_tokens"):
            with self.subTest(name):
                adapter, loss = self.adapter_of(open_model(self.folder / "tied"), ids, f"both-{name}", target_modules=[name, "q_proj"], ensure_weight_tying=True)
                self.assert_all_agree(self.folder / "tied", adapter, data, loss)
        # Training would make two adapters of the one.
        result = fsdp_cli.run("fsdp-finetune", self.train_arguments("both", "--max-steps", 1, "--model", self.folder / "tied", "--adapter", adapter))
        self.assert_refused(result, 4, str(adapter), "ensure_weight_tying")
        tensors = {name: tensor for name, tensor in load_file(adapter / "adapter_model.safetensors").items() if "lm_head" not in name}
        save_file(tensors, adapter / "adapter_model.safetensors")
        self.convert(self.folder / "tied", "refused", "--merge-adapter", adapter, "--to", "hf", code=4)

    def small(self, family, **more):
        """Writes a random model without dropout."""
        torch.manual_seed(0)
        if family == "gpt2":
            config = transformers.GPT2Config(vocab_size=48, n_embd=16, n_layer=2, n_head=2, n_positions=48, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **more)
        else:
            config = transformers.FalconConfig(vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, bias=False, alibi=False, **more)
        folder = self.folder / "-".join([family, *more])
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    def test_a_trained_embedding_beside_an_adapter_of_the_tied_head(self):
        """The file has the embedding twice: the trained copy, and as the head's base, which it was."""
        model, (ids, data) = self.small("falcon", tie_word_embeddings=True), self.ids_of(48)
        adapter, loss = self.adapter_of(open_model(model), ids, "beside", target_modules=["lm_head"], modules_to_save=["word_embeddings"])
        self.assert_all_agree(model, adapter, data, loss)

    def test_a_trained_matrix_beside_an_adapter_of_the_head(self):
        """The file has the head's base, whose rows are the vocabulary's: other matrices keep theirs."""
        model, (ids, data) = self.small("falcon", tie_word_embeddings=False), self.ids_of(48)
        adapter, loss = self.adapter_of(open_model(model), ids, "matrix", target_modules=["lm_head"], modules_to_save=["dense"])
        self.assert_all_agree(model, adapter, data, loss)

    def test_embeddings_of_gpt2_and_falcon(self):
        gpt2, falcon = self.small("gpt2"), self.small("falcon", tie_word_embeddings=False)
        ids, data = self.ids_of(48)
        cases = {"positions": (gpt2, {"target_modules": ["wpe"]}), "ranks": (gpt2, {"target_modules": ["wpe", "c_attn"], "rank_pattern": {"wpe": 3}, "alpha_pattern": {"wpe": 5}}),
                 "rows": (gpt2, {"target_modules": ["c_attn"], "trainable_token_indices": {"wpe": [1, 40], "wte": [3]}}), "falcon": (falcon, {"target_modules": ["word_embeddings", "dense", "lm_head"]}),
                 "falcon-rows": (falcon, {"target_modules": ["dense"], "trainable_token_indices": [3, 2]})}
        for name, (model, choices) in cases.items():
            with self.subTest(name):
                adapter, loss = self.adapter_of(open_model(model), ids, name, **({"fan_in_fan_out": True} if model == gpt2 else {}), **choices)
                self.assert_all_agree(model, adapter, data, loss)
                self.assert_trains_alike(model, adapter, ids, data)

    def test_rows_of_tokens_beside_an_adapter_of_the_tied_head(self):
        """The rows are the head's, too, below its adapter; ensure_weight_tying says nothing of weights that are two."""
        torch.manual_seed(0)
        sizes = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
        ids, data = self.ids_of(48)
        for name, tied, choices in (("below", True, {"trainable_token_indices": [1, 5]}), ("two", False, {"ensure_weight_tying": True})):
            with self.subTest(name):
                model = self.folder / f"model-{name}"
                transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=tied)).save_pretrained(model)
                adapter, loss = self.adapter_of(open_model(model), ids, name, target_modules=["lm_head", "q_proj"], **choices)
                self.assert_all_agree(model, adapter, data, loss)
                self.assert_trains_alike(model, adapter, ids, data)

    def assert_trains_alike(self, model, adapter, ids, data):
        """Two steps of SGD have the losses of PyTorch with peft."""
        result = fsdp_cli.run("fsdp-finetune", ["--model", model, "--adapter", adapter, "--train-data", data, "--out-dir", self.runs, "--run-name", adapter.name, "--max-steps", 3, "--batch-size", 2, "--no-shuffle",
                                                "--optimizer", "sgd", "--lr", 0.5, "--lr-schedule", "constant", "--weight-decay", 0, "--clip-grad-norm", 0, "--precision", "fp32", "--no-save", "--device", "cpu",
                                                *(["--dropout", 0] if "gpt2" in model.name else [])])
        self.assertEqual(result.code, 0, str(result))
        theirs = peft.PeftModel.from_pretrained(open_model(model), adapter, is_trainable=True)
        optimizer = torch.optim.SGD([parameter for parameter in theirs.parameters() if parameter.requires_grad], lr=0.5)
        for ours in self.losses(adapter.name):
            loss = theirs(input_ids=ids, labels=ids).loss
            self.assertAlmostEqual(ours, loss.item(), delta=5e-5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def test_names_that_mean_no_module_to_save(self):
        model, (ids, data) = self.small("gpt2"), self.ids_of(48)
        adapter, loss = self.adapter_of(open_model(model), ids, "vain", target_modules=["c_attn"], modules_to_save=["score", "ln_f"], fan_in_fan_out=True)
        self.assert_all_agree(model, adapter, data, loss, "modules_to_save names no module of the base by 'score'")
        self.assert_trains_alike(model, adapter, ids, data)

    def test_weights_that_peft_ties_by_their_names(self):
        """ensure_weight_tying acts on embed_tokens and lm_head; what is called otherwise parts from the head."""
        model, (ids, data) = self.small("falcon", tie_word_embeddings=True), self.ids_of(48)
        for name in ("word_embeddings", "lm_head"):
            with self.subTest(name):
                adapter, loss = self.adapter_of(open_model(model), ids, f"tying-{name}", target_modules=["dense"], modules_to_save=[name], ensure_weight_tying=True)
                self.assert_all_agree(model, adapter, data, loss)
        # The adapter of a run that keeps them one says so in peft's words.
        result = fsdp_cli.run("fsdp-finetune", ["--model", model, "--train-data", data, "--out-dir", self.runs, "--run-name", "tied", "--max-steps", 2, "--lr", 0.1, "--lora-rank", 2, "--lora-targets", "dense",
                                                "--modules-to-save", "word_embeddings", "--ensure-weight-tying", "--precision", "fp32", "--device", "cpu"])
        self.assertEqual(result.code, 0, str(result))
        adapter = self.run_directory("tied") / "adapter"
        with torch.no_grad():
            loss = peft.PeftModel.from_pretrained(open_model(model), adapter).eval()(input_ids=ids, labels=ids).loss.item()
        self.assert_all_agree(model, adapter, data, loss)

    def test_adapters_that_a_model_cannot_have(self):
        """Programs that compute with an adapter refuse it by its name, as input; what a merge can take is told."""
        gpt2, falcon, data = self.small("gpt2"), self.small("falcon", tie_word_embeddings=False), self.ids_of(48)[1]
        words = ("--merge-adapter",)
        cases = {"dora-head": (falcon, {"target_modules": ["dense", "lm_head"], "use_dora": True, "layers_to_transform": [0]}, words, True),
                 "dora-positions": (gpt2, {"target_modules": ["wpe", "c_attn"], "use_dora": True}, ("transformer.wpe", "use_dora"), False),
                 "matrix": (gpt2, {"target_modules": ["c_attn"], "modules_to_save": ["c_fc"]}, ("modules_to_save", "transformer.h.0.mlp.c_fc.weight"), False),
                 # Its shape does not tell that transformers keeps it transposed.
                 "square": (gpt2, {"target_modules": ["c_attn"], "modules_to_save": ["attn.c_proj"]}, ("modules_to_save", "transformer.h.0.attn.c_proj.weight"), False),
                 "embedding": (gpt2, {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}, ("GPT-2",), False)}
        for name, (model, choices, told, merges) in cases.items():
            with self.subTest(name):
                adapter = self.adapter_of(open_model(model), self.ids_of(48)[0], name, **({"fan_in_fan_out": True} if model == gpt2 else {}), **choices)[0]
                for program, arguments in (("fsdp-eval", [model, "--data", data]), ("fsdp-finetune", ["--model", model, "--train-data", data, "--out-dir", self.runs, "--run-name", name, "--max-steps", 1])):
                    self.assert_refused(fsdp_cli.run(program, [*arguments, "--adapter", adapter]), 4, adapter, *told)
                result = fsdp_cli.run("fsdp-ckpt-convert", [model, self.folder / f"merged-{name}", "--merge-adapter", adapter, "--to", "hf"])
                self.assertEqual(result.code, 0, str(result)) if merges else self.assert_refused(result, 4, adapter)

    def test_adapters_of_a_multimodal_gemma3(self):
        torch.manual_seed(0)
        text = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}
        images = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
        config = transformers.Gemma3Config(text_config=text, vision_config=images, mm_tokens_per_image=4, image_token_index=47, boi_token_index=45, eoi_token_index=46)
        model = transformers.Gemma3ForConditionalGeneration(config)
        model.save_pretrained(self.folder / "gemma3")
        ids, data = self.ids_of(44)
        for name, targets, told in (("expression", r".*language_model.*[.](q_proj|v_proj)", ()), ("names", ["q_proj", "down_proj"], ("part for images are left out",))):
            with self.subTest(name):
                opened = transformers.Gemma3ForConditionalGeneration.from_pretrained(self.folder / "gemma3", dtype=torch.float32)
                adapter, loss = self.adapter_of(opened.eval(), ids, f"gemma3-{name}", target_modules=targets)
                self.assert_all_agree(self.folder / "gemma3", adapter, data, loss, *told)

    def test_logits_of_merged_fixtures(self):
        inputs = json.loads((FIXTURES / "training" / "lora" / "inputs.json").read_text())
        ids, mask = torch.tensor(inputs["input_ids"]), torch.tensor(inputs["attention_mask"])
        for variant in ("all", "qv_rslora_clip", "qv_dora"):
            with self.subTest(variant):
                adapter = FIXTURES / "training" / "lora" / variant
                merged = open_model(self.convert(FIXTURES / "numerics" / "llama_nano", f"nano-{variant}", "--merge-adapter", adapter, "--to", "hf"))
                expected = next(iter(load_file(adapter / "merged_logits.safetensors").values()))
                with torch.no_grad():
                    found = merged(input_ids=ids, attention_mask=mask).logits
                # The tolerance of the fixtures' README; padding positions do not count.
                self.assertLess(((found - expected).abs() * mask[..., None]).max().item(), 5e-5)


if __name__ == "__main__":
    fsdp_cli.main()
