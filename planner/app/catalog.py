"""What the catalogs and the rule table hold, as one kind of table."""

from __future__ import annotations

from planner.app.requests import CatalogKind, CatalogTable
from planner.catalog import list_clusters, list_gpus, list_links, list_models
from planner.rules import RULES

_LISTS = {
    CatalogKind.GPUS: list_gpus,
    CatalogKind.LINKS: list_links,
    CatalogKind.CLUSTERS: list_clusters,
    CatalogKind.MODELS: list_models,
}


def list_catalog(kind: CatalogKind) -> CatalogTable:
    """All entries of one kind, by name (rules: in the order in which they are applied)."""
    if kind is CatalogKind.RULES:
        rows = tuple((rule.name, rule.severity.value, rule.summary, rule.source) for rule in RULES)
        return CatalogTable(kind=kind, columns=("name", "severity", "summary", "source"), rows=rows)
    listing = _LISTS[kind]()
    return CatalogTable(kind=kind, columns=listing.columns, rows=listing.rows)
