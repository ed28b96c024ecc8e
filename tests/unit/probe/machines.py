"""Stand-ins at the border: an `nvidia-smi` on PATH, and a root folder with /sys and /proc."""

from __future__ import annotations

import json
from pathlib import Path

GIB = 1 << 30

GPUS = """\
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 80994, 550.54
1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 70994, 550.54
"""
APPS = "GPU-bbbb, 4242, 10000\n"
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPIX\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""
_LINK_LINES = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
LINKS = "".join(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-x)\n{_LINK_LINES}" for gpu in (0, 1))
LISTING = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)\n"
SLICES = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
  MIG 3g.40gb     Device  0: (UUID: MIG-1111)
  MIG 1g.10gb     Device  1: (UUID: MIG-2222)
"""
DETAILS = {  # first field of the group asked: rows without the index
    "pci.bus_id": ["00000000:4E:00.0, Default, Enabled", "00000000:9E:00.0, Exclusive_Process, Disabled"],
    "pcie.link.gen.current": ["5, 5, 16, 16", "1, 5, 8, 16"],
    "ecc.mode.current": ["Enabled, 0, 0", "Enabled, 12, 3"],
    "mig.mode.current": ["Disabled", "Disabled"],
    "enforced.power.limit": ["700.00, 700.00", "500.00, 700.00"],
    "compute_cap": ["9.0", "9.0"],
    "remapped_rows.pending": ["No, No", "Yes, No"],
    "clocks_throttle_reasons.hw_slowdown": ["Not Active, Not Active", "Active, Not Active"],
}


def fake_nvidia_smi(
    folder: Path,
    *,
    gpus: str = GPUS,
    apps: str = APPS,
    details: dict[str, list[str]] | None = None,
    topology: str = TOPOLOGY,
    links: str = LINKS,
    listing: str = LISTING,
) -> dict[str, str]:
    """An environment in which this program answers; a group that `details` lacks is refused, as old drivers do."""
    groups = DETAILS if details is None else details
    answers = {
        "topo": topology,
        "nvlink": links,
        "-L": listing,
        "": "| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4  |\n",
        "--query-gpu=index,uuid": gpus,
        "--query-compute-apps": apps,
    }
    for first, rows in groups.items():
        answers[f"--query-gpu=index,{first}"] = "".join(f"{place}, {row}\n" for place, row in enumerate(rows))
    (folder / "answers.json").write_text(json.dumps(answers))
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/usr/bin/env python3\n"
        "import json, pathlib, sys\n"
        f"answers = json.loads(pathlib.Path({str(folder / 'answers.json')!r}).read_text())\n"
        "asked = sys.argv[1] if len(sys.argv) > 1 else ''\n"
        "found = [key for key in answers if key and asked.startswith(key)] or ([''] if not asked else [])\n"
        "print(answers[max(found, key=len)], end='') if found else sys.exit('not a valid field to query')\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def write(root: Path, name: str, text: str) -> None:
    """A file of the made-up root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cluster_node(root: Path) -> Path:
    """A node with two sockets, Ethernet, two InfiniBand ports of which one is down, and a small /dev/shm."""
    for address, node in (("0000:4e:00.0", 0), ("0000:9e:00.0", 1)):
        write(root, f"sys/bus/pci/devices/{address}/numa_node", f"{node}\n")
        write(root, f"sys/bus/pci/devices/{address}/current_link_speed", "2.5 GT/s PCIe\n")
        write(root, f"sys/bus/pci/devices/{address}/max_link_speed", "32.0 GT/s PCIe\n")
    write(root, "sys/devices/system/node/online", "0-1\n")
    write(root, "sys/class/net/eth0/operstate", "up\n")
    write(root, "sys/class/net/eth0/speed", "25000\n")
    write(root, "sys/class/net/eth0/device/numa_node", "0\n")
    write(root, "sys/class/net/lo/operstate", "unknown\n")
    for port, state, rate in (("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"), ("mlx5_1", "1: DOWN", "40 Gb/sec (4X)")):
        folder = f"sys/class/infiniband/{port}/ports/1"
        write(root, f"{folder}/state", f"{state}\n")
        write(root, f"{folder}/rate", f"{rate}\n")
        write(root, f"{folder}/link_layer", "InfiniBand\n")
    write(root, "sys/module/ib_core/version", "1\n")
    write(root, "proc/4242/comm", "python3\n")
    return root
