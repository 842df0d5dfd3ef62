"""Reads SBOMs by the schema of CycloneDX: sbom-valid.py FILE..."""
import json
import pathlib
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

for path in sys.argv[1:]:
    text = pathlib.Path(path).read_text()
    version = SchemaVersion.from_version(json.loads(text)['specVersion'])
    error = JsonStrictValidator(version).validate_str(text)
    if error:
        sys.exit(f'{path}: {error}')
