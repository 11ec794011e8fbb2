"""Making a draft for a target out of the target alone: its own conversations, its hidden states, a small head."""
