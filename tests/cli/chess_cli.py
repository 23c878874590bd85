"""Chess games that a small Llama partly learns by heart."""

import json

import fsdp_cli
import llama_cli


class Case(llama_cli.Case):
    """Provides openings of 4 to 15 moves, two of three with a result, as `self.texts` and in the file `self.data`."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        games = [json.loads(line)["text"].split() for line in cls.games.read_text().splitlines()[:12]]
        results = ["1-0", "0-1", "1/2-1/2"]
        cls.texts = [" ".join(game[:4 + i] + ([results[i % 3]] if i % 3 else [])) for i, game in enumerate(games)]
        cls.data = cls.write("games.jsonl", cls.texts)

    @classmethod
    def write(cls, name, texts):
        path = cls.folder / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    @classmethod
    def learn(cls, name, *more):
        """Trains on the games; returns the newest checkpoint."""
        result = fsdp_cli.run("fsdp-finetune", ["--model", cls.model, "--train-data", cls.data, "--documents", "--max-seq-length", 128, "--out-dir", cls.runs, "--run-name", name,
                                                "--max-steps", 60, "--batch-size", 6, "--lr", "6e-3", *more, *fsdp_cli.COMMON], 2)
        assert result.code == 0, str(result)
        return cls.runs / name / "checkpoints" / "latest"
