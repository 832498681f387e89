"""The Mistral family: Mistral and Mixtral. Read next: `config`."""
