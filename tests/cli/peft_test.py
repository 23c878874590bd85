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
    from safetensors.torch import load_file

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
