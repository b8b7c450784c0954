"""Clean systems in which guides run. mmdebstrap makes a root file system from a distribution's packages; it
is kept as a tar file and unpacked for each guide.

A system has its base packages, certificates and sudo. From this machine it gets only the network, pip's
settings and the packages that were downloaded before. Programs for another processor run under qemu-user,
which emulates only the processor. Chroot and mounts need root rights.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}
KEYRING = "http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
KEYRING_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
# This script runs in mount and process namespaces of its own, which end with the process.
ENTER = """
mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc"
for pair in $BOUND; do mkdir -p "$0${pair#*:}"; mount --bind "${pair%%:*}" "$0${pair#*:}"; done
exec chroot "$0" /usr/bin/env -i "$@"
"""


@dataclass(frozen=True)
class System:
    """A release of a distribution for one processor."""

    name: str  # the name of the distribution's Docker image
    suite: str
    processor: str = "amd64"

    def __str__(self) -> str:
        return f"{self.name}, {self.processor}"

    @property
    def file(self) -> str:
        """The name of the kept tar file."""
        return f"{self.suite}-{self.processor}.tar"

    def sources(self, work: Path) -> list[str]:
        """Return mmdebstrap's arguments for package sources and trusted keys."""
        if self.name.startswith("debian"):
            return ["http://deb.debian.org/debian"]
        mirror = f"deb http://archive.ubuntu.com/ubuntu {self.suite} main universe"
        return [f"--keyring={keyring(work)}", mirror]


DEBIAN = System("debian:12", "bookworm")
UBUNTU = System("ubuntu:24.04", "noble")


def keyring(work: Path) -> Path:
    """Return the folder with Ubuntu's keys, for which Debian 12 has no package."""
    made = work / "ubuntu-keyring"
    if not made.exists():
        with urllib.request.urlopen(KEYRING, timeout=60) as answer:
            package = answer.read()
        if hashlib.sha256(package).hexdigest() != KEYRING_SHA256:
            sys.exit(f"{KEYRING} is not the file that was looked at")
        (work / "keyring.deb").write_bytes(package)
        subprocess.run(["dpkg-deb", "-x", work / "keyring.deb", made], check=True)
    return made / "usr/share/keyrings"


def check(systems: set[System]) -> None:
    """Exit if a program that is needed is missing."""
    if os.geteuid():
        sys.exit("roots are entered with chroot and mounts: run it as root (a container will do)")
    for tool in ("mmdebstrap", "unshare"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing: apt-get install --no-install-recommends mmdebstrap util-linux")
    for system in systems:
        name = PROCESSORS[system.processor]
        if name != platform.machine() and not Path(f"/proc/sys/fs/binfmt_misc/qemu-{name}").exists():
            sys.exit(
                f"programs for {name} do not start here: apt-get install qemu-user-static binfmt-support"
            )


def unpacked(system: System, work: Path, name: str) -> Path:
    """Return a fresh root file system in ``work/name``."""
    kept, root = work / system.file, work / name
    if not kept.exists():
        print(f"== {system}: a root by mmdebstrap", flush=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={system.processor}"]
        made = kept.with_suffix(".made.tar")
        more = ["--include=apt,ca-certificates,sudo", system.suite, str(made), *system.sources(work)]
        subprocess.run([*command, *more], check=True)
        made.rename(kept)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    subprocess.run(["tar", "xf", kept, "-C", root, "--exclude=./dev/*"], check=True)
    # apt-get must ask no question
    (root / "etc/apt/apt.conf.d/99guide").write_text('APT::Get::Assume-Yes "true";\n')
    (root / "etc/apt/apt.conf.d/docker-clean").unlink(missing_ok=True)
    (root / "etc/dpkg/dpkg.cfg.d/99guide").write_text("force-unsafe-io\n")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy(BUNDLE, root / str(BUNDLE).lstrip("/"))
    return root


def entered(root: Path, system: System, work: Path, script: str) -> subprocess.Popen[str]:
    """Start *script* with bash in the root file system; return the process (``stdout``: the output)."""
    (root / "root/typed.sh").write_text(script)
    cached = {"pip": "/root/.cache/pip", f"apt-{system.suite}-{system.processor}": "/var/cache/apt/archives"}
    bound = {str(work / "cache" / name): inside for name, inside in cached.items()}
    for folder in bound:
        Path(folder).mkdir(parents=True, exist_ok=True)
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        if Path(folder).is_dir():
            bound[folder] = folder
    given = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    given |= {"HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "USER": "root"}
    given["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    words = [f"{key}={value}" for key, value in given.items()]
    return subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-ec", ENTER, str(root), *words,
         "bash", "-eu", "-o", "pipefail", "/root/typed.sh"],
        env=os.environ | {"BOUND": " ".join(f"{a}:{b}" for a, b in bound.items())},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
