"""Build the world's art: one sprite atlas and the sign fonts, from packages of the npm registry.

    python scripts/studio/art.py            # writes src/marble/studio/assets/world/

The result is committed, so this is needed only to change the art. It wants `npm` and the
`studio` extra (resvg-py). Licences: docs/credits.md.
"""

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import resvg_py
from PIL import Image

from marble.studio.world.language import CLASSES

TARGET = Path(__file__).parents[2] / "src" / "marble" / "studio" / "assets" / "world"
SPRITE_PX = 96  # longest side of a stored sprite: twice the largest size ever drawn
RASTER_PX = 384
COLUMNS = 8

FLUENT = "@iconify-json/fluent-emoji-flat@1.2.6"
NOTO = "@iconify-json/noto@1.2.9"

ICONS: dict[str, tuple[str, str]] = {
    "apple": (FLUENT, "red-apple"),
    "banana": (FLUENT, "banana"),
    "broccoli": (FLUENT, "broccoli"),
    "carrot": (NOTO, "carrot"),
    "pizza": (FLUENT, "pizza"),
    "donut": (FLUENT, "doughnut"),
    "cake": (FLUENT, "birthday-cake"),
    "car": (FLUENT, "automobile"),
    "bus": (FLUENT, "bus"),
    "train": (FLUENT, "locomotive"),
    "airplane": (FLUENT, "airplane"),
    "boat": (FLUENT, "sailboat"),
    "bicycle": (FLUENT, "bicycle"),
    "dog": (FLUENT, "dog-face"),
    "cat": (FLUENT, "cat-face"),
    "horse": (NOTO, "horse-face"),
    "cow": (FLUENT, "cow-face"),
    "sheep": (NOTO, "ewe"),
    "elephant": (FLUENT, "elephant"),
    "giraffe": (NOTO, "giraffe"),
    "bird": (NOTO, "bird"),
    "umbrella": (FLUENT, "umbrella"),
    "clock": (FLUENT, "alarm-clock"),
    "book": (FLUENT, "closed-book"),
    "chair": (FLUENT, "chair"),
    "laptop": (FLUENT, "laptop"),
    "cell phone": (FLUENT, "mobile-phone"),
    "scissors": (FLUENT, "scissors"),
    "backpack": (FLUENT, "backpack"),
    "handbag": (FLUENT, "handbag"),
    "kite": (FLUENT, "kite"),
    "sports ball": (NOTO, "soccer-ball"),
    "cup": (FLUENT, "hot-beverage"),
    "wine glass": (FLUENT, "wine-glass"),
    "potted plant": (FLUENT, "potted-plant"),
    "vase": (FLUENT, "amphora"),
    "traffic light": (FLUENT, "vertical-traffic-light"),
    "teddy bear": (FLUENT, "teddy-bear"),
}

# npm package -> font file inside it; all under the SIL Open Font License 1.1
FONTS: dict[str, str] = {
    "@expo-google-fonts/fredoka@0.4.1": "600SemiBold/Fredoka_600SemiBold.ttf",
    "@expo-google-fonts/lilita-one@0.4.1": "400Regular/LilitaOne_400Regular.ttf",
    "@expo-google-fonts/bree-serif@0.4.1": "400Regular/BreeSerif_400Regular.ttf",
    "@expo-google-fonts/oswald@0.4.2": "600SemiBold/Oswald_600SemiBold.ttf",
    "@expo-google-fonts/rubik@0.4.2": "700Bold/Rubik_700Bold.ttf",
}


def fetch(package: str, folder: Path) -> Path:
    """Download and unpack an npm package; returns its folder."""
    done = subprocess.run(
        ["npm", "pack", package, "--silent"], cwd=folder, check=True, capture_output=True, text=True
    )
    archive = folder / done.stdout.strip().splitlines()[-1]
    out = archive.with_suffix("")
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")
    return out / "package"


def raster(icons: dict, name: str) -> Image.Image:
    """One icon of an iconify set as a trimmed RGBA sprite."""
    icon = icons["icons"][name]
    w, h = (icon.get(k, icons.get(k, 16)) for k in ("width", "height"))
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {w} {h}" width="{w}" height="{h}">{icon["body"]}</svg>'
    )
    png = resvg_py.svg_to_bytes(svg_string=svg, width=RASTER_PX, height=RASTER_PX)
    image = Image.open(io.BytesIO(bytes(png))).convert("RGBA")
    image = image.crop(image.getchannel("A").point(lambda a: 255 * (a > 8)).getbbox())
    scale = SPRITE_PX / max(image.size)
    size = tuple(max(1, round(s * scale)) for s in image.size)
    # "RGBa" is premultiplied: the hidden colour of transparent pixels must not bleed in.
    return image.convert("RGBa").resize(size, Image.Resampling.LANCZOS).convert("RGBA")


def main() -> None:
    if set(ICONS) != set(CLASSES):
        raise SystemExit(f"ICONS and CLASSES differ: {set(ICONS) ^ set(CLASSES)}")
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        folders = {package: fetch(package, Path(tmp)) for package in (FLUENT, NOTO)}
        sets = {p: json.loads((f / "icons.json").read_text()) for p, f in folders.items()}
        rows = -(-len(CLASSES) // COLUMNS)
        atlas = Image.new("RGBA", (COLUMNS * SPRITE_PX, rows * SPRITE_PX))
        index = {}
        for i, name in enumerate(CLASSES):
            package, icon = ICONS[name]
            sprite = raster(sets[package], icon)
            x, y = i % COLUMNS * SPRITE_PX, i // COLUMNS * SPRITE_PX
            atlas.paste(sprite, (x, y))
            index[name] = {
                "box": [x, y, x + sprite.width, y + sprite.height],
                "from": f"{package.rpartition('@')[0]}:{icon}",
            }
        atlas.save(TARGET / "sprites.png", optimize=True)
        (TARGET / "sprites.json").write_text(json.dumps(index, indent=1) + "\n")
        for package, file in FONTS.items():
            folder = fetch(package, Path(tmp))
            shutil.copy(folder / file, TARGET / Path(file).name)
            shutil.copy(folder / "LICENSE_FONT", TARGET / f"{Path(file).stem}.LICENSE")
    for path in sorted(TARGET.iterdir()):
        print(f"{path.stat().st_size / 1024:7.1f} KiB  {path.name}")


if __name__ == "__main__":
    main()
