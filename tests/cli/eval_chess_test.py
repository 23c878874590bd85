"""fsdp-eval --chess: next moves against greedy generation, legality against python-chess, files without games."""

import json

import chess_cli
import fsdp_cli


class Chess(chess_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.checkpoint = cls.learn("chess")

    def chess(self, *more, data=None, ranks=0, checkpoint=None):
        return self.evaluate(checkpoint or self.checkpoint, "--chess", data or self.data, *more, ranks=ranks)["chess"]

    def next_word(self, before):
        """Returns the word that the model generates greedily after these moves."""
        report = self.evaluate(self.checkpoint, "--prompt", before, "--temperature", 0, "--num-tokens", 12)
        return (report["text"].split() or [""])[0]

    def test_accuracy_is_that_of_greedy_generation(self):
        chosen = self.texts[:5]
        right = moves = results = results_right = 0
        for text in chosen:
            words = text.split()
            for i in range(1, len(words)):  # the first move would need an empty prompt, which is not allowed
                same = self.next_word(" ".join(words[:i])) == words[i]
                if "-" in words[i]:
                    results, results_right = results + 1, results_right + same
                else:
                    moves, right = moves + 1, right + same
        report = self.chess(data=self.write("chosen.jsonl", chosen))
        fsdp_cli.say(f"{right} of {moves} moves right, {results_right} of {results} results")
        self.assertTrue(0.1 < right / moves < 0.95, "the test needs both kinds")
        self.assertEqual((report["moves"] - 5, report["results"]), (moves, results))
        self.assertIn(report["moves_right"] - right, range(0, 6), "the first moves are scored too")
        self.assertEqual(report["results_right"], results_right)

    def test_one_answer_for_all_ranks_and_batch_sizes(self):
        reports = []
        for ranks, batch in ((0, 8), (1, 1), (2, 3), (3, 8)):
            report = self.chess("--batch-size", batch, "--chess-positions", 15, ranks=ranks)
            report.pop("seconds")
            reports.append(report)
        for report in reports[1:]:
            self.assertEqual(report, reports[0])
        first = reports[0]
        self.assertEqual((first["games"], first["games_skipped"], first["positions"]), (12, 0, 15))
        self.assertEqual(first["moves"], sum(4 + i for i in range(12)), "with the beginning mark the first move counts too")
        self.assertAlmostEqual(first["accuracy"], first["moves_right"] / first["moves"], delta=1e-12)
        self.assertLess(first["accuracy_interval"][0], first["accuracy"])
        self.assertAlmostEqual(first["legal"] * 15, 15 - first["illegal"] - first["not_a_move"], delta=1e-9)
        self.assertLess(first["positions_generated"], 15, "where it writes the game's move, nothing is generated")
        self.assertEqual(first["results"], 8)

    def test_games_stand_in_the_table_of_benchmarks(self):
        (self.folder / "rows.jsonl").write_text('{"q": "e2e4", "c": ["e7e5", "d7d5"], "a": 0}\n' * 3)
        task = {"task": "replies", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test",
                "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "c", "doc_to_target": "a"}
        (self.folder / "replies.json").write_text(json.dumps(task))
        files = []
        for more in (["--tasks", self.folder / "replies.json"], []):
            report = self.evaluate(self.checkpoint, "--chess", self.data, "--chess-positions", 10, *more)
            chess = report["results"]["chess"]
            self.assertEqual((chess["accuracy,none"], chess["legal,none"], chess["result,none"], chess["sample_len"]),
                             (report["chess"]["accuracy"], report["chess"]["legal"], report["chess"]["result_accuracy"], 12))
            self.assertEqual(chess["accuracy_stderr,none"], report["chess"]["accuracy_standard_error"])
            files.append(self.folder / f"{len(files)}.json")
            files[-1].write_text(json.dumps(report))
        table = fsdp_cli.run("fsdp-eval", ["--results", *files])
        self.assertEqual(table.code, 0, str(table))
        value = f"{chess['accuracy,none']:.4f} ± {chess['accuracy_stderr,none']:.4f}"
        self.assertRegex(table.out, rf"(?m)^\|chess +\|none +\| +\|accuracy ↑ *\| *{value}\| *{value}\|$")
        self.assertRegex(table.out, r"(?m)^\|replies *\|none +\|")

    def test_legality_of_what_is_generated(self):
        try:
            import chess
        except ImportError as missing:
            self.skipTest(str(missing))
        chosen = self.texts[:4]
        # More positions than the games have: all are tested.
        report = self.chess("--chess-positions", 10000, data=self.write("legal.jsonl", chosen), ranks=2)
        self.assertEqual(report["positions"], report["moves"])
        for mistake in report["mistakes"]:
            board = chess.Board()
            for move in mistake["game"].split():
                board.push_uci(move)
            self.assertNotIn(mistake["wrote"], [m.uci() for m in board.legal_moves])
        legal = total = 0
        for text in chosen:
            words = [w for w in text.split() if "-" not in w]
            for i in range(1, len(words)):
                board = chess.Board()
                for move in words[:i]:
                    board.push_uci(move)
                total += 1
                legal += self.next_word(" ".join(words[:i])) in [m.uci() for m in board.legal_moves]
        self.assertIn(report["positions"] - report["illegal"] - report["not_a_move"] - legal, range(0, 5), "the first moves are the difference")

    def test_positions_follow_the_seed(self):
        base = self.chess("--chess-positions", 6, "--seed", 1)
        self.assertEqual({k: v for k, v in self.chess("--chess-positions", 6, "--seed", 1).items() if k != "seconds"},
                         {k: v for k, v in base.items() if k != "seconds"})
        legal = {self.chess("--chess-positions", 6, "--seed", seed)["positions_generated"] for seed in range(2, 7)}
        self.assertGreater(len(legal), 1, "other seeds, other positions")
        none = self.chess("--chess-positions", 0)
        self.assertEqual((none["positions"], none["legal"], none["accuracy"]), (0, None, base["accuracy"]))

    def test_a_model_that_writes_no_moves(self):
        report = self.chess("--chess-positions", 10, checkpoint=self.model)
        self.assertEqual((report["positions_generated"], report["not_a_move"]), (10, 10))
        self.assertEqual(report["legal"], 0)
        self.assertGreater(report["legal_interval"][1], 0.2, "10 positions say little")
        self.assertEqual(len(report["mistakes"]), 5)

    def test_games_that_are_none_are_left_out_and_named(self):
        bad = ["e2e4 e7e5 e1g1", "no moves here", "", "e2e4 e7e5", "1-0"]
        report = self.chess(data=self.write("bad.jsonl", [self.texts[0], *bad, self.texts[1]]), ranks=2)
        self.assertEqual((report["games"], report["games_skipped"]), (3, 4))
        self.assertIn("line 2", report["first_skipped"])
        self.assertIn("move 3 'e1g1' is not legal here", report["first_skipped"])
        none = self.evaluate(self.checkpoint, "--chess", self.write("none.jsonl", ["hello"]), ranks=2, code=4)
        self.assert_refused(none, 4, "none.jsonl", "holds no game", "'hello'")
        self.assert_refused(self.evaluate(self.checkpoint, "--chess", self.folder / "no-such", ranks=2, code=4), 4, "no-such")
        self.assert_refused(self.evaluate(self.checkpoint, "--chess", self.train_data, ranks=2, code=4), 4, "train.h5")
        broken = self.folder / "broken.jsonl"
        broken.write_text(json.dumps({"text": self.texts[0]}) + "\n" + '{"text": 5}\n')
        self.assert_refused(self.evaluate(self.checkpoint, "--chess", broken, ranks=2, code=4), 4, "line 2")

    def test_games_longer_than_the_limit(self):
        whole = self.chess()
        cut = self.chess("--seq-len", 30, ranks=2)
        self.assertEqual(cut["moves"] + cut["moves_not_scored"], whole["moves"])
        self.assertTrue(0 < cut["moves_not_scored"] < whole["moves"] and 0 < cut["games_cut"] < 12)
        # One beginning mark and at most 5 ids per move.
        self.assertGreaterEqual(cut["moves"], 4 * 12)
        self.assertIsNone(self.chess("--seq-len", 2)["accuracy"], "no move fits")

    def test_other_files(self):
        text = self.folder / "games.txt"
        text.write_text("\n".join(self.texts) + "\n\n")
        jsonl = self.chess()
        jsonl.pop("seconds"), jsonl.pop("data")
        plain = self.chess(data=text, ranks=2)
        plain.pop("seconds"), plain.pop("data")
        self.assertEqual(plain, jsonl)
        text.write_text("\n".join(self.texts[:3] + ["", "e2e5"]))
        self.assertIn("games.txt: line 5", self.chess(data=text)["first_skipped"])
        parquet = fsdp_cli.folder("FSDP_DATA") / "chess" / "validation.parquet"
        lines = self.chess("--max-rows", 4, "--chess-positions", 0, data=self.validation)
        if (fsdp_cli.folder("FSDP_BIN").parent / "lib" / "libfsdp_parquet.so").exists():
            columns = self.chess("--max-rows", 4, "--chess-positions", 0, data=parquet)
            self.assertEqual(columns["moves_right"], lines["moves_right"])
            self.assertEqual(columns["games"], 4)

    def test_in_words(self):
        result = fsdp_cli.run("fsdp-eval", [self.checkpoint, "--chess", self.data, "--seq-len", 40, *fsdp_cli.COMMON], ranks=2)
        self.assertEqual(result.code, 0, str(result))
        for pattern in (r"^chess next move 0\.\d{4}   \(95 %: 0\.\d{4} to \d\.\d{4}\)   \d+ of \d+ moves in 12 games",
                        r"legal +\d\.\d{4} .* of \d+ positions; \d+ illegal, \d+ no move", r"moves of \d+ games lie beyond"):
            self.assertRegex(result.out, pattern)


if __name__ == "__main__":
    fsdp_cli.main()
