from pathlib import Path
from typing import Any


def svg(template: str, **values: Any) -> str:
    """Render a picture of `templates`. Names come from outside, and XML has no place for control characters."""
    from jinja2 import Environment, FileSystemLoader

    def plain(value: Any) -> Any:
        return "".join(one if one.isprintable() else "?" for one in value) if isinstance(value, str) else value

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, autoescape=True, finalize=plain, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(values)
