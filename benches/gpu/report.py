"""The lines of all items: as they come, in two folders, and those of earlier calls."""

import json
import threading
from collections import Counter


def read(file):
    """The rows of `file`. A line that was cut when a run was ended is none."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


class Report:
    """The lines, in OUT and in the folder that outlives a call; `device` is the card's name."""

    def __init__(self, out, state, device):
        self.out, self.state, self.device = out / "rows.jsonl", state / "rows.jsonl", device
        self.lock = threading.Lock()
        self.failed = []
        rows = [row for row in read(self.state) if row.get("device") == device]
        # Items that were ok on this card, with their rows: they are not run again.
        self.done = {row["item"]: row for row in rows if row["status"] == "ok"}
        ends = Counter(row["item"] for row in rows if row["status"] != "begun")
        begins = Counter(row["item"] for row in rows if row["status"] == "begun")
        # Items that twice did not come to an end: they may take the machine along.
        self.lost = {item for item in begins if begins[item] - ends[item] >= 2}
        # A line that was cut must not take the next one along.
        self.append(self.state, "")

    def begin(self, name, item):
        row = {"slice": name, "item": item, "status": "begun", "device": self.device}
        self.append(self.state, json.dumps(row))

    def add(self, row):
        row["device"] = self.device
        line = json.dumps(row)
        with self.lock:
            if row["status"] == "ok":
                self.done[row["item"]] = row
            else:
                self.failed.append(row)
            self.append(self.out, line)
            self.append(self.state, line)
            print(json.dumps({key: row[key] for key in row if key != "output"}), flush=True)

    def append(self, file, line):
        try:
            with file.open("a") as appended:
                appended.write(line + "\n")
        except OSError as error:
            # A full disk: the line is in the text that the run prints.
            print(f"{file}: {error}", flush=True)
