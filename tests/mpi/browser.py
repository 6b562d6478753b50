"""Headless Chromium, driven by the DevTools protocol over a pipe (https://chromedevtools.github.io/devtools-protocol).

Chromium reads commands from file descriptor 3 and writes answers and events to descriptor 4. Each is one JSON object,
ended by a zero byte.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import launch

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND")
ANSWER_SECONDS = 30


def find():
    """The path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page. Use it in a `with` statement: the end of the block ends all its processes."""

    def __init__(self, program):
        self.mark = launch.new_mark()
        self.profile = tempfile.TemporaryDirectory(prefix="weir-browser-", ignore_cleanup_errors=True)
        commands_out, self.commands = os.pipe()
        self.answers, answers_in = os.pipe()
        words = [program, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        redirect = f'exec "$@" 3<&{commands_out} 4>&{answers_in}'
        self.process = subprocess.Popen(["bash", "-c", redirect, "browser", *words], pass_fds=(commands_out, answers_in),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "HOME": self.profile.name, launch.MARK: self.mark},
                                        start_new_session=True)
        os.close(commands_out)
        os.close(answers_in)
        self.unread = b""
        self.last_id = 0
        self.events = []
        self.session = None
        target = next(it for it in self.call("Target.getTargets")["targetInfos"] if it["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)
        os.close(self.answers)
        launch.end_marked(self.mark)
        self.process.wait()
        self.profile.cleanup()

    def receive(self, deadline):
        """The next answer or event."""
        while b"\0" not in self.unread:
            readable, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self.answers, 1 << 16) if readable else b""
            if not more:
                raise TimeoutError(f"Chromium sent no answer in {ANSWER_SECONDS} s, or has ended")
            self.unread += more
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        """Sends a command and returns its result. Events that arrive meanwhile stay in `events`."""
        self.last_id += 1
        command = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while (message := self.receive(deadline)).get("id") != self.last_id:
            self.events.append(message)
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def open(self, path, width, height=900):
        """Opens a file in a window of `width` CSS pixels. Returns when it is loaded and its scripts have run."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + ANSWER_SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive(deadline))

    def errors(self):
        """Uncaught script errors, and errors on the console and in the log, since the page was opened."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(parameters["exceptionDetails"])
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert"):
                    found.append(parameters["args"])
                case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                    found.append(parameters["entry"])
        return found

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")
