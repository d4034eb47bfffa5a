"""The work of ``proxfield make``."""

from __future__ import annotations

import click

from proxfield import generate
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.shared import show_summary
from proxfield.io.folders import check_folder
from proxfield.io.uai import format_model, write_model


def model(options: Options) -> None:
    """Run ``make grid``, ``rbm`` or ``segmentation``.

    The model goes as text to a file (then with a summary on stdout) or to stdout.
    """
    given = {**vars(options)}
    output, as_json = given.pop("output"), given.pop("as_json")
    if "sign" in given:
        given["sign"] = given["sign"] or "mixed"
    field = getattr(generate, click.get_current_context().command.name or "")(**given)
    if output == "-":
        click.echo(format_model(field), nl=False)
        return
    write_model(field, output)
    count = int(field.cardinalities.max(initial=0))
    made = {"n_vars": field.n_vars, "n_labels": count, "terms": list(field.kinds), "output": output}
    show_summary(made, as_json)


def people(options: Options) -> None:
    """Run ``make people``."""
    from proxfield.people.bodies import Noise
    from proxfield.people.simulate import simulate, write_simulation

    check_folder(options.folder)
    noise = Noise(options.missing, options.speckle, options.blobs, options.soft)
    same = options.pick("people", "cameras", "size", "spacing", "shape", "rate", "seed")
    made = simulate(options.kind, noise=noise, **same)
    write_simulation(made, options.folder, options.frames)
    summary = {
        "kind": options.kind,
        "frames": options.frames,
        "people": made.n_people,
        "cameras": len(made.cameras),
        "locations": made.scene.n_locations,
        "output": options.folder,
    }
    show_summary(summary, options.as_json)


def snakes(options: Options) -> None:
    """Run ``make snakes``."""
    from proxfield.learn.snakes import make_snakes, write_snakes

    train, test, output = options.train, options.test, options.output
    pictures, labels = make_snakes(train + test, options.seed)
    parts = {
        "train": (pictures[:train], labels[:train]),
        "test": (pictures[train:], labels[train:]),
    }
    write_snakes(output, parts, options.seed)
    pixels = sum(picture.size for picture in pictures)
    summary = {"train": train, "test": test, "pixels": pixels, "output": output}
    show_summary(summary, options.as_json)


def characters(options: Options) -> None:
    """Run ``make characters``."""
    from proxfield.learn.characters import make_characters, write_characters

    train, test, held_out = options.train, options.test, options.held_out
    check_folder(options.folder)
    total = train + test * (2 if held_out else 1)
    same = options.pick("hole", "seed")
    with Display() as display:
        sets = make_characters(
            train,
            test,
            fonts=options.fonts,
            held_out=held_out,
            progress=lambda k: display.phase(f"drawing {k} of {total} characters"),
            **same,
        )
        write_characters(sets, options.folder, **same)
    used = sorted(set(sets.train.fonts) | set(sets.test.fonts))
    summary = {"train": train, "test": test, "held_out": held_out or "", "hole": options.hole}
    show_summary({**summary, "fonts": used, "output": options.folder}, options.as_json)
