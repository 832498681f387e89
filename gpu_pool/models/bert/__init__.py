"""The BERT family of encoders: BERT, RoBERTa and XLM-RoBERTa. Read next: `model`."""
