"""Certificates for tests of TLS, as files."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """One that signs certificates, into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(name, self.key.public_key(), -1 * DAY, DAY, authority=True)
        self.file = self._write(f"{name}.crt", self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, begin: datetime.timedelta = -1 * DAY, end: datetime.timedelta = DAY, password: bytes = b""
    ) -> tuple[str, str, str]:
        """A new certificate, valid from `begin` to `end` from now: (certificate, key, authority), all files."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key.public_key(), begin, end, authority=False)
        encryption: Any = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        data = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        stem = f"{self.name}-{name}"
        return (
            self._write(f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{stem}.key", data),
            self.file,
        )

    def _sign(
        self, name: str, key: Any, begin: datetime.timedelta, end: datetime.timedelta, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin)
            .not_valid_after(now + end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, key_cert_sign=authority, crl_sign=authority, decipher_only=False, **usage
                ),
                critical=True,
            )
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)
