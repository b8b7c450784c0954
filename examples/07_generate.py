"""Generate text with a language model in a folder with onnxruntime-genai's layout. The model builder of
onnxruntime-genai writes such folders:

    python -m onnxruntime_genai.models.builder -m MODEL -o FOLDER -p int4 -e cpu

Needs `pip install vkq[onnx] tokenizers`.

    07_generate.py FOLDER "Once upon a time"
    07_generate.py FOLDER "Once upon a time" --count 200 --top-k 40 --temperature 0.8 --seed 1
    07_generate.py FOLDER "Once upon a time" --kv-cache int8    # a quarter of the memory of float32 caches
"""

import argparse
import time

import vkq.onnx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(".")[0])
    parser.add_argument("folder", nargs="?", help="of the model")
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--count", type=int, default=64, help="tokens at most")
    parser.add_argument("--top-k", type=int, default=1, help="1: the likeliest token; else one of so many")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kv-cache", choices=["int8"], help="store keys and values in 8 bits")
    parser.add_argument("--device", help="a part of the device's name")
    a = parser.parse_args()
    if not a.folder:
        return parser.print_help()
    with vkq.onnx.LanguageModel(a.folder, a.device, kv_cache=a.kv_cache) as model:
        print(a.prompt, end="", flush=True)
        begun, count = time.perf_counter(), 0
        for text in model.write(a.prompt, a.count, a.top_k, a.temperature, a.seed):
            print(text, end="", flush=True)
            count += 1
        print(
            f"\n{count} pieces of text in {time.perf_counter() - begun:.1f} s on {model.session.device.name}"
        )


if __name__ == "__main__":
    main()
