"""Jobs, RPC, pub/sub and channels, each on the same SQLite file: no server.

`./script/demo` runs it. Each is an example of its own. Their data is in .demo/ways; each run starts
afresh.
"""

import os
import runpy
import shutil
import sys
from pathlib import Path

from demo import chapter

CHAPTERS = {
    "emails.py": "A background job: added, run, and its result",
    "maths.py": "RPC: a function in another process, called by name",
    "analytics.py": "Pub/sub: to every queue whose pattern matches the routing key",
    "orders.py": "Channels: consumers as methods of a class",
}


def main(folder: Path) -> None:
    programs = Path(__file__).parent.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    for number, (program, title) in enumerate(CHAPTERS.items(), start=6):
        chapter(str(number), title)
        runpy.run_path(str(programs / program), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/ways"))
