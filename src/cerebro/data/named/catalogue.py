"""The data sets that are known by name."""

from __future__ import annotations

from difflib import get_close_matches

from cerebro.data.named import cifar, dummy, folders, idx, svhn
from cerebro.data.named.kinds import NamedData, Origin, OriginFile
from cerebro.errors import UsageError

_MNIST = Origin(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        OriginFile("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        OriginFile("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        OriginFile("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        OriginFile("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
)
_FASHION_MNIST = Origin(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        OriginFile("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        OriginFile("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        OriginFile("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        OriginFile("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
_CIFAR10 = Origin(
    "https://www.cs.toronto.edu/~kriz/",
    (OriginFile("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
)
_SVHN = Origin(
    "http://ufldl.stanford.edu/housenumbers/",
    (
        OriginFile("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        OriginFile("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),
        OriginFile("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
)

#: Name -> what is known of it.
DATASETS: dict[str, NamedData] = {
    data.name: data
    for data in (
        NamedData(
            name="cifar10",
            about="photographs of 10 kinds of things",
            rows=(50_000, 10_000),
            input_shape=(32, 32, 3),
            n_classes=10,
            load=cifar.load,
            forms=(cifar.BINARY, cifar.ARCHIVE, cifar.PNG),
            folders=("", "cifar10", "cifar-10", "cifar-10-batches-bin"),
            refused=cifar.REFUSED,
            origin=_CIFAR10,
        ),
        NamedData(
            name="dummy",
            about="random numbers of any shape, to see whether everything runs",
            rows=None,
            input_shape=None,
            n_classes=None,
            load=dummy.load,
            options=dummy.OPTIONS,
        ),
        NamedData(
            name="fashion-mnist",
            about="grey pictures of 10 kinds of clothes",
            rows=(60_000, 10_000),
            input_shape=(28, 28, 1),
            n_classes=10,
            load=idx.load,
            forms=(idx.FORM,),
            folders=("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
            system_folders=("/usr/share/datasets/fashion-mnist",),
            origin=_FASHION_MNIST,
        ),
        NamedData(
            name="imagenet",
            about="photographs in one folder a class, such as ImageNet",
            rows=None,
            input_shape=None,
            n_classes=None,
            load=folders.load,
            forms=(folders.FORM,),
            folders=("imagenet", "ImageNet"),
            options=folders.OPTIONS,
            given_by=folders.GIVEN_BY,
        ),
        NamedData(
            name="mnist",
            about="handwritten digits, grey",
            rows=(60_000, 10_000),
            input_shape=(28, 28, 1),
            n_classes=10,
            load=idx.load,
            forms=(idx.FORM,),
            folders=("mnist", "MNIST", "MNIST/raw"),
            origin=_MNIST,
        ),
        NamedData(
            name="svhn",
            about="house numbers in photographs of streets",
            rows=(604_388, 26_032),
            input_shape=(32, 32, 3),
            n_classes=10,
            load=svhn.load,
            forms=svhn.FORMS,
            folders=("", "svhn", "SVHN"),
            options=svhn.OPTIONS,
            origin=_SVHN,
        ),
    )
}


def lookup(name: str) -> NamedData:
    """The data set of this name; an unknown one is refused with those that are known.

    >>> lookup("mnist").input_shape
    (28, 28, 1)
    """
    data = DATASETS.get(name)
    if data is None:
        near = get_close_matches(str(name), DATASETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"unknown data set {name!r}. Known data sets: {', '.join(sorted(DATASETS))}.{hint}"
        )
    return data
