"""A small text classifier with Hugging Face's Trainer, elastic. Argument: the number of epochs."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import lucid_transformers

set_seed(0)
words = torch.randint(10, 100, (2048, 16))
data = [{"input_ids": row, "labels": int(row[0] > 55)} for row in words]
small = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
arguments = TrainingArguments(
    output_dir=lucid_transformers.folder(), per_device_train_batch_size=lucid_transformers.share(64),
    num_train_epochs=int(sys.argv[1]), save_strategy="epoch", save_total_limit=1, report_to=[],
    use_cpu=not torch.cuda.is_available(), disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    BertForSequenceClassification(small), arguments, train_dataset=data, callbacks=[lucid_transformers.Elastic()]
)
trainer.train(resume_from_checkpoint=lucid_transformers.last())
