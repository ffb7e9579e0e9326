"""Three owners and a coordinator on this machine: `python run.py [FOLDER]`.

Everything that would be set up on four machines, in one folder: keys, a certificate, a SuperLink that knows
the owners' keys, three owners in processes of their own, and the coordinator's run.
"""

import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

HERE, BIN = Path(__file__).parent, Path(sys.executable).parent


class Network:
    """A SuperLink on this machine, and whoever connects to it.

    Parameters
    ----------
    folder : Path
        Where everything is written.
    """

    def __init__(self, folder):
        self.folder, self.processes = Path(folder).absolute(), []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self):
        (self.folder / "flower").mkdir(parents=True, exist_ok=True)
        self._certificate()
        (self.folder / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.folder / "ca.pem"}"\n'
        )
        host, port = self.address.split(":")
        self.start(
            "superlink",
            BIN / "flower-superlink", "--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "ca.pem",
            "--ssl-keyfile", "server.key", "--enable-supernode-auth", "--host", host, "--port", port,
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.wait_for(self._is_up, 60, "the SuperLink")
        return self

    def __exit__(self, *what):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, name, *command):
        """Start a process in the folder; its output goes to a file of its name."""
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def flwr(self, *arguments):
        """Run Flower's command line as the coordinator; what it printed."""
        done = subprocess.run(
            [BIN / "flwr", *map(str, arguments)],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stdout)
        return done.stdout

    def key(self, name, *, register=True):
        """An owner's key; its public half is registered with the SuperLink."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (self.folder / name).write_bytes(private)
        (self.folder / name).chmod(0o600)
        (self.folder / f"{name}.pub").write_bytes(public)
        if register:
            self.flwr("supernode", "register", f"{name}.pub")

    def wait_for(self, done, seconds, what):
        """Wait, but not for ever."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise TimeoutError(f"Waited {seconds} s for {what}; see the logs in {self.folder}.")
            time.sleep(0.1)

    def _is_up(self):
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def _certificate(self):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), here]), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .sign(key, hashes.SHA256())
        )
        (self.folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (self.folder / "server.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        (self.folder / "server.key").chmod(0o600)


def start_owners(network, owners=3):
    """Each in a process of its own, with a key that the SuperLink knows."""
    for file in ("hospital.py", "owner.py"):
        shutil.copy(HERE / file, network.folder)
    for k in range(owners):
        network.key(f"owner{k}")
        network.start(f"owner{k}", sys.executable, "owner.py", k, network.address)


def coordinate(network, app=HERE / "app", owners=3):
    """Run the coordinator's app to its end; what it printed."""
    settings = f'folder="{network.folder}" owners={owners}'
    return network.flwr("run", app, "--run-config", settings, "--stream")


def main(folder):
    """The whole example; the coordinator's results are in `folder` afterwards."""
    with Network(folder) as network:
        start_owners(network)
        printed = coordinate(network)
    if not (network.folder / "posterior.nc").exists():
        raise RuntimeError(f"The coordinator did not finish:\n{printed}")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    main(target)
    print(f"Done: posterior.nc, and each owner's ledger and journal, are in {target}.")
