"""From text and recordings to a voice that `orpheus-serving` can serve. Serving never imports this package.

    sentences -> teacher -> prepare -> codec -> lm        a small voice from nothing but a licensed teacher (the demo
    voice)
    recordings ----------> prepare -> finetune            another voice on a model that exists (LoRA or full)
                                      evaluate            word error rate, rate, silence and speed of any of them

Each module has `add_arguments(parser)` and `main(args)`; `cli.add_train_commands` puts them under `orpheus-serving
train`.
Requirements of their own: requirements/train.txt.
"""
