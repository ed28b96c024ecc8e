"""What the catalogs and the rule table hold, as one kind of table."""

from __future__ import annotations

from planner.app.requests import CatalogKind, CatalogTable
from planner.catalog import list_clusters, list_gpus, list_links, list_models
from planner.catalog.entries import default_folders
from planner.diagnose.causes import CAUSES
from planner.jobfile import list_defaults
from planner.rules import RULES

_LISTS = {
    CatalogKind.GPUS: list_gpus,
    CatalogKind.LINKS: list_links,
    CatalogKind.CLUSTERS: list_clusters,
    CatalogKind.MODELS: list_models,
}


def list_catalog(kind: CatalogKind) -> CatalogTable:
    """All entries of one kind, by name (rules and causes: in the order of their table)."""
    if kind is CatalogKind.RULES:
        rows = tuple((rule.name, rule.severity.value, rule.summary, rule.source) for rule in RULES)
        return CatalogTable(kind=kind, columns=("name", "severity", "summary", "source"), rows=rows)
    if kind is CatalogKind.CAUSES:
        causes = tuple((entry.cause.value, entry.meaning, entry.decided_by) for entry in CAUSES)
        return CatalogTable(kind=kind, columns=("name", "meaning", "decided_by"), rows=causes)
    if kind is CatalogKind.DEFAULTS:
        said = list_defaults(default_folders())
        lines = tuple((one.key, str(one.value), one.used, one.origin, str(one.path)) for one in said)
        return CatalogTable(kind=kind, columns=("key", "value", "used", "folder", "source"), rows=lines)
    listing = _LISTS[kind]()
    return CatalogTable(kind=kind, columns=listing.columns, rows=listing.rows)
