"""Keys of config.json that inference here knowingly ignores; any other unknown key is refused."""

from __future__ import annotations

# Who wrote the file, with what, and how PyTorch should run it.
_BOOKKEEPING = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation",
    "_experts_implementation_internal",
    "_name_or_path",
    "_notes",
    "architectures",
    "attn_implementation",
    "auto_map",
    "dtype",
    "experts_implementation",
    "is_llama_config",
    "model_type",
    "name_or_path",
    "pretraining_tp",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
}

# Losses, masks and dropout. Upstream spells one of them `conplemenrary_mask`.
_TRAINING = {
    "ar_loss_weight",
    "attention_dropout",
    "complementary_mask",
    "conplemenrary_mask",
    "dlm_loss_weight",
    "dlm_paradigm",
    "dp_varying_mask_ratio",
    "initializer_range",
    "output_router_logits",
    "router_aux_loss_coef",
}

# Defaults for generation, which callers give themselves.
_GENERATION = {
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "unk_token_id",
}

# Heads for other tasks, and what a PyTorch forward returns.
_OTHER_TASKS = {
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "finetuning_task",
    "id2label",
    "is_decoder",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_last_hidden_states",
}

# Widths of a sliding window that `use_sliding_window` leaves unused.
_UNUSED_WINDOW = {"max_window_layers", "sliding_window"}

IGNORED_KEYS = frozenset(_BOOKKEEPING | _TRAINING | _GENERATION | _OTHER_TASKS | _UNUSED_WINDOW)
