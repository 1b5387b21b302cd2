"""A stand-in for a model hub on loopback: its file list, its files, and its faults."""

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_the_tests"
API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/?]+))?(?:\?.*)?$")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")
CDN = "/cdn/"
LFS_SUFFIXES = (".safetensors", ".gguf", ".bin")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class StandIn:
    """What the hub has, what it does wrong, and what it was asked."""

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repos = {name: dict(files) for name, files in repos.items()}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.cuts: dict[str, list[int]] = {}  # name -> bytes to send before hanging up
        self.lies: dict[str, bytes] = {}  # name -> what is sent instead
        self.etags: dict[str, str] = {}  # name -> what is said instead
        self.status: int | None = None  # of every answer
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.tokens: dict[str, set[str]] = {"hub": set(), "cdn": set()}
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fetched(self) -> Counter[str]:
        """How often each file's content was asked for."""
        return Counter(
            path.rpartition("/")[2]
            for method, path, _ in self.asked
            if method == "GET"
            and path.startswith(CDN) == path.endswith(LFS_SUFFIXES)
            and not API.match(path)
        )

    def ranges(self, name: str) -> list[str]:
        """Ranges that were asked of one file."""
        return [r for _, path, r in self.asked if r is not None and path.endswith(name)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    @property
    def hub(self) -> StandIn:
        server = self.server
        assert isinstance(server, _Server)
        return server.hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.hub.asked.append((self.command, self.path, self.headers.get("Range")))
        self.hub.tokens["cdn" if self.path.startswith(CDN) else "hub"].add(token)
        if self.hub.status is not None:
            self._send(self.hub.status, b"", {})
        elif found := API.match(self.path):
            if self._may(found[1], found[2] or "main", token):
                self._send(200, self._info(found[1]), {"Content-Type": "application/json"})
        elif found := RESOLVE.match(self.path):
            if self._may(found[1], found[2], token):
                self._resolve(found[1], found[3])
        elif self.path.startswith(CDN):
            repo, _, name = self.path.removeprefix(CDN).rpartition("/")
            self._content(name, self.hub.repos[repo][name], {})
        else:
            self._refuse(404, "EntryNotFound")

    def _may(self, repo: str, revision: str, token: str) -> bool:
        if repo not in self.hub.repos or (repo in self.hub.private and token != TOKEN):
            self._refuse(401, "RepoNotFound")
        elif repo in self.hub.gated and token != TOKEN and not self.path.startswith("/api"):
            self._refuse(401, "GatedRepo")
        elif revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _info(self, repo: str) -> bytes:
        siblings = []
        for name, content in self.hub.repos[repo].items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content)}
            entry["blobId"] = git_sha1(content)
            if name.endswith(LFS_SUFFIXES):
                entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        found = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": []}
        return json.dumps(found | {"private": False, "downloads": 0, "likes": 0}).encode()

    def _resolve(self, repo: str, name: str) -> None:
        content = self.hub.repos[repo].get(name)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": COMMIT}
        if not name.endswith(LFS_SUFFIXES):
            self._content(name, content, headers | {"ETag": f'"{git_sha1(content)}"'})
            return
        etag = self.hub.etags.get(name, sha256(content))
        # As the real one: another host has the content, and must not see the token.
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        headers["Location"] = f"http://localhost:{self.hub.port}{CDN}{repo}/{name}"
        self._send(302, b"", headers)

    def _content(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        content = self.hub.lies.get(name, content)
        begin, status = 0, 200
        if found := re.match(r"bytes=(\d+)-$", self.headers.get("Range", "")):
            begin, status = int(found[1]), 206
            headers = headers | {
                "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"
            }
        cuts = self.hub.cuts.get(name)
        cut = cuts.pop(0) if cuts and self.command == "GET" else None
        self._send(status, content[begin:], headers, cut)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: StandIn) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        hub.port = self.server_address[1]


@contextmanager
def serving(hub: StandIn) -> Iterator[StandIn]:
    """The hub, for as long as the block lasts."""
    with _Server(hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
