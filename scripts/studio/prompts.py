"""Write the studio's prompt files again (they are committed; a test holds them to this).

python scripts/studio/prompts.py
"""

from pathlib import Path

from marble.studio.world.grammar import SOURCES
from marble.studio.world.prompts import SPLIT_SEEDS, file_of, file_text

TARGET = Path(__file__).parents[2] / "src" / "marble" / "studio" / "prompts"


def main() -> None:
    for source in SOURCES:
        for split in SPLIT_SEEDS:
            path = TARGET / file_of(source, split)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file_text(source, split))
            print(f"{len(path.read_text().splitlines()):5d}  {file_of(source, split)}")


if __name__ == "__main__":
    main()
