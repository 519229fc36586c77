"""Use of a private part of Liger Kernel: the list of supported model types.

Whether its layers are used belongs to `training.trainers.common`.
"""


def supports_model_type(model_type: str) -> bool:
    """Return whether Liger Kernel has layers for a model type.

    `apply_liger_kernel` only logs if it does not support a model, and a report must name what was
    used.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    return model_type in MODEL_TYPE_TO_APPLY_LIGER_FN
