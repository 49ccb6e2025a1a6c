"""Histories at addresses: the same answers as from a folder, and nothing opened but the address."""

from __future__ import annotations

import functools
import http.server
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from logel.cli.console import history_at
from logel.data.contents import elsewhere
from logel.data.folder import MANIFEST, STAGES, HistoryWriter
from logel.data.history import LearningHistory
from logel.data.remote import Address, place_of
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import FormatError, OptionError, StorageError, TooLargeError
from logel.inference.infer import infer_reward
from logel.learners.tabular import SoftValueIteration, observe

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.fixture(scope="module")
def history() -> LearningHistory:
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    return observe(mdp, SoftValueIteration(), weights=weights, n_steps=3, n_episodes=5)


@pytest.fixture
def memory() -> Iterator[str]:
    files = fsspec.filesystem("memory")
    if files.exists("/bucket"):  # documentation that ran in the same process fills one, too
        files.rm("/bucket", recursive=True)
    yield "memory://bucket/run"
    files.rm("/", recursive=True)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; counts what is asked for, and misbehaves where it is told to."""

    asked: list[str]
    lies: dict[str, bytes]
    moved: dict[str, str]

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        self.asked.append(self.path)
        if name in self.moved:
            self.send_response(302)
            self.send_header("Location", self.moved[name])
            self.end_headers()
        elif name in self.lies:
            # No length is told, and it goes on as long as anyone listens.
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(self.lies[name])
            except (BrokenPipeError, ConnectionResetError):
                self.asked.append(f"left {name}")
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Served:
    """A web server of this machine, its folder and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        state = {"asked": [], "lies": {}, "moved": {}}
        self.handler = type("Handler", (Handler,), state)
        bound = functools.partial(self.handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self.url = f"http://127.0.0.1:{self.server.server_port}/run"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def served(tmp_path: Path, history: LearningHistory) -> Iterator[Served]:
    history.save(tmp_path / "run")
    served = Served(tmp_path)
    yield served
    served.server.shutdown()
    served.server.server_close()


def told(history: LearningHistory, **options: object) -> str:
    """An answer, to the last bit."""
    return infer_reward(history, method="two-step", gamma=0.9, **options).to_json()


def test_the_same_answer_from_a_folder_memory_a_file_address_and_a_web_server(
    served: Served, history: LearningHistory, memory: str, tmp_path: Path
) -> None:
    history.save(memory)
    places = [tmp_path / "run", (tmp_path / "run").as_uri(), memory, f"{served.url}/"]
    answers = {told(LearningHistory.load(place)) for place in places}
    assert len(answers) == 1


def test_stages_are_fetched_when_they_are_needed(served: Served) -> None:
    loaded = LearningHistory.load(served.url)
    assert served.handler.asked == [f"/run/{MANIFEST}", f"/run/{STAGES}"]
    _ = loaded[2]
    assert served.handler.asked[2:] == ["/run/stage-00002.safetensors"]


def test_workers_fetch_their_own_stages(served: Served) -> None:
    """A history sent elsewhere says where it is; what the workers need they ask the server for."""
    loaded = LearningHistory.load(served.url)
    sent = cloudpickle.dumps(loaded)
    assert len(sent) < 6000  # one stage alone has more
    assert served.url.encode() in sent
    alone = told(loaded)
    once = len(served.handler.asked)
    assert told(loaded, workers=2) == alone
    assert any(path.endswith(".safetensors") for path in served.handler.asked[once:])
    program = f"import pickle,sys; print(pickle.loads({sent!r})[1].n_steps)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(found.stdout) == loaded[1].n_steps, found.stderr


def test_what_is_in_memory_travels_with_the_work(history: LearningHistory, memory: str) -> None:
    history.save(memory)
    assert elsewhere(LearningHistory.load(memory).source) is None
    assert elsewhere(LearningHistory.load(memory).slice(1).source) is None


def test_a_writer_leaves_a_readable_history_at_every_moment(
    history: LearningHistory, memory: str
) -> None:
    with pytest.raises(ZeroDivisionError), HistoryWriter(memory) as writer:
        writer.append(history[0])
        writer.append(history[1])
        assert len(LearningHistory.load(memory)) == 2
        raise ZeroDivisionError
    assert not LearningHistory.load(memory).complete
    with pytest.raises(FormatError, match="already exists"):
        history.save(memory)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("simplecache::s3://bucket/run", "through other addresses"),
        ("s3://bucket/run::http://inside/", "through other addresses"),
        ("reference://x", "cannot be opened"),
        ("ssh://host/run", "cannot be opened"),
        ("github://org:repo@/run", "cannot be opened"),
        ("http://host/run?token=secret", "keys belong"),
        ("s3://bucket/../other", "leads upwards"),
        ("file://host/share", "names a machine"),
    ],
)
def test_addresses_that_are_refused(address: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        place_of(address)
    assert "secret" not in str(caught.value)


def test_no_password_is_told(memory: str) -> None:
    place = Address("http://me:secret@127.0.0.1:9/run")
    with pytest.raises(FormatError, match=r"cannot read http://127.0.0.1:9/run") as caught:
        place.read(MANIFEST)
    assert "secret" not in str(caught.value) + str(place)


def spoilt(folder: Path, **changes: object) -> None:
    """Change what the last line of a stage says."""
    path = folder / "run" / STAGES
    lines = path.read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), **changes})
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["../secret", "http://127.0.0.1/x", "a::b", "/etc/passwd"])
def test_files_name_nothing_that_is_opened(served: Served, tmp_path: Path, name: str) -> None:
    spoilt(tmp_path, file=name)
    with pytest.raises(FormatError, match="not a stage's file"):
        LearningHistory.load(served.url)
    assert served.handler.asked == [f"/run/{MANIFEST}", f"/run/{STAGES}"]


def test_sizes_are_compared_before_anything_is_fetched(served: Served, tmp_path: Path) -> None:
    spoilt(tmp_path, bytes=7)
    with pytest.raises(FormatError, match=r"stage 0: .* but 7 by"):
        _ = LearningHistory.load(served.url)[0]


def test_what_does_not_fit_in_the_budget_is_not_fetched(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = LearningHistory.load(served.url)
    monkeypatch.setenv("LOGEL_MEMORY", "1k")
    with pytest.raises(TooLargeError, match="stage 0"):
        _ = loaded[0]


@pytest.mark.parametrize("name", ["stage-00000.safetensors", MANIFEST])
def test_a_server_that_never_ends_is_left(
    served: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGEL_MEMORY", "1M")
    served.handler.lies[name] = b"x" * 2**16
    with pytest.raises(FormatError, match=r"goes on after|would take"):
        _ = LearningHistory.load(served.url)[0]


def test_redirections_are_not_followed(served: Served) -> None:
    loaded = LearningHistory.load(served.url)
    name = "stage-00000.safetensors"
    served.handler.moved[name] = f"{served.url}/stage-00001.safetensors"
    with pytest.raises(FormatError, match="answers 302"):
        _ = loaded[0]
    assert not any(path.endswith("00001.safetensors") for path in served.handler.asked)


def test_changed_bytes_are_refused(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "run" / "stage-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"stage 1: .*sha256"):
        _ = LearningHistory.load(served.url)[1]


def test_nothing_there_and_nobody_there(served: Served, memory: str) -> None:
    for address in (memory, f"{served.url}/nowhere"):
        with pytest.raises(FormatError, match=f"no {MANIFEST} in it"):
            LearningHistory.load(address)
    with pytest.raises(FormatError, match="cannot read"):
        LearningHistory.load("http://127.0.0.1:9/run")


def test_web_servers_take_no_history(history: LearningHistory, served: Served) -> None:
    with pytest.raises(OptionError, match="only shows histories"):
        history.save(served.url)


def test_a_store_that_takes_nothing_is_named(
    history: LearningHistory, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("quota exceeded")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", full)
    with pytest.raises(StorageError, match=r"cannot write memory://bucket/run/.*quota"):
        history.save(memory)


def test_shells_give_addresses_as_they_are() -> None:
    assert history_at("s3://bucket/run") == "s3://bucket/run"
    assert history_at("runs/one") == Path("runs/one")


def test_places_are_pickled_without_what_was_written() -> None:
    place = Address("memory://x")
    place._lines["stages.jsonl"] = b"line\n"
    again = pickle.loads(pickle.dumps(place))
    assert again == place and not again._lines


def test_a_store_without_its_package_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(OptionError, match=r"s3fs is not installed.*pip install s3fs"):
        LearningHistory.load("s3://bucket/run")
