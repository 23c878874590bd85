"""Shared by the tests of model families: the fixtures' models, results of transformers, and the fixtures' rows as data."""

import json

import fsdp_cli
import llama_cli

# Float32 sums in another order; losses of the fixtures' float32 and numpy's float64 differ by 1e-6.
TOLERANCE = 5e-6
FAMILIES = ["mistral_window", "mistral_full", "qwen2_tied", "qwen2_untied", "qwen2_window", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_scaled", "gpt2",
            "phi3", "phi3_partial", "olmo2"]
# For costly products: FSDP_ALL=1 tries all families, else one of each kind of block.
SOME = FAMILIES if fsdp_cli.ALL else ["mistral_window", "qwen3", "gemma3", "gpt2", "phi3", "olmo2"]


def folder_of(model):
    return fsdp_cli.folder("FSDP_FIXTURES") / "families" / model


def expected(model):
    return json.loads((folder_of(model) / "expected.json").read_text())


def truth(model, case="a"):
    return expected(model)["cases"][case]["f32"]


class Case(llama_cli.Case):
    def documents(self, model, case="a"):
        """Returns the rows of a case without padding; all tokens are targets."""
        inputs = json.loads((folder_of(model) / "inputs.json").read_text())[case]
        rows = [[t for t, m in zip(ids, mask) if m] for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"])]
        return llama_cli.write_documents(self.folder / f"{model}-{case}.h5", rows)

    def convert(self, *arguments):
        result = fsdp_cli.run("fsdp-ckpt-convert", [*arguments, "--quiet"])
        self.assertEqual(result.code, 0, str(result))
