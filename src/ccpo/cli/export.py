"""Write what is deployed: the policy file with its model card, and an ONNX model."""

import argparse
from pathlib import Path

EXAMPLES = """\
  ccpo export RUN --out policy.safetensors
  ccpo export RUN --onnx policy.onnx
  ccpo export policy.safetensors --out deploy/policy.safetensors --onnx deploy/policy.onnx"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, a saved policy file, or pretrained/TASK")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the policy file; its model card is written beside it")
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="also, or only, an ONNX model")


def call(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ccpo import agent
    from ccpo.deploy.export import export_policy
    from ccpo.deploy.onnx import export_onnx
    from ccpo.display import tell
    from ccpo.errors import ConfigError

    if options.out is None and options.onnx is None:
        raise ConfigError("nothing to write; give --out policy.safetensors, --onnx policy.onnx or both")
    for name, path, suffix in (("out", options.out, ".safetensors"), ("onnx", options.onnx, ".onnx")):
        if path is not None and path.suffix != suffix:
            raise ConfigError(f"--{name} {path} must end in {suffix}: other endings belong to the files beside it")
    console, trained = Console(), agent.load(options.run)
    kinds = {".safetensors": "policy", ".md": "card", ".png": "figure", ".svg": "figure"}
    if options.out:
        for path in export_policy(trained, options.out):
            tell(console, f"{kinds[path.suffix]:<9} {path}")
        if trained.policy.manifest["evaluation"] is None:
            hint = f"first run: ccpo evaluate {options.run}" if trained.run else "of a file, none can be exported"
            tell(console, f"not evaluated yet; {hint}")
    if options.onnx:
        path = export_onnx(trained.policy, options.onnx)
        tell(console, f"onnx      {path}")
