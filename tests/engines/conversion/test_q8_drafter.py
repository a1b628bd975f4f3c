"""A converted drafter in the engine: what is in memory, what it proposes, what it refuses."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engines.dflash2.cache import ContextRings
from engines.dflash2.config import ModelError, load_drafter_config
from engines.dflash2.conversion.cache import convert_to
from engines.dflash2.conversion.checkpoint import Origin
from engines.dflash2.decode import generate
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.quantized import QuantizedMatrix, dequantize
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.weights import load_drafter, load_target
from tests.engines.decoding import ONE, new_context, take_in

PAIR = Path("engines/demo/dense")
PROMPT = list(range(40, 300, 3))


@pytest.fixture(scope="module")
def target() -> nn.Module:
    return load_target(PAIR / "target")


@pytest.fixture(scope="module")
def q8_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "q8"
    origin = Origin(repository="demo", revision="here")
    convert_to(PAIR / "drafter", folder, origin, lambda text: None, lambda *progress: None)
    return folder


@pytest.fixture(scope="module")
def q8_drafter(q8_folder: Path, target: nn.Module) -> DFlash2Drafter:
    return load_drafter(q8_folder, target)


def taken_apart(folder: Path) -> dict[str, Tensor]:
    """The file's weights in float32 under the BF16 model's names, by the formula alone."""
    stored, weights = load_file(folder / "model.safetensors"), {}
    for name, tensor in stored.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        bare = stem if stem.endswith("codebook") else name
        if f"{stem}.scales" not in stored:
            weights[bare] = tensor.float()
            continue
        codes = tensor.view(torch.uint8).float().unflatten(-1, (-1, 64))
        scales = stored[f"{stem}.scales"].float().unsqueeze(-1)
        weights[bare] = (codes * scales + stored[f"{stem}.biases"].float().unsqueeze(-1)).flatten(1)
    return weights


def context_of(drafter: DFlash2Drafter, target: nn.Module, num_tokens: int) -> ContextRings:
    contexts = new_context(drafter)
    ids = torch.tensor([PROMPT[:num_tokens]])
    output = target(ids, tap_layer_ids=drafter.target_layer_ids)
    take_in(drafter, output.features, contexts)
    return contexts


def test_codes_stay_bytes_and_everything_else_is_float32(q8_drafter: DFlash2Drafter) -> None:
    model = q8_drafter.model
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    matrices = [module for module in model.modules() if isinstance(module, QuantizedMatrix)]
    # Nine in each of the layers, fc, the selector's projection and its two codebooks.
    assert len(matrices) == 9 * model.config.num_hidden_layers + 4
    for matrix in matrices:
        assert matrix.weight.dtype == torch.uint8
        assert matrix.scales.dtype == matrix.biases.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_proposals_are_those_of_the_dequantised_weights(
    q8_folder: Path, q8_drafter: DFlash2Drafter, target: nn.Module, temperature: float
) -> None:
    model = DFlash2DraftModel(load_drafter_config(q8_folder))
    model.load_state_dict(taken_apart(q8_folder), assign=True)
    plain_drafter = DFlash2Drafter(model.eval().requires_grad_(False), target)
    for num_tokens in range(1, len(PROMPT), 5):
        drafts = [
            drafter.propose(
                [PROMPT[num_tokens]],
                context_of(drafter, target, num_tokens),
                ONE,
                temperatures=[temperature],
                generators=[torch.Generator().manual_seed(num_tokens)],
            )[0]
            for drafter in (q8_drafter, plain_drafter)
        ]
        assert drafts[0].tokens == drafts[1].tokens
        assert torch.equal(drafts[0].candidates, drafts[1].candidates)


def test_a_matrix_multiplies_in_blocks_as_in_one_piece() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = QuantizedMatrix(1000, 1024)  # four blocks, the last one shorter
    matrix.weight.random_(0, 256, generator=generator)
    matrix.scales.normal_(0, 0.01, generator=generator)
    matrix.biases.normal_(0, 1, generator=generator)
    x = torch.randn(2, 8, 1024, generator=generator)
    whole = dequantize(matrix.weight, matrix.scales, matrix.biases).double()
    rows = torch.tensor([[3, 999], [0, 3]])
    assert torch.equal(matrix[rows].double(), whole[rows])
    expected = x.double() @ whole.T
    # Float32 rounds each of 1,024 products and sums: 1e-7 of what is added up, about 1,500 here.
    assert (matrix(x).double() - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_q8_drafter_computes_in_float32_beside_a_bfloat16_target(q8_folder: Path) -> None:
    target = load_target(PAIR / "target", torch.bfloat16)
    drafter = load_drafter(q8_folder, target, torch.bfloat16)
    contexts = context_of(drafter, target, 20)
    assert contexts.keys(ONE).dtype == torch.float32
    hidden = drafter.hidden([PROMPT[20]], contexts, ONE)
    assert hidden.dtype == torch.float32
    assert drafter.logits(hidden).dtype == torch.bfloat16


def test_drafting_with_q8_changes_no_token(q8_drafter: DFlash2Drafter, target: nn.Module) -> None:
    answers = [
        [
            token
            for step in generate(
                target,
                drafter,
                PROMPT,
                max_tokens=60,
                sampling=SamplingParams(),
                stop_ids=frozenset(),
                kv_len=256,
            )
            for token in step.tokens
        ]
        for drafter in (None, q8_drafter)
    ]
    assert len(answers[0]) == 60
    assert answers[0] == answers[1]


def test_a_missing_tensor_of_a_group_is_named(
    q8_folder: Path, target: nn.Module, tmp_path: Path
) -> None:
    tensors = load_file(q8_folder / "model.safetensors")
    del tensors["fc.scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((q8_folder / "config.json").read_text())
    with pytest.raises(ModelError, match=r"1 missing \(fc\.scales\)"):
        load_drafter(tmp_path, target)


def test_other_quantisations_are_refused(q8_folder: Path, tmp_path: Path) -> None:
    config = json.loads((q8_folder / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "quantization_config": config["quantization"]}))
    assert load_drafter_config(tmp_path).is_quantized
    config["quantization"]["bits"] = 4
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"quantization is {'bits': 4, .*'bits': 8"):
        load_drafter_config(tmp_path)
