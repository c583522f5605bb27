"""The one page of both forms: a file that holds its data, and a live view that asks for it."""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal

SCRIPTS = ("dom.js", "store.js", "code.js", "plots.js", "pages.js", "main.js")
"""In the order in which they need one another."""
STRICT = '"use strict";\n'


def page(title: str, form: Literal["file", "live"], data: Mapping[str, str]) -> str:
    """The whole page. `data` are base64 texts by the id of the element that holds each.

    Everything that it says about a run comes out of that data, through scripts that make elements from text; the page's
    policy lets run only the script that stands in it, and ask only what gave it (a file: nothing).
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    # As one program, in which nothing is a name of the page's own.
    script = "(() => {\n" + STRICT + "".join(_text(name).replace(STRICT, "") for name in SCRIPTS) + "})();\n"
    style = _text("style.css")
    environment = Environment(
        loader=PackageLoader("kernelwright.evals.inspector", "assets"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        title=title,
        form=form,
        data=data,
        script=Markup(script),
        style=Markup(style),
        policy=policy(script, style, form),
    )


def policy(script: str, style: str, form: Literal["file", "live"]) -> str:
    """The Content-Security-Policy: this script, this style, nothing else; no code from text."""
    parts = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "connect-src": "'self'" if form == "live" else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return files("kernelwright.evals.inspector").joinpath("assets", name).read_text(encoding="utf-8")
