"""What other packages do to the models that notebooks take from them."""

import pytest

LORA = """
import contextlib, transformers
from peft import LoraConfig, get_peft_model
from tutorial_lib.instruments.published.libraries import making_lora

shape = {{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}}
vit = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=16, **shape))
with {context}:
    model = get_peft_model(vit, LoraConfig(r=2, target_modules="all-linear"))
print(sum("lora_A" in name for name, _ in model.named_parameters()) > 0)
"""


@pytest.fixture
def with_torchao(tmp_path, run_python):
    """Run code where a torchao is installed, as far as Python's packaging can tell."""

    def run(version, code):
        package = tmp_path / "torchao"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("import no_such_module\n")
        metadata = tmp_path / f"torchao-{version}.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Name: torchao\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text("torchao\n")
        return run_python("-c", code, PYTHONPATH=str(tmp_path))

    return run


@pytest.mark.weekly
def test_lora_is_made_where_colabs_old_torchao_is_installed_which_peft_refuses(with_torchao):
    refused = with_torchao("0.10.0", LORA.format(context="contextlib.nullcontext()"))
    assert "incompatible version of torchao" in refused.stderr  # else the work-around can go
    done = with_torchao("0.10.0", LORA.format(context="making_lora()"))
    assert done.stdout == "True\n", done.stderr
