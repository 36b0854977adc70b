"""A hub on loopback: the HTTP API that huggingface_hub speaks to, for datasets, with git LFS and without Xet.

    with HubServer() as server:  # and HF_ENDPOINT=server.url
        rlx.push("cartpole", "hf://datasets/me/cartpole")

Written from the hub's API documentation (https://huggingface.co/docs/hub/api) and the LFS batch API. ``faults`` lets a
test answer any request in another way.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 50
_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Blob:
    """A file of a commit: content of its own, or an object of LFS."""

    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """Git's name of the blob, or the SHA-256 of the object."""
        if self.lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content, usedforsecurity=False).hexdigest()


@dataclass
class Repo:
    """A dataset repository: its commits, newest last, each a whole tree."""

    private: bool = False
    gated: bool = False
    commits: list[tuple[str, dict[str, Blob]]] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)

    def commit(self, files: dict[str, Blob], message: str, branch: str = "main") -> str:
        """Add a commit and return its id."""
        oid = hashlib.sha1(f"{len(self.commits)} {message} {sorted(files)}".encode()).hexdigest()
        self.commits.append((oid, files))
        self.branches[branch] = oid
        self.messages.append(message)
        return oid

    def at(self, revision: str) -> tuple[str, dict[str, Blob]] | None:
        """Return the commit that a branch or an id names."""
        wanted = self.branches.get(revision, revision)
        return next((each for each in self.commits if each[0] == wanted), None)


@dataclass
class Request:
    """A request, as faults and tests see it."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Fault:
    """Another answer: a status with headers, or a body that is cut after that many bytes."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


class HubServer:
    """The server.

    Args:
        token: what may read private repositories and write.

    Attributes:
        repos: by name, ``ORG/NAME``.
        objects: of LFS, by SHA-256.
        requests: all that came.
        faults: is asked first; None lets the request be answered.
        may_upload: False refuses all objects, as a full account does.
    """

    def __init__(self, token: str = "hf_secret") -> None:
        self.token = token
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: Callable[[Request], Fault | None] = lambda _: None
        self.lock = threading.RLock()
        server = self

        class Handler(_Handler):
            hub = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        """What HF_ENDPOINT has to say."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Return the content of a revision."""
        found = self.repos[repo].at(revision)
        assert found is not None
        return {path: blob.content for path, blob in found[1].items()}

    def add(self, repo: str, files: dict[str, bytes], *, private: bool = False, gated: bool = False) -> str:
        """Make a repository, or a commit in it, and return the commit's id."""
        with self.lock:
            made = self.repos.setdefault(repo, Repo(private, gated))
            before = made.at("main")
            tree = dict(before[1]) if before else {}
            for path, content in files.items():
                tree[path] = Blob(content, _is_large(content[:512]))
                if tree[path].lfs:
                    self.objects[tree[path].oid] = content
            return made.commit(tree, "add")


def _is_large(sample: bytes) -> bool:
    """Return whether the hub keeps a file as an object of LFS: one that is binary, or longer than a sample."""
    return b"\0" in sample or len(sample) >= 512


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cut: int | None = None

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        request = Request(self.command, self.path, dict(self.headers))
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        self.body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            self.hub.requests.append(request)
            fault = self.hub.faults(request)
        self.cut = fault.cut if fault else None
        if fault is not None and fault.cut is None:
            self._send(fault.status, b"", fault.headers)
            return
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        for method, pattern, answer in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in method:
                with self.hub.lock:
                    answer(self, **found.groupdict())
                return
        self._send(404, b"no such route")

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    # ---- answers

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if self.cut is None else body[: self.cut])
            if self.cut is not None:
                self.close_connection = True

    def _json(self, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _is_authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _repo(self, name: str) -> Repo | None:
        """Return a repository that whoever asks may read, or refuse."""
        found = self.hub.repos.get(name)
        if found is None or (found.private and not self._is_authorized()):
            self._refuse(404 if self._is_authorized() else 401, "RepoNotFound", "Repository not found")
            return None
        if found.gated and not self._is_authorized():
            self._refuse(401, "GatedRepo", f"Access to dataset {name} is restricted.")
            return None
        return found

    def _tree(self, repo: str, revision: str) -> tuple[str, dict[str, Blob]] | None:
        made = self._repo(repo)
        if made is None:
            return None
        found = made.at(revision)
        if found is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def _may_write(self) -> bool:
        if not self._is_authorized():
            self._refuse(401, "", "Invalid username or password.")
        return self._is_authorized()

    # ---- routes

    def create(self) -> None:
        if not self._may_write():
            return
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        if name in self.hub.repos:
            self._send(409, json.dumps({"url": f"{self.hub.url}/datasets/{name}"}).encode())
            return
        self.hub.repos[name] = Repo(private=bool(wanted.get("private")) or wanted.get("visibility") == "private")
        self.hub.repos[name].commit({".gitattributes": Blob(b"* text=auto\n", False)}, "initial commit")
        self._json({"url": f"{self.hub.url}/datasets/{name}", "name": name})

    def info(self, repo: str, revision: str = "main") -> None:
        found = self._tree(repo, revision)
        if found is not None:
            self._json(self._described(repo, *found))

    def _described(self, name: str, oid: str, files: dict[str, Blob]) -> dict[str, Any]:
        made = self.hub.repos[name]
        card = files["README.md"].content.decode() if "README.md" in files else ""
        tags = re.findall(r"^- (\S+)$", card.partition("tags:")[2].partition("\n---")[0], re.MULTILINE)
        return {
            "id": name,
            "author": name.split("/")[0],
            "sha": oid,
            "private": made.private,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": tags,
            "siblings": [{"rfilename": path} for path in sorted(files)],
        }

    def datasets(self) -> None:
        rows = [
            self._described(name, *found)
            for name, made in sorted(self.hub.repos.items())
            if self.query.get("author") in (None, name.split("/")[0])
            and self.query.get("search", "") in name
            and (found := made.at("main"))
            and (not made.private or self._is_authorized())
        ]
        if "filter" in self.query:
            rows = [row for row in rows if self.query["filter"] in row["tags"]]
        self._json(rows)

    def tree(self, repo: str, revision: str, below: str | None = None) -> None:
        found = self._tree(repo, revision)
        if found is None:
            return
        prefix = f"{below.strip('/')}/" if below and below.strip("/") else ""
        paths = sorted(path for path in found[1] if path.startswith(prefix))
        if prefix and not paths:
            self._refuse(404, "EntryNotFound", f"{below} does not exist")
            return
        first = int(self.query.get("cursor", 0))
        rows = [self._entry(path, found[1][path]) for path in paths[first : first + PAGE]]
        headers = {}
        if first + PAGE < len(paths):
            there = f"{self.hub.url}{urlsplit(self.path).path}?recursive=true&cursor={first + PAGE}"
            headers["Link"] = f'<{there}>; rel="next"'
        self._json(rows, headers)

    def _entry(self, path: str, blob: Blob) -> dict[str, Any]:
        row: dict[str, Any] = {"type": "file", "path": path, "size": len(blob.content), "oid": blob.oid}
        if blob.lfs:
            row["lfs"] = {"oid": blob.oid, "size": len(blob.content), "pointerSize": 134}
        return row

    def refs(self, repo: str) -> None:
        made = self._repo(repo)
        if made is not None:
            named = [
                {"name": name, "ref": f"refs/x/{name}", "targetCommit": oid} for name, oid in made.branches.items()
            ]
            tags = [ref for ref in named if ref["name"] in made.tags]
            self._json({"branches": [ref for ref in named if ref not in tags], "tags": tags, "converts": []})

    def tag(self, repo: str, revision: str) -> None:
        found = self._tree(repo, revision) if self._may_write() else None
        if found is not None:
            name = json.loads(self.body)["tag"]
            if name in self.hub.repos[repo].branches:
                self._send(409, b"exists")
                return
            self.hub.repos[repo].branches[name] = found[0]
            self.hub.repos[repo].tags.add(name)
            self._send(201)

    def paths_info(self, repo: str, revision: str) -> None:
        found = self._tree(repo, revision)
        if found is not None:
            wanted = (
                json.loads(self.body)["paths"]
                if self.body.startswith(b"{")
                else parse_qs(self.body.decode()).get("paths", [])
            )
            self._json([self._entry(path, found[1][path]) for path in wanted if path in found[1]])

    def preupload(self, repo: str, revision: str) -> None:
        if not self._may_write():
            return
        found = self._tree(repo, revision)
        if found is None:
            return
        answers = []
        for file in json.loads(self.body)["files"]:
            old = found[1].get(file["path"])
            sample = base64.b64decode(file["sample"])
            mode = "lfs" if _is_large(sample) else "regular"
            ignored = b"ignored" in (found[1].get(".gitignore") or Blob(b"", False)).content
            answers.append(
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": ignored, "oid": old.oid if old else None}
            )
        self._json({"files": answers})

    def batch(self, repo: str) -> None:
        if not self._may_write():
            return
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.objects:
                href = f"{self.hub.url}/lfs/{wanted['oid']}?signature=s3cret"
                verify = f"{self.hub.url}/datasets/{repo}.git/info/lfs/verify"
                answer["actions"] = {"upload": {"href": href}, "verify": {"href": verify}}
            objects.append(answer)
        self._json({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            self._send(400, b"checksum")
            return
        self.hub.objects[oid] = self.body
        self._send(200)

    def verify(self, repo: str) -> None:  # noqa: ARG002
        wanted = json.loads(self.body)
        kept = self.hub.objects.get(wanted["oid"])
        self._send(200 if kept is not None and len(kept) == wanted["size"] else 404)

    def validate_yaml(self) -> None:
        self._json({"errors": [], "warnings": []})

    def commit(self, repo: str, revision: str) -> None:
        if not self._may_write():
            return
        found = self._tree(repo, revision)
        if found is None:
            return
        lines = [json.loads(line) for line in self.body.splitlines() if line]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit") not in (None, found[0]):
            self._refuse(412, "", "A commit has happened since. Please refresh and try again.")
            return
        files = dict(found[1])
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                case "lfsFile":
                    if value["oid"] not in self.hub.objects:
                        self._send(400, b"missing object")
                        return
                    files[value["path"]] = Blob(self.hub.objects[value["oid"]], True)
                case "deletedFile":
                    if value["path"] not in files:
                        self._refuse(404, "EntryNotFound", "A file with this name doesn't exist")
                        return
                    del files[value["path"]]
        oid = self.hub.repos[repo].commit(files, header["summary"], revision)
        self._json({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/datasets/{repo}/commit/{oid}"})

    def resolve(self, repo: str, revision: str, name: str) -> None:
        found = self._tree(repo, revision)
        if found is None:
            return
        blob = found[1].get(name)
        if blob is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found[0]})
            return
        headers = {"X-Repo-Commit": found[0], "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        if blob.lfs:
            headers |= {"X-Linked-Size": str(len(blob.content)), "X-Linked-ETag": f'"{blob.oid}"'}
            # The name of another host, as of the hub's own storage: no token may follow.
            port = urlsplit(self.hub.url).port
            self._send(302, b"", {**headers, "Location": f"http://localhost:{port}/cdn/{blob.oid}?signature=s3cret"})
            return
        self._part(blob.content, headers)

    def cdn(self, oid: str) -> None:
        if self.headers.get("Authorization"):
            self._send(400, b"only one auth mechanism allowed")
            return
        self._part(self.hub.objects[oid], {"ETag": f'"storage-{oid[:8]}"', "Accept-Ranges": "bytes"})

    def _part(self, content: bytes, headers: dict[str, str]) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if found is None:
            self._send(200, content, headers)
            return
        start, stop = int(found[1]), min(int(found[2] or len(content) - 1) + 1, len(content))
        if start >= len(content):
            self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(206, content[start:stop], headers)


_ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("GET", "/api/datasets", _Handler.datasets),
    ("POST", "/api/validate-yaml", _Handler.validate_yaml),
    ("GET", rf"/api/datasets/{_REPO}", _Handler.info),
    ("GET", rf"/api/datasets/{_REPO}/revision/(?P<revision>[^/]+)", _Handler.info),
    ("GET", rf"/api/datasets/{_REPO}/tree/(?P<revision>[^/]+)(?P<below>/.*)?", _Handler.tree),
    ("GET", rf"/api/datasets/{_REPO}/refs", _Handler.refs),
    ("POST", rf"/api/datasets/{_REPO}/tag/(?P<revision>[^/]+)", _Handler.tag),
    ("POST", rf"/api/datasets/{_REPO}/paths-info/(?P<revision>[^/]+)", _Handler.paths_info),
    ("POST", rf"/api/datasets/{_REPO}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", rf"/api/datasets/{_REPO}/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", rf"/datasets/{_REPO}\.git/info/lfs/objects/batch", _Handler.batch),
    ("POST", rf"/datasets/{_REPO}\.git/info/lfs/verify", _Handler.verify),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", _Handler.upload),
    ("GETHEAD", rf"/datasets/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", _Handler.resolve),
    ("GETHEAD", r"/cdn/(?P<oid>[0-9a-f]{64})", _Handler.cdn),
]
