"""Compares lib/chess/rules with python-chess: the shipped games, random games with illegal moves, and random positions.
Usage: chess_rules_test.py PATH/TO/chess_lines DATA. FSDP_ALL=1: five times as many."""

import json
import os
import pathlib
import random
import subprocess
import sys

SKIPPED = 77

try:
    import chess
    import pyarrow.parquet as parquet
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)

CHESS_LINES, DATA = sys.argv[1], pathlib.Path(sys.argv[2])
SHARE = 1 if "FSDP_ALL" in os.environ else 5
WALKED = 5  # every fifth of the shipped games that are played is compared after each move
RANDOM_GAMES, RANDOM_POSITIONS = 400 // SHARE, 2000 // SHARE
# Terminations that a position alone does not show: repetitions, a claimed draw, a truncated game.
UNTOLD = ("THREEFOLD_REPETITION", "FIVEFOLD_REPETITION", "FIFTY_MOVES", "MAX_PLIES")
RESULTS = ("1-0", "0-1", "1/2-1/2", "*")
# Faults that make the rules inapplicable; python-chess also objects to positions that no game can reach.
UNUSABLE = (
    chess.STATUS_NO_WHITE_KING | chess.STATUS_NO_BLACK_KING | chess.STATUS_TOO_MANY_KINGS | chess.STATUS_EMPTY
    | chess.STATUS_PAWNS_ON_BACKRANK | chess.STATUS_OPPOSITE_CHECK | chess.STATUS_BAD_CASTLING_RIGHTS
    | chess.STATUS_INVALID_EP_SQUARE
)  # fmt: skip


def ask(questions):
    """Returns the answers' lines, split into fields."""
    text = "".join("\t".join(question) + "\n" for question in questions)
    done = subprocess.run([CHESS_LINES], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def outcome_of(board):
    outcome = board.outcome()
    # A position alone does not show repetitions.
    if outcome is None or outcome.termination.name == "FIVEFOLD_REPETITION":
        return "-"
    return f"{outcome.termination.name} {outcome.result()}"


def described(board):
    legal = " ".join(sorted(move.uci() for move in board.legal_moves))
    return [board.fen(), "check" if board.is_check() else "-", outcome_of(board), legal]


def same(found, expected, where):
    assert found == expected, f"{where}:\n  ours   {found}\n  theirs {expected}"


def check_walks(games):
    """Compares every position of the games, given as (FEN, moves)."""
    answers = iter(ask(("walk", fen, " ".join(moves)) for fen, moves in games))
    positions = 0
    for number, (fen, moves) in enumerate(games):
        board = chess.Board(fen)
        same(next(answers), described(board), f"game {number} before its first move")
        for ply, move in enumerate(moves, 1):
            board.push_uci(move)
            same(next(answers), described(board), f"game {number} after move {ply}, {move}")
        positions += len(moves) + 1
    assert next(answers, None) is None
    return positions


def shipped_games():
    for name in ("train", "validation"):
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()
        assert lines, f"no games in {name}.jsonl"
        yield from (json.loads(line)["text"].split() for line in lines)


def check_shipped_games():
    games = list(shipped_games())[::SHARE]
    answers = ask(("game", chess.STARTING_FEN, " ".join(moves)) for moves in games)
    assert len(answers) == len(games)
    for number, (moves, answer) in enumerate(zip(games, answers)):
        board = chess.Board()
        for move in moves:
            board.push_uci(move)  # raises if python-chess considers it illegal
        same(answer, [str(len(moves)), "-", board.fen(), outcome_of(board), ""], f"shipped game {number}")
    walked = check_walks([(chess.STARTING_FEN, moves) for moves in games[::WALKED]])
    print(f"{len(games)} shipped games legal; {walked} positions of every fifth have the same moves")


def check_results():
    """Compares the columns of the Parquet files with the rules' result of the last position."""
    for name in ("train", "validation"):
        rows = parquet.read_table(DATA / f"{name}.parquet").to_pylist()
        answers = ask(("game", chess.STARTING_FEN, " ".join([*row["Moves"], row["Result"]])) for row in rows)
        by_rule = 0
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            legal, result, _, outcome, problem = answer
            where = f"row {number} of {name}.parquet"
            same([legal, result, problem], [str(len(row["Moves"])), row["Result"], ""], where)
            if row["Termination"] in UNTOLD:
                same(outcome, "-", where)
            else:
                same(outcome, f"{row['Termination']} {row['Result']}", where)
                by_rule += 1
        assert by_rule > 0
        print(f"{name}.parquet: {by_rule} of {len(rows)} games end by a rule, the one that is named")


def is_rare(board, move):
    return board.is_castling(move) or board.is_en_passant(move) or move.promotion or board.gives_check(move)


def random_game(rng, board, plies):
    """Plays random moves; rare kinds of moves are chosen more often."""
    moves = []
    while len(moves) < plies:
        legal = list(board.legal_moves)
        if not legal:
            break
        rare = [move for move in legal if is_rare(board, move)]
        move = rng.choice(rare if rare and rng.random() < 0.5 else legal)
        board.push(move)
        moves.append(move.uci())
    return moves


def illegal_move(rng, board):
    """Returns an illegal move, and whether only the king's safety forbids it."""
    legal = {move.uci() for move in board.legal_moves}
    unsafe = {move.uci() for move in board.pseudo_legal_moves} - legal
    if unsafe and rng.random() < 0.5:
        return rng.choice(sorted(unsafe)), True
    while True:
        move = chess.Move(rng.randrange(64), rng.randrange(64), rng.choice([None, None, None, 2, 3, 4, 5])).uci()
        if move not in legal:
            return move, move in unsafe


def check_random_games():
    rng = random.Random(20)
    walks, games, expected, kinds = [], [], [], {"castling": 0, "en passant": 0, "promotion": 0, "over": 0, "unsafe": 0}
    for number in range(RANDOM_GAMES):
        moves = random_game(rng, chess.Board(), rng.randrange(10, 200))
        walks.append((chess.STARTING_FEN, moves))
        board = chess.Board()
        for move in moves[: rng.randrange(len(moves) + 1)]:
            parsed = chess.Move.from_uci(move)
            kinds["castling"] += board.is_castling(parsed)
            kinds["en passant"] += board.is_en_passant(parsed)
            kinds["promotion"] += parsed.promotion is not None
            board.push(parsed)
        kinds["over"] += board.is_game_over()
        played = [move.uci() for move in board.move_stack]
        wrong, unsafe = illegal_move(rng, board)
        kinds["unsafe"] += unsafe
        result = rng.choice(RESULTS)
        games.append([*played, wrong, *moves[len(played) :], result])
        why = "it leaves the {} king in check".format("white" if board.turn else "black")
        over = f"the game is over ({outcome_of(board).split()[0]})"
        problem = f"move {len(played) + 1} '{wrong}' is not legal here: "
        problem += (why if any(board.legal_moves) else over) if unsafe else ""
        expected.append(([str(len(played)), result, board.fen(), outcome_of(board)], problem))
    answers = ask(("game", chess.STARTING_FEN, " ".join(game)) for game in games)
    for number, (answer, (facts, problem)) in enumerate(zip(answers, expected, strict=True)):
        same(answer[:4], facts, f"random game {number}")
        assert answer[4].startswith(problem), f"random game {number}: {answer[4]}, not {problem}"
    walked = check_walks(walks)
    assert all(kinds.values()), kinds
    print(f"{RANDOM_GAMES} random games: {walked} positions have the same moves; before the illegal moves {kinds}")


def random_position(rng):
    """Returns random pieces on a board, mostly a playable position."""
    board = chess.Board(None)
    squares = rng.sample(range(64), rng.randrange(2, 24))
    for square, piece in zip(squares, (chess.Piece(chess.KING, True), chess.Piece(chess.KING, False))):
        board.set_piece_at(square, piece)
    for square in squares[2:]:
        kind = rng.choice([1, 1, 1, 2, 3, 4, 5] if 8 <= square < 56 or rng.random() < 0.02 else [2, 3, 4, 5])
        board.set_piece_at(square, chess.Piece(kind, rng.random() < 0.5))
    for side in (True, False):
        if rng.random() < 0.3 and len(squares) > 4:  # allow castling
            rank = 0 if side else 56
            board.remove_piece_at(board.king(side))
            board.set_piece_at(rank + 4, chess.Piece(chess.KING, side))
            board.set_piece_at(rank + rng.choice([0, 7]), chess.Piece(chess.ROOK, side))
            if board.king(not side) is None:
                board.set_piece_at(rng.randrange(16, 48), chess.Piece(chess.KING, not side))
    board.turn = rng.random() < 0.5
    fields = board.fen(en_passant="fen").split()
    rights = "".join(right for right in "KQkq" if rng.random() < 0.15) if rng.random() < 0.2 else rights_of(board)
    fields[2] = rights or "-"
    passed = [square for square in range(64) if passed_by_pawn(board, square)]
    fields[3] = chess.square_name(rng.choice(passed)) if passed and rng.random() < 0.7 else "-"
    if rng.random() < 0.05:
        fields[3] = chess.square_name(rng.randrange(64))
    fields[4], fields[5] = str(rng.choice([0, 3, 99, 149, 150, 151])), str(rng.randrange(1, 200))
    return " ".join(fields)


def rights_of(board):
    board.castling_rights = chess.BB_CORNERS
    return board.castling_xfen().replace("-", "")


def passed_by_pawn(board, square):
    up = 8 if not board.turn else -8
    pawn = chess.Piece(chess.PAWN, not board.turn)
    return chess.square_rank(square) == (5 if board.turn else 2) and board.piece_at(square + up) == pawn


def check_random_positions():
    rng = random.Random(21)
    fens = [random_position(rng) for _ in range(RANDOM_POSITIONS)]
    usable = []
    for fen, answer in zip(fens, ask(("fen", fen) for fen in fens), strict=True):
        board = chess.Board(fen)
        # python-chess drops castling rights without a rook.
        fits = not board.status() & UNUSABLE and board.castling_xfen() == fen.split()[2]
        same(answer[0], "ok" if fits else "error", f"{fen} ({answer[1]})")
        if fits:
            same(answer[1], board.fen(), fen)
            usable.append(fen)
    walks = [(fen, random_game(rng, chess.Board(fen), 3)) for fen in usable]
    walked = check_walks(walks)
    castling, en_passant = (sum(fen.split()[field] != "-" for fen in usable) for field in (2, 3))
    assert RANDOM_POSITIONS // 3 < len(usable) < RANDOM_POSITIONS and castling > 0 and en_passant > 0
    print(
        f"{RANDOM_POSITIONS} random positions: {len(usable)} usable, as python-chess says, {castling} of them with "
        f"castling rights and {en_passant} with an en-passant square; {walked} have the same moves"
    )


check_shipped_games()
check_results()
check_random_games()
check_random_positions()
