"""Eight Keras networks on handwritten digits, hopping over four shards.

Keras runs on PyTorch where that is installed; set KERAS_BACKEND for another of its backends.
"""

import sys
from pathlib import Path

import cerebro
from cerebro import Experiment, tune
from cerebro.keras import Compiled, KerasTask

FOLDER = Path("keras_digits")


def build(params):
    """A small network for images of 8 x 8 pixels."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(params["width"], 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(params["dropout"]),
            layers.Dense(10, activation="softmax"),
        ]
    )
    return Compiled(
        model=model,
        optimizer=keras.optimizers.Adam(params["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["acc"],
    )


def main() -> int:
    data = FOLDER / "data"
    if not (data / "dataset.json").exists():
        cerebro.data.from_arrays(data, cerebro.data.digits(), shards=4, validation=0.2, seed=0)
    space = {
        "lr": tune.choice([1e-2, 1e-3]),
        "width": tune.choice([8, 16]),
        "dropout": tune.choice([0.0, 0.3]),
    }
    exp = Experiment(name="keras", data=data, store=FOLDER / "runs", workers=2, seed=0)
    task = KerasTask(build)
    result = exp.run_fit(task, space, num_epochs=4, batch_size=32, metric="val_acc", mode="max")
    best = result.best
    print(f"best: {best.id} {dict(best.params)} val_acc {best.metrics['val_acc']:.4f}")
    result.load(best.id).summary()
    return 0


if __name__ == "__main__":
    sys.exit(main())
