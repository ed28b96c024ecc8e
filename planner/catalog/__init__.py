"""The catalog: GPUs, links and clusters (YAML) and models (plain Hugging Face config.json), from files to records.

A user's folder and a site's folder come before the shipped one (`planner.resources`). Reading is strict and safe
(`documents`, `yaml_text`, `strict`, which the job file uses too); units are turned once (`hardware`); counts are exact
(`models`).
"""

from planner.catalog.hardware import (
    ClusterRequest,
    NodeDefaults,
    load_cluster,
    load_cluster_request,
    load_gpu,
    load_link,
    match_device_name,
    read_cluster_file,
    resolve_cluster,
    usual_node,
)
from planner.catalog.listing import Listing, list_clusters, list_gpus, list_links, list_models
from planner.catalog.models import load_model, model_from_config, read_model_config

__all__ = [
    "ClusterRequest",
    "Listing",
    "NodeDefaults",
    "list_clusters",
    "list_gpus",
    "list_links",
    "list_models",
    "load_cluster",
    "load_cluster_request",
    "load_gpu",
    "load_link",
    "load_model",
    "match_device_name",
    "model_from_config",
    "read_cluster_file",
    "read_model_config",
    "resolve_cluster",
    "usual_node",
]
