"""A Hugging Face hub on this machine for tests: the API, the files, and a storage host (another address, signed URLs).

It speaks real HTTP over sockets and can misbehave: `server.faults` is a list of functions that get the Request and may
return an Action. `server.log` has all requests and answers. Nothing leaves the loopback interface.
"""

import dataclasses
import functools
import hashlib
import http.server
import json
import socket
import ssl
import threading
import time
import urllib.parse

COMMIT = "6c284d1468fe6c413cf56183e69b194dcfa27fe6"
CHUNK = 16384


@functools.lru_cache(maxsize=256)
def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@functools.lru_cache(maxsize=256)
def sha256(content):
    return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass
class Repo:
    files: dict                      # path -> bytes
    commit: str = COMMIT
    refs: dict = dataclasses.field(default_factory=dict)  # more names of the commit than "main"
    large: int = 4096                # bytes from which a file is stored as LFS
    private: bool = False
    gated: bool = False

    def lfs(self, path):
        return len(self.files[path]) >= self.large

    def hash(self, path):
        content = self.files[path]
        return sha256(content) if self.lfs(path) else git_sha1(content)

    def entry(self, path):
        content = self.files[path]
        entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
        if self.lfs(path):
            entry["oid"] = git_sha1(b"version https://git-lfs.github.com/spec/v1\n" + self.hash(path).encode())
            entry["lfs"] = {"oid": self.hash(path), "size": len(content), "pointerSize": 134}
        return entry


@dataclasses.dataclass
class Request:
    host: str                        # "hub", "storage" or "proxy"
    path: str                        # decoded, without the query
    query: dict
    headers: dict                    # lower-case names
    file: str = ""                   # path in the repository, for requests of bytes
    range: tuple = None              # (first, last + 1) requested
    sent: int = 0                    # bytes of the body that were sent
    first: int = 0                   # position in the file of the first byte sent
    status: int = 0


@dataclasses.dataclass
class Action:
    """An answer in place of the correct one."""

    status: int = 0
    headers: dict = dataclasses.field(default_factory=dict)  # added to the correct ones, or replacing them
    body: bytes = None
    ignore_range: bool = False
    cut_after: int = None            # close the connection after so many bytes of the body
    stall_after: int = None          # send nothing more after so many bytes, but keep the connection
    damage: bool = False             # other bytes of the right length


class HubServer:
    """`with HubServer({("model", "org/name"): Repo(...)}) as hub:`"""

    def __init__(self, repos, token=None, page=1000, signed_seconds=3600.0, bytes_per_second=None, certificate=None):
        self.repos = repos
        self.token = token           # required by private and gated repositories
        self.page = page             # entries per page of a listing
        self.signed_seconds = signed_seconds
        self.bytes_per_second = bytes_per_second  # per connection
        self.certificate = certificate  # file with key and certificate: speak TLS
        self.renamed = {}            # old name -> new name
        self.faults = []
        self.log = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.servers = [self.listen(address, name)
                        for address, name in (("127.0.0.1", "hub"), ("127.0.0.2", "storage"), ("127.0.0.3", "proxy"))]

    def listen(self, address, name):
        handler = type("Handler", (Handler,), {"hub": self, "name": name})
        server = http.server.ThreadingHTTPServer((address, 0), handler)
        server.daemon_threads = True
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def url(self, index=0):
        return "%s://%s:%d" % ("https" if self.certificate else "http", *self.servers[index].server_address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def requests(self, file=None, host=None):
        with self.lock:
            return [r for r in self.log if (file is None or r.file == file) and (host is None or r.host == host)]

    def served(self, file=None):
        """Returns the bytes of files that were sent, in total."""
        return sum(r.sent for r in self.requests() if r.file and (file is None or r.file == file))

    def sign(self, kind, name, path):
        expires = repr(time.time() + self.signed_seconds)
        query = urllib.parse.urlencode({"kind": kind, "repo": name, "path": path, "expires": expires, "sig": "secret"})
        return f"{self.url(1)}/storage/blob?{query}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None
    name = ""

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except (ConnectionResetError, ssl.SSLError):
            pass  # the client was killed or does not trust this server

    def do_GET(self):
        target = urllib.parse.urlsplit(self.path)
        request = Request(self.name, urllib.parse.unquote(target.path), dict(urllib.parse.parse_qsl(target.query)),
                          {name.lower(): value for name, value in self.headers.items()})
        self.request_info = request
        with self.hub.lock:
            self.hub.log.append(request)
        asked = request.headers.get("range", "")
        if asked.startswith("bytes="):
            first, _, last = asked[len("bytes="):].partition("-")
            request.range = (int(first), int(last) + 1 if last else None)
        try:
            if self.name == "proxy":
                self.forward()
            elif self.name == "storage":
                self.storage(request)
            elif request.path.startswith("/api/"):
                self.api(request)
            else:
                self.resolve(request)
        except (BrokenPipeError, ConnectionResetError, socket.timeout):
            self.close_connection = True

    # --- answers -----------------------------------------------------------------------------------------------------
    def fault(self, request):
        for fault in self.hub.faults:
            action = fault(request)
            if action is not None:
                return action
        return None

    def answer(self, status, body=b"", headers=None):
        self.request_info.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, code, message=""):
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def authorization(self):
        """Returns None for anonymous requests; credentials in the address (Basic) belong to a proxy in front of the hub."""
        given = self.headers.get("Authorization")
        return None if given and given.startswith("Basic ") else given

    def repo(self, kind, name):
        """Returns the repository, or None after sending an error."""
        hub = self.hub
        given = self.authorization()
        if given is not None and given != f"Bearer {hub.token}":
            self.answer(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
            return None
        repo = hub.repos.get((kind, name))
        if repo is None or (repo.private and given is None):
            self.refuse(401 if given is None else 404, "RepoNotFound", "Repository not found")
            return None
        return repo

    def moved(self, kind_prefix, name):
        new = self.hub.renamed.get(name)
        if new is None:
            return False
        quoted = urllib.parse.quote(self.path[len(kind_prefix) + len(name):], safe="/?&=%")
        self.answer(307, b"moved", {"Location": kind_prefix + new + quoted})
        return True

    def api(self, request):
        action = self.fault(request)
        if action is not None and action.status:
            self.answer(action.status, action.body or b"", action.headers)
            return
        _, _, kinds, rest = request.path.split("/", 3)
        kind = kinds[:-1]
        marker = "/revision/" if "/revision/" in rest else "/tree/"
        name, _, revision = rest.partition(marker)
        if self.moved(f"/api/{kinds}/", name):
            return
        repo = self.repo(kind, name)
        if repo is None:
            return
        if revision not in {"main": 1, repo.commit: 1, **repo.refs}:
            self.refuse(404, "RevisionNotFound", "Invalid rev id: " + revision)
        elif marker == "/revision/":
            self.answer(200, json.dumps({"id": name, "sha": repo.commit}).encode())
        else:
            self.tree(request, repo)

    def tree(self, request, repo):
        entries = [{"type": "directory", "path": "folder", "size": 0, "oid": "0" * 40}]
        entries += [repo.entry(path) for path in sorted(repo.files)]
        start = int(request.query.get("cursor", 0))
        headers = {}
        if start + self.hub.page < len(entries):
            query = {**request.query, "cursor": start + self.hub.page}
            headers["Link"] = f'<{self.hub.url()}{request.path}?{urllib.parse.urlencode(query)}>; rel="next"'
        self.answer(200, json.dumps(entries[start:start + self.hub.page]).encode(), headers)

    def resolve(self, request):
        prefix, kind = ("/datasets/", "dataset") if request.path.startswith("/datasets/") else ("/", "model")
        name, _, rest = request.path[len(prefix):].partition("/resolve/")
        if self.moved(prefix, name):
            return
        repo = self.repo(kind, name)
        if repo is None:
            return
        revision, _, path = rest.partition("/")
        if repo.gated and self.authorization() is None:
            self.refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif path not in repo.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
        elif repo.lfs(path):
            self.answer(302, b"", {"Location": self.hub.sign(kind, name, path), "X-Repo-Commit": repo.commit,
                                   "X-Linked-Etag": f'"{repo.hash(path)}"', "X-Linked-Size": str(len(repo.files[path]))})
        else:
            request.file = path
            self.content(request, repo.files[path], {"ETag": f'"{repo.hash(path)}"', "X-Repo-Commit": repo.commit})

    def storage(self, request):
        query = request.query
        request.file = query.get("path", "")
        if query.get("sig") != "secret" or float(query["expires"]) < time.time():
            request.file = ""
            self.answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
            return
        repo = self.hub.repos[(query["kind"], query["repo"])]
        self.content(request, repo.files[query["path"]], {"ETag": '"anything"'})

    def content(self, request, content, headers):
        action = self.fault(request) or Action()
        if action.status:
            request.file = ""
            self.answer(action.status, action.body or b"", action.headers)
            return
        first, end, status = 0, len(content), 200
        if request.range and not action.ignore_range:
            first, end = request.range[0], min(request.range[1] or len(content), len(content))
            if first >= len(content):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
        body = content[first:end]
        if action.damage:
            body = bytes(b ^ 1 for b in body)
        request.status, request.first = status, first
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Accept-Ranges": "bytes", **headers,
                            **action.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.send_slowly(request, body, action)

    def send_slowly(self, request, body, action):
        begin, rate = time.monotonic(), self.hub.bytes_per_second
        for at in range(0, len(body), CHUNK):
            chunk = body[at:at + CHUNK]
            for limit in (action.cut_after, action.stall_after):
                if limit is not None:
                    chunk = chunk[:max(0, limit - at)]
            self.wfile.write(chunk)
            request.sent += len(chunk)
            if action.cut_after is not None and request.sent >= action.cut_after:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if action.stall_after is not None and request.sent >= action.stall_after:
                self.hub.closing.wait(60)
                self.close_connection = True
                return
            while rate and request.sent > rate * (time.monotonic() - begin) and not self.hub.closing.is_set():
                time.sleep(0.002)

    # --- a plain HTTP proxy --------------------------------------------------------------------------------------------
    def forward(self):
        target = urllib.parse.urlsplit(self.path)
        with socket.create_connection((target.hostname, target.port), timeout=10) as upstream:
            lines = [f"GET {target.path}{'?' + target.query if target.query else ''} HTTP/1.1", f"Host: {target.netloc}",
                     "Connection: close"]
            lines += [f"{name}: {value}" for name, value in self.headers.items()
                      if name.lower() not in ("host", "connection", "proxy-connection")]
            upstream.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
            while data := upstream.recv(65536):
                self.wfile.write(data)
        self.close_connection = True


def once(action, when):
    """Makes a fault that happens the first time `when(request)` holds."""
    return times(1, action, when)


def times(count, action, when):
    left = [count]
    lock = threading.Lock()

    def fault(request):
        with lock:
            if left[0] <= 0 or not when(request):
                return None
            left[0] -= 1
            return action
    return fault
