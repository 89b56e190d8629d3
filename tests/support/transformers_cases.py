"""Random models of ``transformers`` and the checkpoints that it writes of them; who imports this needs transformers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="transformers is in the test extra")
    torch = pytest.importorskip("torch")

TOLERANCE = 1e-4
TOKENS = [3, 17, 42, 5, 61, 9, 9, 30, 2, 55, 12, 40, 33, 21, 8, 63, 1, 28]

DECODER = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 512}
SMALL = {"mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "olmoe": "Olmoe", "deepseek_v2": "DeepseekV2"}
DEEPSEEK = {
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
}
QWEN = {
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 40,
}
MIXTRAL = {"intermediate_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 2, "num_local_experts": 4}
OLMOE = {"intermediate_size": 24, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 3}
SWITCH = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 4,
    "num_sparse_encoder_layers": 2,
    "num_decoder_layers": 4,
    "num_sparse_decoder_layers": 2,
    "num_heads": 4,
    "num_experts": 4,
}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.5,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 16,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", MIXTRAL),
    "mixtral-tied-wide-heads": ("mixtral", MIXTRAL | {"tie_word_embeddings": True, "head_dim": 12}),
    "mixtral-stretched": ("mixtral", MIXTRAL | {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "mixtral-within-window": ("mixtral", MIXTRAL | {"sliding_window": 32}),
    "qwen2-moe": ("qwen2_moe", QWEN),
    "qwen2-moe-normalised-dense-between": (
        "qwen2_moe",
        QWEN | {"norm_topk_prob": True, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen2-moe-without-biases": ("qwen2_moe", QWEN | {"qkv_bias": False}),
    "olmoe": ("olmoe", OLMOE),
    "olmoe-normalised-clipped": (
        "olmoe",
        OLMOE | {"norm_topk_prob": True, "clip_qkv": 0.9, "num_key_value_heads": 2, "attention_bias": True},
    ),
    "deepseek-v2-lite": ("deepseek_v2", DEEPSEEK),
    "deepseek-v2-yarn": ("deepseek_v2", DEEPSEEK | {"rope_scaling": YARN, "rope_theta": 1e4}),
    "deepseek-v2-grouped": (
        "deepseek_v2",
        DEEPSEEK
        | {
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
            "q_lora_rank": 20,
            "first_k_dense_replace": 0,
            "num_hidden_layers": 2,
        },
    ),
    "switch": ("switch", SWITCH),
    "switch-untied-biased": ("switch", SWITCH | {"tie_word_embeddings": False, "router_bias": True}),
    "switch-crowded": ("switch", SWITCH | {"expert_capacity": 3}),
    "switch-uneven": (
        "switch",
        SWITCH | {"num_layers": 5, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 4},
    ),
}
#: Where the capacity of an expert bites, a pass over many tokens leaves some out that a pass over one serves.
DECODED = [case for case in CASES if case != "switch-crowded"]
#: One case of every layout.
LAYOUTS = ("mixtral", "qwen2-moe", "olmoe", "deepseek-v2-grouped", "switch")


class Case:
    """A model of ``transformers`` and its checkpoint."""

    def __init__(self, name: str, directory: Path) -> None:
        kind, fields = CASES[name]
        torch.manual_seed(7)
        if kind == "switch":
            config = transformers.SwitchTransformersConfig(**fields)
            self.model = transformers.SwitchTransformersForConditionalGeneration(config)
        else:
            config = getattr(transformers, f"{SMALL[kind]}Config")(**DECODER | fields)
            self.model = getattr(transformers, f"{SMALL[kind]}ForCausalLM")(config)
        self.is_switch = kind == "switch"
        with torch.no_grad():
            for parameter_name, parameter in self.model.named_parameters():
                # Gains, biases and gates that start as ones and zeros would hide mistakes; decisions must be clear.
                if parameter.ndim == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
                elif not self.is_switch:
                    parameter *= 4.0
                if "router" in parameter_name or "gate.weight" in parameter_name:
                    parameter *= 3.0
        self.model.eval()
        self.directory = directory
        self.save()

    def save(self, **options: Any) -> None:
        for file in self.directory.glob("*"):
            file.unlink()
        self.model.save_pretrained(self.directory, **options)

    def reload(self) -> None:
        """Compute in float32 with what was saved; a model that was converted would keep rounded rotary tables."""
        self.model = type(self.model).from_pretrained(self.directory, dtype=torch.float32)
        self.model.eval()

    def logits(self, tokens: Sequence[int], prompt: int | None = None) -> Any:
        """``prompt``: how many tokens the encoder reads, where there is one."""
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            if self.is_switch:
                return self.model(input_ids=ids[:, :prompt], decoder_input_ids=ids).logits[0].numpy()
            return self.model(ids).logits[0].numpy()


class Cases(dict[str, Case]):
    """Each made below a directory when a test first asks for it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def __missing__(self, name: str) -> Case:
        (self._directory / name).mkdir()
        self[name] = Case(name, self._directory / name)
        return self[name]
