"""GPUs, links and clusters: every name of the interface resolves, figures are in units and in order."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planner.catalog import (
    ClusterRequest,
    list_clusters,
    list_gpus,
    list_links,
    load_cluster,
    load_gpu,
    load_link,
    match_device_name,
    read_cluster_file,
    resolve_cluster,
    usual_node,
)
from planner.errors import InputError
from planner.resources import CatalogFolder, catalog_folders, find_data_dir, user_config_dir
from planner.spec import DeviceKind, Precision, Provenance

GIB = 1 << 30

GPU_NAMES = (
    "v100-sxm-16gb",
    "v100-sxm-32gb",
    "a100-pcie-40gb",
    "a100-sxm-40gb",
    "a100-pcie-80gb",
    "a100-sxm-80gb",
    "a10g-24gb",
    "l4-24gb",
    "l40s-48gb",
    "rtx3090-24gb",
    "rtx4090-24gb",
    "rtx5090-32gb",
    "h100-pcie-80gb",
    "h100-sxm-80gb",
    "h100-nvl-94gb",
    "h200-sxm-141gb",
    "b200-sxm-180gb",
    "gb200-186gb",
    "mi250x-gcd-64gb",
    "mi300x-192gb",
)


@pytest.mark.parametrize("name", GPU_NAMES)
def test_load_gpu_every_promised_name_is_complete(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    label_gib = int(name.rpartition("-")[2].removesuffix("gb"))
    assert 0.9 * label_gib * 1e9 < gpu.memory_usable_bytes <= gpu.memory_nominal_bytes < 1.08 * label_gib * GIB
    assert gpu.peak_fp16_flops_per_s >= gpu.peak_fp32_flops_per_s > 1e12
    assert gpu.memory_bandwidth_bytes_per_s > 2e11
    assert gpu.host_link_bytes_per_s > 1e10
    assert "memory (measured)" in gpu.source
    assert gpu.kind is Provenance.COMPUTED  # its weakest group is from a data sheet
    node = usual_node(name)
    assert node.intra_node_link.bandwidth_bytes_per_s >= node.inter_node_link.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h200", "h200-sxm-141gb"),
        ("a100-80gb", "a100-sxm-80gb"),
        ("H100-80GB", "h100-sxm-80gb"),
        ("A100_40GB", "a100-sxm-40gb"),
        ("h100", "h100-sxm-80gb"),
        ("a100", "a100-sxm-80gb"),
        ("v100", "v100-sxm-16gb"),
        ("v100-32gb", "v100-sxm-32gb"),
        ("h100-pcie", "h100-pcie-80gb"),
        ("h100-nvl", "h100-nvl-94gb"),
        ("b200", "b200-sxm-180gb"),
        ("gb200", "gb200-186gb"),
        ("l4", "l4-24gb"),
        ("l40s", "l40s-48gb"),
        ("a10g", "a10g-24gb"),
        ("rtx4090", "rtx4090-24gb"),
        ("RTX 5090", "rtx5090-32gb"),
        ("mi300x", "mi300x-192gb"),
        ("mi250x", "mi250x-gcd-64gb"),
    ],
)
def test_load_gpu_short_form_means_the_usual_one(alias: str, name: str) -> None:
    assert load_gpu(alias).name == name


def test_load_gpu_usable_memory_agrees_with_what_was_seen() -> None:
    seen_gib = {"h200": 139.3, "h100": 79.15, "a100-80gb": 79.15, "a100-40gb": 39.39, "l4": 22.3}
    for name, gib in seen_gib.items():
        assert load_gpu(name).memory_usable_bytes == pytest.approx(gib * GIB, rel=0.015), name


def test_load_gpu_older_devices_lack_newer_precisions() -> None:
    assert load_gpu("v100").peak_flops_per_s(Precision.BF16) == 0
    assert load_gpu("a100").peak_flops_per_s(Precision.FP8) == 0
    assert load_gpu("h100").peak_flops_per_s(Precision.FP8) == pytest.approx(1.979e15, rel=0.01)


def test_load_gpu_cpu_process_is_a_device_of_its_own_kind() -> None:
    cpu = load_gpu("cpu")
    assert cpu.device is DeviceKind.CPU
    assert cpu.peak_bf16_flops_per_s > 0


@pytest.mark.parametrize(("name", "near"), [("h1000", "h100"), ("a100-sxm-80", "a100-sxm-80gb"), ("rtx-4090ti", "rtx")])
def test_load_gpu_wrong_name_gets_near_matches(name: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        load_gpu(name)
    assert near in caught.value.fix


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "gpus/h100", "\0", "x" * 100_000, "h100-sxm-80gb.yaml"])
def test_load_gpu_hostile_name_is_only_unknown(name: str) -> None:
    with pytest.raises(InputError, match="there is no GPU"):
        load_gpu(name)


def test_load_link_every_generation_is_faster_than_the_one_before() -> None:
    ladders = (
        ["nvlink2", "nvlink3", "nvlink4", "nvlink5"],
        ["pcie3", "pcie4", "pcie5", "pcie6"],
        [f"ethernet-{gigabits}" for gigabits in (25, 40, 50, 100, 200, 400, 800)],
        ["infiniband-hdr", "infiniband-ndr", "infiniband-xdr"],
    )
    for ladder in ladders:
        speeds = [load_link(name).bandwidth_bytes_per_s for name in ladder]
        assert speeds == sorted(set(speeds)), ladder
    assert load_link("ethernet-400").bandwidth_bytes_per_s == 50e9  # 400 Gbit/s
    assert load_link("nvlink4").kind is Provenance.MEASURED


def test_load_cluster_dgx_is_complete_and_nodes_can_be_set() -> None:
    cluster = load_cluster("dgx-h100", nodes=4)
    assert cluster.world_size == 32
    assert cluster.gpu.name == "h100-sxm-80gb"
    assert cluster.intra_node_link.name == "nvlink4"
    assert cluster.host_memory_bytes == 2048 * GIB


def test_list_functions_show_every_file_with_its_folder() -> None:
    shipped = find_data_dir("configs")
    for listing, kind in ((list_gpus(), "gpus"), (list_links(), "links"), (list_clusters(), "clusters")):
        assert [row[0] for row in listing.rows] == sorted(path.stem for path in (shipped / kind).glob("*.yaml"))
        folder = listing.columns.index("folder")
        assert {row[folder] for row in listing.rows} == {"shipped"}
        assert all(len(row) == len(listing.columns) for row in listing.rows)
        assert all(row[listing.columns.index("source")] for row in listing.rows)


def _catalog_folder(root: Path, origin: str) -> CatalogFolder:
    (root / "gpus").mkdir(parents=True)
    return CatalogFolder(origin=origin, path=root)


def _own_gpu(folder: CatalogFolder, name: str, *, usable_gib: float) -> Path:
    text = (find_data_dir("configs") / "gpus" / "h100-sxm-80gb.yaml").read_text()
    text = text.replace("name: h100-sxm-80gb", f"name: {name}").replace(
        "usable_gib: 79.11", f"usable_gib: {usable_gib}"
    )
    path = folder.path / "gpus" / f"{name}.yaml"
    path.write_text(text)
    return path


def test_load_gpu_user_folder_hides_site_folder_hides_shipped(tmp_path: Path) -> None:
    user = _catalog_folder(tmp_path / "user", "user")
    site = _catalog_folder(tmp_path / "site", "site")
    shipped = CatalogFolder(origin="shipped", path=find_data_dir("configs"))
    _own_gpu(site, "h100-sxm-80gb", usable_gib=70)
    assert load_gpu("h100-sxm-80gb", folders=(user, site, shipped)).memory_usable_bytes == 70 * GIB
    _own_gpu(user, "h100-sxm-80gb", usable_gib=60)
    assert load_gpu("h100-sxm-80gb", folders=(user, site, shipped)).memory_usable_bytes == 60 * GIB
    rows = {row[0]: row[-2] for row in list_gpus(folders=(user, site, shipped)).rows}
    assert (rows["h100-sxm-80gb"], rows["h200-sxm-141gb"]) == ("user", "shipped")


def test_load_gpu_changed_file_is_read_again(tmp_path: Path) -> None:
    user = _catalog_folder(tmp_path / "user", "user")
    folders = (user, CatalogFolder(origin="shipped", path=find_data_dir("configs")))
    _own_gpu(user, "mine-80gb", usable_gib=50)
    assert load_gpu("mine-80gb", folders=folders).memory_usable_bytes == 50 * GIB
    path = _own_gpu(user, "mine-80gb", usable_gib=40)
    shutil.copystat(find_data_dir("configs") / "gpus" / "cpu.yaml", path)  # another modification time
    assert load_gpu("mine-80gb", folders=folders).memory_usable_bytes == 40 * GIB


def test_load_gpu_broken_file_of_a_user_names_file_line_and_key(tmp_path: Path) -> None:
    user = _catalog_folder(tmp_path / "user", "user")
    path = _own_gpu(user, "mine-80gb", usable_gib=50)
    path.write_text(path.read_text().replace("usable_gib: 50", "usable_gb: 50"))
    with pytest.raises(InputError) as caught:
        load_gpu("mine-80gb", folders=(user,))
    assert f"{path} line 6: memory.usable_gb is not a key of `memory`" in caught.value.error
    assert "usable_gib" in caught.value.fix


def test_load_gpu_more_usable_than_nominal_is_refused(tmp_path: Path) -> None:
    user = _catalog_folder(tmp_path / "user", "user")
    _own_gpu(user, "mine-80gb", usable_gib=5000)
    with pytest.raises(InputError, match="more usable than nominal"):
        load_gpu("mine-80gb", folders=(user,))


def test_load_gpu_file_under_another_name_is_refused(tmp_path: Path) -> None:
    user = _catalog_folder(tmp_path / "user", "user")
    path = _own_gpu(user, "mine-80gb", usable_gib=50)
    path.rename(path.with_name("yours-80gb.yaml"))
    with pytest.raises(InputError, match="says its name is 'mine-80gb'"):
        load_gpu("yours-80gb", folders=(user,))


def test_catalog_folders_variables_come_first_and_must_exist(tmp_path: Path) -> None:
    environment = {"MESHPLAN_CONFIGS": str(tmp_path), "MESHPLAN_SITE_CONFIGS": str(tmp_path)}
    assert [folder.origin for folder in catalog_folders(environment)] == ["user", "site", "shipped"]
    assert [folder.origin for folder in catalog_folders({})] == ["shipped"]
    (tmp_path / "meshplan").mkdir()
    assert [folder.origin for folder in catalog_folders({"XDG_CONFIG_HOME": str(tmp_path)})] == ["user", "shipped"]
    with pytest.raises(InputError, match="MESHPLAN_SITE_CONFIGS names"):
        catalog_folders({"MESHPLAN_SITE_CONFIGS": str(tmp_path / "none")})


def test_user_config_dir_follows_the_platform() -> None:
    assert user_config_dir({"HOME": "/home/u"}, platform="linux") == Path("/home/u/.config/meshplan")
    assert user_config_dir({"HOME": "/u"}, platform="darwin") == Path("/u/Library/Application Support/meshplan")
    assert user_config_dir({"APPDATA": "/a"}, platform="win32") == Path("/a/meshplan")
    assert user_config_dir({}, platform="linux") is None


@pytest.mark.parametrize(
    ("device_name", "total_gib", "name"),
    [
        ("NVIDIA H200", 139.8, "h200-sxm-141gb"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", 79.1, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-sxm-40gb"),
        ("Tesla V100-SXM2-16GB", 15.8, "v100-sxm-16gb"),
        ("NVIDIA GeForce RTX 4090", 23.6, "rtx4090-24gb"),
    ],
)
def test_match_device_name_finds_what_the_driver_says(device_name: str, total_gib: float, name: str) -> None:
    found = match_device_name(device_name, total_bytes=int(total_gib * GIB))
    assert found is not None
    assert found.name == name


def test_match_device_name_unknown_is_none() -> None:
    assert match_device_name("Some GPU 9000", total_bytes=GIB) is None


CLUSTER_FILE = """
name: lab
gpu: h100
nodes: 3
gpus_per_node: 4
inter_node_link:
  name: lab-fabric
  gb_per_s: 12.5
  latency_us: 20
  efficiency_fraction: 0.7
  kind: measured
  source: a benchmark of ours
host_memory_gib: 500
memory_gib: 60
"""


def test_read_cluster_file_described_link_and_cap_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER_FILE)
    cluster = resolve_cluster(read_cluster_file(path))
    assert (cluster.name, cluster.world_size) == ("lab", 12)
    assert cluster.intra_node_link.name == "nvlink4"
    assert cluster.inter_node_link.latency_s == pytest.approx(2e-5)
    assert cluster.inter_node_link.kind is Provenance.MEASURED
    assert cluster.host_memory_bytes == 500 * GIB
    assert cluster.gpu.memory_usable_bytes == 60 * GIB


def test_read_cluster_file_wrong_key_of_a_described_link_names_its_path(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER_FILE.replace("gb_per_s", "gbps_per_s"))
    with pytest.raises(InputError) as caught:
        read_cluster_file(path)
    assert "inter_node_link.gbps_per_s is not a key of `inter_node_link`" in caught.value.error
    assert "described" not in str(caught.value)
    assert "gb_per_s" in caught.value.fix


def test_resolve_cluster_cap_above_the_usable_memory_is_refused_on_a_gpu_and_is_the_memory_on_a_cpu() -> None:
    gpu = ClusterRequest(gpu=load_gpu("h100"), usual=usual_node("h100"), memory_cap_bytes=90 * GIB)
    with pytest.raises(InputError, match=r"more than the 79\.11 GiB"):
        resolve_cluster(gpu)
    cpu = ClusterRequest(gpu=load_gpu("cpu"), usual=usual_node("cpu"), memory_cap_bytes=90 * GIB)
    assert resolve_cluster(cpu).gpu.memory_usable_bytes == 90 * GIB
