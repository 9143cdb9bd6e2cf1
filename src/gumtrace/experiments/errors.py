"""What is wrong with a run on disk, said in one line."""


class RunFolderError(Exception):
    """The folder cannot be used for this run; the message says why and what to do."""


class OtherWeights(RunFolderError):
    """A checkpoint's weights are not those of the model."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(
            f"the weights of a checkpoint are not of this version of gumtrace ({reason}): use the version that wrote "
            "it, or choose another --out"
        )
