"""--val-chess: the figures of fsdp-eval --chess at each validation, and --keep-best and --patience that use them."""

import json
import os
import struct

import chess_cli
import fsdp_cli
import numpy

VALIDATE = ["--eval-every", 2, "--max-steps", 6, "--lr", "3e-3", "--lr-schedule", "constant", "--max-seq-length", 64]


class ValidationChess(chess_cli.Case):
    """Trains a model that knows some games by heart and forgets them while it learns unrelated ids."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.player = cls.folder / "player"
        cls.learn("player", "--save-final-hf", cls.player)
        noise = numpy.random.default_rng(5).integers(300, 340, (24, 33))
        cls.noise = fsdp_cli.write_tokens(cls.folder / "noise.h5", noise)
        cls.held_out = fsdp_cli.write_tokens(cls.folder / "held-out.h5", noise[:6, ::-1].copy())

    def forget(self, name, *more, ranks=0, code=0):
        return self.tune(name, self.noise, *VALIDATE, *more, model=self.player, ranks=ranks, code=code)

    def records(self, name, key):
        return {r["step"]: r for r in fsdp_cli.records(self.run_directory(name)) if key in r}

    def best(self, name):
        return os.readlink(self.checkpoints(name) / "best")

    def state(self, name):
        return json.loads((self.checkpoints(name) / "latest" / "run.json").read_text())["state"]["validation"]

    def test_the_best_player_is_kept_while_the_loss_falls(self):
        data = ["--val-chess", self.data, "--val-chess-positions", 10, "--val-data", self.held_out]
        self.forget("by-loss", *data, "--keep-best", ranks=2)
        result = self.forget("by-chess", *data, "--keep-best", "chess_accuracy", "--final", "best", "--save-final-hf", self.folder / "hf", "--save-every", 2,
                             "--json", ranks=2)
        games, losses = self.records("by-chess", "chess_games"), {s: r["val_loss"] for s, r in self.records("by-chess", "val_loss").items()}
        accuracy = {step: r["chess_accuracy"] for step, r in games.items()}
        fsdp_cli.say(f"chess_accuracy {accuracy}, loss {losses}")
        self.assertEqual((max(accuracy, key=accuracy.get), min(losses, key=losses.get)), (2, 6), "the data is meant to be so")
        self.assertEqual((self.best("by-loss"), self.best("by-chess")), ("step-00000006", "step-00000002"))
        self.assertEqual(self.losses("by-chess"), self.losses("by-loss"), "games take no part in training")
        report = result.json()
        self.assertEqual((report["best_metric"], report["best_value"], report["best_step"], report["final"]), ("chess_accuracy", accuracy[2], 2, "best"))
        self.assertEqual(report["val_loss"], losses[6])
        self.assertRegex(result.err, r"(?m)^chess       2   next move 0\.\d{4} of 114 moves   legal [01]\.\d{4} of 10 positions   result \d\.\d{4}   \d+\.\d s   best$")
        state = self.state("by-chess")
        self.assertEqual((state["metric"], state["best_value"], state["count"]), ("chess_accuracy", accuracy[2], 114))
        # fsdp-eval computes the same figures for every checkpoint, also on other numbers of ranks.
        for step in (2, 4, 6):
            alone = self.evaluate(self.checkpoints("by-chess") / f"step-{step:08}", "--chess", self.data, "--chess-positions", 10, "--seq-len", 64, ranks=3)["chess"]
            self.assertEqual({"chess_accuracy": alone["accuracy"], "chess_legal": alone["legal"], "chess_result": alone["result_accuracy"],
                              "chess_moves": alone["moves"], "chess_games": alone["games"], "chess_positions": 10},
                             {k: v for k, v in games[step].items() if k.startswith("chess_")})
            if step == 6:
                self.assertEqual({k: v for k, v in report["chess"].items() if k != "seconds"}, {k: v for k, v in alone.items() if k not in ("seconds", "data")})
        exported = self.evaluate(self.folder / "hf", "--chess", self.data, "--seq-len", 64)["chess"]
        self.assertAlmostEqual(exported["accuracy"], accuracy[2], delta=0.05)  # rounded to bf16, the model's own dtype
        self.followed(accuracy)

    def followed(self, accuracy):
        """The figures appear in the runs' table, the terminal view and TensorBoard's file."""
        run = self.run_directory("by-chess")
        seen = fsdp_cli.run("fsdp-eval", ["--runs", run, "--watch"])
        self.assertIn(f"eval chess_accuracy {accuracy[6]:.4f}", seen.out)
        self.assertIn(f"from {accuracy[2]:.4f}, highest {accuracy[2]:.4f}", seen.out)
        told = fsdp_cli.run("fsdp-eval", ["--runs", run, self.run_directory("by-loss"), "--json"]).json()["runs"]
        self.assertEqual(told[0]["validation"]["chess_accuracy"], {"last": accuracy[6], "best": accuracy[2], "best_step": 2})
        self.assertEqual(told[0]["val_loss"], told[1]["val_loss"], "a loss, whatever decides")
        events = next(run.glob("events.out.tfevents.*")).read_bytes()
        for value in accuracy.values():
            self.assertIn(b"validation/chess_accuracy", events)
            self.assertIn(struct.pack("<f", value), events)

    def test_patience_and_requeues_go_by_it(self):
        options = ["--val-chess", self.data, "--val-chess-games", 6, "--keep-best", "chess_legal", "--val-chess-positions", 12, "--patience", 2]
        self.forget("waits", *options, "--max-steps", 2, ranks=2)
        first = self.state("waits")
        self.assertEqual((first["metric"], first["count"], first["best_step"]), ("chess_legal", 12, 2))
        result = self.tune("waits", self.noise, "--max-steps", 20, "--restart", "latest", model=self.player)
        legal = {step: r["chess_legal"] for step, r in self.records("waits", "chess_games").items()}
        self.assertEqual(sorted(legal), [2, 4, 6], "its games are the run's")
        self.assertEqual({r["chess_games"] for r in self.records("waits", "chess_games").values()}, {6})
        self.assertLessEqual(max(legal[4], legal[6]), legal[2], "the data is meant to be so")
        self.assertIn(f"step 6 of 20 is the last: 2 validations in a row had no chess_legal above {legal[2]:.4f}", result.err)
        self.assertEqual(self.best("waits"), "step-00000002")
        # With other games or another metric the values cannot be compared; the earlier best checkpoint stays.
        other = self.write("other.jsonl", self.texts[6:])
        back = self.tune("waits", self.noise, "--max-steps", 6, "--restart", self.checkpoints("waits") / "step-00000002", "--val-chess", other,
                         "--patience", 0, model=self.player)
        self.assertIn("the best is looked for anew", back.err)
        self.assertEqual((self.state("waits")["count"], self.state("waits")["best_step"] > 2), (12, True))
        self.assertTrue((self.checkpoints("waits") / "step-00000002").exists())
        more = self.tune("waits", self.noise, "--max-steps", 8, "--restart", "latest", "--keep-best", "chess_accuracy", "--patience", 0, model=self.player)
        self.assertIn("the best is looked for anew", more.err)
        self.assertEqual((self.best("waits"), self.state("waits")["metric"]), ("step-00000008", "chess_accuracy"))

    def test_games_that_vanish_after_the_start(self):
        games = self.write("gone.jsonl", self.texts)
        log = self.folder / "gone.log"
        process = fsdp_cli.start("fsdp-finetune", ["--model", self.player, "--train-data", self.noise, *VALIDATE, "--max-steps", 12, "--val-chess", games,
                                                        "--keep-best", "chess_legal", "--out-dir", self.runs, "--run-name", "gone", *fsdp_cli.COMMON], 2, log)
        fsdp_cli.wait_for(process, log, lambda: "chess       2 " in log.read_text())
        games.unlink()
        self.assertEqual(process.wait(), 0, log.read_text())
        self.assertEqual(len(self.records("gone", "chess_games")), 6)

    def test_evaluating_only(self):
        result = fsdp_cli.run("fsdp-finetune", ["--model", self.player, "--val-chess", self.data, "--max-epochs", -1, "--max-seq-length", 64, "--json", *fsdp_cli.COMMON], 2)
        self.assertEqual(result.code, 0, str(result))
        alone = self.evaluate(self.player, "--chess", self.data, "--seq-len", 64)["chess"]
        self.assertEqual(result.json()["chess"]["moves_right"], alone["moves_right"])

    def test_what_cannot_be_is_told_before_the_first_step(self):
        some = ["--val-chess", self.data]
        bad = self.write("bad.jsonl", self.texts[:1] * 300)
        bad.write_text(bad.read_text() + '{"no": "text"}\n')
        no_result = self.write("no-result.jsonl", [text for text in self.texts if "-" not in text])
        for more, code, words in ((["--keep-best", "chess_legal"], 2, ["--keep-best chess_legal needs --val-chess"]),
                                  ([*some, "--keep-best", "chess"], 2, ["--keep-best chess", "chess_accuracy, chess_legal, chess_result"]),
                                  ([*some, "--keep-best"], 2, ["--keep-best needs --val-data", "or --keep-best chess_legal"]),
                                  ([*some, "--keep-best", "chess_legal", "--val-chess-positions", 0], 2, ["--val-chess-positions"]),
                                  ([*some, "--val-chess-positions", -1], 2, ["--val-chess-positions", "-1"]),
                                  (["--val-chess-games", 3], 2, ["--val-chess-games needs --val-chess"]),
                                  (["--val-chess", self.folder / "no-such"], 4, ["no-such"]),
                                  (["--val-chess", self.write("none.jsonl", ["hello"])], 4, ["none.jsonl", "holds no game", "'hello'"]),
                                  (["--val-chess", bad], 4, ["bad.jsonl", "line 301"]),
                                  (["--val-chess", self.data, "--max-seq-length", 2], 2, ["no move of a game lies within 2 ids (--seq-len)"]),
                                  ([*some, "--keep-best", "chess_result", "--max-seq-length", 16], 2, ["12 games has a result", "within 16 ids (--seq-len)"]),
                                  ([*some, "--val-data", f"chess_legal={self.held_out}"], 2, ["chess_legal is no name of a set"]),
                                  (["--val-chess-positions", 5], 2, ["--val-chess-positions needs --val-chess"]),
                                  (["--val-chess", no_result, "--keep-best", "chess_result"], 2, ["no-result.jsonl", "4 games has a result"])):
            with self.subTest(more=more):
                self.assert_refused(self.forget("refused", *more, ranks=2, code=code), code, *words)
                self.assertFalse(self.run_directory("refused").exists(), "nothing is claimed")


fsdp_cli.main()
